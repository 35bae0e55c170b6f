"""Observations of a source that has no watch: it is asked again and again, on a clock of its own."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.retry import Backoff, RetryPolicy
from aioresolve.errors import ResolveError
from aioresolve.spec import Observation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["Pace", "polled"]

JITTER = 0.1
"""How much shorter or longer an interval may be, so that many pollers do not ask in step."""

LONGEST_BACKOFF = 300.0
"""Seconds between two questions to a source that fails, at most, unless the interval itself is longer."""


class Pace:
    """When to ask a source next, in seconds of the event loop's clock.

    A good answer is followed by the interval, with jitter, counted from when it was asked for: what an answer
    takes makes the period no longer. A failure is followed by a backoff, or by the wait that the server asks
    for, which are never shorter than that, counted from the failure.

    Args:
        interval: seconds between two questions.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._backoff = Backoff(
            RetryPolicy(first_wait=2.0 * interval, longest_wait=max(LONGEST_BACKOFF, interval))
        )

    def after(self, asked_at: float, error: ResolveError | None) -> float:
        """Return the moment to ask again after a question at `asked_at`, and `error` if it failed."""
        wait = self._interval * random.uniform(1.0 - JITTER, 1.0 + JITTER)  # noqa: S311
        if error is None:
            self._backoff.reset()
            return asked_at + wait
        return anyio.current_time() + max(wait, self._backoff.wait(error))


async def polled(
    fetch: Callable[[], Awaitable[Observation]], interval: float
) -> AsyncGenerator[Observation, None]:
    """Yield what `fetch` returns, every `interval` seconds, or at once to a consumer that takes longer.

    A failure that may pass is told in an observation of what was seen before it.

    Raises:
        ResolveError: a failure that does not pass.
    """
    pace = Pace(interval)
    seen = Observation(None)
    while True:
        asked_at = anyio.current_time()
        failure: ResolveError | None = None
        try:
            seen = await fetch()
        except ResolveError as error:
            if not error.retryable:
                raise
            failure = error
            seen = seen.stale(error, datetime.now(UTC))
        yield seen
        await anyio.sleep_until(pace.after(asked_at, failure))
