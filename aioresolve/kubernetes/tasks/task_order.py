"""Which task each pod of a job is: the members in their order, and the other pods with the reasons.

Rows of a Table, which have names and addresses only, are ordered by the same names.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from aioresolve.errors import Hint, PodIndexError
from aioresolve.spec import DoneTask, Missing

from .controller_kinds import MAX_PODS, PodIndex, PodSet
from .controllers import SelectedPods

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve.spec import Endpoint

    from .accelerators import Devices
    from .controller_kinds import Controller
    from .ordering import Ordering
    from .pods import MatchedPod


class Numbering(NamedTuple):
    """The task indices of the pods of one selector, starting at 0.

    Attributes:
        members: the task index of each member, ascending.
        end: the task index at which the tasks of the next selector start.
        first: the lowest task index that a pod has, even if it is not a member.
        done: the pods that are done by task index, ascending.
        repeats: whether several members have the same index.
    """

    members: Sequence[int]
    end: int
    first: int = 0
    done: Mapping[int, MatchedPod] = {}
    repeats: bool = False


class _Reasons:
    """Pods of a job that are missing or not ready, in the order of their names, with the reasons."""

    def __init__(self, job: str, pods: Sequence[MatchedPod]) -> None:
        self._job = job
        self._keys = [pod.key for pod in pods]
        self._missing = [self._of(pod) for pod in pods]
        self._all: tuple[Missing, ...] | None = None

    @property
    def all(self) -> tuple[Missing, ...]:
        """The pods with the reasons; the same tuple until one of them changes."""
        if self._all is None:
            self._all = tuple(self._missing)
        return self._all

    def replace(self, pod: MatchedPod, *, is_one: bool) -> None:
        """Add, change or remove a pod, which is one of them from now on or not."""
        start = bisect_left(self._keys, pod.key)
        place = slice(start, start + (self._keys[start : start + 1] == [pod.key]))
        new = [self._of(pod)] if is_one else []
        if self._missing[place] != new:
            self._keys[place] = [pod.key] * is_one
            self._missing[place] = new
            self._all = None

    def _of(self, pod: MatchedPod) -> Missing:
        return Missing(
            self._job,
            pod.full_name,
            pod.failure or pod.fault or pod.unready or "",
            is_final=pod.is_final,
            has_succeeded=pod.has_succeeded,
        )


class SelectorTasks:
    """The pods of one selector of a job: the members in task order, and the other pods with the reasons.

    By name and by labels, the members are numbered without gaps; a pod that is done keeps its number. A pod
    is done if it has succeeded while others of the same run of its controller are members or may become some.

    By index, a missing pod leaves a gap. If a selector matches only a part of the pods of a controller, such
    as the second slice of a JobSet or the workers without their leader, they keep their indices, because
    nothing distinguishes pods that do not match from pods that do not exist yet. A pod that is not a member,
    even one that is being deleted, still counts for the size of its group: a restart of worker 3 of the first
    group does not move the tasks of the second group.

    A pod that has ended and that its controller replaces is neither a member nor absent.

    Attributes:
        is_stale: whether the pods have changed since the last `fill`, which has to be called then.
        failed: the pods that have failed and have a controller, by name.
        unread_claims: the ResourceClaims of members that were not read yet.
        unknown_nodes: the nodes of members by whose labels they are ordered, and which were not read yet.
        unindexed: the names of the members without an index or label to be ordered by.
        selected: the pods by pod set.
    """

    def __init__(
        self,
        job: str,
        ordering: Ordering,
        devices: Devices,
        selector: str,
        controller: Controller | None,
    ) -> None:
        self._job, self._ordering, self._devices, self._selector = job, ordering, devices, selector
        # The pod sets of the last pods; before there were any, the one of the Job that the selector names.
        self._former: tuple[PodSet, ...] = () if controller is None else (PodSet(controller),)
        self.fill(())

    def fill(self, pods: Iterable[MatchedPod]) -> None:
        """Replace all pods."""
        self.is_stale = False
        self._snapshot: tuple[Endpoint, ...] | None = None
        self._numbering: Numbering | None = None
        by_key = sorted(pods, key=operator.attrgetter("key"))
        members = [pod for pod in by_key if pod.endpoint is not None]
        others = [pod for pod in by_key if pod.endpoint is None]
        waiting = [pod for pod in others if pod.is_waiting]
        live = members + waiting
        succeeded = [pod for pod in others if pod.has_succeeded]
        self._has_succeeded = bool(succeeded)
        # Without a controller, nothing shows that pods belong together.
        runs = {pod.run for pod in live if pod.run} if succeeded else ()
        done = {pod.key for pod in succeeded if pod.run in runs}
        self._absent = _Reasons(self._job, waiting)
        self._unready = _Reasons(self._job, [pod for pod in members if pod.unready is not None])
        self.failed = _Reasons(self._job, [pod for pod in others if pod.failure is not None]).all
        claims = chain.from_iterable(pod.claims for pod in members if pod.claims)
        self.unread_claims = self._devices.unread(claims)
        self.selected = self._select(live, [pod for pod in others if pod.has_succeeded or pod.failure], done)
        if self._ordering.by_index:
            self._order(by_key, done)
        elif done:
            self._order([pod for pod in by_key if pod.endpoint is not None or pod.key in done], done)
        else:
            self._order(members, done)

    def change(self, old: MatchedPod | None, new: MatchedPod) -> None:
        """Replace one pod; None if it did not exist before."""
        if self.is_stale or not self._affects_only_itself(old, new):
            self.is_stale = True
            return
        self._absent.replace(new, is_one=new.endpoint is None)
        self._unready.replace(new, is_one=new.unready is not None)
        if new.endpoint is None:
            return
        self._snapshot = None
        if not self._ordering.by_name:
            if new.key in self._positions:  # otherwise it lacks an index or label
                self._endpoints[self._positions[new.key]] = self._with_devices(new)
            return
        position = bisect_left(self._keys, new.key)
        if old is not None and old.endpoint is not None:
            self._endpoints[position] = self._with_devices(new)
            return
        self._keys.insert(position, new.key)
        self._ordered.insert(position, new)
        self._endpoints.insert(position, new.endpoint)
        self._numbering = None

    def _affects_only_itself(self, old: MatchedPod | None, new: MatchedPod) -> bool:
        """Whether nothing changes for other pods: the pod is created, starts, or becomes ready.

        Thousands do, one after another, while a job starts.
        """
        if old is not None and None not in (old.endpoint, new.endpoint):
            return replace(new, endpoint=old.endpoint, unready=old.unready) == old
        return (
            self._ordering.by_name
            and not self._has_succeeded
            and not new.has_succeeded
            and (old is None or (old.is_waiting and old.pod_set == new.pod_set))
            and (new.is_waiting or new.endpoint is not None)
            and new.pod_set in self.selected.live
            and not new.claims
        )

    def _select(
        self, live: Sequence[MatchedPod], ended: Sequence[MatchedPod], done: set[str]
    ) -> SelectedPods:
        pod_sets = tuple(dict.fromkeys([pod.pod_set for pod in live]))
        known = tuple(one for one in (*pod_sets, *(pod.pod_set for pod in ended)) if one is not None)
        self._former = tuple(dict.fromkeys(known)) or self._former
        of_done = Counter(pod.pod_set for pod in ended if pod.key in done)
        return SelectedPods(self._selector, pod_sets, of_done, () if live else self._former)

    def _order(self, pods: list[MatchedPod], done: set[str]) -> None:
        """Put `pods`, which are in the order of their names, into task order.

        By index, they are all pods; otherwise the members and the pods that are done. `done` has the keys of
        the latter.
        """
        self._indices: list[PodIndex] | None = None
        self.unindexed: list[str] = []
        self.unknown_nodes: set[str] = set()
        keys: list[Any] | None = None
        ordering = self._ordering
        if ordering.by_index:
            roles = {pod.label.role for pod in pods if pod.label.in_role is not None}
            keys = [pod.label.among(len(roles)) for pod in pods]
        if ordering.by_labels:
            keys = [ordering.key(pod.labels, pod.node or "") for pod in pods]
            self.unknown_nodes = {pod.node or "" for pod in pods if ordering.is_unknown(pod.node or "")}
        if keys is not None:
            keyed = list(zip(keys, pods, strict=True))
            if None in keys:
                # By labels, a pod that is done needs them too.
                self.unindexed = [
                    pod.full_name
                    for key, pod in keyed
                    if key is None and (ordering.by_labels or pod.endpoint is not None)
                ]
                keyed = [each for each in keyed if each[0] is not None]
            # Stable: pods with the same labels or index remain in the order of their names.
            keyed.sort(key=operator.itemgetter(0))
            pods = [pod for _, pod in keyed]
            if ordering.by_index:
                self._indices = [index for index, _ in keyed]
        self._ordered, self._done = pods, done
        members = [pod for pod in pods if pod.endpoint is not None]
        # In another order than by name, no pod is inserted between two calls of `fill`: the positions hold.
        self._keys = [pod.key for pod in members]
        self._positions = {} if ordering.by_name else {key: at for at, key in enumerate(self._keys)}
        self._endpoints: list[Any] = [
            self._with_devices(pod) if pod.claims else pod.endpoint for pod in members
        ]

    def _with_devices(self, member: MatchedPod) -> Endpoint | None:
        endpoint = member.endpoint
        return self._devices.added_to(endpoint, member.claims) if endpoint and member.claims else endpoint

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The members in task order; the same tuple until one of them changes."""
        if self._snapshot is None:
            self._snapshot = tuple(self._endpoints)
        return self._snapshot

    @property
    def absent(self) -> tuple[Missing, ...]:
        """The pods that may become members, by name; the same tuple until one of them changes."""
        return self._absent.all

    @property
    def unready(self) -> tuple[Missing, ...]:
        """The members that are not ready, by name; the same tuple until one of them changes."""
        return self._unready.all

    @property
    def numbering(self) -> Numbering:
        """The task indices of the members; the same object until an index changes.

        Raises:
            PodIndexError: with `order_by="index"`, an index is higher than a cluster can have pods.
        """
        if self._numbering is None:
            self._numbering = self._number()
        return self._numbering

    def _number(self) -> Numbering:
        if not self._ordered or (self._indices is None and not self._done):  # nearly always
            return Numbering(range(len(self._ordered)), len(self._ordered))
        tasks: Sequence[int] = range(len(self._ordered))
        end = len(tasks)
        if self._indices is not None:
            starts = _group_starts(self._job, self._indices)
            tasks, end = [starts[group] + member for group, member in self._indices], starts[-1]
        members = [task for task, pod in zip(tasks, self._ordered, strict=True) if pod.endpoint is not None]
        known = set(members)
        done = {
            task: pod
            for task, pod in zip(tasks, self._ordered, strict=True)
            if task not in known and pod.key in self._done
        }
        return Numbering(members, end, min(tasks), done, len(known) < len(members))


