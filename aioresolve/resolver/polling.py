"""Observations of a source that does not report its changes: it is polled."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.deadline import Backoff, RetryPolicy
from aioresolve.errors import ResolveError
from aioresolve.spec import Observation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

JITTER = 0.1
"""Each interval is up to this fraction shorter or longer, so that many pollers do not remain synchronized."""

MAX_BACKOFF = 300.0
"""The longest wait between two polls of a failing source, in seconds, unless the interval is longer."""


class PollSchedule:
    """Computes when to poll a source next, in seconds of the event loop's clock.

    After a success: the interval with jitter, counted from the start of the poll, so that slow responses do
    not lengthen the period. After a failure: a backoff, or the wait that the server requests, but at least
    the interval, counted from the failure.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._backoff = Backoff(
            RetryPolicy(first_wait=2.0 * interval, longest_wait=max(MAX_BACKOFF, interval))
        )

    def next_poll(self, started_at: float, error: ResolveError | None) -> float:
        """Return when to poll after a poll that started at `started_at`, and failed with `error` if given."""
        wait = self._interval * random.uniform(1.0 - JITTER, 1.0 + JITTER)  # noqa: S311
        if error is None:
            self._backoff.reset()
            return started_at + wait
        return anyio.current_time() + max(wait, self._backoff.wait(error))


async def poll(
    fetch: Callable[[], Awaitable[Observation]], interval: float
) -> AsyncGenerator[Observation, None]:
    """Yield what `fetch` returns, every `interval` seconds, or at once if the consumer took longer than that.

    After a retryable failure, the previous observation is yielded again, with the error; other failures are
    raised.
    """
    schedule = PollSchedule(interval)
    latest = Observation(None)
    while True:
        started_at = anyio.current_time()
        failure: ResolveError | None = None
        try:
            latest = replace(await fetch(), polled_at=started_at)
        except ResolveError as error:
            if not error.retryable:
                raise
            failure = error
            latest = latest.stale(error, datetime.now(UTC))
        yield latest
        await anyio.sleep_until(schedule.next_poll(started_at, failure))
