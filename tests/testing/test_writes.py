"""Pods created, changed and deleted over HTTP."""

from __future__ import annotations

import re

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.testing import KubernetesServer

from .client import NAMESPACE, fetch, ml_server

MERGE = "application/merge-patch+json"


async def test_pod_can_be_created_changed_and_deleted() -> None:
    async with KubernetesServer() as server:
        body = {"metadata": {"name": "live-0"}, "spec": {"containers": [{"name": "main", "image": "t"}]}}
        created = await fetch(server, NAMESPACE, "POST", body={**body, "status": {"phase": "Running"}})
        again = await fetch(server, NAMESPACE, "POST", body=body)
        running = {"status": {"phase": "Running", "podIPs": [{"ip": "10.8.2.1"}]}}
        status = await fetch(
            server, f"{NAMESPACE}/live-0/status", "PATCH", body=running, headers={"Content-Type": MERGE}
        )
        labelled = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}}
        patched = await fetch(
            server, f"{NAMESPACE}/live-0", "PATCH", body=labelled, headers={"Content-Type": MERGE}
        )
        put = await fetch(
            server, f"{NAMESPACE}/live-0", "PUT", body=patched.json | {"metadata": {"name": "live-0"}}
        )
        deleted = await fetch(server, f"{NAMESPACE}/live-0", "DELETE", body={"gracePeriodSeconds": 0})
        gone = await fetch(server, f"{NAMESPACE}/live-0")
    assert (created.status, created.json["status"]["phase"]) == (201, "Pending")
    assert created.json["metadata"]["managedFields"][0]["manager"] == "tests"
    assert (again.status, again.message) == (409, 'pods "live-0" already exists')
    assert status.json["status"]["phase"] == "Running"
    assert patched.json["metadata"]["labels"] == {"a": "b"}
    assert patched.json["status"]["phase"] == "Running"
    assert "labels" not in put.json["metadata"]
    assert (deleted.status, deleted.json["metadata"]["deletionGracePeriodSeconds"]) == (200, 0)
    assert gone.status == 404


async def test_a_name_can_be_generated() -> None:
    body = {"metadata": {"generateName": "train-"}, "spec": {"containers": [{"name": "main", "image": "t"}]}}
    async with KubernetesServer() as server:
        got = await fetch(server, NAMESPACE, "POST", body=body)
    assert re.fullmatch(r"train-[a-z0-9]{5}", got.json["metadata"]["name"])


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"metadata": {}},
            422,
            'Pod "" is invalid: metadata.name: Required value: name or generateName is required',
        ),
        ({"metadata": {"name": "a"}}, 422, 'Pod "a" is invalid: spec.containers: Required value'),
        (
            {"metadata": {"name": "a", "namespace": "x"}},
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        ([], 400, "the object provided is unrecognized (must be of type Pod)"),
    ],
)
async def test_invalid_pods_are_rejected(body: object, status: int, message: str) -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, NAMESPACE, "POST", body=body)
    assert (got.status, got.message) == (status, message)


async def test_patch_of_an_unknown_type_is_415() -> None:
    async with ml_server() as server:
        got = await fetch(
            server, f"{NAMESPACE}/train-0", "PATCH", body={}, headers={"Content-Type": "text/plain"}
        )
    assert got.status == 415
    assert got.message.startswith(
        "the body of the request was in an unknown format - accepted media types include: "
    )


async def test_deletion_with_a_grace_period_ends_with_finish_deletion() -> None:
    async with ml_server() as server:
        await fetch(server, f"{NAMESPACE}/train-0", "DELETE")
        metadata = server.pod("train-0", "ml")["metadata"]
        assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == (
            "2026-11-20T15:40:22Z",
            30,
        )
        server.finish_deletion("train-0", "ml")
        with pytest.raises(ConfigurationError, match="no pod ml/train-0"):
            server.pod("train-0", "ml")
        with pytest.raises(ConfigurationError, match="not being deleted"):
            server.finish_deletion("train-1", "ml")
