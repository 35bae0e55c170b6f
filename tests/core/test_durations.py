"""Spans of time as they are typed and written in files."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.validation import seconds

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
def test_a_duration_is_read_in_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@given(TERMS)
def test_a_duration_is_the_exact_sum_of_its_terms(terms: list[tuple[object, str]]) -> None:
    exact = sum(Fraction(str(number)) * UNITS[unit] for number, unit in terms)
    text = "".join(f"{number}{unit}" for number, unit in terms)
    if exact:
        assert seconds(text) == float(exact)
    else:
        with pytest.raises(ValueError, match="no time at all"):
            seconds(text)


@given(st.text().filter(lambda text: not text[:1].isdigit()))
def test_any_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="give one such as 30s") as raised:
        seconds(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1s", "+1s", "1 s", "1S", "1d", "1m30", "30s,", "inf", "nan", "1e3", "٣s", "0", "0s", "0ms"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="30s"):
        seconds(text)
