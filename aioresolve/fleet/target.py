"""One target of a fleet: its resolver, and what is known of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.spec import Observation

from .reading import Reading, lean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.errors import ResolveError
    from aioresolve.resolver import ClusterResolver

__all__ = ["Target"]

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
