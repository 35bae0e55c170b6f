"""Kubeconfig files: parsing, merging, and the cluster and user of a context. No I/O.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Merging, precedence and validation are
client-go's (`tools/clientcmd`): the first file that has an entry of a name wins, and so does the first file
with a `current-context`; relative paths are relative to their file. The differences are listed in
docs/credentials.md. Only the entries of the selected context are validated, so a mistake in another context's
entry has no effect.

Every problem is a `ConfigurationError` that names file and field, or the line of a file that is not YAML.
Entries contain secrets: no message and no repr shows a token, a password, a key, or the arguments and
variables of a command.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import functools
import ipaddress
import os.path
import re
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from aioresolve._core.redaction import Confidential
from aioresolve.errors import ConfigurationError, Hint, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""The name of the cluster extension whose content exec plugins receive."""

DEFAULT_PORTS = {"http": 80, "https": 443}

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_HEADER_CHARACTERS = "!#$&'*+-.^_`|~"  # of a header's name, without the % of escapes: RFC 9110
_INVALID_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Control characters (RFC 9110), and surrogates, which aiohttp would leave out of the value of a header."""

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST_PORT = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*)):([^\[\]:]*)")


# In the following classes, `where` describes an entry for messages: "kubeconfig /home/me/.kube/config, user
# 'dev'". Credentials are cached by it.


class Entry(Confidential, frozen=True):
    """A named entry of a kubeconfig, not yet validated."""

    where: str
    place: str  # as `where`, with the path of the field: "kubeconfig /home/me/.kube/config: users[dev].user"
    folder: str  # that relative paths start from
    written: Any

    def error(self, field: str, problem: str, hint: str | None = None) -> ConfigurationError:
        """Return the error for a field, such as `.token`, or for the whole entry."""
        return ConfigurationError(f"{self.place}{field}: {problem}", hint=hint)

    def absolute_path(self, path: str) -> str:
        """Return a path in the entry as an absolute path.

        As in client-go, `..` in a relative path removes the part before it, also if that is a symbolic link;
        an absolute path is used as it is.
        """
        return path if os.path.isabs(path) else os.path.normpath(os.path.join(self.folder, path))


class Kubeconfig(msgspec.Struct, frozen=True):
    """One kubeconfig file, or several merged: entries by name."""

    paths: tuple[str, ...]
    current_context: str | None
    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]

    @property
    def is_empty(self) -> bool:
        """Whether it has no entries and no current context; client-go then uses the next source."""
        return not (self.contexts or self.clusters or self.users or self.current_context)


class PEMSource(Confidential, frozen=True):
    """A PEM text: inline in the kubeconfig (`data`), or in a file (`path`)."""

    where: str
    data: bytes | None = None
    path: str | None = None


class Cluster(Confidential, frozen=True):
    """The address of an API server, and how to verify it."""

    where: str
    server: str
    certificate_authority: PEMSource | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool = False
    exec_extension: Any = None

    @property
    def is_https(self) -> bool:
        return urlsplit(self.server).scheme == "https"


class ExecPlugin(Confidential, frozen=True):
    """Prints credentials: https://kubernetes.io/docs/reference/access-authn-authz/authentication/"""

    where: str
    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str | None = None
    provide_cluster_info: bool = False


class AuthProvider(Confidential, frozen=True):
    """A source of tokens, older than exec plugins; client-go supports only `oidc`, since 1.26."""

    where: str
    name: str
    config: tuple[tuple[str, str], ...] = ()


