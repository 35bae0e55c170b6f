"""The connection to one API server: its address, TLS, and credentials that are renewed when they expire.

Formats and defaults are those of client-go, so that a configuration that works for kubectl works here.
`discovery` reads the files.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from aioresolve._core.http import close_one_sidedly
from aioresolve._core.redaction import Confidential
from aioresolve._core.threads import run_in_thread
from aioresolve._core.token_cache import TokenCache
from aioresolve.errors import ConfigurationError

from .kubeconfig import without_credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

T = TypeVar("T")

GO_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
"""What plugins written in Go print if the credentials do not expire."""

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
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate chain and its key, as PEM; `where` says where they come from, for errors."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    where: str = field(compare=False)


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


class Trust(Confidential, frozen=True):
    """How the certificate of the server is verified.

    Attributes:
        authorities: CA certificates as PEM; None for those of the system.
        where: where they come from, for errors.
        verify: False accepts any server (`insecure-skip-tls-verify`).
    """

    authorities: bytes | None = None
    where: str = "the system's roots"
    verify: bool = True

    @property
    def is_fresh(self) -> bool:
        """Always true: `TokenCache` limits its age."""
        return True

    @property
    def is_valid(self) -> bool:
        """Always true: a file that cannot be read does not end the trust in the server."""
        return True


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
        rotates: whether the files are replaced while they are in use, as the token of a service account is.
        trust_rotates: whether the CA certificates are in a file of their own, which may be replaced.
    """

    server: str
    source: str
    namespace: str | None
    proxy: str | None
    tls_server_name: str | None = None
    trust: Trust | None
    headers: tuple[tuple[str, str], ...] = ()
    user: str = "no credentials"
    plugin: CredentialPlugin | None = None
    identity: Identity
    reread: Callable[[], DiscoveredServer]
    rotates: bool = False
    trust_rotates: bool = False

    def read_again(self) -> DiscoveredServer:
        """Return what the files contain now, if it is for the same server."""
        found = self.reread()
        if found.server != self.server or (found.plugin is None) != (self.plugin is None):
            # A token for another server must not be sent to this one.
            raise ConfigurationError(
                f"{found.source} now has another server, or got or lost an exec plugin", hint="Connect again."
            )
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
        self._trusts: TokenCache[Trust] | None = None
        if discovered.trust is not None:
            max_age = ROTATION_PERIOD if discovered.trust_rotates else None
            self._trusts = TokenCache(discovered.trust, max_age=max_age)
            self._fetch_trust = _file_reader(
                self.source, discovered.trust, partial(_reread_trust, discovered)
            )
        self.fixed_headers = discovered.headers
        self._identities, self._fetch = cache.identities(discovered)
        self._built: tuple[tuple[Trust, ClientCertificate | None], ssl.SSLContext] | None = None

    def __repr__(self) -> str:
        proxy = "" if self.proxy is None else f" through {without_credentials(self.proxy)}"
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

        A certificate may replace the Authorization, and there is no TLS context for plain http. An expired
        credential is renewed first. Token, certificate and CA files are read again after a minute.
        """
        identity = await self._identities.get(self._fetch)
        return self._headers_of(identity), await self._ssl_context_of(identity)

    async def identity(self) -> Identity:
        """Return what authenticates the client, renewed if it has expired."""
        return await self._identities.get(self._fetch)

    async def server_verification(self) -> ssl.SSLContext | None:
        """Return a TLS context that verifies the server, without waiting for a plugin; None for http.

        It has the client certificate that is known so far, which some servers require.
        """
        if self._trusts is None:
            return None
        known = self._identities.token
        parts = await self._trusts.get(self._fetch_trust), None if known is None else known.certificate
        return await run_in_thread(f"load the certificates for {self.server}", new_ssl_context, *parts)

    async def headers(self) -> dict[str, str]:
        """Return only the headers of `credentials`."""
        return self._headers_of(await self._identities.get(self._fetch))

    async def ssl_context(self) -> ssl.SSLContext | None:
        """Return only the TLS context of `credentials`, the same until a certificate in it changes."""
        return await self._ssl_context_of(await self._identities.get(self._fetch))

    async def _ssl_context_of(self, identity: Identity) -> ssl.SSLContext | None:
        if self._trusts is None:
            return None
        parts = await self._trusts.get(self._fetch_trust), identity.certificate
        if self._built is None or self._built[0] != parts:
            context = await run_in_thread(f"load the certificates for {self.server}", new_ssl_context, *parts)
            # Keep the context of another task that was faster: aiohttp shares connections by context.
            if self._built is None or self._built[0] != parts:
                self._built = (parts, context)
        return self._built[1]

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        """Read the CA certificates again after `rejected` did not accept the certificate of the server.

        Returns the TLS context that trusts them; None if they are still the same.
        """
        if self._trusts is None:
            return None
        await self._trusts.renew(self._fetch_trust)
        context = await self.ssl_context()
        return None if context is rejected else context

    async def renew(self, rejected: Mapping[str, str]) -> bool:
        """Renew the credentials after a 401 for the headers `rejected`; returns whether they have changed.

        The plugin runs again, or kubeconfig and token files are read again: once for all tasks that call this
        at the same time.
        """
        before = await self._identities.get(self._fetch)
        if any(rejected.get(name) != value for name, value in self._headers_of(before).items()):
            return True
        after = await self._identities.renew(self._fetch)
        return (after.authorization, after.certificate) != (before.authorization, before.certificate)

    def _headers_of(self, identity: Identity) -> dict[str, str]:
        return {} if identity.authorization is None else {"Authorization": identity.authorization}


IdentityCache = TokenCache[Identity]


class CredentialCache:
    """The credentials that plugins printed, until they expire.

    A resolver keeps one for its lifetime and for all event loops, so that a plugin runs once.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._by_key: dict[str, tuple[CredentialPlugin, IdentityCache]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._by_key)} plugins>"

    def identities(
        self, discovered: DiscoveredServer
    ) -> tuple[IdentityCache, Callable[[], Awaitable[Identity]]]:
        """Return the cache of the identities of a server, and the function that fetches them."""
        plugin = discovered.plugin
        if plugin is None:
            max_age = ROTATION_PERIOD if discovered.rotates else None
            return (
                TokenCache(discovered.identity, max_age=max_age),
                _file_reader(discovered.source, discovered.identity, partial(_reread_identity, discovered)),
            )
        with self._mutex:
            known, cache = self._by_key.get(plugin.key, (None, None))
            # A changed entry of the kubeconfig is another plugin.
            if cache is None or known != plugin:
                cache = TokenCache[Identity](min_age=PLUGIN_PERIOD)
                self._by_key[plugin.key] = plugin, cache
            return cache, plugin.identity


