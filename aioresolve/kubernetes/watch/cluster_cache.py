"""A cache of the objects that lists and watches returned, and the cluster state that follows from them.

One store for each query (client-go: `Store`), updated by lists and event by event. Does no I/O: the resolver
fills the cache once, and `reflector` keeps it up to date. `pod_cache` has the cache of pods.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aioresolve.kubernetes.api.objects import is_newer, is_older, oldest_version, version_number
from aioresolve.kubernetes.tasks.controllers import controller_of_selector
from aioresolve.kubernetes.tasks.pods import raise_not_running
from aioresolve.kubernetes.tasks.task_order import Concatenation, JobTasks, SelectorTasks, are_identical
from aioresolve.spec import ClusterSpec, ClusterState, Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.kubernetes.api.objects import Query, WatchEvent
    from aioresolve.kubernetes.tasks.controllers import Controller
    from aioresolve.kubernetes.tasks.matched_pods import MatchedPod
    from aioresolve.kubernetes.tasks.task_order import LabelOrdering
    from aioresolve.spec import Missing

T = TypeVar("T")


class QueryStore(abc.ABC):
    """What one query matches.

    Attributes:
        is_listed: whether the query has been listed.
        version: the resourceVersion up to which every change is known; empty before the first list.
        version_number: `version` as a number; None if it is not one.
        version_decreased: whether the watch reported an older version than that since the last list.
        selectors: the selectors of jobs that this query is part of.
    """

    def __init__(self) -> None:
        self.is_listed = False
        self.version = ""
        self.version_number: int | None = None
        self.version_decreased = False
        self.selectors: list[SelectorTasks] = []

    @property
    @abc.abstractmethod
    def matched(self) -> Iterable[MatchedPod]:
        """The pods that the query matches, or that its objects refer to."""

    def list_at(self, version: str) -> None:
        """Record that the query was listed at `version`."""
        self.version, self.version_number = version, version_number(version)
        self.is_listed, self.version_decreased = True, False

    def advance(self, version: str) -> None:
        """Record that every change up to `version` is known."""
        number = version_number(version)
        self.version_decreased |= is_older(number, self.version_number)
        if version and is_newer(number, self.version_number):
            self.version, self.version_number = version, number


S = TypeVar("S", bound=QueryStore)


class ClusterCache(abc.ABC, Generic[T, S]):
    """The objects of all queries, and the cluster state that follows from them.

    Args:
        jobs: job to its selectors in order, each as its queries, one for each namespace.
        stores: the store of each query, in order.
        order_by: `name`, `index` or labels: how the pods of one selector become tasks.
        allow_gaps: with `order_by="index"`, whether a task index between two others may be missing.
    """

    def __init__(
        self,
        jobs: Mapping[str, Sequence[Sequence[Query[T]]]],
        stores: Mapping[Any, S],
        *,
        order_by: str | LabelOrdering,
        allow_gaps: bool,
    ) -> None:
        self._stores: Mapping[Query[T], S] = stores
        self._selectors: list[tuple[SelectorTasks, list[S]]] = []
        self._jobs: dict[str, JobTasks] = {}
        for job in ClusterSpec(dict.fromkeys(jobs, ())).jobs:
            selectors = [self._selector(job, of_selector, order_by) for of_selector in jobs[job]]
            self._jobs[job] = JobTasks(job, selectors, allow_gaps=allow_gaps)
        self._spec = ClusterSpec({})
        self._addresses: list[dict[int, str]] = []
        self._absent: Concatenation[Missing] = Concatenation()
        self._unready: Concatenation[Missing] = Concatenation()
        self._failed: Concatenation[Missing] = Concatenation()

    @property
    def is_complete(self) -> bool:
        """Whether every query has been listed, which a state requires."""
        return all(store.is_listed for store in self._stores.values())

    @property
    @abc.abstractmethod
    def in_transit(self) -> bool:
        """Whether the objects changed in a way that will most likely be completed a moment later.

        It need not be, so wait for this only briefly.
        """

    def raise_not_running(self) -> None:
        """Raise a PodNotRunningError if there are pods that are not running."""
        raise_not_running(self._not_running())

    def _not_running(self) -> dict[str, str]:
        """Return `namespace/name` of each pod that is not running, with the reason, by query."""
        return {
            pod.full_name: pod.fault
            for store in self._stores.values()
            for pod in store.matched
            if pod.fault is not None
        }

    @property
    def unread_controllers(self) -> list[Controller]:
        """The controllers that have to be read to know how many tasks each job will have."""
        return []

    def version(self, query: Query[T]) -> str:
        """Return the resourceVersion to resume the watch of `query` from; empty before the first list."""
        return self._stores[query].version

    def version_decreased(self, query: Query[T]) -> bool:
        """Return whether the watch of `query` reported an older version than before since the last list.

        This happens when a server is restored from a backup; only a list shows what it has now.
        """
        return self._stores[query].version_decreased

    def match(self, query: Query[T], objects: Sequence[T]) -> list[Any]:
        """Return the part of each object of a list that is kept. The cache is not changed.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind.
        """
        return list(objects)

    @abc.abstractmethod
    def replace(self, query: Query[T], listed: Sequence[Any], version: str) -> None:
        """Apply a list: the query matches these objects and no others.

        Args:
            query: the query that was listed.
            listed: all objects of the list in any order, as `match` returned them.
            version: the resourceVersion of the list.

        Raises:
            ConfigurationError: an endpoint cannot have an address or port of that kind; nothing was changed.
        """

    @abc.abstractmethod
    def apply(self, query: Query[T], events: Iterable[WatchEvent[T]]) -> bool:
        """Apply events in order, and return whether an observation would differ.

        Events that were reported before, such as after a watch was resumed, have no effect. An ERROR event is
        ignored, because it does not describe an object.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind; the events before it were
                applied.
        """

    def state(self, now: datetime) -> ClusterState:
        """Return the cluster state. What has not changed since the last one is the same object.

        Args:
            now: the current time, in UTC.

        Raises:
            PodIndexError: with `order_by="index"`, a member has no index, two have the same one, or one is
                missing and may not be.
        """
        self._fill_selectors()
        addresses = [job.addresses() for job in self._jobs.values()]
        if not are_identical(addresses, self._addresses):
            by_task = dict(zip(self._jobs, addresses, strict=True))
            self._spec = ClusterSpec._trusted(lambda: by_task)
            self._addresses = addresses
        return ClusterState._trusted(
            {name: job.endpoints() for name, job in self._jobs.items()},
            self._spec,
            oldest_version(store.version for store in self._stores.values()),
            now,
            tuple(task for job in self._jobs.values() for task in job.done),
        )

    def observation(self, now: datetime) -> Observation:
        """Return the state and the pods that are not members or not ready; without a state until complete.

        Args:
            now: the current time, in UTC.

        Raises:
            PodIndexError: see `state`.
        """
        if not self.is_complete:
            return Observation(None)
        return Observation(
            self.state(now),
            absent=self._absent.of([selector.absent for selector, _ in self._selectors]),
            unready=self._unready.of([selector.unready for selector, _ in self._selectors]),
            failed=self._failed.of([selector.failed for selector, _ in self._selectors]),
        )

    def _fill_selectors(self) -> None:
        for selector, stores in self._selectors:
            if selector.is_stale:
                selector.fill(pod for store in stores for pod in store.matched)

    def _selector(
        self, job: str, queries: Sequence[Query[T]], order_by: str | LabelOrdering
    ) -> SelectorTasks:
        namespace = queries[0].namespace if len(queries) == 1 else None
        controller = controller_of_selector(queries[0].selector, namespace)
        selector = SelectorTasks(job, order_by=order_by, selector=queries[0].selector, controller=controller)
        stores = [self._stores[query] for query in queries]
        self._selectors.append((selector, stores))
        for store in stores:
            store.selectors.append(selector)
        return selector
