"""A pod as a row of `kubectl get pods -o wide`, with the cells that the API server computes.

The Status column follows `printPod` of kubernetes/pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NONE = "<none>"
_NODE_LOST = "NodeLost"
_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})

_CONDITIONS = {
    "Succeeded": ("Succeeded", "The pod has completed successfully."),
    "Failed": ("Failed", "The pod failed."),
}


def table_row(pod: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the row of `pod` without its `object`: `cells`, and `conditions` if the pod has finished."""
    row: dict[str, Any] = {"cells": pod_cells(pod, now)}
    condition = _CONDITIONS.get(pod.get("status", {}).get("phase", ""))
    if condition is not None:
        reason, message = condition
        row["conditions"] = [{"type": "Completed", "status": "True", "reason": reason, "message": message}]
    return row


def pod_cells(pod: Mapping[str, Any], now: datetime) -> list[str]:
    """Return the nine cells of a pod, in the order of `COLUMN_DEFINITIONS`, with ages at `now`."""
    metadata = pod.get("metadata", {})
    spec = pod.get("spec", {})
    status = pod.get("status", {})
    addresses = status.get("podIPs") or [{}]
    return [
        metadata.get("name", ""),
        _ready(spec, status),
        pod_status(pod),
        _restarts(spec, status, now),
        _age(metadata.get("creationTimestamp"), now),
        addresses[0].get("ip") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _readiness_gates(spec, status),
    ]


def pod_status(pod: Mapping[str, Any]) -> str:
    """Return the Status column: phase, reason, `Init:0/1`, `CrashLoopBackOff`, `Terminating`, ..."""
    spec = pod.get("spec", {})
    status = pod.get("status", {})
    phase = status.get("phase", "")
    shown: str = status.get("reason") or phase
    conditions = status.get("conditions") or []
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in conditions):
        shown = "SchedulingGated"
    stuck = _init_status(spec, status)
    shown = stuck or shown
    if stuck is None or _is_true(conditions, "Initialized"):
        shown = _containers_status(status, shown)
    if pod.get("metadata", {}).get("deletionTimestamp") is None:
        return shown
    if status.get("reason") == _NODE_LOST:
        return "Unknown"
    return shown if phase in _TERMINAL_PHASES else "Terminating"


def _containers_status(status: Mapping[str, Any], shown: str) -> str:
    statuses = status.get("containerStatuses") or []
    for container in reversed(statuses):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason"):
            shown = waiting["reason"]
        elif terminated is not None:
            shown = terminated.get("reason") or _exit_status(terminated)
    if shown == "Completed" and any(_is_running_ready(container) for container in statuses):
        return "Running" if _is_true(status.get("conditions") or [], "Ready") else "NotReady"
    return shown


def _init_status(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str | None:
    """Return the `Init:...` status of the first init container that has not succeeded, None if all have."""
    sidecars = _sidecars(spec)
    for index, container in enumerate(status.get("initContainerStatuses") or []):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if container.get("name") in sidecars and container.get("started"):
            continue
        if terminated is not None:
            return f"Init:{terminated.get('reason') or _exit_status(terminated)}"
        if waiting is not None and waiting.get("reason") not in {None, "", "PodInitializing"}:
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(spec.get('initContainers') or [])}"
    return None


