"""Caches of pods, filled by lists and changed by events."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.api.objects import (
    Added,
    Bookmark,
    BookmarkMeta,
    BookmarkObject,
    Deleted,
    Modified,
    Pod,
)
from aioresolve.kubernetes.api.queries import PodQuery
from aioresolve.kubernetes.cluster_cache import ClusterCache, Selection
from aioresolve.kubernetes.tasks.ordering import validate_order_by
from aioresolve.spec import ClusterState, Observation

from . import samples

# Tests import the private names of caches from here, the only file that knows their modules.
__all__ = ["Added", "ClusterCache", "Deleted", "Modified", "PodQuery"]

NOW = datetime(2026, 11, 20, 15, 40, tzinfo=UTC)
DELETED = "2026-11-20T15:40:41Z"
INDEX = "batch.kubernetes.io/job-completion-index"
TRAIN = PodQuery("app=train", "ml")
EVAL = PodQuery("app=eval", "ml")

Jobs: TypeAlias = dict[str, list[PodQuery]]


def new_cache(jobs: Jobs | None = None, **options: Any) -> ClusterCache:
    """Return an empty cache."""
    queries = jobs or {"worker": [TRAIN]}
    (namespace,) = {query.namespace for of_job in queries.values() for query in of_job}
    selection = Selection(
        jobs={job: [query.selector for query in of_job] for job, of_job in queries.items()},
        namespace=namespace,
        address="pod_ip",
        port=8470,
        order_by=validate_order_by(options.pop("order_by", "name")),
        not_running="skip",
    )
    return ClusterCache(selection, "", **options)


def replace(cache: ClusterCache, query: PodQuery, pods: Iterable[Pod], version: object) -> None:
    """Apply a list of these pods."""
    store = cache.stores[query]
    store.replace(store.match(list(pods)), str(version))


def listed_cache(*pods: Pod, version: str = "100", **more: Any) -> ClusterCache:
    """Return a cache of these pods, which was observed; for `more` see `new_cache`."""
    cache = new_cache(**more)
    replace(cache, TRAIN, pods, version)
    # Have everything ordered, so that later changes are applied one by one.
    with suppress(PodIndexError):
        cache.observation(NOW)
    return cache


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
    missing = observation.absent, observation.unready, observation.failed
    return repr(dict(state.endpoints)), state.spec, state.done, missing


def state(cache: ClusterCache) -> ClusterState:
    """Return the current state."""
    state = cache.observation(NOW).state
    assert state is not None
    return state


def names(cache: ClusterCache, job: str = "worker") -> list[str | None]:
    """Return the names of the members in task order."""
    return [endpoint.name for endpoint in state(cache).endpoints[job]]


def bookmark(version: int) -> Bookmark:
    """Return the event that says that every change up to `version` was reported."""
    return Bookmark(BookmarkObject(BookmarkMeta(resource_version=str(version))))
