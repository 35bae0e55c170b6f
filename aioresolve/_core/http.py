"""HTTP over aiohttp: a response, or an error of aioresolve that contains no secret.

Kubernetes, Google's APIs, token servers and the metadata server are all called through `HTTPClient`. It
follows no redirect, keeps no cookie, reads no netrc, and limits the size of responses: a request goes to its
host and to no other.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import aiohttp.http
import anyio
import anyio.lowlevel
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from aioresolve._version import __version__
from aioresolve.errors import (
    ConfigurationError,
    ConnectionFailedError,
    Hint,
    ProtocolError,
    ResolveError,
    TLSError,
)

from .deadline import parse_retry_after
from .network import look_up, origin, system_ssl_context
from .secrets import Confidential
from .telemetry import HTTPCall

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a server; an address that drops packets must not use up the whole deadline."""

MAX_BODY = 64 * 1024 * 1024
"""The maximum size of a response, decompressed, in bytes: three times the table rows of 150,000 pods."""

FAILURES = (aiohttp.ClientError, aiohttp.http.HttpProcessingError, aiohttp.EofStream, OSError, ValueError)
"""What aiohttp raises if a response is missing or incomplete; `_connection_error` finds the cause."""

_BROKEN = (
    aiohttp.ClientPayloadError,
    aiohttp.ServerDisconnectedError,
    aiohttp.EofStream,
    aiohttp.ClientOSError,
    ConnectionError,
)
"""The errors of a connection that breaks after it was established."""


class ConnectionHints(msgspec.Struct, frozen=True):
    """The hint of each kind of failure, for one kind of server.

    `owner` is the object whose `async with` owns the connections: `session`, `resolver`.
    """

    certificate: str
    tls: str
    name: str
    proxy: str
    url: str
    protocol: str
    reach: str
    length: str
    owner: str


class RequestContext(msgspec.Struct, frozen=True):
    """One request, as error messages describe it.

    `scope` is the requested resource as text, `host` is `scheme://host:port`, `where` adds how the host is
    reached, and `is_closed` returns whether the owner of the connection has closed it.
    """

    scope: str
    host: str
    where: str
    hints: ConnectionHints
    is_closed: Callable[[], bool]

    def closed_error(self) -> ConnectionFailedError:
        """Return the error of a request whose connection was closed by its owner."""
        return ConnectionFailedError(
            f"{self.scope} got no response from {self.host}: the {self.hints.owner} was closed",
            hint="Keep its `async with` open until its calls end.",
            host=self.host,
            scope=self.scope,
            retryable=False,
        )


class BodyTooLongError(ProtocolError):
    """The body of a response exceeds the limit. A request for less may succeed."""


