"""`Feed`: how it stands with one query's list and watch, and what follows when one of them fails."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aioresolve.errors import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.retry import Backoff

from .failures import expired

if TYPE_CHECKING:
    from aioresolve.retry import RetryPolicy
    from aioresolve.telemetry import Outage

    from .query import PodQuery

__all__ = ["SHORT", "Feed", "reason"]

SHORT = 0.5
"""Seconds that a watch goes on at least, unless something is wrong with it, whatever it tells."""

HEALTHY = 5.0
"""Seconds after which a watch that tells nothing is deemed well: what fails then begins with short waits."""

REFUSALS = 5
"""How often in a row a query that was answered before may be refused: a starting server knows nobody yet."""

FAILED_RESUMES = 3
"""How often a server may fail, or fall silent, before the version is given up for a new list.

That is, without telling anything in between: a server that was restored from a backup tells nothing until it
has come to the version that it is asked for.
"""

BUSY = frozenset({401, 403, 408, 429, 502, 503})
"""Statuses that say nothing about the version that a watch was to be resumed from."""


class Feed:
    """One query's list and watch.

    Args:
        query: what is asked.
        waits: between attempts after failures.
        outage: is told when the query cannot be answered, and when it can again.

    Attributes:
        query: what is asked.
        is_listed: whether there is a version to watch from.
        began_at: when the watch that is under way began to be answered, in seconds of the loop's clock; None
            while none is.
        has_told: whether that one has told anything.
        failures: how often in a row it failed.
        error: why the query cannot be answered at present.
        stale_since: since when that is so.
    """

    def __init__(self, query: PodQuery, waits: RetryPolicy, outage: Outage) -> None:
        self.query = query
        self.is_listed = False
        self.began_at: float | None = None
        self.has_told = False
        self.error: ResolveError | None = None
        self.stale_since: datetime | None = None
        self._was_listed = self._was_just_listed = False
        self._refusals = 0
        self._fruitless = 0
        self._backoff = Backoff(waits)
        self._outage = outage

    @property
    def failures(self) -> int:
        """How often in a row it failed."""
        return self._backoff.failures

    def listed(self) -> None:
        """Note that there is a version to watch from."""
        self.is_listed = self._was_listed = self._was_just_listed = True
        self._fruitless = 0
        self._answered()

    def begins(self, now: float) -> bool:
        """Note that a watch is being answered; return whether the query could not be before."""
        was_stale = self.stale_since is not None
        self.began_at, self.has_told, self._refusals = now, False, 0
        self._answered()
        return was_stale

    def tells(self) -> None:
        """Note that the watch tells something."""
        self.has_told = True
        self._fruitless = 0

    def ends(self, now: float) -> float | None:
        """Note that the watch is over; return the seconds that it lived, or None if there was none."""
        if self.began_at is None:
            return None
        lived, self.began_at = now - self.began_at, None
        if lived > (SHORT if self.has_told else HEALTHY):
            self._backoff.reset()
            self._was_just_listed = False
        return lived

    def is_stale(self, error: ResolveError) -> None:
        """Note that the query cannot be answered at present."""
        self.error = error.with_traceback(None)
        self.stale_since = self.stale_since or datetime.now(UTC)
        self._outage.note(error)

    def wait_after(self, error: ResolveError) -> float:
        """Return the seconds to wait after a failure, and decide whether a list follows or a watch.

        Raises:
            ResolveError: `error`, if it does not pass.
        """
        # Who knows the name that was found before may be away for a while, as with a VPN that is down.
        is_nameless = self._was_listed and isinstance(error.__cause__, socket.gaierror)
        may_pass = error.retryable or expired(error) or is_nameless
        self._refusals = 0 if may_pass else self._refusals + 1
        if self._refusals and (not self._was_listed or self._refusals > REFUSALS):
            raise error
        wait = self._backoff.wait(error)
        if not self.is_listed or self.failures > 1:
            self.is_stale(error)
        self._fruitless += _may_be_the_versions_fault(error)
        # Lost is what was told in between, or the version itself.
        is_lost = isinstance(error, ProtocolError) or expired(error)
        if self.is_listed and (is_lost or self._fruitless >= FAILED_RESUMES):
            self.is_listed = False
            # An expired version is nobody's fault: the list in its place is wanted at once.
            return 0.0 if expired(error) and not self._was_just_listed else wait
        return wait

    def _answered(self) -> None:
        self.error = self.stale_since = None
        self._outage.note(None)


def _may_be_the_versions_fault(error: ResolveError) -> bool:
    """Whether it may be because of the version to resume from that a server fails, or tells nothing."""
    if isinstance(error, APIError):
        return error.status not in BUSY
    return isinstance(error, DeadlineExceededError)


def reason(error: ResolveError) -> str:
    """Return in one word why a watch was over that `error` ended."""
    match error:
        case _ if expired(error):
            return "expired"
        case UnauthorizedError():
            return "unauthorized"
        case DeadlineExceededError():
            return "silent"
        case ConnectionFailedError():
            return "broken"
    return "failed"
