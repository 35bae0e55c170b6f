"""One authorized GET to an API server: bytes out, bytes in. The room of aiohttp.

Redirects are not followed and cookies are not kept, so that a bearer token goes to the API server and to
nobody else. Every exception that aiohttp raises leaves this room as one of ours.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import aiohttp
import anyio
from yarl import URL

from aioresolve._version import __version__
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.retry import retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .credentials import Connection

__all__ = [
    "FAILURES",
    "MAX_BODY",
    "AiohttpTransport",
    "Answer",
    "Transport",
    "answer_of",
    "connection_error",
    "origin",
]

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one answer, decompressed, that are read at most: three times the rows of 150,000 pods."""

CONNECT_TIMEOUT = 10.0
"""Seconds to reach the server's socket; an address that swallows packets must not eat the whole deadline."""

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


class Transport(Protocol):
    """A way to ask one API server."""

    @property
    def host(self) -> str:
        """The server, `scheme://host:port`."""

    @property
    def source(self) -> str:
        """Where the credentials come from, in words."""

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        """Return the answer to one GET.

        Raises:
            ResolveError: no whole answer came back.
        """

    async def aclose(self) -> None:
        """Close what the transport opened itself."""


class AiohttpTransport:
    """Our own way: an aiohttp session, and the credentials of a `Connection`."""

    def __init__(self, connection: Connection, *, max_concurrency: int) -> None:
        self._connection = connection
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_concurrency),
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

    async def _send(
        self, path: str, query: Mapping[str, str], accept: str, credentials: Mapping[str, str]
    ) -> Answer:
        scope = f"GET {path}"
        if self._session.closed:
            raise ConnectionFailedError(
                f"{scope} was not sent: the resolver was closed meanwhile", host=self.host, scope=scope
            )
        connection = self._connection
        context = await connection.ssl()
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
        except FAILURES as error:
            through = f" through the proxy {origin(connection.proxy)}" if connection.proxy else ""
            where = f"{self.host}{through} (from {connection.source})"
            raise connection_error(error, where, self.host, scope) from error
        return answer if answer.status == 200 else _without(credentials, answer)


async def answer_of(response: aiohttp.ClientResponse, host: str, scope: str) -> Answer:
    """Return the whole of `response`.

    Raises:
        ProtocolError: its body is longer than MAX_BODY.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            raise ProtocolError(
                f"the answer of {host} to {scope} is longer than {MAX_BODY >> 20} MiB and was not read on;"
                " narrow the selector or the namespace, or see whether this is the API server",
                host=host,
                scope=scope,
            )
    return Answer(
        response.status, body, retry_after(response.headers.get("Retry-After")), _location(response)
    )


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without the user, password and path it may hold."""
    return f"{URL(url).origin()}"


def _without(credentials: Mapping[str, str], answer: Answer) -> Answer:
    """Return `answer` without the secrets that were sent: a server may echo them."""
    body = bytes(answer.body)
    for value in credentials.values():
        for secret in {value, value.partition(" ")[2]} - {""}:
            body = body.replace(secret.encode(), b"(secret)")
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
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | ConnectionError():
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


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _certificate_reason(error: Exception) -> str:
    cause = getattr(error, "certificate_error", error)
    return getattr(cause, "verify_message", "") or str(cause)
