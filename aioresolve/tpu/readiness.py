"""Which TPUs can be used: turns the states of the Cloud TPU API into reasons and errors. No I/O.

Values: `google/cloud/tpu/v2/cloud_tpu.proto`. A state that is not listed here is treated as not `READY` but
temporary; a health value that is not listed here is treated as healthy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from aioresolve.errors import APIError, Hint, TPUNotFoundError, TPUNotReadyError
from aioresolve.spec import Missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve.gcp.tpu_api import Node, QueuedResource, Symptom

READY = "READY"
ACTIVE = "ACTIVE"

FINAL_STATES = frozenset({"DELETING", "HIDDEN", "HIDING", "PREEMPTED", "STOPPED", "STOPPING", "TERMINATED"})
"""States of a node that do not end without user action."""

FINAL_REQUEST_STATES = frozenset({"DELETING", "FAILED", "SUSPENDED", "SUSPENDING"})
"""States of a queued resource that do not end without user action."""

UNHEALTHY_PREFIXES = ("DEPRECATED_UNHEALTHY", "TIMEOUT", "UNHEALTHY")
"""Prefixes of the health of a TPU that is not healthy; the first exists in v1 only. If the API does not
report the health, the TPU is healthy."""

LOST_STATES = frozenset({"PREEMPTED", "TERMINATED"})
OUT_OF_MEMORY = frozenset({"HBM_OUT_OF_MEMORY", "OUT_OF_MEMORY"})
RECENT = timedelta(seconds=90)
"""How long after an out-of-memory symptom TensorFlow's client considers the job lost."""

NOT_HEALTHY = "Pass {not_healthy=allow} to use TPUs that are READY but not healthy, or {not_healthy=skip}."

DELETING = "DELETING"
"""A retry alone will not help then. But the name is free afterwards, and may be created again: a wait that
accepts a name that does not exist accepts this state too."""

REMEDIES = {
    "DELETING": "create it again when it is deleted",
    "PREEMPTED": "delete it and create it again",
    "TERMINATED": "delete it and create it again",
    "STOPPED": "start it with `gcloud compute tpus tpu-vm start`",
    "UNHEALTHY_MAINTENANCE": "wait until the maintenance is over",
    "UNHEALTHY_TENSORFLOW": "check the logs of its runtime, and restart it if this persists",
    "FAILED": "delete the queued resource and create it again",
    "SUSPENDING": "the queued resource gets no TPUs again: delete it and create it again",
    "SUSPENDED": "the queued resource gets no TPUs again: delete it and create it again",
}
"""By state of a node, health of a node, or state of a queued resource.

Life cycle of queued resources: https://cloud.google.com/tpu/docs/queued-resources."""


@dataclass(frozen=True, slots=True)
class NodeNotFound:
    """A name for which the API has no node or queued resource.

    Attributes:
        path: the full name.
        error: the API's error, with status 404.
    """

    path: str
    error: APIError


@dataclass(frozen=True, slots=True)
class Unready:
    """A TPU or queued resource that cannot be used.

    Attributes:
        name: its id.
        reason: why it cannot be used, and what to do.
        retryable: whether it may become ready without user action.
        state: its state, as the API reports it.
        health: its health, as the API reports it; may be empty.
        symptoms: its symptoms, one line each.
        workers: the number of its workers; None if the API does not report it yet.
        path: its full name.
        is_running: whether it is READY and its workers have addresses: it is only not healthy, as during
            maintenance, and jobs may continue on it.
        create_time: when a queued resource was created, in RFC 3339 format; may be empty.
    """

    name: str
    reason: str
    retryable: bool
    state: str = ""
    health: str = ""
    symptoms: tuple[str, ...] = ()
    workers: int | None = None
    path: str = ""
    is_running: bool = False
    create_time: str = ""


def unready_node(node: Node) -> Unready | None:
    """Return why a node cannot be used, or None if it can."""
    has_addresses = bool(node.endpoints) and all(endpoint.ip_address for endpoint in node.endpoints)
    is_unhealthy = node.state == READY and node.health.startswith(UNHEALTHY_PREFIXES)
    if node.state != READY:
        cause, retryable = f"state {node.state or 'unknown'}", node.state not in FINAL_STATES
    elif is_unhealthy:
        cause, retryable = f"state READY, health {node.health}", True
    elif not has_addresses:
        without = [n for n, endpoint in enumerate(node.endpoints) if not endpoint.ip_address]
        subject = f"worker {', '.join(map(str, without))} has" if without else "it has"
        cause, retryable = f"state READY, but {subject} no network endpoint", True
    else:
        return None
    # Texts of the server are truncated: the reason becomes part of an error message.
    symptoms = tuple(map(_symptom_line, node.symptoms))
    reasons = [cause]
    if node.health_description:
        reasons.append(repr(node.health_description[:300]))
    if symptoms:
        reasons.append(f"symptoms: {', '.join(symptoms[-5:])}")
    if node.queued_resource and node.state in LOST_STATES:
        # The queued resource becomes SUSPENDED, and does not replace its nodes.
        request = node.queued_resource.rpartition("/")[2]
        reasons.append(f"delete its queued resource {request} and create it again")
    elif remedy := REMEDIES.get(node.state) or REMEDIES.get(node.health):
        reasons.append(remedy)
    name = node.name.rpartition("/")[2]
    workers = len(node.endpoints) or None
    reason = "; ".join(reasons)
    is_running = is_unhealthy and has_addresses
    return Unready(name, reason, retryable, node.state, node.health, symptoms, workers, node.name, is_running)


