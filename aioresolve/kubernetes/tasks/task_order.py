"""The order in which the pods of a job's selectors become its tasks.

One engine orders the tasks of a list and of a watch: a list fills it once, and a watch changes it pod by pod.
Rows of a Table, which have names and addresses only, are ordered by the same keys (see `order_by`).

Results are cached until they change, because usually one pod of thousands changes at a time.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import Counter
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from aioresolve.spec import DoneTask, Missing

from .controllers import Controller, PodSet, SelectedPods
from .order_by import NODE_LABEL, POD_LABEL, natural_key
from .pod_index import PodIndex, group_starts, index_order_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from aioresolve.spec import Endpoint

    from .matched_pods import MatchedPod

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class SortedValues(Generic[K, V]):
    """Values sorted by their keys.

    Args:
        items: pairs of key and value, sorted by key.
    """

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        pairs = list(items)
        self.keys: list[Any] = [key for key, _ in pairs]
        self._values: list[V] = [value for _, value in pairs]
        self._snapshot: tuple[V, ...] | None = None

    @property
    def values(self) -> tuple[V, ...]:
        """The values in order; the same tuple until one of them changes."""
        if self._snapshot is None:
            self._snapshot = tuple(self._values)
        return self._snapshot

    def position(self, key: K) -> int:
        """Return the position of `key`, or the position at which it would be inserted."""
        return bisect_left(self.keys, key)

    def put(self, key: K, value: V) -> V | None:
        """Set the value of `key`, and return the previous one, if any."""
        self._snapshot = None
        position = self.position(key)
        if position < len(self.keys) and self.keys[position] == key:
            previous, self._values[position] = self._values[position], value
            return previous
        self.keys.insert(position, key)
        self._values.insert(position, value)
        return None

    def discard(self, key: K) -> V | None:
        """Remove the value of `key`, and return it, if any."""
        position = self.position(key)
        if position == len(self.keys) or self.keys[position] != key:
            return None
        self._snapshot = None
        del self.keys[position]
        return self._values.pop(position)


class Numbering(NamedTuple):
    """The task indices of the pods of one selector, starting at 0.

    Attributes:
        addresses: the addresses by task index, ascending.
        first: the lowest task index that a pod has, even if it is not a member.
        end: the task index at which the tasks of the next selector start.
        done: the pods that are done by task index.
        duplicates: task index to the names of the pods that claim it, if there are several.
        unindexed: the names of the members without an index.
    """

    addresses: dict[int, str]
    first: int
    end: int
    done: Mapping[int, MatchedPod]
    duplicates: dict[int, list[str]]
    unindexed: Sequence[str]


class LabelOrdering:
    """The order by the labels of pods and of their nodes; pods with the same labels are ordered by name.

    Values are compared as names are: numbers in them as numbers.

    Args:
        terms: the labels, the most important one first, each with its prefix.

    Attributes:
        pod_keys: the keys of the labels of pods.
        node_keys: the keys of the labels of nodes.
        nodes: the values of the labels of each node by its name, as far as they were read.
        absent: the names of nodes that did not exist when the nodes were read.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        self._terms = [term.partition(":") for term in terms]
        self.pod_keys = tuple(key for prefix, _, key in self._terms if prefix + ":" == POD_LABEL)
        self.node_keys = tuple(key for prefix, _, key in self._terms if prefix + ":" == NODE_LABEL)
        self.nodes: Mapping[str, tuple[str | None, ...]] = {}
        self.absent: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the labels as text for messages."""
        kinds = {"label": "label {!r}", "node-label": "label {!r} of the node"}
        return " and ".join(kinds[prefix].format(key) for prefix, _, key in self._terms)

    def unknown_node(self, pod: MatchedPod) -> str | None:
        """Return the node of a pod if its labels were not read yet."""
        if not self.node_keys:
            return None
        node = pod.node or ""
        return None if node in self.nodes or node in self.absent else node

    def key(self, pod: MatchedPod) -> tuple[tuple[str, ...], str] | None:
        """Return the sort key of a pod; None if it or its node lacks a label."""
        of_node = iter(self.nodes.get(pod.node or "", (None,) * len(self._terms)))
        of_pod = iter(pod.labels)
        values = [next(of_node if prefix == "node-label" else of_pod) for prefix, _, _ in self._terms]
        return None if None in values else (tuple(natural_key(value or "") for value in values), pod.key)


class PositionOrder(Generic[K]):
    """The members among the pods of one selector, ordered by a key and numbered without gaps.

    A pod that is done keeps its number.

    Args:
        key: returns the key of a pod; None if the pod cannot be ordered.
        is_done: whether a pod is done.
    """

    def __init__(self, key: Callable[[MatchedPod], K | None], is_done: Callable[[MatchedPod], bool]) -> None:
        self._key = key
        self._is_done = is_done
        self._keys: dict[str, K] = {}  # of the members and the pods that are done, by the key of the pod
        self._members: SortedValues[K, Endpoint] = SortedValues()
        self._done: SortedValues[K, MatchedPod] = SortedValues()
        self._unindexed: dict[str, str] = {}  # the names of pods that cannot be ordered, by key
        self._numbering: Numbering | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The members in task order; the same tuple until one of them changes."""
        return self._members.values

    @property
    def numbering(self) -> Numbering:
        """The task indices; the same object until an index or an address changes."""
        if self._numbering is None:
            self._numbering = self._number()
        return self._numbering

    def fill(self, pods: Sequence[MatchedPod]) -> None:
        """Set all pods, which are sorted by `MatchedPod.key`."""
        self._keys, self._unindexed, self._numbering = {}, {}, None
        ordered = [(key, pod) for pod in pods if (key := self._note(pod)) is not None]
        ordered.sort(key=operator.itemgetter(0))
        self._members = SortedValues((key, pod.endpoint) for key, pod in ordered if pod.endpoint is not None)
        self._done = SortedValues((key, pod) for key, pod in ordered if pod.endpoint is None)

    def put(self, pod: MatchedPod) -> None:
        old = self._keys.get(pod.key)
        if old is None or pod.endpoint is None or self._key(pod) != old:
            self.discard(pod)
        key = self._note(pod)
        if key is None:
            return
        if pod.endpoint is None:
            self._done.put(key, pod)
            self._numbering = None
            return
        self._done.discard(key)
        previous = self._members.put(key, pod.endpoint)
        if previous is None or previous.address != pod.endpoint.address:
            self._numbering = None

    def discard(self, pod: MatchedPod) -> None:
        key = self._keys.pop(pod.key, None)
        if key is not None:
            self._members.discard(key)
            self._done.discard(key)
            self._numbering = None
        if self._unindexed.pop(pod.key, None) is not None:
            self._numbering = None

    def _note(self, pod: MatchedPod) -> K | None:
        """Record the key of a member, or of a pod that is done; return it, if there is one."""
        if pod.endpoint is None and not self._is_done(pod):
            return None
        key = self._key(pod)
        if key is None:
            self._unindexed[pod.key] = pod.full_name
            self._numbering = None
        else:
            self._keys[pod.key] = key
        return key

    def _number(self) -> Numbering:
        members, done = self._members, self._done
        unindexed = list(self._unindexed.values())
        if not done.keys:  # nearly always
            addresses = dict(enumerate(endpoint.address for endpoint in members.values))
            return Numbering(addresses, 0, len(addresses), {}, {}, unindexed)
        addresses = {
            position + done.position(key): endpoint.address
            for position, (key, endpoint) in enumerate(zip(members.keys, members.values, strict=True))
        }
        by_task = {
            position + members.position(key): pod
            for position, (key, pod) in enumerate(zip(done.keys, done.values, strict=True))
        }
        return Numbering(addresses, 0, len(addresses) + len(by_task), by_task, {}, unindexed)


