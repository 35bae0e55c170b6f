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

The number includes the pods that have succeeded, which nothing replaces. The object of the controller also
says whether the job as a whole has failed, is complete or suspended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import within_deadline
from aioresolve.errors import ResolveError
from aioresolve.spec import ControllerStatus, ExpectedTasks

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
JOBSET_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
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

ENDED_PAUSE = 1.0
"""Seconds between two reads while no pod is left, whose controller may have ended or been suspended."""

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


def run_of(pod: Pod) -> str:
    """Return what identifies the run of the controller that the pod belongs to; empty without a controller.

    The Jobs of a JobSet are one run, until the JobSet restarts them.
    """
    labels, namespace = pod.metadata.labels, pod.metadata.namespace
    if JOBSET_NAME in labels:
        return f"{namespace}/{labels[JOBSET_NAME]}/{labels.get(JOBSET_ATTEMPT, '')}"
    owner = next((one for one in pod.metadata.owner_references or () if one.controller), None)
    if owner is not None:
        return owner.uid or f"{namespace}/{owner.kind}/{owner.name}"
    return labels.get(POD_GROUP_NAME, "")


def controller_of_selector(selector: str, namespace: str | None) -> Controller | None:
    """Return the Job whose pods a selector names by their label; None if it names none."""
    found = _JOB_SELECTOR.search(selector)
    return None if found is None or namespace is None else Controller("batch/v1", "Job", namespace, found[1])


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
_JOB_SELECTOR = re.compile(r"(?:^|,)\s*(?:batch\.kubernetes\.io/)?job-name\s*==?\s*([a-z0-9.-]+)\s*(?:,|$)")
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


class ControllerObject(NamedTuple):
    """What the object of a controller says.

    Attributes:
        roles: the roles by their names; None if they are malformed or unknown.
        status: whether the job as a whole has ended or is suspended.
        succeeded: how many pods of a Job have succeeded, those that no longer exist included.
        completed: of an Indexed Job, the indices of these pods.
    """

    roles: Mapping[str, Role] | None
    status: ControllerStatus | None = None
    succeeded: int = 0
    completed: frozenset[int] = frozenset()


class _Size(NamedTuple):
    """A number of pods.

    Attributes:
        number: how many run at the same time.
        source: what states the number.
        is_whole: whether no controller has to be read to know it better.
        completions: how many have to succeed, if that are more.
    """

    number: int
    source: str
    is_whole: bool = True
    completions: int = 0

    def including(self, done: int) -> int:
        """Return the number of tasks if `done` of them have succeeded already."""
        return max(self.number, min(self.number + done, self.completions))


class SelectedPods(NamedTuple):
    """The pods that one selector of a job matches, by pod set; the pod set of unknown controllers is None.

    Attributes:
        selector: the label selector.
        live: those of the pods that are members or may become members.
        done: how many pods have succeeded in the same run of a controller that has live pods.
        former: if no pod is live, the pod sets of those that were, or that have ended.
    """

    selector: str
    live: Sequence[PodSet | None]
    done: Mapping[PodSet | None, int]
    former: Sequence[PodSet] = ()


