"""One authorized GET to an API server: bytes out, bytes in. The room of aiohttp.

Redirects are not followed and cookies are not kept, so that a bearer token goes to the API server and to
nobody else. Every exception that aiohttp raises leaves this room as one of ours.
"""

from __future__ import annotations

import abc
import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel
from yarl import URL

from aioresolve._version import __version__
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.retry import retry_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .credentials import Connection

__all__ = [
    "FAILURES",
    "MAX_BODY",
    "AiohttpTransport",
    "Answer",
    "Transport",
    "answer_of",
    "check_length",
    "connection_error",
    "harmless_cause",
    "origin",
    "without",
]

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one answer, decompressed, that are read at most: three times the rows of 150,000 pods."""

CONNECT_TIMEOUT = 10.0
"""Seconds to reach the server's socket; an address that swallows packets must not eat the whole deadline."""

CLOSING_ROUNDS = 3
"""Rounds of the event loop from closing a TLS transport to closing its socket."""

FAILURES = (aiohttp.ClientError, OSError, ValueError)
"""What aiohttp raises where no whole answer comes back; `connection_error` tells them apart."""

USER_AGENT = f"aioresolve/{__version__}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server answered.

    Attributes:
        status: the HTTP status code.
        body: the whole body, decompressed.
        retry_after: seconds the server asks to wait, where it does.
        location: where it redirects to, without the query, where it does.
    """

    status: int
    body: bytes | bytearray
    retry_after: float | None = None
    location: str | None = None


class Transport(abc.ABC):
    """A way to ask one API server."""

    @property
    @abc.abstractmethod
    def host(self) -> str:
        """The server, `scheme://host:port`."""

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Where the credentials come from, in words."""

    async def prepare(self) -> None:  # noqa: B027 - a client handed in brings its credentials along
        """Wait until the credentials are at hand, which a plugin may have to say.

        Raises:
            ResolveError: they cannot be had.
        """

    @abc.abstractmethod
    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        """Return the answer to one GET.

        Raises:
            ResolveError: no whole answer came back.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close what the transport opened itself."""


class OneSidedClose(ssl.SSLObject):
    """TLS that is closed without waiting for the peer to say so too, as RFC 8446 section 6.1 allows.

    asyncio would wait for half a minute: a call given up because its server hangs would leave a socket open.
    """

    def unwrap(self) -> None:
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


class AiohttpTransport(Transport):
    """Our own way: an aiohttp session, and the credentials of a `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "gzip"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        )

    @property
    def host(self) -> str:
        return origin(self._connection.server)

    @property
    def source(self) -> str:
        return self._connection.source

    async def prepare(self) -> None:
        await self._connection.headers()
        await self._connection.ssl()

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        credentials = await self._connection.headers()
        answer = await self._send(path, query, accept, credentials)
        if answer.status == 401:
            # Once, whether or not the credentials changed: a starting API server turns good ones away too.
            await self._connection.renew(credentials)
            answer = await self._send(path, query, accept, await self._connection.headers())
        return answer

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._session.close()
            # aiohttp waits for the connections it still knows. Those of calls that were given up it knows no
            # more, and asyncio takes some rounds of the loop to close them.
            for _ in range(CLOSING_ROUNDS):
                await anyio.lowlevel.checkpoint()

    async def _send(
        self, path: str, query: Mapping[str, str], accept: str, credentials: Mapping[str, str]
    ) -> Answer:
        scope = f"GET {path}"
        connection = self._connection
        context = await connection.ssl()
        if context is not None:
            context.sslobject_class = OneSidedClose
        if self._session.closed:
            raise self._closed_meanwhile(scope)
        try:
            async with self._session.get(
                URL(connection.server + path).with_query(query),
                headers={"Accept": accept, **credentials},
                allow_redirects=False,
                ssl=context or True,
                server_hostname=connection.tls_server_name,
                proxy=connection.proxy,
            ) as response:
                answer = await answer_of(response, self.host, scope)
        except asyncio.CancelledError:
            if not _is_cancelled():
                # aiohttp cancels the look-up of a name when its session is closed.
                raise self._closed_meanwhile(scope) from None
            raise
        except FAILURES as error:
            through = f" through the proxy {origin(connection.proxy)}" if connection.proxy else ""
            where = f"{self.host}{through} (from {connection.source})"
            failure, cause = connection_error(error, where, self.host, scope), harmless_cause(error)
        else:
            return without([credentials.get("Authorization", "").partition(" ")[2]], answer)
        # Not inside `except`, where aiohttp's own error would become its context.
        raise failure from cause

    def _closed_meanwhile(self, scope: str) -> ConnectionFailedError:
        return ConnectionFailedError(
            f"{scope} was not answered by {self.host}: the resolver was closed meanwhile;"
            " let its calls end inside its `async with`",
            host=self.host,
            scope=scope,
            retryable=False,
        )


async def answer_of(response: aiohttp.ClientResponse, host: str, scope: str) -> Answer:
    """Return the whole of `response`.

    Raises:
        ProtocolError: its body is longer than MAX_BODY.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        check_length(body, host, scope)
    return Answer(
        response.status, body, retry_after(response.headers.get("Retry-After")), _location(response)
    )


