"""Kubeconfig files: parsing, merging, and the cluster and user of a context. No I/O.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Merging, precedence and validation are
client-go's (`tools/clientcmd`): the first file that has an entry of a name wins, and so does the first file
with a `current-context`; relative paths are relative to their file. The differences are listed in
docs/kubernetes.md. Only the entries of the selected context are validated, so a mistake in another context's
entry has no effect.

Every problem is a `ConfigurationError` that names file, line (unless the file is JSON) and field. Entries
contain secrets: no message and no repr shows a token, a password, a key, or the arguments and variables of a
command.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os.path
import re
from contextlib import suppress
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from aioresolve._core.document import (
    DocumentError,
    Location,
    MappingNode,
    ScalarNode,
    build_from_json,
    decode,
    is_null,
    kind_of,
    parse_first_json,
    parse_yaml,
    python_value,
    require_mapping,
    require_string,
)
from aioresolve._core.redaction import PLACEHOLDER, Confidential
from aioresolve.errors import ConfigurationError, Hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve._core.document import Node

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""The name of the cluster extension whose content exec plugins receive."""

DEFAULT_PORTS = {"http": 80, "https": 443}

# The fields of the entries that a context uses. Others are ignored, unless they are misspelt: a `Token` that
# is ignored would become an anonymous request.
CONTEXT_FIELDS = ("cluster", "user", "namespace", "extensions")
CLUSTER_FIELDS = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority",
    "certificate-authority-data", "proxy-url", "disable-compression", "extensions",
)  # fmt: skip
CREDENTIAL_FIELDS = (
    "client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile",
    "username", "password", "auth-provider", "exec",
)  # fmt: skip
USER_FIELDS = (*CREDENTIAL_FIELDS, "as", "as-uid", "as-groups", "as-user-extra", "extensions")
EXEC_FIELDS = (
    "command", "args", "env", "apiVersion", "installHint", "provideClusterInfo", "interactiveMode",
)  # fmt: skip

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_HEADER_CHARACTERS = "!#$&'*+-.^_`|~"  # of a header's name, without the % of escapes: RFC 9110
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_INVALID_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Control characters (RFC 9110), and surrogates, which aiohttp would leave out of the value of a header."""

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST_PORT = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*)):([^\[\]:]*)")


# In the following classes, `where` describes an entry for messages: "kubeconfig /home/me/.kube/config, user
# 'dev'". It contains no line, because credentials are cached by it and should survive an edit of other
# entries.


class Entry(Confidential, frozen=True):
    """A named entry of a kubeconfig, not yet validated."""

    where: str
    folder: str  # that relative paths start from
    node: Node

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


def parse_kubeconfig(content: bytes, path: str) -> Kubeconfig:
    """Return the entries of one file. An empty file is an empty kubeconfig, as for kubectl."""
    try:
        return _parse(content, path)
    except DocumentError as error:
        failure = error.as_configuration_error()
    raise failure  # outside of `except`: the parser's error quotes the file, and would become the context


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
    try:
        return _select(config, name)
    except DocumentError as error:
        failure = error.as_configuration_error()
    raise failure


def _parse(content: bytes, path: str) -> Kubeconfig:
    source = f"kubeconfig {path}"
    root = _parse_document(decode(content, source), source)
    if root is None or is_null(root):
        root = MappingNode(Location(source), {}, {})
    if not isinstance(root, MappingNode):
        raise DocumentError(
            Location(source),
            f"must be a mapping with clusters, contexts and users, not {kind_of(root)}",
            "Check that this is the right file.",
        )
    for key, expected in (("kind", "Config"), ("apiVersion", "v1")):
        if (found := root.string(key)) not in (None, expected):
            raise DocumentError(
                root.location_of(key),
                f"{found!r} is not the {key} of a kubeconfig, which is {expected!r}",
                "Check that this is the right file.",
            )
    root.mapping("preferences")  # not used, but another type is an error, as for kubectl
    folder = os.path.normpath(os.path.dirname(path))
    return Kubeconfig(
        paths=(path,),
        current_context=root.string("current-context"),
        contexts=_entries(root, "contexts", "context", folder),
        clusters=_entries(root, "clusters", "cluster", folder),
        users=_entries(root, "users", "user", folder),
    )


def _parse_document(text: str, source: str) -> Node | None:
    """Return the first document of a file, which is the only one that kubectl reads."""
    # Some tools write kubeconfigs as JSON indented with tabs, which YAML does not allow.
    if text.lstrip().startswith("{") and (value := parse_first_json(text)) is not None:
        return build_from_json(value, Location(source))
    try:
        return parse_yaml(text, source)
    except DocumentError as error:
        hint = error.hint or "Run `kubectl config view` to check the file."
        raise DocumentError(error.location, error.problem, hint) from None


def _entries(root: MappingNode, key: str, kind: str, folder: str) -> Mapping[str, Entry]:
    entries: dict[str, Entry] = {}
    for item in root.mappings(key):
        name = item.string("name") or ""  # nothing can refer to an entry without a name
        if name in entries:
            raise DocumentError(
                item.location, f"the name {name!r} is used twice in {key}", "Rename or remove one of the two."
            )
        where = f"{root.location.source}, {kind} {name!r}"
        node = item.get(kind) or MappingNode(item.location_of(kind), {}, {})
        entries[name] = Entry(where, folder, node)
    return MappingProxyType(entries)


def _select(config: Kubeconfig, name: str) -> Selection:
    entry = config.contexts[name]
    fields = _fields(entry.node, CONTEXT_FIELDS)
    cluster = fields.string("cluster")
    if cluster is None:
        raise DocumentError(fields.location, "has no cluster", "Add `cluster: NAME`.")
    user = fields.string("user")
    return Selection(
        context=name,
        where=entry.where,
        namespace=fields.string("namespace"),
        cluster=_cluster(_referenced(config.clusters, cluster, fields, "cluster")),
        user=(
            User(where=entry.where)
            if user is None
            else _user(_referenced(config.users, user, fields, "user"))
        ),
    )


def _referenced(entries: Mapping[str, Entry], name: str, context: MappingNode, kind: str) -> Entry:
    if name not in entries:
        raise DocumentError(
            context.location_of(kind), f"there is no {kind} {name!r}; there are: {_names(entries)}"
        )
    return entries[name]


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _fields(node: Node, known: Sequence[str]) -> MappingNode:
    """Return the fields of an entry, none of which differs from a known one only in case, `-` or `_`."""
    fields = require_mapping(node)
    for name in fields.values:
        for meant in known:
            if name != meant and _letters(name) == _letters(meant) and fields.get(name) is not None:
                raise DocumentError(
                    fields.location_of(name), f"not a field of a kubeconfig; write it as {meant}"
                )
    return fields


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _cluster(entry: Entry) -> Cluster:
    fields = _fields(entry.node, CLUSTER_FIELDS)
    written = fields.string("server") or ""
    if not written:
        raise DocumentError(fields.location, "has no server", "Add `server: https://HOST:PORT`.")
    authority = _pem_source(fields, "certificate-authority", entry)
    insecure = fields.flag("insecure-skip-tls-verify")
    scheme = default_scheme(authority, insecure=insecure)
    server = validate_server_url(written, str(fields.location_of("server")), scheme)
    if insecure and authority is not None and urlsplit(server).scheme == "https":
        raise DocumentError(
            fields.location,
            "certificate-authority and insecure-skip-tls-verify: true contradict each other",
            "Remove insecure-skip-tls-verify.",
        )
    proxy = fields.string("proxy-url") or ""
    extensions = {item.string("name"): item.get("extension") for item in fields.mappings("extensions")}
    exec_extension = extensions.get(EXEC_EXTENSION)
    return Cluster(
        where=entry.where,
        server=server,
        certificate_authority=authority,
        insecure_skip_tls_verify=insecure,
        tls_server_name=_tls_server_name(fields),
        proxy_url=None if not proxy else validate_proxy_url(proxy, str(fields.location_of("proxy-url"))),
        disable_compression=fields.flag("disable-compression"),
        exec_extension=None if exec_extension is None else python_value(exec_extension),
    )


def _tls_server_name(fields: MappingNode) -> str | None:
    name = fields.string("tls-server-name")
    if name is None:
        return None
    inner = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if _ip_address(inner) is not None:
        return inner
    name = name.removesuffix(".")  # TLS names have no dot at the end: RFC 6066
    if not _DNS_NAME.fullmatch(name):
        raise DocumentError(
            fields.location_of("tls-server-name"),
            "not a host name or address",
            "Write the name in the server's certificate, in ASCII (punycode).",
        )
    return name


def _user(entry: Entry) -> User:
    fields = _fields(entry.node, USER_FIELDS)
    token, token_file = fields.string("token"), fields.string("tokenFile")
    username, password = fields.string("username"), fields.string("password")
    if (token and (username or password)) or (token_file and username):
        raise DocumentError(
            fields.location,
            "has both a token and username/password, and only one can be sent",
            "Remove one of them.",
        )
    certificate = _pem_source(fields, "client-certificate", entry)
    key = None if certificate is None else _pem_source(fields, "client-key", entry)
    if certificate is not None and key is None:
        raise DocumentError(
            fields.location, "has a client-certificate without a client-key", "Add client-key."
        )
    plugin, provider = fields.mapping("exec"), fields.mapping("auth-provider")
    if plugin is not None and provider is not None:
        raise DocumentError(fields.location, "has both exec and auth-provider", "Remove auth-provider.")
    user = User(
        where=entry.where,
        token=token,
        token_file=None if token_file is None else entry.absolute_path(token_file),
        username=username,
        password=None if username is None else password,
        client_certificate=certificate,
        client_key=key,
        exec_plugin=None if plugin is None else _exec_plugin(plugin, entry),
        auth_provider=None if provider is None else _auth_provider(provider, entry),
        impersonation=_impersonation(fields),
    )
    if not (user.has_static_credentials or plugin or provider):
        _reject_unusable_fields(fields)
    elif plugin is not None and not user.has_static_credentials:
        _require_no_terminal(plugin)
    return user


def _reject_unusable_fields(fields: MappingNode) -> None:
    """Raise an error if a user without usable credentials has fields that were meant to be credentials.

    kubectl prompts for a user name and password then. An anonymous request would be a surprise.
    """
    if fields.string("password"):
        raise DocumentError(fields.location, "has a password without a username", "Add username.")
    if fields.string("client-key") or fields.string("client-key-data"):
        raise DocumentError(
            fields.location, "has a client-key without a client-certificate", "Add client-certificate."
        )
    unknown = [name for name in fields.values if name not in USER_FIELDS and fields.get(name) is not None]
    if unknown:
        # The names of the unknown fields are not shown: `{hunter2: }` may be a misplaced secret.
        raise DocumentError(
            Location(
                fields.location.source,
                fields.lines.get(unknown[0], fields.location.line),
                fields.location.path,
            ),
            "has no credentials but an unknown field",
            f"Credentials are {', '.join(CREDENTIAL_FIELDS)}; for anonymous requests, remove the field.",
        )


def _exec_plugin(node: MappingNode, entry: Entry) -> ExecPlugin:
    fields = _fields(node, EXEC_FIELDS)
    command = fields.string("command")
    if command is None:
        raise DocumentError(fields.location, "has no command", "Add `command: NAME`.")
    version = fields.string("apiVersion")
    if version not in EXEC_API_VERSIONS:
        raise DocumentError(
            fields.location_of("apiVersion"),
            f"{version!r} is not supported, only {' and '.join(EXEC_API_VERSIONS)}",
            "Upgrade the plugin, and let it write its kubeconfig entry again.",
        )
    mode = fields.string("interactiveMode")
    if mode is None and version == EXEC_API_VERSIONS[0]:
        raise DocumentError(
            fields.location,
            f"has no interactiveMode, which {version} requires",
            "Add `interactiveMode: Never`.",
        )
    if mode not in (None, "Never", "IfAvailable", "Always"):
        raise DocumentError(
            fields.location_of("interactiveMode"), f"{mode!r} is not one of Never, IfAvailable, Always"
        )
    env = []
    for variable in fields.mappings("env"):
        name, value = variable.string("name"), variable.string("value")
        if name is None:
            raise DocumentError(variable.location, "has no name", "Add `name: VARIABLE`.")
        if "=" in name:
            raise DocumentError(variable.location_of("name"), "contains =", "Write the value as `value`.")
        env.append((name, value or ""))
    args = fields.strings("args")
    if any("\0" in text for text in (command, *args, *chain.from_iterable(env))):
        raise DocumentError(fields.location, "contains a null character", "Remove it.")
    return ExecPlugin(
        where=f"{entry.where}, exec",
        api_version=str(version),
        # A bare name is looked up on PATH; a path is relative to the kubeconfig, as for client-go.
        command=entry.absolute_path(command) if os.sep in command else command,
        args=args,
        env=tuple(env),
        install_hint=fields.string("installHint"),
        provide_cluster_info=fields.flag("provideClusterInfo"),
    )


def _require_no_terminal(plugin: MappingNode) -> None:
    if plugin.string("interactiveMode") == "Always":
        raise DocumentError(
            plugin.location_of("interactiveMode"),
            "the plugin requires a terminal (Always), and aioresolve does not give it one",
            "Set IfAvailable or Never, or log in with another plugin or a token.",
        )


def _auth_provider(fields: MappingNode, entry: Entry) -> AuthProvider:
    name = fields.string("name")
    if name is None:
        raise DocumentError(fields.location, "has no name", "Add `name: oidc`, or use exec instead.")
    config = fields.mapping("config")
    values = [] if config is None else [(key, config.string(key)) for key in config.values]
    return AuthProvider(
        where=f"{entry.where}, auth-provider {name!r}",
        name=name,
        config=tuple((key, value) for key, value in values if value is not None),
    )


def _impersonation(fields: MappingNode) -> tuple[tuple[str, str], ...]:
    """Return `as`, `as-uid`, `as-groups` and `as-user-extra` as request headers:
    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation"""
    extra = fields.mapping("as-user-extra") or MappingNode(fields.location, {}, {})
    values = {
        ("as", "Impersonate-User"): _texts(fields.string("as")),
        ("as-uid", "Impersonate-Uid"): _texts(fields.string("as-uid")),
        ("as-groups", "Impersonate-Group"): fields.strings("as-groups"),
    }
    for name in extra.values:
        require_string(ScalarNode(extra.location, name))  # half of a surrogate pair cannot be quoted
        header = f"Impersonate-Extra-{quote(name, safe=_HEADER_CHARACTERS)}"
        values["as-user-extra", header] = extra.strings(name)
    for (field_name, _), texts in values.items():
        if not all(map(is_valid_in_header, texts)):
            raise DocumentError(
                fields.location_of(field_name), "contains a line break or a control character", "Remove it."
            )
    # Space around the value of a header has no meaning; a blank user would be no impersonation.
    headers = tuple((header, text.strip(" \t")) for (_, header), texts in values.items() for text in texts)
    if (headers or extra.values) and not dict(headers).get("Impersonate-User"):
        raise DocumentError(
            fields.location, "has as-uid, as-groups or as-user-extra without `as`", "Add `as: USER`."
        )
    return headers


def _texts(text: str | None) -> tuple[str, ...]:
    return () if text is None else (text,)


def _pem_source(fields: MappingNode, key: str, entry: Entry) -> PEMSource | None:
    """Return the PEM text of `KEY-data` or of the file `KEY`; None if neither is set."""
    data, path = fields.string(f"{key}-data"), fields.string(key)
    if data is not None and path is not None:
        raise DocumentError(fields.location, f"has both {key} and {key}-data", "Remove one of them.")
    if data is not None:
        with suppress(binascii.Error, ValueError):  # ValueError: not ASCII
            decoded = base64.b64decode("".join(data.split()), validate=True)
            return PEMSource(where=f"{entry.where}: {key}-data", data=decoded)
        raise DocumentError(
            fields.location_of(f"{key}-data"), "not valid base64", "Encode the PEM file with `base64 -w0`."
        )
    if path is not None:
        return PEMSource(where=f"{entry.where}: {key}", path=entry.absolute_path(path))
    return None


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
    if parts.scheme == "http" and environ.get("REQUEST_METHOD"):
        raise ConfigurationError(
            f"environment variable {name} is not used in a CGI program, whose clients can set it"
            " (https://httpoxy.org)",
            hint="Set proxy-url in the kubeconfig, or unset the variable.",
        )
    if _is_exempt(parts, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    proxy = environ[name] if "://" in environ[name] else f"http://{environ[name]}"
    return validate_proxy_url(proxy, f"environment variable {name}")


def without_credentials(url: str) -> str:
    """Return `url` without user name and password, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _SplitURL(SplitResult):
    """A URL that may contain a password, without a repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return PLACEHOLDER


def _split_server_url(url: str, where: str) -> SplitResult:
    return _split_url(url, f"{where}: {_shown(url)} is not a valid URL", example="https://10.0.0.1:6443")


def _split_url(url: str, failure: str, *, example: str) -> SplitResult:
    """Return the parts of a URL; a ConfigurationError with the summary `failure` if it is not valid."""
    with suppress(ValueError):
        parts = _SplitURL(*urlsplit(url))
        if (
            parts.hostname
            and parts.port != 0
            and url.isprintable()
            and " " not in url
            and not _BROKEN_ESCAPE.search(parts.path)
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
    # Not `server.hostname`, which is in lower case: Go exempts only `localhost` in lower case.
    host = server.netloc.partition(":")[0]
    port = str(server.port or DEFAULT_PORTS[server.scheme])
    address = _ip_address(server.hostname or "")
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(_matches(entry, host.lower(), address, port) for entry in entries)


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