class IndexOrder:
    """The members among the pods of one selector, at the task indices that their controllers gave them.

    It has the methods of `PositionOrder`. A missing pod leaves a gap. If a selector matches only a part of
    the pods of a controller, such as the second slice of a JobSet or the workers without their leader, they
    keep their indices, because nothing distinguishes pods that do not match from pods that do not exist yet.

    A pod that is not a member, even one that is being deleted, still counts for the size of its group: a
    restart of worker 3 of the first group does not move the tasks of the second group.
    """

    def __init__(self, job: str, is_done: Callable[[MatchedPod], bool]) -> None:
        self._job = job
        self._is_done = is_done
        self._pods: dict[str, MatchedPod] = {}
        self._roles: Counter[str | None] = Counter()
        self._members: SortedValues[tuple[PodIndex, str], Endpoint] = SortedValues()
        self._others: dict[str, PodIndex] = {}  # the indices of pods that are not members, by key
        self._unindexed: dict[str, str] = {}  # the names of members without an index, by key
        self._numbering: Numbering | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._members.values

    @property
    def numbering(self) -> Numbering:
        """See `PositionOrder`. Raises a PodIndexError if an index is higher than a cluster can have pods."""
        if self._numbering is None:
            self._numbering = self._number()
        return self._numbering

    def fill(self, pods: Sequence[MatchedPod]) -> None:
        self._pods = {pod.key: pod for pod in pods}
        self._roles = Counter(pod.label.role for pod in pods if pod.label.in_role is not None)
        self._order_all()

    def put(self, pod: MatchedPod) -> None:
        previous = self._pods.get(pod.key)
        if previous is not None and previous.label != pod.label:
            self.discard(previous)
            previous = None
        self._pods[pod.key] = pod
        if previous is None:
            self._count(pod, 1)
        self._order(pod)

    def discard(self, pod: MatchedPod) -> None:
        previous = self._pods.pop(pod.key, None)
        if previous is None:
            return
        index = self._index(previous)
        if index is not None:
            self._members.discard((index, previous.key))
        self._others.pop(previous.key, None)
        self._unindexed.pop(previous.key, None)
        self._numbering = None
        self._count(previous, -1)

    def _index(self, pod: MatchedPod) -> PodIndex | None:
        return pod.label.among(len(self._roles))

    def _count(self, pod: MatchedPod, change: int) -> None:
        """Count the pods of a role. With a second role, indices count over all of them."""
        if pod.label.in_role is None:
            return
        before = len(self._roles)
        role = pod.label.role
        self._roles[role] += change
        if not self._roles[role]:
            del self._roles[role]
        if (before > 1) != (len(self._roles) > 1):
            self._order_all()

    def _order_all(self) -> None:
        members = []
        self._others, self._unindexed, self._numbering = {}, {}, None
        for pod in self._pods.values():
            index = self._index(pod)
            if index is not None and pod.endpoint is not None:
                members.append(((index, pod.key), pod.endpoint))
            elif index is not None:
                self._others[pod.key] = index
            elif pod.endpoint is not None:
                self._unindexed[pod.key] = pod.full_name
        self._members = SortedValues(sorted(members, key=operator.itemgetter(0)))

    def _order(self, pod: MatchedPod) -> None:
        index = self._index(pod)
        if index is None:
            self._unindexed.pop(pod.key, None)
            if pod.endpoint is not None:
                self._unindexed[pod.key] = pod.full_name
            self._numbering = None
        elif pod.endpoint is None:
            self._members.discard((index, pod.key))
            self._others[pod.key] = index
            self._numbering = None
        else:
            self._others.pop(pod.key, None)
            previous = self._members.put((index, pod.key), pod.endpoint)
            if previous is None or previous.address != pod.endpoint.address:
                self._numbering = None

    def _number(self) -> Numbering:
        indices = [index for index, _ in self._members.keys]
        starts = group_starts(self._job, [*indices, *self._others.values()])
        tasks = [starts[group] + member for group, member in indices]
        done = {
            starts[group] + member: self._pods[key]
            for key, (group, member) in self._others.items()
            if self._is_done(self._pods[key])
        }
        first = min(
            chain(tasks, (starts[group] + member for group, member in self._others.values())), default=0
        )
        endpoints = self._members.values
        addresses = {task: endpoint.address for task, endpoint in zip(tasks, endpoints, strict=True)}
        duplicates: dict[int, list[str]] = {}
        if len(addresses) < len(tasks):
            for task, endpoint in zip(tasks, endpoints, strict=True):
                duplicates.setdefault(task, []).append(endpoint.full_name or endpoint.address)
            duplicates = {task: names for task, names in duplicates.items() if len(names) > 1}
        done = {task: pod for task, pod in done.items() if task not in addresses}
        unindexed = list(self._unindexed.values())
        return Numbering(addresses, first, starts[-1], done, duplicates, unindexed)


