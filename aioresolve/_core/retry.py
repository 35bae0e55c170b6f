"""Deadlines, backoff and Retry-After: the one place that waits for a server to get better.

A public call runs inside `within_deadline`, which bounds it in total; inside it each request runs through
`retrying`, which makes it again while that can help and the deadline leaves room for it. What goes on for as
long as its consumer wants it, a watch or a poll, takes its waits from a `Backoff`.
"""

from __future__ import annotations

import email.utils
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio
import tenacity

from aioresolve.errors import DeadlineExceededError, ResolveError

from .telemetry import retried
from .validation import checked_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = [
    "PASSING",
    "Backoff",
    "Progress",
    "RetryPolicy",
    "retry_after",
    "retrying",
    "within_deadline",
]

T = TypeVar("T")

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that pass: the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how far apart, a request is made again.

    Attributes:
        attempts: how many times a request is made at most, the first included.
        first_wait: upper bound of the wait before the second attempt, in seconds; it doubles from there.
        longest_wait: upper bound of any wait, in seconds, unless the server names its own in `Retry-After`.
    """

    attempts: int = 10
    first_wait: float = 0.1
    longest_wait: float = 5.0


@dataclass(slots=True)
class Backoff:
    """The waits after failures that follow one another: exponential with full jitter, or as the server says.

    Attributes:
        policy: how long the waits are; there is no bound to their number.
        failures: how many there were since the last `reset`.
    """

    policy: RetryPolicy
    failures: int = 0

    def wait(self, error: ResolveError) -> float:
        """Return the seconds to wait after one more failure, `error`."""
        longest = self.policy.first_wait * 2.0 ** min(self.failures, 60)
        self.failures += 1
        asked = getattr(error, "retry_after", None)
        if asked is not None:
            # Spread the clients that were turned away together, but never come back early.
            return float(asked) * random.uniform(1.0, 1.1)  # noqa: S311
        return random.uniform(0.0, min(longest, self.policy.longest_wait))  # noqa: S311

    def reset(self) -> None:
        """Begin with short waits again: the source is well."""
        self.failures = 0


@dataclass(slots=True)
class Progress:
    """What one call has reached and what it still waits for: the body of its `DeadlineExceededError`.

    Attributes:
        reached: what has answered: scope to a few words on the answer.
        missing: what has not: scope to what is being waited for.
        last_error: how the last attempt failed that failed, if any did.
        on_failure: told of each such failure.
    """

    reached: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    last_error: ResolveError | None = None
    on_failure: Callable[[ResolveError], None] | None = None

    def waiting(self, scope: str, what: str) -> None:
        """Note that `scope` is being asked, and in which state that is."""
        self.missing[scope] = what

    def failed(self, scope: str, error: ResolveError) -> None:
        """Note that the last attempt at `scope` failed with `error` and will be made again."""
        self.missing[scope] = f"last attempt: {error.summary}"
        self.last_error = error
        if self.on_failure is not None:
            self.on_failure(error)

    def ready(self, scope: str) -> None:
        """Note that `scope` is waited for no more; it was a step on the way, and is no answer."""
        self.missing.pop(scope, None)

    def done(self, scope: str, what: str) -> None:
        """Note that `scope` has answered."""
        self.missing.pop(scope, None)
        self.reached[scope] = what


async def within_deadline(timeout: float, asked: str, operation: Callable[[Progress], Awaitable[T]]) -> T:
    """Return what `operation` returns, if that is within `timeout` seconds.

    Args:
        timeout: seconds from now; a positive finite number.
        asked: what was asked for, in words, for the error message.
        operation: called with a fresh `Progress`, and cancelled when the deadline passes.

    Raises:
        DeadlineExceededError: the deadline passed; it says what was reached and what was not.
    """
    progress = Progress()
    with anyio.move_on_after(checked_seconds("timeout", timeout)):
        return await operation(progress)
    lines = [f"no complete answer to {asked} within {timeout:g} s"]
    lines += [f"still waiting for {scope} ({what})" for scope, what in progress.missing.items()]
    lines += [f"already answered: {scope} ({what})" for scope, what in progress.reached.items()]
    raise DeadlineExceededError(
        "; ".join(lines),
        hint="Try again, raise {timeout}, or check the server named above.",
        timeout=timeout,
        reached=progress.reached,
        missing=progress.missing,
    ) from progress.last_error


async def retrying(
    operation: Callable[[], Awaitable[T]],
    *,
    policy: RetryPolicy,
    on_failure: Callable[[ResolveError, float], None],
) -> T:
    """Return what `operation` returns, making it again while its error is `retryable`.

    The waits are those of a `Backoff`.
    A wait that would outlast the deadline around this call is not begun: the error is raised at once.

    Args:
        operation: makes one attempt.
        policy: how often and how far apart.
        on_failure: told of each failed attempt that will be made again, and of the wait before it in seconds.

    Raises:
        ResolveError: that of the last attempt.
    """

    backoff = Backoff(policy)

    def note(state: tenacity.RetryCallState) -> None:
        error = _failure(state)
        on_failure(error, state.upcoming_sleep)
        retried(error, attempt=state.attempt_number, wait=state.upcoming_sleep)

    return await tenacity.AsyncRetrying(
        sleep=anyio.sleep,
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ResolveError) and error.retryable),
        wait=lambda state: backoff.wait(_failure(state)),
        stop=tenacity.stop_after_attempt(policy.attempts) | _OutlastsTheDeadline(),
        before_sleep=note,
        reraise=True,
    )(operation)


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a `Retry-After` header asks to wait, never negative; None if it says nothing.

    Both forms of RFC 9110 section 10.2.3 are read: seconds, and an HTTP date (counted from `now`).
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


def _failure(state: tenacity.RetryCallState) -> ResolveError:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, ResolveError)
    return error


class _OutlastsTheDeadline(tenacity.stop.stop_base):
    """Stop where the wait would end after the deadline around the call."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        return anyio.current_time() + retry_state.upcoming_sleep >= anyio.current_effective_deadline()
