"""Stores of the objects that lists and watches return, and the cluster state that follows from them.

Each query has a store (client-go: `Store`), updated by lists and event by event: the resolver fills it once,
and `reflector` keeps it up to date. A `ClusterCache` has the stores of a cluster. Nothing here does I/O.
"""

from __future__ import annotations

import abc
import operator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aioresolve.spec import ClusterSpec, ClusterState, DoneTask, Observation

from .api.objects import Bookmark, Deleted, is_newer, is_older, oldest_version, version_number
from .api.queries import CONTEXT_NAMESPACE, PodQuery
from .tasks.accelerators import Devices
from .tasks.controller_kinds import job_of
from .tasks.controllers import Controllers
from .tasks.ordering import Ordering
from .tasks.pods import match_pods, raise_not_running
from .tasks.task_order import SelectorTasks, number_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from .api.objects import Pod, WatchEvent
    from .api.queries import Query
    from .tasks.accelerators import Claim
    from .tasks.controller_kinds import Controller
    from .tasks.controllers import SelectedPods
    from .tasks.pods import MatchedPod
    from .tasks.task_order import JobTasks

T = TypeVar("T")


class Store(abc.ABC, Generic[T]):
    """What one query matches.

    Attributes:
        query: the query.
        is_listed: whether the query has been listed.
        version: the resourceVersion up to which every change is known; empty before the first list.
        version_decreased: whether the watch reported an older version than that since the last list, which
            happens when a server is restored from a backup.
    """

    def __init__(self, query: Query[T]) -> None:
        self.query = query
        self.is_listed = self.version_decreased = False
        self.version = ""
        self._number: int | None = None

    def match(self, objects: Sequence[T]) -> list[Any]:
        """Return the part of each object of a list that is kept. The store is not changed.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind.
        """
        return list(objects)

    def replace(self, listed: Sequence[Any], version: str) -> None:
        """Apply a list: the query matches these objects, as `match` returned them, and no others.

        Raises:
            ConfigurationError: an endpoint cannot have an address or port of that kind; nothing was changed.
        """
        self._replace(listed, version)
        self.version, self._number = version, version_number(version)
        self.is_listed, self.version_decreased = True, False

    def apply(self, events: Iterable[WatchEvent[T]]) -> bool:
        """Apply events in order, and return whether an observation would differ.

        Events that were reported before, such as after a watch was resumed, have no effect.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind; the events before it were
                applied.
        """
        has_changed = False
        for event in events:
            changed: Any = event.object
            version = changed.metadata.resource_version
            number = version_number(version)
            is_new = is_newer(number, self._number)
            if is_new and not isinstance(event, Bookmark):
                has_changed |= self._apply(event)
            self.version_decreased |= is_older(number, self._number)
            if is_new and version:
                self.version, self._number = version, number
        return has_changed

    @abc.abstractmethod
    def _replace(self, listed: Sequence[Any], version: str) -> None:
        """Apply a list; see `replace`."""

    @abc.abstractmethod
    def _apply(self, event: WatchEvent[T]) -> bool:
        """Apply the event of an object; see `apply`."""


class MemberStore(Store[T]):
    """What one query of a cluster matches: its pods, or objects that refer to them.

    Members have the kind `address` of address, and `port` unless they have one of their own. The values of
    the labels `label_keys` are kept.

    Attributes:
        pods: the pods by a key.
        in_transit: the keys of the pods that changed since the last observation in a way that a further
            change will complete, usually a moment later. It need not, so wait for this only briefly.
        selectors: the selectors of jobs that the query is part of.
        noun: what messages call a pod.
        required_state: the state that a pod must have to be a member.
    """

    noun = "matching pod"
    required_state = "running"

    def __init__(self, query: Query[T], address: Any, port: int, label_keys: Sequence[str]) -> None:
        super().__init__(query)
        self._address, self._port, self._label_keys = address, port, label_keys
        self.pods: dict[str, MatchedPod] = {}
        self.in_transit: frozenset[str] = frozenset()
        self.selectors: list[SelectorTasks] = []

    @staticmethod
    @abc.abstractmethod
    def new_query(selector: str, namespace: str | None) -> Query[Any]:
        """Return the query for a selector, or a Service, in a namespace.

        Raises:
            ValueError: `selector` is not one.
        """

    def _have_changed(self) -> None:
        for selector in self.selectors:
            selector.is_stale = True


