"""The pods of several watches, kept up to date event by event, and the one state that they make.

Pure: what happened comes in, what there is to tell comes out; `reflector.py` asks, waits and resumes.
"""

from __future__ import annotations

import operator
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
from .ordering import Selection
from .tasks import Sighting, sighting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.spec import Endpoint, Missing

    from .objects import Pod, WatchEvent
    from .ordering import Numbering
    from .query import PodQuery

T = TypeVar("T")

__all__ = ["Membership"]


class _Held(Record, frozen=True):
    """A pod that a query finds.

    Attributes:
        sighting: the newest that any query told of it.
        number: the version of that.
        told: the version of what this query told of it, which may be older.
    """

    sighting: Sighting
    number: int | None
    told: int | None


class _Watched:
    """What one query finds.

    Attributes:
        pods: by `namespace/name`.
        version: the resourceVersion up to which everything is known; empty before the first list.
        went_back: whether the watch told something older than that since the last list.
        selections: the selectors of jobs that ask this query.
        neighbours: the other queries that may find the same pods.
    """

    def __init__(self, query: PodQuery, scope: int) -> None:
        self.query = query
        self.scope = scope
        self.is_listed = False
        self.pods: dict[str, _Held] = {}
        self.version = ""
        self.number: int | None = None
        self.went_back = False
        self.selections: list[Selection] = []
        self.neighbours: list[_Watched] = []

    def advance(self, version: str) -> None:
        """Note that everything up to `version` is known."""
        number = version_number(version)
        self.went_back |= is_older(number, self.number)
        if version and is_newer(number, self.number):
            self.version, self.number = version, number

    def show(self, new: _Held) -> bool:
        """Put in a pod, in the place of what was known of it; return whether that tells anything new."""
        key = new.sighting.full_name
        old = self.pods.get(key)
        if old is not None and old.sighting.tells(new.sighting):
            self.pods[key] = _Held(old.sighting, new.number, new.told)
            return False
        self.pods[key] = new
        for selection in self.selections:
            selection.put(new.sighting)
        return True

    def hide(self, key: str) -> bool:
        """Take a pod away; return whether it was there."""
        old = self.pods.pop(key, None)
        if old is None:
            return False
        for selection in self.selections:
            selection.drop(old.sighting)
        return True


class _Joined(Generic[T]):
    """One tuple of several; the same one while each of them is the same."""

    def __init__(self) -> None:
        self._parts: list[tuple[T, ...]] = []
        self._whole: tuple[T, ...] = ()

    def of(self, parts: list[tuple[T, ...]]) -> tuple[T, ...]:
        """Return the values of all `parts`."""
        if not _are_same(parts, self._parts):
            self._parts, self._whole = parts, parts[0] if len(parts) == 1 else tuple(chain(*parts))
        return self._whole


