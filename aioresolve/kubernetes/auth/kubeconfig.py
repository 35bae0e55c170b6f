"""Kubeconfig files: parsing, merging, and the cluster and user of a context. No I/O.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Merging, precedence and validation are
client-go's (`tools/clientcmd`): the first file that has an entry of a name wins, and so does the first file
with a `current-context`; relative paths are relative to their file. The differences are listed in
docs/credentials.md. Only the entries of the selected context are validated, so a mistake in another context's
entry has no effect.

Every problem is a `ConfigurationError` that names file, entry and field, or the line of a file that is not
YAML. Entries contain secrets: no message and no repr shows a token, a password, a key, or the arguments and
variables of a command.
"""

from __future__ import annotations

import functools
import os.path
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from aioresolve._core.secrets import Confidential
from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

_HEADER_CHARACTERS = "!#$&'*+-.^_`|~"  # of a header's name, without the % of escapes: RFC 9110
_INVALID_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Control characters (RFC 9110), and surrogates, which aiohttp would leave out of the value of a header."""


# What a kubeconfig contains. A field that is null or empty is one that is missing, and unknown fields are
# ignored, as by kubectl. `where` describes the entry for messages: "kubeconfig /home/me/.kube/config, user
# 'dev'". The paths are absolute.


class Cluster(Confidential, frozen=True, rename="kebab", kw_only=True):
    """The address of an API server, and how to verify it."""

    where: str = ""
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[dict[str, Any], ...] = ()

    @property
    def has_authority(self) -> bool:
        """Whether it has CA certificates of its own."""
        return bool(self.certificate_authority or self.certificate_authority_data)


class Variable(Confidential, frozen=True):
    """An environment variable of an exec plugin."""

    name: str
    value: str = ""


class ExecPlugin(Confidential, frozen=True, rename="camel", kw_only=True):
    """Prints credentials: https://kubernetes.io/docs/reference/access-authn-authz/authentication/"""

    where: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["", "Never", "IfAvailable", "Always"] = ""


class AuthProvider(Confidential, frozen=True):
    """A source of tokens, older than exec plugins; client-go supports only `oidc`, since 1.26."""

    name: str = ""
    config: dict[str, str] = msgspec.field(default_factory=dict)


class User(Confidential, frozen=True, rename="kebab", kw_only=True):
    """The credentials of a user; without any, the server treats requests as `system:anonymous`."""

    where: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    auth_provider: AuthProvider | None = None
    exec: ExecPlugin | None = None
    as_user: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def has_certificate(self) -> bool:
        """Whether it has a client certificate."""
        return bool(self.client_certificate or self.client_certificate_data)

    @property
    def has_static_credentials(self) -> bool:
        """Whether it has credentials other than those of a plugin, which client-go then does not run."""
        return bool(self.token or self.token_file or self.username or self.has_certificate)

    @property
    def impersonation(self) -> tuple[tuple[str, str], ...]:
        """The headers of requests that act as another user:
        https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation
        """
        values = {"User": (self.as_user,), "Uid": (self.as_uid,), "Group": self.as_groups}
        for name, texts in self.as_user_extra.items():
            values[f"Extra-{quote(name, safe=_HEADER_CHARACTERS)}"] = texts
        # Space around the value of a header has no meaning; a blank user would be no impersonation.
        headers = tuple(
            (f"Impersonate-{name}", text.strip(" \t"))
            for name, texts in values.items()
            for text in texts
            if text
        )
        if any(_INVALID_IN_HEADER.search(value) for _, value in headers):
            raise ConfigurationError(
                f"{self.where}: `as`, as-uid, as-groups or as-user-extra contains a control character",
                hint="Remove it.",
            )
        if (headers or self.as_user_extra) and not dict(headers).get("Impersonate-User"):
            raise ConfigurationError(
                f"{self.where}: groups, a uid or extra fields can only be impersonated together with a user",
                hint="Add `as: USER` to the kubeconfig, or pass {impersonate} too.",
            )
        return headers

    def __str__(self) -> str:
        """Return its name, if it has one, and the kinds of its credentials: never the credentials."""
        kinds = [
            "client certificate" if self.has_certificate else "",
            f"token file {self.token_file}" if self.token_file else "token" if self.token else "",
            "user name and password" if self.username else "",
        ]
        if not any(kinds) and self.exec is not None:
            kinds = [f"exec plugin {os.path.basename(self.exec.command)!r}"]
        elif not any(kinds) and self.auth_provider is not None:
            kinds = [f"auth-provider {self.auth_provider.name!r}"]
        kind = " and ".join(filter(None, kinds)) or "no credentials"
        name = self.where.partition(", user ")[2]
        acting = f", acting as {self.as_user!r}" if self.as_user else ""
        return f"{f'user {name}: ' if name else ''}{kind}{acting}"


