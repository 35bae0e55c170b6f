"""Pods of the loopback API server: the builder, and their rows in `kubectl get pods`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from aioresolve.testing import KubernetesServer, pod

from .client import NOW, TABLE, fetch, recorded_pods

INDEX = "batch.kubernetes.io/job-completion-index"


async def cells(*pods: dict[str, Any]) -> list[list[str]]:
    async with KubernetesServer(pods, clock=lambda: NOW) as server:
        got = await fetch(server, headers={"Accept": TABLE})
    return [row["cells"] for row in got.json["rows"]]


async def test_row_shows_restarts_with_the_time_of_the_last() -> None:
    restarted, initializing = pod("a", containers=("main", "log"), restarts=2), pod("b", restarts=9)
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-11-20T15:34:47Z"}}
    restarted["status"]["containerStatuses"][1]["lastState"] = ended
    initializing["spec"]["initContainers"] = [{"name": "init"}]
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    initializing["status"]["initContainerStatuses"] = [{"name": "init", "state": waiting, "restartCount": 3}]
    assert [row[1:4] for row in await cells(restarted, initializing)] == [
        ["2/2", "Running", "4 (5m5s ago)"],
        ["0/1", "Init:CrashLoopBackOff", "3"],
    ]


async def test_row_shows_readiness_gates() -> None:
    gated = pod("gated")
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]
    gated["status"]["conditions"].append({"type": "example.com/a", "status": "True"})
    assert [row[8] for row in await cells(gated)] == ["1/2"]


async def test_age_has_at_most_two_units() -> None:
    ages = {-2: "<invalid>", -1: "0s", 119: "119s", 120: "2m", 305: "5m5s", 600: "10m", 10799: "179m"}
    ages |= {10800: "3h", 10860: "3h1m", 28800: "8h", 172799: "47h", 172800: "2d", 176400: "2d1h"}
    ages |= {691200: "8d", 63071999: "729d", 63072000: "2y", 63158400: "2y1d", 252288000: "8y"}
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