class User(Confidential, frozen=True):
    """The credentials of a user; without any, the server treats requests as `system:anonymous`."""

    where: str
    token: str | None = None
    token_file: str | None = None
    username: str | None = None
    password: str | None = None
    client_certificate: PEMSource | None = None
    client_key: PEMSource | None = None
    exec_plugin: ExecPlugin | None = None
    auth_provider: AuthProvider | None = None
    impersonation: tuple[tuple[str, str], ...] = ()

    @property
    def has_static_credentials(self) -> bool:
        """Whether it has credentials other than those of a plugin, which client-go then does not run."""
        return bool(self.token or self.token_file or self.username or self.client_certificate)

    def __str__(self) -> str:
        """Return its name, if it has one, and the kinds of its credentials: never the credentials."""
        kinds = [
            "client certificate" if self.client_certificate else "",
            f"token file {self.token_file}" if self.token_file else "token" if self.token else "",
            "user name and password" if self.username else "",
        ]
        if not any(kinds) and self.exec_plugin is not None:
            kinds = [f"exec plugin {os.path.basename(self.exec_plugin.command)!r}"]
        elif not any(kinds) and self.auth_provider is not None:
            kinds = [f"auth-provider {self.auth_provider.name!r}"]
        kind = " and ".join(filter(None, kinds)) or "no credentials"
        name = self.where.partition(", user ")[2]
        acting = dict(self.impersonation).get("Impersonate-User")
        return f"{f'user {name}: ' if name else ''}{kind}{f', acting as {acting!r}' if acting else ''}"


class Selection(msgspec.Struct, frozen=True):
    """A context with its cluster and its user."""

    context: str
    where: str
    namespace: str | None
    cluster: Cluster
    user: User


# The fields that are read, as they are written. Others are ignored, as by kubectl.


class _NamedFields(Confidential, frozen=True):
    """An item of one of the three lists. Its content is converted when a context uses it."""

    name: str | None = None
    context: Any = None
    cluster: Any = None
    user: Any = None


class _FileFields(Confidential, frozen=True):
    kind: str | None = None
    api_version: str | None = msgspec.field(name="apiVersion", default=None)
    current_context: str | None = msgspec.field(name="current-context", default=None)
    contexts: list[_NamedFields] | None = None
    clusters: list[_NamedFields] | None = None
    users: list[_NamedFields] | None = None


class _ContextFields(Confidential, frozen=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _ExtensionFields(Confidential, frozen=True):
    name: str | None = None
    extension: Any = None


class _ClusterFields(Confidential, frozen=True, rename="kebab"):
    server: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None
    extensions: list[_ExtensionFields] | None = None


class _VariableFields(Confidential, frozen=True):
    name: str
    value: str | None = None


class _ExecFields(Confidential, frozen=True, rename="camel"):
    command: str | None = None
    args: list[str] | None = None
    env: list[_VariableFields] | None = None
    api_version: str | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class _AuthProviderFields(Confidential, frozen=True):
    name: str | None = None
    config: dict[str, str | None] | None = None


class _UserFields(Confidential, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    auth_provider: _AuthProviderFields | None = None
    exec: _ExecFields | None = None
    as_user: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str] | None] | None = None
    extensions: Any = None


def parse_kubeconfig(content: bytes, path: str) -> Kubeconfig:
    """Return the entries of one file. An empty file is an empty kubeconfig, as for kubectl."""
    source = f"kubeconfig {path}"
    file = _convert(_parse_document(_decode(content, source), source), _FileFields, f"{source}: ")
    for key, found, expected in (("kind", file.kind, "Config"), ("apiVersion", file.api_version, "v1")):
        if found and found != expected:
            raise ConfigurationError(
                f"{source}: {key}: {found!r} is not the {key} of a kubeconfig, which is {expected!r}",
                hint="Check that this is the right file.",
            )
    folder = os.path.normpath(os.path.dirname(path))
    return Kubeconfig(
        paths=(path,),
        current_context=file.current_context or None,
        contexts=_entries(file.contexts, "context", source, folder),
        clusters=_entries(file.clusters, "cluster", source, folder),
        users=_entries(file.users, "user", source, folder),
    )


def merge_kubeconfigs(files: Sequence[Kubeconfig]) -> Kubeconfig:
    """Return the files as one: of each name, and of `current-context`, the first file wins."""
    contexts: dict[str, Entry] = {}
    clusters: dict[str, Entry] = {}
    users: dict[str, Entry] = {}
    for file in reversed(files):  # the first file is added last, and so replaces the entries of the others
        contexts.update(file.contexts)
        clusters.update(file.clusters)
        users.update(file.users)
    return Kubeconfig(
        paths=tuple(path for file in files for path in file.paths),
        current_context=next((file.current_context for file in files if file.current_context), None),
        contexts=MappingProxyType(contexts),
        clusters=MappingProxyType(clusters),
        users=MappingProxyType(users),
    )


