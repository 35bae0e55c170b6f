"""Pages, old versions and deletion on an API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .client import JSON, TABLE, failure
from .servers import CROWD, CROWD_LABELS
from .states import FINALIZER, GRACE, manifest, pod, running

if TYPE_CHECKING:
    from .servers import ApiServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

EXPIRED_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter, or use the continue token in this response to retrieve the "
    "remainder of the results. Continuing with the provided token results in an inconsistent list - objects "
    "that were created, modified, or deleted between the time the first chunk was returned and now may show "
    "up in the list."
)


# -- pages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [JSON, TABLE])
async def test_pages_of_two_thousand_pods_have_one_version(server: ApiServer, accept: str) -> None:
    namespace = await server.ensure_crowd()
    pages: list[dict[str, Any]] = []
    parameters: dict[str, str] = {}
    async with server.client() as admin:
        while not pages or pages[-1]["metadata"].get("continue"):
            response = await admin.list_pods(
                namespace, accept=accept, includeObject="None", limit="600", **parameters
            )
            assert response.status == 200, response
            pages.append(response.body)
            parameters = {"continue": response.body["metadata"].get("continue", "")}
        whole = await admin.list_pods(namespace, accept=accept, includeObject="None")
    entries = "items" if accept == JSON else "rows"
    assert [len(page[entries]) for page in pages] == [600, 600, 600, 200]
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    assert [page["metadata"].get("remainingItemCount") for page in pages] == [1400, 800, 200, None]
    names = [name_of(entry) for page in pages for entry in page[entries]]
    assert names == sorted(names)
    assert names == [name_of(entry) for entry in whole.body[entries]]
    assert len(set(names)) == CROWD
    # Each page of a list has the column definitions.
    assert accept == JSON or all(page["columnDefinitions"] for page in pages)


async def test_pages_of_a_selection_have_no_remaining_item_count(server: ApiServer) -> None:
    namespace = await server.ensure_crowd()
    selector = ",".join(f"{name}={value}" for name, value in CROWD_LABELS.items())
    async with server.client() as admin:
        first = await admin.list_pods(namespace, labelSelector=selector, limit="1999")
        token = first.body["metadata"]["continue"]
        last = await admin.list_pods(namespace, labelSelector=selector, limit="1999", **{"continue": token})
    assert (len(first.names), len(last.names)) == (1999, 1)
    assert "remainingItemCount" not in first.body["metadata"]
    assert "continue" not in last.body["metadata"]


async def test_pages_are_a_snapshot(server: ApiServer) -> None:
    async with server.client() as admin:
        for name in ("a", "b", "c"):
            await admin.create_pod(*pod(name, server.namespace, "10.8.0.1"))
        first = await admin.list_pods(server.namespace, limit="1")
        await admin.create_pod(*pod("d", server.namespace, "10.8.0.1"))
        await admin.relabel_pod({"name": "c", "namespace": server.namespace}, {"new": "yes"})
        await admin.delete_pod({"name": "b", "namespace": server.namespace}, grace=0)
        rest = await admin.list_pods(
            server.namespace, limit="9", **{"continue": first.body["metadata"]["continue"]}
        )
    assert (first.names, rest.names) == (["a"], ["b", "c"])
    assert rest.version == first.version
    assert "new" not in rest.body["items"][1]["metadata"].get("labels", {})


async def test_expired_continue_token_is_410_with_a_token_for_the_rest(server: ApiServer) -> None:
    async with server.client() as admin:
        for name in ("a", "b"):
            await admin.create_pod(*pod(name, server.namespace, "10.8.0.1"))
        first = await admin.list_pods(server.namespace, limit="1")
        await admin.create_pod(*pod("c", server.namespace, "10.8.0.1"))
        await server.compact()
        token = first.body["metadata"]["continue"]
        gone = await admin.list_pods(server.namespace, limit="1", **{"continue": token})
        fresh = gone.body["metadata"].pop("continue")
        rest = await admin.list_pods(server.namespace, **{"continue": fresh})
    assert (gone.status, gone.body) == (410, failure(410, "Expired", EXPIRED_CONTINUE))
    assert fresh != token
    assert rest.names == ["b", "c"]
    assert int(rest.version) > int(first.version)


async def test_invalid_continue_token_is_400(server: ApiServer) -> None:
    async with server.client() as admin:
        response = await admin.list_pods(server.namespace, limit="1", **{"continue": "abc"})
    assert (response.status, response.body["reason"]) == (400, "BadRequest")
    assert response.message.startswith("invalid continue token: continue key is not valid: ")


# -- versions ----------------------------------------------------------------------------------------------


async def test_exact_version_can_be_listed_until_it_expires(server: ApiServer) -> None:
    async with server.client() as admin:
        old = (await admin.list_pods(server.namespace)).version
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1"))
        exact = {"resourceVersion": old, "resourceVersionMatch": "Exact", "limit": "9"}
        past = await admin.list_pods(server.namespace, **exact)
        await server.compact()
        gone = await admin.list_pods(server.namespace, **exact)
    assert (past.names, past.version) == ([], old)
    message = "The resourceVersion for the provided list is too old."
    assert (gone.status, gone.body) == (410, failure(410, "Expired", message))


async def test_future_version_is_504_with_retry_after(server: ApiServer) -> None:
    async with server.client() as admin:
        response = await admin.list_pods(server.namespace, resourceVersion="999999999")
    assert (response.status, response.body["reason"]) == (504, "Timeout")
    assert response.message.startswith("Timeout: Too large resource version: 999999999, current: ")
    assert response.headers["Retry-After"] == "1"
    assert response.body["details"] == {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }


# -- deletion ----------------------------------------------------------------------------------------------


async def test_pod_in_its_grace_period_remains_with_a_deletion_timestamp(server: ApiServer) -> None:
    async with server.client() as admin:
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1"))
        deleted = await admin.delete_pod({"name": "one", "namespace": server.namespace}, grace=GRACE)
        response = await admin.list_pods(server.namespace)
    (item,) = response.body["items"]
    assert deleted.body["metadata"]["deletionTimestamp"] == item["metadata"]["deletionTimestamp"]
    assert item["metadata"]["deletionGracePeriodSeconds"] == GRACE
    assert item["status"]["phase"] == "Running"


async def test_finalizer_delays_deletion_until_it_is_removed(server: ApiServer) -> None:
    one = {"name": "one", "namespace": server.namespace}
    async with server.client() as admin:
        await admin.create_pod(manifest("one", server.namespace, finalizers=[FINALIZER]), running("10.8.0.1"))
        await admin.delete_pod(one, grace=0)
        held = await admin.list_pods(server.namespace)
        await admin.patch_pod(one, {"metadata": {"finalizers": None}})
        gone = await admin.list_pods(server.namespace)
    assert held.names == ["one"]
    assert held.body["items"][0]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert gone.names == []


def name_of(entry: dict[str, Any]) -> str:
    """Return the name of an item of a PodList or a row of a Table."""
    return str(entry["metadata"]["name"] if "metadata" in entry else entry["cells"][0])
