"""Text of a file -> a YAML document -> fields by type. Pure; every error names the place, never the value.

Parser errors quote the line they failed on, which may hold a secret: they are told as line and column
only. Errors are raised outside of `except`, because a parser's error keeps the text it failed on and
would go along as the new error's context.

Addresses of API servers and of the proxies before them, checked. Pure: strings in, strings out.

Which proxy the environment names follows Go's `golang.org/x/net/http/httpproxy`, which client-go uses,
so that NO_PROXY means here what it means to kubectl. User and password in an address are kept out of
every message.

The entries of a kubeconfig, looked into: the cluster to ask, the user to be. Pure: no file is read here.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Everything wrong is a
`ConfigurationError` that names file, entry and field. Entries hold secrets: no message and no repr shows
a token, a password, a key, a command's argument or variable.

Kubeconfig files: their text in, the chosen context's cluster and user out. Pure: no file is read here.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Merging and precedence are
client-go's (`tools/clientcmd`): the first file that has an entry of a name wins it, and so does the
first that names a `current-context`; relative paths are relative to the file they stand in; one
name twice in one file is an error. Only the entries of the chosen context are looked into, so a
mistake in another context's entry stays that context's affair. Everything wrong is a
`ConfigurationError` that names file, entry and field, and never a value that may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import os.path
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "AuthProvider",
    "Cluster",
    "Entry",
    "ExecPlugin",
    "Fields",
    "Kubeconfig",
    "Material",
    "Selection",
    "User",
    "checked_proxy",
    "checked_server",
    "cluster_in",
    "document",
    "json_in",
    "kind_of",
    "merged",
    "parsed",
    "proxy_from_environment",
    "selected",
    "user_in",
    "without_credentials",
]


def document(content: bytes, where: str) -> Any:
    """Return what the YAML (or JSON) of a file says; None where it is empty.

    Args:
        content: the file's bytes.
        where: the file, in words for messages.

    Raises:
        ConfigurationError: it is not UTF-8, or neither YAML nor JSON.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start
    else:
        return _yaml(text, where)
    raise ConfigurationError(f"{where} is not UTF-8 (byte {offset}); save it as UTF-8")