def select_context(config: Kubeconfig, context: str | None) -> Selection:
    """Return the context of that name (None for the current one), with its cluster and user."""
    where = f"kubeconfig {', '.join(config.paths)}"
    name = context if context is not None else config.current_context
    if not config.contexts:
        raise ConfigurationError(
            f"{where}: no contexts are defined", hint="Add one with `kubectl config set-context NAME`."
        )
    if name is None:
        raise ConfigurationError(
            f"{where}: no current-context is set; the file has: {_names(config.contexts)}",
            hint="Pass {context}, or run `kubectl config use-context NAME`.",
        )
    if name not in config.contexts:
        raise ConfigurationError(
            f"{where}: {'current-context: ' if context is None else ''}there is no context {name!r};"
            f" there are: {_names(config.contexts)}",
            hint="Pass one of these as {context}.",
        )
    entry = config.contexts[name]
    fields = _convert(entry.written, _ContextFields, entry.place)
    if not fields.cluster:
        raise entry.error("", "has no cluster", "Add `cluster: NAME`.")
    cluster = _referenced(config.clusters, fields.cluster, entry, "cluster")
    user = User(where=entry.where)
    if fields.user:
        user = _user(_referenced(config.users, fields.user, entry, "user"))
    return Selection(
        context=name,
        where=entry.where,
        namespace=fields.namespace or None,
        cluster=_cluster(cluster),
        user=user,
    )


def _decode(content: bytes, source: str) -> str:
    """Return the text of a file in UTF-8, or in UTF-16, as PowerShell writes the output of a command."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    with suppress(UnicodeDecodeError):
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    raise ConfigurationError(f"{source}: not valid UTF-8", hint="Save the file as UTF-8.")


def _parse_document(text: str, source: str) -> Any:
    # Some tools write kubeconfigs as JSON indented with tabs, which YAML does not allow; and a large file is
    # read much faster.
    if text.lstrip().startswith("{") and (value := parse_json(text)) is not None:
        return value
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError(
            f"{source} is YAML, and PyYAML is not installed", hint="Run `pip install pyyaml`."
        ) from error
    problem = "not valid YAML"
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is not None:
            source, problem = f"{source}:{mark.line + 1}", f"{problem} (column {mark.column + 1})"
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        pass  # PyYAML raises the first four for values that do not fit their tag
    # Outside of `except`: the error of the parser quotes the file, and would become the context.
    raise ConfigurationError(f"{source}: {problem}", hint="Run `kubectl config view` to check the file.")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; None if it is not valid JSON."""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
        return msgspec.json.decode(text)
    return None


def parse_yaml(text: str) -> Any:
    """Return the first document of a YAML text, which is the only one that kubectl reads."""
    loader = _loader()(text)
    try:
        return loader.get_data()
    finally:
        loader.dispose()


@functools.cache
def _loader() -> Any:
    import yaml

    base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    plain = {
        "int": r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)",
        "float": (
            r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        "bool": "y|Y|n|N",
    }
    replaced = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp", "value")}

    class Loader(base):  # type: ignore[misc]
        """Reads plain scalars as kubectl: `2024-01-01`, `1:30` and `=` are strings, `1e3` is a number."""

        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
            for first, resolvers in base.yaml_implicit_resolvers.items()
        }
        bool_values = base.bool_values | {"y": True, "n": False}

        def flatten_mapping(self, node: Any) -> None:
            # As for kubectl, the fields of `<<` replace those that are written before it.
            pairs = []
            for key, value in node.value:
                if key.tag != "tag:yaml.org,2002:merge":
                    pairs.append((key, value))
                    continue
                for source in reversed(value.value if value.id == "sequence" else [value]):
                    if source.id != "mapping":
                        raise yaml.constructor.ConstructorError(None, None, "no mapping", source.start_mark)
                    self.flatten_mapping(source)
                    pairs += source.value
            node.value = pairs

    for name, pattern in plain.items():
        first = list("yYnN" if name == "bool" else "-+.0123456789")
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{pattern})\Z"), first)
    return Loader


