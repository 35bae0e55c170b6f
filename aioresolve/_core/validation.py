"""Numbers that callers give, checked: an error names the argument, what was given and what would do. Pure.

Spans of time as people type them: `30s`, `1m30s`, `500ms`, or a plain number of seconds. Pure.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from aioresolve.errors import ConfigurationError

__all__ = ["checked_count", "checked_seconds", "seconds"]


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


_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_NUMBER = "[0-9]{1,12}(?:[.][0-9]{1,12})?"
_PLAIN = re.compile(_NUMBER)
_TERM = re.compile(f"({_NUMBER})(ms|s|m|h)")
_TERMS = re.compile(f"(?:{_TERM.pattern})+")


def seconds(text: str) -> float:
    """Return the seconds that `text` says.

    The grammar is that of Go's `time.ParseDuration`, which kubectl's options take, above zero and down to
    milliseconds: numbers, each with its unit (`h`, `m`, `s`, `ms`), added up. A number alone is seconds.

    Raises:
        ValueError: it is none of this, or no time at all; the message says what would be.
    """
    if _PLAIN.fullmatch(text):
        span = Decimal(text)
    elif _TERMS.fullmatch(text):
        span = sum((Decimal(number) * _UNITS[unit] for number, unit in _TERM.findall(text)), Decimal(0))
    else:
        raise ValueError(f"{text!r} is no span of time; give one such as 30s, 2m, 1m30s, 500ms or 30")
    if not span:
        raise ValueError(f"{text!r} is no time at all; give a span above zero, such as 30s")
    return float(span)
