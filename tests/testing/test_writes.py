"""Pods of the loopback API server that clients, and the test itself, create, change and delete."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.testing import KubernetesServer, pod

from .client import NAMESPACE, NOW, fetch

MERGE = {"Content-Type": "application/merge-patch+json"}
POD = f"{NAMESPACE}/live-0"
SPEC = {"containers": [{"name": "main", "image": "t"}], "nodeName": "node-a"}
LIVE = {"metadata": {"name": "live-0"}, "spec": SPEC}


async def test_pod_can_be_created_changed_and_deleted() -> None:
    async with KubernetesServer() as server:
        created = await fetch(server, NAMESPACE, "POST", body={**LIVE, "status": {"phase": "Running"}})
        again = await fetch(server, NAMESPACE, "POST", body=LIVE)
        body: dict[str, Any] = {"status": {"phase": "Running"}, "spec": {"priority": 5}}
        status = await fetch(server, f"{POD}/status", "PATCH", body=body, headers=MERGE)
        body = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}}
        patched = await fetch(server, POD, "PATCH", body=body, headers=MERGE)
        same = await fetch(server, POD, "PATCH", body=body, headers=MERGE)
        stale = await fetch(server, POD, "PUT", body=created.json)
        put = await fetch(server, POD, "PUT", body=patched.json | LIVE)
        deleted = await fetch(server, POD, "DELETE", body={"gracePeriodSeconds": 0})
        gone = await fetch(server, POD)
    assert (created.status, created.json["status"]) == (201, {"phase": "Pending", "qosClass": "BestEffort"})
    assert created.json["metadata"]["managedFields"][0]["manager"] == "tests"
    assert created.json["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    assert created.json["spec"]["restartPolicy"] == "Always"
    assert (again.status, again.message) == (409, 'pods "live-0" already exists')
    assert (status.json["status"]["phase"], status.json["spec"]) == ("Running", created.json["spec"])
    assert (patched.json["metadata"]["labels"], patched.json["status"]["phase"]) == ({"a": "b"}, "Running")
    assert same.json == patched.json
    assert (stale.status, "the object has been modified" in stale.message) == (409, True)
    assert (put.json["metadata"].get("labels"), put.json["status"]) == (None, patched.json["status"])
    assert put.json["metadata"]["uid"] == created.json["metadata"]["uid"]
    assert put.json["metadata"]["generation"] == created.json["metadata"]["generation"] + 1
    assert (deleted.status, deleted.json["metadata"]["deletionGracePeriodSeconds"]) == (200, 0)
    assert gone.status == 404


async def test_a_name_can_be_generated() -> None:
    async with KubernetesServer() as server:
        body = {"metadata": {"generateName": "train-"}, "spec": SPEC}
        got = await fetch(server, NAMESPACE, "POST", body=body)
    assert re.fullmatch(r"train-[a-z0-9]{5}", got.json["metadata"]["name"])


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"metadata": {}}, 422, "metadata.name: Required value: name or generateName is required"),
        ({"metadata": {"name": "a"}}, 422, 'Pod "a" is invalid: spec.containers: Required value'),
        ({"metadata": {"name": "a", "namespace": "x"}}, 400, "the namespace of the provided object does not"),
        ([], 400, "the object provided is unrecognized (must be of type Pod)"),
    ],
)
async def test_invalid_pods_are_rejected(body: object, status: int, message: str) -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, NAMESPACE, "POST", body=body)
        patched = await fetch(server, POD, "PATCH", body={}, headers={"Content-Type": "text/plain"})
    assert (got.status, message in got.message) == (status, True)
    assert patched.status == 415


@pytest.mark.parametrize(
    ("options", "requested", "periods"),
    [
        ({}, [None, None], [30, 30]),
        ({}, ["5", "60", "3"], [5, 5, 3]),
        ({}, ["30", "0"], [30]),
        ({"node": None}, [None], []),
        ({"phase": "Failed"}, [None], []),
        ({"finalizers": ["example.com/hold"]}, ["0", "0"], [0, 0]),
    ],
)
async def test_pod_is_deleted_after_its_shortest_grace_period(
    options: dict[str, Any], requested: list[str | None], periods: list[int]
) -> None:
    async with KubernetesServer([pod("live-0", "ml", **options)], clock=lambda: NOW) as server:
        for number, seconds in enumerate(requested):
            query = {} if seconds is None else {"gracePeriodSeconds": seconds}
            await fetch(server, POD, "DELETE", query=query)
            left = [each["metadata"] for each in server.pods]
            assert [each["deletionGracePeriodSeconds"] for each in left] == periods[number : number + 1]
            for each in left:
                due = datetime.fromisoformat(each["deletionTimestamp"]) - NOW
                assert due.total_seconds() == each["deletionGracePeriodSeconds"]


async def test_finalizer_delays_deletion_until_it_is_removed() -> None:
    async with KubernetesServer([pod("live-0", "ml", finalizers=["example.com/hold"])]) as server:
        await fetch(server, POD, "DELETE", gracePeriodSeconds="0")
        assert len(server.pods) == 1
        await fetch(server, POD, "PATCH", body={"metadata": {"finalizers": None}}, headers=MERGE)
        assert server.pods == []


async def test_test_can_change_and_remove_pods() -> None:
    server = KubernetesServer([pod("a"), pod("b", finalizers=["example.com/hold"])])
    version = server.resource_version
    patch = {"metadata": {"labels": {"x": "1"}}, "status": {"phase": "Failed"}}
    changed = server.patch("a", patch=patch)
    assert server.resource_version == version + 1
    assert (changed["metadata"]["labels"], changed["status"]["phase"]) == ({"x": "1"}, "Failed")
    server.pod("a")["metadata"]["name"] = "a copy"
    server.pods[0]["metadata"]["name"] = "a copy"
    assert server.pod("a") == changed
    uid = server.pod("a")["metadata"]["uid"]
    server.add(pod("a"))
    assert server.pod("a")["metadata"]["uid"] == uid
    with pytest.raises(ConfigurationError, match="not being deleted"):
        server.finish_deletion("b")
    server.delete("b")
    server.finish_deletion("b")
    server.delete("a")
    assert server.pods == []
    with pytest.raises(ConfigurationError, match="no pod default/a"):
        server.pod("a")
    server.add(pod("a"))
    assert server.pod("a")["metadata"]["uid"] != uid
    with pytest.raises(ConfigurationError, match="objects of kind 'ConfigMap'"):
        server.add({"kind": "ConfigMap", "metadata": {"name": "a"}})
    with pytest.raises(ConfigurationError, match="0 is less than one"):
        KubernetesServer(history=0)


VALUES = st.recursive(
    st.none() | st.integers(), lambda child: st.dictionaries(st.sampled_from("abc"), child), max_leaves=8
)


@given(st.dictionaries(st.sampled_from("abc"), VALUES), st.dictionaries(st.sampled_from("abc"), VALUES))
def test_merge_patch_follows_rfc_7386(target: dict[str, Any], patch: dict[str, Any]) -> None:
    def merged(old: Any, new: Any) -> Any:
        if not isinstance(new, dict):
            return new
        kept = old if isinstance(old, dict) else {}
        both = {key: merged(kept.get(key), value) for key, value in new.items() if value is not None}
        return {key: value for key, value in (kept | both).items() if new.get(key, 0) is not None}

    server = KubernetesServer([pod("a", annotations={"unrelated": "x"})])
    server.patch("a", patch={"spec": {"patched": None}})
    server.patch("a", patch={"spec": {"patched": {"whole": target}}})
    before = server.pod("a")["spec"]["patched"]
    server.patch("a", patch={"spec": {"patched": patch}})
    assert server.pod("a")["spec"]["patched"] == merged(before, patch)
