"""The connection to one API server: its address, TLS, and credentials that are renewed when they expire.

Formats and defaults are those of client-go, so that a configuration that works for kubectl works here.
`discovery` reads the files.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from contextlib import suppress
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec.structs import replace

from aioresolve._core.network import origin
from aioresolve._core.redaction import Confidential
from aioresolve._core.threads import run_in_thread
from aioresolve._core.token_cache import TokenCache
from aioresolve.errors import ConfigurationError

from .kubeconfig import parse_json
from .tls import ClientCertificate, Trust, end_of_certificate, new_ssl_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

GO_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
"""What plugins written in Go print if the credentials do not expire."""

END_OF_TIME = 253_402_300_800.0
"""The end of the year 9999, after which `datetime` has no times."""

EXPIRY_MARGIN = 10.0
"""Seconds before its end at which an identity counts as expired, so that it does not expire on the way."""

PLUGIN_PERIOD = 10.0
"""Seconds for which the credentials of a plugin are used even if they expire sooner, or have expired.

The plugin would print the same again. Some print an expired time so that their credentials are not stored.
"""

ROTATION_PERIOD = 60.0
"""Seconds after which files that rotate are read again, as by client-go.

A kubelet renews a token at 80 % of its lifetime, which is at least ten minutes: a token that was read a
minute ago is still valid.
"""

NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The name of a namespace: a DNS label, RFC 1123. It becomes part of the path of a URL."""

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class Identity(Confidential, frozen=True):
    """What authenticates the client: an Authorization header, a client certificate, both, or nothing.

    `expires` is in seconds of Unix time; None if unknown. `is_fallback` says that there is a token file, but
    the Authorization is another one, because the file could not be read.
    """

    authorization: str | None = None
    certificate: ClientCertificate | None = None
    expires: float | None = None
    is_fallback: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether it does not expire within EXPIRY_MARGIN."""
        return self.expires is None or time() < self.expires - EXPIRY_MARGIN

    @property
    def is_valid(self) -> bool:
        """The same as `is_fresh`: an identity is used until shortly before its end."""
        return self.is_fresh

    @property
    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request; a certificate may replace them."""
        return {} if self.authorization is None else {"Authorization": self.authorization}

    @property
    def end(self) -> float | None:
        """When its first part expires, in seconds of Unix time; None if unknown.

        The parts are what the plugin said, the claim `exp` of a token (RFC 7519), and the client certificate.
        """
        claims = jwt_claims((self.authorization or "").removeprefix("Bearer ")) or {}
        of_certificate = None if self.certificate is None else end_of_certificate(self.certificate.chain)
        times = [self.expires, claims.get("exp"), of_certificate]
        known = [float(each) for each in times if isinstance(each, int | float)]
        return min((each for each in known if 0 <= each < END_OF_TIME), default=None)


class CredentialPlugin(Protocol):
    """A command that prints credentials."""

    @property
    def key(self) -> str:
        """The entry of the kubeconfig that names the command."""
        ...

    async def identity(self) -> Identity:
        """Run the command and return the credentials that it prints."""
        ...


