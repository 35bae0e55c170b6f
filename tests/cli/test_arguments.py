"""Values of options: selectors and tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.cli.options import parse_selector, parse_task
from aioresolve.cli.output.formats import Task
from aioresolve.cli.requests import selector_options, selectors_by_job


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
def test_the_first_equals_sign_separates_the_job_from_the_selector(
    text: str, expected: tuple[str, str]
) -> None:
    assert parse_selector(text) == expected


@given(st.from_regex(r"[a-z][a-z0-9_-]*", fullmatch=True), st.from_regex(r"[a-z!][^\n]*", fullmatch=True))
def test_selector_options_can_be_parsed(job: str, selector: str) -> None:
    assert parse_selector(selector_options([(job, selector)]).removeprefix("-l ")) == (job, selector)


@pytest.mark.parametrize(
    ("text", "hint"),
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
def test_a_selector_without_a_job_is_rejected_with_an_example(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match="JOB=SELECTOR") as raised:
        parse_selector(text)
    assert str(raised.value).startswith(repr(text))
    assert str(raised.value).endswith(hint)


def test_jobs_and_their_selectors_keep_their_order() -> None:
    pairs = [("ps", "b"), ("worker", "z"), ("ps", "a")]
    assert list(selectors_by_job(pairs).items()) == [("ps", ["b", "a"]), ("worker", ["z"])]


@given(st.text(min_size=1), st.integers(0, 999_999_999))
def test_a_task_is_a_job_and_an_index(job: str, index: int) -> None:
    assert parse_task(f"{job}:{index}") == Task(job, index)


@pytest.mark.parametrize(
    "text", ["", "worker", "worker:", ":0", "worker:-1", "worker:x", "worker:1.0", "worker:٣"]
)
def test_invalid_tasks_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="such as worker:0"):
        parse_task(text)