class JobTasks(NamedTuple):
    """The tasks of one job: those of its selectors, one selector after another.

    Attributes:
        members: the task index of each member, ascending.
        endpoints: the members.
        done: the tasks that are done.
    """

    members: Sequence[int]
    endpoints: tuple[Endpoint, ...]
    done: tuple[DoneTask, ...]

    @property
    def addresses(self) -> dict[int, str]:
        """The address of each member by task index."""
        return dict(zip(self.members, map(operator.attrgetter("address"), self.endpoints), strict=True))


def number_tasks(
    job: str, selectors: Sequence[SelectorTasks], ordering: Ordering, *, allow_gaps: bool
) -> JobTasks:
    """Return the tasks of a job. With `allow_gaps`, a task index may be missing.

    Raises:
        PodIndexError: a member has no index, two have the same one, or one between two others is missing and
            may not be.
    """
    numberings = [selector.numbering for selector in selectors]
    starts = accumulate((numbering.end for numbering in numberings), initial=0)
    parts = list(zip(starts, numberings, strict=False))
    done = {start + task: pod for start, each in parts for task, pod in each.done.items()}
    if len(parts) == 1:
        members, endpoints = numberings[0].members, selectors[0].endpoints
    else:
        members = [start + task for start, each in parts for task in each.members]
        endpoints = tuple([endpoint for selector in selectors for endpoint in selector.endpoints])
    claimed: defaultdict[int, list[str]] = defaultdict(list)
    if any(numbering.repeats for numbering in numberings):
        for task, endpoint in zip(members, endpoints, strict=True):
            claimed[task].append(endpoint.full_name or endpoint.address)
    duplicates = {task: names for task, names in claimed.items() if len(names) > 1}
    missing = [] if allow_gaps or isinstance(members, range) else _gaps(parts, members, done)
    unindexed = [name for selector in selectors for name in selector.unindexed]
    if missing or duplicates or unindexed:
        raise _index_order_error(job, missing, duplicates, unindexed, order=str(ordering))
    return JobTasks(
        members,
        endpoints,
        tuple(DoneTask(job, task, pod.full_name, pod.uid or None) for task, pod in done.items()),
    )


