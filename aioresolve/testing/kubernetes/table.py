"""A pod as a row of `kubectl get pods -o wide`, with the cells that the API server computes.

The Status column follows `printPod` of kubernetes/pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Container = Mapping[str, Any]

COLUMN_DEFINITIONS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("pod_columns.json").read_text()
)
"""The columns of a pod's row, with the descriptions of a real server."""

_NONE = "<none>"
_CONDITIONS = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}


def table_row(pod: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the row of `pod` without its `object`, with ages at `now`.

    It has `cells` in the order of `COLUMN_DEFINITIONS`, and `conditions` if the pod has finished.
    """
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    inits = _started_inits(spec, status)
    stuck = next((text for _, text in inits if text), "")
    is_initialized = not stuck or _is_true(status, "Initialized")
    sidecars = _sidecars(spec)
    started = [init for init, _ in inits]
    running = [init for init in started if init.get("name") in sidecars]
    main: Sequence[Container] = status.get("containerStatuses") or ()
    ready = sum(bool(init.get("started") and init.get("ready")) for init in running)
    if is_initialized:
        ready += sum(map(_is_running_and_ready, main))
    restarted = [*running, *main] if is_initialized else started
    gates = spec.get("readinessGates") or ()
    passed = sum(_is_true(status, gate.get("conditionType", "")) for gate in gates)
    addresses = status.get("podIPs") or [{}]
    row: dict[str, Any] = {
        "cells": [
            metadata.get("name", ""),
            f"{ready}/{len(spec.get('containers') or ()) + len(sidecars)}",
            _status(pod, stuck, is_initialized),
            _restarts(restarted, now),
            _age(metadata.get("creationTimestamp"), now),
            addresses[0].get("ip") or _NONE,
            spec.get("nodeName") or _NONE,
            status.get("nominatedNodeName") or _NONE,
            f"{passed}/{len(gates)}" if gates else _NONE,
        ]
    }
    phase = status.get("phase", "")
    if phase in _CONDITIONS:
        condition = {"type": "Completed", "status": "True", "reason": phase, "message": _CONDITIONS[phase]}
        row["conditions"] = [condition]
    return row


def _status(pod: Mapping[str, Any], stuck: str, is_initialized: bool) -> str:
    """Return the Status column: phase, reason, `Init:0/1`, `CrashLoopBackOff`, `Terminating`, ..."""
    status = pod["status"]
    phase = status.get("phase", "")
    shown: str = status.get("reason") or phase
    if any(each.get("reason") == "SchedulingGated" for each in status.get("conditions") or ()):
        shown = "SchedulingGated"
    shown = stuck or shown
    if is_initialized:
        shown = _containers_status(status, shown)
    if "deletionTimestamp" not in pod["metadata"]:
        return shown
    if status.get("reason") == "NodeLost":
        return "Unknown"
    return shown if phase in _CONDITIONS else "Terminating"


def _containers_status(status: Mapping[str, Any], shown: str) -> str:
    containers: Sequence[Container] = status.get("containerStatuses") or ()
    for container in reversed(containers):
        waiting, terminated = _state(container, "waiting"), _state(container, "terminated")
        if waiting is not None and waiting.get("reason"):
            shown = waiting["reason"]
        elif terminated is not None:
            shown = _exit_status(terminated)
    if shown == "Completed" and any(map(_is_running_and_ready, containers)):
        return "Running" if _is_true(status, "Ready") else "NotReady"
    return shown


def _started_inits(spec: Mapping[str, Any], status: Mapping[str, Any]) -> list[tuple[Container, str]]:
    """Return the init containers up to the first that has not succeeded, with its `Init:...` status.

    The text of the others is empty; a sidecar has succeeded when it has started.
    """
    sidecars, found = _sidecars(spec), list[tuple["Container", str]]()
    for index, container in enumerate(status.get("initContainerStatuses") or ()):
        waiting, terminated = _state(container, "waiting"), _state(container, "terminated")
        text = ""
        if terminated is not None:
            text = f"Init:{_exit_status(terminated)}" if terminated.get("exitCode") else ""
        elif container.get("name") in sidecars and container.get("started"):
            text = ""
        elif waiting is not None and waiting.get("reason") not in {None, "", "PodInitializing"}:
            text = f"Init:{waiting['reason']}"
        else:
            text = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        found.append((container, text))
        if text:
            break
    return found


def _restarts(containers: Sequence[Container], now: datetime) -> str:
    restarts = sum(container.get("restartCount", 0) for container in containers)
    ends = [(_state(each, "terminated", "lastState") or {}).get("finishedAt") for each in containers]
    latest = max(filter(None, ends), default=None)
    return str(restarts) if not restarts or latest is None else f"{restarts} ({_age(latest, now)} ago)"


def _sidecars(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the init containers that keep running (restartPolicy Always)."""
    inits = spec.get("initContainers") or ()
    return frozenset(container["name"] for container in inits if container.get("restartPolicy") == "Always")


def _state(container: Container, name: str, field: str = "state") -> Mapping[str, Any] | None:
    state: Mapping[str, Any] | None = (container.get(field) or {}).get(name)
    return state


def _exit_status(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_running_and_ready(container: Container) -> bool:
    return bool(container.get("ready")) and _state(container, "running") is not None


def _is_true(status: Mapping[str, Any], kind: str) -> bool:
    conditions = status.get("conditions") or ()
    return any(each.get("type") == kind and each.get("status") == "True" for each in conditions)


def _age(timestamp: str | None, now: datetime) -> str:
    """Return how long ago a moment was, in the largest unit that fits twice: `31s`, `2m`, `400d`."""
    if timestamp is None:
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(timestamp)).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