@dataclass(slots=True)
class Controllers:
    """The objects of the controllers of the pods, as far as they were read.

    Args:
        reads_sizes: whether to read the controllers of live pods, to know how many pods they want. Otherwise
            only those of a job without live pods are read, to know whether it has ended.

    Attributes:
        objects: the object of each controller; None if it may not be read or does not exist.
    """

    reads_sizes: bool = True
    objects: dict[Controller, ControllerObject | None] = field(default_factory=dict)
    _read_at: float = field(default=0.0, init=False)  # on the clock of the event loop
    _reported: dict[Controller, ControllerObject] = field(default_factory=dict, init=False)
    _without_pods: set[Controller] = field(default_factory=set, init=False)
    # Those that were not found before they had a live pod: they may not have existed yet.
    _early: set[Controller] = field(default_factory=set, init=False)

    def expected(self, jobs: Mapping[str, Sequence[SelectedPods]]) -> dict[str, ExpectedTasks]:
        """Return the number of tasks of each job for which it is known for all of its pods."""
        found = {job: self._of_job(selections) for job, selections in jobs.items()}
        return {job: expected for job, expected in found.items() if expected is not None}

    def ended(self, jobs: Mapping[str, Sequence[SelectedPods]]) -> dict[str, tuple[ControllerStatus, ...]]:
        """Return what the controllers of each job without live pods say, if none of them runs pods."""
        found = {}
        for job, selections in jobs.items():
            former = [one.controller for selection in selections for one in selection.former]
            objects = [self.objects.get(controller) for controller in dict.fromkeys(former)]
            statuses = tuple(one.status for one in objects if one is not None and one.status is not None)
            if statuses and len(statuses) == len(objects) and not any(one.live for one in selections):
                found[job] = statuses
        return found

    def completed(self, selection: SelectedPods) -> frozenset[int]:
        """Return the completion indices of the Indexed Job to which all live pods belong, if they do."""
        controllers = {one and one.controller for one in selection.live}
        only = controllers.pop() if len(controllers) == 1 else None
        found = self.objects.get(only) if only is not None else None
        return frozenset() if found is None else found.completed

    def unread(self, jobs: Mapping[str, Sequence[SelectedPods]]) -> list[Controller]:
        """Return the controllers that have to be read, each once."""
        needed: list[Controller] = []
        self._without_pods = set()
        for selections in jobs.values():
            if not any(selection.live for selection in selections):
                former = {one.controller for selection in selections for one in selection.former}
                self._without_pods |= former
                needed += [one for one in former if one not in self.objects and one.kind != "PodGroup"]
            elif self.reads_sizes:
                needed += [one for selection in selections for one in self._unread(selection)]
        return list(dict.fromkeys(needed))

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
                if body is not None:
                    found = parse_controller(controller, body)
                    self.objects[controller] = _confirmed(found, self._reported.get(controller))
                    self._reported[controller] = found
                else:
                    self.objects.setdefault(controller, None)
                self._early.discard(controller)
                if body is None and controller in self._without_pods:
                    self._early.add(controller)

            await gather([partial(read, one) for one in controllers], limit=MAX_CONCURRENT_READS)

        await within_deadline(READ_TIMEOUT, "the controllers of the pods", read_all)
        self._read_at = anyio.current_time()

    async def read_again(self, api: ObjectAPI) -> None:
        """Read the controllers that were read before, `MIN_PAUSE` after the last read at the earliest.

        Raises:
            ResolveError: the API server cannot be reached; some of them may have been read.
        """
        await anyio.sleep_until(self._read_at + MIN_PAUSE)
        await self.read(api, list(self.objects))

    def is_due(self, interval: float) -> bool:
        """Whether the controllers were read `interval` seconds ago, or `ENDED_PAUSE` if no pod is left."""
        pause = min(interval, ENDED_PAUSE) if self._without_pods else interval
        return bool(self.objects) and anyio.current_time() >= self._read_at + pause

    def is_outdated(self, observation: Observation, interval: float) -> bool:
        """Whether to read the controllers again before `observation` counts.

        What they say may have changed: this matters if the cluster seems to be complete or to have ended, and
        is checked every `interval` seconds otherwise.
        """
        if not self.objects:
            return False
        if self.is_due(interval) or observation.controllers:
            return True
        state = observation.state
        if state is None or not observation.expected:
            return False
        return all(
            len(state.endpoints.get(job, ())) + expected.done >= expected.number
            for job, expected in observation.expected.items()
        )

    def _of_job(self, selections: Sequence[SelectedPods]) -> ExpectedTasks | None:
        number, done, sources = 0, 0, []
        for selection in selections:
            sizes = self._sizes(selection)
            if not sizes or None in sizes.values():
                return None
            for controller, size in sizes.items():
                assert size is not None
                assert controller is not None
                of_controller = sum(
                    count for one, count in selection.done.items() if one and one.controller == controller
                )
                if (found := self.objects.get(controller)) is not None:
                    of_controller = max(of_controller, found.succeeded)
                number += size.including(of_controller)
                done += of_controller
                sources.append(size.source)
        return ExpectedTasks(number, ", ".join(dict.fromkeys(sources)), done) if number else None

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
        found = self.objects.get(controller)
        if found is not None and found.roles is not None:
            return _size_from_roles(controller, found.roles, pod_sets, selector)
        return _size_from_pods(controller, pod_sets, selector, self.objects)

    def _unread(self, selection: SelectedPods) -> Iterable[Controller]:
        """Yield the controllers that have to be read to know the number of the selected pods."""
        if _parse_selector(selection.selector).splits_templates or None in selection.live:
            return
        for controller, size in self._sizes(selection).items():
            if controller is None or (size is not None and size.is_whole) or controller.kind == "PodGroup":
                continue
            if controller not in self.objects or controller in self._early:
                yield controller
            elif (found := self.objects[controller]) is None or found.roles is None:
                # One Job for each replicated job: all of them have the same template.
                jobs = {one.role: one.job for one in selection.live if one and one.controller == controller}
                yield from (job for job in jobs.values() if job is not None and job not in self.objects)


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
    groups = {role: 1 if restricted else roles[role].groups for role in found}
    number = sum(roles[role].per_group * groups[role] for role in found)
    completions = sum(roles[role].completions * groups[role] for role in found)
    source = f"{_field(controller)} of {controller}"
    return _Size(_count(number) or 0, source, completions=_count(completions) or 0)