def _exit_status(terminated: Mapping[str, Any]) -> str:
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _ready(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    sidecars = _sidecars(spec)
    ready = sum(bool(c.get("started") and c.get("ready")) for c in _initialized_sidecars(spec, status))
    if _is_initialized(spec, status):
        ready += sum(1 for container in status.get("containerStatuses") or [] if _is_running_ready(container))
    return f"{ready}/{len(spec.get('containers') or []) + len(sidecars)}"


def _restarts(spec: Mapping[str, Any], status: Mapping[str, Any], now: datetime) -> str:
    inits = list(_started_init_statuses(spec, status))
    counted = inits
    if _is_initialized(spec, status):
        sidecars = _sidecars(spec)
        counted = [container for container in inits if container.get("name") in sidecars]
        counted += status.get("containerStatuses") or []
    restarts = sum(container.get("restartCount", 0) for container in counted)
    ended = [
        last["terminated"].get("finishedAt")
        for container in counted
        if (last := container.get("lastState") or {}).get("terminated") is not None
    ]
    latest = max((moment for moment in ended if moment), default=None)
    return str(restarts) if not restarts or latest is None else f"{restarts} ({_age(latest, now)} ago)"


def _is_initialized(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    return _init_status(spec, status) is None or _is_true(status.get("conditions") or [], "Initialized")


def _started_init_statuses(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the init containers up to and including the first that has not succeeded."""
    statuses: Sequence[Mapping[str, Any]] = status.get("initContainerStatuses") or []
    for index, container in enumerate(statuses):
        yield container
        if _init_status(spec, {"initContainerStatuses": statuses[: index + 1]}) is not None:
            return


def _initialized_sidecars(spec: Mapping[str, Any], status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sidecars = _sidecars(spec)
    return [c for c in _started_init_statuses(spec, status) if c.get("name") in sidecars and not _done(c)]


def _done(container: Mapping[str, Any]) -> bool:
    terminated = (container.get("state") or {}).get("terminated")
    return terminated is not None and not terminated.get("exitCode")


def _sidecars(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the init containers that keep running (restartPolicy Always)."""
    inits = spec.get("initContainers") or []
    return frozenset(container["name"] for container in inits if container.get("restartPolicy") == "Always")


def _is_running_ready(container: Mapping[str, Any]) -> bool:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    runs = state.get("running") is not None and state.get("terminated") is None and not waiting.get("reason")
    return bool(container.get("ready")) and runs


def _is_true(conditions: Sequence[Mapping[str, Any]], kind: str) -> bool:
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)


def _readiness_gates(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    gates = spec.get("readinessGates") or []
    if not gates:
        return _NONE
    conditions = status.get("conditions") or []
    passed = sum(1 for gate in gates if _is_true(conditions, gate.get("conditionType", "")))
    return f"{passed}/{len(gates)}"


def _age(timestamp: str | None, now: datetime) -> str:
    if timestamp is None:
        return "<unknown>"
    return human_duration((now - datetime.fromisoformat(timestamp)).total_seconds())


def human_duration(seconds: float) -> str:
    """Return a duration in seconds as the Age column shows it: `31s`, `2m5s`, `3h20m`, `400d`, `2y35d`.

    As `HumanDuration` of k8s.io/apimachinery/pkg/util/duration: at most two units, and the second only if the
    duration is short.
    """
    if int(seconds) < -1:
        return "<invalid>"
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 60 * 2:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m" + (f"{whole % 60}s" if whole % 60 else "")
    if minutes < 60 * 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h" + (f"{minutes % 60}m" if minutes % 60 else "")
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        return f"{days}d" + (f"{hours % 24}h" if hours % 24 else "")
    if hours < 24 * 365 * 2:
        return f"{days}d"
    if hours < 24 * 365 * 8:
        return f"{days // 365}y" + (f"{days % 365}d" if days % 365 else "")
    return f"{days // 365}y"


def _column(name: str, description: str, *, priority: int = 0, form: str = "") -> dict[str, Any]:
    return {"name": name, "type": "string", "format": form, "description": description, "priority": priority}


COLUMN_DEFINITIONS = (
    _column(
        "Name",
        "Name must be unique within a namespace. Is required when creating resources, although some "
        "resources may allow a client to request the generation of an appropriate name automatically. Name "
        "is primarily intended for creation idempotence and configuration definition. Cannot be updated. "
        "More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
        form="name",
    ),
    _column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
    _column("Status", "The aggregate status of the containers in this pod."),
    _column(
        "Restarts",
        "The number of times the containers in this pod have been restarted and when the last container in "
        "this pod has restarted.",
    ),
    _column(
        "Age",
        "CreationTimestamp is a timestamp representing the server time when this object was created. It is "
        "not guaranteed to be set in happens-before order across separate operations. Clients may not set "
        "this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. "
        "Null for lists. More info: "
        "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    ),
    _column(
        "IP",
        "podIP address allocated to the pod. Routable at least within the cluster. Empty if not yet "
        "allocated.",
        priority=1,
    ),
    _column(
        "Node",
        "NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for "
        "scheduling by the scheduler defined in schedulerName. Once this field is set, the kubelet for this "
        "node becomes responsible for the lifecycle of this pod. This field should not be used to express a "
        "desire for the pod to be scheduled on a specific node. "
        "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename",
        priority=1,
    ),
    _column(
        "Nominated Node",
        "nominatedNodeName is set only when this pod preempts other pods on the node, but it cannot be "
        "scheduled right away as preemption victims receive their graceful termination periods. This field "
        "does not guarantee that the pod will be scheduled on this node. Scheduler may decide to place the "
        "pod elsewhere if other nodes become available sooner. Scheduler may also decide to give the "
        "resources on this node to a higher priority pod that is created after preemption. As a result, this "
        "field may be different than PodSpec.nodeName when the pod is scheduled.",
        priority=1,
    ),
    _column(
        "Readiness Gates",
        "If specified, all readiness gates will be evaluated for pod readiness. A pod is ready when all its "
        "containers are ready AND all conditions specified in the readiness gates have status equal to "
        '"True" More info: https://git.k8s.io/enhancements/keps/sig-network/580-pod-readiness-gates',
        priority=1,
    ),
)
"""The column definitions of a pod Table, word for word."""
