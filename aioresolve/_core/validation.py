"""Validation of what callers pass, and durations as people write them (`30s`, `1m30s`, `500ms`)."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

ChoiceT = TypeVar("ChoiceT", bound=str)


def validate_seconds(name: str, seconds: Any, *, may_be_zero: bool = False) -> float:
    """Return `seconds` as a float if it is a finite duration: nothing in aioresolve waits forever.

    Raises a ConfigurationError for the argument `name` otherwise.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < math.inf or (seconds == 0 and not may_be_zero):
        bound = "not below zero" if may_be_zero else "above zero"
        raise ConfigurationError(
            f"{seconds!r} is not a finite number of seconds {bound}",
            argument=name,
            hint="Pass a number such as 30.0.",
        )
    return float(seconds)


def validate_count(name: str, count: Any) -> int:
    """Return `count` if it is an integer of at least 1; a ConfigurationError for `name` otherwise."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigurationError(f"{count!r} is not an integer of at least 1", argument=name)
    return count


def validate_text(name: str, text: Any) -> str | None:
    """Return `text`, or None if it is None or empty: TensorFlow documents both as "not given"."""
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f"{text!r} is not text", argument=name)
    return text


def validate_choice(name: str, value: ChoiceT, choices: tuple[str, ...]) -> ChoiceT:
    """Return `value` if it is one of `choices`; a ConfigurationError for the argument `name` otherwise."""
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ConfigurationError(f"{value!r} is not one of {listed}", argument=name)
    return value


def validate_port(name: str, port: Any) -> int:
    """Return `port` if it is a TCP port; a ConfigurationError for the argument `name` otherwise."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigurationError(f"{port!r} is not a port from 1 to 65535", argument=name)
    return port


_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_NUMBER = "[0-9]{1,12}(?:[.][0-9]{1,12})?"
_PLAIN = re.compile(_NUMBER)
_TERM = re.compile(f"({_NUMBER})(ms|s|m|h)")
_TERMS = re.compile(f"(?:{_TERM.pattern})+")


def parse_duration(text: str) -> float:
    """Return a duration in seconds.

    The grammar is that of Go's `time.ParseDuration`, which kubectl's options use, for positive durations and
    down to milliseconds: numbers, each with its unit (`h`, `m`, `s`, `ms`), added up. A plain number is in
    seconds.

    Raises:
        ValueError: the text is not a duration, or the duration is zero.
    """
    if _PLAIN.fullmatch(text):
        duration = Decimal(text)
    elif _TERMS.fullmatch(text):
        duration = sum((Decimal(number) * _UNITS[unit] for number, unit in _TERM.findall(text)), Decimal(0))
    else:
        raise ValueError(f"{text!r} is not a duration; write one such as 30s, 2m, 1m30s, 500ms or 30")
    if not duration:
        raise ValueError(f"{text!r} is zero; write a duration above zero, such as 30s")
    return float(duration)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return which of `known` was probably meant by `name`, or a list of them, for a message."""
    import difflib  # only for an error

    if not known:
        return "none exists"
    for match in difflib.get_close_matches(name[:100], list(known)[:200]):
        return f"did you mean {match!r}?"
    listed = ", ".join(map(repr, list(known)[:15]))
    return f"there are {listed}{', ...' * (len(known) > 15)}"
