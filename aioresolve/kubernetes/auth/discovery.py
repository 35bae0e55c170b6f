"""Finds the API server and its credentials in files and environment variables.

One call reads everything it needs, so that loading a kubeconfig takes one switch to a thread.
`kubernetes_asyncio.config` is not used, because its import takes two seconds and 70 MB.
"""

from __future__ import annotations

import enum
import os
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.to_thread

from aioresolve.errors import ConfigurationError, CredentialsError

from .auth_provider import GoogleCommand, google_command, identity_of
from .connection import ClientCertificate, Connection, DiscoveredServer, Identity, Trust, basic, bearer
from .exec_plugin import ExecCall, exec_call
from .kubeconfig import (
    Kubeconfig,
    merge_kubeconfigs,
    parse_kubeconfig,
    proxy_from_environment,
    select_context,
    validate_server_url,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .connection import CredentialCache
    from .kubeconfig import Cluster, PEMSource, User

SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder in which the kubelet mounts a pod's token, ca.crt and namespace:
https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""

MAX_FILE = 16 * 1024 * 1024
"""The largest file that is read, in bytes; a kubeconfig of a thousand clusters has five million."""


class ExecutableLocation(enum.StrEnum):
    """Whether this process runs inside the cluster, named as in TensorFlow's KubernetesExecutableLocation."""

    WITHIN_CLUSTER = "WITHIN_CLUSTER"
    """In a pod: use only its service account."""
    OFF_CLUSTER = "OFF_CLUSTER"
    """Outside: use only kubeconfigs."""


KubeconfigPath: TypeAlias = "str | os.PathLike[str]"


async def find_connection(
    *,
    kubeconfig: KubeconfigPath | Sequence[KubeconfigPath] | None = None,
    context: str | None = None,
    executable_location: str | None = None,
    cache: CredentialCache,
) -> Connection:
    """Return the connection to the API server of the environment. Sends no request and runs no plugin."""
    location = validate_location(executable_location, kubeconfig=kubeconfig, context=context)
    # The thread of a read that hangs, as on a lost network drive, is abandoned when the deadline passes.
    discovered = await anyio.to_thread.run_sync(
        discover_server,
        kubeconfig_paths(kubeconfig),
        context,
        location,
        dict(os.environ),
        abandon_on_cancel=True,
    )
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


def kubeconfig_paths(kubeconfig: Any) -> tuple[str, ...]:
    """Return the absolute paths of the given kubeconfigs, with `~` expanded."""
    if kubeconfig is None:
        return ()
    given = kubeconfig if isinstance(kubeconfig, (list, tuple)) else [kubeconfig]
    if not given or not all(isinstance(path, (str, os.PathLike)) and os.fspath(path) for path in given):
        raise ConfigurationError(
            f"{kubeconfig!r} is not a path",
            argument="kubeconfig",
            hint="Pass a path, a list of paths, or None to search for a kubeconfig.",
        )
    return tuple(os.path.abspath(os.path.expanduser(os.fsdecode(path))) for path in given)


def discover_server(
    paths: Sequence[str], context: str | None, location: ExecutableLocation | None, environ: Mapping[str, str]
) -> DiscoveredServer:
    """Return the first of: the given kubeconfigs, `$KUBECONFIG`, service account, `~/.kube/config`.

    A source that exists but is invalid is an error, not a reason to try the next one, which may be another
    cluster. For the same reason `~/.kube/config` is ignored while `$KUBECONFIG` is set, as by kubectl.
    """
    if paths:
        return _from_kubeconfigs([_read_kubeconfig(path) for path in paths], context, environ)
    attempts: dict[str, Callable[[], DiscoveredServer | str]] = {}
    if location is not ExecutableLocation.WITHIN_CLUSTER:
        attempts["$KUBECONFIG"] = lambda: _from_variable(context, environ)
    if location is not ExecutableLocation.OFF_CLUSTER and context is None:
        attempts["in-cluster service account"] = lambda: _from_service_account(environ)
    if location is not ExecutableLocation.WITHIN_CLUSTER:
        attempts["~/.kube/config"] = lambda: _from_home(context, environ)
    tried: list[str] = []
    for name, attempt in attempts.items():
        result = attempt()
        if isinstance(result, DiscoveredServer):
            return result
        tried.append(f"{name}: {result}")
    raise CredentialsError(
        f"no credentials for an API server were found. Tried {'; '.join(tried)}",
        hint="Pass {kubeconfig}, set KUBECONFIG, or run in a pod that has a service account.",
        tried=tried,
    )


def _from_variable(context: str | None, environ: Mapping[str, str]) -> DiscoveredServer | str:
    candidates = [
        os.path.expanduser(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path
    ]
    if not candidates:
        return "is not set"
    paths = [path for path in dict.fromkeys(map(os.path.abspath, candidates)) if os.path.exists(path)]
    if not paths:
        return f"{', '.join(candidates)}: no such file"
    files = [_read_kubeconfig(path) for path in paths]
    if merge_kubeconfigs(files).is_empty:
        return f"{', '.join(paths)}: has no clusters, contexts or users"
    return _from_kubeconfigs(files, context, environ)


def _from_home(context: str | None, environ: Mapping[str, str]) -> DiscoveredServer | str:
    if environ.get("KUBECONFIG"):
        return "ignored while KUBECONFIG is set"
    path = os.path.expanduser(os.path.join("~", ".kube", "config"))
    if not os.path.exists(path):
        return f"{path}: no such file"
    file = _read_kubeconfig(path)
    if file.is_empty:
        return f"{path}: has no clusters, contexts or users"
    return _from_kubeconfigs([file], context, environ)


def _from_service_account(environ: Mapping[str, str]) -> DiscoveredServer | str:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        if not environ.get(name):
            return f"{name} is not set, so this process is not in a pod"
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    server = validate_server_url(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        "the address in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
    )
    token, authorities, namespace = (
        os.path.join(SERVICE_ACCOUNT_FOLDER, name) for name in ("token", "ca.crt", "namespace")
    )
    try:
        identity = _read_token_identity(token)
        trust = Trust(_read_file(authorities), authorities)
    except ConfigurationError as error:
        return f"{error.summary} (automountServiceAccountToken may be false)"
    return DiscoveredServer(
        server=server,
        source="in-cluster service account",
        namespace=_read_file(namespace).decode("ascii", "replace").strip() or None
        if os.path.exists(namespace)
        else None,
        proxy=proxy_from_environment(server, environ),
        trust=trust,
        identity=identity,
        reread=partial(_read_token_identity, token),
        rotates=True,
    )


def _from_kubeconfigs(
    files: Sequence[Kubeconfig], context: str | None, environ: Mapping[str, str]
) -> DiscoveredServer:
    config = merge_kubeconfigs(files)
    selection = select_context(config, context)
    cluster, user = selection.cluster, selection.user
    headers = dict(user.impersonation)
    if cluster.disable_compression:
        headers["Accept-Encoding"] = "identity"
    proxy = cluster.proxy_url or proxy_from_environment(cluster.server, environ)
    if not cluster.server.startswith("https:"):
        # As in client-go: credentials are not sent over a connection that others can read.
        return DiscoveredServer(
            server=cluster.server,
            source=f"{selection.where} (no credentials are sent over plain http)",
            namespace=selection.namespace,
            proxy=proxy,
            trust=None,
            headers=headers,
            identity=Identity(),
            reread=Identity,
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
        plugin=plugin,
        identity=Identity() if plugin is not None else _identity(user),
        reread=partial(_reread, config.paths, selection.context, cluster.server, environ),
        rotates=_rotates(user),
    )


def _reread(paths: Sequence[str], context: str, server: str, environ: Mapping[str, str]) -> Identity:
    found = _from_kubeconfigs(
        [_read_kubeconfig(path) for path in paths if os.path.exists(path)], context, environ
    )
    if found.server != server or found.plugin is not None:
        # A token for another server must not be sent to this one.
        raise ConfigurationError(
            f"{found.source} now has another server or an exec plugin", hint="Connect again."
        )
    return found.identity


def _trust(cluster: Cluster) -> Trust:
    authority = cluster.certificate_authority
    if authority is None:
        return Trust(verify=not cluster.insecure_skip_tls_verify)
    return Trust(_read_pem(authority), _describe(authority))


def _plugin(user: User, cluster: Cluster, trust: Trust) -> ExecCall | GoogleCommand | None:
    """Return the command to run; None if the user has static credentials, which client-go prefers."""
    if user.token or user.token_file or user.username or user.password or user.client_certificate:
        return None
    if user.exec_plugin is not None:
        return exec_call(user.exec_plugin, cluster, trust.authorities)
    return google_command(user.auth_provider) if user.auth_provider is not None else None


def _identity(user: User) -> Identity:
    authorization, expires = _authorization(user), None
    if authorization is None and user.auth_provider is not None:
        provided = identity_of(user.auth_provider)
        authorization, expires = provided.authorization, provided.expires
    certificate = None
    if user.client_certificate is not None and user.client_key is not None:
        certificate = ClientCertificate(
            chain=_read_pem(user.client_certificate),
            key=_read_pem(user.client_key),
            where=f"{_describe(user.client_certificate)} and {_describe(user.client_key)}",
        )
    return Identity(authorization=authorization, certificate=certificate, expires=expires)


def _authorization(user: User) -> str | None:
    if user.token_file is not None:
        try:
            return _read_bearer(user.token_file, f"{user.where}: tokenFile {user.token_file}")
        except ConfigurationError:
            if user.token is None:
                raise
    if user.token is not None:
        return bearer(user.token, f"{user.where}: token")
    if user.username is not None or user.password is not None:
        return basic(user.username or "", user.password or "")
    return None


def _rotates(user: User) -> bool:
    sources = (user.client_certificate, user.client_key)
    return user.token_file is not None or any(pem is not None and pem.path for pem in sources)


def _read_token_identity(path: str) -> Identity:
    return Identity(authorization=_read_bearer(path, path))


def _read_bearer(path: str, where: str) -> str:
    return bearer(_read_file(path, where).decode("utf-8", "replace"), where)


def _read_pem(pem: PEMSource) -> bytes:
    if pem.data is not None:
        return pem.data
    assert pem.path is not None
    return _read_file(pem.path, _describe(pem))


def _describe(pem: PEMSource) -> str:
    return pem.where if pem.path is None else f"{pem.where} {pem.path}"


def _read_kubeconfig(path: str) -> Kubeconfig:
    return parse_kubeconfig(_read_file(path, f"kubeconfig {path}"), path)


def _read_file(path: str, where: str | None = None) -> bytes:
    """Return the content of a file."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(
            f"{where or path} cannot be read: {reason}", hint="Check the path and its permissions."
        ) from error
    if len(content) > MAX_FILE:
        raise ConfigurationError(
            f"{where or path} is larger than {MAX_FILE >> 20} MiB", hint="Check that this is the right file."
        )
    return content
