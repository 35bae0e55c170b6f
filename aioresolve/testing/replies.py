"""How a reply is sent over an aiohttp connection, with the faults that a test injected."""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from aiohttp import web
from multidict import CIMultiDict

from .faults import (
    Answer,
    Cut,
    Delay,
    End,
    Endless,
    Fault,
    Hang,
    Reset,
    Stall,
    StreamFault,
    Trickle,
    reset_connection,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

JSON_HEADERS = {"Content-Type": "application/json"}

_BUFFERED = 2048
"""Go's net/http sends a Content-Length for bodies up to this many bytes, and longer ones in chunks."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response before it is sent.

    The body is complete, or a generator of its pieces, which may also yield faults: they apply to the
    connection from that point of the body on. With None it is the one of the server's own failures.
    """

    status: int
    body: bytes | AsyncGenerator[bytes | StreamFault, None] | None
    headers: Mapping[str, str] = field(default_factory=dict)


async def early_reply(request: web.Request, faults: Sequence[Fault]) -> Reply | None:
    """Apply the faults that come before the response; return what replaces it, if a fault does."""
    reply = None
    for fault in faults:
        match fault:
            case Delay(seconds):
                await anyio.sleep(seconds)
            case Hang():
                await anyio.sleep_forever()
            case Reset(None):
                await close_connection(request, reset=True)
            case Answer(status, body, headers):
                all_headers = CIMultiDict(JSON_HEADERS)
                all_headers.update(headers)
                reply = Reply(status, b"" if body is None and status < 400 else body, all_headers)
            case Endless(head, chunk):
                reply = Reply(200, _endless(head, chunk), JSON_HEADERS)
            case _:
                pass
    return reply


async def send(request: web.Request, reply: Reply, faults: Sequence[Fault]) -> web.StreamResponse:
    """Send `reply` at the pace, and with the end, that `faults` demand."""
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    end = next((fault for fault in faults if isinstance(fault, Cut | End | Reset | Stall)), None)
    pace = next((fault for fault in faults if isinstance(fault, Trickle)), None)
    body = reply.body
    # A body that End truncates must look complete, so its length is not announced. The other faults break the
    # promise of a Content-Length.
    if isinstance(body, bytes) and not isinstance(end, End) and (end or len(body) <= _BUFFERED):
        response.content_length = len(body)
    else:
        response.enable_chunked_encoding()
    with suppress(ConnectionResetError):  # the client closed the connection
        await response.prepare(request)
        if request.method != "HEAD":  # a body would be read as the next response
            await _write(request, response, _pieces(body, pace), end)
        await response.write_eof()
    return response


async def _write(
    request: web.Request,
    response: web.StreamResponse,
    pieces: AsyncGenerator[bytes | StreamFault, None],
    end: Cut | End | Reset | Stall | None,
) -> None:
    """Write `pieces` until they end or a fault ends them."""
    left = None if end is None else end.after or 0
    async with aclosing(pieces):
        if left == 0:
            await _end_body(request, end)
            return
        async for piece in pieces:
            if isinstance(piece, Delay):
                await anyio.sleep(piece.seconds)
            elif isinstance(piece, bytes):
                await response.write(piece if left is None else piece[:left])
                left = None if left is None else left - min(left, len(piece))
            else:
                end, left = piece, piece.after or 0
            if left == 0:
                await _end_body(request, end)
                return


async def _end_body(request: web.Request, end: Cut | End | Reset | Stall | None) -> None:
    """Return if the body is to look complete; otherwise break the connection and wait for cancellation."""
    match end:
        case Cut():
            await close_connection(request, reset=False)
        case Reset():
            await close_connection(request, reset=True)
        case Stall():
            await anyio.sleep_forever()
        case _:
            pass


async def close_connection(request: web.Request, *, reset: bool) -> None:
    """Close the connection, then wait: aiohttp cancels the handler when it notices."""
    transport = request.transport
    if transport is not None and not reset:
        transport.close()
    elif transport is not None:
        # abort() discards unsent bytes, which the client is meant to receive first.
        with anyio.move_on_after(1.0):
            while transport.get_write_buffer_size():  # noqa: ASYNC110 - a transport has no event for this
                await anyio.sleep(0.001)
        reset_connection(transport)
    await anyio.sleep_forever()


async def _pieces(
    body: bytes | AsyncGenerator[bytes | StreamFault, None] | None, pace: Trickle | None
) -> AsyncGenerator[bytes | StreamFault, None]:
    source = _single_piece(body) if body is None or isinstance(body, bytes) else body
    async with aclosing(source):
        async for piece in source:
            if pace is None or not isinstance(piece, bytes):
                yield piece
                continue
            for start in range(0, len(piece), pace.size):
                yield piece[start : start + pace.size]
                await anyio.sleep(pace.seconds)


async def _single_piece(body: bytes | None) -> AsyncGenerator[bytes | StreamFault, None]:
    if body:
        yield body


async def _endless(head: bytes, chunk: bytes) -> AsyncGenerator[bytes, None]:
    yield head
    while True:
        yield chunk
        # After a TLS client has closed the connection, writing no longer waits for anything, so that the
        # handler could never be cancelled.
        await anyio.lowlevel.checkpoint()
