"""The controllers of pods, and how many pods they want: the size of a cluster that is still starting.

Where the number comes from, in this order:

1. The pods themselves: the annotation `leaderworkerset.sigs.k8s.io/size` (the pods of one group), the
   annotation `kueue.x-k8s.io/pod-group-total-count` of a Kueue pod group.
2. The object of the controller: Job (`spec.completions`, `spec.parallelism`), StatefulSet and
   ReplicaSet (`spec.replicas`), JobSet (`spec.replicatedJobs`), LeaderWorkerSet (`spec.replicas`), Volcano
   Job (`spec.tasks`), RayCluster (`spec.workerGroupSpecs`), jobs of the Kubeflow training operator and the
   MPI operator (`spec.*ReplicaSpecs`).
3. If a JobSet may not be read: one Job of each replicated job, and the label
   `jobset.sigs.k8s.io/replicatedjob-replicas` of its pods.

A selector may match a part of the pods of a controller. Pods made from one template match together, unless
the selector has a label in which they differ, such as an index: then the number is unknown.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import within_deadline
from aioresolve.errors import ResolveError
from aioresolve.spec import ExpectedTasks

from .pod_index import (
    COMPLETION_INDEX,
    JOBSET_GLOBAL_JOB,
    JOBSET_JOB,
    JOBSET_REPLICATED_JOB,
    KUBEFLOW_INDEX,
    KUBEFLOW_ROLES,
    KUEUE_INDEX,
    LWS_GROUP,
    LWS_WORKER,
    MAX_TASKS,
    POD_INDEX,
    RAY_HOST,
    RAY_REPLICA,
    RAY_TYPE,
    VOLCANO_INDEX,
    VOLCANO_ROLE,
    is_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.objects import OwnerReference, Pod
    from aioresolve.spec import Observation

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"
POD_GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_COUNT = "kueue.x-k8s.io/pod-group-total-count"
VOLCANO_JOB = "volcano.sh/job-name"
RAY_CLUSTER = "ray.io/cluster"
RAY_GROUP = "ray.io/group"
RAY_HEAD = "headgroup"
MPI_LAUNCHER = "launcher"

READ_TIMEOUT = 10.0
"""The total deadline for reading the controllers that were found at one time, in seconds."""

MIN_PAUSE = 0.2
"""Seconds between two reads of the same controllers: many pods may become ready one after another."""

MAX_CONTROLLERS = 64
"""How many controllers are read for one resolver. The size of any others is unknown."""

MAX_CONCURRENT_READS = 8

# Labels in which the pods of one template differ. For those in which groups differ, see `_Labels`.
_PER_POD = frozenset(
    {
        COMPLETION_INDEX,
        POD_INDEX,
        KUBEFLOW_INDEX,
        LWS_WORKER,
        "statefulset.kubernetes.io/pod-name",
        "leaderworkerset.sigs.k8s.io/subgroup-index",
        "leaderworkerset.sigs.k8s.io/subgroup-key",
        VOLCANO_INDEX,
        RAY_HOST,
        KUEUE_INDEX,
    }
)


class Controller(NamedTuple):
    """An object that wants a number of pods."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The path of the URL of the object."""
        root = "/apis" if "/" in self.api_version else "/api"
        resource = f"{self.kind.lower()}s"
        namespace, resource, name = (quote(each, safe="") for each in (self.namespace, resource, self.name))
        return f"{root}/{quote(self.api_version)}/namespaces/{namespace}/{resource}/{name}"


class PodSet(NamedTuple):
    """The pods of one controller that have the same template and are in the same group.

    Attributes:
        controller: the controller of all groups.
        role: the template of the controller; empty if it has only one.
        group: the group, such as the Job of a JobSet; empty if there are no groups.
        declared: a number that the pods carry: of a LeaderWorkerSet, the size of the group; of a Kueue pod
            group, its size; of a JobSet, the number of Jobs of the replicated job.
        job: of a JobSet, the Job that the pods belong to.
    """

    controller: Controller
    role: str = ""
    group: str = ""
    declared: int | None = None
    job: Controller | None = None