def _gaps(
    parts: Sequence[tuple[int, Numbering]], members: Sequence[int], done: Mapping[int, object]
) -> list[int]:
    """Return the task indices without a task before the last member.

    Only gaps between the pods of a selector are known: nothing says how many tasks there should be.
    """
    known, last = {*members, *done}, max(members, default=-1)
    return [
        task
        for start, numbering in parts
        for task in range(start + numbering.first, min(start + numbering.end, last))
        if task not in known
    ]


def _group_starts(job: str, known: Iterable[PodIndex]) -> list[int]:
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
    largest = max(sizes.values())
    groups = max(sizes) + 1
    # The list below has one entry for each group, even if the largest group is small.
    if sum(sizes.values()) + max(groups, (groups - len(sizes)) * largest) > MAX_PODS:
        group, size = max(sizes.items(), key=max)
        raise PodIndexError(
            f"a pod of job {job!r} claims index {size - 1} in group {group},"
            " more than a cluster can have pods",
            hint=Hint("Correct the label of the pod, or pass {order_by=name}."),
        )
    return list(accumulate((sizes.get(group, largest) for group in range(groups)), initial=0))


def _index_order_error(
    job: str,
    missing: Sequence[int],
    duplicates: Mapping[int, Sequence[str]],
    unindexed: Sequence[str],
    *,
    order: str,
) -> PodIndexError:
    faults = [f"no pod has index {_join(missing)}"] if missing else []
    faults += [f"index {task} is claimed by {' and '.join(names)}" for task, names in duplicates.items()]
    if unindexed:
        lacking = "no index label or annotation on" if order == "index" else "it is missing for"
        faults.append(f"{lacking} {_join(unindexed)}")
    return PodIndexError(
        f"the tasks of job {job!r} cannot be ordered by {order}: {'; '.join(faults)}",
        hint=Hint(
            "Wait until every pod exists, narrow the selector to one controller, or pass {order_by=name}."
        ),
    )


def _join(values: Sequence[object]) -> str:
    shown = ", ".join(str(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"
