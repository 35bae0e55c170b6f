"""Watches of the loopback API server, line by line."""

from __future__ import annotations

import json

from aioresolve.testing import KubernetesServer, pod

from .client import NOW, fetch, open_watch

NEW_ONLY = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
INITIAL = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


async def test_watch_sends_the_events_after_a_version() -> None:
    async with KubernetesServer([pod("a")]) as server:
        async with (
            open_watch(server, resourceVersion=str(server.resource_version)) as watch,
            open_watch(server, NEW_ONLY) as other,
        ):
            assert watch.response.headers["Content-Type"] == "application/json"
            assert watch.response.headers["Transfer-Encoding"] == "chunked"
            server.add(pod("b"))
            server.patch("a", patch={"metadata": {"labels": {"x": "1"}}})
            server.compact()  # expires versions of new watches only
            server.delete("b")
            for each in (watch, other):
                assert await each.events(4) == [
                    ("ADDED", "b", "3"),
                    ("MODIFIED", "a", "4"),
                    ("MODIFIED", "b", "6"),
                    ("DELETED", "b", "7"),
                ]
        await server.until(lambda: server.watches == 0)


async def test_bookmarks_are_sent_periodically() -> None:
    async with (
        KubernetesServer(bookmark_interval=0.02) as server,
        open_watch(server, NEW_ONLY, allowWatchBookmarks="true") as watch,
    ):
        assert await watch.events(2) == [("BOOKMARK", "", "1")] * 2


async def test_watch_from_a_future_version_waits_for_it() -> None:
    async with KubernetesServer([pod("a")], clock=lambda: NOW) as server:
        async with open_watch(server, resourceVersion="3", allowWatchBookmarks="true") as watch:
            server.bookmark()
            server.add(pod("b"))
            server.add(pod("c"))
            server.bookmark()
            assert await watch.events(2) == [("ADDED", "c", "4"), ("BOOKMARK", "", "4")]
        got = await fetch(server, query=INITIAL | {"watch": "true", "resourceVersion": "99"})
    assert (got.status, got.json["reason"]) == (504, "Timeout")


async def test_server_may_not_support_initial_events() -> None:
    async with KubernetesServer() as server:
        server.watch_list = False
        got = await fetch(server, query=INITIAL | {"watch": "true"})
    assert got.status == 422
    assert "sendInitialEvents is forbidden for watch unless the WatchList feature gate" in got.message


async def test_slow_client_gets_an_error_event_when_it_falls_behind() -> None:
    # More than the socket buffers hold, so that the server has to wait for the client.
    big = pod("big", annotations={"blob": "x" * 16_000_000})
    async with KubernetesServer(history=4) as server, open_watch(server, NEW_ONLY) as watch:
        server.add(big)
        start = await watch.response.content.readany()
        server.add(*(pod("small") for _ in range(8)))
        rest = await watch.response.content.read()
        assert [json.loads(line)["type"] for line in (start + rest).splitlines()] == ["ADDED", "ERROR"]
        await server.until(lambda: server.watches == 0)
