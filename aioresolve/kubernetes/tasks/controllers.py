"""The controllers of pods, and how many pods they want: the size of a cluster that is still starting.

The number comes from the object of the controller, or from the pods if the selector matches one group of a
LeaderWorkerSet: their annotation `leaderworkerset.sigs.k8s.io/size`.

A selector may match a part of the pods of a controller. Pods made from one template match together, unless
the selector has a label in which they differ, such as an index: then the number is unknown.

The number includes the pods that have succeeded, which nothing replaces. The object of the controller also
says whether the job as a whole has failed, is complete or suspended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio

from aioresolve._core.concurrency import gather
from aioresolve.kubernetes.api.queries import parse_selector
from aioresolve.spec import ControllerStatus, ExpectedTasks

from .controller_kinds import (
    KINDS,
    LWS_SIZE,
    LWS_WORKER,
    MAX_PODS,
    MPI_LAUNCHER,
    Controller,
    PodSet,
    Role,
    is_number,
    valid_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.queries import Selector
    from aioresolve.spec import Observation

MIN_PAUSE = 0.2
"""Seconds between two reads of the same controllers: many pods may become ready one after another."""

ENDED_PAUSE = 1.0
"""Seconds between two reads while no pod is left, whose controller may have ended or been suspended."""

MAX_CONCURRENT_READS = 8


class ControllerObject(NamedTuple):
    """What the object of a controller says.

    Attributes:
        roles: the roles by their names.
        status: whether the job as a whole has ended or is suspended.
        succeeded: how many pods of a Job have succeeded, also if they no longer exist.
        completed: of an Indexed Job, the indices of these pods.
    """

    roles: Mapping[str, Role]
    status: ControllerStatus | None = None
    succeeded: int = 0
    completed: frozenset[int] = frozenset()


NOTHING = ControllerObject({})
"""What was read of a controller before the first time."""


class SelectedPods(NamedTuple):
    """The pods that one selector of a job matches, by pod set; the pod set of unknown controllers is None.

    Attributes:
        selector: the label selector.
        live: the pod sets of the pods that are members or may become members.
        done: how many pods have succeeded in the same run of a controller that has live pods.
        former: if no pod is live, the pod sets of the pods that were live before, or that have ended.
    """

    selector: str
    live: Sequence[PodSet | None]
    done: Mapping[PodSet | None, int]
    former: Sequence[PodSet] = ()


@dataclass(slots=True)
class Controllers:
    """The objects of the controllers of the pods, as far as they were read.

    Args:
        reads_sizes: whether to read the controllers of live pods, to know how many pods they want.
        reads_ended: whether to read the controllers of a job without live pods, to know whether it has ended.

    Attributes:
        objects: the object of each controller; None if it may not be read or does not exist.
    """

    reads_sizes: bool = True
    reads_ended: bool = True
    objects: dict[Controller, ControllerObject | None] = field(default_factory=dict)
    _read_at: float = 0.0  # on the clock of the event loop
    _reported: dict[Controller, ControllerObject] = field(default_factory=dict)
    _without_pods: set[Controller] = field(default_factory=set)
    # Controllers that were not found before they had a live pod: they may not have existed yet.
    _early: set[Controller] = field(default_factory=set)

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
        live = {one.controller for each in jobs.values() for selected in each for one in selected.live if one}
        self._without_pods = set()
        for selections in jobs.values():
            if any(selection.live for selection in selections):
                if self.reads_sizes:
                    needed += [one for selection in selections for one in self._unread(selection)]
            elif self.reads_ended:
                former = {one.controller for selection in selections for one in selection.former}
                self._without_pods |= former
                needed += [one for one in former if one not in self.objects]
        self._without_pods -= live  # a controller may have pods in another job
        return list(dict.fromkeys(needed))

    async def read(self, api: ObjectAPI, controllers: Sequence[Controller], progress: Progress) -> None:
        """Read `controllers`.

        Raises:
            ResolveError: the API server cannot be reached; some of them may have been read.
        """

        async def read(controller: Controller) -> None:
            body = await api.read(controller.path, str(controller), progress)
            found = None if body is None else parse_controller(controller, body)
            self._early.discard(controller)
            if found is not None:
                self.objects[controller] = _confirmed(found, self._reported.get(controller, NOTHING))
                self._reported[controller] = found
                return
            # One that was read once, and now cannot be, keeps its size.
            self.objects.setdefault(controller, None)
            if controller in self._without_pods:
                self._early.add(controller)

        await gather([partial(read, one) for one in controllers], limit=MAX_CONCURRENT_READS)
        self._read_at = anyio.current_time()

    async def read_again(
        self, api: ObjectAPI, observe: Callable[[], Observation], interval: float, progress: Progress
    ) -> bool:
        """Read the controllers again if that is needed before an observation counts; return whether it was.

        What they say may have changed: this matters if the cluster seems to be complete or to have ended, and
        is checked every `interval` seconds otherwise. `MIN_PAUSE` lies between two reads.

        Raises:
            ResolveError: the API server cannot be reached; some of them may have been read.
        """
        if not self.objects or not (self._is_due(interval) or _seems_settled(observe())):
            return False
        await anyio.sleep_until(self._read_at + MIN_PAUSE)
        await self.read(api, list(self.objects), progress)
        return True

    async def repeat(self, interval: float, observe_again: Callable[[], object]) -> None:
        """Call `observe_again` whenever it is time to read the controllers again; never returns."""
        while True:
            await anyio.sleep(min(interval, ENDED_PAUSE))
            if self._is_due(interval):
                observe_again()

    def _is_due(self, interval: float) -> bool:
        """Whether the controllers were read `interval` seconds ago, or `ENDED_PAUSE` if no pod is left."""
        pause = min(interval, ENDED_PAUSE) if self._without_pods else interval
        return bool(self.objects) and anyio.current_time() >= self._read_at + pause

    def _of_job(self, selections: Sequence[SelectedPods]) -> ExpectedTasks | None:
        number, done, sources = 0, 0, []
        for selection in selections:
            found = _by_controller(selection)
            if not found:
                return None
            for controller, pod_sets in found.items():
                size = self._size(controller, pod_sets, parse_selector(selection.selector))
                if size is None:
                    return None
                at_a_time, completions, source = size
                of_controller = sum(
                    count for one, count in selection.done.items() if one and one.controller == controller
                )
                if (read := self.objects.get(controller)) is not None:
                    of_controller = max(of_controller, read.succeeded)
                number += max(at_a_time, min(at_a_time + of_controller, completions))
                done += of_controller
                sources.append(source)
        return ExpectedTasks(number, ", ".join(sorted(set(sources))), done) if number else None

    def _unread(self, selection: SelectedPods) -> Iterable[Controller]:
        """Yield the controllers that have to be read to know the number of the selected pods."""
        selector = parse_selector(selection.selector)
        for controller, pod_sets in (_by_controller(selection) or {}).items():
            is_read = controller in self.objects and controller not in self._early
            if not is_read and not _size_of_group(controller, pod_sets, selector):
                yield controller

    def _size(
        self, controller: Controller, pod_sets: Sequence[PodSet], selector: Selector
    ) -> tuple[int, int, str] | None:
        """Return how many of the pods of a controller the selector will match; None if unknown.

        Returns:
            How many run at the same time, how many have to succeed (0 if not more), and what states that.
        """
        restricted = selector.keys & controller.row.group_labels
        if not restricted <= selector.values.keys():
            return None
        if size := _size_of_group(controller, pod_sets, selector):
            return size, 0, f"{LWS_SIZE} of the pods"
        read, found = self.objects.get(controller), {one.role for one in pod_sets}
        if read is None or not found <= read.roles.keys():
            return None
        if not selector.keys & controller.row.role_labels:
            # The selector cannot match one template without another that has the same values of its labels.
            labels = {
                name: [role.labels.get(key) for key in selector.keys] for name, role in read.roles.items()
            }
            selected = [labels[name] for name in found]
            # A launcher is counted as a pod of its own Job.
            found |= {name for name in labels if labels[name] in selected and name != MPI_LAUNCHER}
        roles = [(read.roles[name], 1 if restricted else read.roles[name].groups) for name in found]
        number = sum(role.per_group * groups for role, groups in roles)
        completions = sum(role.completions * groups for role, groups in roles)
        return (
            valid_count(number) or 0,
            valid_count(completions) or 0,
            f"{controller.row.fields} of {controller}",
        )


def _size_of_group(controller: Controller, pod_sets: Sequence[PodSet], selector: Selector) -> int | None:
    """Return the size of the only group that the selector matches, if its pods state it."""
    row = controller.row
    groups = selector.keys & row.group_labels
    is_whole = selector.keys <= row.group_labels.union(*row.workload)
    return pod_sets[0].group_size if groups and groups <= selector.values.keys() and is_whole else None


def _seems_settled(observation: Observation) -> bool:
    """Whether the cluster seems to be complete, or to have ended."""
    if observation.controllers:
        return True
    state = observation.state
    return (
        state is not None
        and bool(observation.expected)
        and all(
            len(state.endpoints.get(job, ())) + expected.done >= expected.number
            for job, expected in observation.expected.items()
        )
    )


def _by_controller(selection: SelectedPods) -> dict[Controller, list[PodSet]] | None:
    """Return the live pod sets by their controllers; None if the number of some pods cannot be known."""
    if _splits_templates(parse_selector(selection.selector)):
        return None
    found: dict[Controller, list[PodSet]] = {}
    for one in selection.live:
        if one is None:
            return None
        found.setdefault(one.controller, []).append(one)
    return found


# Every label in which the pods of a template differ is named like one of these.
_OF_PODS = re.compile(r"/.*(-index|pod-name|subgroup-key)$")


def _splits_templates(selector: Selector) -> bool:
    """Whether a selector may match only some pods of one template."""
    of_groups = frozenset().union(*(row.group_labels for row in KINDS.values()))
    of_pods = {key for key in selector.keys - of_groups if _OF_PODS.search(key)}
    # The leader of a LeaderWorkerSet may have a template of its own.
    return bool(of_pods - ({LWS_WORKER} if selector.values.get(LWS_WORKER) == "0" else set()))


def parse_controller(controller: Controller, body: bytes) -> ControllerObject | None:
    """Return what the object of a controller, as JSON, says; None if it is malformed."""
    try:
        document = json.loads(body)
        spec, status = document["spec"], document.get("status") or {}
        valid = {
            name: role
            for name, role in controller.row.roles(spec).items()
            if None not in map(valid_count, (role.per_group, role.groups, role.completions))
        }
        is_job = controller.row.name == "Job"
        return ControllerObject(
            valid,
            _controller_status(controller, spec, status),
            valid_count(status.get("succeeded")) or 0 if is_job else 0,
            _indices(status.get("completedIndexes")) if is_job else frozenset(),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _confirmed(new: ControllerObject, old: ControllerObject) -> ControllerObject:
    """Return `new` with those successes only that the previous read reported too.

    A watch may report that a pod has succeeded a moment later than the Job does, which does not mean that the
    pod no longer exists.
    """
    return new._replace(succeeded=min(new.succeeded, old.succeeded), completed=new.completed & old.completed)


_PHASES: Mapping[str, Literal["failed", "complete", "suspended"]] = {
    "Failed": "failed",
    "Aborted": "failed",  # Volcano Job
    "Terminated": "failed",
    "Complete": "complete",  # Job
    "Completed": "complete",  # JobSet, Volcano Job
    "Succeeded": "complete",  # jobs of the Kubeflow training operator and the MPI operator
    "Suspended": "suspended",
}
"""What the condition or the phase of a controller means for the job as a whole.

An end is final, and comes before a condition that is left from before it.
"""


def _controller_status(
    controller: Controller, spec: dict[str, Any], status: dict[str, Any]
) -> ControllerStatus | None:
    """Return the phase of the job as a whole, from `status.conditions`, `status.state` or `spec.suspend`."""
    conditions = {each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"}
    if "state" in status:  # of a Volcano Job
        conditions = {status["state"].get("phase"): status["state"]}
    for name, phase in _PHASES.items():
        if name in conditions:
            text = ": ".join(
                conditions[name][key] for key in ("reason", "message") if conditions[name].get(key)
            )
            return ControllerStatus(phase, str(controller), text)
    suspended = spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend")
    return ControllerStatus("suspended", str(controller)) if suspended is True else None


def _indices(text: str | None) -> frozenset[int]:
    """Return the indices of `status.completedIndexes` of a Job: `1,3-5,7`."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        if not (is_number(first) and is_number(last or first)) or int(last or first) >= MAX_PODS:
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
