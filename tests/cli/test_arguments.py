"""What is typed at the command line: selectors and tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.cli.options import Task, job_and_selector, selectors_by_job, task, typed


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
