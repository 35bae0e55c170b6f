"""What the API says of a TPU's state and health: which may be resolved, which may become ready. Pure.

Values: `google/cloud/tpu/v2/cloud_tpu.proto`. A state or health that is none of them is taken at its word:
such a TPU is not `READY`, or is not known to be unhealthy.

What a source shows of TPUs -> the workers of those that are ready, and who is missing. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from aioresolve.errors import APIError, TPUNotReadyError
from aioresolve.spec import ClusterState, Missing, Observation

from .discovery import Local
from .slices import cluster_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve.gcp.messages import Node, QueuedResource, Symptom

    from .discovery import Source
    from .nodes import FoundTPUs

__all__ = [
    "NotThere",
    "Unready",
    "is_recoverable",
    "not_ready_error",
    "observation_of",
    "unready_node",
    "unready_queued_resource",
]

READY = "READY"
ACTIVE = "ACTIVE"

FINAL = frozenset({"DELETING", "HIDDEN", "HIDING", "PREEMPTED", "STOPPED", "STOPPING", "TERMINATED"})
"""States of a node that end only when somebody does something about it."""

FINAL_REQUESTS = frozenset({"DELETING", "FAILED", "SUSPENDED", "SUSPENDING"})
"""The same of a queued resource."""

UNHEALTHY = ("TIMEOUT", "UNHEALTHY")
"""How the health of a TPU that cannot be used begins. One the API does not tell, or not yet, is no fault."""

LOST = frozenset({"PREEMPTED", "TERMINATED"})
OUT_OF_MEMORY = frozenset({"HBM_OUT_OF_MEMORY", "OUT_OF_MEMORY"})
RECENT = timedelta(seconds=90)
"""How long after an out-of-memory symptom TensorFlow's client deems the job lost."""

MENDS = {
    "PREEMPTED": "delete it and create it again, or use a queued resource, which does so",
    "TERMINATED": "delete it and create it again",
    "STOPPED": "start it with `gcloud compute tpus tpu-vm start`",
    "UNHEALTHY_MAINTENANCE": "wait until the maintenance is over",
    "UNHEALTHY_TENSORFLOW": "see its runtime's logs, and restart it if it stays so",
    "FAILED": "delete the queued resource and create it again",
}


@dataclass(frozen=True, slots=True)
class NotThere:
    """A name that nothing has.

    Attributes:
        path: the full name.
        error: what the API said to it.
    """

    path: str
    error: APIError


@dataclass(frozen=True, slots=True)
class Unready:
    """One TPU, or queued resource, that cannot be used.

    Attributes:
        name: its id.
        reason: what is wrong with it, and the mend.
        is_passing: whether it may become ready by itself.
        state: in the API's words.
        health: in the API's words; empty where it does not tell.
        symptoms: one line each.
        workers: how many it has; None where the API does not tell yet.
    """

    name: str
    reason: str
    is_passing: bool
    state: str = ""
    health: str = ""
    symptoms: tuple[str, ...] = ()
    workers: int | None = None


def unready_node(node: Node) -> Unready | None:
    """Return why a node cannot be used; None where it can."""
    if node.state != READY:
        why, is_passing = f"state {node.state or 'not told'}", node.state not in FINAL
    elif node.health.startswith(UNHEALTHY):
        why, is_passing = f"state READY, health {node.health}", True
    elif not node.endpoints or not all(endpoint.ip_address for endpoint in node.endpoints):
        without = [n for n, endpoint in enumerate(node.endpoints) if not endpoint.ip_address]
        who = f"worker {', '.join(map(str, without))} has" if without else "it has"
        why, is_passing = f"state READY, but {who} no network endpoint", True
    else:
        return None
    symptoms = tuple(map(_symptom_line, node.symptoms))
    words = [why]
    if node.health_description:
        words.append(repr(node.health_description[:300]))
    if symptoms:
        words.append(f"symptoms: {', '.join(symptoms[-5:])}")
    if mend := MENDS.get(node.state) or MENDS.get(node.health):
        words.append(mend)
    name = node.name.rpartition("/")[2]
    workers = len(node.endpoints) or None
    return Unready(name, "; ".join(words), is_passing, node.state, node.health, symptoms, workers)