def pod_set(pod: Pod) -> PodSet | None:
    """Return the pod set that `pod` belongs to; None if its controller is not one of those known here."""
    metadata = pod.metadata
    labels, annotations, namespace = metadata.labels, metadata.annotations, metadata.namespace
    owner = next((one for one in metadata.owner_references or () if one.controller), None)
    if LWS_NAME in labels:
        role = "leader" if labels.get(LWS_WORKER) == "0" else "worker"
        lws = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", namespace, labels[LWS_NAME]
        return _pod_set(*lws, role, labels.get(LWS_GROUP, ""), annotations.get(LWS_SIZE))
    if JOBSET_NAME in labels:
        jobset = "jobset.x-k8s.io/v1alpha2", "JobSet", namespace, labels[JOBSET_NAME]
        job = owner.name if owner is not None and owner.kind == "Job" else ""
        role, group = labels.get(JOBSET_REPLICATED_JOB, ""), labels.get(JOBSET_JOB, "")
        return _pod_set(*jobset, role, group, labels.get(JOBSET_REPLICAS), job)
    if owner is not None and (found := _owned_pod_set(pod, owner)) is not None:
        return found
    if POD_GROUP_NAME in labels and POD_GROUP_COUNT in annotations:
        pod_group = "", "PodGroup", namespace, labels[POD_GROUP_NAME]
        return _pod_set(*pod_group, "", "", annotations[POD_GROUP_COUNT])
    return None


def _owned_pod_set(pod: Pod, owner: OwnerReference) -> PodSet | None:
    metadata = pod.metadata
    labels, controller = metadata.labels, (owner.api_version, owner.kind, metadata.namespace, owner.name)
    match owner.api_version.partition("/")[0], owner.kind:
        case ("batch", "Job") | ("apps", "StatefulSet" | "ReplicaSet"):
            return _pod_set(*controller)
        case "batch.volcano.sh", "Job":
            return _pod_set(*controller, labels.get(VOLCANO_ROLE, metadata.annotations.get(VOLCANO_ROLE, "")))
        case "ray.io", "RayCluster":
            return _pod_set(*controller, labels.get(RAY_GROUP, ""), labels.get(RAY_REPLICA, ""))
        case "kubeflow.org", _:
            role = next((labels[key] for key in KUBEFLOW_ROLES if key in labels), "")
            return _pod_set(*controller, role.lower())
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
    job: str = "",
) -> PodSet:
    return PodSet(
        Controller(api_version, kind, namespace, name),
        role,
        group,
        _count(int(declared)) if declared and is_number(declared) else None,
        Controller("batch/v1", "Job", namespace, job) if job else None,
    )


# Selectors


class _Labels(NamedTuple):
    """The labels of the pods of a controller that has groups or roles.

    Attributes:
        shared: those that all pods of the controller have in common.
        groups: those in which groups differ.
        roles: those in which roles differ, other than by their templates.
    """

    shared: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()


_JOB_LABELS = frozenset(
    {"job-name", "batch.kubernetes.io/job-name", "controller-uid", "batch.kubernetes.io/controller-uid"}
)
_ONE_JOB = frozenset({*_JOB_LABELS, JOBSET_GLOBAL_JOB, "jobset.sigs.k8s.io/job-key"})
_KUBEFLOW = _Labels(
    frozenset({"training.kubeflow.org/job-name", "training.kubeflow.org/operator-name"}),
    roles=frozenset(KUBEFLOW_ROLES),
)
_LABELS = {
    "JobSet": _Labels(
        frozenset({JOBSET_NAME, "jobset.sigs.k8s.io/jobset-uid"}),
        frozenset({JOBSET_JOB, *_ONE_JOB}),
        frozenset({JOBSET_REPLICATED_JOB, "jobset.sigs.k8s.io/group-name", *_ONE_JOB}),
    ),
    "LeaderWorkerSet": _Labels(
        frozenset({LWS_NAME, "leaderworkerset.sigs.k8s.io/template-revision-hash"}),
        frozenset({LWS_GROUP, "leaderworkerset.sigs.k8s.io/group-key"}),
        frozenset({LWS_WORKER}),
    ),
    "PodGroup": _Labels(frozenset({POD_GROUP_NAME})),
    "RayCluster": _Labels(
        frozenset({RAY_CLUSTER, "ray.io/is-ray-node"}),
        frozenset({RAY_REPLICA, "ray.io/worker-group-replica-name"}),
        frozenset({RAY_GROUP, RAY_TYPE}),
    ),
    "batch.volcano.sh/v1alpha1 Job": _Labels(
        frozenset({VOLCANO_JOB, "volcano.sh/job-namespace", "volcano.sh/queue-name"}),
        roles=frozenset({VOLCANO_ROLE}),
    ),
}


def _labels_of(controller: Controller) -> _Labels:
    if controller.api_version.startswith("kubeflow.org/"):
        return _KUBEFLOW
    labels = _LABELS.get(controller.kind) or _LABELS.get(f"{controller.api_version} {controller.kind}")
    return labels or _Labels()


