"""One HTTP request, bytes out and bytes in. The room of aiohttp.

Redirects are not followed and cookies are not kept: what is sent goes to the host it was meant for and to
nobody else. Every exception that aiohttp raises leaves this room as one of ours.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import socket
import ssl
import threading
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel
import anyio.to_thread
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from aioresolve._version import __version__
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.retry import retry_after

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Answer", "HTTPClient", "is_loopback", "origin"]

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one answer, decompressed, that are read at most: tens of thousands of TPU nodes."""

CONNECT_TIMEOUT = 10.0
"""Seconds to reach a server's socket; an address that swallows packets must not eat the whole deadline."""

CLOSING_ROUNDS = 3
"""Rounds of the event loop from closing a TLS transport to closing its socket."""

USER_AGENT = f"aioresolve/{__version__}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Attributes:
        status: the HTTP status code.
        body: the whole body, decompressed.
        headers: the headers, names in lower case.
        retry_after: seconds the server asks to wait, where it does.
        location: where it redirects to, without path and query, where it does.
    """

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    retry_after: float | None = None
    location: str | None = None


class OneSidedClose(ssl.SSLObject):
    """TLS that is closed without waiting for the peer to say so too, as RFC 8446 section 6.1 allows.

    asyncio would wait for half a minute: a call given up because its server hangs would leave a socket open.
    """

    def unwrap(self) -> None:
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


class HTTPClient:
    """An HTTP client of one event loop.

    Args:
        ssl_context: TLS for every https URL; that of the operating system's authorities where None.
        connect_timeout: seconds to find a name and reach a socket.
        use_proxies: whether HTTPS_PROXY and its like are obeyed; loopback is never asked through a proxy.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        use_proxies: bool = True,
    ) -> None:
        self._ssl_context = ssl_context
        self._use_proxies = use_proxies
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, resolver=AbandonableResolver()),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "gzip"},
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout),
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        scope: str,
        mend: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        secrets: Collection[str] = (),
        ssl_context: ssl.SSLContext | None = None,
    ) -> Answer:
        """Return the whole answer, whatever its status.

        Args:
            method: such as `GET`.
            url: the whole URL.
            scope: what is asked, in words for messages.
            mend: what to do where the server is not reached, for messages.
            headers: what is sent besides the client's own.
            body: what is sent.
            secrets: texts that are replaced where a failure's body echoes them.
            ssl_context: TLS for this request alone.

        Raises:
            ConnectionFailedError: no whole answer came back; TLSError where that was TLS's doing.
            ProtocolError: what came back is no HTTP, or too long.
            ConfigurationError: the URL is none.
        """
        host = origin(url)
        if self._is_closed():
            raise _closed_meanwhile(scope, host)
        proxy = _proxy(url) if self._use_proxies else None
        context = await self._context(url, ssl_context)
        try:
            async with self._session.request(
                method,
                URL(url),
                headers=headers,
                data=body,
                allow_redirects=False,
                ssl=context or True,
                proxy=proxy,
            ) as response:
                answer = await _answer_of(response, host, scope)
        except asyncio.CancelledError:
            # aiohttp cancels a name's look-up when the session is closed; the call itself was not cancelled.
            task = asyncio.current_task()
            if self._is_closed() and task is not None and not task.cancelling():
                raise _closed_meanwhile(scope, host) from None
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            where = host if proxy is None else f"{host} through the proxy {origin(proxy)}"
            failure, cause = _connection_error(error, where, host, scope, mend), _harmless_cause(error)
        else:
            return answer if answer.status == 200 else _without(secrets, answer)
        # Not inside `except`, where aiohttp's own error, which holds the headers, would become its context.
        raise failure from cause

    async def aclose(self) -> None:
        """Close every connection."""
        with anyio.CancelScope(shield=True):
            await self._session.close()
            # aiohttp waits for the connections it still knows; those of calls that were given up, which it
            # has let go of, take asyncio some rounds of the loop to close.
            for _ in range(CLOSING_ROUNDS):
                await anyio.lowlevel.checkpoint()

    def _is_closed(self) -> bool:
        return self._session.closed

    async def _context(self, url: str, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
        if not url.startswith("https:"):
            return None
        context = given or self._ssl_context
        if context is None:
            # A hundred certificates are read: for that the loop does not wait.
            files = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
            context = self._ssl_context = await anyio.to_thread.run_sync(_default_context, *files)
        context.sslobject_class = OneSidedClose
        return context


class AbandonableResolver(AbstractResolver):
    """Looks names up in threads that nobody has to wait for.

    getaddrinfo cannot be stopped, and takes minutes where no DNS server answers. asyncio and anyio wait for
    their threads at the end of the loop or of the process; these end on their own.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def look_up() -> None:
            try:
                answer: list[ResolveResult] | OSError = _addresses(host, port, family)
            except OSError as error:
                answer = error
            except UnicodeError as error:
                answer = OSError(None, str(error))
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, answer)

        def settle(answer: list[ResolveResult] | OSError) -> None:
            if found.cancelled():
                return
            if isinstance(answer, OSError):
                found.set_exception(answer)
            else:
                found.set_result(answer)

        threading.Thread(target=look_up, name=f"look-up of {host}", daemon=True).start()
        return await found

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    return [
        ResolveResult(
            hostname=host,
            host=socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0],
            port=port,
            family=found,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for found, _, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
    ]


@functools.lru_cache(maxsize=4)
def _default_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return TLS with the authorities of the operating system, or of SSL_CERT_FILE and SSL_CERT_DIR."""
    return ssl.create_default_context()


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without the user, password and path it may hold.

    Raises:
        ConfigurationError: it is no URL.
    """
    try:
        return f"{URL(url).origin()}"
    except ValueError as error:
        raise ConfigurationError("a URL to be asked is none; write it as https://HOST/PATH") from error


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: `localhost`, `127.0.0.1`, `::1`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for `url`, as urllib, and so requests, reads it."""
    parts = URL(url)
    host = parts.host or ""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{parts.port}"):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the environment variable {parts.scheme.upper()}_PROXY names no http:// or https:// proxy;"
            " others are not supported: name one, or exempt the host in NO_PROXY"
        )
    return proxy


