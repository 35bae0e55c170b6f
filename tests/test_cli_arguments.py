"""What is typed at the command line: durations, selectors, tasks."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.cli.arguments import Task, job_and_selector, selectors_by_job, task, typed
from aioresolve.cli.durations import seconds

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker=app=trainer", ("worker", "app=trainer")),
        ("worker=app", ("worker", "app")),
        ("worker=app!=x,tier in (a, b)", ("worker", "app!=x,tier in (a, b)")),
        ("worker=!app", ("worker", "!app")),
        ("ps-2=a==b", ("ps-2", "a==b")),
    ],
)
def test_the_job_is_what_stands_before_the_first_equals_sign(text: str, expected: tuple[str, str]) -> None:
    assert job_and_selector(text) == expected


@given(st.from_regex(r"[a-z][a-z0-9_-]*", fullmatch=True), st.from_regex(r"[a-z!][^\n]*", fullmatch=True))
def test_a_job_and_a_selector_come_back_as_they_were_typed(job: str, selector: str) -> None:
    assert job_and_selector(typed([(job, selector)]).removeprefix("-l ")) == (job, selector)


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("worker", "-l worker=app=trainer"),
        ("", "-l worker=app=trainer"),
        ("=app=trainer", "-l worker=app=trainer"),
        ("worker=", "-l worker=app=trainer"),
        ("worker= ", "-l worker=app=trainer"),
        ("app==trainer", "-l worker=app==trainer"),
        ("app!=trainer", "-l 'worker=app!=trainer'"),
        ("app in (a,b)", "-l 'worker=app in (a,b)'"),
        ("!app,tier=a", "-l 'worker=!app,tier=a'"),
    ],
)
def test_a_selector_without_a_job_is_refused_with_the_mend(text: str, mend: str) -> None:
    with pytest.raises(ValueError, match="JOB=SELECTOR") as raised:
        job_and_selector(text)
    assert str(raised.value).startswith(repr(text))
    assert str(raised.value).endswith(mend)


def test_jobs_and_their_selectors_keep_the_order_given() -> None:
    pairs = [("ps", "b"), ("worker", "z"), ("ps", "a")]
    assert list(selectors_by_job(pairs).items()) == [("ps", ["b", "a"]), ("worker", ["z"])]


@given(st.text(min_size=1), st.integers(0, 999_999_999))
def test_a_task_is_a_job_and_an_index(job: str, index: int) -> None:
    assert task(f"{job}:{index}") == Task(job, index)


@pytest.mark.parametrize(
    "text", ["", "worker", "worker:", ":0", "worker:-1", "worker:x", "worker:1.0", "worker:٣"]
)
def test_what_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as worker:0"):
        task(text)