_REQUIREMENT = re.compile(r"[^,(]+(?:\([^)]*\))?")
_PARTS = re.compile(r"\s*!?\s*([^\s=!<>(]+)\s*(.*?)\s*")
_ONE_VALUE = re.compile(r"==?\s*([^\s=,()]+)|in\s*\(\s*([^\s,()]+)\s*\)")
_IS_LEADER = re.compile(r"!?==?\s*0|(?:not)?in\s*\(\s*0\s*\)")


class _Selector(msgspec.Struct, frozen=True):
    """The labels that a selector names.

    Attributes:
        keys: the keys.
        single: the keys for which it permits exactly one value.
        splits_templates: whether it may match only some pods of one template.
    """

    keys: frozenset[str]
    single: frozenset[str]
    splits_templates: bool


@lru_cache(maxsize=256)
def _parse_selector(selector: str) -> _Selector:
    requirements: dict[str, str] = {}
    for requirement in _REQUIREMENT.findall(selector):
        if parts := _PARTS.fullmatch(requirement):
            requirements[parts[1]] = parts[2]
    per_pod = {key: rest for key, rest in requirements.items() if key in _PER_POD}
    if _IS_LEADER.fullmatch(per_pod.get(LWS_WORKER, "")):  # the leader has a template of its own
        del per_pod[LWS_WORKER]
    return _Selector(
        frozenset(requirements),
        frozenset(key for key, rest in requirements.items() if _ONE_VALUE.fullmatch(rest)),
        bool(per_pod),
    )


# Sizes


class Role(NamedTuple):
    """The pods that a controller wants from one template: how many in how many groups, and their labels."""

    per_group: int
    groups: int = 1
    labels: Mapping[str, str] = {}


class _Size(NamedTuple):
    """A number of pods; `is_whole` if no controller has to be read to know it better."""

    number: int
    source: str
    is_whole: bool = True


class SelectedPods(NamedTuple):
    """The pods that one selector of a job matches, by pod set; the pod set of unknown controllers is None.

    Attributes:
        selector: the label selector.
        live: those of the pods that are members or may become members.
        succeeded: how many pods have succeeded, which no controller replaces.
    """

    selector: str
    live: Sequence[PodSet | None]
    succeeded: Mapping[PodSet | None, int]


