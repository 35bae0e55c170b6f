"""A moment by which something has to be answered, on the clock that all event loops of a process share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment `timeout` seconds after it was set.

    Attributes:
        timeout: seconds from when it was set.
        ends: the moment, in seconds of `time.monotonic()`.
    """

    timeout: float
    ends: float

    @classmethod
    def after(cls, timeout: float) -> Self:
        """Return the deadline so many seconds from now."""
        return cls(timeout, time.monotonic() + timeout)

    @property
    def left(self) -> float:
        """Seconds until then, never negative."""
        return max(0.0, self.ends - time.monotonic())
