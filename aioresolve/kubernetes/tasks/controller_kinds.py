"""The kinds of controllers: the labels of their pods, and how many pods their objects want.

A pod has an index in its group, such as the Job of a JobSet, and the groups follow one another. A controller
may count the pods of each role (launcher, worker) separately. If a selector matches several roles, the one
that leads comes first: launcher, master or chief.

`KINDS` has a row for each kind, with what most functions need. Some functions have a rule for one kind: for
the second index of JobSets `index_label`, their restarts `run_of`, the group size of LeaderWorkerSets
`pod_set`, revisions and MPI launchers `own_pod`, the successes of Jobs `controllers`, and the pods of TPU
slices `aioresolve.environment.detection`.

A selector may match a part of the pods of a controller, if it has a label in which they differ.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from aioresolve.kubernetes.api.queries import parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve.kubernetes.api.objects import ObjectMeta, Pod

JOB_NAME = "batch.kubernetes.io/job-name"
OLD_JOB_NAME = "job-name"
"""The label of pods of Jobs before Kubernetes 1.27, which they still have."""

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
REVISION = "controller-revision-hash"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"
JOBSET_JOB = "jobset.sigs.k8s.io/job-index"
JOBSET_GLOBAL_JOB = "jobset.sigs.k8s.io/job-global-index"
JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
KUBEFLOW_NAME = "training.kubeflow.org/job-name"
KUBEFLOW_ROLES = ("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role")
VOLCANO_ROLE = "volcano.sh/task-spec"
MPI_LAUNCHER = "launcher"

LEADING_ROLES = frozenset({"chief", "launcher", "master"})
"""The roles of which there is one pod that comes before all others."""

MAX_DIGITS = 9
"""The maximum number of digits of an index. More is not a number of pods, whatever a label claims."""

MAX_PODS = 200_000
"""The maximum number of pods, more than Kubernetes runs (150,000). A larger index is invalid."""


# Numbers and roles of pods


class PodIndex(NamedTuple):
    """The position of a pod in its controller. Most controllers have only one group, group 0."""

    group: int
    member: int


class IndexLabel(NamedTuple):
    """The index of a pod as its labels and annotations give it.

    Which index applies depends on the other pods.

    Attributes:
        in_role: the index among the pods of the same role.
        in_set: the index among the pods of all roles.
        role: the role of the pod, if its controller numbers the pods of each role separately.
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
    for key, row in NUMBERED:
        first = labels.get(key)
        if first is None and (first := annotations.get(key)) is None:
            continue
        has_groups = len(row.index_labels) > 1
        group, member = (first, labels.get(row.index_labels[1])) if has_groups else ("0", first)
        if not row.numbers_roles:
            return _index_label(group, member)
        role = row.role(pod.metadata)
        if row is JOB_SET:  # the index of the group among those of all roles is another label
            return _index_label(group, member, labels.get(JOBSET_GLOBAL_JOB), role)
        in_set = "0" if role.lower() in LEADING_ROLES else "1"
        return _index_label(group, _counted_from_zero(pod.metadata.name, first), in_set, role)
    return _index_label(None, None)


@lru_cache(maxsize=16_384)  # thousands of pods of several jobs share these values
def _index_label(
    group: str | None, member: str | None, group_in_set: str | None = None, role: str | None = None
) -> IndexLabel:
    in_role = _parse(group, member)
    return IndexLabel(in_role, in_role if role is None else _parse(group_in_set, member), role)


def _parse(group: str | None, member: str | None) -> PodIndex | None:
    if group is None or member is None or not (is_number(group) and is_number(member)):
        return None
    return PodIndex(int(group), int(member))


_WORKER_NAME = re.compile("-worker-([0-9]+)$")


def _counted_from_zero(name: str, index: str) -> str:
    """Return the index of a worker: with `runLauncherAsWorker`, the label counts from 1, unlike the name."""
    found = _WORKER_NAME.search(name)
    if found and is_number(index) and int(index) - 1 == int(found[1]):
        return found[1]
    return index


def valid_count(number: object) -> int | None:
    """Return `number` if it can be a number of pods."""
    return number if isinstance(number, int) and 0 <= number <= MAX_PODS else None


def is_number(text: str) -> bool:
    """Whether a label or annotation has a number that may be one of pods."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


# The controller of a pod


class Controller(NamedTuple):
    """An object that wants a number of pods."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def row(self) -> Kind:
        """The row of its kind in `KINDS`."""
        row = kind_of(self.api_version, self.kind)
        assert row is not None
        return row

    @property
    def path(self) -> str:
        """The path of the URL of the object."""
        resource = f"{self.kind.lower()}s"
        namespace, resource, name = (quote(each, safe="") for each in (self.namespace, resource, self.name))
        return f"/apis/{quote(self.api_version)}/namespaces/{namespace}/{resource}/{name}"


