"""Why a pod is not running or not ready, as text for the person on call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.kubernetes.tasks.pods import is_final, is_replaced, not_ready_reason, not_running_reason

from .samples import READY, pod, terminated, waiting

if TYPE_CHECKING:
    from aioresolve.kubernetes import Pod


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (pod(), None),
        (pod(phase="Running", status={"containerStatuses": waiting("CrashLoopBackOff")}), None),
        (
            pod(phase="Failed", status={"containerStatuses": terminated(137, "OOMKilled")}),
            "Failed (OOMKilled: exit code 137)",
        ),
        (pod(phase="Succeeded", status={"containerStatuses": terminated(0, "Completed")}), "Succeeded"),
        (pod(phase=""), "Unknown"),
    ],
)
def test_the_reason_why_a_pod_is_not_running(found: Pod, reason: str | None) -> None:
    assert not_running_reason(found, "10.8.0.10:8470") == reason


def container(
    name: str = "main", *, restarts: int = 0, last: tuple[int, str] | None = None, **state: Any
) -> Any:
    """Return one entry of `containerStatuses`; `last` is the exit code and reason of its previous run."""
    ended = {} if last is None else {"terminated": {"exitCode": last[0], "reason": last[1]}}
    return {"name": name, "restartCount": restarts, "state": state, "lastState": ended}


FAILED = {"exitCode": 1, "reason": "Error"}
BACK_OFF = {
    "reason": "CrashLoopBackOff",
    "message": "back-off 5m0s restarting failed container=main pod=train-0_ml(694780d9)",
}
NO_IMAGE = {"reason": "ErrImagePull", "message": "pull access denied"}
RUNNING: dict[str, Any] = {"startedAt": "2026-11-20T15:39:21Z"}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {"containerStatuses": [container(restarts=5, last=(137, "OOMKilled"), waiting=BACK_OFF)]},
            "Pending (CrashLoopBackOff: 5 restarts, last exit code 137 (OOMKilled))",
        ),
        (
            {"containerStatuses": [container(waiting=BACK_OFF)]},
            f"Pending (CrashLoopBackOff: {BACK_OFF['message']})",
        ),
        (
            {
                "containerStatuses": [
                    container("main", waiting={"reason": "ContainerCreating"}),
                    container("sidecar", waiting=NO_IMAGE),
                ]
            },
            "Pending (container 'sidecar': ErrImagePull: pull access denied)",
        ),
        (
            {
                "initContainerStatuses": [container("fetch", restarts=3, terminated=FAILED)],
                "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
            },
            "Pending (init container 'fetch': Error: exit code 1, 3 restarts)",
        ),
        (
            {
                "initContainerStatuses": [
                    container("fetch", terminated={"exitCode": 0, "reason": "Completed"})
                ],
                "containerStatuses": [container(waiting=NO_IMAGE)],
            },
            "Pending (ErrImagePull: pull access denied)",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "SchedulingGated",
                        "message": "Scheduling is blocked due to non-empty scheduling gates",
                    }
                ]
            },
            "Pending (SchedulingGated: Scheduling is blocked due to non-empty scheduling gates)",
        ),
    ],
)
def test_the_reason_why_a_pod_is_pending(status: dict[str, Any], reason: str) -> None:
    assert not_running_reason(pod(phase="Pending", ip=None, status=status), None) == reason


PREEMPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "preempting to accommodate a higher priority pod",
}


def test_a_disruption_is_reported_rather_than_the_exit_of_the_container() -> None:
    found = pod(
        phase="Failed", status={"conditions": [PREEMPTED], "containerStatuses": terminated(137, "Error")}
    )
    expected = "Failed (PreemptionByScheduler: preempting to accommodate a higher priority pod)"
    assert not_running_reason(found, None) == expected
    spared = {**PREEMPTED, "status": "False"}
    found = pod(
        phase="Failed", status={"conditions": [spared], "containerStatuses": terminated(137, "Error")}
    )
    assert not_running_reason(found, None) == "Failed (Error: exit code 137)"


def test_a_reason_is_one_line_of_limited_length() -> None:
    log = "Traceback:\n  File x\n" + "y" * 5_000
    ended = container(terminated={"exitCode": 1, "reason": "Error", "message": log})
    reason = not_running_reason(pod(phase="Failed", status={"containerStatuses": [ended]}), None)
    assert reason is not None
    assert reason.startswith("Failed (Error: exit code 1: Traceback: File x yyy")
    assert (len(reason), reason[-3:]) == (1000, "...")
    longest = pod(phase="Failed", status={"reason": "y" * (1000 - len("Failed ()"))})
    assert not_running_reason(longest, None) == f"Failed ({'y' * 991})"


UNREADY = {
    "type": "Ready",
    "status": "False",
    "reason": "ContainersNotReady",
    "message": "containers with unready status: [main]",
}
NOT_READY = "ContainersNotReady: containers with unready status: [main]"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"conditions": READY, "containerStatuses": [container(restarts=2, running=RUNNING)]}, None),
        ({}, "no Ready condition yet"),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "its Ready condition is False"),
        (
            {
                "conditions": [{"type": "PodScheduled", "status": "True"}, UNREADY],
                "containerStatuses": [container(running=RUNNING)],
            },
            NOT_READY,
        ),
        (
            {
                "conditions": [UNREADY],
                "containerStatuses": [container(restarts=2, last=(137, "OOMKilled"), running=RUNNING)],
            },
            f"{NOT_READY}; 2 restarts, last exit code 137 (OOMKilled)",
        ),
        (
            {
                "conditions": [UNREADY],
                "containerStatuses": [
                    container("main", running=RUNNING),
                    container("sidecar", restarts=1, running=RUNNING),
                ],
            },
            f"{NOT_READY}; container 'sidecar': 1 restart",
        ),
        (
            {
                "conditions": [UNREADY],
                "containerStatuses": [container(restarts=5, last=(1, "Error"), waiting=BACK_OFF)],
            },
            "CrashLoopBackOff: 5 restarts, last exit code 1 (Error)",
        ),
    ],
)
def test_the_reason_why_a_running_pod_is_not_ready(status: dict[str, Any], reason: str | None) -> None:
    assert not_ready_reason(pod(status=status)) == reason


CONTROLLED = {"ownerReferences": [{"kind": "Node", "name": "a"}, {"kind": "Job", "controller": True}]}
OWNED = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": False}]}


def test_a_pod_that_has_ended_is_final_unless_a_controller_replaces_it() -> None:
    for phase in ("Failed", "Succeeded"):
        for metadata, is_controlled in (({}, False), (OWNED, False), (CONTROLLED, True)):
            found = pod(phase=phase, metadata=metadata)
            assert (is_final(found), is_replaced(found)) == (not is_controlled, is_controlled)
    for phase in ("Pending", "Running", "Unknown", ""):
        for metadata in ({}, CONTROLLED):
            found = pod(phase=phase, metadata=metadata)
            assert (is_final(found), is_replaced(found)) == (False, False)
