"""Watches of the loopback API server, line by line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from aioresolve.testing import KubernetesServer, pod

from .client import TABLE, fetch, open_session, open_watch

NOW = datetime(2026, 11, 20, 15, 40, 41, tzinfo=UTC)
END = "k8s.io/initial-events-end"
NEW_ONLY = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
BOOKMARK_CELLS = ["", "0/0", "", "0", "<unknown>", "<none>", "<none>", "<none>", "<none>"]


async def test_watch_sends_the_events_after_a_version() -> None:
    async with KubernetesServer([pod("a")]) as server:
        async with open_watch(server, resourceVersion=str(server.resource_version)) as watch:
            assert watch.response.headers["Content-Type"] == "application/json"
            assert watch.response.headers["Transfer-Encoding"] == "chunked"
            server.add(pod("b"))
            server.patch("a", patch={"metadata": {"labels": {"x": "1"}}})
            server.delete("b")
            assert await watch.events(4) == [
                ("ADDED", "b", "3"),
                ("MODIFIED", "a", "4"),
                ("MODIFIED", "b", "5"),
                ("DELETED", "b", "6"),
            ]
        await server.until(lambda: server.watches == 0)


async def test_event_contains_the_pod_as_get_returns_it() -> None:
    async with KubernetesServer([pod("a")]) as server, open_watch(server) as watch:
        one = (await fetch(server, "/api/v1/namespaces/default/pods/a")).body
        assert await watch.line() == b'{"type":"ADDED","object":%s}\n' % one.rstrip()


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
async def test_watch_without_a_version_starts_with_existing_pods(query: dict[str, str]) -> None:
    async with KubernetesServer([pod("b"), pod("a")]) as server, open_watch(server, query) as watch:
        assert await watch.events(2) == [("ADDED", "a", "3"), ("ADDED", "b", "2")]
        server.delete("a")
        assert [kind for kind, *_ in await watch.events(2)] == ["MODIFIED", "DELETED"]


async def test_bookmark_marks_the_end_of_the_initial_events() -> None:
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with KubernetesServer([pod("a")]) as server:
        server.compact()
        async with open_watch(server, query) as watch:
            assert await watch.events(1) == [("ADDED", "a", "2")]
            assert await watch.line() == (
                b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"3",'
                b'"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}}\n'
            )


async def test_initial_events_can_be_disabled() -> None:
    async with KubernetesServer([pod("a")]) as server, open_watch(server, NEW_ONLY) as watch:
        server.add(pod("b"))
        assert await watch.events(1) == [("ADDED", "b", "3")]


async def test_watch_sends_only_selected_pods() -> None:
    async with KubernetesServer([pod("a", labels={"app": "x"})]) as server:
        version = str(server.resource_version)
        async with open_watch(server, labelSelector="app=x", resourceVersion=version) as watch:
            server.add(pod("other"))
            server.patch("a", patch={"metadata": {"labels": {"app": "y"}}})
            server.patch("a", patch={"metadata": {"labels": {"app": "z"}}})
            server.patch("a", patch={"metadata": {"labels": {"app": "x"}}})
            kind, left = await watch.event()
            assert (kind, left["metadata"]["resourceVersion"], left["metadata"]["labels"]) == (
                "DELETED",
                "4",
                {"app": "x"},
            )
            assert await watch.events(1) == [("ADDED", "a", "6")]


async def test_watch_applies_field_selectors() -> None:
    async with (
        KubernetesServer([pod("a"), pod("b", "ml", phase="Pending")]) as server,
        open_watch(server, fieldSelector="status.phase=Running") as watch,
    ):
        assert await watch.events(1) == [("ADDED", "a", "2")]
        server.patch("b", "ml", patch={"status": {"phase": "Running"}})
        assert await watch.events(1) == [("ADDED", "b", "4")]


async def test_watch_sends_column_definitions_once() -> None:
    async with (
        KubernetesServer([pod("a", ip="10.8.2.1"), pod("b")], clock=lambda: NOW) as server,
        open_watch(server, accept=TABLE, includeObject="None") as watch,
    ):
        _, first = await watch.event()
        assert [column["name"] for column in first["columnDefinitions"]][:2] == ["Name", "Ready"]
        assert first["rows"][0]["cells"][:3] == ["a", "1/1", "Running"]
        _, second = await watch.event()
        assert second["columnDefinitions"] is None
        server.delete("a")
        assert await watch.line() == (
            b'{"type":"MODIFIED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":'
            b'{"resourceVersion":"4"},"columnDefinitions":null,"rows":[{"cells":["a","1/1","Terminating","0",'
            b'"0s","10.8.2.1","node-a","\\u003cnone\\u003e","\\u003cnone\\u003e"],"object":null}]}}\n'
        )
        kind, gone = await watch.event()
        assert (kind, gone["metadata"]["resourceVersion"]) == ("DELETED", "5")


@pytest.mark.parametrize(
    ("include", "carried"),
    [
        ("None", None),
        ("Metadata", {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}),
        ("Object", {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": None}, "status": {}}),
    ],
)
async def test_bookmark_in_a_table_is_an_empty_row(include: str, carried: dict[str, Any] | None) -> None:
    query = {"allowWatchBookmarks": "true", "includeObject": include}
    async with KubernetesServer([pod("a")]) as server, open_watch(server, query, accept=TABLE) as watch:
        await watch.event()
        kind, first = await watch.event()
        (row,) = first["rows"]
        assert (kind, row["cells"]) == ("BOOKMARK", BOOKMARK_CELLS)
        assert row["object"]["metadata"] == {"resourceVersion": "2", "annotations": {END: "true"}}
        server.bookmark()
        kind, later = await watch.event()
        shown = None if carried is None else {**carried, "metadata": {"resourceVersion": "2"}}
        assert (kind, later["rows"][0]["object"]) == ("BOOKMARK", shown)
        assert later["metadata"] == {"resourceVersion": "2"}


async def test_only_metadata_can_be_watched() -> None:
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with (
        KubernetesServer([pod("a")]) as server,
        open_watch(server, accept=accept, allowWatchBookmarks="1") as watch,
    ):
        kind, shown = await watch.event()
        assert (kind, shown["kind"], sorted(shown)) == (
            "ADDED",
            "PartialObjectMetadata",
            ["apiVersion", "kind", "metadata"],
        )
        assert (await watch.event())[1]["kind"] == "PartialObjectMetadata"


async def test_bookmarks_are_sent_periodically() -> None:
    async with (
        KubernetesServer(bookmark_interval=0.02) as server,
        open_watch(server, NEW_ONLY, allowWatchBookmarks="true") as watch,
    ):
        assert await watch.events(2) == [("BOOKMARK", "", "1")] * 2


async def test_bookmarks_can_be_requested_at_any_time() -> None:
    async with (
        KubernetesServer([pod("a")]) as server,
        open_watch(server, allowWatchBookmarks="true") as watch,
    ):
        server.bookmark()
        server.bookmark()
        assert await watch.events(4) == [
            ("ADDED", "a", "2"),
            ("BOOKMARK", "", "2"),
            ("BOOKMARK", "", "2"),
            ("BOOKMARK", "", "2"),
        ]
        server.add(pod("b"))
        server.bookmark()
        assert await watch.events(2) == [("ADDED", "b", "3"), ("BOOKMARK", "", "3")]


async def test_bookmarks_are_sent_only_to_watches_that_allow_them() -> None:
    async with KubernetesServer() as server, open_watch(server, NEW_ONLY) as watch:
        server.bookmark()
        server.add(pod("a"))
        assert await watch.events(1) == [("ADDED", "a", "2")]


async def test_bookmark_has_the_version_of_unselected_writes() -> None:
    async with (
        KubernetesServer() as server,
        open_watch(server, NEW_ONLY, labelSelector="app=x", allowWatchBookmarks="true") as watch,
    ):
        server.add(pod("unselected"))
        server.bookmark()
        assert await watch.events(1) == [("BOOKMARK", "", "2")]


async def test_watch_ends_at_its_timeout_with_a_last_bookmark() -> None:
    async with KubernetesServer() as server:
        async with open_watch(server, NEW_ONLY, timeoutSeconds="1", allowWatchBookmarks="true") as watch:
            assert await watch.events(1) == [("BOOKMARK", "", "1")]
            assert await watch.line() == b""
        await server.until(lambda: server.watches == 0)


async def test_watch_from_an_expired_version_gets_an_error_event() -> None:
    async with KubernetesServer([pod("a")]) as server:
        server.compact()
        got = await fetch(server, watch="true", resourceVersion="1")
    assert got.status == 200
    assert got.body == (
        b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":'
        b'"too old resource version: 1 (3)","reason":"Expired","code":410}}\n'
    )


async def test_watch_from_a_future_version_waits_for_it() -> None:
    async with (
        KubernetesServer([pod("a")]) as server,
        open_watch(server, resourceVersion="3", allowWatchBookmarks="true") as watch,
    ):
        server.bookmark()
        server.add(pod("b"))
        server.add(pod("c"))
        server.bookmark()
        assert await watch.events(2) == [("ADDED", "c", "4"), ("BOOKMARK", "", "4")]


async def test_initial_events_at_a_future_version_time_out() -> None:
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "99"}
    async with KubernetesServer() as server:
        got = await fetch(server, query={"watch": "true", **query})
    assert (got.status, got.json["reason"]) == (504, "Timeout")


async def test_watch_continues_after_a_compaction() -> None:
    async with KubernetesServer() as server, open_watch(server, NEW_ONLY) as watch:
        server.compact()
        server.add(pod("a"))
        assert await watch.events(1) == [("ADDED", "a", "3")]


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


async def test_all_watches_get_the_same_events() -> None:
    async with (
        KubernetesServer() as server,
        open_watch(server, NEW_ONLY) as one,
        open_watch(server, NEW_ONLY) as two,
    ):
        server.add(*(pod(f"a-{n}") for n in range(20)))
        assert await one.events(20) == await two.events(20)


async def test_watch_of_a_namespace_sends_no_other_pods() -> None:
    async with (
        KubernetesServer([pod("a", "ml"), pod("b", "web")]) as server,
        open_session(server) as session,
        session.get("/api/v1/namespaces/web/pods", params={"watch": "1"}) as response,
    ):
        assert json.loads(await response.content.readline())["object"]["metadata"]["name"] == "b"
