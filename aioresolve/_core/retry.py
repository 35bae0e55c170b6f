"""Retries, backoff and `Retry-After`.

Each request of a public call runs in `send_with_retries`, inside the deadline of that call. Watches and
polls, which have no end, take their waits from a `Backoff` of their own.
"""

from __future__ import annotations

import email.utils
import math
import random
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec

from aioresolve.errors import ResolveError

from .telemetry import record_retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from .deadline import Progress

T = TypeVar("T")

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed later."""


MAX_RETRY_AFTER = 300.0
"""The longest wait that a server can request, in seconds: a mistake in a header must not silence a client."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """The waits between the attempts of a request. The number of attempts is not limited.

    Attributes:
        first_wait: upper bound of the wait before the second attempt, in seconds; doubles with each attempt.
        longest_wait: upper bound of any wait, in seconds, except those that a server requests.
    """

    first_wait: float = 0.1
    longest_wait: float = 5.0


class Backoff(msgspec.Struct):
    """The waits after consecutive failures: exponential with jitter, and at least what the server requests.

    The number of failures is not limited; `failures` counts those since the last `reset`.
    """

    policy: RetryPolicy
    failures: int = 0

    def wait(self, error: ResolveError) -> float:
        """Return the seconds to wait after another failure, `error`.

        A server can request a longer wait than the backoff, up to `MAX_RETRY_AFTER`, but not a shorter one.
        """
        # Limited, because a float overflows after 1023 doublings, and watches retry without end.
        longest = min(self.policy.first_wait * 2.0 ** min(self.failures, 60), self.policy.longest_wait)
        self.failures += 1
        # At least half, because a series of waits near zero would be a burst of requests.
        backoff = random.uniform(longest / 2.0, longest)  # noqa: S311
        requested = min(getattr(error, "retry_after", None) or 0.0, MAX_RETRY_AFTER)
        # Spread the clients that were rejected together, but never retry earlier than requested.
        return max(backoff, requested * random.uniform(1.0, 1.1))  # noqa: S311

    def reset(self) -> None:
        """Start with short waits again, after a success."""
        self.failures = 0


async def send_with_retries(
    send: Callable[[Iterator[int]], Awaitable[T]],
    *,
    scope: str,
    host: str,
    progress: Progress,
    policy: RetryPolicy,
    limiter: anyio.CapacityLimiter | None = None,
) -> T:
    """Return the result of `send`, repeating it as long as its error is retryable.

    The waits are those of a `Backoff`. Only the deadline of the enclosing scope ends the attempts. A wait
    that would end after it is not started: the error is raised at once, and the caller need not wait for a
    deadline that cannot be met.

    `send` makes one attempt, and is called with the numbers of attempts, from 1. `progress` is updated with
    each attempt; the caller marks the request as done. `limiter` limits how many requests are made at a time,
    but not how many wait for their next attempt.
    """
    progress.waiting(scope, f"{host} has not responded")
    backoff, attempts = Backoff(policy), count(1)
    while True:
        try:
            async with limiter or nullcontext():
                return await send(attempts)
        except ResolveError as error:
            if not error.retryable:
                raise
            wait = backoff.wait(error)
            # Minus infinity means that the scope is cancelled. The wait ends at once then, as a cancellation:
            # an error raised now would replace it if the call is one of several in a task group.
            if -math.inf < anyio.current_effective_deadline() <= anyio.current_time() + wait:
                raise
            progress.failed(scope, error)
            record_retry(error, attempt=backoff.failures, wait=wait)
        await anyio.sleep(wait)


def parse_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the wait that a `Retry-After` header requests, in seconds, at least 0; None without a valid one.

    Both forms of RFC 9110 section 10.2.3 are supported: seconds, and an HTTP date (relative to `now`).
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