class DiscoveredServer(Confidential, frozen=True, kw_only=True):
    """An API server, and the credentials for it; see also `Connection`.

    Attributes:
        trust: how to verify the server's certificate; None for plain http.
        headers: headers of every request, without credentials; several may have the same name.
        user: the name of the user and the kind of credentials, as text.
        plugin: the command that provides the credentials, if a command does.
        identity: the credentials from files; empty if a command provides them.
        reread: returns what the files contain now.
        rotates: whether files may be replaced while they are in use, as the token of a service account is.
    """

    server: str
    source: str
    namespace: str | None
    proxy: str | None
    tls_server_name: str | None = None
    trust: Trust | None = None
    headers: tuple[tuple[str, str], ...] = ()
    user: str = "no credentials"
    plugin: CredentialPlugin | None = None
    identity: Identity = Identity()
    reread: Callable[[], DiscoveredServer]
    rotates: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether the credentials do not expire soon."""
        return self.identity.is_fresh

    @property
    def is_valid(self) -> bool:
        """Whether the credentials can be used."""
        return self.identity.is_valid

    def read_again(self) -> DiscoveredServer:
        """Return what the files contain now; raises a ConfigurationError if they cannot be used."""
        found = self.reread()
        if found.server != self.server or (found.plugin is None) != (self.plugin is None):
            # A token for another server must not be sent to this one.
            raise ConfigurationError(
                f"{found.source} now has another server, or got or lost an exec plugin", hint="Connect again."
            )
        if found.identity.is_fallback and not self.identity.is_fallback:
            # As in client-go, the last token of the file is kept: the other one may be that of another user.
            found = replace(found, identity=self.identity)
        if found.trust is not None:
            # Raises an error for a certificate that is only half written.
            new_ssl_context(found.trust, found.identity.certificate)
        return found


class Connection:
    """How to send requests to one API server.

    Attributes:
        server: the URL, such as `https://10.0.0.1:6443`, possibly with a path; without a trailing slash.
        source: where it was found, as text: `kubeconfig /home/me/.kube/config, context 'dev'`.
        namespace: the default namespace of the context or service account, if any; see `default_namespace`.
        user: the name of the user and the kind of credentials, as text: `user 'dev': client certificate`.
        proxy: the URL of the proxy, if any; it may contain a password and belongs in no message.
        tls_server_name: the name in the certificate of the server, if it is not the host.
        fixed_headers: headers of every request that are not credentials: they impersonate another user, or
            turn compression off. Several may have the same name.
    """

    def __init__(self, discovered: DiscoveredServer, cache: CredentialCache) -> None:
        self.server = discovered.server
        self.source = discovered.source
        self.namespace = discovered.namespace
        self.user = discovered.user
        self.proxy = discovered.proxy
        self.tls_server_name = discovered.tls_server_name
        self.fixed_headers = discovered.headers
        self._last = discovered
        self._files = TokenCache(discovered, max_age=ROTATION_PERIOD if discovered.rotates else None)
        self._plugin = discovered.plugin
        self._printed = None if discovered.plugin is None else cache.identities(discovered.plugin)
        self._built: tuple[tuple[Trust, ClientCertificate | None], ssl.SSLContext] | None = None

    def __repr__(self) -> str:
        proxy = "" if self.proxy is None else f" through {origin(self.proxy)}"
        return f"<{type(self).__name__} to {self.server}{proxy} from {self.source}>"

    def default_namespace(self) -> str:
        """Return the namespace that kubectl would use.

        Raises:
            ConfigurationError: it is not a valid name. A URL with it could be that of other namespaces: `..`
                is removed from a path together with the part before it.
        """
        name = self.namespace or "default"
        if not NAMESPACE.fullmatch(name):
            raise ConfigurationError(
                f"{self.source}: {name!r} is not a valid namespace name",
                hint="Correct the namespace of the context, or of the pod (`$POD_NAMESPACE`).",
            )
        return name

    async def credentials(self) -> tuple[dict[str, str], ssl.SSLContext | None]:
        """Return the headers that authenticate a request, and its TLS context, of one identity.

        There is no TLS context for plain http; it is the same until a certificate in it changes. An expired
        credential is renewed first. Token, certificate and CA files are read again after a minute.
        """
        identity = await self.identity()
        return identity.headers, await self._ssl_context(identity.certificate)

    async def identity(self) -> Identity:
        """Return what authenticates the client, renewed if it has expired."""
        if self._printed is not None and self._plugin is not None:
            return await self._printed.get(self._plugin.identity)
        return (await self._files.get(self._read_files)).identity

    async def server_verification(self) -> ssl.SSLContext | None:
        """Return a TLS context that verifies the server, without running a plugin; None for http."""
        found = await self._files.get(self._read_files)
        if found.trust is None:
            return None
        return await self._new_ssl_context(found.trust, found.identity.certificate)

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        """Read the CA certificates again after `rejected` did not accept the certificate of the server.

        Returns the TLS context that trusts them; None if they are still the same.
        """
        await self._files.renew(self._read_files)
        _, context = await self.credentials()
        return None if context is rejected else context

    async def renew(self, rejected: Mapping[str, str]) -> bool:
        """Renew the credentials after a 401 for the headers `rejected`; returns whether they have changed.

        The plugin runs again, or kubeconfig and token files are read again: once for all tasks that call this
        at the same time.
        """
        before = await self.identity()
        if any(rejected.get(name) != value for name, value in before.headers.items()):
            return True
        if self._printed is not None and self._plugin is not None:
            after = await self._printed.renew(self._plugin.identity)
        else:
            after = (await self._files.renew(self._read_files)).identity
        return (after.authorization, after.certificate) != (before.authorization, before.certificate)

    async def _read_files(self) -> DiscoveredServer:
        # Files that cannot be read at the moment are being replaced: keep the previous content.
        with suppress(ConfigurationError):
            self._last = await run_in_thread(f"read {self.source}", self._last.read_again)
        return self._last

    async def _ssl_context(self, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
        trust = (await self._files.get(self._read_files)).trust
        if trust is None:
            return None
        parts = trust, certificate
        if self._built is None or self._built[0] != parts:
            context = await self._new_ssl_context(*parts)
            # Keep the context of another task that was faster: aiohttp shares connections by context.
            if self._built is None or self._built[0] != parts:
                self._built = (parts, context)
        return self._built[1]

    async def _new_ssl_context(self, trust: Trust, certificate: ClientCertificate | None) -> ssl.SSLContext:
        purpose = f"load the certificates for {self.server}"
        return await run_in_thread(purpose, new_ssl_context, trust, certificate)


IdentityCache: TypeAlias = TokenCache[Identity]


class CredentialCache:
    """The credentials that plugins printed, until they expire.

    A resolver keeps one for its lifetime and for all event loops, so that a plugin runs once.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._by_key: dict[str, tuple[CredentialPlugin, IdentityCache]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._by_key)} plugins>"

    def identities(self, plugin: CredentialPlugin) -> IdentityCache:
        """Return the cache of the identities that `plugin` prints."""
        with self._mutex:
            known, cache = self._by_key.get(plugin.key, (None, None))
            # A changed entry of the kubeconfig is another plugin.
            if cache is None or known != plugin:
                cache = TokenCache[Identity](min_age=PLUGIN_PERIOD)
                self._by_key[plugin.key] = plugin, cache
            return cache


def bearer(token: str, where: str) -> str:
    """Return the Authorization header of a bearer token, if it contains only characters of a token."""
    token = token.strip()
    if not token:
        raise ConfigurationError(f"{where} is empty", hint="Write the token there.")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigurationError(
            f"{where} contains a line break, a space or another character that is invalid in a token",
            hint="Write only the token there.",
        )
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a user name and password (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")


def unix_time(timestamp: str, where: str) -> float | None:
    """Return an RFC 3339 time in seconds of Unix time; None without one, and for Go's zero time."""
    if not timestamp:
        return None
    if _RFC_3339.fullmatch(timestamp):
        with suppress(ValueError):
            moment = datetime.fromisoformat(timestamp)
            return None if moment == GO_ZERO_TIME else moment.timestamp()
    raise ConfigurationError(f"{where} is not an RFC 3339 time such as 2030-01-31T12:00:00Z")


def jwt_claims(token: str) -> dict[str, Any] | None:
    """Return the claims of a JSON Web Token (RFC 7519), which is not verified; None for any other token."""
    claims = None
    if token.isascii() and token.count(".") == 2:
        payload = token.split(".")[1]
        with suppress(binascii.Error):
            claims = parse_json(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims if isinstance(claims, dict) else None
