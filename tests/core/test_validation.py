"""Validation of seconds and counts, and the grammar of durations, as a fleet and its file use them."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.fleet import Fleet, fleet_of


def duration(text: str) -> float | None:
    """Return the seconds of a duration in a fleet file."""
    content = f"interval: {json.dumps(text)}\ntargets: {{a: {{static: {{jobs: {{w: 'a:1'}}}}}}}}"
    return fleet_of(content, environ={}).interval


def test_error_names_the_argument_with_an_invalid_number() -> None:
    seconds: Any
    for seconds in (0, -1, float("inf"), float("nan"), "30", None, True, [1]):
        with pytest.raises(ConfigurationError, match=r"^`timeout=`: .* is not a finite number of seconds a"):
            Fleet(timeout=seconds)
    count: Any
    for count in (0, -1, 2.0, float("inf"), "3", None, True):
        with pytest.raises(ConfigurationError, match=r"^`max_concurrency=`: .* is not an integer of at"):
            Fleet(max_concurrency=count)


@given(st.floats(1e-6, 1e9) | st.integers(1, 10**6))
def test_finite_number_above_zero_is_a_duration(seconds: float) -> None:
    assert Fleet(timeout=seconds, max_concurrency=1).timeout == seconds
    assert type(Fleet(timeout=seconds).timeout) is float


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
    if exact:
        assert duration(text) == float(exact)
    else:
        with pytest.raises(ConfigurationError, match="is zero"):
            duration(text)
    assert duration("30") == duration("0.5m") == 30.0


def test_text_that_is_only_similar_to_a_duration_is_rejected() -> None:
    for text in ("", "soon", "-1s", "1 s", "1S", "1d", "1m30", "30s,", "inf", "1e", "٣s", "0", "0ms"):
        with pytest.raises(ConfigurationError, match=r"interval: .*30s"):
            duration(text)
