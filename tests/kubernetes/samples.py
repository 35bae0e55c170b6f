"""Pods and responses as a Kubernetes 1.36 API server writes them, reduced to the relevant fields."""

import json
from typing import Any

import msgspec

from aioresolve.kubernetes import KubernetesClusterResolver, Pod

COLUMNS = ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]

ROWS = [
    ["crash-0", "0/1", "CrashLoopBackOff", "0", "31s", "10.8.1.2", "node-a", "<none>", "<none>"],
    ["creating-0", "0/1", "ContainerCreating", "0", "31s", "<none>", "node-a", "<none>", "<none>"],
    ["done-0", "0/1", "Completed", "0", "31s", "10.8.1.5", "node-a", "<none>", "<none>"],
    ["failed-0", "0/1", "Evicted", "0", "31s", "10.8.1.4", "node-a", "<none>", "<none>"],
    ["leaving-0", "1/1", "Terminating", "0", "31s", "10.8.1.7", "node-a", "<none>", "<none>"],
    ["lost-0", "0/1", "NodeLost", "0", "31s", "10.8.1.6", "node-a", "<none>", "<none>"],
    ["notready-0", "0/1", "Running", "0", "31s", "10.8.1.3", "node-a", "<none>", "<none>"],
    ["pending-0", "0/1", "Pending", "0", "31s", "<none>", "node-a", "<none>", "<none>"],
    ["train-0", "1/1", "Running", "0", "31s", "10.8.0.10", "node-a", "<none>", "<none>"],
    ["train-1", "1/1", "Running", "0", "31s", "10.8.0.11", "node-a", "<none>", "<none>"],
    ["train-10", "1/1", "Running", "0", "31s", "10.8.0.20", "node-a", "<none>", "<none>"],
    ["train-2", "1/1", "Running", "0", "31s", "10.8.0.12", "node-a", "<none>", "<none>"],
]


def table(rows: list[list[str]], columns: list[str] = COLUMNS, **metadata: str) -> bytes:
    """Return a response with a Table."""
    return json.dumps(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "8470", **metadata},
            "columnDefinitions": [{"name": name, "type": "string", "priority": 0} for name in columns],
            "rows": [{"cells": cells, "object": None} for cells in rows],
        }
    ).encode()


def pod_json(
    name: str = "train-0", *, phase: str = "Running", ip: str | None = "10.8.0.10", **more: Any
) -> Any:
    """Return a pod as JSON data; `more` adds to metadata, spec and status under those names."""
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-of-{name}", **more.pop("metadata", {})}
    status = {"phase": phase, **more.pop("status", {})}
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.168.0.1"} | status
    assert not set(more) - {"spec"}
    return {"metadata": metadata, "spec": {"nodeName": "node-a", **more.pop("spec", {})}, "status": status}


def pod(name: str = "train-0", **more: Any) -> Pod:
    """Return a pod; see `pod_json`."""
    return msgspec.convert(pod_json(name, **more), Pod)


def labelled(name: str, **labels: str) -> Pod:
    """Return a running pod with these labels."""
    return pod(name, metadata={"labels": labels})


def watch_policy(first_wait: float = 0.01, longest_wait: float = 0.05, **fields: float) -> Any:
    """Return a `watch_policy` with short waits between attempts, and with these fields."""
    policy = KubernetesClusterResolver.watch_policy
    backoff = msgspec.structs.replace(policy.backoff, first_wait=first_wait, longest_wait=longest_wait)
    return msgspec.structs.replace(policy, backoff=backoff, **fields)


READY = [{"type": "Ready", "status": "True", "lastProbeTime": None}]
UNSCHEDULABLE = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
]


def waiting(reason: str, message: str | None = None) -> list[Any]:
    """Return `containerStatuses` of one container that waits."""
    state = {"reason": reason} if message is None else {"reason": reason, "message": message}
    return [{"name": "main", "state": {"waiting": state}, "restartCount": 0}]


def terminated(exit_code: int, reason: str) -> list[Any]:
    """Return `containerStatuses` of one container that ended."""
    return [{"name": "main", "state": {"terminated": {"exitCode": exit_code, "reason": reason}}}]
