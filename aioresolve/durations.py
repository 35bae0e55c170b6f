"""Spans of time as people type them: `30s`, `1m30s`, `500ms`, or a plain number of seconds. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["seconds"]

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