def json_in(text: str | bytes) -> Any:
    """Return what the JSON in `text` says; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _yaml(text: str, where: str) -> Any:
    # Some tools write kubeconfigs as JSON indented by tabs, which YAML does not allow.
    if text.lstrip().startswith("{") and (value := json_in(text)) is not None:
        return value
    import yaml

    place = ""
    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is not None:
            place = f" at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    except RecursionError:
        place = " (nested too deeply)"
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError):
        pass  # PyYAML lets the last four through for values that do not fit their tag
    raise ConfigurationError(
        f"{where} is not valid YAML{place}; `kubectl config view` shows whether it reads"
    )


def _loader() -> Any:
    """PyYAML's safe loader on libyaml's scanner where there is one.

    `yaml.CSafeLoader` composes nodes in C and overflows the stack on deep nesting, which ends the
    process. Composed in Python the same text is a `RecursionError`.
    """
    import yaml
    from yaml.composer import Composer

    if not yaml.__with_libyaml__:
        return yaml.SafeLoader

    class Loader(Composer, yaml.CSafeLoader):
        def __init__(self, stream: str) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            Composer.__init__(self)

    return Loader


class Fields:
    """The fields of one mapping, read by type; the error of a wrong type names the place, not the value."""

    __slots__ = ("_values", "where")

    def __init__(self, values: Any, where: str) -> None:
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise ConfigurationError(f"{where}: must be a mapping, not a {kind_of(values)}")
        self._values: dict[Any, Any] = values
        self.where = where

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._values if isinstance(key, str))

    def value(self, key: str) -> Any:
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        """None where it is missing, null or empty."""
        value = self._values.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{self.where}: {key} must be text, not a {kind_of(value)}; put it in quotes"
            )
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ConfigurationError(
                f"{self.where}: {key} must be true or false (without quotes), not a {kind_of(value)}"
            )
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._list(key)
        for value in values:
            if not isinstance(value, str):
                raise ConfigurationError(
                    f"{self.where}: an item of {key} must be text, not a {kind_of(value)}; put it in quotes"
                )
        return tuple(values)

    def below(self, key: str) -> Fields | None:
        value = self._values.get(key)
        return None if value is None else Fields(value, f"{self.where}, {key}")

    def each(self, key: str) -> list[Fields]:
        return [Fields(value, f"{self.where}, {key}[{i}]") for i, value in enumerate(self._list(key))]

    def _list(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigurationError(f"{self.where}: {key} must be a list, not a {kind_of(value)}")
        return value


def kind_of(value: object) -> str:
    kinds = {dict: "mapping", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), type(value).__name__)


DEFAULT_PORTS = {"http": 80, "https": 443}


def checked_server(url: str, where: str) -> str:
    """Return an API server's URL: scheme, host, port and path prefix, without a slash at the end.

    Args:
        url: the URL as it was given.
        where: the place it was given in, for messages.

    Raises:
        ConfigurationError: it has no scheme or host, another scheme than http and https, a user, or a query.
    """
    parts = _split(url, where, example="https://10.0.0.1:6443")
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(
            f"{where} is {_shown(url)}, which starts with neither https:// nor http://; "
            "write https://HOST:PORT"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            f"{where} holds a user before the host; move it to username and password of the user"
        )
    if "?" in url or "#" in url:
        raise ConfigurationError(f"{where} holds a '?' or '#'; write https://HOST:PORT and at most a path")
    return url.rstrip("/")


def checked_proxy(url: str, where: str) -> str:
    """Return a proxy's URL, which may hold user and password.

    Raises:
        ConfigurationError: it is no URL, or its scheme is another than http and https.
    """
    parts = _split(url, where, example="http://proxy:3128")
    if parts.scheme.startswith("socks"):
        raise ConfigurationError(
            f"{where} is a SOCKS proxy ({parts.scheme}), which is not supported; "
            "name an http:// or https:// proxy"
        )
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(f"{where} starts with neither http:// nor https://; write http://HOST:PORT")
    return url


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy that HTTPS_PROXY or HTTP_PROXY names for `server`; None for none.

    NO_PROXY exempts hosts; localhost and loopback addresses never go through a proxy.

    Raises:
        ConfigurationError: the variable holds no http or https URL.
    """
    parts = urlsplit(server)
    names = (f"{parts.scheme.upper()}_PROXY", f"{parts.scheme}_proxy")
    name = next((name for name in names if environ.get(name)), None)
    if name is None or _is_exempt(parts, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    proxy = environ[name]
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", f"the environment variable {name}")


def without_credentials(url: str) -> str:
    """Return `url` without the user and password it may hold: for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _split(url: str, where: str, *, example: str) -> SplitResult:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0 and url.isprintable() and " " not in url:
            return parts
    raise ConfigurationError(f"{where} is {_shown(url)}, which is no URL; write it as {example}")


def _shown(url: str) -> str:
    """The URL as far as it cannot hold a secret."""
    return repr(url) if "@" not in url and "?" not in url else "not shown (it may hold a password)"


def _is_exempt(server: SplitResult, no_proxy: str) -> bool:
    host = (server.hostname or "").rstrip(".")
    port = server.port or DEFAULT_PORTS[server.scheme]
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _matches(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int
) -> bool:
    """Whether one entry of NO_PROXY exempts the host.

    It is `*`, a CIDR block, an address or a name, the last two with or without a port. A name exempts itself
    and its subdomains; one that starts with `.` or `*.` its subdomains only.
    """
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _is_within(address, entry)
    name, port_given = _host_and_port(entry)
    if not name or port_given not in ("", str(port)):
        return False
    if (exempt := _address(name)) is not None:
        return exempt == address
    if address is not None:
        return False
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _host_and_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _is_within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, block: str) -> bool:
    try:
        return address in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"


@dataclass(frozen=True, slots=True)
class Entry:
    """One named entry of a list in a kubeconfig, not yet looked into.

    Attributes:
        where: words for messages: "kubeconfig /home/me/.kube/config, user 'dev'".
        folder: what relative paths in it are relative to.
        values: the mapping under `cluster`, `context` or `user`.
    """

    where: str
    folder: str
    values: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Material:
    """A PEM text, standing in the kubeconfig itself (`data`) or in a file (`path`)."""

    where: str
    data: bytes | None = field(default=None, repr=False)
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where an API server is, and how to know that it is the right one."""

    where: str
    server: str
    certificate_authority: Material | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    disable_compression: bool = False
    exec_extension: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints credentials: https://kubernetes.io/docs/reference/access-authn-authz/authentication/"""

    where: str
    api_version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    install_hint: str | None = None
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True)
class AuthProvider:
    """The older way of naming a source of tokens; client-go itself knows `oidc` only, since 1.26."""

    where: str
    name: str
    config: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class User:
    """Who to be; every field may be missing, and then the server sees `system:anonymous`."""

    where: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    client_certificate: Material | None = None
    client_key: Material | None = None
    exec_plugin: ExecPlugin | None = None
    auth_provider: AuthProvider | None = None
    impersonation: tuple[tuple[str, str], ...] = ()


