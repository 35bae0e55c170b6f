"""An answer on its way through the faults that befall it, onto an aiohttp connection."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from aiohttp import web

from .faults import Cut, Delay, End, Fault, Hang, Interruption, Reset, Stall, Trickle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Mapping, Sequence

__all__ = ["Reply", "endless", "hold_up", "send"]

_BUFFERED = 2048
"""Go's net/http states the length of a body up to this many bytes and sends a longer one in chunks."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before it is sent: a whole body, or the pieces of one without a known end.

    Among the pieces may be what befalls the body from there on.
    """

    status: int
    body: bytes | AsyncGenerator[bytes | Interruption, None]
    headers: Mapping[str, str] = field(default_factory=dict)


async def hold_up(request: web.Request, faults: Sequence[Fault]) -> None:
    """Let happen what `faults` put before any answer: a delay, silence, a reset."""
    for fault in faults:
        match fault:
            case Delay(seconds):
                await anyio.sleep(seconds)
            case Hang():
                await anyio.sleep_forever()
            case Reset(None):
                await _gone(request, rudely=True)
            case _:
                pass


async def send(request: web.Request, reply: Reply, faults: Sequence[Fault]) -> web.StreamResponse:
    """Send `reply` as `faults` let it flow and end."""
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    end = next((fault for fault in faults if isinstance(fault, Cut | End | Reset | Stall)), None)
    pace = next((fault for fault in faults if isinstance(fault, Trickle)), None)
    if not isinstance(reply.body, bytes) or isinstance(end, End):
        response.enable_chunked_encoding()
    elif end is not None or len(reply.body) <= _BUFFERED:
        response.content_length = len(reply.body)
    else:
        response.enable_chunked_encoding()
    with suppress(ConnectionResetError):  # the client has gone: there is nobody left to answer
        await response.prepare(request)
        if request.method != "HEAD":
            await _write(request, response, _pieces(reply.body, pace), end)
        await response.write_eof()
    return response


def _reset(transport: asyncio.WriteTransport) -> None:
    """Close the connection with a TCP RST instead of a FIN."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # uvloop's socket object has no setsockopt; a duplicate of the descriptor is the same connection.
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _write(
    request: web.Request,
    response: web.StreamResponse,
    pieces: AsyncGenerator[bytes | Interruption, None],
    end: Cut | End | Reset | Stall | None,
) -> None:
    """Write `pieces` until they are over, or what befalls them meanwhile ends them."""
    left = None if end is None else end.after or 0
    async with aclosing(pieces):
        if left == 0:
            await _over(request, end)
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
                await _over(request, end)
                return


async def _over(request: web.Request, end: Cut | End | Reset | Stall | None) -> None:
    """Let the body end here: return where it is to look whole, otherwise wait until the client goes."""
    match end:
        case Cut():
            await _gone(request, rudely=False)
        case Reset():
            await _gone(request, rudely=True)
        case Stall():
            await anyio.sleep_forever()
        case _:
            pass


async def _gone(request: web.Request, *, rudely: bool) -> None:
    """Close the connection; aiohttp cancels the handler as soon as it notices."""
    if request.transport is not None and not rudely:
        request.transport.close()
    elif request.transport is not None:
        await _flushed(request.transport)
        _reset(request.transport)
    await anyio.sleep_forever()


async def _flushed(transport: asyncio.WriteTransport) -> None:
    """Return once everything written has been handed to the kernel, or a second has passed."""
    with anyio.move_on_after(1.0):
        while transport.get_write_buffer_size():  # noqa: ASYNC110 - transports tell nobody when they are empty
            await anyio.sleep(0.001)


async def _pieces(
    body: bytes | AsyncGenerator[bytes | Interruption, None], pace: Trickle | None
) -> AsyncGenerator[bytes | Interruption, None]:
    source = _whole(body) if isinstance(body, bytes) else body
    async with aclosing(source):
        async for piece in source:
            if pace is None or not isinstance(piece, bytes):
                yield piece
                continue
            for start in range(0, len(piece), pace.size):
                yield piece[start : start + pace.size]
                await anyio.sleep(pace.seconds)


async def _whole(body: bytes) -> AsyncGenerator[bytes | Interruption, None]:
    if body:
        yield body


async def endless(head: bytes, chunk: bytes) -> AsyncGenerator[bytes, None]:
    """`head`, then `chunk` for ever."""
    yield head
    while True:
        yield chunk
        # Once the client has gone, over TLS, nothing that is written waits for anything any more.
        await anyio.lowlevel.checkpoint()
