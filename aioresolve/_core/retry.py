"""Retries, backoff and `Retry-After`.

Each request of a public call runs in `call_with_retries`, inside the deadline of that call. Watches and
polls, which have no end, take their waits from a `Backoff` of their own.
"""

from __future__ import annotations

import email.utils
import math
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec
import tenacity

from aioresolve.errors import ResolveError

from .telemetry import record_retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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


async def call_with_retries(
    operation: Callable[[], Awaitable[T]],
    *,
    policy: RetryPolicy,
    on_failure: Callable[[ResolveError, float], None],
) -> T:
    """Return the result of `operation`, repeating it as long as its error is retryable.

    The waits are those of a `Backoff`. Only the deadline of the enclosing scope ends the attempts. A wait
    that would end after it is not started: the error is raised at once, and the caller need not wait for a
    deadline that cannot be met.

    `on_failure` is called with the error of each attempt that will be repeated, and the wait in seconds.
    """
    backoff = Backoff(policy)

    def before_wait(state: tenacity.RetryCallState) -> None:
        error = _error(state)
        on_failure(error, state.upcoming_sleep)
        record_retry(error, attempt=state.attempt_number, wait=state.upcoming_sleep)

    return await tenacity.AsyncRetrying(
        sleep=anyio.sleep,
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ResolveError) and error.retryable),
        wait=lambda state: backoff.wait(_error(state)),
        stop=_StopIfWaitExceedsDeadline(),
        before_sleep=before_wait,
        reraise=True,
    )(operation)


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


def _error(state: tenacity.RetryCallState) -> ResolveError:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, ResolveError)
    return error


class _StopIfWaitExceedsDeadline(tenacity.stop.stop_base):
    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        deadline = anyio.current_effective_deadline()
        # Minus infinity means that the scope is cancelled. The wait ends at once then, as a cancellation: an
        # error raised now would replace it if the call is one of several in a task group.
        return -math.inf < deadline <= anyio.current_time() + retry_state.upcoming_sleep
