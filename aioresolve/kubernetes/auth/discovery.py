"""Where the API server is and who we are, as files and environment variables say. For worker threads.

One call reads everything it needs, so that loading a kubeconfig costs one hop to a thread. The reading is
done here and not through `kubernetes_asyncio.config`, whose import costs two seconds and 70 MB.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError, CredentialsError

from .auth_provider import GoogleCommand, google_command, identity_of
from .exec_plugin import ExecCall, exec_call
from .identity import ClientCertificate, Identity, basic, bearer
from .kubeconfig import (
    Kubeconfig,
    merge_kubeconfigs,
    parse_kubeconfig,
    proxy_from_environment,
    select_context,
    validate_server_url,
)
from .tls import Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .kubeconfig import Cluster, PEMSource, User

__all__ = ["SERVICE_ACCOUNT_FOLDER", "ExecutableLocation", "Found", "found"]

SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet puts a pod's token, ca.crt and namespace:
https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""

MAX_FILE = 16 * 1024 * 1024
"""Bytes of one file that are read at most; a kubeconfig of a thousand clusters has five million."""


class ExecutableLocation(enum.StrEnum):
    """Which side of the cluster's border we are on, as TensorFlow's KubernetesExecutableLocation says it."""

    WITHIN_CLUSTER = "WITHIN_CLUSTER"
    """In a pod: only its service account is looked at."""
    OFF_CLUSTER = "OFF_CLUSTER"
    """Outside: only kubeconfigs are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One API server, and a way to say who we are.

    Attributes:
        server: its URL, without a slash at the end.
        source: where all this was found, in words.
        namespace: the namespace that the source names as its own.
        proxy: the URL of the proxy to go through; it may hold a password.
        tls_server_name: the name that the server's certificate is for, where it is not the host's.
        trust: whose certificates are believed; None for plain http.
        headers: headers of every request that are no credentials.
        plugin: the command that says who we are, where that is a command's to say.
        identity: who the files say we are; nobody where it is a command's to say.
        reread: returns what the files say by then.
        rotates: whether the files are replaced while they are in use, as a service account's token is.
    """

    server: str
    source: str
    namespace: str | None
    proxy: str | None = field(repr=False)
    tls_server_name: str | None = None
    trust: Trust | None
    headers: Mapping[str, str] = field(default_factory=dict)
    plugin: ExecCall | GoogleCommand | None = None
    identity: Identity
    reread: Callable[[], Identity] = field(repr=False)
    rotates: bool = False


def found(
    paths: Sequence[str], context: str | None, location: ExecutableLocation | None, environ: Mapping[str, str]
) -> Found:
    """Return the first that is there: kubeconfigs given, `$KUBECONFIG`, service account, `~/.kube/config`.

    What is there and broken is an error, not a reason to look on: the next one may be another cluster. For
    the same reason `~/.kube/config` is left alone while `$KUBECONFIG` is set, as by kubectl.

    Args:
        paths: the kubeconfigs that were asked for; none to look for one.
        context: the context of the kubeconfig; None for its current one.
        location: the side to look on; None for both.
        environ: the environment variables.

    Raises:
        ConfigurationError: what is there is broken.
        CredentialsError: nothing is there, or it holds a token that has expired.
    """
    if paths:
        return _in_kubeconfigs([_parsed(path) for path in paths], context, environ)
    attempts: dict[str, Callable[[], Found | str]] = {}
    if location is not ExecutableLocation.WITHIN_CLUSTER:
        attempts["$KUBECONFIG"] = lambda: _in_environment(context, environ)
    if location is not ExecutableLocation.OFF_CLUSTER and context is None:
        attempts["in-cluster service account"] = lambda: _in_cluster(environ)
    if location is not ExecutableLocation.WITHIN_CLUSTER:
        attempts["~/.kube/config"] = lambda: _in_home(context, environ)
    tried: list[str] = []
    for name, attempt in attempts.items():
        answer = attempt()
        if isinstance(answer, Found):
            return answer
        tried.append(f"{name}: {answer}")
    raise CredentialsError(
        f"no way to an API server was found. Tried {'; '.join(tried)}",
        hint="Pass {kubeconfig}, set KUBECONFIG, or run in a pod that has a service account.",
        tried=tried,
    )


def _in_environment(context: str | None, environ: Mapping[str, str]) -> Found | str:
    named = [os.path.expanduser(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if not named:
        return "is not set"
    paths = [path for path in dict.fromkeys(map(os.path.abspath, named)) if os.path.exists(path)]
    if not paths:
        return f"{', '.join(named)}: no such file"
    files = [_parsed(path) for path in paths]
    if merge_kubeconfigs(files).is_empty:
        return f"{', '.join(paths)}: holds no clusters, contexts or users"
    return _in_kubeconfigs(files, context, environ)


def _in_home(context: str | None, environ: Mapping[str, str]) -> Found | str:
    if environ.get("KUBECONFIG"):
        return "is not looked at while KUBECONFIG is set"
    path = os.path.expanduser(os.path.join("~", ".kube", "config"))
    if not os.path.exists(path):
        return f"{path}: no such file"
    file = _parsed(path)
    if file.is_empty:
        return f"{path}: holds no clusters, contexts or users"
    return _in_kubeconfigs([file], context, environ)


def _in_cluster(environ: Mapping[str, str]) -> Found | str:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        if not environ.get(name):
            return f"{name} is not set, so this is no pod"
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    server = validate_server_url(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        "the address in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
    )
    token, authorities, namespace = (
        os.path.join(SERVICE_ACCOUNT_FOLDER, name) for name in ("token", "ca.crt", "namespace")
    )
    try:
        identity = _token_identity(token)
        trust = Trust(_content(authorities), authorities)
    except ConfigurationError as error:
        return f"{error}; does the pod say automountServiceAccountToken: false?"
    return Found(
        server=server,
        source="in-cluster service account",
        namespace=_content(namespace).decode("ascii", "replace").strip() or None
        if os.path.exists(namespace)
        else None,
        proxy=proxy_from_environment(server, environ),
        trust=trust,
        identity=identity,
        reread=partial(_token_identity, token),
        rotates=True,
    )


def _in_kubeconfigs(files: Sequence[Kubeconfig], context: str | None, environ: Mapping[str, str]) -> Found:
    config = merge_kubeconfigs(files)
    selection = select_context(config, context)
    cluster, user = selection.cluster, selection.user
    headers = dict(user.impersonation)
    if cluster.disable_compression:
        headers["Accept-Encoding"] = "identity"
    proxy = cluster.proxy_url or proxy_from_environment(cluster.server, environ)
    if not cluster.server.startswith("https:"):
        # As client-go: what could be read on the way is not sent.
        return Found(
            server=cluster.server,
            source=f"{selection.where} (over plain http no credentials are sent)",
            namespace=selection.namespace,
            proxy=proxy,
            trust=None,
            headers=headers,
            identity=Identity(),
            reread=Identity,
        )
    trust = _trust(cluster)
    plugin = _plugin(user, cluster, trust)
    return Found(
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
    again = _in_kubeconfigs([_parsed(path) for path in paths if os.path.exists(path)], context, environ)
    if again.server != server or again.plugin is not None:
        # A token for another server must not go to this one.
        raise ConfigurationError(f"{again.source} now names another server or an exec plugin; connect anew")
    return again.identity


def _trust(cluster: Cluster) -> Trust:
    authority = cluster.certificate_authority
    if authority is None:
        return Trust(verify=not cluster.insecure_skip_tls_verify)
    return Trust(_pem(authority), _place(authority))


def _plugin(user: User, cluster: Cluster, trust: Trust) -> ExecCall | GoogleCommand | None:
    """The command to run; none where the user has credentials of its own, which client-go prefers."""
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
            chain=_pem(user.client_certificate),
            key=_pem(user.client_key),
            where=f"{_place(user.client_certificate)} and {_place(user.client_key)}",
        )
    return Identity(authorization=authorization, certificate=certificate, expires=expires)


def _authorization(user: User) -> str | None:
    if user.token_file is not None:
        try:
            return _bearer_in(user.token_file, f"{user.where}: tokenFile {user.token_file}")
        except ConfigurationError:
            if user.token is None:
                raise
    if user.token is not None:
        return bearer(user.token, f"{user.where}: token")
    if user.username is not None or user.password is not None:
        return basic(user.username or "", user.password or "")
    return None


def _rotates(user: User) -> bool:
    materials = (user.client_certificate, user.client_key)
    return user.token_file is not None or any(each is not None and each.path for each in materials)


def _token_identity(path: str) -> Identity:
    return Identity(authorization=_bearer_in(path, path))


def _bearer_in(path: str, where: str) -> str:
    return bearer(_content(path, where).decode("utf-8", "replace"), where)


def _pem(material: PEMSource) -> bytes:
    if material.data is not None:
        return material.data
    assert material.path is not None
    return _content(material.path, _place(material))


def _place(material: PEMSource) -> str:
    return material.where if material.path is None else f"{material.where} {material.path}"


def _parsed(path: str) -> Kubeconfig:
    return parse_kubeconfig(_content(path, f"kubeconfig {path}"), path)


def _content(path: str, where: str | None = None) -> bytes:
    """The bytes of a file.

    Raises:
        ConfigurationError: it cannot be read, or is too long to be what it should be.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(
            f"{where or path} cannot be read: {reason}; correct the path or its permissions"
        ) from error
    if len(content) > MAX_FILE:
        raise ConfigurationError(
            f"{where or path} is longer than {MAX_FILE >> 20} MiB: is it the right file?"
        )
    return content
