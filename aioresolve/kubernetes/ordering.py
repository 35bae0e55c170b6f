"""The pods of one selector of a job, kept in order while they come, change and go.

What is read of it is made once and kept until it changes: of thousands of pods, one changes at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from aioresolve.spec import Endpoint, Missing

from .pod_index import PodIndex, group_starts, index_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .tasks import Sighting

__all__ = ["IndexOrder", "NameOrder", "Numbering", "Selection", "TaskOrder"]

K = TypeVar("K", str, tuple[PodIndex, str])
V = TypeVar("V")


class Shelf(Generic[K, V]):
    """Values in the order of their keys."""

    def __init__(self) -> None:
        self.keys: list[K] = []
        self._values: list[V] = []
        self._snapshot: tuple[V, ...] | None = ()

    @property
    def values(self) -> tuple[V, ...]:
        """The values in order; the same tuple until one of them changes."""
        if self._snapshot is None:
            self._snapshot = tuple(self._values)
        return self._snapshot

    def place(self, key: K) -> int:
        """Return the place of `key`, or the one that it would have."""
        return bisect_left(self.keys, key)

    def put(self, key: K, value: V) -> V | None:
        """Put `value` in its place, and return the one that it takes the place of, if there is one."""
        self._snapshot = None
        place = self.place(key)
        if place < len(self.keys) and self.keys[place] == key:
            before, self._values[place] = self._values[place], value
            return before
        self.keys.insert(place, key)
        self._values.insert(place, value)
        return None

    def drop(self, key: K) -> V | None:
        """Take away the value at `key`, and return it; None where there is none."""
        place = self.place(key)
        if place == len(self.keys) or self.keys[place] != key:
            return None
        self._snapshot = None
        del self.keys[place]
        return self._values.pop(place)


class Numbering(NamedTuple):
    """The tasks of one selector, numbered from 0.

    Attributes:
        addresses: by task index, ascending.
        end: the task index at which the tasks of the next selector begin.
    """

    addresses: dict[int, str]
    end: int


class TaskOrder(Protocol):
    """How the members among a selector's pods become tasks."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The members in task order; the same tuple until one of them changes."""
        ...

    @property
    def numbering(self) -> Numbering:
        """The tasks of the members; the same one until a task index or an address changes.

        Raises:
            PodIndexError: the members' indices contradict each other.
        """
        ...

    def put(self, pod: Sighting) -> None:
        """Take in a pod, in the place of what was known of it."""

    def drop(self, pod: Sighting) -> None:
        """Let go of a pod."""


class NameOrder:
    """Members by name, numbered without gaps."""

    def __init__(self) -> None:
        self._members: Shelf[str, Endpoint] = Shelf()
        self._numbering: Numbering | None = None
        self._readdressed: dict[int, str] = {}  # what has changed of it, by task index

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._members.values

    @property
    def numbering(self) -> Numbering:
        if self._numbering is None:
            addresses = [endpoint.address for endpoint in self._members.values]
            self._numbering = Numbering(dict(enumerate(addresses)), len(addresses))
        elif self._readdressed:
            # To copy the addresses of thousands takes a tenth of the time of collecting them again.
            known, end = self._numbering
            self._numbering = Numbering(known | self._readdressed, end)
        self._readdressed = {}
        return self._numbering

    def put(self, pod: Sighting) -> None:
        if pod.endpoint is None:
            self.drop(pod)
            return
        before = self._members.put(pod.key, pod.endpoint)
        if before is None:
            self._numbering = None
        elif before.address != pod.endpoint.address:
            self._readdressed[self._members.place(pod.key)] = pod.endpoint.address

    def drop(self, pod: Sighting) -> None:
        if self._members.drop(pod.key) is not None:
            self._numbering = None