@dataclass(slots=True)
class ControllerSizes:
    """How many pods controllers want, as far as they were read.

    Attributes:
        roles: the roles of each controller by their names; None if it may not be read or does not exist.
    """

    roles: dict[Controller, Mapping[str, Role] | None] = field(default_factory=dict)
    _read_at: float = field(default=0.0, init=False)  # on the clock of `time.monotonic()`

    def expected(self, jobs: Mapping[str, Sequence[SelectedPods]]) -> dict[str, ExpectedTasks]:
        """Return the number of tasks of each job for which it is known for all of its pods."""
        found = {job: self._of_job(selections) for job, selections in jobs.items()}
        return {job: expected for job, expected in found.items() if expected is not None}

    def unread(self, jobs: Mapping[str, Sequence[SelectedPods]]) -> list[Controller]:
        """Return the controllers that have to be read to know the numbers, each once."""
        needed = (
            controller
            for selections in jobs.values()
            for selection in selections
            for controller in self._unread(selection)
        )
        return list(dict.fromkeys(needed))[: max(0, MAX_CONTROLLERS - len(self.roles))]

    async def read(self, api: ObjectAPI, controllers: Sequence[Controller]) -> None:
        """Read `controllers`.

        Raises:
            ResolveError: the API server cannot be reached; some of them may have been read.
        """

        async def read_all(progress: Progress) -> None:
            async def read(controller: Controller) -> None:
                body = None
                try:
                    body = await api.read(controller.path, str(controller), progress)
                except ResolveError as error:
                    if error.retryable:
                        raise
                # One that was read once, and now cannot be, keeps its size.
                if body is not None or controller not in self.roles:
                    self.roles[controller] = None if body is None else roles_of(controller, body)

            await gather([partial(read, one) for one in controllers], limit=MAX_CONCURRENT_READS)

        await within_deadline(READ_TIMEOUT, "the controllers of the pods", read_all)
        self._read_at = time.monotonic()

    async def read_again(self, api: ObjectAPI) -> None:
        """Read the controllers that were read before, `MIN_PAUSE` after the last read at the earliest.

        Raises:
            ResolveError: the API server cannot be reached; some of them may have been read.
        """
        await anyio.sleep(self._read_at + MIN_PAUSE - time.monotonic())
        await self.read(api, list(self.roles))

    def is_outdated(self, observation: Observation, interval: float) -> bool:
        """Whether to read the controllers again before `observation` counts.

        Their sizes may have changed: this matters if the cluster seems to be complete, and is checked every
        `interval` seconds otherwise.
        """
        if not self.roles:
            return False
        if time.monotonic() >= self._read_at + interval:
            return True
        state = observation.state
        if state is None or not observation.expected:
            return False
        return all(
            len(state.endpoints.get(job, ())) >= expected.number
            for job, expected in observation.expected.items()
        )

    def _of_job(self, selections: Sequence[SelectedPods]) -> ExpectedTasks | None:
        number, ended, sources = 0, 0, []
        for selection in selections:
            sizes = self._sizes(selection)
            if not sizes or None in sizes.values():
                return None
            for controller, size in sizes.items():
                assert size is not None
                succeeded = sum(
                    count
                    for one, count in selection.succeeded.items()
                    if one and one.controller == controller
                )
                number += max(size.number - succeeded, 0)
                ended += succeeded
                sources.append(size.source)
        return ExpectedTasks(number, ", ".join(dict.fromkeys(sources)), ended) if number else None

    def _sizes(self, selection: SelectedPods) -> dict[Controller | None, _Size | None]:
        """Return how many of the pods of each controller the selector will match; None if unknown."""
        selector = _parse_selector(selection.selector)
        by_controller: dict[Controller | None, list[PodSet]] = {}
        for one in selection.live:
            by_controller.setdefault(one and one.controller, []).append(one or _UNKNOWN)
        return {
            controller: None
            if controller is None or selector.splits_templates
            else self._size(controller, pod_sets, selector)
            for controller, pod_sets in by_controller.items()
        }

    def _size(self, controller: Controller, pod_sets: Sequence[PodSet], selector: _Selector) -> _Size | None:
        roles = self.roles.get(controller)
        if roles is not None:
            return _size_from_roles(controller, roles, pod_sets, selector)
        return _size_from_pods(controller, pod_sets, selector, self.roles)

    def _unread(self, selection: SelectedPods) -> Iterable[Controller]:
        if _parse_selector(selection.selector).splits_templates or None in selection.live:
            return
        for controller, size in self._sizes(selection).items():
            if controller is None or (size is not None and size.is_whole) or controller.kind == "PodGroup":
                continue
            if controller not in self.roles:
                yield controller
            elif self.roles[controller] is None:
                # One Job for each replicated job: all of them have the same template.
                jobs = {one.role: one.job for one in selection.live if one and one.controller == controller}
                yield from (job for job in jobs.values() if job is not None and job not in self.roles)


_UNKNOWN = PodSet(Controller("", "", "", ""))


def _size_from_roles(
    controller: Controller, roles: Mapping[str, Role], pod_sets: Sequence[PodSet], selector: _Selector
) -> _Size | None:
    labels = _labels_of(controller)
    found = {one.role for one in pod_sets}
    if not found <= roles.keys():
        return None
    if not selector.keys & labels.roles:
        # The selector cannot match one template without another that has the same values of its labels.
        own = selector.keys - labels.shared - labels.groups
        selected = [{key: roles[role].labels.get(key) for key in own} for role in found]
        found |= {
            role
            for role, one in roles.items()
            if {key: one.labels.get(key) for key in own} in selected
            and role != MPI_LAUNCHER  # counted as a pod of its own Job
        }
    restricted = selector.keys & labels.groups
    if not restricted <= selector.single:
        return None
    number = sum(roles[role].per_group * (1 if restricted else roles[role].groups) for role in found)
    return _Size(_count(number) or 0, f"{_field(controller)} of {controller}")


