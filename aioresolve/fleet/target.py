"""A target of a fleet: its resolver, when it is ready, and what its requests have found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.spec import Observation

from .status import Health, TargetStatus, status_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.errors import ResolveError
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.wait import WaitCondition
    from aioresolve.spec.observation import Want

MAX_CAUSES = 8
"""Errors, each the cause of the previous one, that a status keeps."""

T = TypeVar("T")


class Target:
    """A name, a resolver, and the latest status, which is passed to `publish` until the target is removed.

    Attributes:
        failing_since: since when its state is stale, or its requests fail, in UTC; None if it responds.
        status: the latest status, if there is one.
        num_requests: the number of its requests so far; a watch counts as one.
        num_errors: how many of them have failed, by the class of the error.
    """

    def __init__(
        self,
        name: str,
        resolver: ClusterResolver,
        condition: WaitCondition,
        publish: Callable[[TargetStatus], None],
    ) -> None:
        self.name = name
        self.resolver = resolver
        self.failing_since: datetime | None = None
        self.is_removed = False
        self.status: TargetStatus | None = None
        self.num_requests = 0
        self.num_errors: Counter[str] = Counter()
        self._condition = condition
        self._publish = publish
        self._last_good = Observation(None)
        self._confirmed_at: datetime | None = None
        self._latency: float | None = None
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def want(self) -> Want:
        """What its observations have to say: the controllers of jobs, unless the expected number is known."""
        return self._condition.want

    def update(
        self, observation: Observation, latency: float | None, *, is_watched: bool = False
    ) -> TargetStatus:
        """Store and return the status after an observation.

        Args:
            observation: what the source says.
            latency: seconds until the response; None for a change that a watch reported.
            is_watched: whether a watch will report the next change, so that the observation remains current.
        """
        if observation.state is not None:
            self._last_good = observation
        if observation.error is not None:
            return self.fail(observation.error, latency, observation.stale_since)
        self._confirmed_at = None if is_watched else datetime.now(UTC)
        self.failing_since = None
        return self._store(None, latency)

    def fail(self, error: ResolveError, latency: float | None, since: datetime | None = None) -> TargetStatus:
        """Store and return the status after a failure; until `since`, a watch reported all changes."""
        self.failing_since = self.failing_since or since or self._confirmed_at or datetime.now(UTC)
        self.num_errors[type(error).__name__] += 1
        return self._store(strip_error(error), latency)

    async def run_unless_removed(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of `work`; None if the target is removed during it, which cancels it."""
        if self.is_removed:  # before its task started
            return None
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await work()
            finally:
                self._scopes.discard(scope)
        return None

    def remove(self) -> None:
        """Cancel its requests; no further status of it is published."""
        self.is_removed = True
        for scope in tuple(self._scopes):
            scope.cancel()

    def _store(self, error: ResolveError | None, latency: float | None) -> TargetStatus:
        self._latency = self._latency if latency is None else latency
        self.status = status_of(
            self.name,
            replace(self._last_good, error=error, stale_since=self.failing_since),
            self._condition,
            since=self._since,
            latency=self._latency,
            confirmed_at=self._confirmed_at,
        )
        if not self.is_removed:
            self._publish(self.status)
        return self.status

    def _since(self, health: Health) -> datetime:
        """Return since when the target has this health."""
        if self.status is not None and self.status.health is health:
            return self.status.since
        return datetime.now(UTC)


def strip_error(error: ResolveError) -> ResolveError:
    """Remove the tracebacks of `error` and its causes, and the causes beyond `MAX_CAUSES`; return `error`.

    Tracebacks keep the variables of their frames alive, such as the bodies of responses; and an error that a
    resolver raises repeatedly gets a longer traceback each time.
    """
    link: BaseException | None = error
    for depth in range(MAX_CAUSES):
        if link is None:
            break
        link.__traceback__ = None
        link.__context__ = None
        if depth == MAX_CAUSES - 1:
            link.__cause__ = None
        link = link.__cause__
    return error
