"""The total deadline of a public call, and the progress that its error reports."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import msgspec

from aioresolve.errors import DeadlineExceededError, Hint, ResolveError

from .validation import validate_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

MIN_TIMEOUT = 0.001
"""The shortest timeout of a step, in seconds."""


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
    lines = [f"no complete response to {scope} within {timeout:g} s"]
    lines += [f"still waiting for {request} ({what})" for request, what in progress.missing.items()]
    lines += [f"already complete: {request} ({what})" for request, what in progress.reached.items()]
    summary = "; ".join(lines)
    is_server_named = "://" in summary
    raise DeadlineExceededError(
        summary,
        hint=Hint(
            "Try again, raise {timeout}, or check the server named above."
            if is_server_named
            else "Try again, or raise {timeout}."
        ),
        timeout=timeout,
        reached=progress.reached,
        missing=progress.missing,
    ) from progress.last_error
