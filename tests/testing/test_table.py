"""The Table rows of the loopback API server, for every state of a pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.testing.kubernetes.pods import pod
from aioresolve.testing.kubernetes.table import (
    COLUMN_DEFINITIONS,
    human_duration,
    pod_cells,
    pod_status,
    table_row,
)

CREATED = "2026-11-20T15:39:21Z"
NOW = datetime(2026, 11, 20, 15, 39, 52, tzinfo=UTC)
NONE = "<none>"

# Rows of a Kubernetes 1.36 API server for pods in these states, 31 seconds old.
ROWS = [
    (
        pod("crash-0", ip="10.8.1.2", waiting="CrashLoopBackOff", created=CREATED),
        ["crash-0", "0/1", "CrashLoopBackOff", "0", "31s", "10.8.1.2", "node-a", NONE, NONE],
    ),
    (
        pod("creating-0", phase="Pending", waiting="ContainerCreating", created=CREATED),
        ["creating-0", "0/1", "ContainerCreating", "0", "31s", NONE, "node-a", NONE, NONE],
    ),
    (
        pod("done-0", ip="10.8.1.5", phase="Succeeded", created=CREATED),
        ["done-0", "0/1", "Completed", "0", "31s", "10.8.1.5", "node-a", NONE, NONE],
    ),
    (
        pod("failed-0", ip="10.8.1.4", phase="Failed", reason="Evicted", created=CREATED),
        ["failed-0", "0/1", "Evicted", "0", "31s", "10.8.1.4", "node-a", NONE, NONE],
    ),
    (
        pod("leaving-0", ip="10.8.1.7", deleting=True, created=CREATED),
        ["leaving-0", "1/1", "Terminating", "0", "31s", "10.8.1.7", "node-a", NONE, NONE],
    ),
    (
        pod("lost-0", ip="10.8.1.6", phase="Unknown", reason="NodeLost", created=CREATED),
        ["lost-0", "0/1", "NodeLost", "0", "31s", "10.8.1.6", "node-a", NONE, NONE],
    ),
    (
        pod("notready-0", ip="10.8.1.3", ready=False, created=CREATED),
        ["notready-0", "0/1", "Running", "0", "31s", "10.8.1.3", "node-a", NONE, NONE],
    ),
    (
        pod("pending-0", phase="Pending", created=CREATED),
        ["pending-0", "0/1", "Pending", "0", "31s", NONE, "node-a", NONE, NONE],
    ),
    (
        pod("train-1", ip=("10.8.0.11", "fd00::11"), created=CREATED),
        ["train-1", "1/1", "Running", "0", "31s", "10.8.0.11", "node-a", NONE, NONE],
    ),
]


@pytest.mark.parametrize(("given_pod", "cells"), ROWS, ids=[row[1][0] for row in ROWS])
def test_cells_equal_those_of_a_real_server(given_pod: dict[str, Any], cells: list[str]) -> None:
    assert pod_cells(given_pod, NOW) == cells


def test_only_finished_pods_have_a_condition() -> None:
    done = {"type": "Completed", "status": "True", "reason": "Succeeded"}
    failed = {"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}
    message = "The pod has completed successfully."
    assert table_row(pod("a", phase="Succeeded"), NOW)["conditions"] == [{**done, "message": message}]
    assert table_row(pod("a", phase="Failed", reason="Evicted"), NOW)["conditions"] == [failed]
    assert "conditions" not in table_row(pod("a"), NOW)


def test_column_definitions_equal_those_of_a_real_server() -> None:
    names = [(column["name"], column["format"], column["priority"]) for column in COLUMN_DEFINITIONS]
    assert names == [
        ("Name", "name", 0),
        ("Ready", "", 0),
        ("Status", "", 0),
        ("Restarts", "", 0),
        ("Age", "", 0),
        ("IP", "", 1),
        ("Node", "", 1),
        ("Nominated Node", "", 1),
        ("Readiness Gates", "", 1),
    ]
    assert all(column["type"] == "string" and column["description"] for column in COLUMN_DEFINITIONS)


def container(name: str, state: dict[str, Any], *, ready: bool = False, restarts: int = 0) -> dict[str, Any]:
    return {"name": name, "state": state, "ready": ready, "restartCount": restarts, "lastState": {}}


def pod_with(
    *,
    containers: list[dict[str, Any]],
    inits: list[dict[str, Any]] | None = None,
    sidecars: tuple[str, ...] = (),
    phase: str = "Running",
    conditions: list[dict[str, str]] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a pod with these container statuses; the init containers in `sidecars` restart always."""
    specs = [
        {"name": init["name"], **({"restartPolicy": "Always"} if init["name"] in sidecars else {})}
        for init in inits or []
    ]
    return {
        "metadata": {"name": "a", **metadata},
        "spec": {"containers": [{"name": c["name"]} for c in containers], "initContainers": specs},
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": containers,
            "initContainerStatuses": inits or [],
        },
    }