class Entry(Confidential, frozen=True):
    """A named entry of a kubeconfig, which is converted when a context uses it."""

    where: str
    folder: str  # that relative paths start from
    fields: Any

    def convert(self, kind: type[T]) -> T:
        """Return the fields."""
        return _convert(self.fields, kind, f"{self.where}: ")

    def reject(self, *rules: tuple[object, str, str]) -> None:
        """Raise the error of the first rule whose condition is true; each has a problem and a hint too."""
        for is_broken, problem, hint in rules:
            if is_broken:
                raise ConfigurationError(f"{self.where}: {problem}", hint=hint)

    def absolute_path(self, path: str) -> str:
        """Return a path in the entry as an absolute path; an empty one is returned.

        As in client-go, `..` in a relative path removes the part before it, also if that is a symbolic link;
        an absolute path is used as it is.
        """
        if not path or os.path.isabs(path):
            return path
        return os.path.normpath(os.path.join(self.folder, path))


class Kubeconfig(msgspec.Struct, frozen=True):
    """One kubeconfig file, or several merged: entries by name."""

    paths: tuple[str, ...]
    current_context: str
    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A context with its cluster and its user."""

    context: str = ""
    where: str
    namespace: str | None = None
    cluster: Cluster
    user: User


class _NamedFields(Confidential, frozen=True):
    name: str = ""
    context: Any = None
    cluster: Any = None
    user: Any = None


class _FileFields(Confidential, frozen=True, rename="kebab"):
    kind: str = ""
    api_version: str = msgspec.field(name="apiVersion", default="")
    current_context: str = ""
    contexts: tuple[_NamedFields, ...] = ()
    clusters: tuple[_NamedFields, ...] = ()
    users: tuple[_NamedFields, ...] = ()


class _ContextFields(Confidential, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


def parse_kubeconfig(content: bytes, path: str) -> Kubeconfig:
    """Return the entries of one file. An empty file is an empty kubeconfig, as for kubectl."""
    where = f"kubeconfig {path}"
    try:
        document = parse_document(content)
    except ValueError as error:
        hint = "Run `kubectl config view` to check the file."
        raise ConfigurationError(f"{where}{error}", hint=hint) from None  # the error of the parser quotes it
    file = _convert(document, _FileFields, f"{where}: ")
    for key, found, expected in (("kind", file.kind, "Config"), ("apiVersion", file.api_version, "v1")):
        if found not in ("", expected):
            raise ConfigurationError(
                f"{where}: {key}: {found!r} is not the {key} of a kubeconfig, which is {expected!r}",
                hint="Check that this is the right file.",
            )
    folder = os.path.normpath(os.path.dirname(path))

    def entries(items: Iterable[_NamedFields], kind: str) -> Mapping[str, Entry]:
        by_name: dict[str, Entry] = {}
        for item in items:
            if item.name in by_name:
                raise ConfigurationError(
                    f"{where}: {kind}s: the name {item.name!r} is used twice",
                    hint="Rename or remove one of the two.",
                )
            by_name[item.name] = Entry(f"{where}, {kind} {item.name!r}", folder, getattr(item, kind))
        return by_name

    return Kubeconfig(
        paths=(path,),
        current_context=file.current_context,
        contexts=entries(file.contexts, "context"),
        clusters=entries(file.clusters, "cluster"),
        users=entries(file.users, "user"),
    )


def merge_kubeconfigs(files: Sequence[Kubeconfig]) -> Kubeconfig:
    """Return the files as one: of each name, and of `current-context`, the first file wins."""
    last_first = files[::-1]  # the first file is added last, and so replaces the entries of the others
    return Kubeconfig(
        paths=tuple(path for file in files for path in file.paths),
        current_context=next((file.current_context for file in files if file.current_context), ""),
        contexts={name: entry for file in last_first for name, entry in file.contexts.items()},
        clusters={name: entry for file in last_first for name, entry in file.clusters.items()},
        users={name: entry for file in last_first for name, entry in file.users.items()},
    )


def select_context(config: Kubeconfig, context: str | None) -> Selection:
    """Return the context of that name (None for the current one), with its cluster and user."""
    where = f"kubeconfig {', '.join(config.paths)}"
    name = config.current_context if context is None else context
    if name not in config.contexts:
        problem = f"there is no context {name!r}" if name else "no current-context is set"
        raise ConfigurationError(
            f"{where}: {problem}; there are: {_names(config.contexts)}",
            hint="Pass one of these as {context}, or run `kubectl config use-context NAME`.",
        )
    entry = config.contexts[name]
    fields = entry.convert(_ContextFields)
    user = User(where=entry.where)
    if fields.user:
        user = _user(_referenced(config.users, fields.user, entry, "user"))
    of_cluster = _referenced(config.clusters, fields.cluster, entry, "cluster")
    cluster = of_cluster.convert(Cluster)
    authority = of_cluster.absolute_path(cluster.certificate_authority)
    cluster = replace(cluster, where=of_cluster.where, certificate_authority=authority)
    return Selection(
        context=name, where=entry.where, namespace=fields.namespace or None, cluster=cluster, user=user
    )


def _referenced(entries: Mapping[str, Entry], name: str, context: Entry, kind: str) -> Entry:
    problem = f"there is no {kind} {name!r}; there are: {_names(entries)}"
    context.reject((name not in entries, problem, f"Correct its {kind}."))
    return entries[name]


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _user(entry: Entry) -> User:
    user = entry.convert(User)
    has_credentials = user.has_static_credentials or user.exec is not None or user.auth_provider is not None
    others = {"extensions", "as", "as-uid", "as-groups", "as-user-extra"}
    written = {name for name, value in (entry.fields or {}).items() if value}
    entry.reject(
        (
            (user.token and (user.username or user.password)) or (user.token_file and user.username),
            "has both a token and username/password, and only one can be sent",
            "Remove one of them.",
        ),
        (
            user.has_certificate and not (user.client_key or user.client_key_data),
            "has a client-certificate without a client-key",
            "Add client-key.",
        ),
        (
            user.exec is not None and user.auth_provider is not None,
            "has both exec and auth-provider",
            "Remove auth-provider.",
        ),
        (
            # kubectl prompts for a user name then. An anonymous request would be a surprise. The names of the
            # fields are not shown: `{hunter2: }` may be a misplaced secret.
            not has_credentials and not written <= others,
            "has fields, but no credentials that can be used",
            "Add token, tokenFile, username and password, client-certificate and client-key, or exec.",
        ),
    )
    return replace(
        user,
        where=entry.where,
        token_file=entry.absolute_path(user.token_file),
        client_certificate=entry.absolute_path(user.client_certificate),
        client_key=entry.absolute_path(user.client_key),
        exec=user.exec and _exec_plugin(user.exec, entry, is_used=not user.has_static_credentials),
    )


def _exec_plugin(plugin: ExecPlugin, entry: Entry, *, is_used: bool) -> ExecPlugin:
    entry.reject(
        (not plugin.command, "exec: has no command", "Add `command: NAME`."),
        (
            plugin.api_version not in EXEC_API_VERSIONS,
            f"exec.apiVersion: {plugin.api_version!r} is not one of {', '.join(EXEC_API_VERSIONS)}",
            "Upgrade the plugin, and let it write its kubeconfig entry again.",
        ),
        (
            plugin.interactive_mode == "Always" and is_used,
            "exec.interactiveMode: the plugin requires a terminal (Always), and gets none",
            "Set IfAvailable or Never, or log in with another plugin or a token.",
        ),
    )
    # A bare name is looked up on PATH; a path is relative to the kubeconfig, as for client-go.
    command = entry.absolute_path(plugin.command) if os.sep in plugin.command else plugin.command
    return replace(plugin, where=f"{entry.where}, exec", command=command)


# JSON and YAML


def _convert(written: Any, kind: type[T], where: str) -> T:
    """Return the fields of a mapping; a missing or empty one has no fields."""
    try:
        return msgspec.convert(written or {}, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `")
    # The error of msgspec has types, but no values.
    field = path.removeprefix("key` in `").removeprefix("$").removeprefix(".").rstrip("`")
    problem = problem.replace("`object`", "a mapping").replace("`array`", "a list")
    hint = "Put a text in quotes." if problem.startswith("Expected `str`") else None
    if kind is _FileFields and not field:
        hint = "A kubeconfig has clusters, contexts and users; check that this is the right file."
    raise ConfigurationError(f"{where}{f'{field}: ' if field else ''}{problem}", hint=hint)


def parse_document(content: bytes) -> Any:
    """Return a JSON value, or the first YAML document, which is the only one that kubectl reads.

    Fields that are null are left out, because they are the same as missing ones.

    Raises:
        ValueError: it is neither; the message, such as `:2: not valid YAML (column 9)`, quotes nothing.
    """
    # Some tools write kubeconfigs as JSON indented with tabs, which YAML does not allow; and a large file is
    # read much faster.
    if content.lstrip().startswith(b"{"):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            return _without_nulls(msgspec.json.decode(content))
    import yaml

    problem = ": not valid YAML"
    try:
        return _without_nulls(_loader()(content).get_data())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            problem = f":{mark.line + 1}: not valid YAML (column {mark.column + 1})"
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        pass  # PyYAML raises the first four for values that do not fit their tag
    raise ValueError(problem)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


@functools.cache
def _loader() -> Any:
    import yaml

    base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    kept = {f"tag:yaml.org,2002:{name}" for name in ("bool", "merge", "null")}

    class Loader(base):  # type: ignore[misc]
        """Reads plain scalars as kubectl: `2024-01-01`, `1:30` and `=` are strings, `1e3` is a number."""

        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, pattern) for tag, pattern in resolvers if tag in kept]
            for first, resolvers in base.yaml_implicit_resolvers.items()
        }

    whole, number = r"[-+]?(0|[1-9][0-9]*)\Z", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(whole), list("-+0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(number), list("-+.0123456789"))
    return Loader
