"""What a client sees of each fault."""

from __future__ import annotations

import asyncio
import errno
import time

import aiohttp
import anyio
import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.testing import (
    Answer,
    Cut,
    Delay,
    End,
    Endless,
    EndlessPages,
    Hang,
    KubernetesServer,
    Redirect,
    Reset,
    Stall,
    Trickle,
    pod,
)
from aioresolve.testing.faults import FaultScript

from .client import TABLE, fetch, open_session

PODS = "/api/v1/pods"


async def read_body(
    server: KubernetesServer, path: str = PODS, timeout: float = 5.0
) -> tuple[bytes, Exception | None]:
    """Return the received part of a body, and the error that ended it early."""
    body = bytearray()
    error = None
    async with open_session(server) as session:
        try:
            limit = aiohttp.ClientTimeout(total=timeout)
            async with session.get(path, timeout=limit, headers={"Accept-Encoding": "identity"}) as response:
                async for piece in response.content.iter_any():
                    body += piece
        except (aiohttp.ClientError, TimeoutError) as raised:
            error = raised
    return bytes(body), error


async def test_injected_status_has_its_usual_body() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.inject(Answer(429, headers={"Retry-After": "7"}))
        got = await fetch(server)
        assert (got.status, got.json["reason"], got.headers["Retry-After"]) == (429, "TooManyRequests", "7")
        assert (await fetch(server)).names == ["a"]


async def test_any_body_can_be_injected() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(200, b"<html>", headers={"content-type": "text/html"}))
        got = await fetch(server)
        assert (got.body, got.headers["Content-Type"]) == (b"<html>", "text/html")
        server.inject(Answer(200, b"[1, 2]"))
        assert (await fetch(server)).json == [1, 2]
        server.inject(Answer(204))
        assert (await fetch(server)).body == b""
        server.inject(Answer(599))
        assert (await fetch(server)).message == "the server responded with the status code 599"


async def test_client_can_be_redirected() -> None:
    async with KubernetesServer() as server:
        server.inject(Redirect("http://127.0.0.1:1/x"))
        got = await fetch(server)
        assert (got.status, got.headers["Location"]) == (307, "http://127.0.0.1:1/x")


async def test_response_can_be_delayed() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.inject(Delay(0.05))
        started = time.monotonic()
        assert (await fetch(server)).names == ["a"]
        assert time.monotonic() - started >= 0.05


async def test_delayed_response_shows_the_state_after_the_delay() -> None:
    async with KubernetesServer([pod("a")]) as server, anyio.create_task_group() as group:
        server.inject(Delay(0.05))

        async def change() -> None:
            await server.until(lambda: len(server.requests) == 1)
            server.add(pod("b"))

        group.start_soon(change)
        assert (await fetch(server)).names == ["a", "b"]


async def test_request_can_hang() -> None:
    async with KubernetesServer() as server:
        server.inject(Hang())
        body, error = await read_body(server, timeout=0.05)
        assert (body, type(error)) == (b"", TimeoutError)
        await server.until(lambda: server.connections == 0)


async def test_connection_can_be_reset_before_the_response() -> None:
    async with KubernetesServer() as server:
        server.inject(Reset(), times=None)
        _, error = await read_body(server)
        assert isinstance(error, aiohttp.ClientOSError)
        assert error.errno == errno.ECONNRESET


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_connection_can_be_reset_within_the_body(tls: bool) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server:
        server.inject(Reset(after=1000))
        body, error = await read_body(server)
        assert len(body) <= 1000
        assert isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientOSError)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_body_can_be_cut(tls: bool) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server:
        whole = (await fetch(server)).body
        server.inject(Cut(after=1000))
        body, error = await read_body(server)
        assert body == whole[:1000]
        assert isinstance(error, aiohttp.ClientPayloadError)
        server.inject(Cut(after=0))
        body, error = await read_body(server)
        assert (body, type(error)) == (b"", aiohttp.ClientPayloadError)


async def test_watch_can_be_cut() -> None:
    async with KubernetesServer([pod("a", size=20_000)]) as server:
        server.inject(Cut(after=1000), match=lambda request: request.verb == "watch")
        body, error = await read_body(server, f"{PODS}?watch=true")
        assert len(body) == 1000
        assert isinstance(error, aiohttp.ClientPayloadError)
        await server.until(lambda: server.watches == 0)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("after", [0, 1000])
