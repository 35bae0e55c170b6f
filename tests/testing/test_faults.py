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

from .client import TABLE, ask, opened

PODS = "/api/v1/pods"


async def received(
    server: KubernetesServer, path: str = PODS, timeout: float = 5.0
) -> tuple[bytes, Exception | None]:
    """What came of a body, and what ended it too early."""
    body = bytearray()
    error = None
    async with opened(server) as session:
        try:
            limit = aiohttp.ClientTimeout(total=timeout)
            async with session.get(path, timeout=limit, headers={"Accept-Encoding": "identity"}) as response:
                async for piece in response.content.iter_any():
                    body += piece
        except (aiohttp.ClientError, TimeoutError) as raised:
            error = raised
    return bytes(body), error


async def test_a_status_is_answered_with_the_body_that_belongs_to_it() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.inject(Answer(429, headers={"Retry-After": "7"}))
        got = await ask(server)
        assert (got.status, got.json["reason"], got.headers["Retry-After"]) == (429, "TooManyRequests", "7")
        assert (await ask(server)).names == ["a"]


async def test_any_body_can_be_answered() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(200, b"<html>", headers={"content-type": "text/html"}))
        got = await ask(server)
        assert (got.body, got.headers["Content-Type"]) == (b"<html>", "text/html")
        server.inject(Answer(200, b"[1, 2]"))
        assert (await ask(server)).json == [1, 2]
        server.inject(Answer(204))
        assert (await ask(server)).body == b""
        server.inject(Answer(599))
        assert (await ask(server)).message == "the server responded with the status code 599"


async def test_a_client_can_be_sent_elsewhere() -> None:
    async with KubernetesServer() as server:
        server.inject(Redirect("http://127.0.0.1:1/x"))
        got = await ask(server)
        assert (got.status, got.headers["Location"]) == (307, "http://127.0.0.1:1/x")


async def test_an_answer_can_be_delayed() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.inject(Delay(0.05))
        started = time.monotonic()
        assert (await ask(server)).names == ["a"]
        assert time.monotonic() - started >= 0.05


async def test_what_is_told_after_a_delay_is_what_there_is_then() -> None:
    async with KubernetesServer([pod("a")]) as server, anyio.create_task_group() as group:
        server.inject(Delay(0.05))

        async def change() -> None:
            await server.until(lambda: len(server.requests) == 1)
            server.add(pod("b"))

        group.start_soon(change)
        assert (await ask(server)).names == ["a", "b"]


async def test_a_request_can_stay_without_an_answer() -> None:
    async with KubernetesServer() as server:
        server.inject(Hang())
        body, error = await received(server, timeout=0.05)
        assert (body, type(error)) == (b"", TimeoutError)
        await server.until(lambda: server.connections == 0)


async def test_a_connection_can_be_reset_before_any_answer() -> None:
    async with KubernetesServer() as server:
        server.inject(Reset(), times=None)
        _, error = await received(server)
        assert isinstance(error, aiohttp.ClientOSError)
        assert error.errno == errno.ECONNRESET


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_a_connection_can_be_reset_within_a_body(tls: bool) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server:
        server.inject(Reset(after=1000))
        body, error = await received(server)
        assert len(body) <= 1000
        assert isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientOSError)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_a_body_can_be_cut_short(tls: bool) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server:
        whole = (await ask(server)).body
        server.inject(Cut(after=1000))
        body, error = await received(server)
        assert body == whole[:1000]
        assert isinstance(error, aiohttp.ClientPayloadError)
        server.inject(Cut(after=0))
        body, error = await received(server)
        assert (body, type(error)) == (b"", aiohttp.ClientPayloadError)


async def test_a_watch_can_be_cut_as_well() -> None:
    async with KubernetesServer([pod("a", size=20_000)]) as server:
        server.inject(Cut(after=1000), match=lambda request: request.verb == "watch")
        body, error = await received(server, f"{PODS}?watch=true")
        assert len(body) == 1000
        assert isinstance(error, aiohttp.ClientPayloadError)
        await server.until(lambda: server.watches == 0)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("after", [0, 1000])