@lru_cache(maxsize=256)
def kind_of(api_version: str, kind: str) -> Kind | None:
    """Return the row of a kind in `KINDS`; None if it is not one of those known here."""
    group = api_version.rpartition("/")[0]
    return KINDS.get((group, kind)) or KINDS.get((group, ""))


def job_of(selector: str, namespace: str | None) -> Controller | None:
    """Return the Job whose pods a selector matches by the label of their Job; None if it names none."""
    values = parse_selector(selector).values
    name = values.get(JOB_NAME) or values.get(OLD_JOB_NAME)
    return Controller("batch/v1", "Job", namespace, name) if name and namespace else None


class PodSet(NamedTuple):
    """The pods of one controller that have the same template.

    Attributes:
        controller: the controller of all groups.
        role: the template of the controller; empty if it has only one.
        group_size: the size of the group, if the pods state it as those of a LeaderWorkerSet do.
    """

    controller: Controller
    role: str = ""
    group_size: int | None = None


def pod_set(pod: Pod) -> PodSet | None:
    """Return the pod set that `pod` belongs to; None if its controller is not one of those known here."""
    metadata, owner = pod.metadata, pod.metadata.controller
    for key, row in OUTER_KINDS:
        if key in metadata.labels:
            controller = row.api_version, row.name, metadata.namespace, metadata.labels[key]
            break
    else:
        if owner is None or (found := kind_of(owner.api_version, owner.kind)) is None:
            return None
        row, controller = found, (owner.api_version, owner.kind, metadata.namespace, owner.name)
    return _pod_set(*controller, row.role(metadata), metadata.annotations.get(LWS_SIZE, ""))


@lru_cache(maxsize=4096)  # thousands of pods share a few pod sets
def _pod_set(api_version: str, kind: str, namespace: str, name: str, role: str, group_size: str) -> PodSet:
    size = valid_count(int(group_size)) if is_number(group_size) else None
    return PodSet(Controller(api_version, kind, namespace, name), role, size)


def run_of(pod: Pod) -> str:
    """Return what identifies the run of the controller that the pod belongs to; empty without a controller.

    The Jobs of a JobSet are one run, until the JobSet restarts them.
    """
    metadata, labels = pod.metadata, pod.metadata.labels
    if JOBSET_NAME in labels:
        jobset = labels.get("jobset.sigs.k8s.io/jobset-uid") or f"{metadata.namespace}/{labels[JOBSET_NAME]}"
        return f"{jobset}/{labels.get('jobset.sigs.k8s.io/restart-attempt', '')}"
    owner = metadata.controller
    return "" if owner is None else owner.uid


# What the objects say


class Role(NamedTuple):
    """The pods that a controller wants from one template: how many in how many groups, and their labels.

    Attributes:
        per_group: how many pods of each group run at the same time.
        groups: the number of groups.
        labels: the labels of the pods.
        completions: how many pods of each group have to succeed, if that are more.
    """

    per_group: int
    groups: int = 1
    labels: Mapping[str, str] = {}
    completions: int = 0


def _job_role(spec: dict[str, Any]) -> Role:
    """Return how many pods a Job runs at a time, and in total, from its spec."""
    parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
    if completions is None:
        return Role(parallelism)
    return Role(min(parallelism, completions), completions=completions)


def _jobset_roles(spec: dict[str, Any]) -> dict[str, Role]:
    return {
        each["name"]: _job_role(each["template"]["spec"])._replace(
            groups=each.get("replicas", 1), labels=_template_labels(each["template"]["spec"]["template"])
        )
        for each in spec["replicatedJobs"]
    }


def _lws_roles(spec: dict[str, Any]) -> dict[str, Role]:
    template, groups = spec["leaderWorkerTemplate"], spec.get("replicas", 1)
    worker = _template_labels(template["workerTemplate"])
    leader = _template_labels(template.get("leaderTemplate") or template["workerTemplate"])
    return {"leader": Role(1, groups, leader), "worker": Role(template.get("size", 1) - 1, groups, worker)}


def _kubeflow_roles(spec: dict[str, Any]) -> dict[str, Role]:
    (replica_specs,) = (value for key, value in spec.items() if key.endswith("ReplicaSpecs"))
    return {
        role.lower(): Role(each.get("replicas", 1), labels=_template_labels(each["template"]))
        for role, each in replica_specs.items()
    }


def _volcano_roles(spec: dict[str, Any]) -> dict[str, Role]:
    return {
        task.get("name") or "default": Role(
            task.get("replicas", 1), labels=_template_labels(task["template"])
        )
        for task in spec["tasks"]
    }


def _replicas(spec: dict[str, Any]) -> dict[str, Role]:
    return {"": Role(spec.get("replicas", 1))}


def _template_labels(template: dict[str, Any]) -> Mapping[str, str]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    return dict(labels)


# The table


