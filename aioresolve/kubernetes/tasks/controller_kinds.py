"""The kinds of controllers: the labels of their pods, and how many pods their objects want.

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

`KINDS` has the rest of what differs between kinds. A selector may match a part of the pods of a controller,
if it has a label in which they differ.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from aioresolve.kubernetes.api.queries import parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve.kubernetes.api.objects import Pod

JOB_NAME = "batch.kubernetes.io/job-name"
OLD_JOB_NAME = "job-name"
"""The label of pods of Jobs before Kubernetes 1.27, which they still have."""

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
POD_INDEX = "apps.kubernetes.io/pod-index"
KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
KUBEFLOW_NAME = "training.kubeflow.org/job-name"
REVISION = "controller-revision-hash"
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

LWS_GROUPS = (LWS_GROUP, "leaderworkerset.sigs.k8s.io/group-key")
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
JOBSET_REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"
POD_GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_COUNT = "kueue.x-k8s.io/pod-group-total-count"
VOLCANO_JOB = "volcano.sh/job-name"
RAY_GROUP = "ray.io/group"
RAY_HEAD = "headgroup"
MPI_LAUNCHER = "launcher"


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


def valid_count(number: object) -> int | None:
    """Return `number` if it can be a number of pods."""
    return number if isinstance(number, int) and 0 <= number <= MAX_TASKS else None


def is_number(text: str) -> bool:
    """Whether a label or annotation has a number that may be one of pods."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


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
        group = self.api_version.rpartition("/")[0]
        return KINDS.get((group, self.kind)) or KINDS[group, ""]

    @property
    def path(self) -> str:
        """The path of the URL of the object."""
        root = "/apis" if "/" in self.api_version else "/api"
        resource = f"{self.kind.lower()}s"
        namespace, resource, name = (quote(each, safe="") for each in (self.namespace, resource, self.name))
        return f"{root}/{quote(self.api_version)}/namespaces/{namespace}/{resource}/{name}"


def job_of(selector: str, namespace: str | None) -> Controller | None:
    """Return the Job whose pods a selector matches by the label of their Job; None if it names none."""
    values = parse_selector(selector).values
    name = values.get(JOB_NAME) or values.get(OLD_JOB_NAME)
    return Controller("batch/v1", "Job", namespace, name) if name and namespace else None


class PodSet(NamedTuple):
    """The pods of one controller that have the same template and are in the same group.

    Attributes:
        controller: the controller of all groups.
        role: the template of the controller; empty if it has only one.
        group: the group, such as the Job of a JobSet; empty if there are no groups.
        declared: a number that the pods carry: the size of the group of a LeaderWorkerSet, or of a Kueue pod
            group.
    """

    controller: Controller
    role: str = ""
    group: str = ""
    declared: int | None = None


def pod_set(pod: Pod) -> PodSet | None:
    """Return the pod set that `pod` belongs to; None if its controller is not one of those known here."""
    metadata = pod.metadata
    labels, annotations, namespace = metadata.labels, metadata.annotations, metadata.namespace
    if LWS_NAME in labels:
        role = "leader" if labels.get(LWS_WORKER) == "0" else "worker"
        lws = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", namespace, labels[LWS_NAME]
        return _pod_set(*lws, role, labels.get(LWS_GROUP, ""), annotations.get(LWS_SIZE))
    if JOBSET_NAME in labels:
        jobset = "jobset.x-k8s.io/v1alpha2", "JobSet", namespace, labels[JOBSET_NAME]
        return _pod_set(*jobset, labels.get(JOBSET_REPLICATED_JOB, ""), labels.get(JOBSET_JOB, ""))
    owner = metadata.controller
    if owner is not None:
        controller = owner.api_version, owner.kind, namespace, owner.name
        match owner.api_version.partition("/")[0], owner.kind:
            case ("batch", "Job") | ("apps", "StatefulSet" | "ReplicaSet"):
                return _pod_set(*controller)
            case "batch.volcano.sh", "Job":
                return _pod_set(*controller, labels.get(VOLCANO_ROLE, annotations.get(VOLCANO_ROLE, "")))
            case "ray.io", "RayCluster":
                return _pod_set(*controller, labels.get(RAY_GROUP, ""), labels.get(RAY_REPLICA, ""))
            case "kubeflow.org", _:
                role = next((labels[key] for key in KUBEFLOW_ROLES if key in labels), "")
                return _pod_set(*controller, role.lower())
    if POD_GROUP_NAME in labels and POD_GROUP_COUNT in annotations:
        pod_group = "", "PodGroup", namespace, labels[POD_GROUP_NAME]
        return _pod_set(*pod_group, "", "", annotations[POD_GROUP_COUNT])
    return None


@lru_cache(maxsize=4096)  # thousands of pods share a few pod sets
def _pod_set(
    api_version: str,
    kind: str,
    namespace: str,
    name: str,
    role: str = "",
    group: str = "",
    declared: str | None = None,
) -> PodSet:
    number = valid_count(int(declared)) if declared and is_number(declared) else None
    return PodSet(Controller(api_version, kind, namespace, name), role, group, number)


