"""Finds the API server and its credentials in files and environment variables.

One call reads everything it needs, so that loading a kubeconfig takes one switch to a thread.
`kubernetes_asyncio.config` is not used, because its import takes two seconds and 70 MB.
"""

from __future__ import annotations

import enum
import ipaddress
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.structs import replace
from yarl import URL

from aioresolve._core import service_account
from aioresolve._core.network import environment_proxy
from aioresolve._core.threads import run_in_thread
from aioresolve._core.validation import validate_text
from aioresolve.errors import ConfigurationError, CredentialsError

from .connection import Connection, CredentialCache, DiscoveredServer, Trust
from .credentials import Identity, exec_call, read_file, read_if_exists, read_pem, static_identity
from .kubeconfig import (
    Cluster,
    Kubeconfig,
    Selection,
    User,
    merge_kubeconfigs,
    parse_kubeconfig,
    select_context,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


SERVICE_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""The variables that the kubelet sets in every container: the address of the API server."""


class ExecutableLocation(enum.StrEnum):
    """Whether this process runs inside the cluster, named as in TensorFlow's KubernetesExecutableLocation.

    >>> resolver = KubernetesClusterResolver(executable_location=ExecutableLocation.OFF_CLUSTER)
    """

    WITHIN_CLUSTER = "WITHIN_CLUSTER"
    """In a pod: use only its service account."""
    OFF_CLUSTER = "OFF_CLUSTER"
    """Outside: use only kubeconfigs."""


class ServerSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look for an API server and its credentials, and what to replace of those that are found.

    A source that exists but cannot be read or is invalid is an error, not a reason to try the next one, which
    may be another cluster. For the same reason `~/.kube/config` is ignored while `$KUBECONFIG` is set, as by
    kubectl. The replacements follow the rules of client-go's `ConfigOverrides`.

    Attributes:
        paths: the absolute paths of kubeconfigs; empty for those of the environment.
        context: the context of the kubeconfig; None for the current one.
        location: the sources to search; None for all.
        server: the URL of the API server, or HOST:PORT. The CA certificates, the proxy and the credentials of
            the cluster are still used, but not its `tls-server-name`, which belongs to the other address.
        token_file: the absolute path of a file with a bearer token, used instead of all credentials. Unlike
            kubectl with `--token`, no client certificate is sent: API servers would prefer it to the token.
        impersonate: the user to act as.
        impersonate_groups: the groups to act as, instead of those of the kubeconfig.
    """

    paths: tuple[str, ...] = ()
    context: str | None = None
    location: ExecutableLocation | None = None
    server: str = ""
    token_file: str = ""
    impersonate: str = ""
    impersonate_groups: tuple[str, ...] = ()

    @property
    def replaces(self) -> bool:
        """Whether any part of the server or of the credentials is replaced."""
        return bool(self.server or self.token_file or self.impersonate or self.impersonate_groups)

    def find(self) -> DiscoveredServer:
        """Return the first of: the given kubeconfigs, `$KUBECONFIG`, service account, `~/.kube/config`.

        If none exists, a given server is used alone.
        """
        if self.paths:
            return self._from_files()
        in_pod = ExecutableLocation.WITHIN_CLUSTER
        attempts: dict[str, Callable[[], DiscoveredServer | str]] = {}
        if self.location is not in_pod:
            attempts["$KUBECONFIG"] = self._from_variable
        if self.location is not ExecutableLocation.OFF_CLUSTER and self.context is None:
            attempts["in-cluster service account"] = self._from_service_account
        if self.location is not in_pod:
            attempts["~/.kube/config"] = self._from_home
        tried: list[str] = []
        for name, attempt in attempts.items():
            result = attempt()
            if isinstance(result, DiscoveredServer):
                return result
            tried.append(f"{name}: {result}")
        if self.server and self.context is None and self.location is not in_pod:
            return self._from_given_server()
        hint = "Pass {kubeconfig}, set KUBECONFIG, or run in a pod that has a service account."
        if self.location is in_pod:
            hint = "WITHIN_CLUSTER works only in a pod that has a service account."
        raise CredentialsError(
            f"no credentials for an API server were found. Tried {'; '.join(tried)}", hint=hint, tried=tried
        )

    # Each of these returns the server, or why none was found.

    def _from_variable(self) -> DiscoveredServer | str:
        variable = os.environ.get("KUBECONFIG")
        if not variable:
            return "is not set"
        return self._from_existing(
            [_absolute_path(entry) for entry in dict.fromkeys(variable.split(os.pathsep)) if entry]
        )

    def _from_home(self) -> DiscoveredServer | str:
        if os.environ.get("KUBECONFIG"):
            return "ignored while KUBECONFIG is set"
        home = os.environ.get("HOME")
        if not home:
            return "HOME is not set"
        return self._from_existing([os.path.normpath(os.path.join(home, ".kube", "config"))])

    def _from_existing(self, paths: Sequence[str]) -> DiscoveredServer | str:
        contents = {path: read_if_exists(path, f"kubeconfig {path}") for path in paths}
        files = [parse_kubeconfig(content, path) for path, content in contents.items() if content is not None]
        if not files:
            return f"{', '.join(paths)}: no such file" if paths else "names no file"
        config = merge_kubeconfigs(files)
        if not (config.contexts or config.clusters or config.users or config.current_context):
            return f"{', '.join(config.paths)}: has no clusters, contexts or users"
        return self._from_kubeconfig(config)

    def _from_service_account(self) -> DiscoveredServer | str:
        for name in SERVICE_VARIABLES:
            if not os.environ.get(name):
                return f"{name} is not set, so this process is not in a pod"
        host, port = (os.environ[name] for name in SERVICE_VARIABLES)
        server = validate_server_url(
            f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            "the address in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
        )
        token, authorities = (os.path.join(service_account.FOLDER, name) for name in ("token", "ca.crt"))
        for path in (authorities,) if self.token_file else (token, authorities):
            if read_if_exists(path, path) is None:
                return f"{path}: no such file (automountServiceAccountToken may be false)"
        where = "in-cluster service account"
        selection = Selection(
            where=where,
            namespace=service_account.pod_namespace(os.environ),
            cluster=Cluster(where=where, server=server, certificate_authority=authorities),
            user=User(where=where, token_file=token),
        )
        return self._from_selection(selection, self._service_account_again)

    def _service_account_again(self) -> DiscoveredServer:
        found = self._from_service_account()
        if isinstance(found, str):
            raise ConfigurationError(found)
        return found

    # These raise an error instead.

    def _from_files(self) -> DiscoveredServer:
        files = [parse_kubeconfig(read_file(path, f"kubeconfig {path}"), path) for path in self.paths]
        return self._from_kubeconfig(merge_kubeconfigs(files))

    def _from_kubeconfig(self, config: Kubeconfig) -> DiscoveredServer:
        selection = select_context(config, self.context)
        token = os.path.join(service_account.FOLDER, "token")
        is_in_pod = all(map(os.environ.get, SERVICE_VARIABLES)) and os.path.isfile(token)
        if selection.namespace is None and is_in_pod:
            # As for kubectl, also if the context is that of another cluster than the pod's.
            selection = replace(selection, namespace=service_account.pod_namespace(os.environ))
        return self._from_selection(
            selection, replace(self, paths=config.paths, context=selection.context)._from_files
        )

    def _from_given_server(self) -> DiscoveredServer:
        """Return a server without a kubeconfig, verified by the system's CA certificates, as for kubectl."""
        where = "an empty kubeconfig"
        selection = Selection(where=where, cluster=Cluster(where=where), user=User(where=where))
        return self._from_selection(selection, self._from_given_server)

    def _from_selection(
        self, selection: Selection, reread: Callable[[], DiscoveredServer]
    ) -> DiscoveredServer:
        cluster, user, where = selection.cluster, selection.user, selection.where
        given = []
        if self.server:
            cluster = replace(cluster, server=self.server, tls_server_name="")
            given.append("server")
        if self.token_file:
            acting = {
                name: getattr(user, name) for name in ("as_user", "as_uid", "as_groups", "as_user_extra")
            }
            user = User(where="given credentials", token_file=self.token_file, **acting)
            given.append("token file")
        if self.impersonate or self.impersonate_groups:
            user = replace(
                user,
                as_user=self.impersonate or user.as_user,
                as_groups=self.impersonate_groups or user.as_groups,
            )
            given.append("impersonation")
        if given:
            where += f" with the given {' and '.join(given)}"
        # As in client-go's `rest.DefaultServerUrlFor`. kubectl uses http for HOST:PORT in a kubeconfig.
        scheme = "https" if cluster.has_authority or cluster.insecure_skip_tls_verify else "http"
        server = validate_server_url(cluster.server, f"{cluster.where}: server", scheme)
        cluster = replace(cluster, server=server)
        proxy = environment_proxy(URL(server))
        if cluster.proxy_url:
            proxy = validate_proxy_url(cluster.proxy_url, f"{cluster.where}: proxy-url")
        compression = (("Accept-Encoding", "identity"),) if cluster.disable_compression else ()
        found = DiscoveredServer(
            server=server,
            source=where,
            namespace=selection.namespace,
            proxy=proxy,
            headers=(*user.impersonation, *compression),
            reread=reread,
        )
        if not server.startswith("https:"):
            # As in client-go: credentials are not sent over a connection that others can read.
            return replace(found, source=f"{where} (no credentials are sent over plain http)")
        name, trust = _tls_server_name(cluster), _trust(cluster)
        plugin = None
        if user.exec is not None and not user.has_static_credentials:  # which client-go prefers
            plugin = exec_call(user.exec, replace(cluster, tls_server_name=name), trust.authorities)
        files = cluster.certificate_authority, user.token_file, user.client_certificate, user.client_key
        return replace(
            found,
            tls_server_name=name or None,
            trust=trust,
            user=str(user),
            plugin=plugin,
            identity=Identity() if plugin is not None else static_identity(user),
            rotates=any(files),
        )


async def find_connection(search: ServerSearch, cache: CredentialCache | None = None) -> Connection:
    """Return the connection to the API server. Sends no request and runs no plugin."""
    # The thread of a read that hangs, as on a lost network drive, is abandoned when the deadline passes.
    shown = os.pathsep.join(search.paths) or os.environ.get("KUBECONFIG") or "of this user"
    discovered = await run_in_thread(f"read the kubeconfig {shown}", search.find)
    return Connection(discovered, CredentialCache() if cache is None else cache)


def search_for(
    *,
    kubeconfig: Any = None,
    context: Any = None,
    executable_location: Any = None,
    server: Any = None,
    token_file: Any = None,
    impersonate: Any = None,
    impersonate_groups: Any = None,
) -> ServerSearch:
    """Return the search that these arguments of a resolver describe. Reads nothing.

    TensorFlow's `KubernetesExecutableLocation` is accepted as well, by the names of its members.
    """
    paths = kubeconfig if isinstance(kubeconfig, (list, tuple)) and kubeconfig else [kubeconfig]
    location = getattr(executable_location, "name", executable_location)
    if location not in (None, *ExecutableLocation):
        raise ConfigurationError(
            f"{executable_location!r} is invalid",
            argument="executable_location",
            hint="Pass ExecutableLocation.WITHIN_CLUSTER, ExecutableLocation.OFF_CLUSTER, or None.",
        )
    if location == "WITHIN_CLUSTER" and (kubeconfig is not None or context is not None):
        raise ConfigurationError(
            "WITHIN_CLUSTER uses only the service account of the pod",
            argument="executable_location",
            hint="Pass either it, or {kubeconfig} and {context}.",
        )
    if server is not None:
        validate_server_url(str(server), None)
    groups = (impersonate_groups,) if isinstance(impersonate_groups, str) else impersonate_groups or ()
    if not isinstance(groups, (list, tuple)):
        raise ConfigurationError(
            f"{impersonate_groups!r} is not a list of groups",
            argument="impersonate_groups",
            hint="Pass the name of a group, or a list of names.",
        )
    return ServerSearch(
        paths=() if kubeconfig is None else tuple(_validate_path("kubeconfig", path) for path in paths),
        context=validate_text("context", context),
        location=None if location is None else ExecutableLocation(location),
        server=str(server or ""),  # as it is: the scheme of HOST:PORT depends on the cluster
        token_file="" if token_file is None else _validate_path("token_file", token_file),
        impersonate="" if impersonate is None else _validate_subject("impersonate", impersonate),
        impersonate_groups=tuple(_validate_subject("impersonate_groups", group) for group in groups),
    )


def _validate_subject(argument: str, name: object) -> str:
    """Return the name of a user or group as the value of a header."""
    if not isinstance(name, str) or not name.strip(" \t"):
        raise ConfigurationError(
            f"{name!r} is not the name of a user or group",
            argument=argument,
            hint="Pass a name.",
        )
    return name.strip(" \t")


def _validate_path(argument: str, path: object) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ConfigurationError(
            f"{path!r} is not a path",
            argument=argument,
            hint="Pass the path of a file, or None.",
        )
    return _absolute_path(os.path.expanduser(os.fsdecode(path)))


def _absolute_path(path: str) -> str:
    """Return an absolute path of the same file: `..` may follow a symbolic link, and `file/` is an error."""
    return os.path.join(os.getcwd(), path)


# The parts of a server and of its credentials


def _tls_server_name(cluster: Cluster) -> str:
    name = cluster.tls_server_name.removeprefix("[").removesuffix("]").removesuffix(".")
    if name and not _is_host(name):
        raise ConfigurationError(
            f"{cluster.where}: tls-server-name: not a host name or address",
            hint="Write the name in the server's certificate.",
        )
    return name


def _trust(cluster: Cluster) -> Trust:
    if cluster.insecure_skip_tls_verify and cluster.has_authority:
        raise ConfigurationError(
            f"{cluster.where}: certificate-authority and insecure-skip-tls-verify: true contradict"
            " one another",
            hint="Remove insecure-skip-tls-verify.",
        )
    where = f"{cluster.where}: certificate-authority"
    authorities = read_pem(where, cluster.certificate_authority, cluster.certificate_authority_data)
    return Trust(authorities, where, verify=not cluster.insecure_skip_tls_verify)


def validate_server_url(url: str, where: str | None, scheme: str = "http") -> str:
    """Return the URL of an API server: scheme, host, port and path prefix, without a trailing slash.

    `where` says where it comes from; None for the argument `server` of a resolver. `scheme` is that of a
    HOST:PORT.
    """
    has_scheme = "://" in url
    parts = _split(url if has_scheme else f"{scheme}://{url}")
    problem = "is not the URL of a server"
    if parts is not None and (has_scheme or parts.path in ("", "/")):
        if parts.username is None:
            # As in client-go, a query and a fragment are ignored. The scheme of `parts` is in lower case.
            return parts._replace(query="", fragment="").geturl().rstrip("/")
        problem = "contains a user name or password, which belong to the user of the kubeconfig"
    shown = "the URL" if "@" in url or "?" in url else repr(url)  # both may have a password
    raise ConfigurationError(
        f"{'' if where is None else f'{where}: '}{shown} {problem}",
        argument="server" if where is None else None,
        hint="Write https://HOST:PORT.",
    )


def validate_proxy_url(url: str, where: str) -> str:
    """Return `url`, the URL of a proxy, which may contain user name and password."""
    if _split(url) is None:
        # The error does not quote it: without a scheme it is not known which part may be a password.
        raise ConfigurationError(
            f"{where}: not the URL of an HTTP proxy; SOCKS proxies are not supported",
            hint="Write http://HOST:PORT.",
        )
    return url


def _split(url: str) -> SplitResult | None:
    """Return the parts of an http or https URL; None if it is not valid."""
    with suppress(ValueError):
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.port != 0 and url.isprintable()
        return parts if is_valid and " " not in url and _is_host(parts.hostname or "") else None
    return None


def _is_host(host: str) -> bool:
    """Whether it is an address, or a name that TLS and the resolver accept."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    with suppress(UnicodeError):
        return re.fullmatch(r"[\w.-]+", host.encode("idna").decode()) is not None
    return False
