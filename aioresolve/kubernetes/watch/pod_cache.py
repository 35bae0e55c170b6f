"""The pods that lists and watches returned: the cache of the resolver of pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve.kubernetes.api.objects import (
    Added,
    Bookmark,
    Deleted,
    Failed,
    Modified,
    Record,
    is_newer,
    is_older,
    version_number,
)
from aioresolve.kubernetes.tasks.controllers import Controllers
from aioresolve.kubernetes.tasks.matched_pods import MatchedPod, match_pods
from aioresolve.kubernetes.tasks.task_order import LabelOrdering, are_identical
from aioresolve.spec import DoneTask

from .cluster_cache import ClusterCache, QueryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.kubernetes.api.objects import Pod, PodQuery, Query, WatchEvent
    from aioresolve.kubernetes.tasks.controllers import Controller, SelectedPods
    from aioresolve.spec import ClusterState, ControllerStatus, ExpectedTasks, Observation


class CachedPod(Record, frozen=True):
    """A pod that a query matches.

    Attributes:
        pod: the newest version of the pod that any query reported.
        version: the resourceVersion of `pod`.
        reported: the resourceVersion that this query reported, which may be older.
    """

    pod: MatchedPod
    version: int | None
    reported: int | None


class _PodStore(QueryStore):
    """The pods that one query matches.

    Attributes:
        pods: by `namespace/name`.
        neighbors: the stores of the other queries that may match the same pods.
    """

    def __init__(self, query: PodQuery, scope: int) -> None:
        super().__init__()
        self.query = query
        self.scope = scope
        self.pods: dict[str, CachedPod] = {}
        self.neighbors: list[_PodStore] = []

    @property
    def matched(self) -> Iterable[MatchedPod]:
        return (cached.pod for cached in self.pods.values())

    def put(self, new: CachedPod) -> bool:
        """Add or replace a pod; return whether anything changed but the versions."""
        key = new.pod.full_name
        old = self.pods.get(key)
        if old is not None and old.pod.equals(new.pod):
            self.pods[key] = CachedPod(old.pod, new.version, new.reported)
            return False
        self.pods[key] = new
        for selector in self.selectors:
            selector.put(new.pod)
        return True

    def discard(self, key: str) -> bool:
        """Remove a pod; return whether it was there."""
        old = self.pods.pop(key, None)
        if old is None:
            return False
        for selector in self.selectors:
            selector.discard(old.pod)
        return True


class PodCache(ClusterCache["Pod", _PodStore]):
    """The pods of all queries, and the cluster state that follows from them.

    A pod that several queries match is the same in all of them: the newest version that any query reported.
    If two streams are apart, one may have reported already that a pod left a query, while the other has not
    reported yet that another query matches it: see `in_transit`.

    Args:
        jobs: job to its selectors in order, each as its queries, one for each namespace.
        address: the kind of address; see `pod_address`.
        port: the port to append to the host of each pod.
        order_by: `name`, `index` or labels: how the pods of one selector become tasks.
        allow_gaps: with `order_by="index"`, whether a task index between two others may be missing.
        controllers: the objects of the controllers of the pods, as far as they were read.

    Attributes:
        claim_faults: why devices of ResourceClaims are not known, by namespace, when they were read last.
    """

    claim_faults: Mapping[str, str] = {}

    def __init__(
        self,
        jobs: Mapping[str, Sequence[Sequence[PodQuery]]],
        *,
        address: str | Callable[[Pod], Any],
        port: int,
        order_by: str | LabelOrdering,
        allow_gaps: bool = True,
        controllers: Controllers | None = None,
    ) -> None:
        self._address, self._port, self._order_by = address, port, order_by
        self._ordering = order_by if isinstance(order_by, LabelOrdering) else LabelOrdering(())
        queries = dict.fromkeys(
            query for selectors in jobs.values() for of_selector in selectors for query in of_selector
        )
        namespaces = list(dict.fromkeys(query.namespace for query in queries))
        # A pod has one scope, whichever query matches it. With all namespaces, there is only one.
        all_namespaces = None in namespaces
        scopes = {name: 0 if all_namespaces else position for position, name in enumerate(namespaces)}
        stores = {query: _PodStore(query, scopes[query.namespace]) for query in queries}
        # By namespace, because there may be thousands of queries, and only those of one namespace overlap.
        in_namespace: dict[str | None, list[_PodStore]] = {}
        for query, store in stores.items():
            in_namespace.setdefault(query.namespace, []).append(store)
        for query, store in stores.items():
            overlapping = namespaces if query.namespace is None else (query.namespace, None)
            store.neighbors = [
                other for name in overlapping for other in in_namespace.get(name, ()) if other is not store
            ]
        super().__init__(jobs, stores, order_by=order_by, allow_gaps=allow_gaps)
        selectors = iter(self._selectors)
        self._selectors_of = {job: [next(selectors)[0] for _ in jobs[job]] for job in self._jobs}
        self._controllers = Controllers() if controllers is None else controllers
        self._expected: Mapping[str, ExpectedTasks] = {}
        self._ended: Mapping[str, Sequence[ControllerStatus]] = {}
        self._expected_from: list[object] = []
        self._unsettled: set[str] = set()  # `namespace/name` of pods about which queries disagree

    @property
    def in_transit(self) -> bool:
        """Whether queries disagree about a pod that changed since the last observation.

        Either the pod left one query without being deleted, and another query may be about to match it; or
        one query reported a change that another query that matches the pod has not reported yet. Usually they
        agree a moment later. They need not, so wait for this only briefly.
        """
        return bool(self._unsettled)

    def match(self, query: Query[Pod], objects: Sequence[Pod]) -> list[CachedPod]:
        versions = [version_number(pod.metadata.resource_version) for pod in objects]
        matched = self._match(self._stores[query], objects)
        return [CachedPod(pod, version, version) for pod, version in zip(matched, versions, strict=True)]

    def replace(self, query: Query[Pod], listed: Sequence[CachedPod], version: str) -> None:
        store = self._stores[query]
        number = version_number(version)
        if is_older(number, store.version_number):
            self._forget_versions()
        for selector in store.selectors:
            selector.is_stale = True
        for key in store.pods.keys() - {new.pod.full_name for new in listed}:
            store.discard(key)
            self._unsettled.discard(key)
        known = set(store.pods).union(*(other.pods for other in store.neighbors))
        for new in listed:
            key = new.pod.full_name
            if key in known or key in store.pods:
                self._update(store, new.pod, new.version)
            else:  # the fast path of the first list: there is nothing to compare with
                store.pods[key] = new
                self._unsettled.discard(key)
        store.list_at(version)

    def apply(self, query: Query[Pod], events: Iterable[WatchEvent[Pod]]) -> bool:
        store = self._stores[query]
        has_changed = False
        for event in events:
            match event:
                case Added(object=pod) | Modified(object=pod):
                    has_changed |= self._on_match(store, pod)
                case Deleted(object=pod):
                    has_changed |= self._on_mismatch(store, pod)
                case Bookmark(object=bookmark):
                    store.advance(bookmark.metadata.resource_version)
                case Failed():
                    pass
        return has_changed

    def observation(self, now: datetime) -> Observation:
        self._unsettled.clear()
        observation = super().observation(now)
        if observation.state is None:
            return observation
        self._expect()
        state = self._with_vanished(observation.state)
        return replace(observation, state=state, expected=self._expected, controllers=self._ended)

    @property
    def has_unknown_nodes(self) -> bool:
        """Whether members cannot be ordered before the labels of their nodes are read."""
        self._fill_selectors()
        return any(selector.unknown_nodes for selector, _ in self._selectors)

    @property
    def with_claims(self) -> list[MatchedPod]:
        """The members whose ResourceClaims were not read yet, each once."""
        self._fill_selectors()
        pods = {pod.full_name: pod for selector, _ in self._selectors for pod in selector.with_claims}
        return list(pods.values())

    def set_devices(self, pods: Iterable[MatchedPod], counted: Iterable[MatchedPod]) -> None:
        """Replace members, as `with_claims` returned them, by those with the devices of their claims."""
        for pod, new in zip(pods, counted, strict=True):
            for store in self._stores.values():
                cached = store.pods.get(pod.full_name)
                if cached is None or cached.pod.uid != pod.uid or not cached.pod.claims:
                    continue
                # It may have changed while the claims were read.
                newest = new if cached.pod is pod else with_devices_of(cached.pod, new)
                store.put(CachedPod(newest, cached.version, cached.reported))

    @property
    def num_members(self) -> int:
        """The number of members."""
        return sum(len(selector.endpoints) for selector, _ in self._selectors)

    @property
    def node_label_keys(self) -> Sequence[str]:
        """The keys of the labels of nodes by which the members are ordered."""
        return self._ordering.node_keys

    def set_nodes(self, nodes: Mapping[str, tuple[str | None, ...]]) -> None:
        """Order the members by the labels of these nodes; no others exist."""
        unknown = set().union(*(selector.unknown_nodes for selector, _ in self._selectors))
        self._ordering.nodes = nodes
        self._ordering.absent = frozenset(unknown - nodes.keys())
        for selector, _ in self._selectors:
            selector.is_stale = True

    @property
    def unread_controllers(self) -> list[Controller]:
        self._fill_selectors()
        return self._controllers.unread(self._selected())

    def _expect(self) -> None:
        """Derive what controllers say of each job, unless nothing has changed."""
        selected = [selector.selected for selector, _ in self._selectors]
        source: list[object] = [*selected, *self._controllers.objects.values()]
        if not are_identical(source, self._expected_from):
            self._expected_from, of_jobs = source, self._selected()
            self._expected = self._controllers.expected(of_jobs)
            self._ended = self._controllers.ended(of_jobs)

    def _with_vanished(self, state: ClusterState) -> ClusterState:
        """Return `state` with the tasks of Indexed Jobs that are done and whose pods no longer exist."""
        vanished: list[DoneTask] = []
        for job, selectors in self._selectors_of.items():
            if self._order_by != "index" or len(selectors) > 1:
                continue
            known = {*state.spec.task_indices(job), *(each.index for each in state.done if each.job == job)}
            completed = self._controllers.completed(selectors[0].selected)
            vanished += [DoneTask(job, index) for index in sorted(completed - known)]
        return replace(state, done=(*state.done, *vanished)) if vanished else state

    def _selected(self) -> dict[str, list[SelectedPods]]:
        return {job: [one.selected for one in selectors] for job, selectors in self._selectors_of.items()}

    def _match(self, store: _PodStore, pods: Sequence[Pod]) -> list[MatchedPod]:
        keys = self._ordering.pod_keys
        return match_pods(pods, self._address, self._port, scope=store.scope, label_keys=keys)

    def _forget_versions(self) -> None:
        """Forget the versions of all pods, so that whatever is reported next counts as newer."""
        for store in self._stores.values():
            for key, cached in store.pods.items():
                store.pods[key] = CachedPod(cached.pod, None, None)

    def _on_match(self, store: _PodStore, pod: Pod) -> bool:
        """Apply that a query matches a pod, new or changed; return whether an observation would differ."""
        number = version_number(pod.metadata.resource_version)
        if not is_newer(number, store.version_number):
            store.version_decreased |= is_older(number, store.version_number)
            return False
        (matched,) = self._match(store, [pod])
        has_changed = self._update(store, matched, number)
        store.advance(pod.metadata.resource_version)
        return has_changed

    def _on_mismatch(self, store: _PodStore, pod: Pod) -> bool:
        """Apply that a query no longer matches a pod; return whether an observation would differ."""
        key, number = pod.full_name, version_number(pod.metadata.resource_version)
        has_changed = False
        cached = store.pods.get(key)
        if (
            cached is not None
            and cached.pod.uid == pod.metadata.uid
            and not is_older(number, cached.reported)
        ):
            has_changed = store.discard(key)
            if pod.metadata.deletion_timestamp is None:  # its labels changed: another query may match it now
                self._settle(key, is_settled=_is_settled(store, pod, number))
        if pod.metadata.deletion_timestamp is not None:
            # The pod is gone for every query. Keep it as a pod that is being deleted until each of them
            # reports it.
            self._unsettled.discard(key)
            (deleted,) = self._match(store, [pod])
            for other in store.neighbors:
                its = other.pods.get(key)
                if its is not None and its.pod.uid == deleted.uid and is_newer(number, its.version):
                    has_changed |= other.put(CachedPod(deleted, number, its.reported))
        store.advance(pod.metadata.resource_version)
        return has_changed

    def _update(self, store: _PodStore, reported: MatchedPod, version: int | None) -> bool:
        """Put a reported pod into all stores that have it; return whether an observation would differ."""
        key = reported.full_name
        cached = store.pods.get(key)
        others = [(other, other.pods[key]) for other in store.neighbors if key in other.pods]
        for known in (cached, *(its for _, its in others)):
            if known is not None and reported.claims and known.pod.uid == reported.uid:
                reported = with_devices_of(reported, known.pod)
        newest = CachedPod(reported, version, version)
        for known in (cached, *(its for _, its in others)):
            if known is not None and is_older(newest.version, known.version):
                newest = known
        if newest.pod.uid != reported.uid:  # the reported pod is gone: a newer pod has its name
            return cached is not None and cached.pod.uid == reported.uid and store.discard(key)
        has_changed = store.put(CachedPod(newest.pod, newest.version, version))
        for other, its in others:
            if its.pod.uid == reported.uid:
                has_changed |= other.put(CachedPod(newest.pod, newest.version, its.reported))
            else:
                has_changed |= other.discard(key)
        self._settle(key, is_settled=not any(is_older(its.reported, version) for _, its in others))
        return has_changed

    def _settle(self, key: str, *, is_settled: bool) -> None:
        if is_settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)


def with_devices_of(pod: MatchedPod, other: MatchedPod) -> MatchedPod:
    """Return `pod` with the accelerators of another version of it whose ResourceClaims were read."""
    if pod.endpoint is None or other.endpoint is None or other.claims:
        return pod
    endpoint = replace(pod.endpoint, accelerators=other.endpoint.accelerators)
    return msgspec.structs.replace(pod, endpoint=endpoint, claims=())


def _is_settled(store: _PodStore, pod: Pod, version: int | None) -> bool:
    """Whether no other query may be about to match `pod`, which left this one without being deleted."""
    candidates = [
        other for other in store.neighbors if other.query.namespace in (None, pod.metadata.namespace)
    ]
    reported = [other.pods[pod.full_name].reported for other in candidates if pod.full_name in other.pods]
    return not candidates or any(not is_older(number, version) for number in reported)