def run_of(pod: Pod) -> str:
    """Return what identifies the run of the controller that the pod belongs to; empty without a controller.

    The Jobs of a JobSet are one run, until the JobSet restarts them.
    """
    labels, namespace = pod.metadata.labels, pod.metadata.namespace
    if JOBSET_NAME in labels:
        jobset = labels.get(JOBSET_UID) or f"{namespace}/{labels[JOBSET_NAME]}"
        return f"{jobset}/{labels.get(JOBSET_ATTEMPT, '')}"
    owner = pod.metadata.controller
    if owner is not None:
        return owner.uid or f"{namespace}/{owner.kind}/{owner.name}"
    return labels.get(POD_GROUP_NAME, "")


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


def _ray_roles(spec: dict[str, Any]) -> dict[str, Role]:
    roles = {RAY_HEAD: Role(1, labels=_template_labels(spec["headGroupSpec"]["template"]))}
    for group in spec.get("workerGroupSpecs") or ():
        hosts, labels = group.get("numOfHosts", 1), _template_labels(group["template"])
        roles[group["groupName"]] = Role(hosts, _ray_replicas(group), labels)
    return roles


def _ray_replicas(group: dict[str, Any]) -> int:
    """Return the number of replicas of a worker group that KubeRay creates."""
    if group.get("suspend"):
        return 0
    least, most = group.get("minReplicas") or 0, group.get("maxReplicas")
    replicas: int = max(least if group.get("replicas") is None else group["replicas"], least)
    return replicas if most is None else min(replicas, most)


def _replicas(spec: dict[str, Any]) -> dict[str, Role]:
    return {"": Role(spec.get("replicas", 1))}


def _template_labels(template: dict[str, Any]) -> Mapping[str, str]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    return dict(labels)


class Kind(NamedTuple):
    """What differs between kinds of controllers.

    Attributes:
        name: the kind as text for messages.
        roles: returns the roles by their names, from the spec of an object.
        fields: the fields that state the number.
        workload: the labels that the pods of one workload have in common, in one or several versions; the
            first label has the name.
        group_labels: the labels in which groups differ.
        role_labels: the labels in which roles differ, besides the labels of their pod templates.
    """

    name: str
    roles: Callable[[dict[str, Any]], dict[str, Role]]
    fields: str
    workload: tuple[tuple[str, ...], ...] = ()
    group_labels: frozenset[str] = frozenset()
    role_labels: frozenset[str] = frozenset()


# A label of one Job of a JobSet.
_OF_JOB = frozenset(
    {
        JOBSET_GLOBAL_JOB,
        "jobset.sigs.k8s.io/job-key",
        *(OLD_JOB_NAME, JOB_NAME, "controller-uid", "batch.kubernetes.io/controller-uid"),
    }
)

KINDS: Mapping[tuple[str, str], Kind] = {
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): Kind(
        "LeaderWorkerSet",
        _lws_roles,
        "spec.replicas",
        ((LWS_NAME, LWS_GROUP),),
        frozenset(LWS_GROUPS),
        frozenset({LWS_WORKER}),
    ),
    ("jobset.x-k8s.io", "JobSet"): Kind(
        "JobSet",
        _jobset_roles,
        "spec.replicatedJobs",
        ((JOBSET_NAME, JOBSET_REPLICATED_JOB),),
        frozenset({JOBSET_JOB}) | _OF_JOB,
        frozenset({JOBSET_REPLICATED_JOB, "jobset.sigs.k8s.io/group-name"}) | _OF_JOB,
    ),
    ("kubeflow.org", ""): Kind(
        "Kubeflow job",
        _kubeflow_roles,
        "the replica specs",
        ((KUBEFLOW_NAME,),),
        role_labels=frozenset(KUBEFLOW_ROLES),
    ),
    ("batch.volcano.sh", "Job"): Kind(
        "Volcano Job", _volcano_roles, "spec.tasks", ((VOLCANO_JOB,),), role_labels=frozenset({VOLCANO_ROLE})
    ),
    ("batch", "Job"): Kind(
        "Job",
        lambda spec: {"": _job_role(spec)},
        "spec.completions and spec.parallelism",
        ((JOB_NAME,), (OLD_JOB_NAME,)),
    ),
    # The revision changes with the template, so that during a rolling update new pods do not join old ones.
    ("apps", "StatefulSet"): Kind("StatefulSet", _replicas, "spec.replicas", ((REVISION,),)),
    ("apps", "ReplicaSet"): Kind("ReplicaSet", _replicas, "spec.replicas"),
    ("ray.io", "RayCluster"): Kind(
        "RayCluster",
        _ray_roles,
        "spec.workerGroupSpecs",
        group_labels=frozenset({RAY_REPLICA, "ray.io/worker-group-replica-name"}),
        role_labels=frozenset({RAY_GROUP, RAY_TYPE}),
    ),
    # Its pods state the number, because a pod group has no object of its own.
    ("", "PodGroup"): Kind("pod group", lambda spec: {}, "", ((POD_GROUP_NAME,),)),
}
"""The kinds by API group and kind; in the group of the Kubeflow training operator, all kinds are alike.

The order matters: a pod of a JobSet, LeaderWorkerSet or MPIJob has the labels of the inner controller too.
"""

GROUP_LABELS = frozenset().union(*(row.group_labels for row in KINDS.values()))
"""The labels in which the groups of some kind differ."""
