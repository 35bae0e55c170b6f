"""`Reading`: what is known of one target of a fleet at one moment.

One target of a fleet: its resolver, and what is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.spec import Observation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.errors import ResolveError
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState, Missing

__all__ = ["Reading", "Target", "lean"]

CAUSES = 8
"""How many errors, each the cause of the one before, a reading keeps."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one target.

    Attributes:
        name: the target.
        state: its members, the newest that are known, also while there is an `error`; None where none ever
            were.
        error: why the target could not be asked just now. It has no traceback.
        latency: seconds that the answer took, or the failure; None for a change that a watch told.
        stale_since: the moment in UTC since which `state` may no longer be right, while there is an `error`:
            the last good answer, or the end of a watch. None where there is no `state`.
        absent: who was found and is no member, and why: pods that are pending, TPUs in creation. It is as of
            `state`.
        unready: the members that are not ready, and why, as of `state`.
    """

    name: str
    state: ClusterState | None
    error: ResolveError | None = None
    latency: float | None = None
    stale_since: datetime | None = None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()

    @property
    def is_stale(self) -> bool:
        """Whether there is a `state` and it may no longer be right."""
        return self.state is not None and self.error is not None

    @property
    def num_tasks(self) -> int:
        """How many tasks `state` has in all jobs; 0 where there is none."""
        return 0 if self.state is None else sum(map(len, self.state.endpoints.values()))

    @property
    def tasks_by_job(self) -> dict[str, int]:
        """How many tasks each job of `state` has."""
        return {} if self.state is None else {job: len(tasks) for job, tasks in self.state.endpoints.items()}

    def differs_from(self, older: Reading | None) -> bool:
        """Whether the members are others than in `older`, or the error says something else."""
        return older is None or self.state != older.state or _words(self.error) != _words(older.error)


def _words(error: ResolveError | None) -> tuple[type, str] | None:
    return None if error is None else (type(error), str(error))


def lean(error: ResolveError) -> ResolveError:
    """Return `error` without the frames that it and its causes came through, and without its remotest causes.

    Frames keep what was in them alive, such as the bodies of answers; and an error that is raised again and
    again, as a resolver may do, has more of them each time.
    """
    link: BaseException | None = error
    for place in range(CAUSES):
        if link is None:
            break
        link.__traceback__ = None
        link.__context__ = None
        if place == CAUSES - 1:
            link.__cause__ = None
        link = link.__cause__
    return error


T = TypeVar("T")


class Target:
    """A name, its resolver, and the newest reading.

    Args:
        name: what the fleet calls it.
        resolver: its resolver.
        readings: where its newest reading is kept, until it is removed.

    Attributes:
        name: what the fleet calls it.
        resolver: its resolver.
        failing_since: the moment in UTC since which it cannot be asked, or its state is stale; None while it
            answers.
        is_removed: whether it is no target of the fleet any more.
    """

    def __init__(self, name: str, resolver: ClusterResolver, readings: dict[str, Reading]) -> None:
        self.name = name
        self.resolver = resolver
        self.failing_since: datetime | None = None
        self._readings = readings
        self._known = Observation(None)
        self._confirmed_at: datetime | None = None
        self.is_removed = False
        self._scopes: set[anyio.CancelScope] = set()

    def told(self, observation: Observation, latency: float | None) -> Reading:
        """Return, and keep, the reading of what its source shows.

        Args:
            observation: what it shows.
            latency: seconds that the answer took, where it is one.
        """
        if observation.state is not None:
            self._known = observation
        if observation.error is not None:
            return self.failed(observation.error, latency, observation.stale_since)
        self._confirmed_at = datetime.now(UTC)
        self.failing_since = None
        return self._read(None, latency)

    def failed(self, error: ResolveError, latency: float | None, since: datetime | None = None) -> Reading:
        """Return, and keep, the reading of a source that could not be asked.

        Args:
            error: why it could not.
            latency: seconds that it took to fail, where that is known.
            since: the moment in UTC until which its watch told all changes, if it was watched.
        """
        self.failing_since = self.failing_since or since or self._confirmed_at or datetime.now(UTC)
        return self._read(lean(error), latency)

    async def unless_removed(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what `work` returns; None where the target is removed meanwhile, which cancels it."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await work()
            finally:
                self._scopes.discard(scope)
        return None

    def remove(self) -> None:
        """End every question to it, and forget what is known."""
        self.is_removed = True
        self._readings.pop(self.name, None)
        for scope in tuple(self._scopes):
            scope.cancel()

    def _read(self, error: ResolveError | None, latency: float | None) -> Reading:
        known = self._known
        stale_since = None if known.state is None else self.failing_since
        reading = Reading(self.name, known.state, error, latency, stale_since, known.absent, known.unready)
        if not self.is_removed:
            self._readings[self.name] = reading
        return reading
