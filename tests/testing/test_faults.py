"""What a client sees of each fault that is injected into a request, or applied to a connected watch."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from aioresolve.testing import (
    Answer,
    Cut,
    End,
    Fault,
    KubernetesServer,
    Reset,
    Stall,
    WatchError,
    pod,
)

from .client import Watch, fetch, open_session, open_watch

PODS = "/api/v1/pods"
WATCH = f"{PODS}?watch=true"
BROKEN = (aiohttp.ClientPayloadError, aiohttp.ClientOSError)
MOMENT = 0.05
"""Seconds for which a server that hangs is observed."""

pytestmark = pytest.mark.usefixtures("no_leak")

http_and_https = pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])


async def read_body(
    server: KubernetesServer, path: str = PODS, timeout: float = 60.0
) -> tuple[bytes, Exception | None]:
    """Return the received part of a body, and the error that ended it early."""
    body = bytearray()
    async with open_session(server) as session:
        try:
            limit = aiohttp.ClientTimeout(total=timeout)
            async with session.get(path, timeout=limit, headers={"Accept-Encoding": "identity"}) as response:
                async for piece in response.content.iter_any():
                    body += piece
        except (aiohttp.ClientError, TimeoutError) as error:
            return bytes(body), error
    return bytes(body), None


# Requests


async def test_response_can_be_replaced() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.inject(Answer(429, headers={"Retry-After": "7"}))
        got = await fetch(server)
        assert (got.status, got.json["reason"], got.headers["Retry-After"]) == (429, "TooManyRequests", "7")
        assert (await fetch(server)).names == ["a"]
        server.inject(Answer(200, b"<html>", headers={"content-type": "text/html"}))
        got = await fetch(server)
        assert (got.body, got.headers["Content-Type"]) == (b"<html>", "text/html")
        server.inject(Answer(204))
        assert (await fetch(server)).body == b""
        server.inject(Answer(599))
        assert (await fetch(server)).message == "the server responded with the status code 599"


@http_and_https
async def test_body_can_break(tls: bool) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server:
        whole = (await fetch(server)).body
        for after in (0, 1000):
            server.inject(Cut(after=after))
            body, error = await read_body(server)
            assert (body, type(error)) == (whole[:after], aiohttp.ClientPayloadError)
        server.inject(Reset(after=1000))
        body, error = await read_body(server)
        assert len(body) <= 1000
        assert isinstance(error, BROKEN)
        server.inject(Cut(after=1000), match=lambda request: request.verb == "watch")
        body, error = await read_body(server, WATCH)
        assert (len(body), type(error)) == (1000, aiohttp.ClientPayloadError)
        await server.until(lambda: server.watches == 0)


@http_and_https
async def test_body_can_stall_without_disconnecting(tls: bool) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server, open_session(server) as session:
        for path, after in ((PODS, 1000), (WATCH, 0)):
            server.inject(Stall(after=after))
            async with session.get(path, headers={"Accept-Encoding": "identity"}) as response:
                assert response.status == 200
                assert len(await response.content.readexactly(after)) == after
                with pytest.raises(TimeoutError), anyio.fail_after(MOMENT):
                    await response.content.readany()
                assert server.connections == 1
            await server.until(lambda: server.connections == 0)


async def test_faults_are_used_up_in_order_by_matching_requests() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(500), times=2)
        server.inject(Answer(503), match=lambda request: request.query.get("limit") == "1")
        server.inject(Answer(429))
        assert [(await fetch(server)).status for _ in range(4)] == [500, 500, 429, 200]
        assert list(server.faults) == [(Answer(503),)]
        assert (await fetch(server, limit="1")).status == 503
        assert not server.faults
        server.inject(Answer(500), times=None)
        assert [(await fetch(server)).status for _ in range(3)] == [500] * 3
        server.clear_faults()
        assert (await fetch(server)).status == 200


# Connected watches


@asynccontextmanager
async def watched_server(*, tls: bool = False) -> AsyncIterator[tuple[KubernetesServer, Watch]]:
    """Start a server without pods, and a watch of it."""
    async with (
        KubernetesServer(tls=tls) as server,
        open_watch(server, resourceVersion="1", allowWatchBookmarks="true") as watch,
    ):
        yield server, watch
    assert server.watches == 0


async def read_rest(watch: Watch) -> tuple[bytes, bool]:
    """Read until the watch ends; return the bytes, and whether it ended normally."""
    rest = b""
    with anyio.fail_after(60):
        try:
            while piece := await watch.response.content.readany():
                rest += piece
        except BROKEN:
            return rest, False
    return rest, True


async def is_silent(watch: Watch) -> bool:
    with anyio.move_on_after(MOMENT):
        await watch.line()
        return False
    return True


@http_and_https
@pytest.mark.parametrize(
    ("fault", "is_normal"),
    [(Cut(after=0), False), (Reset(), False), (Reset(after=0), False), (End(), True)],
    ids=repr,
)
async def test_connected_watch_can_end_immediately(tls: bool, fault: Fault, is_normal: bool) -> None:
    async with watched_server(tls=tls) as (server, watch):
        server.add(pod("a"), pod("b"))
        assert await watch.events(1) == [("ADDED", "a", "2")]
        assert server.disturb(fault) == 1
        server.add(pod("c"))
        rest, ended_normally = await read_rest(watch)
    assert [json.loads(line)["object"]["metadata"]["name"] for line in rest.splitlines()] == ["b"]
    assert ended_normally is is_normal


@http_and_https
async def test_connected_watch_can_stall_without_disconnecting(tls: bool) -> None:
    async with watched_server(tls=tls) as (server, watch):
        server.add(pod("before"))
        server.disturb(Stall(after=20))
        server.add(pod("after"))
        assert await watch.events(1) == [("ADDED", "before", "2")]
        assert await watch.response.content.readexactly(20) == b'{"type":"ADDED","obj'
        assert await is_silent(watch)
        assert (server.watches, server.connections) == (1, 1)
        await server.restart()
        assert await read_rest(watch) == (b"", False)


@pytest.mark.parametrize(
    ("fault", "reason", "message"),
    [
        (WatchError(410), "Expired", "The resourceVersion for the provided watch is too old."),
        (WatchError(410, "Gone"), "Gone", "The resourceVersion for the provided watch is too old."),
        (WatchError(429, retry_after=3), "TooManyRequests", "Too many requests, please try again later."),
    ],
)
async def test_watch_can_end_with_an_error_event(fault: WatchError, reason: str, message: str) -> None:
    async with watched_server() as (server, watch):
        server.disturb(fault)
        connected = await watch.event()
        assert await read_rest(watch) == (b"", True)
        server.inject(fault, match=lambda request: request.verb == "watch")
        new = (await fetch(server, watch="true", resourceVersion="1")).json
    assert connected == (new["type"], new["object"])
    kind, status = connected
    assert (kind, status["kind"], status["code"]) == ("ERROR", "Status", fault.code)
    assert (status["reason"], status["message"]) == (reason, message)
    assert status.get("details", {}).get("retryAfterSeconds") == fault.retry_after