async def test_an_answer_can_fall_silent_while_its_connection_stays(tls: bool, after: int) -> None:
    async with KubernetesServer([pod("a", size=20_000)], tls=tls) as server, opened(server) as session:
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


async def test_a_body_can_end_too_early_and_look_whole() -> None:
    async with KubernetesServer([pod("a", size=20_000)]) as server:
        whole = (await ask(server)).body
        server.inject(End(after=1000))
        assert await received(server) == (whole[:1000], None)
        server.inject(End())
        assert await received(server) == (b"", None)
        server.inject(End(after=len(whole) + 1))
        assert await received(server) == (whole, None)


async def test_a_body_can_trickle() -> None:
    async with KubernetesServer([pod("a")]) as server:
        whole = (await ask(server)).body
        server.inject(Trickle(size=len(whole) // 3, seconds=0.01))
        started = time.monotonic()
        assert (await ask(server)).body == whole
        assert time.monotonic() - started >= 0.03


async def test_a_body_can_be_endless() -> None:
    async with KubernetesServer() as server:
        server.inject(Endless(head=b"[", chunk=b"1," * 1000))
        async with opened(server) as session, session.get(PODS) as response:
            got = await response.content.readexactly(1_000_001)
        assert got.startswith(b"[1,1,1")
        await server.until(lambda: server.connections == 0)


async def test_pages_can_be_endless() -> None:
    async with KubernetesServer() as server:
        server.inject(EndlessPages(), times=None)
        names: list[str] = []
        token = ""
        for _ in range(3):
            got = await ask(
                server, labelSelector="app=x", limit="2", query={"continue": token} if token else None
            )
            names += got.names
            token = got.json["metadata"]["continue"]
            assert got.json["items"][0]["metadata"]["labels"] == {"app": "x"}
        assert names == [f"endless-{n:09}" for n in range(6)]
        table = await ask(server, headers={"Accept": TABLE}, includeObject="None")
        assert len(table.json["rows"]) == 500
        assert (await ask(server, query={"continue": "x"})).status == 400


async def test_faults_given_together_befall_one_request_together() -> None:
    async with KubernetesServer() as server:
        server.inject(Delay(0.05), Answer(200, b"x" * 100), Cut(after=10))
        started = time.monotonic()
        body, error = await received(server)
        assert (body, type(error)) == (b"x" * 10, aiohttp.ClientPayloadError)
        assert time.monotonic() - started >= 0.05


async def test_faults_are_used_up_in_order() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(500), times=2)
        server.inject(Answer(503), match=lambda request: request.query.get("limit") == "1")
        server.inject(Answer(429))
        statuses = [(await ask(server)).status for _ in range(4)]
        assert statuses == [500, 500, 429, 200]
        assert list(server.faults) == [(Answer(503),)]
        assert (await ask(server, limit="1")).status == 503
        assert not server.faults


async def test_faults_without_end_last_until_they_are_cleared() -> None:
    async with KubernetesServer() as server:
        server.inject(Answer(500), times=None)
        assert [(await ask(server)).status for _ in range(3)] == [500] * 3
        server.clear_faults()
        assert (await ask(server)).status == 200


def test_only_a_request_that_matches_uses_a_fault_up() -> None:
    script: FaultScript[int] = FaultScript()
    script.inject((Hang(),), lambda number: number > 3, 1)
    assert [script.take(number) for number in (1, 5, 6)] == [(), (Hang(),), ()]


def test_a_fault_that_cannot_happen_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="needs a fault"):
        KubernetesServer().inject()
    with pytest.raises(ConfigurationError, match="at least once"):
        KubernetesServer().inject(Hang(), times=0)
    with pytest.raises(ConfigurationError, match="at least one"):
        Trickle(size=0, seconds=1.0)


def test_a_fault_is_a_value() -> None:
    assert Answer(429, headers={"Retry-After": "1"}) == Answer(429, headers={"Retry-After": "1"})
    assert Delay(1.0) != Delay(2.0)
    assert len(repr(Endless())) < 200