def unready_queued_resource(resource: QueuedResource) -> Unready | None:
    """Return why a queued resource has no usable nodes, or None if it may have some."""
    if resource.status == ACTIVE:
        return None
    reasons = [f"queued resource in state {resource.status or 'unknown'}"]
    failed = resource.state.failed_data if resource.state is not None else None
    if failed is not None and failed.error is not None and failed.error.message:
        reasons.append(repr(failed.error.message[:300]))
    if resource.state is not None and resource.state.state_initiator:
        reasons.append(f"initiated by the {resource.state.state_initiator.lower()}")
    if remedy := REMEDIES.get(resource.status):
        reasons.append(remedy)
    retryable = resource.status not in FINAL_REQUEST_STATES
    name = resource.name.rpartition("/")[2]
    return Unready(
        name,
        "; ".join(reasons),
        retryable,
        resource.status,
        path=resource.name,
        create_time=resource.create_time,
    )


def not_ready_error(unready: Sequence[Unready]) -> TPUNotReadyError:
    """Return the error that lists all these TPUs; there is at least one."""
    listed = ". ".join(f"{tpu.name}: {tpu.reason}" for tpu in unready)
    first = unready[0]
    retryable = all(tpu.retryable for tpu in unready)
    outlook = "try again later" if retryable else "retrying alone will not help"
    return TPUNotReadyError(
        f"{len(unready)} TPU{'s are' if len(unready) > 1 else ' is'} not ready; {outlook}. {listed}",
        tpus={tpu.name: tpu.reason for tpu in unready},
        state=first.state,
        health=first.health,
        symptoms=first.symptoms,
        retryable=retryable,
        hint=NOT_HEALTHY if any(tpu.is_running for tpu in unready) else None,
    )


def not_found_error(missing: Sequence[NodeNotFound], version: str, origin: str) -> TPUNotFoundError:
    """Return the error that lists all these names; there is at least one.

    Args:
        missing: the names.
        version: the version of the API.
        origin: where they are named: `tpu` (the argument) or `$VARIABLE`.
    """
    names = [absent.path for absent in missing]
    hint = (
        "List the existing TPUs with `gcloud compute tpus tpu-vm list --project={project_id} --zone=-`."
        " Correct {tpu}, {project} or {zone}."
    )
    if version != "v2":
        hint = f"Version v1 of the API does not support TPU VMs: pass {{api_version=v2}}. {hint}"
    return TPUNotFoundError(
        f"there is no TPU {', '.join(names)}{from_variable(origin)}:"
        f" {missing[0].error.host or 'the service'} returned status 404",
        names=names,
        hint=with_variable_hint(Hint(hint, values={"project_id": names[0].split("/")[1]}), origin),
    )


def from_variable(origin: str) -> str:
    """Return ` (from $VARIABLE)` for a TPU that a variable names, and nothing for an argument.

    The user may not know that the variable is set.
    """
    return f" (from {origin})" if origin.startswith("$") else ""


def with_variable_hint(hint: Hint | None, origin: str) -> Hint | None:
    """Return the hint for a TPU, and what to do if the variable that names it is meant for something else."""
    if not origin.startswith("$"):
        return hint
    example = ", as in pods of KubeRay" if origin == "$TPU_NAME" else ""
    advice = f"If {origin} is not the name of a Cloud TPU{example}, unset it, or pass {{tpu}}."
    return Hint(advice) if hint is None else Hint(f"{hint.text} {advice}", hint.values)


def missing_workers(tpu: Unready | NodeNotFound, job: str, origin: str) -> Missing:
    """Return the workers that a watch or `wait` misses because of this TPU, which is named at `origin`.

    A name that does not exist is not final, and neither is a TPU that is being deleted: a TPU may still be
    created under that name.
    """
    if isinstance(tpu, NodeNotFound):
        name, named_by = tpu.path.rpartition("/")[2], from_variable(origin)
        return Missing(job, name, f"{tpu.path}{named_by} does not exist (yet): check its name", tasks=None)
    is_final = not tpu.retryable and tpu.state != DELETING
    return Missing(
        job, tpu.name, tpu.reason, is_final=is_final, tasks=None if tpu.state == DELETING else tpu.workers
    )


def is_recoverable(nodes: Iterable[Node], now: datetime | None = None) -> bool:
    """Return whether a job on these nodes may continue.

    It may if no node is lost and none ran out of memory within 90 seconds: the rule of TensorFlow's Cloud TPU
    client.

    Args:
        nodes: the nodes.
        now: the time to count from, with a time zone; the present if None.
    """
    since = (now or datetime.now(UTC)) - RECENT
    return not any(
        node.state in LOST_STATES or any(_ran_out_of_memory(symptom, since) for symptom in node.symptoms)
        for node in nodes
    )


def _ran_out_of_memory(symptom: Symptom, since: datetime) -> bool:
    if symptom.symptom_type not in OUT_OF_MEMORY:
        return False
    try:
        moment = datetime.fromisoformat(symptom.create_time)
    except ValueError:
        return False  # without a time it cannot be called recent
    return moment.replace(tzinfo=moment.tzinfo or UTC) > since


def _symptom_line(symptom: Symptom) -> str:
    parts = [
        symptom.symptom_type or "unnamed",
        f"on worker {symptom.worker_id}" if symptom.worker_id else "",
        f"at {symptom.create_time}" if symptom.create_time else "",
        f"({symptom.details[:200]})" if symptom.details else "",
    ]
    return " ".join(filter(None, parts))
