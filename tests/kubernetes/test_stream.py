"""Streamed responses of our own transport: their request, failures, and how their connections are closed."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest

from aioresolve import Progress
from aioresolve.errors import ConnectionFailedError, ResolveError
from aioresolve.kubernetes.api.client import ObjectAPI
from aioresolve.kubernetes.api.queries import PodQuery
from aioresolve.kubernetes.api.transport import AiohttpTransport, Request
from aioresolve.testing import Answer, Hang, Trickle, pod

from .kubeconfigs import connect
from .loopback import TOKEN, Loopback, all_text, trusted_peer
from .peers import read_head

PODS = "/api/v1/pods"
WATCH = {"watch": "true", "sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
PATIENCE = 60.0


@asynccontextmanager
async def transport_to(loopback: Loopback) -> AsyncIterator[AiohttpTransport]:
    transport = AiohttpTransport(await connect(loopback.kubeconfig))
    try:
        with anyio.fail_after(PATIENCE):
            yield transport
    finally:
        await transport.aclose()


async def until(loopback: Loopback, condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(loopback.server.until, condition)


async def error_from(call: Awaitable[Any]) -> ResolveError:
    with pytest.raises(ResolveError) as caught:
        await call
    assert TOKEN not in all_text(caught.value)
    return caught.value


async def test_request_has_path_query_and_token_and_refuses_compression(loopback: Loopback) -> None:
    seen: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        seen.append(read_head(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport, transport.stream(PODS, {"a": "b c"}) as stream:
            assert await stream.read() == b""
    assert seen[0].startswith(b"GET /api/v1/pods?a=b+c HTTP/1.1\r\n")
    assert b"\r\nAccept-Encoding: identity\r\n" in seen[0]
    assert b"\r\nAccept: application/json\r\n" in seen[0]
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() in seen[0]


async def test_body_of_an_object_has_the_media_type_of_its_verb(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with transport_to(loopback) as transport:
        monkeypatch.setattr(transport, "send", send := AsyncMock(wraps=transport.send))
        api, pods = ObjectAPI(transport, max_concurrency=1), PodQuery("", "ml")
        for verb in ("POST", "PATCH"):
            await api.request(verb, pods, "a", Progress(), body=b"{}", verbs=(), expected=range(400, 500))
    sent = [call.args[0].headers["Content-Type"] for call in send.await_args_list]
    assert sent == ["application/json", "application/merge-patch+json"]


async def test_second_401_is_returned_with_its_complete_body(loopback: Loopback) -> None:
    loopback.server.tokens = {"another": "bob"}
    async with transport_to(loopback) as transport, transport.stream(PODS, WATCH) as stream:
        assert stream.response.status == 401
        assert json.loads(stream.response.body)["reason"] == "Unauthorized"
        assert await stream.read() == b""
    assert len(loopback.requests) == 2


async def test_closing_a_stream_closes_only_its_own_connection(loopback: Loopback) -> None:
    async with transport_to(loopback) as transport:
        async with transport.stream(PODS, WATCH) as kept:
            async with transport.stream(PODS, WATCH):
                await until(loopback, lambda: loopback.server.watches == 2)
            await until(loopback, lambda: loopback.server.connections == 1)
            assert (await transport.send(Request("GET", PODS))).status == 200
            loopback.server.add(pod("train-0"))
            assert (await kept.read()).startswith(b'{"type":"ADDED","object":')
        await until(loopback, lambda: loopback.server.watches == 0)


async def test_closing_the_transport_ends_every_read_and_every_wait_for_a_response(
    loopback: Loopback,
) -> None:
    loopback.server.inject(Hang())
    loopback.server.inject(Answer(200, b"x" * 5000), Trickle(1, PATIENCE))
    async with transport_to(loopback) as transport:
        opening = asyncio.ensure_future(error_from(transport.stream(PODS, WATCH).__aenter__()))
        await until(loopback, lambda: len(loopback.requests) == 1)
        getting = asyncio.ensure_future(error_from(transport.send(Request("GET", PODS))))
        await until(loopback, lambda: len(loopback.requests) == 2)
        async with transport.stream(PODS, WATCH) as stream:
            reading = asyncio.ensure_future(error_from(stream.read()))
            await until(loopback, lambda: loopback.server.watches == 1)
            await transport.aclose()
            later = [error_from(stream.read()), error_from(transport.stream(PODS, {}).__aenter__())]
            for error in await asyncio.gather(opening, getting, reading, *later):
                assert type(error) is ConnectionFailedError
                assert not error.retryable
                assert "the resolver was closed. Keep its `async with` open" in str(error)