def cluster_in(entry: Entry) -> Cluster:
    """What the entry of a cluster says.

    Raises:
        ConfigurationError: a field is wrong or missing, or two contradict each other.
    """
    fields = Fields(entry.values, entry.where)
    server = fields.text("server")
    if server is None:
        raise ConfigurationError(f"{entry.where}: has no server; add `server: https://HOST:PORT`")
    authority = _material(fields, "certificate-authority", entry.folder)
    insecure = fields.flag("insecure-skip-tls-verify")
    if insecure and authority is not None:
        raise ConfigurationError(
            f"{entry.where}: has both certificate-authority and insecure-skip-tls-verify: true, "
            "which contradict each other; remove insecure-skip-tls-verify"
        )
    proxy = fields.text("proxy-url")
    extensions = {
        extension.text("name"): extension.value("extension") for extension in fields.each("extensions")
    }
    return Cluster(
        where=entry.where,
        server=checked_server(server, f"{entry.where}: server"),
        certificate_authority=authority,
        insecure_skip_tls_verify=insecure,
        tls_server_name=fields.text("tls-server-name"),
        proxy_url=None if proxy is None else checked_proxy(proxy, f"{entry.where}: proxy-url"),
        disable_compression=fields.flag("disable-compression"),
        exec_extension=extensions.get(EXEC_EXTENSION),
    )


def user_in(entry: Entry) -> User:
    """What the entry of a user says.

    Raises:
        ConfigurationError: a field is wrong or missing, or two contradict each other.
    """
    fields = Fields(entry.values, entry.where)
    token, token_file = fields.text("token"), fields.text("tokenFile")
    username, password = fields.text("username"), fields.text("password")
    if (token or token_file) and (username or password):
        raise ConfigurationError(
            f"{entry.where}: has both a token and username/password, and only one can be sent; "
            "remove one of them"
        )
    certificate = _material(fields, "client-certificate", entry.folder)
    key = _material(fields, "client-key", entry.folder)
    if (certificate is None) != (key is None):
        there, missing = "client-certificate", "client-key"
        if certificate is None:
            there, missing = missing, there
        raise ConfigurationError(f"{entry.where}: has a {there} without its {missing}; add it")
    plugin, provider = fields.below("exec"), fields.below("auth-provider")
    if plugin is not None and provider is not None:
        raise ConfigurationError(f"{entry.where}: has both exec and auth-provider; remove auth-provider")
    return User(
        where=entry.where,
        token=token,
        token_file=None if token_file is None else os.path.join(entry.folder, token_file),
        username=username,
        password=password,
        client_certificate=certificate,
        client_key=key,
        exec_plugin=None if plugin is None else _exec_plugin(plugin, entry.folder),
        auth_provider=None if provider is None else _auth_provider(provider),
        impersonation=_impersonation(fields),
    )