def _is_cancelled() -> bool:
    """Whether it is the running task that somebody wants cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def check_length(body: bytearray, host: str, scope: str) -> None:
    """Stop reading a body that is too long to be an answer.

    Raises:
        ProtocolError: it is longer than MAX_BODY.
    """
    if len(body) > MAX_BODY:
        raise ProtocolError(
            f"the answer of {host} to {scope} is longer than {MAX_BODY >> 20} MiB and was not read on;"
            " narrow the selector or the namespace, or see whether this is the API server",
            host=host,
            scope=scope,
        )


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without the user, password and path it may hold."""
    return f"{URL(url).origin()}"


def without(secrets: Iterable[str], answer: Answer) -> Answer:
    """Return `answer` without the secrets that were sent, where it is a failure: a server may echo them."""
    if answer.status == 200:
        return answer
    body = bytes(answer.body)
    for secret in secrets:
        body = body.replace(secret.encode(), b"(secret)") if secret else body
    return replace(answer, body=body)


def _location(response: aiohttp.ClientResponse) -> str | None:
    location = response.headers.get("Location")
    if location is None:
        return None
    try:
        return origin(str(response.url.join(URL(location))))
    except ValueError:
        return "an address that cannot be read"


def connection_error(error: Exception, where: str, host: str, scope: str) -> ResolveError:
    """Return our error for one of aiohttp, TLS or a socket.

    Args:
        error: what was raised.
        where: the server and the way to it, in words.
        host: the server, `scheme://host:port`.
        scope: what was asked of it.
    """
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return TLSError(
                f"the certificate of {where} was not accepted: {_certificate_reason(error)};"
                " correct certificate-authority or tls-server-name in the kubeconfig",
                host=host,
                scope=scope,
            )
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return TLSError(
                f"TLS with {where} failed: {error};"
                " see that the port speaks https and that the client certificate is one it accepts",
                host=host,
                scope=scope,
            )
        case aiohttp.ClientConnectorDNSError():
            return ConnectionFailedError(
                f"the name of {where} was not found: {error.os_error.strerror or error};"
                " correct the server in the kubeconfig, or see to the DNS",
                host=host,
                scope=scope,
                retryable=getattr(error.os_error, "errno", None) == socket.EAI_AGAIN,
            )
        case aiohttp.ClientHttpProxyError():
            return ConnectionFailedError(
                f"{where} was not reached: the proxy answered {error.status};"
                " correct proxy-url in the kubeconfig, or HTTPS_PROXY and NO_PROXY",
                host=host,
                scope=scope,
                retryable=error.status >= 500,
            )
        case aiohttp.ClientConnectorError():
            pass
        case (
            aiohttp.ClientPayloadError()
            | aiohttp.ServerDisconnectedError()
            | aiohttp.ClientOSError()
            | ConnectionError()
        ):
            return ConnectionFailedError(
                f"the connection to {where} broke during {scope}: {_words(error)}; try again",
                host=host,
                scope=scope,
            )
        case aiohttp.InvalidURL():
            return ConfigurationError(f"{where} is no URL: correct the server in the kubeconfig")
        case aiohttp.ClientResponseError() | ValueError():
            return ProtocolError(
                f"{where} answered {scope} with what is no HTTP ({type(error).__name__});"
                " see that the port is the API server's and whether it wants https",
                host=host,
                scope=scope,
            )
    return ConnectionFailedError(
        f"{where} was not reached: {_words(error)};"
        " see that the address is right, that the server runs, and that nothing between blocks it",
        host=host,
        scope=scope,
    )


def harmless_cause(error: Exception) -> Exception | None:
    """Return what `error` came from, as far as that may be shown.

    aiohttp's own errors hold the headers that were sent, the proxy's URL with its password, and what the
    server sent back; every traceback and error report would show them.
    """
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


def _words(error: Exception) -> str:
    match error:
        case aiohttp.ClientPayloadError():
            return "the answer was not whole"
        case aiohttp.ServerDisconnectedError():
            return "the server hung up"
    return str(error) or type(error).__name__


def _certificate_reason(error: Exception) -> str:
    cause = getattr(error, "certificate_error", error)
    return getattr(cause, "verify_message", "") or str(cause)