class SelectorTasks:
    """The pods of one selector of a job: the members in task order, and the other pods with the reasons.

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
        self._selection: SelectedPods | None = None
        # The pod sets of the pods when there were any, or of those that the selector names.
        self._former: tuple[PodSet, ...] = () if controller is None else (PodSet(controller),)
        self.fill(())
        self.is_stale = True

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The members in task order; the same tuple until one of them changes."""
        return self._order.endpoints

    @property
    def numbering(self) -> Numbering:
        """The task indices of the members; the same object until an index or an address changes.

        Raises:
            PodIndexError: with `order_by="index"`, an index is higher than a cluster can have pods.
        """
        return self._order.numbering

    @property
    def unknown_nodes(self) -> set[str]:
        """The nodes of members by whose labels they are ordered, and which were not read yet."""
        if not isinstance(self._order_by, LabelOrdering) or not self._order_by.node_keys:
            return set()
        ordered = (pod for pod in self._pods.values() if pod.endpoint is not None or self._is_done(pod))
        return {node for pod in ordered if (node := self._order_by.unknown_node(pod)) is not None}

    @property
    def with_claims(self) -> Collection[MatchedPod]:
        """The members whose ResourceClaims were not read yet."""
        return self._with_claims.values()

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
    def absent(self) -> tuple[Missing, ...]:
        """The pods that may become members, by name; the same tuple until one of them changes."""
        return self._absent.values

    @property
    def unready(self) -> tuple[Missing, ...]:
        """The members that are not ready, by name; the same tuple until one of them changes."""
        return self._unready.values

    @property
    def failed(self) -> tuple[Missing, ...]:
        """The pods that have failed and have a controller, by name."""
        return self._failed.values

    def fill(self, pods: Iterable[MatchedPod]) -> None:
        """Replace all pods."""
        self.is_stale = False
        by_key = sorted(pods, key=operator.attrgetter("key"))
        self._pods = {pod.key: pod for pod in by_key}
        self._with_claims = {pod.key: pod for pod in by_key if pod.claims}
        self._live: Counter[PodSet | None] = Counter()
        self._runs: Counter[str] = Counter()  # of the live pods
        self._succeeded: Counter[str] = Counter()  # the pods that have succeeded, by run
        self._selection = None
        for pod in by_key:
            self._count(pod, 1)
        self._order = self._new_order()
        self._order.fill(by_key)
        self._failed: SortedValues[str, Missing] = SortedValues(
            (pod.key, self._missing(pod, pod.failure)) for pod in by_key if pod.failure is not None
        )
        self._absent: SortedValues[str, Missing] = SortedValues(
            (pod.key, self._missing(pod, pod.fault))
            for pod in by_key
            if pod.fault is not None and not pod.is_replaced and not self._is_done(pod)
        )
        self._unready: SortedValues[str, Missing] = SortedValues(
            (pod.key, self._missing(pod, pod.unready)) for pod in by_key if pod.unready is not None
        )

    def put(self, pod: MatchedPod) -> None:
        """Add a pod, or replace the one with the same key."""
        if self.is_stale:
            return
        before = self._done_runs
        self._count(self._pods.get(pod.key), -1)
        self._count(pod, 1)
        self._pods[pod.key] = pod
        if self._done_runs != before:
            self.is_stale = True  # other pods are done now, or no longer
            return
        self._order.put(pod)
        self._with_claims.pop(pod.key, None)
        if pod.claims:
            self._with_claims[pod.key] = pod
        for values in (self._absent, self._unready, self._failed):
            values.discard(pod.key)
        if pod.failure is not None:
            self._failed.put(pod.key, self._missing(pod, pod.failure))
        elif pod.fault is not None and not pod.is_replaced and not self._is_done(pod):
            self._absent.put(pod.key, self._missing(pod, pod.fault))
        elif pod.unready is not None:
            self._unready.put(pod.key, self._missing(pod, pod.unready))

    def discard(self, pod: MatchedPod) -> None:
        """Remove a pod."""
        if self.is_stale:
            return
        before = self._done_runs
        self._count(self._pods.pop(pod.key, None), -1)
        if self._done_runs != before:
            self.is_stale = True
            return
        self._order.discard(pod)
        self._with_claims.pop(pod.key, None)
        for values in (self._absent, self._unready, self._failed):
            values.discard(pod.key)

    @property
    def _done_runs(self) -> list[str]:
        """The runs that have live pods and pods that have succeeded."""
        return [run for run in self._succeeded if run in self._runs]

    def _is_done(self, pod: MatchedPod) -> bool:
        """Whether the pod has succeeded while others of the same run of its controller are live."""
        return pod.has_succeeded and pod.run in self._runs

    def _count(self, pod: MatchedPod | None, change: int) -> None:
        """Count a pod for `selected`."""
        if pod is None:
            return
        is_live = pod.endpoint is not None or (pod.fault is not None and not pod.is_replaced)
        # Without a controller, nothing shows that pods belong together.
        if pod.has_succeeded and pod.run:
            _add(self._succeeded, pod.run, change)
            self._selection = None
        elif is_live:
            if pod.run:
                _add(self._runs, pod.run, change)
            if _add(self._live, pod.pod_set, change):
                self._selection = None
        elif pod.failure is not None:
            self._selection = None

    def _new_order(self) -> PositionOrder[Any] | IndexOrder:
        if isinstance(self._order_by, LabelOrdering):
            return PositionOrder(self._order_by.key, self._is_done)
        if self._order_by == "index":
            return IndexOrder(self._job, self._is_done)
        return PositionOrder(operator.attrgetter("key"), self._is_done)

    def _missing(self, pod: MatchedPod, reason: str) -> Missing:
        return Missing(
            self._job,
            pod.full_name,
            reason,
            is_final=pod.is_final,
            has_succeeded=pod.is_final and pod.has_succeeded,
        )


