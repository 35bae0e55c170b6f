"""Pod caches, and a simulated cluster whose watches report changes in any order."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.api.objects import (
    Added,
    Bookmark,
    BookmarkMeta,
    BookmarkObject,
    Deleted,
    Modified,
    Pod,
    PodQuery,
)
from aioresolve.kubernetes.tasks.pods import not_ready_reason
from aioresolve.kubernetes.watch.pod_cache import PodCache
from aioresolve.spec import ClusterSpec, ClusterState, Endpoint

from . import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aioresolve.kubernetes.api.objects import WatchEvent
    from aioresolve.spec import Observation

PORT = 8470
NOW = datetime(2026, 11, 20, 15, 40, tzinfo=UTC)
DELETED = "2026-11-20T15:40:41Z"
INDEX = "batch.kubernetes.io/job-completion-index"
TRAIN = PodQuery("app=train", "ml")
EVAL = PodQuery("app=eval", "ml")

Jobs: TypeAlias = dict[str, list[list[PodQuery]]]


def new_cache(
    jobs: Jobs | None = None, *, address: Any = "pod_ip", order_by: Any = "name", allow_gaps: bool = True
) -> PodCache:
    """Return an empty cache."""
    return PodCache(
        jobs or {"worker": [[TRAIN]]}, address=address, port=PORT, order_by=order_by, allow_gaps=allow_gaps
    )


def replace(cache: PodCache, query: PodQuery, pods: Sequence[Pod], version: str) -> None:
    """Apply a list of these pods."""
    cache.replace(query, cache.match(query, pods), version)


def listed_cache(*pods: Pod, version: str = "100", **more: Any) -> PodCache:
    """Return a cache of these pods, which was observed; for `more` see `new_cache`."""
    cache = new_cache(**more)
    replace(cache, TRAIN, pods, version)
    observe(cache)
    return cache


def observe(cache: PodCache) -> None:
    """Have everything ordered, so that later changes are applied incrementally."""
    with suppress(PodIndexError):
        cache.observation(NOW)


def versioned(name: str, version: int, **more: Any) -> Pod:
    """Return a pod of this resourceVersion; for `more` see `samples.pod`."""
    metadata = {"resourceVersion": str(version), **more.pop("metadata", {})}
    return samples.pod(name, metadata=metadata, **more)


def deleting(name: str, version: int, **more: Any) -> Pod:
    """Return a pod that is being deleted."""
    metadata = {"deletionTimestamp": DELETED, **more.pop("metadata", {})}
    return versioned(name, version, metadata=metadata, **more)


def contents(observation: Observation) -> tuple[Any, ...]:
    """Return everything in an observation, including nodes and readiness, except for its time and version."""
    state = observation.state
    assert state is not None
    return repr(dict(state.endpoints)), state.spec, observation.absent, observation.unready


def state(cache: PodCache) -> ClusterState:
    """Return the current state."""
    state = cache.observation(NOW).state
    assert state is not None
    return state


def names(cache: PodCache, job: str = "worker") -> list[str | None]:
    """Return the names of the members in task order."""
    return [endpoint.name for endpoint in state(cache).endpoints[job]]


def bookmark(version: int) -> Bookmark:
    """Return the event that says that every change up to `version` was reported."""
    return Bookmark(BookmarkObject(BookmarkMeta(resource_version=str(version))))


def matches(query: PodQuery, pod: Pod) -> bool:
    """Whether `query`, of one `label=value`, matches the pod."""
    label, _, value = query.selector.partition("=")
    is_in_scope = query.namespace in (None, pod.metadata.namespace)
    return is_in_scope and pod.metadata.labels.get(label) == value


def in_server_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods in the order in which a real server lists them: by `namespace/name`."""
    return sorted(pods, key=lambda pod: pod.full_name)


def expected_endpoints(
    jobs: Mapping[str, Sequence[Sequence[PodQuery]]], pods: Callable[[PodQuery], list[Pod]]
) -> dict[str, tuple[Endpoint, ...]]:
    """Return the members by name: an independent implementation, which sorts everything each time."""
    return {
        job: tuple(
            _endpoint(pod) for queries in selectors for pod in _by_name(queries, pods) if _is_member(pod)
        )
        for job, selectors in jobs.items()
    }


def expected_spec(
    jobs: Mapping[str, Sequence[Sequence[PodQuery]]], pods: Callable[[PodQuery], list[Pod]]
) -> ClusterSpec:
    """Return the tasks by name. A pod that has succeeded keeps its index while others of its run may run."""
    tasks: dict[str, dict[int, str]] = {}
    for job, selectors in jobs.items():
        tasks[job], start = {}, 0
        for queries in selectors:
            found = _by_name(queries, pods)
            runs = {_run(pod) for pod in found if _may_run(pod)}
            numbered = [
                pod
                for pod in found
                if _is_member(pod) or (pod.status.phase == "Succeeded" and _run(pod) in runs - {""})
            ]
            for index, pod in enumerate(numbered, start):
                if _is_member(pod):
                    tasks[job][index] = _endpoint(pod).address
            start += len(numbered)
    return ClusterSpec(tasks)


