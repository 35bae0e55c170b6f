"""A cache of the objects that lists and watches returned, and the cluster state that follows from them.

One store for each query (client-go: `Store`), updated by lists and event by event. Does no I/O: the resolver
fills the cache once, and `reflector` keeps it up to date. `PodCache` is the cache of pods.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from aioresolve.spec import ClusterSpec, ClusterState, DoneTask, Observation

from .api.objects import Bookmark, Deleted, Failed, is_newer, is_older, oldest_version, version_number
from .tasks.controller_kinds import job_of
from .tasks.controllers import Controllers
from .tasks.order_by import Ordering
from .tasks.pods import match_pods, raise_not_running
from .tasks.task_order import SelectorTasks, number_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.spec import ControllerStatus, ExpectedTasks

    from .api.objects import Pod, WatchEvent
    from .api.queries import Query
    from .tasks.accelerators import ClaimedDevices
    from .tasks.controller_kinds import Controller
    from .tasks.controllers import SelectedPods
    from .tasks.pods import MatchedPod
    from .tasks.task_order import JobTasks

T = TypeVar("T")


class QueryStore:
    """What one query matches.

    Attributes:
        query: the query.
        is_listed: whether the query has been listed.
        version: the resourceVersion up to which every change is known; empty before the first list.
        version_decreased: whether the watch reported an older version than that since the last list, which
            happens when a server is restored from a backup.
        selectors: the selectors of jobs that this query is part of.
    """

    def __init__(self, query: Any) -> None:
        self.query = query
        self.is_listed = False
        self.version = ""
        self.version_number: int | None = None
        self.version_decreased = False
        self.selectors: list[SelectorTasks] = []

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


class ObjectCache(abc.ABC, Generic[T, S]):
    """The objects of some queries, each in a store of its own, which a reflector keeps up to date."""

    _stores: Mapping[Query[T], S]

    def match(self, query: Query[T], objects: Sequence[T]) -> list[Any]:
        """Return the part of each object of a list that is kept. The cache is not changed.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind.
        """
        return list(objects)

    @abc.abstractmethod
    def replace(self, query: Query[T], listed: Sequence[Any], version: str) -> None:
        """Apply a list: the query matches these objects, as `match` returned them, and no others.

        Raises:
            ConfigurationError: an endpoint cannot have an address or port of that kind; nothing was changed.
        """

    @abc.abstractmethod
    def _apply(self, store: S, event: WatchEvent[T]) -> bool:
        """Apply the event of an object to a store; see `apply`."""

    def apply(self, query: Query[T], events: Iterable[WatchEvent[T]]) -> bool:
        """Apply events in order, and return whether an observation would differ.

        Events that were reported before, such as after a watch was resumed, have no effect. An ERROR event is
        ignored, because it does not describe an object.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind; the events before it were
                applied.
        """
        store = self._stores[query]
        has_changed = False
        for event in events:
            if isinstance(event, Failed):
                continue
            changed: Any = event.object
            version = changed.metadata.resource_version
            if not isinstance(event, Bookmark) and is_newer(version_number(version), store.version_number):
                has_changed |= self._apply(store, event)
            store.advance(version)
        return has_changed

    def store(self, query: Query[T]) -> S:
        """Return what `query` matches."""
        return self._stores[query]


class ClusterCache(ObjectCache[T, S]):
    """The objects of all queries, and the cluster state that follows from them.

    Args:
        jobs: job to its selectors in order, each as its queries, one for each namespace.
        address: the kind of address of members.
        port: the port to append to the host of each member that has none of its own.
        order_by: how the pods of one selector become tasks; see `validate_order_by`.
        allow_gaps: with `order_by="index"`, whether a task index between two others may be missing.
        controllers: the objects of the controllers of the pods, as far as they were read.

    Attributes:
        ordering: the order of the pods of one selector.
        controllers: the objects of the controllers.
        claim_faults: why devices of ResourceClaims are not known, by namespace.
    """

    def __init__(
        self,
        jobs: Mapping[str, Sequence[Sequence[Query[T]]]],
        *,
        address: Any,
        port: int,
        order_by: Sequence[str],
        allow_gaps: bool = True,
        controllers: Controllers | None = None,
    ) -> None:
        self._address, self._port, self._allow_gaps = address, port, allow_gaps
        self.ordering = Ordering(order_by)
        self.claim_faults: Mapping[str, str] = {}
        self.controllers = Controllers() if controllers is None else controllers
        queries = dict.fromkeys(chain.from_iterable(chain.from_iterable(jobs.values())))
        namespaces = list(dict.fromkeys(query.namespace for query in queries))
        scopes = {name: 0 if None in namespaces else at for at, name in enumerate(namespaces)}
        self._stores = {query: self._new_store(query, scopes[query.namespace]) for query in queries}
        self._jobs: dict[str, list[SelectorTasks]] = {}
        self._selectors: list[tuple[SelectorTasks, list[S]]] = []
        for job in ClusterSpec(dict.fromkeys(jobs, ())).jobs:
            for of_selector in jobs[job]:
                text, namespace = of_selector[0].selector, of_selector[0].namespace
                selector = SelectorTasks(
                    job,
                    ordering=self.ordering,
                    selector=text,
                    controller=job_of(text, namespace if len(of_selector) == 1 else None),
                )
                stores = [self._stores[query] for query in of_selector]
                self._jobs.setdefault(job, []).append(selector)
                self._selectors.append((selector, stores))
                for store in stores:
                    store.selectors.append(selector)
        self._expected: Mapping[str, ExpectedTasks] = {}
        self._ended: Mapping[str, Sequence[ControllerStatus]] = {}
        self._expected_from: list[object] = []

    # What a kind of objects implements

    @abc.abstractmethod
    def _new_store(self, query: Query[T], scope: int) -> S:
        """Return the empty store of a query; `scope` is the position of its namespace among all."""

    @abc.abstractmethod
    def _matched(self, store: S) -> Iterable[MatchedPod]:
        """Return the pods that the query of a store matches, or that its objects refer to."""

    # What follows from the objects

    @property
    def is_complete(self) -> bool:
        """Whether every query has been listed, which a state requires."""
        return all(store.is_listed for store in self._stores.values())

    @property
    def in_transit(self) -> bool:
        """Whether objects changed since the last observation in a way that a further change will complete.

        Usually it follows a moment later. It need not, so wait for this only briefly.
        """
        return False

    def raise_not_running(self) -> None:
        """Raise a PodNotRunningError if there are pods that are not running."""
        raise_not_running(self._not_running())

    def _not_running(self) -> dict[str, str]:
        """Return `namespace/name` of each pod that is not running, with the reason, by query."""
        pods = chain.from_iterable(map(self._matched, self._stores.values()))
        return {pod.full_name: pod.fault for pod in pods if pod.fault is not None}

    def state(self, now: datetime) -> ClusterState:
        """Return the cluster state at `now`, in UTC.

        Raises:
            PodIndexError: with `order_by="index"`, a member has no index, two have the same one, or one is
                missing and may not be.
        """
        self._fill_selectors()
        jobs = {
            job: number_tasks(job, selectors, allow_gaps=self._allow_gaps)
            for job, selectors in self._jobs.items()
        }
        return ClusterState(
            {job: tasks.endpoints for job, tasks in jobs.items()},
            ClusterSpec._trusted(partial(_addresses, jobs)),
            oldest_version(store.version for store in self._stores.values()),
            now,
            tuple(task for tasks in jobs.values() for task in tasks.done),
        )

    def observation(self, now: datetime) -> Observation:
        """Return the state and the pods that are not members or not ready; without a state until complete.

        Raises:
            PodIndexError: see `state`.
        """
        if not self.is_complete:
            return Observation(None)
        state, selected = self.state(now), self._selected()
        source: list[object] = [*selected.values(), *self.controllers.objects.values()]
        if source != self._expected_from:
            self._expected_from = source
            self._expected = self.controllers.expected(selected)
            self._ended = self.controllers.ended(selected)
        return Observation(
            self._with_vanished(state),
            absent=_joined(selector.absent for selector, _ in self._selectors),
            unready=_joined(selector.unready for selector, _ in self._selectors),
            failed=_joined(selector.failed for selector, _ in self._selectors),
            expected=self._expected,
            controllers=self._ended,
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
        for selector, stores in self._selectors:
            if selector.is_stale:
                selector.fill(chain.from_iterable(map(self._matched, stores)))

    # Details that are read in addition

    @property
    def num_members(self) -> int:
        """The number of members."""
        return sum(len(selector.endpoints) for selector, _ in self._selectors)

    @property
    def unread_controllers(self) -> list[Controller]:
        """The controllers that have to be read to know how many tasks each job will have."""
        self._fill_selectors()
        return self.controllers.unread(self._selected())

    @property
    def has_unknown_nodes(self) -> bool:
        """Whether members cannot be ordered before the labels of their nodes are read."""
        self._fill_selectors()
        return any(selector.unknown_nodes for selector, _ in self._selectors)

    def set_nodes(self, nodes: dict[str, tuple[str | None, ...]]) -> None:
        """Order the members by the labels of these nodes; no others exist."""
        unknown = {node for selector, _ in self._selectors for node in selector.unknown_nodes}
        self.ordering.nodes = dict.fromkeys(unknown, (None,) * len(self.ordering.node_keys)) | nodes
        for selector, _ in self._selectors:
            selector.is_stale = True

    @property
    def with_claims(self) -> list[MatchedPod]:
        """The members whose ResourceClaims were not read yet, each once."""
        self._fill_selectors()
        found = chain.from_iterable(selector.with_claims for selector, _ in self._selectors)
        return list({(pod.full_name, pod.uid): pod for pod in found}.values())

    def set_devices(self, pods: Iterable[MatchedPod], devices: ClaimedDevices) -> None:
        """Add the devices of their claims to members that `with_claims` returned."""


def _addresses(jobs: Mapping[str, JobTasks]) -> dict[str, dict[int, str]]:
    return {job: tasks.addresses for job, tasks in jobs.items()}


def _joined(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return several tuples as one, which is the same object if there is only one."""
    found = list(parts)
    return found[0] if len(found) == 1 else tuple(chain.from_iterable(found))