def _convert(written: Any, kind: type[T], place: str) -> T:
    """Return the fields of a mapping; a missing or empty one has no fields."""
    try:
        return msgspec.convert({} if written is None else written, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `")
    # The error of msgspec has types, but no values.
    field = path.removeprefix("key` in `").removeprefix("$").rstrip("`")
    field = field.removeprefix(".") if place.endswith(": ") else field
    problem = problem.replace(" | null`", "`").replace("`object`", "a mapping").replace("`array`", "a list")
    hint = "Put a text in quotes." if problem.startswith("Expected `str`") else None
    if kind is _FileFields and not field:
        hint = "A kubeconfig has clusters, contexts and users; check that this is the right file."
    raise ConfigurationError(f"{(place + field).removesuffix(': ')}: {problem}", hint=hint)


def _entries(items: list[_NamedFields] | None, kind: str, source: str, folder: str) -> Mapping[str, Entry]:
    entries: dict[str, Entry] = {}
    for item in items or ():
        name = item.name or ""  # nothing can refer to an entry without a name
        if name in entries:
            raise ConfigurationError(
                f"{source}: {kind}s: the name {name!r} is used twice", hint="Rename or remove one of the two."
            )
        place = f"{source}: {kind}s[{name if name.isprintable() else repr(name)}].{kind}"
        entries[name] = Entry(f"{source}, {kind} {name!r}", place, folder, getattr(item, kind))
    return MappingProxyType(entries)


def _referenced(entries: Mapping[str, Entry], name: str, context: Entry, kind: str) -> Entry:
    if name not in entries:
        raise context.error(f".{kind}", f"there is no {kind} {name!r}; there are: {_names(entries)}")
    return entries[name]


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _cluster(entry: Entry) -> Cluster:
    fields = _convert(entry.written, _ClusterFields, entry.place)
    if not fields.server:
        raise entry.error("", "has no server", "Add `server: https://HOST:PORT`.")
    authority = _pem_source(
        entry, "certificate-authority", fields.certificate_authority, fields.certificate_authority_data
    )
    insecure = bool(fields.insecure_skip_tls_verify)
    scheme = default_scheme(authority, insecure=insecure)
    server = validate_server_url(fields.server, f"{entry.place}.server", scheme)
    if insecure and authority is not None and urlsplit(server).scheme == "https":
        raise entry.error(
            "",
            "certificate-authority and insecure-skip-tls-verify: true contradict each other",
            "Remove insecure-skip-tls-verify.",
        )
    proxy = fields.proxy_url and validate_proxy_url(fields.proxy_url, f"{entry.place}.proxy-url")
    extensions = {item.name: item.extension for item in fields.extensions or ()}
    return Cluster(
        where=entry.where,
        server=server,
        certificate_authority=authority,
        insecure_skip_tls_verify=insecure,
        tls_server_name=_tls_server_name(fields.tls_server_name, entry) if fields.tls_server_name else None,
        proxy_url=proxy or None,
        disable_compression=bool(fields.disable_compression),
        exec_extension=extensions.get(EXEC_EXTENSION),
    )


def _tls_server_name(name: str, entry: Entry) -> str:
    inner = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if _ip_address(inner) is not None:
        return inner
    name = name.removesuffix(".")  # TLS names have no dot at the end: RFC 6066
    if not _DNS_NAME.fullmatch(name):
        raise entry.error(
            ".tls-server-name",
            "not a host name or address",
            "Write the name in the server's certificate, in ASCII (punycode).",
        )
    return name


def _user(entry: Entry) -> User:
    fields = _convert(entry.written, _UserFields, entry.place)
    if (fields.token and (fields.username or fields.password)) or (fields.token_file and fields.username):
        raise entry.error(
            "", "has both a token and username/password, and only one can be sent", "Remove one of them."
        )
    certificate = _pem_source(
        entry, "client-certificate", fields.client_certificate, fields.client_certificate_data
    )
    key = certificate and _pem_source(entry, "client-key", fields.client_key, fields.client_key_data)
    if certificate is not None and key is None:
        raise entry.error("", "has a client-certificate without a client-key", "Add client-key.")
    if fields.exec is not None and fields.auth_provider is not None:
        raise entry.error("", "has both exec and auth-provider", "Remove auth-provider.")
    user = User(
        where=entry.where,
        token=fields.token or None,
        token_file=entry.absolute_path(fields.token_file) if fields.token_file else None,
        username=fields.username or None,
        password=(fields.username and fields.password) or None,
        client_certificate=certificate,
        client_key=key,
        exec_plugin=None if fields.exec is None else _exec_plugin(fields.exec, entry),
        auth_provider=None if fields.auth_provider is None else _auth_provider(fields.auth_provider, entry),
        impersonation=_impersonation(fields, entry),
    )
    if user.has_static_credentials:
        return user  # client-go does not run the plugin then
    if fields.exec is not None and fields.exec.interactive_mode == "Always":
        raise entry.error(
            ".exec.interactiveMode",
            "the plugin requires a terminal (Always), and aioresolve does not give it one",
            "Set IfAvailable or Never, or log in with another plugin or a token.",
        )
    if user.exec_plugin is None and user.auth_provider is None:
        _reject_unusable_fields(fields, entry)
    return user


def _reject_unusable_fields(fields: _UserFields, entry: Entry) -> None:
    """Raise an error if a user without usable credentials has fields that were meant to be credentials.

    kubectl prompts for a user name and password then. An anonymous request would be a surprise.
    """
    if fields.password:
        raise entry.error("", "has a password without a username", "Add username.")
    if fields.client_key or fields.client_key_data:
        raise entry.error("", "has a client-key without a client-certificate", "Add client-certificate.")
    known = {field.encode_name for field in msgspec.structs.fields(_UserFields)}
    if any(value is not None for name, value in (entry.written or {}).items() if name not in known):
        # The names of the unknown fields are not shown: `{hunter2: }` may be a misplaced secret.
        raise entry.error(
            "",
            "has no credentials but an unknown field",
            f"Known are {', '.join(sorted(known))}; for anonymous requests, remove the field.",
        )


def _exec_plugin(fields: _ExecFields, entry: Entry) -> ExecPlugin:
    if not fields.command:
        raise entry.error(".exec", "has no command", "Add `command: NAME`.")
    version, mode = fields.api_version, fields.interactive_mode or None
    if version not in EXEC_API_VERSIONS:
        raise entry.error(
            ".exec.apiVersion",
            f"{version!r} is not supported, only {' and '.join(EXEC_API_VERSIONS)}",
            "Upgrade the plugin, and let it write its kubeconfig entry again.",
        )
    if mode is None and version == EXEC_API_VERSIONS[0]:
        raise entry.error(
            ".exec", f"has no interactiveMode, which {version} requires", "Add `interactiveMode: Never`."
        )
    if mode not in (None, "Never", "IfAvailable", "Always"):
        raise entry.error(".exec.interactiveMode", f"{mode!r} is not one of Never, IfAvailable, Always")
    return ExecPlugin(
        where=f"{entry.where}, exec",
        api_version=version,
        # A bare name is looked up on PATH; a path is relative to the kubeconfig, as for client-go.
        command=entry.absolute_path(fields.command) if os.sep in fields.command else fields.command,
        args=tuple(fields.args or ()),
        env=tuple((variable.name, variable.value or "") for variable in fields.env or ()),
        install_hint=fields.install_hint or None,
        provide_cluster_info=bool(fields.provide_cluster_info),
    )


def _auth_provider(fields: _AuthProviderFields, entry: Entry) -> AuthProvider:
    if not fields.name:
        raise entry.error(".auth-provider", "has no name", "Add `name: oidc`, or use exec instead.")
    return AuthProvider(
        where=f"{entry.where}, auth-provider {fields.name!r}",
        name=fields.name,
        config=tuple((key, value) for key, value in (fields.config or {}).items() if value),
    )


def _impersonation(fields: _UserFields, entry: Entry) -> tuple[tuple[str, str], ...]:
    """Return `as`, `as-uid`, `as-groups` and `as-user-extra` as request headers:
    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation"""
    values = {
        ("as", "Impersonate-User"): [fields.as_user] if fields.as_user else [],
        ("as-uid", "Impersonate-Uid"): [fields.as_uid] if fields.as_uid else [],
        ("as-groups", "Impersonate-Group"): fields.as_groups or [],
    }
    for name, texts in (fields.as_user_extra or {}).items():
        values["as-user-extra", f"Impersonate-Extra-{quote(name, safe=_HEADER_CHARACTERS)}"] = texts or []
    for (field, _), texts in values.items():
        if not all(map(is_valid_in_header, texts)):
            raise entry.error(f".{field}", "contains a line break or a control character", "Remove it.")
    # Space around the value of a header has no meaning; a blank user would be no impersonation.
    headers = tuple((header, text.strip(" \t")) for (_, header), texts in values.items() for text in texts)
    if (headers or fields.as_user_extra) and not dict(headers).get("Impersonate-User"):
        raise entry.error("", "has as-uid, as-groups or as-user-extra without `as`", "Add `as: USER`.")
    return headers


def _pem_source(entry: Entry, key: str, path: str | None, data: str | None) -> PEMSource | None:
    """Return the PEM text of `KEY-data` or of the file `KEY`; None if neither is set."""
    if data and path:
        raise entry.error("", f"has both {key} and {key}-data", "Remove one of them.")
    if data:
        with suppress(binascii.Error, ValueError):  # ValueError: not ASCII
            decoded = base64.b64decode("".join(data.split()), validate=True)
            return PEMSource(where=f"{entry.where}: {key}-data", data=decoded)
        raise entry.error(f".{key}-data", "not valid base64", "Encode the PEM file with `base64 -w0`.")
    return PEMSource(where=f"{entry.where}: {key}", path=entry.absolute_path(path)) if path else None


# Addresses of API servers and of proxies. A user name and password in an address never appear in a message.


def is_valid_in_header(text: str) -> bool:
    """Whether `text` can be the value of a header."""
    return _INVALID_IN_HEADER.search(text) is None


def default_scheme(authority: PEMSource | None, *, insecure: bool) -> str:
    """Return the scheme of a server that is written as HOST:PORT: https if the cluster has options for TLS.

    As in client-go's `rest.DefaultServerUrlFor`. kubectl uses http for such a server of a kubeconfig.
    """
    return "https" if authority is not None or insecure else "http"


def validate_server_url(url: str, where: str, scheme: str = "http") -> str:
    """Return the URL of an API server: scheme, host, port and path prefix, without a trailing slash.

    `scheme` is that of a HOST:PORT (see `default_scheme`).
    """
    if not _has_scheme_and_host(url):
        url = f"{scheme}://{url}"
        if _split_server_url(url, where).path not in ("", "/"):
            raise ConfigurationError(
                f"{where}: {_shown(url)} is neither a URL nor HOST:PORT", hint="Write https://HOST:PORT."
            )
    parts = _split_server_url(url, where)
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(
            f"{where}: {_shown(url)} does not start with https:// or http://", hint="Write https://HOST:PORT."
        )
    if parts.username is not None:
        raise ConfigurationError(
            f"{where}: the URL contains a user name or password",
            hint="Move them to username and password of the kubeconfig's user.",
        )
    # As in client-go, a query and a fragment are ignored. The scheme of `parts` is in lower case.
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def validate_proxy_url(url: str, where: str) -> str:
    """Return `url`, the URL of a proxy, which may contain user name and password."""
    # The error does not quote it: without a scheme it is not known which part may be a password.
    parts = _split_url(url, f"{where}: not a valid URL", example="http://proxy:3128")
    if parts.scheme.startswith("socks"):
        raise ConfigurationError(
            f"{where}: SOCKS proxies ({parts.scheme}) are not supported",
            hint="Use an http:// or https:// proxy.",
        )
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(
            f"{where}: the URL does not start with http:// or https://", hint="Write http://HOST:PORT."
        )
    return url


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for `server` from HTTPS_PROXY or HTTP_PROXY; None for a direct connection.

    The rules are those of Go's `golang.org/x/net/http/httpproxy`, which client-go uses, so that NO_PROXY
    means the same as for kubectl. Requests to localhost and loopback addresses never use a proxy.
    """
    parts = urlsplit(server)
    names = (f"{parts.scheme.upper()}_PROXY", f"{parts.scheme}_proxy")
    name = next((name for name in names if environ.get(name)), None)
    if name is None:
        return None
    if _is_exempt(parts, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    proxy = environ[name] if "://" in environ[name] else f"http://{environ[name]}"
    return validate_proxy_url(proxy, f"environment variable {name}")


def without_credentials(url: str) -> str:
    """Return `url` without user name and password, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _split_server_url(url: str, where: str) -> SplitResult:
    return _split_url(url, f"{where}: {_shown(url)} is not a valid URL", example="https://10.0.0.1:6443")


def _split_url(url: str, failure: str, *, example: str) -> SplitResult:
    """Return the parts of a URL; a ConfigurationError with the summary `failure` if it is not valid."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if (
            parts.hostname
            and parts.port != 0
            and url.isprintable()
            and " " not in url
            and _is_host(parts.hostname)
        ):
            return parts
    raise ConfigurationError(failure, hint=Hint("Write it as {example}.", {"example": example}))


def _has_scheme_and_host(url: str) -> bool:
    with suppress(ValueError):
        parts = urlsplit(url)
        return bool(parts.scheme and parts.netloc)
    return True  # not a valid URL either way


def _is_host(host: str) -> bool:
    """Whether it is an address, or a name that TLS and the resolver accept."""
    if _ip_address(host) is not None:
        return True
    with suppress(UnicodeError):
        name = host if host.isascii() else host.encode("idna").decode("ascii")
        # aiohttp rejects `1.2.3`, which the system would take as 1.2.0.3.
        return bool(_DNS_NAME.fullmatch(name.removesuffix("."))) and not name.replace(".", "").isdigit()
    return False


def _shown(url: str) -> str:
    return (
        repr(str(url))
        if "@" not in url and "?" not in url
        else "the URL (not shown: it may contain a password)"
    )


def _is_exempt(server: SplitResult, no_proxy: str) -> bool:
    host, port = server.hostname or "", str(server.port or DEFAULT_PORTS[server.scheme])
    address = _ip_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(_matches(entry, host, address, port) for entry in entries)


def _matches(entry: str, host: str, address: IPAddress | None, port: str) -> bool:
    """Whether one entry of NO_PROXY exempts the host.

    An entry is a CIDR block, an address or a name, the last two with or without a port. A name exempts
    itself and its subdomains; one that starts with `.` or `*.` exempts its subdomains only.
    """
    if "/" in entry:
        return address is not None and _is_in_block(address, entry)
    # Only an entry with a port may have brackets.
    found = _HOST_PORT.fullmatch(entry)
    name, entry_port = (found[1] or found[2], found[3]) if found else (entry, "")
    if not name or entry_port not in ("", port):
        return False
    if (exempt := _ip_address(name)) is not None:
        return exempt == address
    domain = name.removeprefix("*") if name.startswith("*.") else name
    return host.endswith(domain) if domain.startswith(".") else f".{host}".endswith(f".{domain}")


def _is_in_block(address: IPAddress, block: str) -> bool:
    try:
        return address in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False


def _ip_address(host: str) -> IPAddress | None:
    """Return an address; None for a name. As in Go, an IPv4-mapped address is an IPv4 address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