def _by_name(queries: Sequence[PodQuery], pods: Callable[[PodQuery], list[Pod]]) -> list[Pod]:
    found = sorted((pod for query in queries for pod in pods(query)), key=_natural_name)
    return [pod for pod in found if pod.metadata.deletion_timestamp is None]


def _is_member(pod: Pod) -> bool:
    return pod.status.phase == "Running" and bool(pod.status.pod_ip)


def _may_run(pod: Pod) -> bool:
    return pod.status.phase in ("Running", "Pending") or (pod.status.phase == "Failed" and not _run(pod))


def _run(pod: Pod) -> str:
    """Return the controller of a pod: the one of its namespace."""
    return pod.metadata.namespace if pod.metadata.owner_references else ""


def _natural_name(pod: Pod) -> tuple[Any, ...]:
    parts = re.split("([0-9]+)", pod.metadata.name)
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part
    ], pod.metadata.name


def _endpoint(pod: Pod) -> Endpoint:
    ip = pod.status.pod_ip or ""
    not_ready = not_ready_reason(pod)
    return Endpoint(
        f"[{ip}]:{PORT}" if ":" in ip else f"{ip}:{PORT}",
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        node=pod.spec.node_name,
        ready=any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ()),
        status=not_ready or "Running",
        index=int(pod.metadata.labels[INDEX]),
    )


@dataclass
class WatchedCluster:
    """Pods, and for each query the events that were not reported to it yet.

    Attributes:
        queries: the queries that are watched.
        version: the resourceVersion of the last write.
        pods: by namespace and name.
        pending: by query, the events that were not reported yet, in order.
        reported: by query, the last events that were reported.
        known: by query, the pods as its events describe them, by namespace and name.
    """

    queries: list[PodQuery]
    version: int = 100
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    pending: dict[PodQuery, list[WatchEvent[Pod]]] = field(default_factory=dict)
    reported: dict[PodQuery, list[WatchEvent[Pod]]] = field(default_factory=dict)
    known: dict[PodQuery, dict[tuple[str, str], Pod]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for query in self.queries:
            self.pending[query], self.reported[query], self.known[query] = [], [], {}

    def matching(self, query: PodQuery) -> list[Pod]:
        """Return the pods that `query` matches now."""
        return in_server_order(pod for pod in self.pods.values() if matches(query, pod))

    def put(self, namespace: str, name: str, uid: str, **more: Any) -> None:
        """Create or change a pod; for `more` see `samples.pod`."""
        metadata = {
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(self.version + 1),
            **more.pop("metadata", {}),
        }
        self._write((namespace, name), samples.pod(name, metadata=metadata, **more))

    def remove(self, namespace: str, name: str) -> None:
        """Delete a pod for good."""
        self._write((namespace, name), None)

    def next_events(self, query: PodQuery, count: int) -> list[WatchEvent[Pod]]:
        """Report the next events of `query`, at most `count`."""
        events, self.pending[query] = self.pending[query][:count], self.pending[query][count:]
        self.reported[query] = (self.reported[query] + events)[-4:]
        for event in events:
            assert isinstance(event, Added | Modified | Deleted)
            key = event.object.metadata.namespace, event.object.metadata.name
            self.known[query].pop(key, None)
            if not isinstance(event, Deleted):
                self.known[query][key] = event.object
        return events

    def listed(self, query: PodQuery) -> tuple[list[Pod], str]:
        """Return the pods and the version of a list. Earlier events are no longer reported."""
        self.pending[query], self.reported[query] = [], []
        self.known[query] = {key: pod for key, pod in self.pods.items() if matches(query, pod)}
        return self.matching(query), str(self.version)

    def _write(self, key: tuple[str, str], new: Pod | None) -> None:
        self.version += 1
        old = self.pods.pop(key, None)
        if new is not None:
            self.pods[key] = new
        for query in self.queries:
            before = old if old is not None and matches(query, old) else None
            if new is not None and matches(query, new):
                self.pending[query].append(Added(new) if before is None else Modified(new))
            elif before is not None:
                self.pending[query].append(Deleted(self._deleted(before, is_gone=new is None)))

    def _deleted(self, before: Pod, *, is_gone: bool) -> Pod:
        """Return the pod of a DELETED event: the pod before the change, at the version of the change."""
        status = before.status
        metadata = {
            "namespace": before.metadata.namespace,
            "uid": before.metadata.uid,
            "labels": before.metadata.labels,
            "resourceVersion": str(self.version),
            "deletionTimestamp": DELETED if is_gone else before.metadata.deletion_timestamp,
        }
        return samples.pod(before.metadata.name, phase=status.phase, ip=status.pod_ip, metadata=metadata)
