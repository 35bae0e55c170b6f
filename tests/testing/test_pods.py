"""Pods of the loopback API server: the builder, and their rows in `kubectl get pods`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from aioresolve.testing import KubernetesServer, pod

from .client import NOW, TABLE, fetch, recorded_pods

INDEX = "batch.kubernetes.io/job-completion-index"
READY = [{"type": "Ready", "status": "True"}]
GATED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
RUNNING: dict[str, Any] = {"running": {}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
CRASHES = {"waiting": {"reason": "CrashLoopBackOff"}}


def ended(code: int = 0, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


def main(state: dict[str, Any], *, ready: bool = False, restarts: int = 0, **more: Any) -> dict[str, Any]:
    status = {"name": "main", "state": state, "ready": ready, "restartCount": restarts, "lastState": {}}
    return {**status, **more}


def sidecar(state: dict[str, Any]) -> dict[str, Any]:
    return main(state, ready=True, name="sidecar", started=True)


COMPLETED = ended(reason="Completed")
UP = main(RUNNING, ready=True)
WAITS = main(INITIALIZING)

# Ready, Status and Restarts of a pod with these containers, init containers and conditions.
ROWS: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]], list[dict[str, str]]]] = [
    ("1/1 Running 0", [UP], [], READY),
    ("0/1 ExitCode:2 0", [main(ended(2))], [], []),
    ("0/1 Signal:9 0", [main(ended(9, signal=9))], [], []),
    ("0/1 OOMKilled 0", [main(ended(1, reason="OOMKilled"))], [], []),
    ("0/1 Running 0", [main({"waiting": {}})], [], []),
    ("1/2 Running 0", [main(COMPLETED), UP], [], READY),
    ("1/2 NotReady 0", [main(COMPLETED), UP], [], []),
    ("0/2 Completed 0", [main(COMPLETED), main(RUNNING)], [], []),
    ("0/2 CrashLoopBackOff 0", [main(CRASHES), main(COMPLETED)], [], []),
    ("0/0 SchedulingGated 0", [], [], GATED),
    ("0/1 Init:0/1 0", [WAITS], [main(RUNNING)], []),
    ("0/1 Init:1/2 0", [WAITS], [main(COMPLETED), main(RUNNING)], []),
    ("0/1 Init:CrashLoopBackOff 4", [WAITS], [main(CRASHES, restarts=4)], []),
    ("0/1 Init:0/1 0", [WAITS], [WAITS], []),
    ("0/1 Init:ExitCode:3 0", [WAITS], [main(ended(3))], []),
    ("0/1 Init:Error 0", [WAITS], [main(ended(1, reason="Error"))], []),
    ("0/1 PodInitializing 0", [WAITS], [main(COMPLETED)], []),
    ("1/2 Init:1/2 0", [WAITS], [sidecar(RUNNING), main(RUNNING)], []),
    ("2/2 Running 0", [UP], [sidecar(RUNNING)], READY),
    ("1/1 Running 0", [UP], [main(COMPLETED, restarts=4)], READY),
    (
        "1/2 Running 3 (5m5s ago)",
        [
            main(RUNNING, ready=True, restarts=2, lastState=ended(1, finishedAt="2026-11-20T15:34:47Z")),
            main(RUNNING, restarts=1),
        ],
        [],
        READY,
    ),
]


def pod_with(
    name: str, containers: list[dict[str, Any]], inits: list[dict[str, Any]], conditions: list[dict[str, str]]
) -> dict[str, Any]:
    restarts = {"sidecar": {"restartPolicy": "Always"}}
    specs = [{"name": each["name"], **restarts.get(each["name"], {})} for each in inits]
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": each["name"]} for each in containers], "initContainers": specs},
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": containers,
            "initContainerStatuses": inits,
        },
    }


async def cells(*pods: dict[str, Any]) -> list[list[str]]:
    async with KubernetesServer(pods, clock=lambda: NOW) as server:
        got = await fetch(server, headers={"Accept": TABLE})
    return [row["cells"] for row in got.json["rows"]]


async def test_row_shows_the_containers_as_kubectl_does() -> None:
    pods = [pod_with(f"pod-{number:02}", *each) for number, (_, *each) in enumerate(ROWS)]
    shown = {row[0]: " ".join(row[1:4]) for row in await cells(*pods)}
    assert shown == {f"pod-{number:02}": expected for number, (expected, *_) in enumerate(ROWS)}


async def test_row_shows_deletion_and_readiness_gates() -> None:
    gated = pod("gated")
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]
    gated["status"]["conditions"].append({"type": "example.com/a", "status": "True"})
    lost = pod("lost", reason="NodeLost", deleting=True)
    done = pod("done", phase="Succeeded", deleting=True)
    shown = {row[0]: (row[2], row[8]) for row in await cells(gated, lost, done)}
    assert shown == {
        "gated": ("Running", "1/2"),
        "lost": ("Unknown", "<none>"),
        "done": ("Completed", "<none>"),
    }


async def test_age_has_at_most_two_units() -> None:
    ages = {
        -2: "<invalid>",
        -1: "0s",
        119: "119s",
        120: "2m",
        305: "5m5s",
        600: "10m",
        10799: "179m",
        10800: "3h",
        10860: "3h1m",
        28800: "8h",
        172799: "47h",
        172800: "2d",
        176400: "2d1h",
        691200: "8d",
        63071999: "729d",
        63072000: "2y",
        63158400: "2y1d",
        252288000: "8y",
    }
    pods = [
        pod(f"age-{age}".replace("--", "-minus-"), created=(NOW - timedelta(seconds=age)).isoformat())
        for age in ages
    ]
    assert sorted(row[4] for row in await cells(*pods)) == sorted(ages.values())


def test_built_pods_are_those_of_a_real_server() -> None:
    built = [
        pod("crash-0", "ml", labels={"job-name": "crash"}, ip="10.8.1.2", waiting="CrashLoopBackOff"),
        pod("creating-0", "ml", labels={"job-name": "a"}, phase="Pending", waiting="ContainerCreating"),
        pod("done-0", "ml", labels={"job-name": "a"}, ip="10.8.1.5", phase="Succeeded"),
        pod(
            "failed-0",
            "ml",
            labels={"job-name": "a"},
            ip="10.8.1.4",
            phase="Failed",
            reason="Evicted",
            message="The node was low on resource: memory.",
        ),
        pod(
            "leaving-0",
            "ml",
            labels={"job-name": "a"},
            ip="10.8.1.7",
            deleting=True,
            finalizers=["example.com/hold"],
        ),
        pod("lost-0", "ml", labels={"job-name": "a"}, ip="10.8.1.6", phase="Unknown", reason="NodeLost"),
        pod("notready-0", "ml", labels={"job-name": "a"}, ip="10.8.1.3", ready=False),
        pod("train-1", "ml", labels={INDEX: "1", "job-name": "a"}, ip=("10.8.0.11", "fd00::11")),
    ]
    real = {each["metadata"]["name"]: each for each in recorded_pods()}
    for each in built:
        assert parts(each) == parts(real[each["metadata"]["name"]])


def parts(written: dict[str, Any]) -> list[str]:
    """Return what the builder sets, as JSON, because the order of the fields is that of the server too."""
    fields = [each["fieldsV1"] for each in written["metadata"]["managedFields"]]
    return [json.dumps(part) for part in (written["spec"], written["status"], *fields)]


@pytest.mark.parametrize("size", [4096, 16384])
def test_a_pod_can_be_as_big_as_real_ones(size: int) -> None:
    assert abs(len(json.dumps(pod("train-0", size=size), separators=(",", ":"))) - size) < 150


def test_built_pods_share_no_values() -> None:
    def clear(value: Any) -> None:
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            clear(child)
        if isinstance(value, dict | list):
            value.clear()

    first, second = (pod("a", size=4096, containers=("main", "log")) for _ in range(2))
    before = json.dumps(second)
    clear(first)
    assert json.dumps(second) == before
    assert json.dumps(pod("a", size=4096, containers=("main", "log"))) == before


def test_arguments_of_the_builder_have_defaults() -> None:
    assert pod("a")["status"]["podIP"] == pod("a")["status"]["podIP"] != pod("b")["status"]["podIP"]
    assert "podIP" not in pod("a", phase="Pending")["status"]
    assert "podIPs" not in pod("a", ip=None)["status"]
    metadata = pod("train-3", index=3)["metadata"]
    assert metadata["labels"][INDEX] == metadata["annotations"][INDEX] == "3"
    spec = pod("a", resource_claims=["gpus"])["spec"]
    assert spec["resourceClaims"] == [{"name": "claim-0", "resourceClaimName": "gpus"}]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "claim-0"}]}