def _exec_plugin(fields: Fields, folder: str) -> ExecPlugin:
    command = fields.text("command")
    if command is None:
        raise ConfigurationError(f"{fields.where}: has no command; add `command: NAME`")
    version = fields.text("apiVersion")
    if version not in EXEC_API_VERSIONS:
        raise ConfigurationError(
            f"{fields.where}: apiVersion is {version!r}; known are {' and '.join(EXEC_API_VERSIONS)} "
            "(upgrade the plugin and write its kubeconfig entry anew)"
        )
    mode = fields.text("interactiveMode")
    if mode == "Always":
        raise ConfigurationError(
            f"{fields.where}: interactiveMode is Always, so the plugin asks at the terminal, and here it "
            "gets none; set IfAvailable or Never, or log in with another plugin or a token"
        )
    if mode not in (None, "Never", "IfAvailable"):
        raise ConfigurationError(
            f"{fields.where}: interactiveMode is {mode!r}; it is one of Never, IfAvailable, Always"
        )
    env = [(each.text("name"), each.text("value")) for each in fields.each("env")]
    if any(name is None for name, _ in env):
        raise ConfigurationError(f"{fields.where}: an item of env has no name; add `name: VARIABLE`")
    # A bare name is looked up on PATH; a path is relative to the kubeconfig, as for client-go.
    return ExecPlugin(
        where=fields.where,
        api_version=str(version),
        command=os.path.join(folder, command) if os.path.dirname(command) else command,
        args=fields.texts("args"),
        env=tuple((str(name), value or "") for name, value in env),
        install_hint=fields.text("installHint"),
        provide_cluster_info=fields.flag("provideClusterInfo"),
    )


def _auth_provider(fields: Fields) -> AuthProvider:
    name = fields.text("name")
    if name is None:
        raise ConfigurationError(f"{fields.where}: has no name; add `name: oidc`, or use exec instead")
    config = fields.below("config")
    return AuthProvider(
        where=f"{fields.where} {name!r}",
        name=name,
        config=()
        if config is None
        else tuple((key, text) for key in config if (text := config.text(key)) is not None),
    )


def _impersonation(fields: Fields) -> tuple[tuple[str, str], ...]:
    """`as`, `as-uid` and `as-groups` as request headers; dropping one would act as somebody else."""
    groups = fields.texts("as-groups")
    if len(groups) > 1 or fields.below("as-user-extra") is not None:
        raise ConfigurationError(
            f"{fields.where}: impersonation with several as-groups or with as-user-extra is not supported; "
            "give at most one group, or bind the roles to the user itself"
        )
    headers = {
        "Impersonate-User": fields.text("as"),
        "Impersonate-Uid": fields.text("as-uid"),
        "Impersonate-Group": groups[0] if groups else None,
    }
    given = tuple((name, value) for name, value in headers.items() if value is not None)
    if given and headers["Impersonate-User"] is None:
        raise ConfigurationError(f"{fields.where}: has as-groups or as-uid without `as`; add `as: USER`")
    return given


def _material(fields: Fields, key: str, folder: str) -> Material | None:
    """`KEY-data` if it is there, else the file `KEY`: the data overrides the file."""
    data, path = fields.text(f"{key}-data"), fields.text(key)
    if data is not None:
        where = f"{fields.where}: {key}-data"
        try:
            return Material(where=where, data=base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError):  # ValueError: not ASCII
            pass
        raise ConfigurationError(f"{where} is not base64; encode the PEM file with `base64 -w0`")
    if path is not None:
        return Material(where=f"{fields.where}: {key}", path=os.path.join(folder, path))
    return None


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One kubeconfig file, or several merged: entries by name."""

    paths: tuple[str, ...]
    current_context: str | None
    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to connect to: client-go then looks elsewhere."""
        return not (self.contexts or self.clusters or self.users or self.current_context)


