"""Faults of connected watches, as clients see them."""

from __future__ import annotations

import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

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
    WatchError,
    pod,
)

from .client import Watch, bearer, fetch, open_session, open_watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioresolve.testing import Fault

BROKEN = (aiohttp.ClientPayloadError, aiohttp.ClientOSError)

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture(params=[False, True], ids=["http", "https"])
def tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@asynccontextmanager
async def watched_server(
    *, tls: bool = False, history: int = 4096
) -> AsyncIterator[tuple[KubernetesServer, Watch]]:
    """Start a server without pods, and a watch of it."""
    async with (
        KubernetesServer(tls=tls, history=history) as server,
        open_watch(server, resourceVersion="1") as watch,
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
    """Return whether nothing arrives for 50 ms."""
    with anyio.move_on_after(0.05):
        await watch.line()
        return False
    return True


@pytest.mark.parametrize("fault", [Cut(after=0), Reset(), Reset(after=0)], ids=repr)
async def test_connected_watch_can_be_broken_immediately(tls: bool, fault: Fault) -> None:
    async with watched_server(tls=tls) as (server, watch):
        assert server.disturb(fault) == 1
        assert await read_rest(watch) == (b"", False)


@pytest.mark.parametrize("fault", [Cut(after=20), Reset(after=20)], ids=repr)
async def test_connected_watch_can_be_broken_within_a_line(tls: bool, fault: Fault) -> None:
    async with watched_server(tls=tls) as (server, watch):
        server.disturb(fault)
        server.add(pod("a"))
        assert await read_rest(watch) == (b'{"type":"ADDED","obj', False)


async def test_bookmark_can_be_cut() -> None:
    async with (
        KubernetesServer() as server,
        open_watch(server, resourceVersion="1", allowWatchBookmarks="true") as watch,
    ):
        server.disturb(Cut(after=20))
        server.bookmark()
        assert await read_rest(watch) == (b'{"type":"BOOKMARK","', False)


async def test_connected_watch_can_end_normally(tls: bool) -> None:
    async with watched_server(tls=tls) as (server, watch):
        server.disturb(End())
        assert await read_rest(watch) == (b"", True)


async def test_watch_can_end_normally_within_a_line() -> None:
    async with watched_server() as (server, watch):
        server.disturb(End(after=20))
        server.add(pod("a"))
        assert await read_rest(watch) == (b'{"type":"ADDED","obj', True)


async def test_connected_watch_can_stall_without_disconnecting(tls: bool) -> None:
    async with watched_server(tls=tls) as (server, watch):
        server.add(pod("before"))
        server.disturb(Stall())
        server.add(pod("after"))
        assert await watch.events(1) == [("ADDED", "before", "2")]
        assert await is_silent(watch)
        assert (server.watches, server.connections) == (1, 1)
        await server.restart()
        assert await read_rest(watch) == (b"", False)


async def test_connected_watch_can_stall_within_a_line() -> None:
    async with watched_server() as (server, watch):
        server.disturb(Stall(after=20))
        server.add(pod("a"))
        assert await watch.response.content.readexactly(20) == b'{"type":"ADDED","obj'
        assert await is_silent(watch)


async def test_delayed_watch_catches_up() -> None:
    async with watched_server() as (server, watch):
        server.disturb(Delay(0.05))
        started = time.monotonic()
        server.add(pod("a"))
        server.compact()
        server.add(pod("b"))
        assert await watch.events(2) == [("ADDED", "a", "2"), ("ADDED", "b", "4")]
        assert time.monotonic() - started >= 0.05


async def test_watch_delayed_beyond_the_history_gets_410() -> None:
    async with watched_server(history=4) as (server, watch):
        server.disturb(Delay(0.05))
        server.add(*(pod(f"a-{number}") for number in range(8)))
        kind, status = await watch.event()
        assert (kind, status["code"]) == ("ERROR", 410)
        assert await read_rest(watch) == (b"", True)


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        (WatchError(410), 410, "Expired"),
        (WatchError(410, "Gone"), 410, "Gone"),
        (WatchError(429, retry_after=3), 429, "TooManyRequests"),
        (WatchError(500), 500, "InternalError"),
    ],
)
async def test_connected_watch_can_end_with_an_error_event(fault: WatchError, code: int, reason: str) -> None:
    async with watched_server() as (server, watch):
        server.disturb(fault)
        kind, status = await watch.event()
        assert (kind, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", code, reason)
        assert status.get("details", {}).get("retryAfterSeconds") == fault.retry_after
        assert await read_rest(watch) == (b"", True)


async def test_error_event_410_has_the_message_of_a_real_server() -> None:
    async with watched_server() as (server, watch):
        server.disturb(WatchError(410))
        _, status = await watch.event()
    assert status["message"] == "The resourceVersion for the provided watch is too old."


async def test_new_watch_can_get_an_error_event_or_status() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.inject(WatchError(410), match=lambda request: request.verb == "watch")
        got = await fetch(server, watch="true", resourceVersion="2")
        assert (got.status, got.json["type"], got.json["object"]["code"]) == (200, "ERROR", 410)
        server.inject(Answer(429, headers={"Retry-After": "0"}))
        got = await fetch(server, watch="true", resourceVersion="2")
        assert (got.status, got.headers["Retry-After"]) == (429, "0")


@pytest.mark.parametrize("fault", [Cut(after=0), Reset(), End(), WatchError(410)], ids=repr)
async def test_events_before_a_watch_fault_are_sent_and_later_ones_are_not(fault: Fault) -> None:
    async with watched_server() as (server, watch):
        server.add(pod("a"), pod("b"))
        server.disturb(fault)
        server.add(pod("c"))
        rest, _ = await read_rest(watch)
    events = [json.loads(line) for line in rest.splitlines()]
    assert [each["object"]["metadata"]["name"] for each in events if each["type"] == "ADDED"] == ["a", "b"]


async def test_watch_faults_apply_in_order() -> None:
    async with watched_server() as (server, watch):
        server.disturb(Delay(0.02))
        server.disturb(End())
        started = time.monotonic()
        assert await read_rest(watch) == (b"", True)
        assert time.monotonic() - started >= 0.02


async def test_watch_faults_apply_only_to_matching_watches() -> None:
    async with KubernetesServer() as server, AsyncExitStack() as stack:
        watches = [
            await stack.enter_async_context(
                open_watch(server, labelSelector=f"app={app}", resourceVersion="1")
            )
            for app in "abb"
        ]
        count = server.disturb(End(), match=lambda request: request.query["labelSelector"] == "app=b")
        assert count == 2
        for watch in watches[1:]:
            assert await read_rest(watch) == (b"", True)
        server.add(pod("a", labels={"app": "a"}))
        assert await watches[0].events(1) == [("ADDED", "a", "2")]


async def test_watch_fault_without_watches_has_no_effect() -> None:
    async with KubernetesServer([pod("a")]) as server:
        assert server.disturb(Reset()) == 0
        assert (await fetch(server)).names == ["a"]
        async with open_watch(server, resourceVersion="2") as watch:
            server.add(pod("b"))
            assert await watch.events(1) == [("ADDED", "b", "3")]


@pytest.mark.parametrize(
    "fault",
    [Answer(503), Hang(), Redirect("/"), Endless(), EndlessPages(), Trickle(1, 1.0)],
    ids=lambda fault: type(fault).__name__,
)
def test_faults_before_a_response_do_not_apply_to_watches(fault: Fault) -> None:
    with pytest.raises(ConfigurationError, match=r"inject\(\) it"):
        KubernetesServer().disturb(fault)


async def test_new_tokens_do_not_end_watches() -> None:
    async with (
        KubernetesServer(tokens={"old": "alice"}) as server,
        open_session(server, **bearer("old")) as session,
        session.get("/api/v1/pods?watch=true&resourceVersion=1") as response,
    ):
        server.tokens = {"new": "alice"}
        server.add(pod("a"))
        assert await Watch(response).events(1) == [("ADDED", "a", "2")]
        assert (await fetch(server, headers=bearer("old"))).status == 401
        assert (await fetch(server, headers=bearer("new"))).status == 200


def test_watch_faults_can_be_applied_from_any_thread() -> None:
    import urllib.request

    with KubernetesServer().in_thread() as server:
        url = f"{server.url}/api/v1/pods?watch=1&resourceVersion=1"
        with urllib.request.urlopen(url, timeout=5) as watch:
            server.until(lambda: server.watches == 1)
            server.add(pod("a"))
            server.disturb(End())
            assert len(watch.read().splitlines()) == 1
        server.until(lambda: server.connections == 0)
