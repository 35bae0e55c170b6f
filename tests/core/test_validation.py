"""Validation of durations and counts, and the grammar of durations."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.validation import parse_duration, validate_count, validate_seconds
from aioresolve.errors import ConfigurationError


def test_error_names_the_argument_with_an_invalid_number() -> None:
    for seconds in (-1, float("inf"), float("nan"), "30", None, True, [1]):
        with pytest.raises(ConfigurationError, match=r"^`interval=`: .* is not a finite number of seconds a"):
            validate_seconds("interval", seconds)
        with pytest.raises(ConfigurationError, match=r"^`interval=`: .* is not a finite number of seconds n"):
            validate_seconds("interval", seconds, may_be_zero=True)
    assert validate_count("max_concurrency", 1) == 1
    for count in (0, -1, 2.0, float("inf"), "3", None, True):
        with pytest.raises(ConfigurationError, match=r"^`max_concurrency=`: .* is not an integer of at"):
            validate_count("max_concurrency", count)


def test_zero_seconds_can_be_allowed() -> None:
    assert validate_seconds("stable_for", 0, may_be_zero=True) == 0.0
    with pytest.raises(ConfigurationError, match="above zero"):
        validate_seconds("timeout", 0)


@given(st.floats(1e-6, 1e9) | st.integers(1, 10**6))
def test_finite_number_above_zero_is_a_duration(seconds: float) -> None:
    assert validate_seconds("timeout", seconds) == seconds
    assert type(validate_seconds("timeout", seconds)) is float


UNITS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
TERMS = st.lists(
    st.tuples(st.decimals("0", "100000", places=3, allow_nan=False), st.sampled_from(sorted(UNITS))),
    min_size=1,
    max_size=4,
)


@given(TERMS)
def test_duration_is_the_exact_sum_of_its_terms(terms: list[tuple[object, str]]) -> None:
    exact = sum(Fraction(str(number)) * UNITS[unit] for number, unit in terms)
    text = "".join(f"{number}{unit}" for number, unit in terms)
    assert parse_duration("30") == parse_duration("0.5m") == 30.0
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


def test_text_that_is_only_similar_to_a_duration_is_rejected() -> None:
    for text in ("-1s", "1 s", "1S", "1d", "1m30", "30s,", "inf", "1e3", "٣s", "0", "0ms"):
        with pytest.raises(ValueError, match="30s"):
            parse_duration(text)