class IndexOrder:
    """Members at the task indices their controllers gave them; who is missing leaves a gap.

    A pod that is no member, even one being deleted, still counts where the groups of a controller follow one
    another: that worker 3 of the first group restarts does not move the tasks of the second.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._pods: dict[str, Sighting] = {}
        self._replicated_jobs: Counter[str | None] = Counter()
        self._members: Shelf[tuple[PodIndex, str], Endpoint] = Shelf()
        self._others: dict[str, PodIndex] = {}
        self._unindexed: dict[str, str] = {}  # the names of members that carry no index, by key
        self._numbering: Numbering | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._members.values

    @property
    def numbering(self) -> Numbering:
        if self._numbering is None:
            self._numbering = self._numbered()
        return self._numbering

    def put(self, pod: Sighting) -> None:
        before = self._pods.get(pod.key)
        if before is not None and before.claim != pod.claim:
            self.drop(before)
            before = None
        self._pods[pod.key] = pod
        if before is None:
            self._count(pod, 1)
        self._place(pod)

    def drop(self, pod: Sighting) -> None:
        before = self._pods.pop(pod.key, None)
        if before is not None:
            self._displace(before)
            self._count(before, -1)

    def _count(self, pod: Sighting, more: int) -> None:
        """Count the pods of each replicated job: from the second one on, indices count over all of them."""
        before = len(self._replicated_jobs)
        name = pod.claim.replicated_job
        self._replicated_jobs[name] += more
        if not self._replicated_jobs[name]:
            del self._replicated_jobs[name]
        if (before > 1) != (len(self._replicated_jobs) > 1):
            self._members, self._others, self._unindexed = Shelf(), {}, {}
            for known in self._pods.values():
                self._place(known)

    def _place(self, pod: Sighting) -> None:
        index = pod.claim.among(len(self._replicated_jobs))
        if index is None:
            self._unindexed.pop(pod.key, None)
            if pod.endpoint is not None:
                self._unindexed[pod.key] = pod.full_name
            self._numbering = None
        elif pod.endpoint is None:
            self._members.drop((index, pod.key))
            self._others[pod.key] = index
            self._numbering = None
        else:
            self._others.pop(pod.key, None)
            before = self._members.put((index, pod.key), pod.endpoint)
            if before is None or before.address != pod.endpoint.address:
                self._numbering = None

    def _displace(self, pod: Sighting) -> None:
        index = pod.claim.among(len(self._replicated_jobs))
        if index is not None:
            self._members.drop((index, pod.key))
        self._others.pop(pod.key, None)
        self._unindexed.pop(pod.key, None)
        self._numbering = None

    def _numbered(self) -> Numbering:
        taken = [index for index, _ in self._members.keys]
        starts = group_starts(self._job, [*taken, *self._others.values()])
        tasks = [starts[group] + member for group, member in taken]
        endpoints = self._members.values
        addresses = {task: endpoint.address for task, endpoint in zip(tasks, endpoints, strict=True)}
        if self._unindexed or len(addresses) < len(tasks):
            names: dict[int, list[str]] = {}
            for task, endpoint in zip(tasks, endpoints, strict=True):
                names.setdefault(task, []).append(endpoint.full_name or endpoint.address)
            twice = {task: found for task, found in names.items() if len(found) > 1}
            raise index_error(self._job, duplicates=twice, unindexed=list(self._unindexed.values()))
        return Numbering(addresses, starts[-1])


class Selection:
    """The pods of one selector of a job: the members in task order, and who is missing, and why.

    It is stale until it is filled; what comes and goes meanwhile is passed over.
    """

    def __init__(self, job: str, *, order_by: str) -> None:
        self._job = job
        self._order_by = order_by
        self._clear()
        self.is_stale = True

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The members in task order; the same tuple until one of them changes."""
        return self._order.endpoints

    @property
    def numbering(self) -> Numbering:
        """The tasks of the members; the same one until a task index or an address changes.

        Raises:
            PodIndexError: with `order_by="index"`, a member has no index, or two have the same one.
        """
        return self._order.numbering

    @property
    def absent(self) -> tuple[Missing, ...]:
        """Who is no member, by name; the same tuple until one of them changes."""
        return self._absent.values

    @property
    def unready(self) -> tuple[Missing, ...]:
        """The members that are not ready, by name; the same tuple until one of them changes."""
        return self._unready.values

    def fill(self, pods: Iterable[Sighting]) -> None:
        """Hold `pods` and no others."""
        self._clear()
        self.is_stale = False
        for pod in sorted(pods, key=_key):  # each comes last, and moves no other
            self.put(pod)

    def put(self, pod: Sighting) -> None:
        """Take in a pod, in the place of what was known of it."""
        if self.is_stale:
            return
        self._order.put(pod)
        self._absent.drop(pod.key)
        self._unready.drop(pod.key)
        if pod.reason is not None:
            missing = Missing(self._job, pod.full_name, pod.reason, is_final=pod.is_final)
            (self._absent if pod.endpoint is None else self._unready).put(pod.key, missing)

    def drop(self, pod: Sighting) -> None:
        """Let go of a pod."""
        if self.is_stale:
            return
        self._order.drop(pod)
        self._absent.drop(pod.key)
        self._unready.drop(pod.key)

    def _clear(self) -> None:
        self._order: TaskOrder = IndexOrder(self._job) if self._order_by == "index" else NameOrder()
        self._absent: Shelf[str, Missing] = Shelf()
        self._unready: Shelf[str, Missing] = Shelf()


def _key(pod: Sighting) -> str:
    return pod.key
