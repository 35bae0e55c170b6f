"""The order in which the pods of a job's selectors become its tasks.

One engine orders the tasks of a list and of a watch: a list fills it once, and a watch changes it pod by pod.
Rows of a Table, which have names and addresses only, are ordered by the same keys (see `order_by`).

Results are cached until they change, because usually one pod of thousands changes at a time.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from aioresolve.errors import Hint, PodIndexError
from aioresolve.spec import DoneTask, Missing

from .controllers import SelectedPods
from .order_by import LabelOrdering
from .pod_labels import MAX_TASKS, PodSet

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from aioresolve.spec import Endpoint

    from .pod_labels import Controller, PodIndex
    from .pods import MatchedPod

T = TypeVar("T")


class SortedValues:
    """Values sorted by their keys.

    Args:
        items: pairs of key and value.
    """

    def __init__(self, items: Iterable[tuple[Any, Any]] = ()) -> None:
        pairs = sorted(items, key=operator.itemgetter(0))
        self.keys = [key for key, _ in pairs]
        self._values = [value for _, value in pairs]
        self._snapshot: tuple[Any, ...] | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The values in order; the same tuple until one of them changes."""
        if self._snapshot is None:
            self._snapshot = tuple(self._values)
        return self._snapshot

    def position(self, key: Any) -> int:
        """Return the position of `key`, or the position at which it would be inserted."""
        return bisect_left(self.keys, key)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self._snapshot = None
        position = self.position(key)
        if position < len(self.keys) and self.keys[position] == key:
            self._values[position] = value
        else:
            self.keys.insert(position, key)
            self._values.insert(position, value)

    def discard(self, key: Any) -> None:
        """Remove `key`, which exists."""
        self._snapshot = None
        position = self.position(key)
        del self.keys[position], self._values[position]


class Numbering(NamedTuple):
    """The task indices of the pods of one selector, starting at 0.

    Attributes:
        addresses: the addresses by task index, ascending.
        end: the task index at which the tasks of the next selector start.
        unindexed: the names of the members without an index.
        first: the lowest task index that a pod has, even if it is not a member.
        done: the pods that are done by task index.
        duplicates: task index to the names of the pods that claim it, if there are several.
    """

    addresses: dict[int, str]
    end: int
    unindexed: Sequence[str]
    first: int = 0
    done: Mapping[int, MatchedPod] = {}
    duplicates: Mapping[int, list[str]] = {}


Entries: TypeAlias = "dict[tuple[str, Any], Any]"
"""What follows from one pod: values by the name of the list that they belong to and their key in it."""