def _size_from_pods(
    controller: Controller,
    pod_sets: Sequence[PodSet],
    selector: _Selector,
    read: Mapping[Controller, ControllerObject | None],
) -> _Size | None:
    labels = _labels_of(controller)
    restricted = selector.keys & labels.groups
    if not restricted <= selector.single:
        return None
    match controller.kind:
        case "PodGroup" if (count := pod_sets[0].declared) is not None:
            return _Size(count, f"{POD_GROUP_COUNT} of the pods")
        case "LeaderWorkerSet":
            others = selector.keys - labels.shared - labels.groups
            size = _size_of_group(pod_sets, others)
            groups = {one.group for one in pod_sets}
            return _Size(size * len(groups), f"{LWS_SIZE} of the pods", bool(restricted)) if size else None
        case "JobSet":
            numbers = [
                _size_of_jobs(one, read) // ((one.declared or 1) if restricted else 1)
                for one in {one.role: one for one in pod_sets}.values()
            ]
            return (
                _Size(sum(numbers), f"{JOBSET_REPLICAS} of the pods and their Jobs") if all(numbers) else None
            )
    return None


def _size_of_group(pod_sets: Sequence[PodSet], others: frozenset[str]) -> int:
    """Return how many pods of each group of a LeaderWorkerSet a selector matches; 0 if that is unknown.

    Args:
        pod_sets: the pods that it matches now.
        others: its labels that not all pods of the set have.
    """
    size = max(one.declared or 0 for one in pod_sets)
    roles = {one.role for one in pod_sets}
    if others and roles == {"worker"}:  # each has a leader, which the selector does not match
        return size - 1
    if LWS_WORKER in others and roles == {"leader"}:
        return 1
    if others and roles == {"leader"} and size > 1:
        return 0  # it may match leaders only, or their workers do not exist yet
    return size


def _size_of_jobs(one: PodSet, read: Mapping[Controller, ControllerObject | None]) -> int:
    """Return the number of pods of all Jobs of a replicated job; 0 if it is unknown."""
    of_job = None if one.job is None else read.get(one.job)
    if of_job is None or of_job.roles is None:
        return 0
    return of_job.roles[""].per_group * (one.declared or 0)