def unready_queued_resource(resource: QueuedResource) -> Unready | None:
    """Return why a queued resource has no nodes to be used; None where it may have them."""
    if resource.status == ACTIVE:
        return None
    words = [f"queued resource in state {resource.status or 'not told'}"]
    failed = resource.state.failed_data if resource.state is not None else None
    if failed is not None and failed.error is not None and failed.error.message:
        words.append(repr(failed.error.message[:300]))
    if resource.state is not None and resource.state.state_initiator:
        words.append(f"brought about by the {resource.state.state_initiator.lower()}")
    if mend := MENDS.get(resource.status):
        words.append(mend)
    is_passing = resource.status not in FINAL_REQUESTS
    return Unready(resource.name.rpartition("/")[2], "; ".join(words), is_passing, resource.status)


def not_ready_error(unready: Sequence[Unready]) -> TPUNotReadyError:
    """Return the error that names every one of these; there is at least one."""
    listed = ". ".join(f"{tpu.name}: {tpu.reason}" for tpu in unready)
    first = unready[0]
    is_passing = all(tpu.is_passing for tpu in unready)
    advice = "try again later" if is_passing else "trying again alone will not help"
    return TPUNotReadyError(
        f"{len(unready)} TPU{'s are' if len(unready) > 1 else ' is'} not ready; {advice}. {listed}",
        tpus={tpu.name: tpu.reason for tpu in unready},
        state=first.state,
        health=first.health,
        symptoms=first.symptoms,
        retryable=is_passing,
    )


def is_recoverable(nodes: Iterable[Node], now: datetime | None = None) -> bool:
    """Whether a job on these nodes may go on: none is lost, and none ran out of memory within 90 seconds.

    The rule is that of TensorFlow's Cloud TPU client.

    Args:
        nodes: the nodes.
        now: the time to count from, with a time zone; the present where None.
    """
    since = (now or datetime.now(UTC)) - RECENT
    return not any(
        node.state in LOST or any(_ran_out_of_memory(symptom, since) for symptom in node.symptoms)
        for node in nodes
    )


def _ran_out_of_memory(symptom: Symptom, since: datetime) -> bool:
    if symptom.symptom_type not in OUT_OF_MEMORY:
        return False
    try:
        moment = datetime.fromisoformat(symptom.create_time)
    except ValueError:
        return False  # nobody knows when it was
    return moment.replace(tzinfo=moment.tzinfo or UTC) > since


def _symptom_line(symptom: Symptom) -> str:
    parts = [
        symptom.symptom_type or "unnamed",
        f"on worker {symptom.worker_id}" if symptom.worker_id else "",
        f"at {symptom.create_time}" if symptom.create_time else "",
        f"({symptom.details[:200]})" if symptom.details else "",
    ]
    return " ".join(filter(None, parts))


def observation_of(
    source: Source, found: FoundTPUs, job: str, others: dict[str, str], observed_at: datetime
) -> Observation:
    """Return what is seen of a source: its state has the slices that are ready, numbered without the others.

    Where none is ready, the job is there without tasks. A name that nothing has may still come to be: whoever
    watches it is told so, and not that it is an error.

    Args:
        source: who names the TPUs.
        found: what it shows.
        job: the job that the workers are.
        others: further jobs of one task each, name to `host:port`.
        observed_at: when it was asked.
    """
    if isinstance(source, Local):
        alone = Missing(
            job, "local", "this host's own TPU has no workers to wait for", is_final=True, tasks=0
        )
        return Observation(cluster_of((), job, {}, observed_at), (alone,))
    absent = tuple(_missing(one, job) for one in found.absent)
    if not found.slices:
        return Observation(ClusterState.of({job: []}, observed_at=observed_at), absent)
    return Observation(cluster_of(found.slices, job, others, observed_at), absent)


def _missing(one: Unready | NotThere, job: str) -> Missing:
    if isinstance(one, NotThere):
        name = one.path.rpartition("/")[2]
        return Missing(job, name, f"there is no {one.path} yet; see that its name is right", tasks=None)
    return Missing(job, one.name, one.reason, is_final=not one.is_passing, tasks=one.workers)
