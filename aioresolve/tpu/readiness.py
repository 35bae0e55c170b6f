"""Which TPUs can be used: turns the states of the Cloud TPU API into reasons and errors. No I/O.

Values: `google/cloud/tpu/v2/cloud_tpu.proto`. A state that is not listed here is treated as not `READY` but
temporary; a health value that is not listed here is treated as healthy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from aioresolve.errors import Hint, TPUNotFoundError, TPUNotReadyError
from aioresolve.spec import Missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve.errors import APIError
    from aioresolve.gcp.tpu_api import Node, QueuedResource, Symptom

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unready:
    """A TPU or queued resource that cannot be used, or a name that does not exist.

    Attributes:
        path: its full name.
        reason: why it cannot be used, and what to do.
        retryable: whether it may become ready without user action.
        state: its state, as the API reports it; empty for a name that does not exist.
        health: its health, as the API reports it; may be empty.
        symptoms: its symptoms, one line each.
        workers: the number of its workers; None if the API does not report it yet.
        is_running: whether it is READY and its workers have addresses: it is only not healthy, as during
            maintenance, and jobs may continue on it.
        is_member: whether its workers are members of the cluster all the same.
        not_found: the API's error with status 404, if the name does not exist.
    """

    path: str
    reason: str
    retryable: bool = True
    state: str = ""
    health: str = ""
    symptoms: tuple[str, ...] = ()
    workers: int | None = None
    is_running: bool = False
    is_member: bool = False
    not_found: APIError | None = None

    @property
    def name(self) -> str:
        """Its id."""
        return self.path.rpartition("/")[2]

    def missing(self, job: str) -> Missing:
        """Return the workers that a watch or `wait` misses.

        A TPU that is being deleted is not final, and neither is a name that does not exist: a TPU may be
        created under that name.
        """
        is_deleted = self.state == "DELETING"
        return Missing(
            job,
            self.name,
            self.reason,
            is_final=not (self.retryable or is_deleted),
            tasks=None if is_deleted else self.workers,
        )


def unready_node(node: Node) -> Unready | None:
    """Return why a node cannot be used, or None if it can."""
    without = [number for number, endpoint in enumerate(node.endpoints) if not endpoint.ip_address]
    has_addresses = bool(node.endpoints) and not without
    is_unhealthy = node.state == "READY" and node.health.startswith(UNHEALTHY_PREFIXES)
    if node.state != "READY":
        cause = f"state {node.state or 'unknown'}"
    elif is_unhealthy:
        cause = f"state READY, health {node.health}"
    elif not has_addresses:
        subject = f"worker {', '.join(map(str, without))} has" if without else "it has"
        cause = f"state READY, but {subject} no network endpoint"
    else:
        return None
    # Texts of the server are truncated: the reason becomes part of an error message.
    symptoms = tuple(map(_symptom_line, node.symptoms))
    remedy = REMEDIES.get(node.state) or REMEDIES.get(node.health) or ""
    if node.queued_resource and node.state in LOST_STATES:
        # The queued resource becomes SUSPENDED, and does not replace its nodes.
        remedy = f"delete its queued resource {node.queued_resource.rpartition('/')[2]} and create it again"
    reasons = [
        cause,
        repr(node.health_description[:300]) if node.health_description else "",
        f"symptoms: {', '.join(symptoms[-5:])}" if symptoms else "",
        remedy,
    ]
    return Unready(
        path=node.name,
        reason="; ".join(filter(None, reasons)),
        retryable=node.state not in FINAL_STATES,
        state=node.state,
        health=node.health,
        symptoms=symptoms,
        workers=len(node.endpoints) or None,
        is_running=is_unhealthy and has_addresses,
    )


def unready_queued_resource(resource: QueuedResource) -> Unready | None:
    """Return why a queued resource has no usable nodes, or None if it may have some."""
    state, message = resource.state, resource.state.failed_data.error.message
    if state.state == "ACTIVE":
        return None
    reasons = [
        f"queued resource in state {state.state or 'unknown'}",
        repr(message[:300]) if message else "",
        f"initiated by the {state.state_initiator.lower()}" if state.state_initiator else "",
        REMEDIES.get(state.state, ""),
    ]
    return Unready(
        path=resource.name,
        reason="; ".join(filter(None, reasons)),
        retryable=state.state not in FINAL_REQUEST_STATES,
        state=state.state,
    )


def raise_if_unready(tpus: Sequence[Unready], version: str, origin: str, existing: str) -> None:
    """Raise an error that lists all these TPUs; names that do not exist are reported first.

    `version` is that of the API; `origin` is where the TPUs are named: `tpu` (the argument) or `$VARIABLE`.
    `existing` are those that exist, as text; empty if they are not known.
    """
    if not tpus:
        return
    absent = {tpu.path: tpu.not_found for tpu in tpus if tpu.not_found is not None}
    if not absent:
        retryable = all(tpu.retryable for tpu in tpus)
        outlook = "try again later" if retryable else "retrying alone will not help"
        listed = ". ".join(f"{tpu.name}: {tpu.reason}" for tpu in tpus)
        raise TPUNotReadyError(
            f"{len(tpus)} TPU{'s are' if len(tpus) > 1 else ' is'} not ready; {outlook}. {listed}",
            tpus={tpu.name: tpu.reason for tpu in tpus},
            state=tpus[0].state,
            health=tpus[0].health,
            symptoms=tpus[0].symptoms,
            retryable=retryable,
            hint=NOT_HEALTHY if any(tpu.is_running for tpu in tpus) else None,
        )
    names = list(absent)
    cause = absent[names[0]]
    argument = "{tpu}" if origin == "tpu" else f"{origin} (or unset it)"
    hint = f"Correct {argument}, {{project}} or {{zone}}."
    if not existing:
        listing = "gcloud compute tpus tpu-vm list --project={project_id} --zone=-"
        hint = f"List the existing TPUs with `{listing}`. {hint}"
    if version != "v2":
        hint = f"Version v1 of the API does not support TPU VMs: pass {{api_version=v2}}. {hint}"
    raise TPUNotFoundError(
        f"there is no TPU {', '.join(names)}{from_variable(origin)}:"
        f" {cause.host or 'the service'} returned status 404" + (f"; {existing}" if existing else ""),
        names=names,
        hint=Hint(hint, values={"project_id": names[0].split("/")[1]}),
    ) from cause


NOT_FOUND = "does not exist (yet)"
"""The reason for a name that the API does not know."""


def from_variable(origin: str) -> str:
    """Return ` (from $VARIABLE)`, because its user may not know that it is set; nothing for an argument."""
    return f" (from {origin})" if origin.startswith("$") else ""


def is_recoverable(nodes: Iterable[Node]) -> bool:
    """Return whether a job on these nodes may continue.

    It may if no node is lost and none ran out of memory within 90 seconds: the rule of TensorFlow's Cloud TPU
    client.
    """
    return not any(node.state in LOST_STATES or any(map(_ran_out_of_memory, node.symptoms)) for node in nodes)


def _ran_out_of_memory(symptom: Symptom) -> bool:
    if symptom.symptom_type not in OUT_OF_MEMORY:
        return False
    try:
        moment = datetime.fromisoformat(symptom.create_time)
    except ValueError:
        return False  # without a time it cannot be called recent
    return moment.replace(tzinfo=moment.tzinfo or UTC) > datetime.now(UTC) - RECENT


def _symptom_line(symptom: Symptom) -> str:
    parts = [
        symptom.symptom_type or "unnamed",
        f"on worker {symptom.worker_id}" if symptom.worker_id else "",
        f"at {symptom.create_time}" if symptom.create_time else "",
        f"({symptom.details[:200]})" if symptom.details else "",
    ]
    return " ".join(filter(None, parts))