def _size_from_pods(
    controller: Controller,
    pod_sets: Sequence[PodSet],
    selector: _Selector,
    read: Mapping[Controller, Mapping[str, Role] | None],
) -> _Size | None:
    labels = _labels_of(controller)
    restricted = selector.keys & labels.groups
    if not restricted <= selector.single:
        return None
    others = selector.keys - labels.shared - labels.groups
    match controller.kind:
        case "PodGroup" if (count := pod_sets[0].declared) is not None:
            return _Size(count, f"{POD_GROUP_COUNT} of the pods")
        case "LeaderWorkerSet" if size := max(one.declared or 0 for one in pod_sets):
            roles = {one.role for one in pod_sets}
            if others and roles == {"worker"}:  # each has a leader, which the selector does not match
                size -= 1
            elif LWS_WORKER in selector.keys and roles == {"leader"}:
                size = 1
            elif others and roles == {"leader"} and size > 1:
                return None  # it may match leaders only, or their workers do not exist yet
            groups = {one.group for one in pod_sets}
            return _Size(size * len(groups), f"{LWS_SIZE} of the pods", is_whole=bool(restricted))
        case "JobSet":
            number = 0
            for one in {one.role: one for one in pod_sets}.values():
                of_job = None if one.job is None else read.get(one.job)
                if of_job is None or one.declared is None:
                    return None
                number += of_job[""].per_group * (1 if restricted else one.declared)
            return _Size(number, f"{JOBSET_REPLICAS} of the pods and their Jobs")
    return None


def _field(controller: Controller) -> str:
    """Return the fields of the object that state the number."""
    match controller.kind:
        case "Job" if controller.api_version.startswith("batch/"):
            return "spec.completions and spec.parallelism"
        case "Job":
            return "spec.tasks"
        case "JobSet":
            return "spec.replicatedJobs"
        case "RayCluster":
            return "spec.workerGroupSpecs"
        case "StatefulSet" | "ReplicaSet" | "LeaderWorkerSet":
            return "spec.replicas"
    return "the replica specs"


def roles_of(controller: Controller, body: bytes) -> Mapping[str, Role] | None:
    """Return the roles of a controller by name, from its object as JSON; None if that is malformed."""
    try:
        spec = json.loads(body)["spec"]
        return {
            role: one
            for role, one in _roles(controller, spec).items()
            if _count(one.per_group) is not None and _count(one.groups) is not None
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _roles(controller: Controller, spec: dict[str, Any]) -> dict[str, Role]:
    match controller.kind:
        case "Job" if controller.api_version.startswith("batch/"):
            return {"": Role(_job_size(spec))}
        case "Job":
            return {
                task.get("name") or "default": Role(
                    task.get("replicas", 1), 1, _template_labels(task["template"])
                )
                for task in spec["tasks"]
            }
        case "JobSet":
            return {
                each["name"]: Role(
                    _job_size(each["template"]["spec"]),
                    each.get("replicas", 1),
                    _template_labels(each["template"]["spec"]["template"]),
                )
                for each in spec["replicatedJobs"]
            }
        case "LeaderWorkerSet":
            template, groups = spec["leaderWorkerTemplate"], spec.get("replicas", 1)
            worker = _template_labels(template["workerTemplate"])
            leader = _template_labels(template.get("leaderTemplate") or template["workerTemplate"])
            size = template.get("size", 1)
            return {"leader": Role(1, groups, leader), "worker": Role(size - 1, groups, worker)}
        case "RayCluster":
            workers = {
                group["groupName"]: Role(
                    group.get("numOfHosts", 1), _ray_replicas(group), _template_labels(group["template"])
                )
                for group in spec.get("workerGroupSpecs") or ()
            }
            head = _template_labels(spec["headGroupSpec"]["template"])
            return {RAY_HEAD: Role(1, 1, head), **workers}
        case "StatefulSet" | "ReplicaSet":
            return {"": Role(spec.get("replicas", 1))}
    (replica_specs,) = (value for key, value in spec.items() if key.endswith("ReplicaSpecs"))
    return {
        role.lower(): Role(each.get("replicas", 1), 1, _template_labels(each["template"]))
        for role, each in replica_specs.items()
    }


def _job_size(spec: dict[str, Any]) -> int:
    """Return how many pods a Job runs at a time, from its spec."""
    parallelism = spec.get("parallelism", 1)
    completions = spec.get("completions")
    size: int = parallelism if completions is None else min(parallelism, completions)
    return size


def _ray_replicas(group: dict[str, Any]) -> int:
    """Return the number of replicas of a worker group that KubeRay creates."""
    if group.get("suspend"):
        return 0
    least, most = group.get("minReplicas") or 0, group.get("maxReplicas")
    replicas: int = max(least if group.get("replicas") is None else group["replicas"], least)
    return replicas if most is None else min(replicas, most)


def _template_labels(template: dict[str, Any]) -> Mapping[str, str]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    return dict(labels)


def _count(number: Any) -> int | None:
    """Return `number` if it can be a number of pods."""
    return number if isinstance(number, int) and 0 <= number <= MAX_TASKS else None
