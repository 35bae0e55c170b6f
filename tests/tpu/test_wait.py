"""Waiting for TPUs: until they are ready, until the deadline, or not at all after one is lost."""

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from aioresolve import Progress, TPUClusterResolver, Want
from aioresolve.errors import FailedClusterError, IncompleteClusterError
from aioresolve.spec import ClusterState
from aioresolve.testing import GoogleServer, queued_resource, tpu_node

PROJECT, ZONE = "demo-project", "us-central2-b"
PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""


async def wait_for(*names: str, timeout: float = PATIENCE, **wanted: Any) -> ClusterState:
    """Wait for these TPUs, which are polled all the time."""
    return await TPUClusterResolver(list(names), ZONE, PROJECT).wait(timeout=timeout, interval=0.01, **wanted)


def addresses(state: ClusterState) -> list[str]:
    return [endpoint.address for endpoint in state.endpoints["worker"]]


def requests(google: GoogleServer) -> int:
    return sum(request.service == "tpu" for request in google.requests)


async def after(google: GoogleServer, number: int, change: Callable[[], object]) -> None:
    """Call `change` after this number of further requests."""
    before = requests(google)
    await google.until(lambda: requests(google) >= before + number)
    change()


async def test_a_lost_tpu_ends_the_wait_at_once(google: GoogleServer) -> None:
    google.add(tpu_node("a"), tpu_node("b", state="CREATING"), tpu_node("c", state="CREATING"))
    google.script("b", "CREATING", "PREEMPTED")
    before = time.monotonic()
    with pytest.raises(FailedClusterError) as raised:
        await wait_for("a", "b", "c", timeout=600.0)
    assert time.monotonic() - before < PATIENCE
    assert raised.value.missing["b"].startswith("state PREEMPTED")
    assert raised.value.missing["c"] == "state CREATING"
    assert raised.value.found == {"worker": 1}
    assert "delete it and create it again" in str(raised.value)
    assert not raised.value.retryable


async def test_wait_continues_while_a_tpu_is_deleted_and_created_again(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["10.0.0.1"], state="DELETING"))
    again = tpu_node("my-tpu", ips=["10.0.0.2"])
    async with anyio.create_task_group() as group:
        group.start_soon(after, google, 4, lambda: google.add(again))
        assert addresses(await wait_for("my-tpu")) == ["10.0.0.2:8470"]


async def test_a_lost_tpu_does_not_matter_if_the_others_are_enough(google: GoogleServer) -> None:
    google.add(tpu_node("a", workers=2), tpu_node("b", workers=2, state="PREEMPTED"))
    assert len(addresses(await wait_for("a", "b", count=2))) == 2
    with pytest.raises(FailedClusterError, match="2 of 4 tasks in total"):
        await wait_for("a", "b", count=4)


async def test_wait_follows_a_queued_resource_until_its_nodes_are_ready(google: GoogleServer) -> None:
    google.add(queued_resource("my-request", nodes=2, node_id="part", state="ACCEPTED"))
    states = [{"state": {"state": state}} for state in ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")]
    google.script("my-request", *states)

    def create() -> None:
        google.add(tpu_node("part-0", ips=["10.0.0.1"]), tpu_node("part-1", ips=["10.0.0.2"]))

    async with anyio.create_task_group() as group:
        group.start_soon(after, google, 10, create)
        assert addresses(await wait_for("my-request")) == ["10.0.0.1:8470", "10.0.0.2:8470"]


async def test_the_deadline_error_has_the_reason_for_each_missing_tpu(google: GoogleServer) -> None:
    symptom = {"symptomType": "MESH_BUILD_FAIL", "workerId": "2", "createTime": "2026-11-20T11:00:00Z"}
    google.add(
        tpu_node("a"),
        tpu_node("b", state="REPAIRING"),
        tpu_node("c", health="UNHEALTHY_TENSORFLOW", health_description="down", symptoms=[symptom]),
        queued_resource("d", state="WAITING_FOR_RESOURCES"),
    )
    for timeout in (0.1, 5.0, PATIENCE):  # on a busy machine, the first poll may take longer
        with pytest.raises(IncompleteClusterError) as raised:
            await wait_for("a", "b", "c", "d", "e", timeout=timeout)
        if raised.value.found:
            break
    assert raised.value.found == {"worker": 1}
    reasons = raised.value.missing
    assert sorted(reasons) == ["b", "c/worker-0", "d", "e"]
    assert reasons["b"] == "state REPAIRING"
    reason = "state READY, health UNHEALTHY_TENSORFLOW; 'down'; symptoms: MESH"
    assert reasons["c/worker-0"].startswith(reason)
    assert "queued resource in state WAITING_FOR_RESOURCES" in reasons["d"]
    assert "projects/demo-project/locations/us-central2-b/nodes/e does not exist (yet)" in reasons["e"]
    for reason in reasons.values():
        assert reason in str(raised.value)


async def test_a_local_tpu_has_no_workers_to_wait_for() -> None:
    observation = await TPUClusterResolver("local").observe(Want(), Progress())
    assert [(one.is_final, one.tasks) for one in observation.absent] == [(True, 0)]
    with pytest.raises(FailedClusterError, match="no workers to wait for: name a TPU"):
        await TPUClusterResolver("local").wait(timeout=600.0)