class PodStore(MemberStore["Pod"]):
    """The pods that one query matches, by `namespace/name`.

    Queries are independent of one another: a pod that two of them match may differ for a moment.
    """

    @staticmethod
    def new_query(selector: str, namespace: str | None) -> PodQuery:
        return PodQuery(selector, namespace)

    def match(self, objects: Sequence[Pod]) -> list[MatchedPod]:
        return match_pods(objects, self._address, self._port, self._label_keys)

    def _replace(self, listed: Sequence[MatchedPod], version: str) -> None:
        # In the order of `SelectorTasks.fill`, which is fast if they have it already.
        self.pods = {pod.full_name: pod for pod in sorted(listed, key=operator.attrgetter("key"))}
        self._have_changed()

    def _apply(self, event: WatchEvent[Pod]) -> bool:
        pod: Any = event.object
        old = self.pods.get(pod.full_name)
        if isinstance(event, Deleted):
            if old is None or old.uid != pod.metadata.uid:
                return False
            del self.pods[pod.full_name]
            self._have_changed()
            return True
        (new,) = self.match([pod])
        if old == new:
            return False
        self.pods[pod.full_name] = new
        for selector in self.selectors:
            selector.change(old, new)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The arguments of a `KubernetesClusterResolver` that say which pods are its tasks, once they are valid.

    Attributes:
        jobs: job to its label selectors, or to its Services.
        namespace: the namespace to search; None for all namespaces.
        store_type: the stores for pods or for slices.
    """

    jobs: Mapping[str, Sequence[str]]
    namespace: str | None
    address: str | Callable[[Pod], Any]
    port: int
    order_by: Sequence[str]
    not_running: str
    store_type: type[MemberStore[Any]] = PodStore

    @property
    def reads_slices(self) -> bool:
        """Whether the jobs have Services."""
        return self.store_type is not PodStore

    def queries(self, default: str) -> dict[str, Query[Any]]:
        """Return the query for each selector or Service; `default` is the namespace of the context."""
        namespace = default if self.namespace == CONTEXT_NAMESPACE else self.namespace
        selectors = chain.from_iterable(self.jobs.values())
        return {each: self.store_type.new_query(each, namespace) for each in selectors}


class ClusterCache:
    """The stores of all queries of a selection, and the cluster state that follows from them.

    With `allow_gaps` and `order_by="index"`, a task index between two others may be missing.

    Attributes:
        stores: the store of each query.
        ordering: the order of the pods of one selector.
        controllers: the objects of the controllers.
        devices: the devices of the ResourceClaims of the pods.
    """

    def __init__(
        self,
        selection: Selection,
        default_namespace: str,
        *,
        allow_gaps: bool = True,
        controllers: Controllers | None = None,
    ) -> None:
        self._store_type, self._allow_gaps = selection.store_type, allow_gaps
        self.ordering = Ordering(selection.order_by)
        self.devices = Devices()
        self.controllers = Controllers() if controllers is None else controllers
        queries = selection.queries(default_namespace)
        address, port, keys = selection.address, selection.port, self.ordering.pod_keys
        self.stores = {each: selection.store_type(each, address, port, keys) for each in queries.values()}
        self._jobs = {
            job: [self._new_selector(job, queries[each]) for each in selection.jobs[job]]
            for job in ClusterSpec(dict.fromkeys(selection.jobs, ())).jobs
        }
        self._selectors = list(chain.from_iterable(self._jobs.values()))

    def _new_selector(self, job: str, query: Query[Any]) -> SelectorTasks:
        store = self.stores[query]
        controller = job_of(query.selector, query.namespace)
        selector = SelectorTasks(job, self.ordering, self.devices, query.selector, controller)
        store.selectors.append(selector)
        return selector

    @property
    def is_complete(self) -> bool:
        """Whether every query has been listed, which a state requires."""
        return all(store.is_listed for store in self.stores.values())

    @property
    def in_transit(self) -> bool:
        """Whether pods are in transit in a store."""
        return any(store.in_transit for store in self.stores.values())

    def raise_not_running(self) -> None:
        """Raise a PodNotRunningError if there are pods that are not running."""
        pods = chain.from_iterable(store.pods.values() for store in self.stores.values())
        faults = {pod.full_name: pod.fault for pod in pods if pod.fault is not None}
        raise_not_running(faults, self._store_type.noun, self._store_type.required_state)

    def state(self, now: datetime) -> ClusterState:
        """Return the cluster state at `now`, in UTC.

        Raises:
            PodIndexError: with `order_by="index"`, a member has no index, two have the same one, or one is
                missing and may not be.
        """
        self._fill_selectors()
        jobs = {
            job: number_tasks(job, selectors, self.ordering, allow_gaps=self._allow_gaps)
            for job, selectors in self._jobs.items()
        }
        return ClusterState(
            {job: tasks.endpoints for job, tasks in jobs.items()},
            ClusterSpec._trusted(partial(_addresses, jobs)),
            oldest_version(store.version for store in self.stores.values()),
            now,
            tuple(task for tasks in jobs.values() for task in tasks.done),
        )

    def observation(self, now: datetime) -> Observation:
        """Return the state and the pods that are not members or not ready; without a state until complete.

        Raises:
            PodIndexError: see `state`.
        """
        for store in self.stores.values():
            store.in_transit = frozenset()
        if not self.is_complete:
            return Observation(None)
        state, selected = self.state(now), self._selected()
        return Observation(
            self._with_vanished(state),
            absent=_joined(one.absent for one in self._selectors),
            unready=_joined(one.unready for one in self._selectors),
            failed=_joined(one.failed for one in self._selectors),
            expected=self.controllers.expected(selected),
            controllers=self.controllers.ended(selected),
        )

    def _with_vanished(self, state: ClusterState) -> ClusterState:
        """Return `state` with the tasks of Indexed Jobs that are done and whose pods no longer exist."""
        vanished: list[DoneTask] = []
        for job, selectors in self._jobs.items():
            if not self.ordering.by_index or len(selectors) > 1:
                continue
            if completed := self.controllers.completed(selectors[0].selected):
                known = {*state.spec.task_indices(job), *(each.index for each in state.done)}
                vanished += [DoneTask(job, index) for index in sorted(completed - known)]
        return replace(state, done=(*state.done, *vanished)) if vanished else state

    def _selected(self) -> dict[str, list[SelectedPods]]:
        return {job: [one.selected for one in selectors] for job, selectors in self._jobs.items()}

    def _fill_selectors(self) -> None:
        for store in self.stores.values():
            for selector in store.selectors:
                if selector.is_stale:
                    selector.fill(store.pods.values())

    # Details that are read in addition

    @property
    def unread_controllers(self) -> list[Controller]:
        """The controllers that have to be read to know how many tasks each job will have."""
        self._fill_selectors()
        return self.controllers.unread(self._selected())

    @property
    def unknown_nodes(self) -> set[str]:
        """The nodes of members that cannot be ordered before the labels of these nodes are read."""
        self._fill_selectors()
        return {node for selector in self._selectors for node in selector.unknown_nodes}

    @property
    def unread_claims(self) -> list[Claim]:
        """The ResourceClaims of members that were not read yet."""
        self._fill_selectors()
        return [claim for selector in self._selectors for claim in selector.unread_claims]

    def order_again(self) -> None:
        """Use the nodes and claims that have been read."""
        for selector in self._selectors:
            selector.is_stale = True


def _addresses(jobs: Mapping[str, JobTasks]) -> dict[str, dict[int, str]]:
    return {job: tasks.addresses for job, tasks in jobs.items()}


def _joined(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return several tuples as one, which is the same object if there is only one."""
    found = list(parts)
    return found[0] if len(found) == 1 else tuple(chain.from_iterable(found))
