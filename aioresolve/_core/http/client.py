"""The HTTP client: requests with credentials, and responses read at once or as they arrive.

Kubernetes, Google's APIs, token servers and the metadata server are all called through `HTTPClient`. It
follows no redirect, keeps no cookie, reads no netrc, and limits the size of responses.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict

from aioresolve._core.network import look_up, origin, system_ssl_context
from aioresolve._core.secrets import Confidential
from aioresolve._core.telemetry import HTTPCall
from aioresolve._version import __version__
from aioresolve.errors import TLSError

from .response import OpenResponses, RequestContext, Response, StreamingResponse, translate_errors

if TYPE_CHECKING:
    import logging
    import ssl
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping

    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace
    from yarl import URL

    from .response import ConnectionHints

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a server; an address that drops packets must not use up the whole deadline."""


class Credentials(Confidential, frozen=True):
    """What one request is sent with: headers, and a TLS context, which may have a client certificate.

    Without a TLS context, that of the client is used.
    """

    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    ssl_context: ssl.SSLContext | None = None


class Auth:
    """The credentials of a request. This class sends none."""

    async def credentials(self) -> Credentials:
        """Return what authenticates the request: once for each, so that its parts belong together."""
        return Credentials()

    async def renew(self, rejected: Credentials, response: Response) -> Credentials | None:
        """Renew the credentials after a 401 for `rejected`.

        Returns what to send the request with once more; None if there are no credentials to renew.
        """
        return None

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        """Read the certificate authorities again after the TLS context `rejected` did not accept a server.

        Returns the TLS context to send the request with once more; None if they are the same.
        """
        return None


NO_AUTH = Auth()


