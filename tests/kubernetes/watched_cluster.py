"""Memberships, and a cluster of pods in memory whose watches may tell them of it in any order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.objects import Added, Bookmark, Deleted, ListMeta, Marked, Modified, Pod
from aioresolve.kubernetes.pod_cache import Membership
from aioresolve.kubernetes.query import PodQuery
from aioresolve.kubernetes.tasks import endpoint, pod_candidates, tasks
from aioresolve.spec import ClusterState

from . import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aioresolve.kubernetes.objects import WatchEvent
    from aioresolve.spec import Observation

PORT = 8470
NOW = datetime(2026, 11, 20, 15, 40, tzinfo=UTC)
DELETED = "2026-11-20T15:40:41Z"
INDEX = "batch.kubernetes.io/job-completion-index"
TRAIN = PodQuery("app=train", "ml")
EVAL = PodQuery("app=eval", "ml")

Jobs: TypeAlias = dict[str, list[list[PodQuery]]]


def membership(jobs: Jobs | None = None, *, address: Any = "pod_ip", order_by: str = "name") -> Membership:
    """Return a membership that knows nothing yet."""
    return Membership(jobs or {"worker": [[TRAIN]]}, address=address, port=PORT, order_by=order_by)


def listed(*pods: Pod, version: str = "100", **more: Any) -> Membership:
    """Return the membership of these pods, found by one query and looked at; `more` is for `membership`."""
    kept = membership(**more)
    kept.replace(TRAIN, pods, version)
    look_at(kept)
    return kept


def look_at(kept: Membership) -> None:
    """Let everything be put in order, so that what comes next is taken in one by one."""
    with suppress(PodIndexError):
        kept.observation(NOW)


def versioned(name: str, version: int, **more: Any) -> Pod:
    """Return a pod of this resourceVersion; `more` is for `samples.pod`."""
    metadata = {"resourceVersion": str(version), **more.pop("metadata", {})}
    return samples.pod(name, metadata=metadata, **more)


def leaving(name: str, version: int, **more: Any) -> Pod:
    """Return a pod that is being deleted."""
    return versioned(name, version, metadata={"deletionTimestamp": DELETED}, **more)


def told(observation: Observation) -> tuple[Any, ...]:
    """Return all that an observation tells, nodes and readiness included, but for its time and version."""
    state = observation.state
    assert state is not None
    return repr(dict(state.endpoints)), state.spec, observation.absent, observation.unready


def state(kept: Membership) -> ClusterState:
    """Return the state that there is now."""
    found = kept.observation(NOW).state
    assert found is not None
    return found


def names(kept: Membership, job: str = "worker") -> list[str | None]:
    """Return the names of the members in task order."""
    return [endpoint.name for endpoint in state(kept).endpoints[job]]


def bookmark(version: int) -> Bookmark:
    """Return the event that tells that everything up to `version` has been told."""
    return Bookmark(Marked(ListMeta(resource_version=str(version))))


def matches(query: PodQuery, found: Pod) -> bool:
    """Whether `query`, of one `label=value`, finds the pod."""
    label, _, value = query.selector.partition("=")
    is_in_scope = query.namespace in (None, found.metadata.namespace)
    return is_in_scope and found.metadata.labels.get(label) == value


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods as a real server lists them: by `namespace/name`."""
    return sorted(pods, key=lambda found: found.full_name)


def batch_state(
    jobs: Mapping[str, Sequence[Sequence[PodQuery]]],
    pods: Callable[[PodQuery], list[Pod]],
    *,
    order_by: str = "name",
) -> ClusterState:
    """Return the state of these pods, resolved at once."""
    found = {
        job: [
            [candidate for query in queries for candidate in pod_candidates(pods(query), "pod_ip", PORT)]
            for queries in selectors
        ]
        for job, selectors in jobs.items()
    }
    members = tasks(found, order_by=order_by, not_running="skip")
    return ClusterState.of({job: [endpoint(member) for member in ranked] for job, ranked in members.items()})


@dataclass
class WatchedCluster:
    """Pods, and for each query the events that it has not been told yet.

    Attributes:
        queries: what is watched.
        version: of the last write.
        pods: by namespace and name.
        untold: by query, in order.
        told: by query, the last events that it was told.
        known: by query, the pods that it was told of, by namespace and name.
    """

    queries: list[PodQuery]
    version: int = 100
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    untold: dict[PodQuery, list[WatchEvent]] = field(default_factory=dict)
    told: dict[PodQuery, list[WatchEvent]] = field(default_factory=dict)
    known: dict[PodQuery, dict[tuple[str, str], Pod]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for query in self.queries:
            self.untold[query], self.told[query], self.known[query] = [], [], {}

    def found(self, query: PodQuery) -> list[Pod]:
        """Return what a list answers."""
        return in_order(pod for pod in self.pods.values() if matches(query, pod))

    def put(self, namespace: str, name: str, uid: str, **more: Any) -> None:
        """Create or change a pod; `more` is for `samples.pod`."""
        metadata = {
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(self.version + 1),
            **more.pop("metadata", {}),
        }
        self._write((namespace, name), samples.pod(name, metadata=metadata, **more))

    def remove(self, namespace: str, name: str) -> None:
        """Take a pod away for good."""
        self._write((namespace, name), None)

    def next_events(self, query: PodQuery, count: int) -> list[WatchEvent]:
        """Return the next events that `query` is to be told, at most `count`."""
        events, self.untold[query] = self.untold[query][:count], self.untold[query][count:]
        self.told[query] = (self.told[query] + events)[-4:]
        for event in events:
            assert isinstance(event, Added | Modified | Deleted)
            key = event.object.metadata.namespace, event.object.metadata.name
            self.known[query].pop(key, None)
            if not isinstance(event, Deleted):
                self.known[query][key] = event.object
        return events

    def listed(self, query: PodQuery) -> tuple[list[Pod], str]:
        """Return a list's pods and version, after which nothing of before is to be told any more."""
        self.untold[query], self.told[query] = [], []
        self.known[query] = {key: pod for key, pod in self.pods.items() if matches(query, pod)}
        return self.found(query), str(self.version)

    def _write(self, key: tuple[str, str], new: Pod | None) -> None:
        self.version += 1
        old = self.pods.pop(key, None)
        if new is not None:
            self.pods[key] = new
        for query in self.queries:
            before = old if old is not None and matches(query, old) else None
            if new is not None and matches(query, new):
                self.untold[query].append(Added(new) if before is None else Modified(new))
            elif before is not None:
                self.untold[query].append(Deleted(self._last(before, gone=new is None)))

    def _last(self, before: Pod, *, gone: bool) -> Pod:
        """Return a pod as the event of its end shows it: as it was before, at the version of the change."""
        status = before.status
        metadata = {
            "namespace": before.metadata.namespace,
            "uid": before.metadata.uid,
            "labels": before.metadata.labels,
            "resourceVersion": str(self.version),
            "deletionTimestamp": DELETED if gone else before.metadata.deletion_timestamp,
        }
        return samples.pod(before.metadata.name, phase=status.phase, ip=status.pod_ip, metadata=metadata)
