"""The connection to one API server: its address, TLS, and credentials that are renewed when they expire.

The defaults are those of client-go, so that a configuration that works for kubectl works here. `discovery`
reads the files.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from aioresolve._core.http import Auth, Credentials
from aioresolve._core.network import close_one_sidedly, origin
from aioresolve._core.secrets import Confidential, TokenCache
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError

from .credentials import ClientCertificate, ExecCall, Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aioresolve._core.http import Response

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

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


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


class CredentialCache(dict[ExecCall, TokenCache[Identity]]):
    """The credentials that plugins printed, until they expire.

    A resolver keeps one for its lifetime and for all event loops, so that a plugin runs once.
    """

    def __missing__(self, plugin: ExecCall) -> TokenCache[Identity]:
        return self.setdefault(plugin, TokenCache(min_age=PLUGIN_PERIOD))


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
    plugin: ExecCall | None = None
    identity: Identity = Identity()
    reread: Callable[[], DiscoveredServer]
    rotates: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether the credentials do not expire soon."""
        return self.identity.is_fresh

    is_valid = is_fresh

    def read_again(self) -> DiscoveredServer:
        """Return what the files contain now; raises a ConfigurationError if they cannot be used."""
        found = self.reread()
        if found.server != self.server or (found.plugin is None) != (self.plugin is None):
            # A token for another server must not be sent to this one.
            raise ConfigurationError(
                f"{found.source} now has another server, or got or lost an exec plugin", hint="Connect again."
            )
        if found.trust is not None:
            # Raises an error for a certificate that is only half written.
            new_ssl_context(found.trust, found.identity.certificate)
        return found


class Connection(Auth):
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
        plugin = discovered.plugin
        self._plugin = None if plugin is None else (plugin, cache[plugin])
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

    async def credentials(self) -> Credentials:
        """Return the headers that authenticate a request, and its TLS context, of one identity.

        There is no TLS context for plain http; it is the same until a certificate in it changes. An expired
        credential is renewed first. Token, certificate and CA files are read again after a minute.
        """
        identity = await self.identity()
        return Credentials(identity.headers, await self._ssl_context(identity))

    async def identity(self) -> Identity:
        """Return what authenticates the client, renewed if it has expired."""
        if self._plugin is not None:
            plugin, printed = self._plugin
            return await printed.get(plugin.identity)
        return (await self._files.get(self._read_files)).identity

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        """Read the CA certificates again after `rejected` did not accept the certificate of the server.

        Returns the TLS context that trusts them; None if they are still the same.
        """
        await self._files.renew(self._read_files)
        context = (await self.credentials()).ssl_context
        return None if context is rejected else context

    async def renew(self, rejected: Credentials, response: Response) -> Credentials:
        """Return the credentials to use after a 401: the plugin runs again, or files are read again.

        That happens once for all tasks that call this at the same time. The request is sent again even if the
        credentials are the same, because a starting API server also rejects valid ones.
        """
        if (await self.identity()).headers == rejected.headers:
            if self._plugin is not None:
                plugin, printed = self._plugin
                await printed.renew(plugin.identity)
            else:
                await self._files.renew(self._read_files)
        return await self.credentials()

    async def _read_files(self) -> DiscoveredServer:
        # Files that cannot be read at the moment are being replaced: keep the previous content.
        with suppress(ConfigurationError):
            self._last = await run_in_thread(f"read {self.source}", self._last.read_again)
        return self._last

    async def _ssl_context(self, identity: Identity) -> ssl.SSLContext | None:
        trust = (await self._files.get(self._read_files)).trust
        if trust is None:
            return None
        parts = trust, identity.certificate
        if self._built is None or self._built[0] != parts:
            purpose = f"load the certificates for {self.server}"
            context = await run_in_thread(purpose, new_ssl_context, *parts)
            # Keep the context of another task that was faster: aiohttp shares connections by context.
            if self._built is None or self._built[0] != parts:
                self._built = (parts, context)
        return self._built[1]


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
    # Comments between the certificates may have any encoding; the certificates are ASCII. As in Go, an
    # invalid certificate in a bundle is skipped.
    reason = "no certificate"
    for certificate in _CERTIFICATE.findall(authorities.decode("ascii", "ignore")):
        try:
            context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError) as error:
            reason = _reason(error)
    if not context.cert_store_stats()["x509"]:
        raise ConfigurationError(
            f"{where} contains no valid CA certificate ({reason})",
            hint="It must be PEM: -----BEGIN CERTIFICATE-----",
        )


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
        problem = f"certificate and key cannot be used ({_reason(error)})"
        hint = "Both must be PEM, and the key must belong to the certificate."
        if encrypted:
            problem = "the key is encrypted, which is not supported"
            hint = "Decrypt it with `openssl pkey -in KEY -out DECRYPTED` and name that file."
        raise ConfigurationError(f"{certificate.where}: {problem}", hint=hint) from error


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
        with os.fdopen(os.memfd_create("client-certificate"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="aioresolve-") as folder:  # only its owner can read it
        path = os.path.join(folder, "client.pem")
        with open(path, "xb") as file:
            file.write(content)
        yield path