@dataclass(frozen=True, slots=True)
class Selection:
    """One context with its cluster and its user."""

    context: str
    where: str
    namespace: str | None
    cluster: Cluster
    user: User


def parsed(content: bytes, path: str) -> Kubeconfig:
    """One file's entries. `path` is absolute; an empty file is an empty kubeconfig, as for kubectl.

    Raises:
        ConfigurationError: the content is not UTF-8, not YAML or JSON, or not a kubeconfig.
    """
    where = f"kubeconfig {path}"
    contents = document(content, where)
    if contents is not None and not isinstance(contents, dict):
        raise ConfigurationError(
            f"{where} is no mapping of clusters, contexts and users but a {kind_of(contents)}: "
            "is it the right file?"
        )
    top = Fields(contents, where)
    for key, expected in (("kind", "Config"), ("apiVersion", "v1")):
        if (found := top.text(key)) not in (None, expected):
            raise ConfigurationError(
                f"{where}: {key} is {found!r}, a kubeconfig's is {expected!r}: is it the right file?"
            )
    folder = os.path.dirname(path)
    return Kubeconfig(
        paths=(path,),
        current_context=top.text("current-context"),
        contexts=_entries(top, "contexts", "context", folder),
        clusters=_entries(top, "clusters", "cluster", folder),
        users=_entries(top, "users", "user", folder),
    )


def merged(files: Sequence[Kubeconfig]) -> Kubeconfig:
    """The files as one: of each name, and of `current-context`, the first file's counts."""
    contexts: dict[str, Entry] = {}
    clusters: dict[str, Entry] = {}
    users: dict[str, Entry] = {}
    for file in reversed(files):
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


def selected(config: Kubeconfig, context: str | None) -> Selection:
    """The context of that name (None: the current one), with its cluster and user.

    Raises:
        ConfigurationError: there is no such context, it names a cluster or user that is not there, or
            a field of one of the three is wrong.
    """
    where = f"kubeconfig {', '.join(config.paths)}"
    name = context if context is not None else config.current_context
    if name is None:
        raise ConfigurationError(
            f"{where}: no current-context is set; give context= one of: {_listed(config.contexts)} "
            "(or run `kubectl config use-context NAME`)"
        )
    if name not in config.contexts:
        raise ConfigurationError(
            f"{where}: there is no context {name!r}; there are: {_listed(config.contexts)}"
        )
    entry = config.contexts[name]
    fields = Fields(entry.values, entry.where)
    cluster = fields.text("cluster")
    if cluster is None:
        raise ConfigurationError(f"{entry.where}: names no cluster; add `cluster: NAME`")
    user = fields.text("user")
    return Selection(
        context=name,
        where=entry.where,
        namespace=fields.text("namespace"),
        cluster=cluster_in(_referred(config.clusters, cluster, entry.where, "cluster")),
        user=(
            User(where=entry.where)
            if user is None
            else user_in(_referred(config.users, user, entry.where, "user"))
        ),
    )


def _referred(entries: Mapping[str, Entry], name: str, where: str, kind: str) -> Entry:
    if name not in entries:
        raise ConfigurationError(
            f"{where}: names the {kind} {name!r}, which is not there; there are: {_listed(entries)}"
        )
    return entries[name]


def _entries(top: Fields, key: str, kind: str, folder: str) -> Mapping[str, Entry]:
    entries: dict[str, Entry] = {}
    for item in top.each(key):
        name = item.text("name")
        if name is None:
            raise ConfigurationError(f"{item.where}: has no name; add `name: NAME`")
        if name in entries:
            raise ConfigurationError(
                f"{top.where}: {key} has the name {name!r} twice; rename or remove one of the two"
            )
        entries[name] = Entry(f"{top.where}, {kind} {name!r}", folder, item.value(kind))
    return MappingProxyType(entries)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none at all"