class _PodStore(QueryStore):
    """The pods that one query matches, by `namespace/name`."""

    def __init__(self, query: Query[Pod], scope: int) -> None:
        super().__init__(query)
        self.scope = scope
        self.pods: dict[str, MatchedPod] = {}

    def put(self, new: MatchedPod) -> bool:
        """Add or replace a pod; return whether an observation would differ."""
        old = self.pods.get(new.full_name)
        if old is not None:
            new = with_devices_of(new, old)
            if old.equals(new):
                return False
        self.pods[new.full_name] = new
        for selector in self.selectors:
            selector.change(old, new)
        return True

    def discard(self, name: str, uid: str) -> bool:
        """Remove a pod; return whether it was there."""
        old = self.pods.get(name)
        if old is None or old.uid != uid:
            return False
        del self.pods[name]
        for selector in self.selectors:
            selector.change(old, None)
        return True


class PodCache(ClusterCache["Pod", _PodStore]):
    """The pods of all queries, and the cluster state that follows from them; see `ClusterCache`.

    The queries are independent of one another: a pod that two of them match may differ for a moment.
    """

    def _new_store(self, query: Query[Pod], scope: int) -> _PodStore:
        return _PodStore(query, scope)

    def _matched(self, store: _PodStore) -> Iterable[MatchedPod]:
        return store.pods.values()

    def match(self, query: Query[Pod], objects: Sequence[Pod]) -> list[MatchedPod]:
        scope, keys = self._stores[query].scope, self.ordering.pod_keys
        return match_pods(objects, self._address, self._port, scope=scope, label_keys=keys)

    def replace(self, query: Query[Pod], listed: Sequence[MatchedPod], version: str) -> None:
        store = self._stores[query]
        old, store.pods = store.pods, {pod.full_name: pod for pod in listed}
        for name in store.pods.keys() & old.keys():
            store.pods[name] = with_devices_of(store.pods[name], old[name])
        for selector in store.selectors:
            selector.is_stale = True
        store.list_at(version)

    def _apply(self, store: _PodStore, event: WatchEvent[Pod]) -> bool:
        pod: Any = event.object
        if isinstance(event, Deleted):
            return store.discard(pod.full_name, pod.metadata.uid)
        (matched,) = self.match(store.query, [pod])
        return store.put(matched)

    def set_devices(self, pods: Iterable[MatchedPod], devices: ClaimedDevices) -> None:
        for pod in pods:
            assert pod.endpoint is not None
            found = devices.added_to(pod.endpoint.accelerators, pod.namespace, pod.claims)
            endpoint = replace(pod.endpoint, accelerators=found)
            new = msgspec.structs.replace(pod, claims=(), endpoint=endpoint)
            for store in self._stores.values():
                # It may have changed while the claims were read.
                if (known := store.pods.get(new.full_name)) is not None and known.claims:
                    store.put(with_devices_of(known, new))


def with_devices_of(pod: MatchedPod, other: MatchedPod) -> MatchedPod:
    """Return `pod` with the accelerators of another version of it, if its ResourceClaims were read."""
    if not pod.claims or other.claims or pod.uid != other.uid or None in (pod.endpoint, other.endpoint):
        return pod
    assert pod.endpoint is not None
    assert other.endpoint is not None
    endpoint = replace(pod.endpoint, accelerators=other.endpoint.accelerators)
    return msgspec.structs.replace(pod, endpoint=endpoint, claims=())
