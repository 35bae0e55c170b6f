"""The index that a controller gave a pod, and the task indices that follow from such indices.

Where each controller writes the index:

- LeaderWorkerSet: labels `leaderworkerset.sigs.k8s.io/group-index` (group) and `.../worker-index`
  (member).
- JobSet: label `jobset.sigs.k8s.io/job-index`, or `.../job-global-index` if there are several replicated jobs
  (group), and the index of the Job (member).
- Kubeflow trainer: label `training.kubeflow.org/replica-index`.
- Indexed Job: label `batch.kubernetes.io/job-completion-index`, an annotation before Kubernetes 1.28.
- StatefulSet: label `apps.kubernetes.io/pod-index`.

The order matters: a pod of a JobSet or LeaderWorkerSet has the index of the inner controller too.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import Hint, PodIndexError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .objects import Pod

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
POD_INDEX = "apps.kubernetes.io/pod-index"
KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
JOBSET_JOB = "jobset.sigs.k8s.io/job-index"
JOBSET_GLOBAL_JOB = "jobset.sigs.k8s.io/job-global-index"
JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"

MAX_DIGITS = 9
"""The maximum number of digits of an index. More is not a number of pods, whatever a label claims."""

MAX_TASKS = 200_000
"""The maximum number of tasks, more than Kubernetes runs pods (150,000). A larger index is invalid."""


class PodIndex(NamedTuple):
    """The position of a pod in its controller. Most controllers have only one group, group 0."""

    group: int
    member: int


class IndexLabel(NamedTuple):
    """The index of a pod as its labels and annotations give it.

    A JobSet numbers its jobs in two ways, and which one applies depends on the other pods.

    Attributes:
        in_job: the index, with the jobs of a JobSet counted within their replicated job.
        in_set: the index, with the jobs of a JobSet counted over all replicated jobs.
        replicated_job: the replicated job of a JobSet that the pod belongs to, if any.
    """

    in_job: PodIndex | None
    in_set: PodIndex | None
    replicated_job: str | None

    def among(self, replicated_jobs: int) -> PodIndex | None:
        """Return the index of the pod among pods of this number of distinct `replicated_job` values."""
        return self.in_set if replicated_jobs > 1 else self.in_job


def index_label(pod: Pod) -> IndexLabel:
    """Return the index of a pod as its labels and annotations give it."""
    in_job, labels = pod_index(pod), pod.metadata.labels
    if JOBSET_JOB not in labels:
        return IndexLabel(in_job, in_job, labels.get(JOBSET_REPLICATED_JOB))
    return IndexLabel(in_job, pod_index(pod, job_label=JOBSET_GLOBAL_JOB), labels.get(JOBSET_REPLICATED_JOB))


def pod_index(pod: Pod, *, job_label: str = JOBSET_JOB) -> PodIndex | None:
    """Return the index that the pod's controller gave it, or None if it has none.

    Args:
        pod: the pod.
        job_label: the label that numbers the jobs of a JobSet.
    """
    labels = pod.metadata.labels
    if LWS_WORKER in labels:
        return _parse(labels.get(LWS_GROUP), labels[LWS_WORKER])
    completion = labels.get(COMPLETION_INDEX, pod.metadata.annotations.get(COMPLETION_INDEX))
    if JOBSET_JOB in labels:
        return _parse(labels.get(job_label), completion)
    for member in (labels.get(KUBEFLOW_INDEX), completion, labels.get(POD_INDEX)):
        if member is not None:
            return _parse("0", member)
    return None


def _parse(group: str | None, member: str | None) -> PodIndex | None:
    if group is None or member is None or not (_is_number(group) and _is_number(member)):
        return None
    return PodIndex(int(group), int(member))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def group_starts(job: str, known: Iterable[PodIndex]) -> list[int]:
    """Return the task index of the first member of each group, followed by the number of tasks in total.

    The groups follow one another. The size of a group follows from the highest member index that is `known`
    in it; a group without known members is assumed to be as large as the largest group.

    Raises:
        PodIndexError: an index is higher than a cluster can have pods.
    """
    sizes: dict[int, int] = {}
    for group, member in known:
        if sizes.get(group, 0) <= member:
            sizes[group] = member + 1
    largest = max(sizes.values(), default=0)
    groups = max(sizes, default=-1) + 1
    # The list below has one entry for each group, even if the largest group is small.
    if sum(sizes.values()) + max(groups, (groups - len(sizes)) * largest) > MAX_TASKS:
        group, size = max(sizes.items(), key=max)
        raise PodIndexError(
            f"a pod of job {job!r} claims index {size - 1} in group {group},"
            " more than a cluster can have pods",
            hint=Hint("Correct the label of the pod, or pass {order_by=name}."),
            job=job,
        )
    return list(accumulate((sizes.get(group, largest) for group in range(groups)), initial=0))


def index_order_error(
    job: str,
    *,
    missing: Sequence[int] = (),
    duplicates: Mapping[int, Sequence[str]] | None = None,
    unindexed: Sequence[str] = (),
) -> PodIndexError:
    """Return the error for a job that cannot be ordered by index; for the arguments see `PodIndexError`."""
    faults = []
    if missing:
        faults.append(f"no pod has index {_join(missing)}")
    faults += [
        f"index {task} is claimed by {' and '.join(names)}" for task, names in (duplicates or {}).items()
    ]
    if unindexed:
        faults.append(f"no index label or annotation on {_join(unindexed)}")
    return PodIndexError(
        f"the tasks of job {job!r} cannot be ordered by index: {'; '.join(faults)}",
        hint=Hint(
            "Wait until every pod exists, narrow the selector to one controller, or pass {order_by=name}."
        ),
        job=job,
        missing=missing,
        duplicates=duplicates,
        unindexed=unindexed,
    )


def _join(values: Sequence[object]) -> str:
    shown = ", ".join(str(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"
