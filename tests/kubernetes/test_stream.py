"""Streamed responses: bytes, ends, failures, and the cleanup after a stream that is not read to its end."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve.errors import ConnectionFailedError, ResolveError
from aioresolve.kubernetes.api.transport import AiohttpTransport
from aioresolve.testing import Answer, Hang, Trickle, pod

from .kubeconfigs import connect
from .loopback import TOKEN, Loopback, all_text, trusted_peer
from .peers import read_head

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping


PODS = "/api/v1/pods"
JSON = "application/json"
NEW_ONLY = {"watch": "true", "sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
PATIENCE = 60.0
"""Seconds after which a test is considered hung."""

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def transport_to(loopback: Loopback) -> AsyncIterator[AiohttpTransport]:
    """Yield an `AiohttpTransport` to the server, and close it."""
    connection = await connect(loopback.kubeconfig)
    transport = AiohttpTransport(connection)
    try:
        with anyio.fail_after(PATIENCE):
            yield transport
    finally:
        await transport.aclose()


@asynccontextmanager
async def open_watch(loopback: Loopback, query: Mapping[str, str] = NEW_ONLY) -> AsyncIterator[Any]:
    """Yield a watch that the server has accepted, with its own transport."""
    async with transport_to(loopback) as transport, transport.stream(PODS, query) as stream:
        assert stream.response.status == 200
        assert stream.response.body == b""
        await until(loopback, lambda: loopback.server.watches == 1)
        yield stream


async def until(loopback: Loopback, condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(loopback.server.until, condition)


async def read_bytes(stream: Any, size: int) -> bytes:
    """Read at least `size` bytes, or everything until the end of the stream."""
    body = b""
    while len(body) < size and (some := await stream.read()):
        body += some
    return body


def event_line(loopback: Loopback, kind: str, name: str) -> bytes:
    encoded = json.dumps(loopback.server.pod(name), separators=(",", ":"))
    return f'{{"type":"{kind}","object":{encoded}}}\n'.encode()


async def error_from(call: Awaitable[Any]) -> ResolveError:
    with pytest.raises(ResolveError) as caught:
        await call
    assert TOKEN not in all_text(caught.value)
    return caught.value


# Bytes


async def test_bytes_are_read_as_they_were_sent(loopback: Loopback) -> None:
    async with open_watch(loopback) as stream:
        for name, size in (("train-0", 1), ("longer-than-any-buffer", 2_000_000)):
            loopback.server.add(pod(name, annotations={"blob": "x" * size}))
            expected = event_line(loopback, "ADDED", name)
            assert await read_bytes(stream, len(expected)) == expected


async def test_request_has_path_query_and_token_and_refuses_compression(loopback: Loopback) -> None:
    seen: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        seen.append(read_head(connection))
        connection.sendall(CHUNKED + b"0\r\n\r\n")

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport, transport.stream(PODS, {"a": "b c"}) as stream:
            assert await stream.read() == b""
    assert seen[0].startswith(b"GET /api/v1/pods?a=b+c HTTP/1.1\r\n")
    assert b"\r\nAccept-Encoding: identity\r\n" in seen[0]
    assert b"\r\nAccept: application/json\r\n" in seen[0]
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() in seen[0]


# Ends


async def test_read_at_the_end_returns_no_bytes_and_the_connection_is_reused(loopback: Loopback) -> None:
    loopback.server.add(pod("train-0"))
    expected = event_line(loopback, "ADDED", "train-0")
    query = {"watch": "true", "timeoutSeconds": "1"}
    async with transport_to(loopback) as transport:
        for _ in range(2):
            async with transport.stream(PODS, query) as stream:
                assert await read_bytes(stream, 1 << 20) == expected
                assert await stream.read() == b""
            assert loopback.server.connections == 1


# Responses that are not streams


async def test_second_401_is_returned_with_its_complete_body(loopback: Loopback) -> None:
    loopback.server.tokens = {"another": "bob"}
    async with transport_to(loopback) as transport, transport.stream(PODS, NEW_ONLY) as stream:
        assert stream.response.status == 401
        assert json.loads(stream.response.body)["reason"] == "Unauthorized"
        assert await stream.read() == b""
    assert len(loopback.requests) == 2


# Cleanup


async def test_closing_a_stream_closes_only_its_own_connection(loopback: Loopback) -> None:
    async with transport_to(loopback) as transport:
        async with transport.stream(PODS, NEW_ONLY) as kept:
            async with transport.stream(PODS, NEW_ONLY):
                await until(loopback, lambda: loopback.server.watches == 2)
            await until(loopback, lambda: loopback.server.watches == 1)
            await until(loopback, lambda: loopback.server.connections == 1)
            assert (await transport.send("GET", PODS, {})).status == 200
            loopback.server.add(pod("train-0"))
            expected = event_line(loopback, "ADDED", "train-0")
            assert await read_bytes(kept, len(expected)) == expected
        await until(loopback, lambda: loopback.server.watches == 0)


async def test_cancelling_the_wait_for_the_headers_closes_the_connection(loopback: Loopback) -> None:
    loopback.server.inject(Hang())
    async with transport_to(loopback) as transport:
        tasks = asyncio.all_tasks()
        opening = asyncio.ensure_future(transport.stream(PODS, NEW_ONLY).__aenter__())
        await until(loopback, lambda: len(loopback.requests) == 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert asyncio.all_tasks() == tasks
        await until(loopback, lambda: loopback.server.connections == 0)
        assert (await transport.send("GET", PODS, {})).status == 200


async def test_closing_the_transport_ends_this_and_every_later_read(loopback: Loopback) -> None:
    async with transport_to(loopback) as transport, transport.stream(PODS, NEW_ONLY) as stream:
        reading = asyncio.ensure_future(error_from(stream.read()))
        await until(loopback, lambda: loopback.server.watches == 1)
        await transport.aclose()
        for error in (await reading, await error_from(stream.read())):
            assert type(error) is ConnectionFailedError
            assert not error.retryable
            assert "the resolver was closed. Keep its `async with` open" in str(error)


async def test_closing_the_transport_ends_every_wait_for_a_response(loopback: Loopback) -> None:
    loopback.server.inject(Hang())
    loopback.server.inject(Answer(200, b"x" * 5000), Trickle(1, PATIENCE))
    async with transport_to(loopback) as transport:
        opening = asyncio.ensure_future(error_from(transport.stream(PODS, NEW_ONLY).__aenter__()))
        await until(loopback, lambda: len(loopback.requests) == 1)
        getting = asyncio.ensure_future(error_from(transport.send("GET", PODS, {})))
        await until(loopback, lambda: len(loopback.requests) == 2)
        await asyncio.sleep(0.05)
        await transport.aclose()
        later = error_from(transport.stream(PODS, {}).__aenter__())
        for error in (await opening, await getting, await later):
            assert "was closed" in str(error)