def _add(counts: Counter[T], key: T, change: int) -> bool:
    """Change a count, and return whether it was zero before or is zero now."""
    before = counts[key]
    counts[key] += change
    if not counts[key]:
        del counts[key]
    return not before or key not in counts


class Concatenation(Generic[T]):
    """Several tuples as one, which is the same object as long as each of them is the same object."""

    def __init__(self) -> None:
        self._parts: list[tuple[T, ...]] = []
        self._whole: tuple[T, ...] = ()

    def of(self, parts: list[tuple[T, ...]]) -> tuple[T, ...]:
        """Return the values of all `parts`."""
        if not are_identical(parts, self._parts):
            self._parts, self._whole = parts, parts[0] if len(parts) == 1 else tuple(chain(*parts))
        return self._whole


class JobTasks:
    """The tasks of one job: those of its selectors, one selector after another.

    Args:
        job: the name of the job.
        selectors: its selectors in order.
        allow_gaps: whether a task index may be missing.
    """

    def __init__(self, job: str, selectors: Sequence[SelectorTasks], *, allow_gaps: bool) -> None:
        self._job = job
        self._selectors = selectors
        self._allow_gaps = allow_gaps
        self._endpoints: Concatenation[Endpoint] = Concatenation()
        self._numberings: list[Numbering] = []
        self._addresses: dict[int, str] = {}
        self.done: tuple[DoneTask, ...] = ()  # as of the last call of `addresses`

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the members in task order; the same tuple until one of them changes."""
        return self._endpoints.of([selector.endpoints for selector in self._selectors])

    def addresses(self) -> dict[int, str]:
        """Return the members' addresses by task index, ascending; the same object until they change.

        Raises:
            PodIndexError: a member has no index, two have the same one, or one between two others is missing
                and may not be.
        """
        numberings = [selector.numbering for selector in self._selectors]
        if not are_identical(numberings, self._numberings):
            self._addresses = self._number(numberings)
            self._numberings = numberings
        return self._addresses

    def _number(self, numberings: Sequence[Numbering]) -> dict[int, str]:
        starts = list(accumulate((numbering.end for numbering in numberings), initial=0))
        parts = list(zip(starts, numberings, strict=False))
        done = {
            start + task: DoneTask(self._job, start + task, pod.full_name, pod.uid or None)
            for start, numbering in parts
            for task, pod in sorted(numbering.done.items())
        }
        self.done = tuple(done.values())
        addresses = _shifted([(start, numbering.addresses) for start, numbering in parts])
        duplicates = _shifted([(start, numbering.duplicates) for start, numbering in parts])
        unindexed = [name for numbering in numberings for name in numbering.unindexed]
        missing = [] if self._allow_gaps else _gaps(parts, addresses, done)
        if missing or duplicates or unindexed:
            raise index_order_error(
                self._job,
                missing=missing,
                duplicates=duplicates,
                unindexed=unindexed,
                order=self._selectors[0].order,
            )
        return addresses


def _shifted(parts: Sequence[tuple[int, dict[int, V]]]) -> dict[int, V]:
    """Return the values of several selectors by task index, each from where its tasks start."""
    if len(parts) == 1:
        return parts[0][1]
    return {start + task: value for start, by_task in parts for task, value in by_task.items()}


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


def are_identical(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether two sequences consist of the very same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
