"""Pods and rows: the order of names, reasons for the person on call, and the error for pods not running."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodNotRunningError, ProtocolError
from aioresolve.kubernetes import Pod
from aioresolve.spec import Missing
from aioresolve.testing import Answer

from .loopback import Loopback, request_kind
from .samples import COLUMNS, READY, ROWS, pod, table, terminated
from .watched_cluster import NOW, listed_cache, names


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (table(ROWS, COLUMNS[:4]), "has only the columns .* not all of"),
        (table([["train-0", "1/1"]]), r"array` of at least length 6, got 2 - at `\$\[0\]\.cells"),
        (table([[*ROWS[0][:5], 4, *ROWS[0][6:]]]), r"Expected `str`, got `int` - at `\$\[0\]\.cells\[5\]"),  # type: ignore[list-item]
        (table([["x" * 254, *ROWS[0][1:]]]), r"`str` of length <= 253 - at `\$\[0\]\.cells\[0\]"),
    ],
)
async def test_invalid_table_is_an_error_that_says_where_it_differs(
    loopback: Loopback, body: bytes, complaint: str
) -> None:
    loopback.server.inject(Answer(200, body), match=lambda request: request_kind(request) == "rows")
    with pytest.raises(ProtocolError, match=complaint):
        await loopback.resolver().cluster_spec()


async def test_columns_are_found_by_name_never_by_position(loopback: Loopback) -> None:
    running = [row for row in ROWS if row[2] == "Running"]
    body = table([row[::-1] for row in running], COLUMNS[::-1])
    loopback.server.inject(Answer(200, body), match=lambda request: request_kind(request) == "rows")
    spec = await loopback.resolver().cluster_spec()
    in_order = [running[0], *sorted(running[1:], key=lambda row: int(row[0].partition("-")[2]))]
    assert spec.job_tasks("worker") == [f"{row[5]}:8470" for row in in_order]


def test_parts_of_names_are_ordered_as_numbers_or_as_text() -> None:
    in_order = ["ps\n3", "worker-01", "worker-2", "worker-2-a9", "worker-2-a10", "worker-2-b", "worker-10"]
    assert names(listed_cache(*map(pod, sorted(in_order)))) == in_order


@given(st.lists(st.integers(0, 10**40), unique=True))
def test_numbered_names_are_in_the_order_of_their_numbers(numbers: list[int]) -> None:
    cache = listed_cache(*(pod(f"worker-{number}") for number in numbers))
    assert names(cache) == [f"worker-{number}" for number in sorted(numbers)]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (1, "1 matching pod is not running: ml/p-0: Pending. Wait until they run"),
        (20, "ml/p-19: Pending. Wait"),
        (1000, "ml/p-19: Pending; and 980 more. Wait"),
    ],
)
def test_error_shows_at_most_20_pods_and_counts_the_others(number: int, message: str) -> None:
    with pytest.raises(PodNotRunningError) as caught:
        listed_cache(*(pod(f"p-{each}", phase="Pending") for each in range(number))).raise_not_running()
    assert message in str(caught.value)
    assert caught.value.pods == {f"ml/p-{each}": "Pending" for each in range(number)}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_hint_is_not_to_wait_for_pods_of_which_one_has_ended(phase: str) -> None:
    with pytest.raises(PodNotRunningError, match="do not run again: create new ones"):
        listed_cache(pod("a", phase="Pending"), pod("b", phase=phase)).raise_not_running()


# Reasons


def absence(found: Pod) -> str | None:
    """Return why the pod is not a member; None if it is."""
    absent = listed_cache(found).observation(NOW).absent
    return absent[0].reason if absent else None


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


PREEMPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "preempting to accommodate a higher priority pod",
}
COMPLETED = {"exitCode": 0, "reason": "Completed"}
CREATING, INITIALIZING = {"reason": "ContainerCreating"}, {"reason": "PodInitializing"}
GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
KILLED = terminated(137, "OOMKilled")


@pytest.mark.parametrize(
    ("phase", "reason", "main", "more"),
    [
        ("Running", None, [container(waiting=BACK_OFF)], {}),
        ("", "Unknown", [], {}),
        ("Succeeded", "Succeeded", [container(terminated=COMPLETED)], {}),
        ("Failed", "Failed (OOMKilled: exit code 137)", KILLED, {}),
        # A disruption rather than the exit of the container.
        (
            "Failed",
            "Failed (PreemptionByScheduler: preempting to accommodate a higher priority pod)",
            KILLED,
            {"conditions": [PREEMPTED]},
        ),
        (
            "Failed",
            "Failed (OOMKilled: exit code 137)",
            KILLED,
            {"conditions": [{**PREEMPTED, "status": "False"}]},
        ),
        (
            "Pending",
            "Pending (CrashLoopBackOff: 5 restarts, last exit code 137 (OOMKilled))",
            [container(restarts=5, last=(137, "OOMKilled"), waiting=BACK_OFF)],
            {},
        ),
        ("Pending", f"Pending (CrashLoopBackOff: {BACK_OFF['message']})", [container(waiting=BACK_OFF)], {}),
        (
            "Pending",
            "Pending (container 'sidecar': ErrImagePull: pull access denied)",
            [container("main", waiting=CREATING), container("sidecar", waiting=NO_IMAGE)],
            {},
        ),
        (
            "Pending",
            "Pending (init container 'fetch': Error: exit code 1, 3 restarts)",
            [container(waiting=INITIALIZING)],
            {"initContainerStatuses": [container("fetch", restarts=3, terminated=FAILED)]},
        ),
        (
            "Pending",
            "Pending (ErrImagePull: pull access denied)",
            [container(waiting=NO_IMAGE)],
            {"initContainerStatuses": [container("fetch", terminated=COMPLETED)]},
        ),
        ("Pending", f"Pending (SchedulingGated: {GATED['message']})", [], {"conditions": [GATED]}),
    ],
)
def test_the_reason_why_a_pod_is_not_running(
    phase: str, reason: str | None, main: list[Any], more: dict[str, Any]
) -> None:
    assert absence(pod(phase=phase, status={"containerStatuses": main, **more})) == reason


def test_a_reason_is_one_line_of_limited_length() -> None:
    log = "Traceback:\n  File x\n" + "y" * 5_000
    ended = container(terminated={"exitCode": 1, "reason": "Error", "message": log})
    reason = absence(pod(phase="Failed", status={"containerStatuses": [ended]}))
    assert reason is not None
    assert reason.startswith("Failed (Error: exit code 1: Traceback: File x yyy")
    assert (len(reason), reason[-3:]) == (1000, "...")
    longest = pod(phase="Failed", status={"reason": "y" * (1000 - len("Failed ()"))})
    assert absence(longest) == f"Failed ({'y' * 991})"


UNREADY = {
    "type": "Ready",
    "status": "False",
    "reason": "ContainersNotReady",
    "message": "containers with unready status: [main]",
}
NOT_READY = "ContainersNotReady: containers with unready status: [main]"


@pytest.mark.parametrize(
    ("condition", "containers", "reason"),
    [
        (READY[0], [container(restarts=2, running=RUNNING)], None),
        (None, [], "no Ready condition yet"),
        ({"type": "Ready", "status": "False"}, [], "its Ready condition is False"),
        (UNREADY, [container(running=RUNNING)], NOT_READY),
        (
            UNREADY,
            [container(restarts=1, last=(1, "Error"), waiting=BACK_OFF)],
            "CrashLoopBackOff: 1 restart, last exit code 1 (Error)",
        ),
    ],
)
def test_the_reason_why_a_running_pod_is_not_ready(
    condition: dict[str, Any] | None, containers: list[Any], reason: str | None
) -> None:
    conditions = [{"type": "PodScheduled", "status": "True"}, *([condition] if condition else [])]
    status = {"conditions": conditions, "containerStatuses": containers}
    observation = listed_cache(pod(status=status)).observation(NOW)
    unready = () if reason is None else (Missing("worker", "ml/train-0", reason),)
    assert (observation.unready, observation.absent) == (unready, ())