class HTTPClient:
    """Sends requests from one event loop. Connecting has a deadline; the rest is left to the caller.

    Args:
        hints: the hints of errors.
        source: where the address of the server comes from, for errors.
        headers: headers of every request; several may have the same name.
        connect_timeout: seconds to resolve a name and connect, including TLS and proxies.
        socket_timeout: seconds to connect after the name was resolved, including TLS.
        server_hostname: the name in the certificate of the server, if it is not the host name.
        proxy: returns the URL of the proxy for a URL, if any.
        logger: logs each request, which also gets a span. Without it, the caller does that.
    """

    def __init__(
        self,
        *,
        hints: ConnectionHints,
        source: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        connect_timeout: float | None = None,
        socket_timeout: float | None = None,
        server_hostname: str | None = None,
        proxy: Callable[[URL], str | None] = lambda _: None,
        logger: logging.Logger | None = None,
    ) -> None:
        self._hints = hints
        self._source = source
        self._headers = CIMultiDict(headers)
        self._headers.setdefault("User-Agent", f"aioresolve/{__version__}")
        self._headers.setdefault("Accept-Encoding", "gzip")
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout, sock_connect=socket_timeout
        )
        self._server_hostname = server_hostname
        self._proxy = proxy
        self._logger = logger
        self._open = OpenResponses()
        self._system_ssl_context: ssl.SSLContext | None = None
        self._session = self._new_session()

    async def send(
        self,
        method: str,
        url: URL,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        auth: Auth = NO_AUTH,
        attempts: Iterator[int] | None = None,
        expected: Collection[int] = (),
        hints: ConnectionHints | None = None,
    ) -> Response:
        """Send a request and return the complete response, whatever its status.

        After a 401 the credentials are renewed and the request is sent once more.

        Args:
            method: such as `GET`.
            url: the URL.
            scope: the requested resource, as text.
            headers: headers in addition to those of `auth`.
            body: the body to send.
            auth: the credentials. If they have no TLS context, the certificate authorities of the operating
                system are trusted.
            attempts: numbers the requests for telemetry.
            expected: statuses that telemetry does not count as failures.
            hints: the hints of errors, in place of those of the client.

        Raises:
            ConnectionFailedError: there is no complete response; TLSError if TLS is the cause.
            ProtocolError: the response is not HTTP, or too long.
            ConfigurationError: the URL is invalid.
        """
        context = self._context(url, scope, hints)

        async def send(credentials: Credentials) -> Response:
            call: HTTPCall | None = None
            if self._logger is not None:
                number, server = 1 if attempts is None else next(attempts), origin(str(url))
                call = HTTPCall(
                    self._logger, method, server, url.raw_path, scope=scope, attempt=number, expected=expected
                )
            opening = self._request(method, url, headers or {}, body, credentials, auth, context)
            with call or nullcontext():
                async with self._open.reading(opening) as opened:
                    response = await opened.aread()
                if call is not None:
                    call.set_response(response.status, len(response.body))
            return response

        credentials = await auth.credentials()
        response = await send(credentials)
        if response.status == 401 and (renewed := await auth.renew(credentials, response)) is not None:
            response = await send(renewed)
        return response

    @asynccontextmanager
    async def stream(
        self, method: str, url: URL, *, scope: str, headers: Mapping[str, str], auth: Auth = NO_AUTH
    ) -> AsyncIterator[StreamingResponse]:
        """Yield a response whose body is read as it arrives. It is not logged.

        After the block the connection is closed, unless the body was read completely. The body of a failure
        is complete. The other arguments and the errors are those of `send`.
        """
        context = self._context(url, scope)
        credentials = await auth.credentials()
        for is_last in (False, True):
            opening = self._request(method, url, headers, None, credentials, auth, context)
            async with self._open.reading(opening) as opened:
                await opened.read_failure()
                renewed = None
                if opened.response.status == 401 and not is_last:
                    renewed = await auth.renew(credentials, opened.response)
                if renewed is None:
                    yield opened
                    return
                credentials = renewed

    async def close_idle(self) -> None:
        """Close the connections, unless one is in use; the next request opens another.

        aiohttp would keep them for a while, and after a long response each occupies a third of a megabyte.
        """
        if self._open.is_idle and not self._session.closed:
            idle, self._session = self._session, self._new_session()
            with anyio.CancelScope(shield=True):
                await idle.close()

    async def aclose(self) -> None:
        """Close every connection. Closing twice has no effect."""
        with anyio.CancelScope(shield=True):
            self._open.close()
            await self._session.close()
            # aiohttp waits for the connections it knows of. It no longer knows those of cancelled requests,
            # which asyncio needs some iterations of the loop to close.
            for _ in range(3):
                await anyio.lowlevel.checkpoint()

    def _context(self, url: URL, scope: str, hints: ConnectionHints | None = None) -> RequestContext:
        host, proxy = origin(str(url)), self._proxy(url)
        where = host if proxy is None else f"{host} through the proxy {origin(proxy)}"
        if self._source is not None:
            where = f"{where} (from {self._source})"
        return RequestContext(scope, host, where, hints or self._hints, lambda: self._session.closed)

    async def _request(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        credentials: Credentials,
        auth: Auth,
        context: RequestContext,
    ) -> StreamingResponse:
        """Send one request, and return as soon as the headers of the response have arrived.

        If the TLS context does not accept the server, the request is sent once more if `auth` has another
        one.
        """
        trusted = credentials.ssl_context
        if url.scheme == "https" and trusted is None:
            trusted = self._system_ssl_context = self._system_ssl_context or await system_ssl_context()

        async def send(ssl_context: ssl.SSLContext | None) -> StreamingResponse:
            if self._session.closed:
                raise context.closed_error()
            request = self._session.request(
                method,
                url,
                headers={**headers, **credentials.headers},
                data=body,
                allow_redirects=False,
                ssl=ssl_context or True,
                server_hostname=self._server_hostname,
                proxy=self._proxy(url),
            )
            return StreamingResponse(await translate_errors(request, context), context)

        try:
            return await send(trusted)
        except TLSError:
            renewed = None if trusted is None else await auth.renew_trust(trusted)
            if renewed is None:
                raise
            return await send(renewed)

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(limit=0, resolver=_Resolver()),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=self._timeout,
        )


class _Resolver(AbstractResolver):
    """Looks names up in threads of our own: if DNS hangs, those of the event loop would all be busy."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address.host,
                port=port,
                family=address.family,
                proto=address.protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await look_up(host, port, family)
        ]

    async def close(self) -> None: ...


class _Connector(aiohttp.TCPConnector):
    """Does not reuse a connection over which data arrived after its last response.

    aiohttp would take that data for the response to the next request.
    """

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if connection.protocol is not None and connection.protocol.should_close:
            connection.close()
            connection = await super().connect(req, traces, timeout)
        return connection


def timeout_to_connect_only() -> aiohttp.ClientTimeout:
    """Return a timeout of aiohttp that applies to connecting only, for sessions that a user opened."""
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