class Kind(NamedTuple):
    """What most functions need to know about a kind of controllers.

    Attributes:
        name: the kind as text for messages.
        roles: returns the roles by their names, from the spec of an object.
        fields: the fields that state the number.
        workload: the labels that the pods of one workload have in common, in one or several versions; the
            first label has the name.
        index_labels: the labels, or annotations, of the index of the group of a pod, if there are groups, and
            of its index in the group.
        role: returns the name of the role of a pod; empty if all pods have the same one.
        numbers_roles: whether the pods of each role are numbered separately.
        group_labels: the labels in which groups differ.
        role_labels: the labels in which roles differ, besides the labels of their pod templates.
        api_version: that of the object, if its pods do not name it as their owner.
    """

    name: str
    roles: Callable[[dict[str, Any]], dict[str, Role]]
    fields: str
    workload: tuple[tuple[str, ...], ...] = ()
    index_labels: tuple[str, ...] = ()
    role: Callable[[ObjectMeta], str] = lambda metadata: ""
    numbers_roles: bool = False
    group_labels: frozenset[str] = frozenset()
    role_labels: frozenset[str] = frozenset()
    api_version: str = ""


def _kubeflow_role(metadata: ObjectMeta) -> str:
    return next((metadata.labels[key].lower() for key in KUBEFLOW_ROLES if key in metadata.labels), "")


# A label of one Job of a JobSet.
_OF_JOB = frozenset(
    {
        JOBSET_GLOBAL_JOB,
        "jobset.sigs.k8s.io/job-key",
        *(OLD_JOB_NAME, JOB_NAME, "controller-uid", "batch.kubernetes.io/controller-uid"),
    }
)

LEADER_WORKER_SET = Kind(
    "LeaderWorkerSet",
    _lws_roles,
    "spec.replicas",
    ((LWS_NAME, LWS_GROUP),),
    (LWS_GROUP, LWS_WORKER),
    lambda metadata: "leader" if metadata.labels.get(LWS_WORKER) == "0" else "worker",
    group_labels=frozenset({LWS_GROUP, "leaderworkerset.sigs.k8s.io/group-key"}),
    role_labels=frozenset({LWS_WORKER}),
    api_version="leaderworkerset.x-k8s.io/v1",
)
JOB_SET = Kind(
    "JobSet",
    _jobset_roles,
    "spec.replicatedJobs",
    ((JOBSET_NAME, JOBSET_REPLICATED_JOB),),
    (JOBSET_JOB, COMPLETION_INDEX),
    lambda metadata: metadata.labels.get(JOBSET_REPLICATED_JOB, ""),
    numbers_roles=True,
    group_labels=frozenset({JOBSET_JOB}) | _OF_JOB,
    role_labels=frozenset({JOBSET_REPLICATED_JOB, "jobset.sigs.k8s.io/group-name"}) | _OF_JOB,
    api_version="jobset.x-k8s.io/v1alpha2",
)
KINDS: Mapping[tuple[str, str], Kind] = {
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): LEADER_WORKER_SET,
    ("jobset.x-k8s.io", "JobSet"): JOB_SET,
    ("kubeflow.org", ""): Kind(
        "Kubeflow job",
        _kubeflow_roles,
        "the replica specs",
        ((KUBEFLOW_NAME,),),
        ("training.kubeflow.org/replica-index",),
        _kubeflow_role,
        numbers_roles=True,
        role_labels=frozenset(KUBEFLOW_ROLES),
    ),
    ("batch.volcano.sh", "Job"): Kind(
        "Volcano Job",
        _volcano_roles,
        "spec.tasks",
        (("volcano.sh/job-name",),),
        ("volcano.sh/task-index",),
        lambda metadata: metadata.labels.get(VOLCANO_ROLE, metadata.annotations.get(VOLCANO_ROLE, "")),
        numbers_roles=True,
        role_labels=frozenset({VOLCANO_ROLE}),
    ),
    ("batch", "Job"): Kind(
        "Job",
        lambda spec: {"": _job_role(spec)},
        "spec.completions and spec.parallelism",
        ((JOB_NAME,), (OLD_JOB_NAME,)),
        (COMPLETION_INDEX,),
    ),
    # The revision changes with the template, so that during a rolling update new pods do not join old ones.
    ("apps", "StatefulSet"): Kind(
        "StatefulSet", _replicas, "spec.replicas", ((REVISION,),), ("apps.kubernetes.io/pod-index",)
    ),
    ("apps", "ReplicaSet"): Kind("ReplicaSet", _replicas, "spec.replicas"),
}
"""The kinds by API group and kind; in the group of the Kubeflow training operator, all kinds are alike.

The order matters: a pod of a JobSet, LeaderWorkerSet or MPIJob has the labels of the inner controller too.
"""

OUTER_KINDS = ((LWS_NAME, LEADER_WORKER_SET), (JOBSET_NAME, JOB_SET))
"""The kinds whose pods are owned by an inner controller, each with the label that names its object."""

NUMBERED = tuple((row.index_labels[0], row) for row in KINDS.values() if row.index_labels)
"""The kinds that give their pods an index, each with its first label."""
