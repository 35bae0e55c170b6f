"""Responses of HTTP servers, read at once or as they arrive, and the errors of aioresolve in their place."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import aiohttp.http
import msgspec
from msgspec.structs import replace
from yarl import URL

from aioresolve._core.deadline import parse_retry_after
from aioresolve._core.network import origin
from aioresolve._core.secrets import Confidential
from aioresolve.errors import (
    ConfigurationError,
    ConnectionFailedError,
    Hint,
    ProtocolError,
    ResolveError,
    TLSError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

T = TypeVar("T")

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

    The body of the attribute `response` is empty until `read_failure`.
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

    async def aread(self) -> Response:
        """Return the response with its complete body."""
        chunks, length = list[bytes](), 0
        while chunk := await self.read():
            chunks.append(chunk)
            length += len(chunk)
            self.check_length(length)
        return replace(self.response, body=b"".join(chunks))

    async def read_failure(self) -> None:
        """Read the body into `response`, unless the status is 200: see `aread`."""
        if self.response.status != 200:
            self.response = await self.aread()

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
        # Only those of OpenSSL have a reason.
        return (getattr(cause, "reason", None) or str(cause)).replace("_", " ").lower()
    if isinstance(cause, OSError) and cause.errno:
        text = os.strerror(cause.errno)
        return text[0].lower() + text[1:]
    return str(cause) or type(cause).__name__
