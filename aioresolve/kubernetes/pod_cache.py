"""The pods that lists and watches returned, and the cluster state that follows from them.

One store for each query (client-go: `Store`), updated by lists and event by event. Does no I/O: the resolver
fills the cache once, and `reflector` keeps it up to date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.spec import ClusterSpec, ClusterState, Observation

from .objects import (
    Added,
    Bookmark,
    Deleted,
    Failed,
    Modified,
    Record,
    is_newer,
    is_older,
    oldest_version,
    version_number,
)
from .task_order import Concatenation, JobTasks, MatchedPod, SelectorTasks, are_identical, match_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.spec import Missing

    from .objects import Pod, PodQuery, WatchEvent


class _CachedPod(Record, frozen=True):
    """A pod that a query matches.

    Attributes:
        pod: the newest version of the pod that any query reported.
        version: the resourceVersion of `pod`.
        reported: the resourceVersion that this query reported, which may be older.
    """

    pod: MatchedPod
    version: int | None
    reported: int | None


class _QueryStore:
    """The pods that one query matches.

    Attributes:
        pods: by `namespace/name`.
        version: the resourceVersion up to which every change is known; empty before the first list.
        version_decreased: whether the watch reported an older version than that since the last list.
        selectors: the selectors of jobs that this query is part of.
        neighbors: the stores of the other queries that may match the same pods.
    """

    def __init__(self, query: PodQuery, scope: int) -> None:
        self.query = query
        self.scope = scope
        self.is_listed = False
        self.pods: dict[str, _CachedPod] = {}
        self.version = ""
        self.version_number: int | None = None
        self.version_decreased = False
        self.selectors: list[SelectorTasks] = []
        self.neighbors: list[_QueryStore] = []

    def advance(self, version: str) -> None:
        """Record that every change up to `version` is known."""
        number = version_number(version)
        self.version_decreased |= is_older(number, self.version_number)
        if version and is_newer(number, self.version_number):
            self.version, self.version_number = version, number

    def put(self, new: _CachedPod) -> bool:
        """Add or replace a pod; return whether anything changed but the versions."""
        key = new.pod.full_name
        old = self.pods.get(key)
        if old is not None and old.pod.equals(new.pod):
            self.pods[key] = _CachedPod(old.pod, new.version, new.reported)
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


class PodCache:
    """The pods of all queries, and the cluster state that follows from them.

    A pod that several queries match is the same in all of them: the newest version that any query reported.
    If two streams are apart, one may have reported already that a pod left a query, while the other has not
    reported yet that another query matches it: see `in_transit`.

    Args:
        jobs: job to its selectors in order, each as its queries, one for each namespace.
        address: the kind of address; see `pod_address`.
        port: the port to append to the host of each pod.
        order_by: `name` or `index`: how the pods of one selector become tasks.
        allow_gaps: with `order_by="index"`, whether a task index between two others may be missing.
    """

    def __init__(
        self,
        jobs: Mapping[str, Sequence[Sequence[PodQuery]]],
        *,
        address: str | Callable[[Pod], Any],
        port: int,
        order_by: str,
        allow_gaps: bool = True,
    ) -> None:
        self._address, self._port = address, port
        queries = dict.fromkeys(
            query for selectors in jobs.values() for of_selector in selectors for query in of_selector
        )
        namespaces = list(dict.fromkeys(query.namespace for query in queries))
        # A pod has one scope, whichever query matches it. With all namespaces, there is only one.
        all_namespaces = None in namespaces
        scopes = {name: 0 if all_namespaces else position for position, name in enumerate(namespaces)}
        self._stores = {query: _QueryStore(query, scopes[query.namespace]) for query in queries}
        # By namespace, because there may be thousands of queries, and only those of one namespace overlap.
        in_namespace: dict[str | None, list[_QueryStore]] = {}
        for query, store in self._stores.items():
            in_namespace.setdefault(query.namespace, []).append(store)
        for query, store in self._stores.items():
            overlapping = namespaces if query.namespace is None else (query.namespace, None)
            store.neighbors = [
                other for name in overlapping for other in in_namespace.get(name, ()) if other is not store
            ]
        self._selectors: list[tuple[SelectorTasks, list[_QueryStore]]] = []
        self._jobs: dict[str, JobTasks] = {}
        for job in ClusterSpec(dict.fromkeys(jobs, ())).jobs:
            selectors = [self._selector(job, of_selector, order_by) for of_selector in jobs[job]]
            self._jobs[job] = JobTasks(job, selectors, allow_gaps=allow_gaps)
        self._unsettled: set[str] = set()  # `namespace/name` of pods about which queries disagree
        self._spec = ClusterSpec({})
        self._addresses: list[dict[int, str]] = []
        self._absent: Concatenation[Missing] = Concatenation()
        self._unready: Concatenation[Missing] = Concatenation()

    @property
    def is_complete(self) -> bool:
        """Whether every query has been listed; there is no state before that."""
        return all(store.is_listed for store in self._stores.values())

    @property
    def in_transit(self) -> bool:
        """Whether queries disagree about a pod that changed since the last observation.

        Either the pod left one query without being deleted, and another query may be about to match it; or
        one query reported a change that another query that matches the pod has not reported yet. Usually they
        agree a moment later. They need not, so wait for this only briefly.
        """
        return bool(self._unsettled)

    @property
    def not_running(self) -> dict[str, str]:
        """`namespace/name` of each pod that is not running, with the reason, in the order of the queries."""
        return {
            name: cached.pod.fault
            for store in self._stores.values()
            for name, cached in store.pods.items()
            if cached.pod.fault is not None
        }

    def version(self, query: PodQuery) -> str:
        """Return the resourceVersion to resume the watch of `query` from; empty before the first list."""
        return self._stores[query].version

    def version_decreased(self, query: PodQuery) -> bool:
        """Return whether the watch of `query` reported an older version than before since the last list.

        This happens when a server is restored from a backup; only a list shows what it has now.
        """
        return self._stores[query].version_decreased

    def replace(self, query: PodQuery, pods: Sequence[Pod], version: str) -> None:
        """Apply a list: the query matches these pods and no others.

        Args:
            query: the query that was listed.
            pods: all pods of the list.
            version: the resourceVersion of the list.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind; nothing was changed.
        """
        store = self._stores[query]
        listed = self._match(store, pods)
        number = version_number(version)
        if is_older(number, store.version_number):
            self._forget_versions()
        for selector in store.selectors:
            selector.is_stale = True
        for key in store.pods.keys() - {pod.full_name for pod in listed}:
            store.discard(key)
            self._unsettled.discard(key)
        known = set(store.pods).union(*(other.pods for other in store.neighbors))
        for matched, pod in zip(listed, pods, strict=True):
            key = matched.full_name
            pod_version = version_number(pod.metadata.resource_version)
            if key in known or key in store.pods:
                self._update(store, matched, pod_version)
            else:  # the fast path of the first list: there is nothing to compare with
                store.pods[key] = _CachedPod(matched, pod_version, pod_version)
                self._unsettled.discard(key)
        store.version, store.version_number = version, number
        store.is_listed, store.version_decreased = True, False

    def apply(self, query: PodQuery, events: Iterable[WatchEvent]) -> bool:
        """Apply events in order, and return whether an observation would differ.

        Events that were reported before, such as after a watch was resumed, have no effect. An ERROR event is
        ignored, because it does not describe a pod.

        Raises:
            ConfigurationError: a running pod cannot have an address of that kind; the events before it were
                applied.
        """
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

    def state(self, now: datetime) -> ClusterState:
        """Return the cluster state. What has not changed since the last one is the same object.

        Args:
            now: the current time, in UTC.

        Raises:
            PodIndexError: with `order_by="index"`, a member has no index, two have the same one, or one is
                missing and may not be.
        """
        for selector, stores in self._selectors:
            if selector.is_stale:
                selector.fill(cached.pod for store in stores for cached in store.pods.values())
        addresses = [job.addresses() for job in self._jobs.values()]
        if not are_identical(addresses, self._addresses):
            self._spec = ClusterSpec._trusted(dict(zip(self._jobs, addresses, strict=True)))
            self._addresses = addresses
        return ClusterState._trusted(
            {name: job.endpoints() for name, job in self._jobs.items()},
            self._spec,
            oldest_version(store.version for store in self._stores.values()),
            now,
        )

    def observation(self, now: datetime) -> Observation:
        """Return the state and the pods that are not members or not ready; without a state until complete.

        Args:
            now: the current time, in UTC.

        Raises:
            PodIndexError: see `state`.
        """
        self._unsettled.clear()
        if not self.is_complete:
            return Observation(None)
        return Observation(
            self.state(now),
            absent=self._absent.of([selector.absent for selector, _ in self._selectors]),
            unready=self._unready.of([selector.unready for selector, _ in self._selectors]),
        )

    def _selector(self, job: str, queries: Sequence[PodQuery], order_by: str) -> SelectorTasks:
        selector = SelectorTasks(job, order_by=order_by)
        stores = [self._stores[query] for query in queries]
        self._selectors.append((selector, stores))
        for store in stores:
            store.selectors.append(selector)
        return selector

    def _match(self, store: _QueryStore, pods: Sequence[Pod]) -> list[MatchedPod]:
        return match_pods(pods, self._address, self._port, scope=store.scope)

    def _forget_versions(self) -> None:
        """Forget the versions of all pods, so that whatever is reported next counts as newer."""
        for store in self._stores.values():
            for key, cached in store.pods.items():
                store.pods[key] = _CachedPod(cached.pod, None, None)

    def _on_match(self, store: _QueryStore, pod: Pod) -> bool:
        """Apply that a query matches a pod, new or changed; return whether an observation would differ."""
        number = version_number(pod.metadata.resource_version)
        if not is_newer(number, store.version_number):
            store.version_decreased |= is_older(number, store.version_number)
            return False
        (matched,) = self._match(store, [pod])
        has_changed = self._update(store, matched, number)
        store.advance(pod.metadata.resource_version)
        return has_changed

    def _on_mismatch(self, store: _QueryStore, pod: Pod) -> bool:
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
                    has_changed |= other.put(_CachedPod(deleted, number, its.reported))
        store.advance(pod.metadata.resource_version)
        return has_changed

    def _update(self, store: _QueryStore, reported: MatchedPod, version: int | None) -> bool:
        """Put a reported pod into all stores that have it; return whether an observation would differ."""
        key = reported.full_name
        cached = store.pods.get(key)
        others = [(other, other.pods[key]) for other in store.neighbors if key in other.pods]
        newest = _CachedPod(reported, version, version)
        for known in (cached, *(its for _, its in others)):
            if known is not None and is_older(newest.version, known.version):
                newest = known
        if newest.pod.uid != reported.uid:  # the reported pod is gone: a newer pod has its name
            return cached is not None and cached.pod.uid == reported.uid and store.discard(key)
        has_changed = store.put(_CachedPod(newest.pod, newest.version, version))
        for other, its in others:
            if its.pod.uid == reported.uid:
                has_changed |= other.put(_CachedPod(newest.pod, newest.version, its.reported))
            else:
                has_changed |= other.discard(key)
        self._settle(key, is_settled=not any(is_older(its.reported, version) for _, its in others))
        return has_changed

    def _settle(self, key: str, *, is_settled: bool) -> None:
        if is_settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)


def _is_settled(store: _QueryStore, pod: Pod, version: int | None) -> bool:
    """Whether no other query may be about to match `pod`, which left this one without being deleted."""
    candidates = [
        other for other in store.neighbors if other.query.namespace in (None, pod.metadata.namespace)
    ]
    reported = [other.pods[pod.full_name].reported for other in candidates if pod.full_name in other.pods]
    return not candidates or any(not is_older(number, version) for number in reported)