async def _answer_of(response: aiohttp.ClientResponse, host: str, scope: str) -> Answer:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            raise ProtocolError(
                f"the answer of {host} to {scope} is longer than {MAX_BODY >> 20} MiB and was not read on;"
                " see whether this is the server you mean",
                host=host,
                scope=scope,
            )
    return Answer(
        response.status,
        bytes(body),
        {name.lower(): value for name, value in response.headers.items()},
        retry_after(response.headers.get("Retry-After")),
        _location(response),
    )


def _location(response: aiohttp.ClientResponse) -> str | None:
    location = response.headers.get("Location")
    if location is None:
        return None
    try:
        return f"{response.url.join(URL(location)).origin()}"
    except ValueError:
        return "an address that cannot be read"


def _without(secrets: Collection[str], answer: Answer) -> Answer:
    """Return `answer` without the secrets that were sent: a server may echo them."""
    body = answer.body
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            body = body.replace(secret.encode(), b"(secret)")
    return replace(answer, body=body)


def _closed_meanwhile(scope: str, host: str) -> ConnectionFailedError:
    return ConnectionFailedError(
        f"{scope} was not answered by {host}: the session was closed meanwhile;"
        " let its calls end inside its `async with`",
        host=host,
        scope=scope,
        retryable=False,
    )


def _connection_error(error: Exception, where: str, host: str, scope: str, mend: str) -> ResolveError:
    """Return our error for one of aiohttp, TLS or a socket."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return TLSError(
                f"the certificate of {where} was not accepted: {_certificate_reason(error)};"
                " name the authority it comes from with ssl_context= or SSL_CERT_FILE, or mend the endpoint",
                host=host,
                scope=scope,
            )
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return TLSError(
                f"TLS with {where} failed: {_words(error)}; see that the port speaks https",
                host=host,
                scope=scope,
            )
        case aiohttp.ClientConnectorDNSError():
            return ConnectionFailedError(
                f"the name of {where} was not found: {error.os_error.strerror or error}; {mend}",
                host=host,
                scope=scope,
                retryable=getattr(error.os_error, "errno", None) == socket.EAI_AGAIN,
            )
        case aiohttp.ClientHttpProxyError():
            return ConnectionFailedError(
                f"{where} was not reached: the proxy answered {error.status};"
                " correct HTTPS_PROXY and NO_PROXY",
                host=host,
                scope=scope,
                retryable=error.status >= 500,
            )
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | ConnectionError():
            return ConnectionFailedError(
                f"the connection to {where} broke during {scope}: {_words(error)}; try again",
                host=host,
                scope=scope,
            )
        case aiohttp.InvalidURL():
            return ConfigurationError(f"the URL of {scope} is none; write its start as https://HOST")
        case aiohttp.ClientResponseError() | ValueError():
            return ProtocolError(
                f"{where} answered {scope} with what is no HTTP ({type(error).__name__}); {mend}",
                host=host,
                scope=scope,
            )
    return ConnectionFailedError(f"{where} was not reached: {_words(error)}; {mend}", host=host, scope=scope)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _certificate_reason(error: Exception) -> str:
    cause = getattr(error, "certificate_error", error)
    return getattr(cause, "verify_message", "") or str(cause)


def _harmless_cause(error: Exception) -> Exception | None:
    """Return what `error` came from, without the headers and the proxy's password that aiohttp's own hold."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return error.certificate_error
        case aiohttp.ClientConnectorError():
            return error.os_error
        case aiohttp.ClientOSError():
            return OSError(*error.args)
        case aiohttp.ClientError():
            return None
    return error