def _file_reader(source: str, last: T, reread: Callable[[T], T]) -> Callable[[], Awaitable[T]]:
    async def fetch() -> T:
        nonlocal last
        # Files that cannot be read at the moment are being replaced: keep the previous content.
        with suppress(ConfigurationError):
            last = await run_in_thread(f"read {source}", reread, last)
        return last

    return fetch


def _reread_identity(discovered: DiscoveredServer, last: Identity) -> Identity:
    identity = discovered.read_again().identity
    # As in client-go, the last token of the file is kept: the other one may be that of another user.
    return last if identity.is_fallback and not last.is_fallback else identity


def _reread_trust(discovered: DiscoveredServer, _: Trust) -> Trust:
    trust = discovered.read_again().trust
    if trust is None:
        raise ConfigurationError(f"{discovered.source} now has a server without TLS")
    new_ssl_context(trust, None)  # raises an error for a file that is only half written
    return trust


# Headers


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


def unix_time(timestamp: str | None, where: str) -> float | None:
    """Return an RFC 3339 time in seconds of Unix time; None without one, and for Go's zero time."""
    if not timestamp:
        return None
    if _RFC_3339.fullmatch(timestamp):
        with suppress(ValueError):
            moment = datetime.fromisoformat(timestamp)
            return None if moment == GO_ZERO_TIME else moment.timestamp()
    raise ConfigurationError(f"{where} is not an RFC 3339 time such as 2030-01-31T12:00:00Z")


# TLS


def new_ssl_context(trust: Trust, certificate: ClientCertificate | None) -> ssl.SSLContext:
    """Return a TLS context for a client that verifies the server by `trust` and presents `certificate`.

    As in client-go, the CA of a cluster replaces the roots of the system, and any certificate in the bundle
    is an anchor, even if it is not a self-signed root; and the common name of a certificate is not a host
    name, for which it must have a subject alternative name. Strict RFC 5280 checks are off: the CAs of many
    clusters lack the extensions that they require. Blocking: for worker threads.

    Raises:
        ConfigurationError: a certificate or key is not PEM, the two do not match, or the key is encrypted.
    """
    context = close_one_sidedly(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, trust.authorities, trust.where)
    if certificate is not None:
        _load_certificate(context, certificate)
    return context


def _load_authorities(context: ssl.SSLContext, authorities: bytes, where: str) -> None:
    # Comments between the certificates may have any encoding; the certificates are ASCII.
    text = authorities.decode("ascii", "ignore")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        # As in Go, an invalid certificate in a bundle is skipped.
        if not sum(_is_loaded(context, certificate) for certificate in _CERTIFICATE.findall(text)):
            raise ConfigurationError(
                f"{where} contains no valid CA certificate ({_reason(error)})",
                hint="It must be PEM: -----BEGIN CERTIFICATE-----",
            ) from error


def _is_loaded(context: ssl.SSLContext, certificate: str) -> bool:
    with suppress(ssl.SSLError, ValueError):
        context.load_verify_locations(cadata=certificate)
        return True
    return False


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    encrypted = False

    def no_password() -> str:
        # Without a callback OpenSSL would read the password from the terminal.
        nonlocal encrypted
        encrypted = True
        return ""

    try:
        with _file_of(certificate.chain.rstrip() + b"\n" + certificate.key) as path:
            context.load_cert_chain(path, password=no_password)
    except (OSError, ValueError) as error:
        cause, reason = error, _reason(error)
    else:
        return
    if encrypted:
        raise ConfigurationError(
            f"{certificate.where}: the key is encrypted, which is not supported",
            hint="Decrypt it with `openssl pkey -in KEY -out DECRYPTED` and name that file.",
        ) from cause
    raise ConfigurationError(
        f"{certificate.where}: certificate and key cannot be used ({reason})",
        hint="Both must be PEM, and the key must belong to the certificate.",
    ) from cause


def _reason(error: Exception) -> str:
    """Return OpenSSL's name for an error, such as KEY_VALUES_MISMATCH."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return str(reason).partition(" (_ssl")[0]


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yield the path of a private file with this content, which exists only inside the block.

    `load_cert_chain` reads only files. The file is in memory if the system supports that, so that a process
    that is killed leaves no key on a disk.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("client-certificate")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="aioresolve-") as folder:
        path = os.path.join(folder, "client.pem")
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        yield path
