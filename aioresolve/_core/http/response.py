"""Responses of HTTP servers, read at once or as they arrive."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import msgspec
from msgspec.structs import replace
from yarl import URL

from aioresolve._core.deadline import parse_retry_after
from aioresolve._core.network import origin
from aioresolve._core.redaction import Confidential
from aioresolve.errors import ResolveError

from .errors import FAILURES, RequestContext, connection_error, safe_cause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

T = TypeVar("T")

MAX_BODY = 64 * 1024 * 1024
"""The maximum size of a response, decompressed, in bytes: three times the table rows of 150,000 pods."""


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
        limit = MAX_BODY if limit is None else limit
        if length > limit:
            raise self._context.length_error(limit)


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
        failure, cause = error, safe_cause(error)
    # Outside of `except`: the context would be the error of aiohttp, which contains the headers.
    raise context.closed_error() if context.is_closed() else connection_error(failure, context) from cause
