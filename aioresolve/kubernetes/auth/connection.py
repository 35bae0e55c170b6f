"""One identity, kept while it is good, and fetched anew once however many ask for it at a time.

Who we are and where the API server is: a `Connection`, kept fresh.

Looked for in this order: the kubeconfig or context asked for, `$KUBECONFIG`, the pod's service account,
`~/.kube/config`. Formats, precedence and defaults are client-go's, so that what works for kubectl works here.

`kubernetes_asyncio.config` has no part in it: what is only files and variables is read without its import of
two seconds (`discovery`), and what it does with plugins and auth providers breaks promises made here; which
ones, `exec_plugin` and `auth_provider` say.
"""

from __future__ import annotations

import copy
import enum
import os
import threading
from contextlib import suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.to_thread

from aioresolve._core.concurrency import CrossLoopLock
from aioresolve.errors import ConfigurationError, ResolveError

from .discovery import DiscoveredServer, ExecutableLocation, discover_server
from .kubeconfig import without_credentials
from .tls import ssl_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from .auth_provider import GoogleCommand
    from .exec_plugin import ExecCall
    from .identity import ClientCertificate, Identity

__all__ = [
    "EXPIRY_MARGIN",
    "Connection",
    "CredentialCache",
    "ExecutableLocation",
    "IdentitySource",
    "checked_location",
    "find_connection",
    "kubeconfig_paths",
]

EXPIRY_MARGIN = 10.0
"""Seconds before its end at which an identity counts as expired, so that it does not expire on the way."""


class IdentitySource:
    """Fetches an identity, and keeps it until it expires, gets old or is renewed.

    Tasks of several event loops may share one.

    Args:
        fetch: fetches the identity.
        identity: what was fetched before, if anything.
        max_age: seconds after which an identity is fetched anew though it has not expired; None for never.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Identity]],
        identity: Identity | None = None,
        *,
        max_age: float | None = None,
    ) -> None:
        self._fetch = fetch
        self._max_age = max_age
        self._identity = identity
        self._fetched_at = monotonic()
        self._error: ResolveError | None = None
        self._fetches = 0
        self._turn = CrossLoopLock()

    async def current(self) -> Identity:
        """Return the identity, fetched anew where it is no longer good.

        Raises:
            ResolveError: what the fetch raised.
        """
        identity = self._identity
        return identity if identity is not None and self._is_good(identity) else await self.renewed()

    async def renewed(self) -> Identity:
        """Return an identity whose fetch ended after this call began: its own, or one that others wait for.

        Raises:
            ResolveError: what the fetch raised, to everybody who waited for it.
        """
        fetches = self._fetches
        async with self._turn:
            if self._fetches == fetches:
                # A cancelled fetch ends without a result: the next in turn makes another.
                try:
                    self._identity, self._error = await self._fetch(), None
                except ResolveError as error:
                    self._error = error
                self._fetches += 1
                self._fetched_at = monotonic()
            identity, failure = self._identity, self._error
        if failure is not None:
            # A copy for each: one exception raised by several tasks grows a traceback of them all.
            raise copy.copy(failure) from failure.__cause__
        assert identity is not None
        return identity

    def _is_good(self, identity: Identity) -> bool:
        if identity.expires is not None and time() >= identity.expires - EXPIRY_MARGIN:
            return False
        return self._max_age is None or monotonic() < self._fetched_at + self._max_age


ROTATION_PERIOD = 60.0
"""Seconds after which files that rotate are read again, as by client-go.

