"""A target of a fleet: its resolver, and its status (`TargetStatus`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.spec import Observation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.errors import ResolveError
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState, Missing

MAX_CAUSES = 8
"""Errors, each the cause of the previous one, that a status keeps."""

T = TypeVar("T")


class Health(StrEnum):
    """How well a target is, the worst first."""

    ERROR = "error"  # the source does not respond, and never did
    STALE = "stale"  # the source does not respond, but did before
    EMPTY = "empty"  # the source responds, but nothing was found
    DEGRADED = "degraded"  # tasks are missing or not ready
    READY = "ready"


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The latest known state of one target, and whether it is current.

    Attributes:
        name: the name of the target.
        state: its latest known members, kept while there is an `error`; None before the first success.
        error: why the last request failed; None if it succeeded. It has no traceback.
        latency: seconds until the response or the failure; None for a change that a watch reported.
        stale_since: since when `state` may be outdated, in UTC, while there is an `error`: the time of the
            last success, or of the end of the watch. None if there is no `state`.
        absent: pods or TPUs that exist but are not members, such as pending pods, and why; as of `state`.
        unready: members that are not ready, and why; as of `state`.
    """

    name: str
    state: ClusterState | None
    error: ResolveError | None = None
    latency: float | None = None
    stale_since: datetime | None = None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()

    @property
    def health(self) -> Health:
        """How well the target is, as far as its source knows which tasks are missing."""
        if self.error is not None:
            return Health.ERROR if self.state is None else Health.STALE
        if self.absent or self.unready:
            return Health.DEGRADED
        return Health.READY if self.num_tasks else Health.EMPTY

    @property
    def reason(self) -> str:
        """Why the target is not ready, as text: the error, or the first task that is missing or not ready."""
        if self.error is not None:
            return self.error.summary
        if not (self.absent or self.unready):
            return "" if self.num_tasks else "nothing was found"
        first, *others = (*self.absent, *self.unready)
        more = f", and {len(others)} more" if others else ""
        return f"{first.name}: {first.reason}{more}"

    @property
    def is_stale(self) -> bool:
        """Whether there is a `state` that may be outdated."""
        return self.state is not None and self.error is not None

    @property
    def num_tasks(self) -> int:
        """The number of tasks of all jobs in `state`; 0 without one."""
        return 0 if self.state is None else sum(map(len, self.state.endpoints.values()))

    @property
    def tasks_by_job(self) -> dict[str, int]:
        """The number of tasks of each job in `state`."""
        return {} if self.state is None else {job: len(tasks) for job, tasks in self.state.endpoints.items()}

    def differs_from(self, older: TargetStatus | None) -> bool:
        """Whether the members, or the type or text of the error, differ from those in `older`."""
        return (
            older is None
            or self.state != older.state
            or _error_identity(self.error) != _error_identity(older.error)
        )


def _error_identity(error: ResolveError | None) -> tuple[type, str] | None:
    return None if error is None else (type(error), str(error))


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


class Target:
    """A name, a resolver, and the latest status, which is in `statuses` until the target is removed."""

    def __init__(self, name: str, resolver: ClusterResolver, statuses: dict[str, TargetStatus]) -> None:
        self.name = name
        self.resolver = resolver
        self.failing_since: datetime | None = None  # or since when its state is stale, in UTC
        self.is_removed = False
        self._statuses = statuses
        self._last_good = Observation(None)
        self._confirmed_at: datetime | None = None
        self._scopes: set[anyio.CancelScope] = set()

    def update(self, observation: Observation, latency: float | None) -> TargetStatus:
        """Store and return the status after an observation; `latency` is None for one of a watch."""
        if observation.state is not None:
            self._last_good = observation
        if observation.error is not None:
            return self.fail(observation.error, latency, observation.stale_since)
        self._confirmed_at = datetime.now(UTC)
        self.failing_since = None
        return self._store(None, latency)

    def fail(self, error: ResolveError, latency: float | None, since: datetime | None = None) -> TargetStatus:
        """Store and return the status after a failure; until `since`, a watch reported all changes."""
        self.failing_since = self.failing_since or since or self._confirmed_at or datetime.now(UTC)
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
        """Cancel its requests and delete its status."""
        self.is_removed = True
        self._statuses.pop(self.name, None)
        for scope in tuple(self._scopes):
            scope.cancel()

    def _store(self, error: ResolveError | None, latency: float | None) -> TargetStatus:
        last = self._last_good
        stale_since = None if last.state is None else self.failing_since
        status = TargetStatus(self.name, last.state, error, latency, stale_since, last.absent, last.unready)
        if not self.is_removed:
            self._statuses[self.name] = status
        return status
