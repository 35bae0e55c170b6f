"""Numbers that callers give, checked: an error names the argument, what was given and what would do. Pure."""

from __future__ import annotations

import math
from typing import Any

from .errors import ConfigurationError

__all__ = ["checked_count", "checked_seconds"]


def checked_seconds(name: str, seconds: Any, *, may_be_zero: bool = False) -> float:
    """Return `seconds` where it is a span of time that ends: nothing in aioresolve waits for ever.

    Args:
        name: the argument that it was given as.
        seconds: what was given.
        may_be_zero: whether no time at all is one too.

    Raises:
        ConfigurationError: it is not a finite number above zero.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < math.inf or (seconds == 0 and not may_be_zero):
        bound = "" if may_be_zero else " above zero"
        raise ConfigurationError(f"{name}={seconds!r}: give a finite number of seconds{bound}, such as 30.0")
    return float(seconds)


def checked_count(name: str, count: Any) -> int:
    """Return `count` where it is a whole number, at least 1.

    Args:
        name: the argument that it was given as.
        count: what was given.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigurationError(f"{name}={count!r}: give a whole number, at least 1")
    return count
