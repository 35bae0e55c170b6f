"""The task index a controller gave a pod, and pods put in the order of theirs.

Where each controller writes it:

- LeaderWorkerSet: labels `leaderworkerset.sigs.k8s.io/group-index` (group) and `.../worker-index`
  (member).
- JobSet: label `jobset.sigs.k8s.io/job-index`, over several replicated jobs `.../job-global-index` (group),
  and the index of the Job (member).
- Kubeflow trainer: label `training.kubeflow.org/replica-index`.
- Indexed Job: label, before Kubernetes 1.28 annotation, `batch.kubernetes.io/job-completion-index`.
- StatefulSet: label `apps.kubernetes.io/pod-index`.

A pod of a JobSet or LeaderWorkerSet carries the inner controller's index too, hence this order.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import PodIndexError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .objects import Pod

__all__ = ["Claim", "PodIndex", "group_starts", "index_error", "index_order", "pod_claim", "pod_index"]

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
POD_INDEX = "apps.kubernetes.io/pod-index"
KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
JOBSET_JOB = "jobset.sigs.k8s.io/job-index"
JOBSET_GLOBAL_JOB = "jobset.sigs.k8s.io/job-global-index"
JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


class PodIndex(NamedTuple):
    """Which member of which group of its controller a pod is; most controllers know one group only."""

    group: int
    member: int


class Claim(NamedTuple):
    """What a pod says of its index, before the other pods are known.

    Attributes:
        in_job: its index, the jobs of a JobSet counted inside the replicated job that it belongs to.
        in_set: its index, the jobs of a JobSet counted over all of them.
        replicated_job: the replicated job of the JobSet that it belongs to, if it does.
    """

    in_job: PodIndex | None
    in_set: PodIndex | None
    replicated_job: str | None

    def among(self, replicated_jobs: int) -> PodIndex | None:
        """Return the index among the pods of as many replicated jobs; those of none count as one."""
        return self.in_set if replicated_jobs > 1 else self.in_job


def pod_claim(pod: Pod) -> Claim:
    """Return what the pod's labels and annotations say of its index."""
    in_job, labels = pod_index(pod), pod.metadata.labels
    in_set = pod_index(pod, job_label=JOBSET_GLOBAL_JOB) if JOBSET_JOB in labels else in_job
    return Claim(in_job, in_set, labels.get(JOBSET_REPLICATED_JOB))


def pod_index(pod: Pod, *, job_label: str = JOBSET_JOB) -> PodIndex | None:
    """Return the index that the pod's controller gave it, or None where it carries none.

    Args:
        pod: a pod.
        job_label: the label that tells the jobs of a JobSet apart.
    """
    labels = pod.metadata.labels
    if LWS_WORKER in labels:
        return _index(labels.get(LWS_GROUP), labels[LWS_WORKER])
    completion = labels.get(COMPLETION_INDEX, pod.metadata.annotations.get(COMPLETION_INDEX))
    if JOBSET_JOB in labels:
        return _index(labels.get(job_label), completion)
    for member in (labels.get(KUBEFLOW_INDEX), completion, labels.get(POD_INDEX)):
        if member is not None:
            return _index("0", member)
    return None


def index_order(job: str, pods: Sequence[Pod]) -> list[int]:
    """Return the places of `pods` in task order: the pod at the n-th place has task index n.

    Groups follow one another; a group is as large as its highest member index says.

    Raises:
        PodIndexError: a pod has no index, an index is missing or taken twice; it names them all.
    """
    taken: dict[PodIndex, list[int]] = {}
    unindexed = []
    for place, index in enumerate(_indices(pods)):
        if index is None:
            unindexed.append(pods[place].full_name)
        else:
            taken.setdefault(index, []).append(place)
    order = _task_indices(job, taken)
    missing = [task for task, index in enumerate(order) if index not in taken]
    duplicates = {
        task: [pods[place].full_name for place in taken[index]]
        for task, index in enumerate(order)
        if len(taken.get(index, ())) > 1
    }
    if unindexed or missing or duplicates:
        raise index_error(job, missing=missing, duplicates=duplicates, unindexed=unindexed)
    return [taken[index][0] for index in order]