class _Job:
    """The tasks of one job: those of its selectors, one after another.

    Attributes:
        selections: the pods of each selector, and the queries that find them.
    """

    def __init__(self, selections: list[tuple[Selection, list[_Watched]]]) -> None:
        self.selections = selections
        self._endpoints: _Joined[Endpoint] = _Joined()
        self._numberings: list[Numbering] = []
        self._addresses: dict[int, str] = {}

    def fill(self) -> None:
        """Bring the selections up to date that are stale."""
        for selection, queries in self.selections:
            if selection.is_stale:
                selection.fill(held.sighting for watched in queries for held in watched.pods.values())

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the members in task order; the same tuple until one of them changes."""
        return self._endpoints.of([selection.endpoints for selection, _ in self.selections])

    def addresses(self) -> dict[int, str]:
        """Return the members' addresses by task index, ascending; the same dict until they change.

        Raises:
            PodIndexError: the indices of a selector's members contradict each other.
        """
        numberings = [selection.numbering for selection, _ in self.selections]
        if not _are_same(numberings, self._numberings):
            self._addresses = _joined_addresses(numberings)
            self._numberings = numberings
        return self._addresses


class Membership:
    """Who is in the cluster, by what lists and watches of pods have told so far.

    A pod that several queries find is shown by all of them as it was told last, by whichever. Where two
    streams are apart, a pod may still be gone from the one and not yet there in the other: see `in_transit`.

    Args:
        jobs: job to its selectors, in their order, each as the queries that find its pods, one per namespace.
        address: which address of a pod; see `pod_address`.
        port: the port put behind each pod's host.
        order_by: `name` or `index`: how the pods of one selector become tasks. By index, a pod that is
            missing leaves a gap.
    """

    def __init__(
        self,
        jobs: Mapping[str, Sequence[Sequence[PodQuery]]],
        *,
        address: str | Callable[[Pod], Any],
        port: int,
        order_by: str,
    ) -> None:
        self._address, self._port = address, port
        queries = dict.fromkeys(
            query for selectors in jobs.values() for found in selectors for query in found
        )
        namespaces = list(dict.fromkeys(query.namespace for query in queries))
        # The scope is the pod's, whichever query finds it.
        scopes = {name: 0 if None in namespaces else place for place, name in enumerate(namespaces)}
        self._watched = {query: _Watched(query, scopes[query.namespace]) for query in queries}
        for watched in self._watched.values():
            watched.neighbours = [other for other in self._watched.values() if _may_share(watched, other)]
        self._jobs = {
            job: _Job([self._selection(job, found, order_by) for found in jobs[job]])
            for job in ClusterSpec(dict.fromkeys(jobs, ())).jobs
        }
        self._unsettled: set[str] = set()  # pods, by `namespace/name`, on which queries are apart
        self._spec = ClusterSpec({})
        self._addresses: list[dict[int, str]] = []
        self._absent: _Joined[Missing] = _Joined()
        self._unready: _Joined[Missing] = _Joined()

    @property
    def is_complete(self) -> bool:
        """Whether every query has been listed: before that there is no state."""
        return all(watched.is_listed for watched in self._watched.values())

    @property
    def in_transit(self) -> bool:
        """Whether queries are apart on a pod that changed since the last observation.

        It left one query without being deleted, and another may be about to find it; or one query tells of it
        what another that finds it has still to tell. A moment later they usually agree; there may be none,
        though, so this is to be waited for only briefly.
        """
        return bool(self._unsettled)

    def version(self, query: PodQuery) -> str:
        """Return the resourceVersion to resume the watch of `query` from; empty before the first list."""
        return self._watched[query].version

    def went_back(self, query: PodQuery) -> bool:
        """Return whether the watch of `query` told a version older than one before, since the last list.

        A server restored from a backup may; only a list tells what has happened to it.
        """
        return self._watched[query].went_back

    def replace(self, query: PodQuery, pods: Iterable[Pod], version: str) -> None:
        """Take in a list: the query finds these pods and no others.

        Args:
            query: the query that was listed.
            pods: all pods of the answer.
            version: the list's resourceVersion.

        Raises:
            ConfigurationError: a running pod can have no address of that kind; nothing has been taken in.
        """
        watched = self._watched[query]
        found = [(self._sighting(watched, pod), pod.metadata.resource_version) for pod in pods]
        if is_older(version_number(version), watched.number):
            self._forget_versions()
        for selection in watched.selections:
            selection.is_stale = True
        for key in watched.pods.keys() - {seen.full_name for seen, _ in found}:
            watched.hide(key)
            self._unsettled.discard(key)
        for seen, told in found:
            self._take(watched, seen, version_number(told))
        watched.version, watched.number = version, version_number(version)
        watched.is_listed, watched.went_back = True, False

    def apply(self, query: PodQuery, events: Iterable[WatchEvent]) -> bool:
        """Take in events, in their order, and return whether they change anything an observation tells.

        Events that were told before, as after a watch was resumed, change nothing. An ERROR says nothing of
        pods and is passed over.

        Raises:
            ConfigurationError: a running pod can have no address of that kind; events before it are taken in.
        """
        watched = self._watched[query]
        has_changed = False
        for event in events:
            match event:
                case Added(object=pod) | Modified(object=pod):
                    has_changed |= self._found(watched, pod)
                case Deleted(object=pod):
                    has_changed |= self._lost(watched, pod)
                case Bookmark(object=mark):
                    watched.advance(mark.metadata.resource_version)
                case Failed():
                    pass
        return has_changed

    def observation(self, now: datetime) -> Observation:
        """Return what there is to tell; without a state before every query has been listed.

        What did not change since the last one is the same object.

        Args:
            now: the time, in UTC.

        Raises:
            PodIndexError: with `order_by="index"`, a member has no index, or two have the same one.
        """
        self._unsettled.clear()
        if not self.is_complete:
            return Observation(None)
        for job in self._jobs.values():
            job.fill()
        addresses = [job.addresses() for job in self._jobs.values()]
        if not _are_same(addresses, self._addresses):
            self._spec = ClusterSpec._trusted(dict(zip(self._jobs, addresses, strict=True)))
            self._addresses = addresses
        state = ClusterState._trusted(
            {name: job.endpoints() for name, job in self._jobs.items()},
            self._spec,
            oldest_version(watched.version for watched in self._watched.values()),
            now,
        )
        selections = [selection for job in self._jobs.values() for selection, _ in job.selections]
        return Observation(
            state,
            absent=self._absent.of([selection.absent for selection in selections]),
            unready=self._unready.of([selection.unready for selection in selections]),
        )

    def _selection(
        self, job: str, queries: Sequence[PodQuery], order_by: str
    ) -> tuple[Selection, list[_Watched]]:
        selection, found_by = Selection(job, order_by=order_by), [self._watched[query] for query in queries]
        for watched in found_by:
            watched.selections.append(selection)
        return selection, found_by

    def _sighting(self, watched: _Watched, pod: Pod) -> Sighting:
        return sighting(pod, self._address, self._port, scope=watched.scope)

    def _forget_versions(self) -> None:
        """Let whatever is told next be newer than what is known: the server's versions went back."""
        for watched in self._watched.values():
            for key, held in watched.pods.items():
                watched.pods[key] = _Held(held.sighting, None, None)

    def _found(self, watched: _Watched, pod: Pod) -> bool:
        """Take in a pod that was added or modified; return whether that tells anything new."""
        number = version_number(pod.metadata.resource_version)
        if not is_newer(number, watched.number):
            watched.went_back |= is_older(number, watched.number)
            return False
        has_changed = self._take(watched, self._sighting(watched, pod), number)
        watched.advance(pod.metadata.resource_version)
        return has_changed

    def _lost(self, watched: _Watched, pod: Pod) -> bool:
        """Take in that a query finds a pod no longer; return whether that tells anything new."""
        key, number = pod.full_name, version_number(pod.metadata.resource_version)
        has_changed = False
        held = watched.pods.get(key)
        if held is not None and held.sighting.uid == pod.metadata.uid and not is_older(number, held.told):
            has_changed = watched.hide(key)
            if pod.metadata.deletion_timestamp is None:
                self._settle(key, is_settled=_is_settled(watched, pod, number))
        if pod.metadata.deletion_timestamp is not None:
            self._unsettled.discard(key)
            gone = self._sighting(watched, pod)
            for other in watched.neighbours:
                its = other.pods.get(key)
                if its is not None and its.sighting.uid == gone.uid and is_newer(number, its.number):
                    has_changed |= other.show(_Held(gone, number, its.told))
        watched.advance(pod.metadata.resource_version)
        return has_changed

    def _take(self, watched: _Watched, seen: Sighting, number: int | None) -> bool:
        """Take in what a query told of a pod that it finds; return whether that tells anything new."""
        key = seen.full_name
        held = watched.pods.get(key)
        others = [(other, other.pods[key]) for other in watched.neighbours if key in other.pods]
        newest = _Held(seen, number, number)
        for its in (held, *(its for _, its in others)):
            if its is not None and is_older(newest.number, its.number):
                newest = its
        if newest.sighting.uid != seen.uid:  # the name has been taken anew: this pod is gone
            return held is not None and held.sighting.uid == seen.uid and watched.hide(key)
        has_changed = watched.show(_Held(newest.sighting, newest.number, number))
        for other, its in others:
            if its.sighting.uid == seen.uid:
                has_changed |= other.show(_Held(newest.sighting, newest.number, its.told))
            else:
                has_changed |= other.hide(key)
        self._settle(key, is_settled=not any(is_older(its.told, number) for _, its in others))
        return has_changed

    def _settle(self, key: str, *, is_settled: bool) -> None:
        if is_settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)


def _is_settled(watched: _Watched, pod: Pod, number: int | None) -> bool:
    """Whether no other query has to be waited for, once `pod` has left this one without being deleted."""
    takers = [
        other for other in watched.neighbours if other.query.namespace in (None, pod.metadata.namespace)
    ]
    told = [other.pods[pod.full_name].told for other in takers if pod.full_name in other.pods]
    return not takers or any(not is_older(version, number) for version in told)


def _may_share(one: _Watched, other: _Watched) -> bool:
    """Whether a pod may be found by both of two queries."""
    mine, its = one.query.namespace, other.query.namespace
    return one is not other and (mine is None or its is None or mine == its)


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether these are the very same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _joined_addresses(numberings: Sequence[Numbering]) -> dict[int, str]:
    """Return the addresses of all by task index, each numbering beginning where the one before ends."""
    if len(numberings) == 1:
        return numberings[0].addresses
    starts = accumulate((numbering.end for numbering in numberings), initial=0)
    return {
        start + task: address
        for start, numbering in zip(starts, numberings, strict=False)
        for task, address in numbering.addresses.items()
    }
