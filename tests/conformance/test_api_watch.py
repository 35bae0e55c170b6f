"""Watch events of an API server."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from .client import Client, pods_path
from .servers import ApiServer
from .states import manifest, pod, running

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

# The events of `change_pod` for the selector app=trainer. A pod that leaves the selector is shown in its
# previous state.
LIFE = ["ADDED", "MODIFIED", "DELETED", "ADDED", "MODIFIED", "DELETED"]

Event = dict[str, Any]


async def change_pod(admin: Client, namespace: str) -> None:
    """Create a pod, run it, move it out of the selector app=trainer and back, and delete it."""
    one = {"name": "one", "namespace": namespace}
    await admin.create_pod(manifest("one", namespace, labels={"app": "trainer"}), running("10.8.0.1"))
    await admin.relabel_pod(one, {"app": "other"})
    await admin.relabel_pod(one, {"app": "trainer"})
    await admin.delete_pod(one, grace=0)


async def read_events(stream: AsyncIterator[Event], count: int) -> list[Event]:
    """Return the next `count` events."""
    with anyio.fail_after(10.0):
        return [await anext(stream) for _ in range(count)]


async def test_watch_sends_each_change_relative_to_the_selector(server: ApiServer) -> None:
    async with server.client() as admin:
        version = (await admin.list_pods(server.namespace)).version
        async with admin.watch(
            pods_path(server.namespace),
            labelSelector="app=trainer",
            resourceVersion=version,
            timeoutSeconds="10",
        ) as stream:
            await change_pod(admin, server.namespace)
            seen = await read_events(stream, len(LIFE))
    pods = [event["object"] for event in seen]
    assert [event["type"] for event in seen] == LIFE
    assert {(each["kind"], each["apiVersion"]) for each in pods} == {("Pod", "v1")}
    assert {each["metadata"]["name"] for each in pods} == {"one"}
    assert len({each["metadata"]["uid"] for each in pods}) == 1
    assert [each["status"]["phase"] for each in pods] == ["Pending", *["Running"] * 5]
    assert {each["metadata"]["labels"]["app"] for each in pods} == {"trainer"}
    grace_periods = [each["metadata"].get("deletionGracePeriodSeconds") for each in pods]
    assert grace_periods == [None, None, None, None, 0, 0]
    versions = [int(each["metadata"]["resourceVersion"]) for each in pods]
    assert versions == sorted(set(versions))
    assert versions[0] > int(version)


async def test_bookmark_marks_the_end_of_the_initial_events(server: ApiServer) -> None:
    options = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "10",
    }
    if server.version < (1, 34):
        pytest.skip("before 1.34, sendInitialEvents was not always enabled")
    async with server.client() as admin:
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1"))
        async with admin.watch(pods_path(server.namespace), **options) as stream:
            added, end = await read_events(stream, 2)
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "one")
    assert end["type"] == "BOOKMARK"
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in (added, end)]
    assert versions == sorted(versions)