class SelectorTasks:
    """The pods of one selector of a job: the members in task order, and the other pods with the reasons.

    By name and by labels, the members are numbered without gaps; a pod that is done keeps its number.

    By index, a missing pod leaves a gap. If a selector matches only a part of the pods of a controller, such
    as the second slice of a JobSet or the workers without their leader, they keep their indices, because
    nothing distinguishes pods that do not match from pods that do not exist yet. A pod that is not a member,
    even one that is being deleted, still counts for the size of its group: a restart of worker 3 of the first
    group does not move the tasks of the second group.

    A pod that has ended and that its controller replaces is neither a member nor absent. The object is stale
    until `fill` is called; until then, `put` and `discard` have no effect.
    """

    def __init__(
        self,
        job: str,
        *,
        order_by: str | LabelOrdering,
        selector: str = "",
        controller: Controller | None = None,
    ) -> None:
        self._job = job
        self._selector = selector
        self._order_by = order_by
        # The pod sets of the pods when there were any, or of those that the selector names.
        self._former: tuple[PodSet, ...] = () if controller is None else (PodSet(controller),)
        self.fill(())
        self.is_stale = True

    def fill(self, pods: Iterable[MatchedPod]) -> None:
        """Replace all pods."""
        self.is_stale = False
        self._pods = {pod.key: pod for pod in sorted(pods, key=operator.attrgetter("key"))}
        self._live: Counter[PodSet | None] = Counter()
        self._runs: Counter[str] = Counter()  # of the live pods
        self._succeeded: Counter[str] = Counter()  # the pods that have succeeded, by run
        self._roles: Counter[str | None] = Counter()
        self._selection: SelectedPods | None = None
        self._numbering: Numbering | None = None
        for pod in self._pods.values():
            self._count(pod, 1)
        items: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)
        for pod in self._pods.values():
            for (name, key), value in self._entries(pod).items():
                items[name].append((key, value))
        self._lists: defaultdict[str, SortedValues] = defaultdict(SortedValues)
        for name, pairs in items.items():
            self._lists[name] = SortedValues(pairs)

    def put(self, pod: MatchedPod) -> None:
        """Add a pod, or replace the one with the same key."""
        if not self.is_stale:
            old, self._pods[pod.key] = self._pods.get(pod.key), pod
            self._change(old, pod)

    def discard(self, pod: MatchedPod) -> None:
        """Remove a pod."""
        if not self.is_stale:
            self._change(self._pods.pop(pod.key, None), None)

    def _change(self, old: MatchedPod | None, new: MatchedPod | None) -> None:
        before = self._done_runs, len(self._roles) > 1
        old_entries = {} if old is None else self._entries(old)
        for pod, change in ((old, -1), (new, 1)):
            if pod is not None:
                self._count(pod, change)
        if (self._done_runs, len(self._roles) > 1) != before:
            self.is_stale = True  # other pods are done now, or no longer, or have other indices
            return
        new_entries = {} if new is None else self._entries(new)
        for name, key in old_entries.keys() - new_entries.keys():
            self._lists[name].discard(key)
        for (name, key), value in new_entries.items():
            self._lists[name].put(key, value)
        if _numbered(old_entries) != _numbered(new_entries):
            self._numbering = None

    def _entries(self, pod: MatchedPod) -> Entries:
        """Return what follows from the pod, while the same runs are done and there are as many roles."""
        entries: Entries = {}
        is_member, is_done = pod.endpoint is not None, self._is_done(pod)
        by_index = self._order_by == "index"
        if is_member or is_done or by_index:
            key = self._order_key(pod)
            if key is not None:
                name = "members" if is_member else "done" if is_done else "others"
                entries[name, key] = pod.endpoint if is_member else pod
            elif is_member or not by_index:
                entries["unindexed", pod.key] = pod.full_name
        if pod.failure is not None:
            entries["failed", pod.key] = self._missing(pod, pod.failure)
        elif pod.fault is not None and not pod.is_replaced and not is_done:
            entries["absent", pod.key] = self._missing(pod, pod.fault)
        elif pod.unready is not None:
            entries["unready", pod.key] = self._missing(pod, pod.unready)
        if pod.claims:
            entries["with_claims", pod.key] = pod
        return entries

    def _order_key(self, pod: MatchedPod) -> Any:
        """Return by what the pod is ordered; None if it has no place."""
        if isinstance(self._order_by, LabelOrdering):
            key = self._order_by.key(pod.labels, pod.node or "")
            return None if key is None else (key, pod.key)
        if self._order_by == "index":
            index = pod.label.among(len(self._roles))
            return None if index is None else (index, pod.key)
        return pod.key

    def _missing(self, pod: MatchedPod, reason: str) -> Missing:
        has_succeeded = pod.is_final and pod.has_succeeded
        return Missing(self._job, pod.full_name, reason, is_final=pod.is_final, has_succeeded=has_succeeded)

    @property
    def _done_runs(self) -> list[str]:
        """The runs that have live pods and pods that have succeeded."""
        return [run for run in self._succeeded if run in self._runs]

    def _is_done(self, pod: MatchedPod) -> bool:
        """Whether the pod has succeeded while others of the same run of its controller are live."""
        return pod.has_succeeded and pod.run in self._runs

    def _count(self, pod: MatchedPod, change: int) -> None:
        """Count a pod for `selected`, and its role."""
        # Without a controller, nothing shows that pods belong together.
        if pod.has_succeeded and pod.run:
            _add(self._succeeded, pod.run, change)
            self._selection = None
        elif pod.endpoint is not None or (pod.fault is not None and not pod.is_replaced):
            if pod.run:
                _add(self._runs, pod.run, change)
            if _add(self._live, pod.pod_set, change):
                self._selection = None
        elif pod.failure is not None:
            self._selection = None
        if pod.label.in_role is not None:  # with a second role, indices count over all of them
            _add(self._roles, pod.label.role, change)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The members in task order; the same tuple until one of them changes."""
        return self._lists["members"].values

    @property
    def absent(self) -> tuple[Missing, ...]:
        """The pods that may become members, by name; the same tuple until one of them changes."""
        return self._lists["absent"].values

    @property
    def unready(self) -> tuple[Missing, ...]:
        """The members that are not ready, by name; the same tuple until one of them changes."""
        return self._lists["unready"].values

    @property
    def failed(self) -> tuple[Missing, ...]:
        """The pods that have failed and have a controller, by name."""
        return self._lists["failed"].values

    @property
    def with_claims(self) -> tuple[MatchedPod, ...]:
        """The members whose ResourceClaims were not read yet."""
        return self._lists["with_claims"].values

    @property
    def unknown_nodes(self) -> set[str]:
        """The nodes of members by whose labels they are ordered, and which were not read yet."""
        ordering = self._order_by
        if not isinstance(ordering, LabelOrdering) or not ordering.node_keys:
            return set()
        ordered = (pod for pod in self._pods.values() if pod.endpoint is not None or self._is_done(pod))
        return {node for pod in ordered if ordering.is_unknown(node := pod.node or "")}

    @property
    def order(self) -> str:
        """By what the members are ordered, as text for messages."""
        return str(self._order_by)

    @property
    def selected(self) -> SelectedPods:
        """The pods by pod set; the same object until the pod sets change."""
        if self._selection is None:
            of_ended = {pod.pod_set for pod in self._pods.values() if pod.has_succeeded or pod.failure}
            known = tuple(one for one in (*self._live, *of_ended) if one is not None)
            self._former = known or self._former
            done = Counter(pod.pod_set for pod in self._pods.values() if self._is_done(pod))
            former = () if self._live else self._former
            self._selection = SelectedPods(self._selector, tuple(self._live), done, former)
        return self._selection

    @property
    def numbering(self) -> Numbering:
        """The task indices of the members; the same object until an index or an address changes.

        Raises:
            PodIndexError: with `order_by="index"`, an index is higher than a cluster can have pods.
        """
        if self._numbering is None:
            self._numbering = self._by_index() if self._order_by == "index" else self._by_position()
        return self._numbering

    def _by_position(self) -> Numbering:
        members, done = self._lists["members"], self._lists["done"]
        unindexed = self._lists["unindexed"].values
        if not done.keys:  # nearly always
            addresses = dict(enumerate(map(operator.attrgetter("address"), members.values)))
            return Numbering(addresses, len(addresses), unindexed)
        addresses = {
            number + done.position(key): endpoint.address
            for number, (key, endpoint) in enumerate(zip(members.keys, members.values, strict=True))
        }
        by_task = {
            number + members.position(key): pod
            for number, (key, pod) in enumerate(zip(done.keys, done.values, strict=True))
        }
        return Numbering(addresses, len(addresses) + len(by_task), unindexed, done=by_task)

    def _by_index(self) -> Numbering:
        members, done, others = (self._lists[name] for name in ("members", "done", "others"))
        indices = [index for index, _ in members.keys]
        not_members = [index for index, _ in chain(done.keys, others.keys)]
        starts = _group_starts(self._job, [*indices, *not_members])
        tasks = [starts[group] + member for group, member in indices]
        first = min(chain(tasks, (starts[group] + member for group, member in not_members)), default=0)
        addresses = {task: endpoint.address for task, endpoint in zip(tasks, members.values, strict=True)}
        claimed: defaultdict[int, list[str]] = defaultdict(list)
        if len(addresses) < len(tasks):
            for task, endpoint in zip(tasks, members.values, strict=True):
                claimed[task].append(endpoint.full_name or endpoint.address)
        of_done = {
            starts[group] + member: pod
            for ((group, member), _), pod in zip(done.keys, done.values, strict=True)
        }
        return Numbering(
            addresses,
            starts[-1],
            self._lists["unindexed"].values,
            first,
            {task: pod for task, pod in of_done.items() if task not in addresses},
            {task: names for task, names in claimed.items() if len(names) > 1},
        )


def _numbered(entries: Entries) -> Entries:
    """Return the part of entries that decides about task indices and addresses."""
    return {
        (name, key): value.address if name == "members" else value
        for (name, key), value in entries.items()
        if name in ("members", "done", "others", "unindexed")
    }


def _add(counts: Counter[T], key: T, change: int) -> bool:
    """Change a count, and return whether it was zero before or is zero now."""
    before = counts[key]
    counts[key] += change
    if not counts[key]:
        del counts[key]
    return not before or key not in counts


class JobTasks:
    """The tasks of one job: those of its selectors, one selector after another.

    Args:
        job: the name of the job.
        selectors: its selectors in order.
        allow_gaps: whether a task index may be missing.

    Attributes:
        done: the tasks that are done, as of the last call of `addresses`.
    """

    def __init__(self, job: str, selectors: Sequence[SelectorTasks], *, allow_gaps: bool) -> None:
        self.selectors = selectors
        self.done: tuple[DoneTask, ...] = ()
        self._job = job
        self._allow_gaps = allow_gaps
        self._numberings: list[Numbering] = []
        self._addresses: dict[int, str] = {}

    def addresses(self) -> dict[int, str]:
        """Return the members' addresses by task index, ascending; the same object until they change.

        Raises:
            PodIndexError: a member has no index, two have the same one, or one between two others is missing
                and may not be.
        """
        numberings = [selector.numbering for selector in self.selectors]
        if not are_identical(numberings, self._numberings):
            self._addresses = self._number(numberings)
            self._numberings = numberings
        return self._addresses

    def _number(self, numberings: Sequence[Numbering]) -> dict[int, str]:
        starts = list(accumulate((numbering.end for numbering in numberings), initial=0))
        parts = list(zip(starts, numberings, strict=False))
        done = dict(_shifted((start, dict(sorted(each.done.items()))) for start, each in parts))
        self.done = tuple(
            DoneTask(self._job, task, pod.full_name, pod.uid or None) for task, pod in done.items()
        )
        if len(parts) == 1:
            addresses = parts[0][1].addresses
        else:
            addresses = dict(_shifted((start, each.addresses) for start, each in parts))
        duplicates = dict(_shifted((start, each.duplicates) for start, each in parts))
        unindexed = [name for numbering in numberings for name in numbering.unindexed]
        missing = [] if self._allow_gaps else _gaps(parts, addresses, done)
        if missing or duplicates or unindexed:
            raise _index_order_error(
                self._job,
                missing=missing,
                duplicates=duplicates,
                unindexed=unindexed,
                order=self.selectors[0].order,
            )
        return addresses


def _shifted(parts: Iterable[tuple[int, Mapping[int, T]]]) -> Iterator[tuple[int, T]]:
    """Yield the values of several selectors with their task indices, each from where its tasks start."""
    for start, by_task in parts:
        for task, value in by_task.items():
            yield start + task, value


def _gaps(
    parts: Sequence[tuple[int, Numbering]], addresses: dict[int, str], done: Container[int]
) -> list[int]:
    """Return the task indices without a task before the last member.

    Only gaps between the pods of a selector are known: nothing says how many tasks there should be.
    """
    last = next(reversed(addresses), -1)
    if last < len(addresses):
        return []
    return [
        task
        for start, numbering in parts
        for task in range(start + numbering.first, min(start + numbering.end, last))
        if task not in addresses and task not in done
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


def _index_order_error(
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


def are_identical(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether two sequences consist of the very same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