def group_starts(job: str, known: Iterable[PodIndex]) -> list[int]:
    """Return the task index of each group's first member, and last of all the one after the last group.

    Indices may be missing. A group is as large as the highest member index that is `known` in it says; one
    of which no member is known is taken to be as large as the largest.

    Raises:
        PodIndexError: an index is more than a cluster can have pods.
    """
    sizes = _group_sizes(job, known)
    largest = max(sizes.values(), default=0)
    highest = max(sizes, default=-1)
    if sum(sizes.values()) + (highest + 1 - len(sizes)) * largest > MAX_TASKS:
        raise _too_high(job, sizes)
    return list(accumulate((sizes.get(group, largest) for group in range(highest + 1)), initial=0))


def _indices(pods: Sequence[Pod]) -> list[PodIndex | None]:
    # job-index counts inside one replicated job of a JobSet: several are told apart by job-global-index.
    claims = [pod_claim(pod) for pod in pods]
    replicated_jobs = len({claim.replicated_job for claim in claims})
    return [claim.among(replicated_jobs) for claim in claims]


def _index(group: str | None, member: str | None) -> PodIndex | None:
    if group is None or member is None or not (_is_number(group) and _is_number(member)):
        return None
    return PodIndex(int(group), int(member))


def _is_number(text: str) -> bool:
    # At most nine digits: a count of pods, whatever a label may claim.
    return text.isascii() and text.isdigit() and len(text) <= 9


MAX_TASKS = 200_000
"""More tasks than Kubernetes can run pods (150,000): an index beyond is a lie, and must not cost memory."""


def _task_indices(job: str, taken: Iterable[PodIndex]) -> list[PodIndex]:
    """Return the index each task has to have, for tasks 0, 1, 2, ..."""
    sizes = _group_sizes(job, taken)
    return [
        PodIndex(group, member)
        for group in range(max(sizes, default=-1) + 1)
        # A group that nobody is in misses at least its first member.
        for member in range(sizes.get(group, 1))
    ]


def _group_sizes(job: str, taken: Iterable[PodIndex]) -> dict[int, int]:
    """Return how many members each group has to have, going by the highest index in it."""
    sizes: dict[int, int] = {}
    for group, member in taken:
        if sizes.get(group, 0) <= member:
            sizes[group] = member + 1
    if max(sizes, default=-1) + 1 + sum(sizes.values()) > MAX_TASKS:
        raise _too_high(job, sizes)
    return sizes


def _too_high(job: str, sizes: Mapping[int, int]) -> PodIndexError:
    group, size = max(sizes.items(), key=max)
    return PodIndexError(
        f"a pod of job {job!r} claims index {size - 1} in group {group}, more than a cluster can have pods",
        hint="Correct the label, or pass {order_by=name}.",
        job=job,
    )


def index_error(
    job: str,
    *,
    missing: Sequence[int] = (),
    duplicates: Mapping[int, Sequence[str]] | None = None,
    unindexed: Sequence[str] = (),
) -> PodIndexError:
    """Return the error of a job whose pods cannot be put in the order of their index."""
    faults = []
    if missing:
        faults.append(f"no pod has index {_some(missing)}")
    faults += [
        f"index {task} is taken by {' and '.join(names)}" for task, names in (duplicates or {}).items()
    ]
    if unindexed:
        faults.append(f"no index label or annotation on {_some(unindexed)}")
    return PodIndexError(
        f"the tasks of job {job!r} cannot be put in the order of their index: {'; '.join(faults)}",
        hint="Wait until every pod exists, narrow the selector to one controller, or pass {order_by=name}.",
        job=job,
        missing=missing,
        duplicates=duplicates,
        unindexed=unindexed,
    )


def _some(things: Sequence[object]) -> str:
    shown = ", ".join(str(thing) for thing in things[:10])
    return shown if len(things) <= 10 else f"{shown} and {len(things) - 10} more"
