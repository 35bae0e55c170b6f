"""Which TPUs are usable, and which may become ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.gcp.tpu_api import Node, decode_node, decode_queued_resource
from aioresolve.tpu.readiness import is_recoverable, not_ready_error, unready_node, unready_queued_resource

NAME = "projects/p/locations/z/nodes/my-tpu"
ENDPOINTS = [{"ipAddress": "10.0.0.1", "port": 8470}]
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def node(**fields: Any) -> Node:
    return decode_node(
        msgspec.json.encode({"name": NAME, "state": "READY", "networkEndpoints": ENDPOINTS} | fields)
    )


def symptom(kind: str, created: str) -> dict[str, str]:
    return {"symptomType": kind, "createTime": created, "workerId": "3", "details": "went down"}


@pytest.mark.parametrize("health", ["", "HEALTHY", "HEALTH_UNSPECIFIED", "SOMETHING_NEW"])
def test_a_ready_node_that_is_not_reported_unhealthy_is_usable(health: str) -> None:
    assert unready_node(node(health=health)) is None


def test_a_node_without_health_is_usable() -> None:
    assert unready_node(node()) is None


@pytest.mark.parametrize(
    "health",
    ["UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE", "TIMEOUT", "UNHEALTHY_NEW", "DEPRECATED_UNHEALTHY"],
)
def test_an_unhealthy_node_is_reported_with_its_symptoms_and_may_recover(health: str) -> None:
    found = unready_node(
        node(
            health=health,
            healthDescription="the runtime is down",
            symptoms=[symptom("OUT_OF_MEMORY", "2026-11-20T11:59:00.123456789Z")],
        )
    )
    assert found is not None
    assert (found.state, found.health, found.retryable) == ("READY", health, True)
    assert health in found.reason
    assert "the runtime is down" in found.reason
    assert found.symptoms == ("OUT_OF_MEMORY on worker 3 at 2026-11-20T11:59:00.123456789Z (went down)",)


def test_a_preempted_node_is_created_again_by_the_user() -> None:
    found = unready_node(node(state="PREEMPTED"))
    assert found is not None
    assert found.reason == "state PREEMPTED; delete it and create it again"
    part = unready_node(node(state="PREEMPTED", queuedResource="projects/p/locations/z/queuedResources/q"))
    assert part is not None
    assert part.reason == "state PREEMPTED; delete its queued resource q and create it again"


@pytest.mark.parametrize("state", ["SUSPENDING", "SUSPENDED"])
def test_a_suspended_queued_resource_is_created_again_by_the_user(state: str) -> None:
    name = "projects/p/locations/z/queuedResources/q"
    resource = decode_queued_resource(msgspec.json.encode({"name": name, "state": {"state": state}}))
    found = unready_queued_resource(resource)
    assert found is not None
    assert found.reason.endswith("gets no TPUs again: delete it and create it again")


@pytest.mark.parametrize(
    ("state", "retryable"),
    [
        ("CREATING", True),
        ("RESTARTING", True),
        ("REIMAGING", True),
        ("REPAIRING", True),
        ("STARTING", True),
        ("UNHIDING", True),
        ("UNKNOWN", True),
        ("", True),
        ("SOME_NEW_STATE", True),
        ("DELETING", False),
        ("STOPPED", False),
        ("STOPPING", False),
        ("PREEMPTED", False),
        ("TERMINATED", False),
        ("HIDING", False),
        ("HIDDEN", False),
    ],
)
def test_only_states_that_end_without_user_action_are_retryable(state: str, retryable: bool) -> None:
    found = unready_node(node(state=state))
    assert found is not None
    assert (found.name, found.state, found.retryable) == ("my-tpu", state, retryable)
    error = not_ready_error([found])
    assert error.retryable is retryable
    assert error.state == state
    assert (state or "unknown") in str(error)


@pytest.mark.parametrize(
    ("endpoints", "words"),
    [([], "it has no network endpoint"), ([*ENDPOINTS, {"port": 8470}], "worker 1 has no network endpoint")],
)
def test_a_ready_node_without_an_endpoint_is_not_ready_yet(endpoints: list[Any], words: str) -> None:
    found = unready_node(node(networkEndpoints=endpoints))
    assert found is not None
    assert found.retryable
    assert words in found.reason


def test_every_unready_tpu_is_listed_and_a_lost_one_makes_the_error_final() -> None:
    creating, lost = unready_node(node(state="CREATING")), unready_node(node(name="x/b", state="PREEMPTED"))
    assert creating is not None
    assert lost is not None
    error = not_ready_error([creating, lost])
    assert list(error.tpus) == ["my-tpu", "b"]
    assert (error.state, error.retryable) == ("CREATING", False)
    assert "create it again" in str(error)


@pytest.mark.parametrize(
    ("state", "retryable"),
    [
        ("CREATING", True),
        ("ACCEPTED", True),
        ("PROVISIONING", True),
        ("WAITING_FOR_RESOURCES", True),
        ("NEW", True),
        ("FAILED", False),
        ("DELETING", False),
        ("SUSPENDING", False),
        ("SUSPENDED", False),
    ],
)
def test_a_queued_resource_that_is_not_active_has_no_nodes(state: str, retryable: bool) -> None:
    resource = decode_queued_resource(
        msgspec.json.encode(
            {
                "name": "projects/p/locations/z/queuedResources/q",
                "state": {
                    "state": state,
                    "stateInitiator": "SERVICE",
                    "failedData": {"error": {"code": 8, "message": "no capacity"}},
                },
            }
        )
    )
    found = unready_queued_resource(resource)
    assert found is not None
    assert (found.name, found.state, found.retryable) == ("q", state, retryable)
    assert "no capacity" in found.reason
    assert "by the service" in found.reason


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_lost_tpu_is_not_recoverable(state: str) -> None:
    assert not is_recoverable([node(), node(state=state)])
    assert is_recoverable([node(), node(state="REPAIRING")])


@pytest.mark.parametrize("kind", ["OUT_OF_MEMORY", "HBM_OUT_OF_MEMORY"])
def test_running_out_of_memory_recently_is_not_recoverable(kind: str) -> None:
    just_now, long_ago = (NOW - timedelta(seconds=age) for age in (89, 91))
    assert not is_recoverable([node(symptoms=[symptom(kind, just_now.isoformat())])], NOW)
    assert is_recoverable([node(symptoms=[symptom(kind, long_ago.isoformat())])], NOW)


def test_other_symptoms_and_those_without_a_time_are_recoverable() -> None:
    symptoms = [symptom("LOW_MEMORY", NOW.isoformat()), symptom("OUT_OF_MEMORY", "")]
    assert is_recoverable([node(symptoms=symptoms)], NOW)


def test_timestamps_with_nanoseconds_are_parsed() -> None:
    assert not is_recoverable(
        [node(symptoms=[symptom("OUT_OF_MEMORY", "2026-11-20T11:59:30.123456789Z")])], NOW
    )


@given(st.text(), st.text())
def test_any_state_and_health_are_usable_or_reported(state: str, health: str) -> None:
    found = unready_node(node(state=state, health=health))
    if found is None:
        assert state == "READY"
    else:
        assert not_ready_error([found]).state == state