class Response(Confidential, frozen=True):
    """A response.

    The body is decompressed, the names of the headers are case-insensitive, `retry_after` is in seconds, and
    `location` is the target of a redirect, `scheme://host:port` without path and query.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    retry_after: float | None = None
    location: str | None = None


class StreamingResponse:
    """A response whose body is read as it arrives. It must be closed.

    Attributes:
        response: the response; its body is empty until it was read completely, as that of each failure is.
        length: the number of bytes of the body that `complete` has read.
    """

    def __init__(self, response: aiohttp.ClientResponse, context: RequestContext) -> None:
        headers = response.headers
        self.response = Response(
            response.status,
            b"",
            headers,
            parse_retry_after(headers.get("Retry-After")),
            _location(response.url, headers["Location"]) if "Location" in headers else None,
        )
        self.length = 0
        self._is_complete = False
        self._aiohttp_response = response
        self._is_closed = False
        self._context = replace(context, is_closed=lambda: self._is_closed or context.is_closed())
        # aiohttp has already released the connection of a response that is complete.
        self._transport = None if response.connection is None else response.connection.transport

    async def read(self) -> bytes:
        """Return the next bytes, decompressed, as soon as they arrive; `b""` at the clean end of the body.

        A cancelled read loses no data.
        """
        return await translate_errors(self._aiohttp_response.content.readany(), self._context)

    async def complete(self) -> Response:
        """Read the rest of the body, and return the response with it; the same after it was closed."""
        if self._is_complete:
            return self.response
        chunks = list[bytes]()
        while chunk := await self.read():
            chunks.append(chunk)
            self.length += len(chunk)
            self.check_length(self.length)
        self.response = replace(self.response, body=b"".join(chunks))
        self._is_complete = True
        return self.response

    def close(self) -> None:
        """Close the connection at once; if the body was read completely, keep it for the next request."""
        self._is_closed = True
        # Wake the reader: aiohttp does not if the connection is closed on this side.
        content = self._aiohttp_response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ServerDisconnectedError())
        is_incomplete = self._aiohttp_response.connection is not None
        self._aiohttp_response.close()
        if is_incomplete and self._transport is not None:
            # Over TLS, the session of a user would wait for the close message of the peer.
            self._transport.abort()

    def check_length(self, length: int, *, limit: int | None = None) -> None:
        """Raise a BodyTooLongError if the bytes so far exceed `limit`, by default MAX_BODY."""
        limit, context = MAX_BODY if limit is None else limit, self._context
        if length > limit:
            raise BodyTooLongError(
                f"the response of {context.host} to {context.scope} exceeds the limit of {limit >> 20} MiB",
                hint=context.hints.length,
                host=context.host,
                scope=context.scope,
            )


def _location(url: URL, location: str) -> str:
    try:
        return origin(str(url.join(URL(location))))
    except ValueError:
        return "an invalid URL"


class OpenResponses:
    """The responses that are being read, so that they can be closed together."""

    def __init__(self) -> None:
        self._open: set[StreamingResponse] = set()
        self._num_readers = 0

    @property
    def is_idle(self) -> bool:
        """Whether no response is being read or requested."""
        return not self._num_readers

    @asynccontextmanager
    async def reading(self, opening: Awaitable[StreamingResponse]) -> AsyncIterator[StreamingResponse]:
        """Yield the response that `opening` returns, and close it after the block."""
        self._num_readers += 1
        try:
            opened = await opening
            self._open.add(opened)
            try:
                yield opened
            finally:
                self._open.discard(opened)
                opened.close()
        finally:
            self._num_readers -= 1

    def close(self) -> None:
        """Close every response; their readers get an error."""
        for opened in self._open:
            opened.close()


async def translate_errors(call: Awaitable[T], context: RequestContext) -> T:
    """Return the result of a call to aiohttp, or raise its error as one of ours."""
    try:
        return await call
    except ResolveError:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Not this task was cancelled, but the look-up it waits for: aiohttp does so as its session closes.
        failure: Exception = ConnectionAbortedError("its session was closed")
        cause = None
    except FAILURES as error:
        failure, cause = error, _safe_cause(error)
    # Outside of `except`: the context would be the error of aiohttp, which contains the headers.
    raise context.closed_error() if context.is_closed() else _connection_error(failure, context) from cause


def _connection_error(error: Exception, context: RequestContext) -> ResolveError:
    kind: type[ConnectionFailedError | ProtocolError] = ConnectionFailedError
    is_retryable: bool | None = None  # that of the class
    where, scope, hints = context.where, context.scope, context.hints
    # The order matters: most of these classes are OSErrors or ValueErrors too.
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            kind, hint = TLSError, hints.certificate
            cause = getattr(error, "certificate_error", error)
            reason = getattr(cause, "verify_message", "") or cause
            summary = f"the certificate of {where} was not accepted: {reason}"
        case _ if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError) or _alert(error):
            kind, hint = TLSError, hints.tls
            summary = f"TLS with {where} failed: {_text(error)}"
        # The second one for an address with an invalid zone, which aiohttp does not look up.
        case aiohttp.ClientConnectorDNSError() | aiohttp.ClientConnectorError(os_error=socket.gaierror()):
            hint, is_retryable = hints.name, error.os_error.errno == socket.EAI_AGAIN
            summary = f"the name of {where} was not found: {error.os_error.strerror or error}"
        case aiohttp.ClientHttpProxyError():
            hint, is_retryable = hints.proxy, error.status >= 500
            summary = f"cannot connect to {where}: the proxy returned status {error.status}"
        case aiohttp.InvalidURL():
            return ConfigurationError(f"invalid URL for {scope}", hint=hints.url)
        case aiohttp.ClientResponseError() | aiohttp.http.HttpProcessingError() | ValueError():
            kind, hint = ProtocolError, hints.protocol
            summary = f"{where} returned a non-HTTP response to {scope} ({type(error).__name__})"
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            hint = "Raise its limit (`ulimit -n`), or keep fewer open at a time."
            summary = f"cannot connect to {where}: this process has too many files and sockets open"
        case _ if isinstance(error, _BROKEN) and not isinstance(error, aiohttp.ClientConnectorError):
            hint = "Try again."
            summary = f"the connection to {where} broke during {scope}: {_text(error)}"
        case _:
            hint = hints.reach
            summary = f"cannot connect to {where}: {_text(error)}"
    translated = kind(summary.rstrip("."), hint=Hint(hint), host=context.host, scope=scope)
    if is_retryable is not None:
        translated.retryable = is_retryable
    return translated


def _safe_cause(error: Exception) -> Exception | None:
    """Return the cause of `error` to show in tracebacks; None without one.

    The errors of aiohttp contain the headers that were sent, the URL of the proxy with its password, and the
    response.
    """
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return error.certificate_error
        case aiohttp.ClientConnectorError():
            return error.os_error
        case aiohttp.ClientOSError():
            return OSError(*error.args)
        case aiohttp.ClientError() | aiohttp.http.HttpProcessingError() | aiohttp.EofStream():
            return None
    return error


def _alert(error: Exception) -> str | None:
    """Return OpenSSL's reason if the server closed the connection with a TLS alert.

    In TLS 1.3 a server can reject the client's certificate only after the handshake, from the client's view.
    """
    if not isinstance(error, aiohttp.ClientOSError) or isinstance(error, aiohttp.ClientConnectorError):
        return None
    reason = getattr(error.__cause__, "reason", None)
    if not isinstance(reason, str):
        # aiohttp drops the cause if nothing waited for the response yet. "[SSL: REASON] text (_ssl.c:1)"
        found = re.match(r"\[\w+: (\w+)\]", error.strerror or "")
        reason = "" if found is None else found[1]
    return reason if "_ALERT_" in reason else None


def _text(error: Exception) -> str:
    match error:
        case aiohttp.ClientPayloadError():
            return "the response was incomplete"
        case aiohttp.ServerDisconnectedError() | aiohttp.EofStream() | aiohttp.ClientOSError(errno=None):
            return "the server closed the connection"
        case TimeoutError():
            return "timed out"
    if (alert := _alert(error)) is not None:
        return alert.replace("_", " ").lower()
    # The texts of aiohttp and asyncio have internals: `ssl:<ssl.SSLContext object at 0x...>`, `(_ssl.c:1)`.
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error.__cause__ or error
    if isinstance(cause, ssl.SSLError):
        # An error of OpenSSL has a reason; one of the `ssl` module itself has none.
        return (getattr(cause, "reason", None) or str(cause)).replace("_", " ").lower()
    if isinstance(cause, OSError) and cause.errno:
        text = os.strerror(cause.errno)
        return text[0].lower() + text[1:]
    return str(cause) or type(cause).__name__


# Requests


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

    async def send(self, method: str, url: URL, **options: Any) -> Response:
        """Return the complete response, whatever its status; for arguments and errors see `stream`."""
        async with self.stream(method, url, **options) as opened:
            return await opened.complete()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: URL,
        *,
        scope: str,
        headers: Mapping[str, str] = {},
        body: bytes | None = None,
        auth: Auth = NO_AUTH,
        attempts: Iterator[int] | None = None,
        expected: Collection[int] = (),
        hints: ConnectionHints | None = None,
    ) -> AsyncIterator[StreamingResponse]:
        """Send a request, and yield the response, whatever its status, when its headers have arrived.

        The body is read as it arrives; that of a failure is complete. After the block the connection is
        closed, unless the body was read completely. After a 401 the credentials are renewed and the request
        is sent once more.

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
            ConnectionFailedError: the response did not arrive, or broke off; TLSError if TLS is the cause.
            ProtocolError: the response is not HTTP, or too long.
            ConfigurationError: the URL is invalid.
        """
        context = self._context(url, scope, hints)
        credentials = await auth.credentials()
        for is_last in (False, True):
            call: HTTPCall | None = None
            if self._logger is not None:
                number, server = 1 if attempts is None else next(attempts), origin(str(url))
                call = HTTPCall(
                    self._logger, method, server, url.raw_path, scope=scope, attempt=number, expected=expected
                )
            opening = self._request(method, url, headers, body, credentials, auth, context)
            with call or nullcontext():
                async with self._open.reading(opening) as opened:
                    if opened.response.status != 200:
                        await opened.complete()
                    is_rejected = opened.response.status == 401 and not is_last
                    if not is_rejected:
                        yield opened
                if call is not None:
                    call.set_response(opened.response.status, opened.length)
            if not is_rejected:
                return
            renewed = await auth.renew(credentials, opened.response)
            if renewed is None:
                yield opened  # which is complete
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
            # aiohttp waits for its connections, except the connections of cancelled requests, which it has
            # forgotten and which asyncio needs some iterations of the loop to close.
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
    """Looks names up in `run_in_thread`: if DNS hangs, it would keep all threads of the event loop busy."""

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
