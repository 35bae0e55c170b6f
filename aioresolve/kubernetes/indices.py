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

from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import PodIndexError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .messages import Pod

__all__ = ["PodIndex", "index_order", "pod_index"]

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
        raise _index_error(job, missing, duplicates, unindexed)
    return [taken[index][0] for index in order]


def _indices(pods: Sequence[Pod]) -> list[PodIndex | None]:
    # job-index counts inside one replicated job of a JobSet: several are told apart by job-global-index.
    replicated_jobs = {pod.metadata.labels.get(JOBSET_REPLICATED_JOB) for pod in pods}
    job_label = JOBSET_GLOBAL_JOB if len(replicated_jobs) > 1 else JOBSET_JOB
    return [pod_index(pod, job_label=job_label) for pod in pods]


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
    sizes: dict[int, int] = {}
    for index in taken:
        sizes[index.group] = max(sizes.get(index.group, 0), index.member + 1)
    groups = range(max(sizes, default=-1) + 1)
    if len(groups) + sum(sizes.values()) > MAX_TASKS:
        highest = max(taken)
        raise PodIndexError(
            f"a pod of job {job!r} claims index {highest.member} in group"
            f" {highest.group}, more than a cluster can have pods; correct the label, or use order_by='name'",
            job=job,
        )
    return [
        PodIndex(group, member)
        for group in groups
        # A group that nobody is in misses at least its first member.
        for member in range(sizes.get(group, 1))
    ]


def _index_error(
    job: str, missing: list[int], duplicates: dict[int, list[str]], unindexed: list[str]
) -> PodIndexError:
    faults = []
    if missing:
        faults.append(f"no pod has index {_some(missing)}")
    faults += [f"index {task} is taken by {' and '.join(names)}" for task, names in duplicates.items()]
    if unindexed:
        faults.append(f"no index label or annotation on {_some(unindexed)}")
    return PodIndexError(
        f"the tasks of job {job!r} cannot be put in the order of their index: {'; '.join(faults)};"
        " wait until every pod is there, narrow the selector to one controller, or use order_by='name'",
        job=job,
        missing=missing,
        duplicates=duplicates,
        unindexed=unindexed,
    )


def _some(things: Sequence[object]) -> str:
    shown = ", ".join(str(thing) for thing in things[:10])
    return shown if len(things) <= 10 else f"{shown} and {len(things) - 10} more"
