"""Validation of durations and counts, and the grammar of durations."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.validation import parse_duration, validate_count, validate_seconds
from aioresolve.errors import ConfigurationError

INVALID_SECONDS = [-1, float("inf"), float("nan"), "30", None, True, [1]]


@pytest.mark.parametrize("seconds", [0, *INVALID_SECONDS])
def test_error_names_the_argument_with_an_invalid_duration(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^`interval=`: .* is not a finite number of seconds above"):
        validate_seconds("interval", seconds)


@pytest.mark.parametrize("seconds", INVALID_SECONDS)
def test_zero_seconds_can_be_allowed_but_nothing_else(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^`stable_for=`: .* is not a finite number of seconds"):
        validate_seconds("stable_for", seconds, may_be_zero=True)
    assert validate_seconds("stable_for", 0, may_be_zero=True) == 0.0


@given(st.floats(1e-6, 1e9) | st.integers(1, 10**6))
def test_finite_number_above_zero_is_a_duration(seconds: float) -> None:
    assert validate_seconds("timeout", seconds) == seconds
    assert type(validate_seconds("timeout", seconds)) is float


@pytest.mark.parametrize("count", [0, -1, 2.0, float("inf"), "3", None, True])
def test_error_names_the_argument_with_an_invalid_count(count: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^`max_concurrency=`: .* is not an integer of at least 1"):
        validate_count("max_concurrency", count)


@given(st.integers(min_value=1))
def test_integer_above_zero_is_a_count(count: int) -> None:
    assert validate_count("count", count) == count


UNITS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
TERMS = st.lists(
    st.tuples(st.decimals("0", "100000", places=3, allow_nan=False), st.sampled_from(sorted(UNITS))),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30.0),
        ("2m", 120.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1h", 3600.0),
        ("30", 30.0),
        ("0.5", 0.5),
        ("1.5m", 90.0),
        ("0m1s", 1.0),
        ("100ms", 0.1),
    ],
)
def test_duration_is_parsed_into_seconds(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@given(TERMS)
def test_duration_is_the_exact_sum_of_its_terms(terms: list[tuple[object, str]]) -> None:
    exact = sum(Fraction(str(number)) * UNITS[unit] for number, unit in terms)
    text = "".join(f"{number}{unit}" for number, unit in terms)
    if exact:
        assert parse_duration(text) == float(exact)
    else:
        with pytest.raises(ValueError, match="is zero"):
            parse_duration(text)


@given(st.text().filter(lambda text: not text[:1].isdigit()))
def test_error_for_other_text_has_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write one such as 30s") as raised:
        parse_duration(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1s", "+1s", "1 s", "1S", "1d", "1m30", "30s,", "inf", "nan", "1e3", "٣s", "0", "0s", "0ms"],
)
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="30s"):
        parse_duration(text)