def _field(controller: Controller) -> str:
    """Return the fields of the object that state the number."""
    match controller.kind:
        case "Job" if _is_job(controller):
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


def parse_controller(controller: Controller, body: bytes) -> ControllerObject:
    """Return what the object of a controller, as JSON, says; without roles if it is malformed."""
    try:
        body_object = json.loads(body)
        spec, status = body_object["spec"], body_object.get("status") or {}
        roles = {
            role: one
            for role, one in _roles(controller, spec).items()
            if all(_count(number) is not None for number in (one.per_group, one.groups, one.completions))
        }
        return ControllerObject(
            roles,
            _controller_status(controller, spec, status),
            _count(status.get("succeeded")) or 0 if _is_job(controller) else 0,
            _indices(status.get("completedIndexes")) if _is_job(controller) else frozenset(),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ControllerObject(None)


def _confirmed(new: ControllerObject, previous: ControllerObject | None) -> ControllerObject:
    """Return `new` with those successes only that the previous read reported too.

    A watch may report that a pod has succeeded a moment later than the Job does, which does not mean that the
    pod no longer exists.
    """
    old = previous or ControllerObject(None)
    return new._replace(succeeded=min(new.succeeded, old.succeeded), completed=new.completed & old.completed)


_PHASES: Mapping[str, Literal["failed", "complete", "suspended"]] = {
    "Complete": "complete",  # Job
    "Completed": "complete",  # JobSet, Volcano Job
    "Succeeded": "complete",  # jobs of the Kubeflow training operator and the MPI operator
    "Failed": "failed",
    "Aborted": "failed",  # Volcano Job
    "Terminated": "failed",
    "Suspended": "suspended",
}
"""What the condition or the phase of a controller means for the job as a whole."""


def _controller_status(
    controller: Controller, spec: dict[str, Any], status: dict[str, Any]
) -> ControllerStatus | None:
    """Return the phase of the job as a whole, from `status.conditions`, `status.state` or `spec.suspend`."""
    conditions = [each for each in status.get("conditions") or () if each["status"] == "True"]
    if controller.api_version.startswith("batch.volcano.sh/"):
        state = status.get("state") or {}
        conditions = [{"type": state.get("phase"), **state}]
    # An end is final, and comes before a condition that is left from before it.
    for phase in ("failed", "complete", "suspended"):
        for each in conditions:
            if _PHASES.get(each["type"]) == phase:
                text = ": ".join(each[key] for key in ("reason", "message") if each.get(key))
                return ControllerStatus(_PHASES[each["type"]], str(controller), text)
    suspended = spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend")
    return ControllerStatus("suspended", str(controller)) if suspended is True else None


def _is_job(controller: Controller) -> bool:
    return controller.kind == "Job" and controller.api_version.startswith("batch/")


def _indices(text: str | None) -> frozenset[int]:
    """Return the indices of `status.completedIndexes` of a Job: `1,3-5,7`."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        if not (is_number(first) and is_number(last or first)) or int(last or first) >= MAX_TASKS:
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _roles(controller: Controller, spec: dict[str, Any]) -> dict[str, Role]:
    match controller.kind:
        case "Job" if _is_job(controller):
            return {"": _job_role(spec)}
        case "Job":
            return {
                task.get("name") or "default": Role(
                    task.get("replicas", 1), 1, _template_labels(task["template"])
                )
                for task in spec["tasks"]
            }
        case "JobSet":
            return {
                each["name"]: _job_role(each["template"]["spec"])._replace(
                    groups=each.get("replicas", 1),
                    labels=_template_labels(each["template"]["spec"]["template"]),
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


def _job_role(spec: dict[str, Any]) -> Role:
    """Return how many pods a Job runs at a time, and in total, from its spec."""
    parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
    if completions is None:
        return Role(parallelism)
    return Role(min(parallelism, completions), completions=completions)


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
