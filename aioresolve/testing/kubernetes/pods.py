"""Pods as a cluster holds them: a builder for tests, and the defaults the API server fills in."""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from .managed_fields import managed_fields, owned_fields
from .statuses import compact_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["pod", "with_defaults"]

MOMENT = "2026-11-20T00:00:00Z"
"""When everything happened that the builder has to date."""
_LEAVING = "2026-11-20T00:00:30Z"
_IMAGE = "trainer:v1"
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_INDEX = "batch.kubernetes.io/job-completion-index"

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


def pod(
    name: str,
    namespace: str = "default",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    index: int | None = None,
    ip: str | Sequence[str] | None = "auto",
    host_ip: str = "192.168.0.1",
    node: str | None = "node-a",
    phase: Phase = "Running",
    ready: bool = True,
    reason: str | None = None,
    message: str | None = None,
    waiting: str | None = None,
    exit_code: int | None = None,
    restarts: int = 0,
    deleting: bool = False,
    finalizers: Sequence[str] = (),
    hostname: str | None = None,
    subdomain: str | None = None,
    containers: Sequence[str] = ("main",),
    created: str | None = None,
    size: int = 0,
) -> dict[str, Any]:
    """A pod as `kubectl get -o json` shows it, about 2.7 KB of JSON, ready for `KubernetesServer(pods)`.

    Args:
        name: the pod's name.
        namespace: its namespace.
        labels: its labels.
        annotations: its annotations.
        index: the completion index of an Indexed Job, as label and annotation.
        ip: its address, or several (dual stack, the first is `podIP`), or None; `"auto"` derives one from the
            name while the phase is not Pending.
        host_ip: the address of its node.
        node: the node it is bound to; None is not scheduled.
        phase: its phase. A Succeeded pod has come to exit code 0 and a Failed one, unless `reason` is given,
            to 1.
        ready: whether its containers are ready while it runs.
        reason: why it is in this phase, such as `Evicted` or `NodeLost`.
        message: the sentence that goes with `reason`.
        waiting: its containers wait for this reason: `ContainerCreating`, `CrashLoopBackOff`, ...
        exit_code: its containers ended with this code.
        restarts: how often each container was restarted.
        deleting: whether it has been asked to go and is still there.
        finalizers: what keeps it there.
        hostname: its `spec.hostname`.
        subdomain: its `spec.subdomain`.
        containers: the names of its containers.
        created: its creationTimestamp (RFC 3339); None leaves that to the server.
        size: environment variables are added until the JSON has about this many bytes; 8192 is usual.
    """
    addresses = _addresses(ip, f"{namespace}/{name}", phase)
    states = _container_statuses(containers, phase, ready, reason, waiting, exit_code, restarts)
    metadata = {
        "name": name,
        "namespace": namespace,
        "creationTimestamp": created,
        "deletionTimestamp": _LEAVING if deleting else None,
        "deletionGracePeriodSeconds": 30 if deleting else None,
        "labels": dict(labels or {}) | ({_INDEX: str(index)} if index is not None else {}),
        "annotations": dict(annotations or {}) | ({_INDEX: str(index)} if index is not None else {}),
        "finalizers": list(finalizers),
    }
    status = {
        "phase": phase,
        "conditions": _conditions(phase, ready and waiting is None, node, reason),
        "message": message,
        "reason": reason,
        "hostIP": host_ip if node and (addresses or states) else None,
        "podIP": addresses[0] if addresses else None,
        "podIPs": [{"ip": address} for address in addresses],
        "containerStatuses": states,
        "qosClass": "BestEffort",
    }
    built = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _present(metadata),
        "spec": _spec(containers, node, hostname, subdomain),
        "status": _present(status),
    }
    return _padded(_managed(built), size)


