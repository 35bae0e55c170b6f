"""Which TPUs are usable, and which may become ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.gcp.tpu_api import Node, QueuedResource, decode_node, decode_queued_resource
from aioresolve.tpu.readiness import (
    is_recoverable,
    not_ready_error,
    unready_node,
    unready_queued_resource,
)

NAME = "projects/p/locations/z/nodes/my-tpu"
ENDPOINTS = [{"ipAddress": "10.0.0.1", "port": 8470}]
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def node(**fields: Any) -> Node:
    return decode_node(
        msgspec.json.encode({"name": NAME, "state": "READY", "networkEndpoints": ENDPOINTS} | fields)
    )


def queued(state: dict[str, Any], **fields: Any) -> QueuedResource:
    name = "projects/p/locations/z/queuedResources/q"
    return decode_queued_resource(msgspec.json.encode({"name": name, "state": state} | fields))


def symptom(kind: str, created: str) -> dict[str, str]:
    return {"symptomType": kind, "createTime": created, "workerId": "3", "details": "went down"}


def test_a_ready_node_that_is_not_reported_unhealthy_is_usable() -> None:
    assert unready_node(node()) is None
    for health in ("", "HEALTHY", "HEALTH_UNSPECIFIED", "SOMETHING_NEW"):
        assert unready_node(node(health=health)) is None
    for health in ("UNHEALTHY_MAINTENANCE", "UNHEALTHY_NEW", "TIMEOUT", "DEPRECATED_UNHEALTHY"):
        found = unready_node(node(health=health))
        assert found is not None
        assert (found.state, found.health, found.retryable) == ("READY", health, True)


def test_long_texts_of_the_server_are_truncated() -> None:
    symptoms = [symptom(f"KIND_{number}", "") | {"details": "~" * 1000} for number in range(7)]
    found = unready_node(node(state="REPAIRING", healthDescription="+" * 1000, symptoms=symptoms))
    assert found is not None
    assert (found.reason.count("+"), found.reason.count("~")) == (300, 5 * 200)
    shown = [number for number in range(7) if f"KIND_{number}" in found.reason]
    assert shown == [2, 3, 4, 5, 6]
    assert len(found.symptoms) == 7
    failed = {"state": "FAILED", "failedData": {"error": {"message": "~" * 1000}}}
    request = unready_queued_resource(queued(failed))
    assert request is not None
    assert request.reason.count("~") == 300


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"state": ""}, "state unknown"),
        ({"state": "DELETING"}, "state DELETING; create it again when it is deleted"),
        ({"state": "TERMINATED"}, "state TERMINATED; delete it and create it again"),
        ({"state": "STOPPED"}, "state STOPPED; start it with `gcloud compute tpus tpu-vm start`"),
        (
            {"health": "UNHEALTHY_MAINTENANCE"},
            "state READY, health UNHEALTHY_MAINTENANCE; wait until the maintenance is over",
        ),
    ],
)
def test_the_reason_contains_the_remedy(fields: dict[str, Any], reason: str) -> None:
    found = unready_node(node(**fields))
    assert found is not None
    assert found.reason == reason


@pytest.mark.parametrize(
    ("endpoints", "workers", "is_running"),
    [([], None, False), ([*ENDPOINTS, {"port": 8470}], 2, False), (ENDPOINTS * 3, 3, True)],
)
def test_an_unhealthy_node_runs_if_all_its_workers_have_addresses(
    endpoints: list[Any], workers: int | None, is_running: bool
) -> None:
    found = unready_node(node(health="UNHEALTHY_MAINTENANCE", networkEndpoints=endpoints))
    assert found is not None
    assert (found.name, found.path, found.workers) == ("my-tpu", NAME, workers)
    assert found.is_running is is_running
    hint = not_ready_error([found]).hint
    assert (hint is not None and "`not_healthy='allow'`" in hint.render()) is is_running
    creating = unready_node(node(state="CREATING", health="UNHEALTHY_MAINTENANCE"))
    assert creating is not None
    assert not creating.is_running


def test_a_preempted_node_is_created_again_by_the_user() -> None:
    found = unready_node(node(state="PREEMPTED"))
    assert found is not None
    assert found.reason == "state PREEMPTED; delete it and create it again"
    part = unready_node(node(state="PREEMPTED", queuedResource="projects/p/locations/z/queuedResources/q"))
    assert part is not None
    assert part.reason == "state PREEMPTED; delete its queued resource q and create it again"


@pytest.mark.parametrize(
    ("states", "retryable"),
    [
        (["CREATING", "RESTARTING", "REIMAGING", "REPAIRING", "STARTING", "UNHIDING", "", "NEW_STATE"], True),
        (["DELETING", "STOPPED", "STOPPING", "PREEMPTED", "TERMINATED", "HIDING", "HIDDEN"], False),
    ],
)
def test_only_states_that_end_without_user_action_are_retryable(states: list[str], retryable: bool) -> None:
    for state in states:
        found = unready_node(node(state=state))
        assert found is not None
        assert (found.name, found.state, found.retryable) == ("my-tpu", state, retryable)
        error = not_ready_error([found])
        assert (error.retryable, error.state) == (retryable, state)
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
    assert error.summary == (
        "2 TPUs are not ready; retrying alone will not help. my-tpu: state CREATING."
        " b: state PREEMPTED; delete it and create it again"
    )
    assert error.hint is None
    assert (
        not_ready_error([creating]).summary == "1 TPU is not ready; try again later. my-tpu: state CREATING"
    )


@pytest.mark.parametrize(
    ("states", "retryable"),
    [
        (["CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES", "NEW"], True),
        (["FAILED", "DELETING", "SUSPENDING", "SUSPENDED"], False),
    ],
)
def test_a_queued_resource_that_is_not_active_has_no_nodes(states: list[str], retryable: bool) -> None:
    for state in states:
        failed = {"error": {"code": 8, "message": "no capacity"}}
        fields = {"state": state, "stateInitiator": "SERVICE", "failedData": failed}
        found = unready_queued_resource(queued(fields, createTime="2026-11-20T11:59:00Z"))
        assert found is not None
        assert (found.name, found.state, found.retryable) == ("q", state, retryable)
        assert "no capacity" in found.reason
        assert "by the service" in found.reason
        assert found.path == "projects/p/locations/z/queuedResources/q"
        assert found.create_time == "2026-11-20T11:59:00Z"
        assert not found.is_running


def test_a_queued_resource_without_a_reported_cause_has_only_its_state() -> None:
    causes: list[Any] = [None, {}, {"error": {}}]
    for failed in causes:
        found = unready_queued_resource(queued({"state": "CREATING", "failedData": failed}))
        assert found is not None
        assert found.reason == "queued resource in state CREATING"
    found = unready_queued_resource(queued({"state": "SUSPENDED"}))
    assert found is not None
    assert found.reason == (
        "queued resource in state SUSPENDED; the queued resource gets no TPUs again: delete it and create it"
        " again"
    )


def test_a_queued_resource_whose_state_is_not_reported_may_become_ready() -> None:
    found = unready_queued_resource(decode_queued_resource(b'{"name": "q"}'))
    assert found is not None
    assert (found.reason, found.retryable) == ("queued resource in state unknown", True)


def test_a_lost_tpu_is_not_recoverable() -> None:
    for state in ("PREEMPTED", "TERMINATED"):
        assert not is_recoverable([node(), node(state=state)])
    assert is_recoverable([node(), node(state="REPAIRING")])


@pytest.mark.parametrize("kind", ["OUT_OF_MEMORY", "HBM_OUT_OF_MEMORY"])
def test_running_out_of_memory_recently_is_not_recoverable(kind: str) -> None:
    just_now, long_ago = (NOW - timedelta(seconds=age) for age in (89, 90))
    assert not is_recoverable([node(symptoms=[symptom(kind, just_now.isoformat())])], NOW)
    assert is_recoverable([node(symptoms=[symptom(kind, long_ago.isoformat())])], NOW)


@pytest.mark.parametrize(
    "zone",
    ["Z", ""],
)
def test_a_symptom_without_a_time_zone_has_the_time_of_utc(zone: str) -> None:
    assert not is_recoverable([node(symptoms=[symptom("OUT_OF_MEMORY", f"2026-11-20T11:59:00{zone}")])], NOW)
    assert is_recoverable([node(symptoms=[symptom("OUT_OF_MEMORY", f"2026-11-20T11:58:00{zone}")])], NOW)


def test_an_earlier_symptom_of_another_kind_does_not_hide_the_lack_of_memory() -> None:
    low, out = (
        symptom("LOW_MEMORY", NOW.isoformat()),
        symptom("OUT_OF_MEMORY", "2026-11-20T11:59:30.123456789Z"),
    )
    assert not is_recoverable([node(), node(symptoms=[low, out])], NOW)
    assert is_recoverable([node(symptoms=[low, symptom("OUT_OF_MEMORY", "")])], NOW)


@given(st.text(), st.text())
def test_any_state_and_health_are_usable_or_reported(state: str, health: str) -> None:
    found = unready_node(node(state=state, health=health))
    if found is None:
        assert state == "READY"
    else:
        assert not_ready_error([found]).state == state
