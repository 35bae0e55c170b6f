"""Numbers that callers give: spans of time that end, and counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.validation import checked_count, checked_seconds
from aioresolve.errors import ConfigurationError

NO_SECONDS = [-1, float("inf"), float("nan"), "30", None, True, [1]]


@pytest.mark.parametrize("seconds", [0, *NO_SECONDS])
def test_what_is_no_span_of_time_is_refused_by_name(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^interval=.*: give a finite number of seconds above zero"):
        checked_seconds("interval", seconds)


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_no_time_at_all_may_be_a_span_of_time_and_nothing_else_more(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^stable_for=.*: give a finite number of seconds, such as"):
        checked_seconds("stable_for", seconds, may_be_zero=True)
    assert checked_seconds("stable_for", 0, may_be_zero=True) == 0.0


@given(st.floats(1e-6, 1e9) | st.integers(1, 10**6))
def test_a_finite_number_above_zero_is_a_span_of_time(seconds: float) -> None:
    assert checked_seconds("timeout", seconds) == seconds
    assert type(checked_seconds("timeout", seconds)) is float


@pytest.mark.parametrize("count", [0, -1, 2.0, float("inf"), "3", None, True])
def test_what_is_no_count_is_refused_by_name(count: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^max_concurrency=.*: give a whole number, at least 1"):
        checked_count("max_concurrency", count)


@given(st.integers(min_value=1))
def test_a_whole_number_above_zero_is_a_count(count: int) -> None:
    assert checked_count("count", count) == count