READY = [{"type": "Ready", "status": "True"}]
GATED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
RUNNING: dict[str, Any] = {"running": {}}
ENDED = {"terminated": {"exitCode": 0, "reason": "Completed"}}
WAITS = container("main", {"waiting": {"reason": "PodInitializing"}})
CRASHES = {"waiting": {"reason": "CrashLoopBackOff"}}
SIDECAR = container("s", RUNNING, ready=True) | {"started": True}


def terminated(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


@pytest.mark.parametrize(
    ("inits", "ready", "status"),
    [
        ([container("i", RUNNING)], "0/1", "Init:0/1"),
        ([container("i", ENDED), container("j", RUNNING)], "0/1", "Init:1/2"),
        ([container("i", CRASHES)], "0/1", "Init:CrashLoopBackOff"),
        ([container("i", {"waiting": {"reason": "PodInitializing"}})], "0/1", "Init:0/1"),
        ([container("i", terminated(3))], "0/1", "Init:ExitCode:3"),
        ([container("i", terminated(137, signal=9))], "0/1", "Init:Signal:9"),
        ([container("i", terminated(1, reason="Error"))], "0/1", "Init:Error"),
        ([container("s", RUNNING)], "0/2", "Init:0/1"),
        ([SIDECAR, container("i", RUNNING)], "1/2", "Init:1/2"),
        ([container("i", ENDED)], "0/1", "PodInitializing"),
    ],
)
def test_status_shows_the_init_container(inits: list[dict[str, Any]], ready: str, status: str) -> None:
    given_pod = pod_with(inits=inits, sidecars=("s",), containers=[WAITS], phase="Pending")
    assert pod_cells(given_pod, NOW)[1:3] == [ready, status]


@pytest.mark.parametrize(
    ("containers", "conditions", "ready", "status"),
    [
        ([container("a", RUNNING, ready=True)], READY, "1/1", "Running"),
        ([container("a", terminated(2))], [], "0/1", "ExitCode:2"),
        ([container("a", terminated(9, signal=9))], [], "0/1", "Signal:9"),
        ([container("a", terminated(1, reason="OOMKilled"))], [], "0/1", "OOMKilled"),
        ([container("a", {"waiting": {}})], [], "0/1", "Running"),
        ([container("a", ENDED), container("b", RUNNING, ready=True)], READY, "1/2", "Running"),
        ([container("a", ENDED), container("b", RUNNING, ready=True)], [], "1/2", "NotReady"),
        ([container("a", ENDED), container("b", RUNNING)], [], "0/2", "Completed"),
        ([container("a", CRASHES), container("b", ENDED)], [], "0/2", "CrashLoopBackOff"),
        ([], GATED, "0/0", "SchedulingGated"),
    ],
)
def test_status_shows_the_containers(
    containers: list[dict[str, Any]], conditions: list[dict[str, str]], ready: str, status: str
) -> None:
    assert pod_cells(pod_with(containers=containers, conditions=conditions), NOW)[1:3] == [ready, status]


def test_ready_sidecar_counts_as_a_container() -> None:
    given_pod = pod_with(
        inits=[SIDECAR], sidecars=("s",), containers=[container("a", RUNNING, ready=True)], conditions=READY
    )
    assert pod_cells(given_pod, NOW)[1:3] == ["2/2", "Running"]


def test_pod_being_deleted_on_a_lost_node_is_unknown() -> None:
    assert pod_status(pod("a", phase="Running", reason="NodeLost", deleting=True)) == "Unknown"


def test_finished_pod_keeps_its_status_while_it_is_deleted() -> None:
    assert pod_status(pod("a", phase="Succeeded", deleting=True)) == "Completed"


def test_restarts_are_summed_with_the_age_of_the_last() -> None:
    again = container("a", RUNNING, ready=True, restarts=2)
    again["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": "2026-11-20T15:34:47Z"}}
    given_pod = pod_with(containers=[again, container("b", RUNNING, restarts=1)])
    assert pod_cells(given_pod, NOW)[3] == "3 (5m5s ago)"


def test_restarts_of_init_containers_count_only_while_they_run() -> None:
    stuck = container("i", CRASHES, restarts=4)
    assert pod_cells(pod_with(inits=[stuck], containers=[WAITS]), NOW)[3] == "4"
    done = container("i", ENDED, restarts=4)
    assert pod_cells(pod_with(inits=[done], containers=[container("a", RUNNING)]), NOW)[3] == "0"


def test_readiness_gates_are_counted() -> None:
    gated = pod("a")
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]
    gated["status"]["conditions"].append({"type": "example.com/a", "status": "True"})
    assert pod_cells(gated, NOW)[8] == "1/2"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (305, "5m5s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (10860, "3h1m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (176400, "2d1h"),
        (691200, "8d"),
        (63071999, "729d"),
        (63072000, "2y"),
        (63158400, "2y1d"),
        (252288000, "8y"),
    ],
)
def test_age_has_at_most_two_units(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


@given(st.floats(min_value=0, max_value=10**10))
def test_every_age_can_be_formatted(seconds: float) -> None:
    assert human_duration(seconds)[-1] in "smhdy"
