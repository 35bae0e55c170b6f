"""What an API server tells those who watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from .client import TABLE
from .states import NEWEST, OLDEST, manifest, pod, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .client import Client
    from .servers import ApiServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

# What becomes of the pod of `live_through_it`, as the selector app=trainer sees it: type of event, and status
# word in its row. A pod that leaves the selector is shown as it was before.
LIFE = [
    ("ADDED", "Pending"),
    ("MODIFIED", "Running"),
    ("DELETED", "Running"),
    ("ADDED", "Running"),
    ("MODIFIED", "Terminating"),
    ("DELETED", "Terminating"),
]

Event = dict[str, Any]


async def live_through_it(admin: Client, namespace: str) -> None:
    """A pod is created, runs, leaves the selector app=trainer, comes back and is removed."""
    one = {"name": "one", "namespace": namespace}
    await admin.create_pod(manifest("one", namespace, labels={"app": "trainer"}), running("10.8.0.1"))
    await admin.relabel_pod(one, {"app": "other"})
    await admin.relabel_pod(one, {"app": "trainer"})
    await admin.delete_pod(one, grace=0)


async def following(stream: AsyncIterator[Event], count: int) -> list[Event]:
    """The next `count` events."""
    with anyio.fail_after(10.0):
        return [await anext(stream) for _ in range(count)]


async def rest_of(stream: AsyncIterator[Event]) -> list[Event]:
    """The events until the server ends the watch."""
    with anyio.fail_after(20.0):
        return [event async for event in stream]


async def test_a_watch_tells_each_change_as_the_selector_sees_it(server: ApiServer) -> None:
    async with server.client() as admin:
        version = (await admin.list_pods(server.namespace)).version
        async with admin.watch_pods(
            server.namespace, labelSelector="app=trainer", resourceVersion=version, timeoutSeconds="10"
        ) as stream:
            await live_through_it(admin, server.namespace)
            seen = await following(stream, len(LIFE))
    pods = [event["object"] for event in seen]
    assert [event["type"] for event in seen] == [kind for kind, _ in LIFE]
    assert {(each["kind"], each["apiVersion"]) for each in pods} == {("Pod", "v1")}
    assert {each["metadata"]["name"] for each in pods} == {"one"}
    assert len({each["metadata"]["uid"] for each in pods}) == 1
    assert [each["status"]["phase"] for each in pods] == ["Pending", *["Running"] * 5]
    assert {each["metadata"]["labels"]["app"] for each in pods} == {"trainer"}
    leaving = [each["metadata"].get("deletionGracePeriodSeconds") for each in pods]
    assert leaving == [None, None, None, None, 0, 0]
    versions = [int(each["metadata"]["resourceVersion"]) for each in pods]
    assert versions == sorted(set(versions))
    assert versions[0] > int(version)


@pytest.mark.parametrize("include", ["None", "Metadata"])
async def test_a_watch_as_a_table_defines_its_columns_once(server: ApiServer, include: str) -> None:
    async with server.client() as admin:
        version = (await admin.list_pods(server.namespace)).version
        async with admin.watch_pods(
            server.namespace,
            accept=TABLE,
            includeObject=include,
            labelSelector="app=trainer",
            resourceVersion=version,
            timeoutSeconds="10",
        ) as stream:
            await live_through_it(admin, server.namespace)
            seen = await following(stream, len(LIFE))
    tables = [event["object"] for event in seen]
    columns = [column["name"] for column in tables[0]["columnDefinitions"]]
    assert [each["columnDefinitions"] for each in tables[1:]] == [None] * (len(LIFE) - 1)
    rows = [row for each in tables for row in each["rows"]]
    cells = [dict(zip(columns, row["cells"], strict=True)) for row in rows]
    assert [(event["type"], row["Status"]) for event, row in zip(seen, cells, strict=True)] == LIFE
    assert [row["Name"] for row in cells] == ["one"] * len(LIFE)
    assert [row["IP"] for row in cells] == ["<none>", *["10.8.0.1"] * 5]
    versions = [int(each["metadata"]["resourceVersion"]) for each in tables]
    assert versions == sorted(set(versions))
    if include == "None":
        assert {row["object"] for row in rows} == {None}
    else:
        assert {row["object"]["kind"] for row in rows} == {"PartialObjectMetadata"}
        assert [int(row["object"]["metadata"]["resourceVersion"]) for row in rows] == versions


async def test_a_watch_without_a_version_begins_with_what_is_there(server: ApiServer) -> None:
    async with server.client() as admin:
        for name in ("b", "a"):
            await admin.create_pod(*pod(name, server.namespace, "10.8.0.1"))
        async with admin.watch_pods(server.namespace, timeoutSeconds="10") as stream:
            there = await following(stream, 2)
            await admin.create_pod(manifest("c", server.namespace))
            (new,) = await following(stream, 1)
    assert sorted((event["type"], event["object"]["metadata"]["name"]) for event in there) == [
        ("ADDED", "a"),
        ("ADDED", "b"),
    ]
    assert {event["object"]["status"]["phase"] for event in there} == {"Running"}
    assert (new["type"], new["object"]["metadata"]["name"]) == ("ADDED", "c")


async def test_a_watch_of_all_namespaces_tells_the_namespace(server: ApiServer) -> None:
    labels = {"test": server.namespace}
    async with server.client() as admin:
        version = (await admin.list_pods(None)).version
        async with admin.watch_pods(
            None, labelSelector=f"test={server.namespace}", resourceVersion=version, timeoutSeconds="10"
        ) as stream:
            await admin.create_pod(manifest("one", server.namespace, labels=labels))
            (event,) = await following(stream, 1)
    assert event["object"]["metadata"]["namespace"] == server.namespace


async def test_a_watch_ends_cleanly_when_its_time_is_over(server: ApiServer) -> None:
    async with server.client() as admin:
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1"))
        started = anyio.current_time()
        async with admin.watch_pods(server.namespace, timeoutSeconds="1") as stream:
            seen = await rest_of(stream)
    assert [event["type"] for event in seen] == ["ADDED"]
    assert 0.9 < anyio.current_time() - started < 5.0


async def test_a_bookmark_tells_how_far_the_watch_has_come(server: ApiServer) -> None:
    seen: dict[str, list[Event]] = {}

    async def watch(accept: str, version: str) -> None:
        async with admin.watch_pods(
            server.namespace,
            accept=accept,
            includeObject="None",
            labelSelector="app=trainer",
            allowWatchBookmarks="true",
            resourceVersion=version,
            # A server sends one about two seconds before the end, if anything happened by then.
            timeoutSeconds="3",
        ) as stream:
            watching.release()
            seen[accept] = await rest_of(stream)

    watching = anyio.Semaphore(0)
    newest = 0
    async with server.client() as admin:
        version = (await admin.list_pods(server.namespace)).version
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, "application/json", version)
            tasks.start_soon(watch, TABLE, version)
            await watching.acquire()
            await watching.acquire()
            created = await admin.create_pod(manifest("one", server.namespace))
            newest = int(created.version)
    for accept, events in seen.items():
        # No pod of the selector has changed: without bookmarks this watch would know nothing newer.
        assert {event["type"] for event in events} == {"BOOKMARK"}, accept
        assert all(int(event["object"]["metadata"]["resourceVersion"]) >= newest for event in events)
    bookmark, table = seen["application/json"][-1]["object"], seen[TABLE][-1]["object"]
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("Pod", "v1")
    assert "name" not in bookmark["metadata"]
    assert table["kind"] == "Table"
    (row,) = table["rows"]
    assert (row["object"], row["cells"][0], row["cells"][5]) == (None, "", "<none>")


async def test_a_watch_from_an_expired_version_is_told_so_in_an_event(server: ApiServer) -> None:
    async with server.client() as admin:
        version = (await admin.list_pods(server.namespace)).version
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1"))
        await server.compact()
    await server.stop()
    await server.start()
    async with server.client() as admin:
        async with admin.watch_pods(server.namespace, resourceVersion=version, timeoutSeconds="10") as stream:
            (event,) = await rest_of(stream)
        async with admin.watch_pods(
            server.namespace, accept=TABLE, resourceVersion=version, timeoutSeconds="10"
        ) as stream:
            (as_table,) = await rest_of(stream)
    status = event["object"]
    assert event["type"] == "ERROR"
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith(f"too old resource version: {version} (")
    # The error stays a Status where everything else is a Table.
    assert as_table == event


async def test_a_watch_that_is_to_send_initial_events_marks_their_end(server: ApiServer) -> None:
    wanted = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "10",
    }
    if OLDEST < server.version < NEWEST:
        pytest.skip("sendInitialEvents came and went as a beta before 1.36")
    async with server.client() as admin:
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1"))
        if server.version <= OLDEST:
            refused = await admin.list_pods(server.namespace, watch="1", **wanted)
            assert (refused.status, refused.body["reason"]) == (422, "Invalid")
            assert "resourceVersionMatch is forbidden for watch" in refused.message
            return
        async with admin.watch_pods(server.namespace, **wanted) as stream:
            added, end = await following(stream, 2)
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "one")
    assert end["type"] == "BOOKMARK"
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in (added, end)]
    assert versions == sorted(versions)