async def test_body_can_stall_without_disconnecting(tls: bool, after: int) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server, open_session(server) as session:
        for path in (PODS, f"{PODS}?watch=true"):
            server.inject(Stall(after=after))
            async with session.get(path, headers={"Accept-Encoding": "identity"}) as response:
                assert response.status == 200
                assert len(await response.content.readexactly(after)) == after
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await response.content.readany()
                assert server.connections == 1
            await server.until(lambda: server.connections == 0)


async def test_truncated_body_can_look_complete() -> None:
    async with KubernetesServer([pod("a", size=20_000)]) as server:
        whole = (await fetch(server)).body
        server.inject(End(after=1000))
        assert await read_body(server) == (whole[:1000], None)
        server.inject(End())
        assert await read_body(server) == (b"", None)
        server.inject(End(after=len(whole) + 1))
        assert await read_body(server) == (whole, None)


async def test_body_can_trickle() -> None:
    async with KubernetesServer([pod("a")]) as server:
        whole = (await fetch(server)).body
        server.inject(Trickle(size=len(whole) // 3, seconds=0.01))
        started = time.monotonic()
        assert (await fetch(server)).body == whole
        assert time.monotonic() - started >= 0.03


async def test_body_can_be_endless() -> None:
    async with KubernetesServer() as server:
        server.inject(Endless(head=b"[", chunk=b"1," * 1000))
        async with open_session(server) as session, session.get(PODS) as response:
            got = await response.content.readexactly(1_000_001)
        assert got.startswith(b"[1,1,1")
        await server.until(lambda: server.connections == 0)


async def test_pages_can_be_endless() -> None:
    async with KubernetesServer() as server:
        server.inject(EndlessPages(), times=None)
        names: list[str] = []
        token = ""
        for _ in range(3):
            got = await fetch(
                server, labelSelector="app=x", limit="2", query={"continue": token} if token else None
            )
            names += got.names
            token = got.json["metadata"]["continue"]
            assert got.json["items"][0]["metadata"]["labels"] == {"app": "x"}
        assert names == [f"endless-{n:09}" for n in range(6)]
        table = await fetch(server, headers={"Accept": TABLE}, includeObject="None")
        assert len(table.json["rows"]) == 500
        assert (await fetch(server, query={"continue": "x"})).status == 400


async def test_faults_passed_together_apply_to_the_same_request() -> None:
    async with KubernetesServer() as server:
        server.inject(Delay(0.05), Answer(200, b"x" * 100), Cut(after=10))
        started = time.monotonic()
        body, error = await read_body(server)
        assert (body, type(error)) == (b"x" * 10, aiohttp.ClientPayloadError)
        assert time.monotonic() - started >= 0.05


async def test_faults_are_used_up_in_order() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(500), times=2)
        server.inject(Answer(503), match=lambda request: request.query.get("limit") == "1")
        server.inject(Answer(429))
        statuses = [(await fetch(server)).status for _ in range(4)]
        assert statuses == [500, 500, 429, 200]
        assert list(server.faults) == [(Answer(503),)]
        assert (await fetch(server, limit="1")).status == 503
        assert not server.faults


async def test_unlimited_faults_last_until_they_are_cleared() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(500), times=None)
        assert [(await fetch(server)).status for _ in range(3)] == [500] * 3
        server.clear_faults()
        assert (await fetch(server)).status == 200


def test_only_matching_requests_use_up_a_fault() -> None:
    script: FaultScript[int] = FaultScript()
    script.inject((Hang(),), lambda number: number > 3, 1)
    assert [script.take(number) for number in (1, 5, 6)] == [(), (Hang(),), ()]


def test_faults_that_can_never_happen_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="needs a fault"):
        KubernetesServer().inject()
    with pytest.raises(ConfigurationError, match="0 is less than one"):
        KubernetesServer().inject(Hang(), times=0)
    with pytest.raises(ConfigurationError, match="0 is less than one"):
        Trickle(size=0, seconds=1.0)


def test_faults_are_values() -> None:
    assert Answer(429, headers={"Retry-After": "1"}) == Answer(429, headers={"Retry-After": "1"})
    assert Delay(1.0) != Delay(2.0)
    assert len(repr(Endless())) < 200