A kubelet renews a token at 80 % of its life, which is ten minutes or more, so that one which was read a
minute ago is still good.
"""

KubeconfigPath: TypeAlias = "str | os.PathLike[str]"


async def find_connection(
    *,
    kubeconfig: KubeconfigPath | Sequence[KubeconfigPath] | None = None,
    context: str | None = None,
    executable_location: str | None = None,
    cache: CredentialCache,
) -> Connection:
    """Return the API server to talk to, and how to; nothing is sent to it, and no plugin runs yet.

    Args:
        kubeconfig: one kubeconfig, or several to be merged as kubectl merges them; None to look for one.
        context: the kubeconfig's context; None for its current one.
        executable_location: an `ExecutableLocation` to look on one side only; None for both.
        cache: keeps what plugins printed, for the next connection.

    Raises:
        ConfigurationError: an argument is wrong, or what is there is broken.
        CredentialsError: nothing is there (`tried` says what was looked at), or a token in it has expired.
    """
    location = checked_location(executable_location, kubeconfig=kubeconfig, context=context)
    # A read that hangs, as on a lost network drive, is left to its thread: the deadline holds all the same.
    place = await anyio.to_thread.run_sync(
        discover_server,
        kubeconfig_paths(kubeconfig),
        context,
        location,
        dict(os.environ),
        abandon_on_cancel=True,
    )
    return Connection(place, _source(place, cache))


def checked_location(
    location: object,
    *,
    kubeconfig: KubeconfigPath | Sequence[KubeconfigPath] | None = None,
    context: object = None,
) -> ExecutableLocation | None:
    """Return the side that `executable_location` names; None for both. Nothing is read.

    TensorFlow's `KubernetesExecutableLocation` is understood too, by the names of its members.

    Raises:
        ConfigurationError: it is none, or `kubeconfig` or `context` are wrong or contradict it.
    """
    kubeconfig_paths(kubeconfig)
    if context is not None and (not isinstance(context, str) or not context):
        raise ConfigurationError(
            f"context={context!r}: give the name of a context, or None for the current one"
        )
    if location is None:
        return None
    name = location.name if isinstance(location, enum.Enum) else location
    if name not in list(ExecutableLocation):
        raise ConfigurationError(
            f"executable_location={location!r}: give ExecutableLocation.WITHIN_CLUSTER, "
            "ExecutableLocation.OFF_CLUSTER, or None for whichever is there"
        )
    side = ExecutableLocation(str(name))
    if side is ExecutableLocation.WITHIN_CLUSTER and (kubeconfig is not None or context is not None):
        raise ConfigurationError(
            "executable_location=WITHIN_CLUSTER looks at the pod's service account only, and kubeconfig= or "
            "context= was given too; leave one of them out"
        )
    return side


def kubeconfig_paths(kubeconfig: Any) -> tuple[str, ...]:
    """Return the absolute paths of the kubeconfigs that were asked for; `~` is the home folder."""
    if kubeconfig is None:
        return ()
    given = kubeconfig if isinstance(kubeconfig, (list, tuple)) else [kubeconfig]
    if not given or not all(isinstance(path, (str, os.PathLike)) and os.fspath(path) for path in given):
        raise ConfigurationError(
            f"kubeconfig={kubeconfig!r}: give the path of one, a list of paths, or None to look for one"
        )
    return tuple(os.path.abspath(os.path.expanduser(os.fsdecode(path))) for path in given)


class Connection:
    """One API server, and how to talk to it.

    Attributes:
        server: "https://10.0.0.1:6443", with at most a path, without a slash at the end.
        source: where it was found, in words: "kubeconfig /home/me/.kube/config, context 'dev'".
        namespace: the namespace that the context or the service account names as its own, if any.
        proxy: the URL of the proxy to go through, if any; it may hold a password and belongs in no message.
        tls_server_name: the name that the server's certificate is for, where it is not the host's.
    """

    def __init__(self, place: DiscoveredServer, source: IdentitySource) -> None:
        self.server = place.server
        self.source = place.source
        self.namespace = place.namespace
        self.proxy = place.proxy
        self.tls_server_name = place.tls_server_name
        self._trust = place.trust
        self._headers = dict(place.headers)
        self._identity = source
        self._built: tuple[ClientCertificate | None, ssl.SSLContext] | None = None

    def __repr__(self) -> str:
        proxy = "" if self.proxy is None else f" through {without_credentials(self.proxy)}"
        return f"<{type(self).__name__} to {self.server}{proxy} from {self.source}>"

    async def ssl(self) -> ssl.SSLContext | None:
        """Return the context for TLS, the same one until the client certificate changes; None for plain http.

        Raises:
            ConfigurationError: a CA, certificate or key cannot be used.
            CredentialsError: a plugin was needed for the certificate and failed.
        """
        if self._trust is None:
            return None
        certificate = (await self._identity.current()).certificate
        if self._built is None or self._built[0] != certificate:
            context = await anyio.to_thread.run_sync(
                ssl_context, self._trust, certificate, abandon_on_cancel=True
            )
            # Another task may have built one meanwhile: sockets are shared by context, so keep the first.
            if self._built is None or self._built[0] != certificate:
                self._built = (certificate, context)
        return self._built[1]

    async def headers(self) -> dict[str, str]:
        """Return the headers that say who we are, such as `Authorization`; empty where a certificate does.

        An expired credential is replaced first, and a token file is read again when a minute has passed.

        Raises:
            CredentialsError: a plugin failed, or a token has expired.
        """
        return self._headers_of(await self._identity.current())

    async def renew(self, rejected: Mapping[str, str]) -> bool:
        """Get fresh credentials after a 401, once for all who ask at the same time.

        The plugin runs again; kubeconfig and token files are read again.

        Args:
            rejected: the headers that the 401 answered.

        Returns:
            Whether it makes sense to ask again: `headers()` differ from `rejected`, or the client
            certificate is another one.

        Raises:
            CredentialsError: the plugin failed.
        """
        before = await self._identity.current()
        if any(rejected.get(name) != value for name, value in self._headers_of(before).items()):
            return True
        after = await self._identity.renewed()
        return (after.authorization, after.certificate) != (before.authorization, before.certificate)

    def _headers_of(self, identity: Identity) -> dict[str, str]:
        if identity.authorization is None:
            return dict(self._headers)
        return {"Authorization": identity.authorization, **self._headers}


class CredentialCache:
    """What plugins printed, until it expires. A resolver keeps it for its life and all its event loops."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._sources: dict[str, tuple[ExecCall | GoogleCommand, IdentitySource]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._sources)} plugins>"

    def source(self, plugin: ExecCall | GoogleCommand) -> IdentitySource:
        """Return the source that runs `plugin`: the same one while the kubeconfig's entry is the same."""
        with self._mutex:
            known, source = self._sources.get(plugin.key, (None, None))
            if source is None or known != plugin:
                source = IdentitySource(plugin.identity)
                self._sources[plugin.key] = plugin, source
            return source


def _source(place: DiscoveredServer, cache: CredentialCache) -> IdentitySource:
    if place.plugin is not None:
        return cache.source(place.plugin)
    return IdentitySource(_reader(place), place.identity, max_age=ROTATION_PERIOD if place.rotates else None)


def _reader(place: DiscoveredServer) -> Callable[[], Awaitable[Identity]]:
    """A fetch that reads the files again; where they cannot be read just now, what they said before holds."""
    last = place.identity

    async def fetch() -> Identity:
        nonlocal last
        with suppress(ConfigurationError):
            last = await anyio.to_thread.run_sync(place.reread, abandon_on_cancel=True)
        return last

    return fetch
