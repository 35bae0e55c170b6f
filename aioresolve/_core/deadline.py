"""The total deadline of a public call, its progress, and the retries inside it.

Each request of a public call runs in `send_with_retries`, inside the deadline of that call. Watches and
polls, which have no end, take their waits from a `Backoff` of their own.
"""

from __future__ import annotations

import math
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import msgspec

from aioresolve.errors import DeadlineExceededError, Hint, ResolveError

from .telemetry import log_retry
from .validation import validate_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

MIN_TIMEOUT = 0.001
"""The shortest timeout of a step, in seconds."""

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed later."""

MAX_RETRY_AFTER = 300.0
"""The longest wait that a server can request, in seconds: a mistake in a header must not silence a client."""


class Deadline(msgspec.Struct, frozen=True):
    """A point in time, on a clock that all event loops of a process share.

    `timeout` is in seconds from when the deadline was set; `ends` is a time of `time.monotonic()`.
    """

    timeout: float
    ends: float

    @classmethod
    def after(cls, timeout: float) -> Self:
        """Return the deadline `timeout` seconds from now."""
        return cls(timeout, time.monotonic() + timeout)

    @property
    def left(self) -> float:
        """The remaining seconds, never negative."""
        return max(0.0, self.ends - time.monotonic())

    @property
    def next_timeout(self) -> float:
        """The timeout of the next step, in seconds: the remaining time, but at least `MIN_TIMEOUT`.

        If earlier steps used up the deadline, the next one still starts, and its error says what failed.
        """
        return max(self.left, MIN_TIMEOUT)


@dataclass(slots=True)
class Progress:
    """Which requests of one call are complete and which are not; reported by `DeadlineExceededError`.

    >>> progress = Progress()
    >>> progress.waiting("the inventory", "no response")
    >>> progress.missing
    {'the inventory': 'no response'}

    Attributes:
        reached: the requests that are complete: scope to a short description of the response.
        missing: the requests that are not: scope to the reason for waiting.
        last_error: the error of the last attempt that failed and is retried, if any.
        on_failure: called with each such error.
    """

    reached: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    last_error: ResolveError | None = None
    on_failure: Callable[[ResolveError], None] | None = None

    def waiting(self, scope: str, what: str) -> None:
        """Note that the request `scope` has started, and for what it waits."""
        self.missing[scope] = what

    def failed(self, scope: str, error: ResolveError) -> None:
        """Note that an attempt at `scope` failed with `error` and will be retried."""
        self.missing[scope] = f"last attempt: {error.summary}"
        self.last_error = error
        if self.on_failure is not None:
            self.on_failure(error)

    def ready(self, scope: str) -> None:
        """Note that `scope`, an intermediate step without a response, is complete."""
        self.missing.pop(scope, None)

    def done(self, scope: str, what: str) -> None:
        """Note that the request `scope` is complete, and describe its response."""
        self.missing.pop(scope, None)
        self.reached[scope] = what


async def within_deadline(timeout: float, scope: str, operation: Callable[[Progress], Awaitable[T]]) -> T:
    """Await `operation` and return its result if it takes at most `timeout` seconds.

    `operation` is called with a new `Progress`, and cancelled when the deadline passes.

    Raises:
        DeadlineExceededError: the deadline passed; lists which requests are complete and which are not.
    """
    progress = Progress()
    with anyio.move_on_after(validate_seconds("timeout", timeout)):
        return await operation(progress)
    lines = [f"no complete response within {timeout:g} s to {scope}"]
    lines += [f"still waiting for {request} ({what})" for request, what in progress.missing.items()]
    lines += [f"already complete: {request} ({what})" for request, what in progress.reached.items()]
    summary = "; ".join(lines)
    check = ", or check the server named above" if "://" in summary else ""
    raise DeadlineExceededError(
        summary,
        hint=Hint(f"Try again, raise {{timeout}}{check}." if check else "Try again, or raise {timeout}."),
        timeout=timeout,
        reached=progress.reached,
        missing=progress.missing,
    ) from progress.last_error


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

    `failures` counts those since the last `reset`.
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
        requested = requested_wait(error)
        # Spread the clients that were rejected together, but never retry earlier than requested.
        return max(backoff, requested * random.uniform(1.0, 1.1))  # noqa: S311

    def reset(self) -> None:
        """Start with short waits again, after a success."""
        self.failures = 0


def requested_wait(error: ResolveError) -> float:
    """Return the seconds that a server requested to wait after `error`, at most `MAX_RETRY_AFTER`."""
    return min(getattr(error, "retry_after", None) or 0.0, MAX_RETRY_AFTER)


def is_too_long(wait: float) -> bool:
    """Whether the deadline of the enclosing scope would end a wait of so many seconds."""
    # Minus infinity means that the scope is cancelled. The wait ends at once then, as a cancellation: an
    # error raised instead would replace it if the call is one of several in a task group.
    return -math.inf < anyio.current_effective_deadline() <= anyio.current_time() + wait


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
            if is_too_long(wait):
                raise
            progress.failed(scope, error)
            log_retry(error, attempt=backoff.failures, wait=wait)
        await anyio.sleep(wait)


def parse_retry_after(header: str | None) -> float | None:
    """Return the wait that a `Retry-After` header requests, in seconds; None without one, and for a date."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdigit() else None
