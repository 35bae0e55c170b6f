"""The index that a controller gave a pod, and the task indices that follow from such indices.

Where each controller writes the index:

- LeaderWorkerSet: labels `leaderworkerset.sigs.k8s.io/group-index` (group) and `.../worker-index`
  (member).
- JobSet: label `jobset.sigs.k8s.io/job-index`, or `.../job-global-index` if there are several replicated jobs
  (group), and the index of the Job (member).
- KubeRay: labels `ray.io/worker-group-replica-index` (group) and `ray.io/replica-host-index` (member, for
  groups of several hosts), from KubeRay 1.5 with the feature gate RayMultiHostIndexing. The head has none.
- Kubeflow training operator and MPI operator: label `training.kubeflow.org/replica-index`. With
  `runLauncherAsWorker`, the MPI operator counts the workers from 1; the name of the pod counts from 0.
- Volcano: label `volcano.sh/task-index`, an annotation in earlier versions.
- Indexed Job: label `batch.kubernetes.io/job-completion-index`, an annotation before Kubernetes 1.28.
- StatefulSet: label `apps.kubernetes.io/pod-index`.
- Kueue pod group: label `kueue.x-k8s.io/pod-group-pod-index`, or the label that the annotation
  `kueue.x-k8s.io/pod-group-pod-index-label` names.

The order matters: a pod of a JobSet or LeaderWorkerSet has the index of the inner controller too.

A controller may count the pods of each role (launcher, worker) separately. If a selector matches several
roles, the one that leads comes first: launcher, master, chief or head.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import Hint, PodIndexError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve.kubernetes.api.objects import Pod

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
POD_INDEX = "apps.kubernetes.io/pod-index"
KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
JOBSET_JOB = "jobset.sigs.k8s.io/job-index"
JOBSET_GLOBAL_JOB = "jobset.sigs.k8s.io/job-global-index"
JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
KUBEFLOW_ROLES = ("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role")
VOLCANO_INDEX = "volcano.sh/task-index"
VOLCANO_ROLE = "volcano.sh/task-spec"
RAY_REPLICA = "ray.io/worker-group-replica-index"
RAY_HOST = "ray.io/replica-host-index"
RAY_TYPE = "ray.io/node-type"
KUEUE_INDEX = "kueue.x-k8s.io/pod-group-pod-index"
KUEUE_INDEX_LABEL = "kueue.x-k8s.io/pod-group-pod-index-label"

LEADING_ROLES = frozenset({"chief", "head", "launcher", "master"})
"""The roles of which there is one pod that comes before all others."""

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

    A controller numbers the pods of a role, such as those of one replicated job of a JobSet, separately.
    Which index applies depends on the other pods.

    Attributes:
        in_role: the index among the pods of the same role.
        in_set: the index among the pods of all roles.
        role: the role of the pod, if its controller has roles.
    """

    in_role: PodIndex | None
    in_set: PodIndex | None
    role: str | None

    def among(self, roles: int) -> PodIndex | None:
        """Return the index of the pod among pods of this number of distinct roles."""
        return self.in_set if roles > 1 else self.in_role


def index_label(pod: Pod) -> IndexLabel:
    """Return the index of a pod as its labels and annotations give it."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if LWS_WORKER in labels:
        return _without_role(_parse(labels.get(LWS_GROUP), labels[LWS_WORKER]))
    completion = labels.get(COMPLETION_INDEX, annotations.get(COMPLETION_INDEX))
    if JOBSET_JOB in labels:
        in_role, in_set = (_parse(labels.get(key), completion) for key in (JOBSET_JOB, JOBSET_GLOBAL_JOB))
        return IndexLabel(in_role, in_set, labels.get(JOBSET_REPLICATED_JOB))
    if RAY_TYPE in labels:
        role = labels[RAY_TYPE]
        if role in LEADING_ROLES:
            return _with_role(PodIndex(0, 0), role)
        return _with_role(_parse(labels.get(RAY_REPLICA), labels.get(RAY_HOST, "0")), role)
    if KUBEFLOW_INDEX in labels:
        role = next((labels[key] for key in KUBEFLOW_ROLES if key in labels), "")
        return _with_role(_kubeflow_index(pod.metadata.name, labels[KUBEFLOW_INDEX]), role)
    task = labels.get(VOLCANO_INDEX, annotations.get(VOLCANO_INDEX))
    if task is not None:
        role = labels.get(VOLCANO_ROLE, annotations.get(VOLCANO_ROLE, ""))
        return _with_role(_parse("0", task), role)
    for member in (
        completion,
        labels.get(POD_INDEX),
        labels.get(annotations.get(KUEUE_INDEX_LABEL, KUEUE_INDEX)),
    ):
        if member is not None:
            return _of_member(member) if len(member) <= MAX_DIGITS else _without_role(None)
    return _without_role(None)


@lru_cache(maxsize=16_384)  # thousands of pods of several jobs share these values
def _of_member(member: str) -> IndexLabel:
    return _without_role(_parse("0", member))


def _without_role(index: PodIndex | None) -> IndexLabel:
    return IndexLabel(index, index, None)


def _with_role(index: PodIndex | None, role: str) -> IndexLabel:
    """Return the label of a pod whose role, in lower case or not, may lead the others."""
    if index is None or role.lower() in LEADING_ROLES:
        return IndexLabel(index, index, role)
    return IndexLabel(index, PodIndex(index.group + 1, index.member), role)


_WORKER_NAME = re.compile("-worker-([0-9]+)$")


def _kubeflow_index(name: str, label: str) -> PodIndex | None:
    index = _parse("0", label)
    found = _WORKER_NAME.search(name)
    if index is not None and found is not None and found[1] == str(index.member - 1):
        return PodIndex(0, index.member - 1)
    return index


def _parse(group: str | None, member: str | None) -> PodIndex | None:
    if group is None or member is None or not (is_number(group) and is_number(member)):
        return None
    return PodIndex(int(group), int(member))


def is_number(text: str) -> bool:
    """Whether a label or annotation has a number that may be one of pods."""
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
    order: str = "index",
) -> PodIndexError:
    """Return the error for a job that cannot be ordered by `order`; for the others see `PodIndexError`."""
    faults = []
    if missing:
        faults.append(f"no pod has index {_join(missing)}")
    faults += [
        f"index {task} is claimed by {' and '.join(names)}" for task, names in (duplicates or {}).items()
    ]
    if unindexed:
        lacking = "no index label or annotation on" if order == "index" else "it is missing for"
        faults.append(f"{lacking} {_join(unindexed)}")
    return PodIndexError(
        f"the tasks of job {job!r} cannot be ordered by {order}: {'; '.join(faults)}",
        hint=Hint(
            "Wait until every pod exists, narrow the selector to one controller, or pass {order_by=name}."
        ),
        job=job,
        missing=missing,
        duplicates={index: tuple(names) for index, names in (duplicates or {}).items()},
        unindexed=unindexed,
    )


def _join(values: Sequence[object]) -> str:
    shown = ", ".join(str(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"