def with_defaults(written: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as the API server completes one that a client wrote: defaults in `spec`, phase Pending."""
    spec = dict(written.get("spec") or {})
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_container_with_defaults(container) for container in spec[kind]]
    for key, value in _spec_defaults().items():
        spec.setdefault(key, value)
    status: dict[str, Any] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [_GATED]
    return {**written, "spec": spec, "status": status | {"qosClass": "BestEffort"}}


def _spec_defaults() -> dict[str, Any]:
    return {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [_tolerated("not-ready"), _tolerated("unreachable")],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _tolerated(taint: str) -> dict[str, Any]:
    key = f"node.kubernetes.io/{taint}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}


def _container_with_defaults(container: Mapping[str, Any]) -> dict[str, Any]:
    image = container.get("image", "")
    _, _, tag = image.rpartition("/")[2].partition(":")
    defaults = {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if tag in {"", "latest"} else "IfNotPresent",
    }
    return {**container, **{key: value for key, value in defaults.items() if key not in container}}


def _spec(
    containers: Sequence[str], node: str | None, hostname: str | None, subdomain: str | None
) -> dict[str, Any]:
    written = {
        "containers": [_container(container) for container in containers],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "nodeName": node,
        "securityContext": {},
        "hostname": hostname,
        "subdomain": subdomain,
    }
    defaults = {key: value for key, value in _spec_defaults().items() if key not in written}
    return {key: value for key, value in written.items() if value is not None} | defaults


def _container(name: str) -> dict[str, Any]:
    resources = {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}
    return _container_with_defaults({"name": name, "image": _IMAGE, "resources": resources})


def _addresses(ip: str | Sequence[str] | None, key: str, phase: str) -> tuple[str, ...]:
    if ip is None or (ip == "auto" and phase == "Pending"):
        return ()
    if ip == "auto":
        number = zlib.crc32(key.encode())
        return (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",)
    return (ip,) if isinstance(ip, str) else tuple(ip)


def _conditions(phase: Phase, ready: bool, node: str | None, reason: str | None) -> list[dict[str, Any]]:
    moment = {"lastProbeTime": None, "lastTransitionTime": MOMENT}
    if phase == "Pending" and node is None:
        unschedulable = {"reason": reason or "Unschedulable", "message": "0/1 nodes are available"}
        return [{"type": "PodScheduled", "status": "False", **moment, **unschedulable}]
    if phase in {"Running", "Pending"}:
        ready = ready and phase == "Running"
        return [{"type": "Ready", "status": str(ready), **moment}]
    return []


def _container_statuses(
    containers: Sequence[str],
    phase: Phase,
    ready: bool,
    reason: str | None,
    waiting: str | None,
    exit_code: int | None,
    restarts: int,
) -> list[dict[str, Any]]:
    if _container_state(phase, reason, waiting, exit_code) is None:
        return []
    runs_ready = ready and phase == "Running" and waiting is None and exit_code is None
    return [
        {
            "name": container,
            "state": _container_state(phase, reason, waiting, exit_code),
            "lastState": {},
            "ready": runs_ready,
            "restartCount": restarts,
            "image": _IMAGE,
            "imageID": "sha256:abc",
            "containerID": "containerd://abc",
            "started": runs_ready,
        }
        for container in containers
    ]


def _container_state(
    phase: Phase, reason: str | None, waiting: str | None, exit_code: int | None
) -> dict[str, Any] | None:
    if waiting is not None:
        text = {"message": "back-off 5m0s"} if waiting.endswith("BackOff") else {}
        return {"waiting": {"reason": waiting, **text}}
    if exit_code is None and phase == "Succeeded":
        exit_code = 0
    if exit_code is None and phase == "Failed" and reason is None:
        exit_code = 1
    if exit_code is not None:
        word = "Error" if exit_code else "Completed"
        return {"terminated": {"exitCode": exit_code, "reason": word, "startedAt": None, "finishedAt": None}}
    return {"running": {"startedAt": MOMENT}} if phase == "Running" else None


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value not in ([], {})}


def _managed(built: Mapping[str, Any]) -> dict[str, Any]:
    time = built["metadata"].get("creationTimestamp") or MOMENT
    fields = managed_fields(built, "aioresolve", time)
    return {**built, "metadata": {**built["metadata"], "managedFields": fields}}


def _padded(built: dict[str, Any], size: int) -> dict[str, Any]:
    """`built` with as many environment variables in its first container as bring it to `size` bytes."""
    count = round((size - len(compact_json(built))) / (len(_variables(2)) - len(_variables(1))))
    if count < 1:
        return built
    # Loading them is ten times as fast as deriving who manages them, and no two pods share a dict.
    env, owned = json.loads(_variables(count))
    first, *others = built["spec"]["containers"]
    built["spec"]["containers"] = [_with_env(first, "env", env), *others]
    written = built["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:containers"]
    key = next(iter(written))
    written[key] = _with_env(written[key], "f:env", owned)
    return built


def _with_env(container: Mapping[str, Any], key: str, env: Any) -> dict[str, Any]:
    head = {name: container[name] for name in (".", "name", "image") if name in container}
    return {**head, key: env} | {name: value for name, value in container.items() if name not in head}


@lru_cache
def _variables(count: int) -> bytes:
    """JSON of `count` environment variables and of the fields that manage them."""
    env = [{"name": f"SETTING_{number:04}", "value": "x" * 80} for number in range(count)]
    return compact_json([env, owned_fields({"env": env})["f:env"]])
