"""Finds the API server and its credentials in files and environment variables.

One call reads everything it needs, so that loading a kubeconfig takes one switch to a thread.
`kubernetes_asyncio.config` is not used, because its import takes two seconds and 70 MB.
"""

from __future__ import annotations

import enum
import errno
import os
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from aioresolve._core import service_account
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, CredentialsError

from .connection import ClientCertificate, Connection, DiscoveredServer, Identity, Trust, basic, bearer
from .kubeconfig import (
    Cluster,
    Kubeconfig,
    PEMSource,
    Selection,
    User,
    default_scheme,
    is_valid_in_header,
    merge_kubeconfigs,
    parse_kubeconfig,
    proxy_from_environment,
    select_context,
    validate_server_url,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .auth_provider import GoogleCommand
    from .connection import CredentialCache
    from .exec_plugin import ExecCall

SERVICE_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""The variables that the kubelet sets in every container: the address of the API server."""

MAX_FILE = 16 * 1024 * 1024
"""The largest file that is read, in bytes; a kubeconfig of a thousand clusters has five million."""


class ExecutableLocation(enum.StrEnum):
    """Whether this process runs inside the cluster, named as in TensorFlow's KubernetesExecutableLocation."""

    WITHIN_CLUSTER = "WITHIN_CLUSTER"
    """In a pod: use only its service account."""
    OFF_CLUSTER = "OFF_CLUSTER"
    """Outside: use only kubeconfigs."""


KubeconfigPath: TypeAlias = "str | os.PathLike[str]"


class ConnectionOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What replaces parts of a kubeconfig or service account, by the rules of client-go's `ConfigOverrides`.

    Attributes:
        server: the URL of the API server, or HOST:PORT. The CA certificates, the proxy and the credentials of
            the cluster are still used, but not its `tls-server-name`, which belongs to the other address.
        token_file: the absolute path of a file with a bearer token, used instead of all credentials. Unlike
            kubectl with `--token`, no client certificate is sent: API servers would prefer it to the token.
        impersonate: the user to act as.
        impersonate_groups: the groups to act as, instead of those of the kubeconfig.
    """

    server: str | None = None
    token_file: str | None = None
    impersonate: str | None = None
    impersonate_groups: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return self != NO_OVERRIDES

    def apply(self, selection: Selection) -> Selection:
        """Return the context with these parts replaced."""
        cluster, user, given = selection.cluster, selection.user, []
        if self.server is not None:
            scheme = default_scheme(cluster.certificate_authority, insecure=cluster.insecure_skip_tls_verify)
            server = validate_server_url(self.server, "server", scheme)
            cluster = replace(cluster, server=server, tls_server_name=None)
            given.append("server")
        if self.token_file is not None:
            user = User(
                where="given credentials", token_file=self.token_file, impersonation=user.impersonation
            )
            given.append("token file")
        if self.impersonate is not None or self.impersonate_groups:
            user = replace(user, impersonation=self.impersonation(user.impersonation))
            given.append("impersonation")
        where = f"{selection.where} with the given {' and '.join(given)}" if given else selection.where
        return replace(selection, where=where, cluster=cluster, user=user)

    def impersonation(self, headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Return the headers of an impersonation with this user and these groups."""
        given = {
            "Impersonate-User": () if self.impersonate is None else (self.impersonate,),
            "Impersonate-Group": self.impersonate_groups,
        }
        kept = [header for header in headers if not given.get(header[0])]
        headers = (*((name, value) for name, values in given.items() for value in values), *kept)
        if headers and not dict(headers).get("Impersonate-User"):
            raise ConfigurationError(
                "groups can only be impersonated together with a user",
                argument="impersonate_groups",
                hint="Pass {impersonate} too.",
            )
        return headers


NO_OVERRIDES = ConnectionOverrides()


async def find_connection(
    *,
    kubeconfig: KubeconfigPath | Sequence[KubeconfigPath] | None = None,
    context: str | None = None,
    executable_location: str | None = None,
    overrides: ConnectionOverrides = NO_OVERRIDES,
    cache: CredentialCache,
) -> Connection:
    """Return the connection to the API server of the environment. Sends no request and runs no plugin."""
    location = validate_location(executable_location, kubeconfig=kubeconfig, context=context)
    paths, environ = kubeconfig_paths(kubeconfig), dict(os.environ)
    # The thread of a read that hangs, as on a lost network drive, is abandoned when the deadline passes.
    purpose = f"read the kubeconfig {os.pathsep.join(paths) or environ.get('KUBECONFIG') or 'of this user'}"
    discovered = await run_in_thread(purpose, discover_server, paths, context, location, environ, overrides)
    return Connection(discovered, cache)


def validate_location(
    location: object,
    *,
    kubeconfig: KubeconfigPath | Sequence[KubeconfigPath] | None = None,
    context: object = None,
) -> ExecutableLocation | None:
    """Return `executable_location` as a member; None for both sides. Reads nothing.

    TensorFlow's `KubernetesExecutableLocation` is accepted as well, by the names of its members.
    """
    kubeconfig_paths(kubeconfig)
    if context is not None and (not isinstance(context, str) or not context):
        raise ConfigurationError(
            f"{context!r} is not a name",
            argument="context",
            hint="Pass the name of a context, or None for the current one.",
        )
    if location is None:
        return None
    name = location.name if isinstance(location, enum.Enum) else location
    if name not in list(ExecutableLocation):
        raise ConfigurationError(
            f"{location!r} is invalid",
            argument="executable_location",
            hint="Pass ExecutableLocation.WITHIN_CLUSTER, ExecutableLocation.OFF_CLUSTER, or None.",
        )
    side = ExecutableLocation(str(name))
    if side is ExecutableLocation.WITHIN_CLUSTER and (kubeconfig is not None or context is not None):
        raise ConfigurationError(
            "WITHIN_CLUSTER uses only the service account of the pod",
            argument="executable_location",
            hint="Pass either it, or {kubeconfig} and {context}.",
        )
    return side


def validate_overrides(
    *,
    server: object = None,
    token_file: object = None,
    impersonate: object = None,
    impersonate_groups: object = None,
) -> ConnectionOverrides:
    """Return these arguments of a resolver as overrides. Reads nothing."""
    groups = (impersonate_groups,) if isinstance(impersonate_groups, str) else impersonate_groups or ()
    if not isinstance(groups, (list, tuple)):
        raise ConfigurationError(
            f"{impersonate_groups!r} is not a list of groups",
            argument="impersonate_groups",
            hint="Pass the name of a group, or a list of names.",
        )
    return ConnectionOverrides(
        server=None if server is None else _validate_server(server),
        token_file=None if token_file is None else _validate_token_file(token_file),
        impersonate=None if impersonate is None else _validate_subject("impersonate", impersonate),
        impersonate_groups=tuple(_validate_subject("impersonate_groups", group) for group in groups),
    )


def _validate_server(server: object) -> str:
    if not isinstance(server, str) or not server:
        raise ConfigurationError(
            f"{server!r} is not a URL", argument="server", hint="Write https://HOST:PORT."
        )
    try:
        validate_server_url(server, "server")
        return server  # as it is: the scheme of HOST:PORT depends on the cluster
    except ConfigurationError as error:
        summary, hint = error.summary.removeprefix("server: "), error.hint
    raise ConfigurationError(summary, argument="server", hint=hint)


def _validate_token_file(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ConfigurationError(
            f"{path!r} is not a path", argument="token_file", hint="Pass the path of a file with a token."
        )
    return _absolute_path(os.path.expanduser(os.fsdecode(path)))


def _validate_subject(argument: str, name: object) -> str:
    """Return the name of a user or group as the value of a header."""
    if not isinstance(name, str) or not name.strip(" \t") or not is_valid_in_header(name):
        raise ConfigurationError(
            f"{name!r} is not the name of a user or group",
            argument=argument,
            hint="Pass a name that is valid UTF-8, without line breaks.",
        )
    return name.strip(" \t")


def kubeconfig_paths(kubeconfig: Any) -> tuple[str, ...]:
    """Return the absolute paths of the given kubeconfigs, with a `~` at the start expanded."""
    if kubeconfig is None:
        return ()
    given = kubeconfig if isinstance(kubeconfig, (list, tuple)) else [kubeconfig]
    if not given or not all(isinstance(path, (str, os.PathLike)) and os.fspath(path) for path in given):
        raise ConfigurationError(
            f"{kubeconfig!r} is not a path",
            argument="kubeconfig",
            hint="Pass a path, a list of paths, or None to search for a kubeconfig.",
        )
    return tuple(_absolute_path(os.path.expanduser(os.fsdecode(path))) for path in given)


def _absolute_path(path: str) -> str:
    """Return an absolute path of the same file: `..` may follow a symbolic link, and `file/` is an error."""
    return os.path.join(os.getcwd(), path)


def discover_server(
    paths: Sequence[str],
    context: str | None,
    location: ExecutableLocation | None,
    environ: Mapping[str, str],
    overrides: ConnectionOverrides = NO_OVERRIDES,
) -> DiscoveredServer:
    """Return the first of: the given kubeconfigs, `$KUBECONFIG`, service account, `~/.kube/config`.

    If none exists, a given server is used alone.

    A source that exists but cannot be read or is invalid is an error, not a reason to try the next one, which
    may be another cluster. For the same reason `~/.kube/config` is ignored while `$KUBECONFIG` is set, as by
    kubectl.
    """
    if paths:
        files = [parse_kubeconfig(_read_file(path, f"kubeconfig {path}"), path) for path in paths]
        return _from_kubeconfigs(files, context, environ, overrides)
    attempts: dict[str, Callable[[], DiscoveredServer | str]] = {}
    if location is not ExecutableLocation.WITHIN_CLUSTER:
        attempts["$KUBECONFIG"] = lambda: _from_variable(context, environ, overrides)
    if location is not ExecutableLocation.OFF_CLUSTER and context is None:
        attempts["in-cluster service account"] = lambda: _from_service_account(environ, overrides)
    if location is not ExecutableLocation.WITHIN_CLUSTER:
        attempts["~/.kube/config"] = lambda: _from_home(context, environ, overrides)
    tried: list[str] = []
    for name, attempt in attempts.items():
        result = attempt()
        if isinstance(result, DiscoveredServer):
            return result
        tried.append(f"{name}: {result}")
    if overrides.server is not None and context is None and location is not ExecutableLocation.WITHIN_CLUSTER:
        return _from_given_server(overrides.server, environ, overrides)
    hint = "Pass {kubeconfig}, set KUBECONFIG, or run in a pod that has a service account."
    if location is ExecutableLocation.WITHIN_CLUSTER:
        hint = "WITHIN_CLUSTER works only in a pod that has a service account."
    raise CredentialsError(
        f"no credentials for an API server were found. Tried {'; '.join(tried)}",
        hint=hint,
        tried=tried,
    )


def _from_variable(
    context: str | None, environ: Mapping[str, str], overrides: ConnectionOverrides
) -> DiscoveredServer | str:
    variable = environ.get("KUBECONFIG")
    if not variable:
        return "is not set"
    entries = dict.fromkeys(entry for entry in variable.split(os.pathsep) if entry)
    return _from_existing([_absolute_path(entry) for entry in entries], context, environ, overrides)


def _from_home(
    context: str | None, environ: Mapping[str, str], overrides: ConnectionOverrides
) -> DiscoveredServer | str:
    if environ.get("KUBECONFIG"):
        return "ignored while KUBECONFIG is set"
    home = environ.get("HOME")
    if not home:
        return "HOME is not set"
    return _from_existing(
        [os.path.normpath(os.path.join(home, ".kube", "config"))], context, environ, overrides
    )


def _from_existing(
    paths: Sequence[str], context: str | None, environ: Mapping[str, str], overrides: ConnectionOverrides
) -> DiscoveredServer | str:
    """Return the server of the kubeconfigs that exist, or why no server was found."""
    files = _read_existing_kubeconfigs(paths)
    if not files:
        return f"{', '.join(paths)}: no such file" if paths else "names no file"
    if merge_kubeconfigs(files).is_empty:
        return (
            f"{', '.join(path for file in files for path in file.paths)}: has no clusters, contexts or users"
        )
    return _from_kubeconfigs(files, context, environ, overrides)


def _from_given_server(
    server: str, environ: Mapping[str, str], overrides: ConnectionOverrides
) -> DiscoveredServer:
    """Return a server without a kubeconfig, verified by the CA certificates of the system, as for kubectl."""
    where = "an empty kubeconfig"
    selection = overrides.apply(Selection("", where, None, Cluster(where, server), User(where)))
    return _from_selection(selection, environ, partial(_from_given_server, server, environ, overrides))


def _from_service_account(
    environ: Mapping[str, str], overrides: ConnectionOverrides
) -> DiscoveredServer | str:
    for name in SERVICE_VARIABLES:
        if not environ.get(name):
            return f"{name} is not set, so this process is not in a pod"
    host, port = (environ[name] for name in SERVICE_VARIABLES)
    server = validate_server_url(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        "the address in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
    )
    token, authorities = (os.path.join(service_account.FOLDER, name) for name in ("token", "ca.crt"))
    for path in (token, authorities) if overrides.token_file is None else (authorities,):
        if _read_if_exists(path) is None:
            return f"{path}: no such file (automountServiceAccountToken may be false)"
    where = "in-cluster service account"
    selection = Selection(
        context="",
        where=where,
        namespace=service_account.pod_namespace(environ),
        cluster=Cluster(where, server, PEMSource(where, path=authorities)),
        user=User(where, token_file=token),
    )
    reread = partial(_reread_service_account, environ, overrides)
    return _from_selection(overrides.apply(selection), environ, reread)


def _reread_service_account(environ: Mapping[str, str], overrides: ConnectionOverrides) -> DiscoveredServer:
    found = _from_service_account(environ, overrides)
    if isinstance(found, str):
        raise ConfigurationError(found)
    return found


def _is_in_pod(environ: Mapping[str, str]) -> bool:
    """Whether there is a service account, as client-go checks it."""
    return all(map(environ.get, SERVICE_VARIABLES)) and os.path.isfile(
        os.path.join(service_account.FOLDER, "token")
    )


def _from_kubeconfigs(
    files: Sequence[Kubeconfig],
    context: str | None,
    environ: Mapping[str, str],
    overrides: ConnectionOverrides,
) -> DiscoveredServer:
    config = merge_kubeconfigs(files)
    selection = overrides.apply(select_context(config, context))
    if selection.namespace is None and _is_in_pod(environ):
        # As for kubectl, also if the context is that of another cluster than the pod's.
        selection = replace(selection, namespace=service_account.pod_namespace(environ))
    reread = partial(_reread_kubeconfigs, config.paths, selection.context, environ, overrides)
    return _from_selection(selection, environ, reread)


def _reread_kubeconfigs(
    paths: Sequence[str], context: str, environ: Mapping[str, str], overrides: ConnectionOverrides
) -> DiscoveredServer:
    return _from_kubeconfigs(_read_existing_kubeconfigs(paths), context, environ, overrides)


def _from_selection(
    selection: Selection, environ: Mapping[str, str], reread: Callable[[], DiscoveredServer]
) -> DiscoveredServer:
    cluster, user = selection.cluster, selection.user
    headers = user.impersonation
    if cluster.disable_compression:
        headers = (*headers, ("Accept-Encoding", "identity"))
    proxy = cluster.proxy_url or proxy_from_environment(cluster.server, environ)
    if not cluster.is_https:
        # As in client-go: credentials are not sent over a connection that others can read.
        return DiscoveredServer(
            server=cluster.server,
            source=f"{selection.where} (no credentials are sent over plain http)",
            namespace=selection.namespace,
            proxy=proxy,
            trust=None,
            headers=headers,
            identity=Identity(),
            reread=reread,
        )
    trust = _trust(cluster)
    plugin = _plugin(user, cluster, trust)
    return DiscoveredServer(
        server=cluster.server,
        source=selection.where,
        namespace=selection.namespace,
        proxy=proxy,
        tls_server_name=cluster.tls_server_name,
        trust=trust,
        headers=headers,
        user=str(user),
        plugin=plugin,
        identity=Identity() if plugin is not None else _identity(user),
        reread=reread,
        rotates=_rotates(user),
        trust_rotates=cluster.certificate_authority is not None
        and cluster.certificate_authority.path is not None,
    )


def _trust(cluster: Cluster) -> Trust:
    authority = cluster.certificate_authority
    if authority is None:
        return Trust(verify=not cluster.insecure_skip_tls_verify)
    return Trust(_read_pem(authority), _describe(authority))


def _plugin(user: User, cluster: Cluster, trust: Trust) -> ExecCall | GoogleCommand | None:
    """Return the command to run; None if the user has static credentials, which client-go prefers."""
    if user.has_static_credentials:
        return None
    # Imported here: most users have a token or a certificate.
    if user.exec_plugin is not None:
        from .exec_plugin import exec_call

        return exec_call(user.exec_plugin, cluster, trust.authorities)
    if user.auth_provider is not None:
        from .auth_provider import google_command

        return google_command(user.auth_provider)
    return None


def _identity(user: User) -> Identity:
    authorization, expires = _file_authorization(user), None
    is_fallback = user.token_file is not None and authorization is None
    if authorization is None:
        authorization = _inline_authorization(user)
    if authorization is None and user.auth_provider is not None:
        from .auth_provider import identity_of

        provided = identity_of(user.auth_provider)
        authorization, expires = provided.authorization, provided.expires
    certificate = None
    if user.client_certificate is not None and user.client_key is not None:
        certificate = ClientCertificate(
            chain=_read_pem(user.client_certificate),
            key=_read_pem(user.client_key),
            where=f"{_describe(user.client_certificate)} and {_describe(user.client_key)}",
        )
    return Identity(
        authorization=authorization, certificate=certificate, expires=expires, is_fallback=is_fallback
    )


def _file_authorization(user: User) -> str | None:
    """Return the header with the token in the token file; None without a file, or if `token` replaces it."""
    if user.token_file is None:
        return None
    where = f"{user.where}: tokenFile {_shown(user.token_file)}"
    content = b""
    # As in client-go: `token` is for the time at which the file cannot be read or is empty.
    with suppress(ConfigurationError) if user.token is not None else nullcontext():
        content = _read_file(user.token_file, where)
    if user.token is not None and not content.strip():
        return None
    return _bearer(content, where)


def _inline_authorization(user: User) -> str | None:
    """Return the header with the credentials that are written in the kubeconfig."""
    if user.token is not None:
        return bearer(user.token, f"{user.where}: token")
    if user.username is not None:
        return basic(user.username, user.password or "")
    return None


def _rotates(user: User) -> bool:
    sources = (user.client_certificate, user.client_key)
    return user.token_file is not None or any(pem is not None and pem.path for pem in sources)


def _bearer(content: bytes, where: str) -> str:
    return bearer(content.decode("utf-8", "replace"), where)


def _read_pem(pem: PEMSource) -> bytes:
    if pem.data is not None:
        return pem.data
    assert pem.path is not None
    return _read_file(pem.path, _describe(pem))


def _describe(pem: PEMSource) -> str:
    return pem.where if pem.path is None else f"{pem.where} {_shown(pem.path)}"


def _shown(path: str) -> str:
    """Return a path from a file for messages, quoted if it could control a terminal."""
    return path if path.isprintable() else repr(path)


def _read_existing_kubeconfigs(paths: Iterable[str]) -> list[Kubeconfig]:
    contents = [(path, _read_if_exists(path, f"kubeconfig {path}")) for path in paths]
    return [parse_kubeconfig(content, path) for path, content in contents if content is not None]


def _read_file(path: str, where: str | None = None) -> bytes:
    """Return the content of a file."""
    content = _read_if_exists(path, where)
    if content is None:
        raise _unreadable(where or path, os.strerror(errno.ENOENT))
    return content


def _read_if_exists(path: str, where: str | None = None) -> bytes | None:
    """Return the content of a file; None if it does not exist.

    As in client-go, any other reason why it cannot be read (permissions, a file in place of a folder, or
    circular symbolic links) is an error: the file may exist.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(where or path, error.strerror or type(error).__name__) from error
    except ValueError:  # a null character, or half of a surrogate pair
        raise _unreadable(where or path, "the path contains an invalid character") from None
    if len(content) > MAX_FILE:
        raise ConfigurationError(
            f"{where or path} is larger than {MAX_FILE >> 20} MiB", hint="Check that this is the right file."
        )
    return content


def _unreadable(where: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{where} cannot be read: {reason}", hint="Check the path and its permissions.")
