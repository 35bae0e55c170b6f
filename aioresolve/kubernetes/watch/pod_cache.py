"""The pods that lists and watches returned: the cache of the resolver of pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve.kubernetes.api.objects import Deleted, Record, is_newer, is_older, version_number
from aioresolve.kubernetes.tasks.pods import MatchedPod, match_pods

from .cluster_cache import ClusterCache, QueryStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve.kubernetes.api.objects import Pod, Query, WatchEvent


class CachedPod(Record, frozen=True):
    """The newest version of a pod that any query reported, and its resourceVersion."""

    pod: MatchedPod
    version: int | None


class _PodStore(QueryStore):
    """The pods that one query matches.

    Attributes:
        reported: `namespace/name` of each pod to the resourceVersion that this query reported, which may be
            older than the newest one.
    """

    def __init__(self, query: Query[Pod], scope: int) -> None:
        super().__init__(query, scope)
        self.reported: dict[str, int | None] = {}


class PodCache(ClusterCache["Pod", _PodStore]):
    """The pods of all queries, and the cluster state that follows from them; see `ClusterCache`.

    A pod that several queries match is the same in all of them: the newest version that any query reported.

    If two streams are apart, one may have reported already that a pod left a query, while the other has not
    reported yet that another query matches it; or one has reported a change that another one has not. Until
    the queries agree, the pod is in transit.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._pods: dict[str, CachedPod] = {}  # by `namespace/name`
        super().__init__(*arguments, **options)

    def _new_store(self, query: Query[Pod], scope: int) -> _PodStore:
        return _PodStore(query, scope)

    def _matched(self, store: _PodStore) -> Iterable[MatchedPod]:
        return (self._pods[key].pod for key in store.reported)

    def match(self, query: Query[Pod], objects: Sequence[Pod]) -> list[CachedPod]:
        return self._match(self._stores[query], objects)

    def _match(self, store: _PodStore, pods: Sequence[Pod]) -> list[CachedPod]:
        matched = match_pods(
            pods, self._address, self._port, scope=store.scope, label_keys=self.ordering.pod_keys
        )
        versions = [version_number(pod.metadata.resource_version) for pod in pods]
        return [CachedPod(pod, version) for pod, version in zip(matched, versions, strict=True)]

    def replace(self, query: Query[Pod], listed: Sequence[CachedPod], version: str) -> None:
        store = self._stores[query]
        if is_older(version_number(version), store.version_number):
            # A restored server: whatever is reported next counts as newer.
            self._pods = {key: CachedPod(cached.pod, None) for key, cached in self._pods.items()}
            for each in self._stores.values():
                each.reported = dict.fromkeys(each.reported)
        for selector in store.selectors:
            selector.is_stale = True
        for key in store.reported.keys() - {new.pod.full_name for new in listed}:
            self._discard(key, [store])
            self._unsettled.discard(key)
        for new in listed:
            key = new.pod.full_name
            if key in self._pods:
                self._report(store, new)
            else:  # the fast path of the first list: there is nothing to compare with
                self._pods[key], store.reported[key] = new, new.version
                self._unsettled.discard(key)
        store.list_at(version)

    def _apply(self, store: _PodStore, event: WatchEvent[Pod]) -> bool:
        pod: Any = event.object
        if not isinstance(event, Deleted):
            return self._report(store, *self._match(store, [pod]))
        key, version, uid = pod.full_name, version_number(pod.metadata.resource_version), pod.metadata.uid
        is_gone = pod.metadata.deletion_timestamp is not None
        has_changed = False
        known = self._pods.get(key)
        if (
            known is not None
            and known.pod.uid == uid
            and key in store.reported
            and not is_older(version, store.reported[key])
        ):
            self._discard(key, [store])
            has_changed = True
            if not is_gone:  # its labels changed: another query may match it now
                self._settle(key, is_settled=self._is_settled(store, pod, version))
        if is_gone:
            # The pod is gone for every query. Keep it as a pod that is being deleted until each of them
            # reports it.
            self._unsettled.discard(key)
            known = self._pods.get(key)
            if known is not None and known.pod.uid == uid and is_newer(version, known.version):
                has_changed |= self._put(*self._match(store, [pod]))
        return has_changed

    def _report(self, store: _PodStore, new: CachedPod) -> bool:
        """Apply that a query matches a pod, new or changed; return whether an observation would differ."""
        key = new.pod.full_name
        known = self._pods.get(key)
        others = [each for each in self._stores.values() if each is not store and key in each.reported]
        is_settled = not any(is_older(each.reported[key], new.version) for each in others)
        newest, has_changed = new, False
        if known is not None and known.pod.uid != new.pod.uid:
            if is_older(new.version, known.version):
                return False  # the reported pod is gone: a newer pod has its name
            self._discard(key, self._stores.values())
            has_changed = True
        elif known is not None and is_older(new.version, known.version):
            newest = known
        elif known is not None:
            newest = CachedPod(with_devices_of(new.pod, known.pod), new.version)
        is_first = key not in store.reported
        store.reported[key] = new.version
        if self._put(newest):
            has_changed = True
        elif is_first:
            has_changed = True
            for selector in store.selectors:
                selector.put(self._pods[key].pod)
        self._settle(key, is_settled=is_settled)
        return has_changed

    def _put(self, new: CachedPod) -> bool:
        """Set the newest version of a pod; return whether anything changed but the version."""
        key = new.pod.full_name
        old = self._pods.get(key)
        if old is not None and old.pod.equals(new.pod):
            self._pods[key] = CachedPod(old.pod, new.version)
            return False
        self._pods[key] = new
        for store in self._stores.values():
            if key in store.reported:
                for selector in store.selectors:
                    selector.put(new.pod)
        return True

    def _discard(self, key: str, stores: Iterable[_PodStore]) -> None:
        """Remove a pod from these stores, and from the cache if no query matches it any longer."""
        pod = self._pods[key].pod
        for store in stores:
            if key in store.reported:
                del store.reported[key]
                for selector in store.selectors:
                    selector.discard(pod)
        if not any(key in store.reported for store in self._stores.values()):
            del self._pods[key]

    def _settle(self, key: str, *, is_settled: bool) -> None:
        if is_settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)

    def _is_settled(self, store: _PodStore, pod: Pod, version: int | None) -> bool:
        """Whether no other query may be about to match `pod`, which left this one without being deleted."""
        namespaces = None, pod.metadata.namespace
        others = [
            each for each in self._stores.values() if each is not store and each.query.namespace in namespaces
        ]
        reported = [each.reported[pod.full_name] for each in others if pod.full_name in each.reported]
        return not others or any(not is_older(number, version) for number in reported)

    def set_devices(self, counted: Iterable[MatchedPod]) -> None:
        for new in counted:
            known = self._pods.get(new.full_name)
            # It may have changed while the claims were read.
            if known is not None and known.pod.uid == new.uid:
                self._put(CachedPod(with_devices_of(known.pod, new), known.version))


def with_devices_of(pod: MatchedPod, other: MatchedPod) -> MatchedPod:
    """Return `pod` with the accelerators of another version of it, if its ResourceClaims were read."""
    if not pod.claims or pod.endpoint is None or other.endpoint is None or other.claims:
        return pod
    endpoint = replace(pod.endpoint, accelerators=other.endpoint.accelerators)
    return msgspec.structs.replace(pod, endpoint=endpoint, claims=())
