"""Deadlines, backoff and Retry-After."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.retry import Backoff, Progress, RetryPolicy, retry_after, retrying, within_deadline
from aioresolve.errors import APIError, ConfigurationError, DeadlineExceededError, ResolveError

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
QUICK = RetryPolicy(attempts=5, first_wait=0.001, longest_wait=0.002)


class Flaky:
    """An operation that fails with each of `errors` in turn and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def ignored(error: ResolveError, wait: float) -> None:
    """Take no note."""


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


async def test_a_retryable_error_is_tried_again() -> None:
    operation = Flaky(busy(), busy())
    assert await retrying(operation, policy=QUICK, on_failure=ignored) == "answer"
    assert operation.attempts == 3


async def test_a_final_error_is_raised_at_once() -> None:
    operation = Flaky(APIError("gone", status=404))
    with pytest.raises(APIError, match="gone"):
        await retrying(operation, policy=QUICK, on_failure=ignored)
    assert operation.attempts == 1


async def test_a_foreign_error_is_not_tried_again() -> None:
    operation = Flaky(KeyError("a bug"))
    with pytest.raises(KeyError):
        await retrying(operation, policy=QUICK, on_failure=ignored)
    assert operation.attempts == 1


async def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    errors = [APIError(f"attempt {number}", status=503, retryable=True) for number in range(9)]
    operation = Flaky(*errors)
    with pytest.raises(APIError, match="attempt 4"):
        await retrying(operation, policy=QUICK, on_failure=ignored)
    assert operation.attempts == QUICK.attempts


async def test_the_servers_retry_after_is_waited_for_and_never_undercut() -> None:
    waits: list[float] = []
    operation = Flaky(busy(retry_after=0.05))
    started = anyio.current_time()
    await retrying(operation, policy=QUICK, on_failure=lambda _, wait: waits.append(wait))
    assert anyio.current_time() - started >= 0.05
    assert 0.05 <= waits[0] <= 0.055


async def test_a_wait_that_outlasts_the_deadline_is_not_begun() -> None:
    operation = Flaky(busy(retry_after=3600))
    with anyio.fail_after(30), pytest.raises(APIError, match="busy"):
        await retrying(operation, policy=QUICK, on_failure=ignored)
    assert operation.attempts == 1


async def test_a_retry_is_cancelled_in_its_wait() -> None:
    waiting = asyncio.Event()
    task = asyncio.ensure_future(
        retrying(Flaky(busy(retry_after=3600)), policy=QUICK, on_failure=lambda *_: waiting.set())
    )
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_deadline_error_says_what_was_reached_and_what_was_not() -> None:
    cause = busy()

    async def operation(progress: Progress) -> None:
        progress.done("selector 'app=a'", "4 pods")
        progress.waiting("selector 'app=b'", "no answer yet")
        progress.failed("selector 'app=b'", cause)
        await anyio.sleep_forever()

    with pytest.raises(DeadlineExceededError) as caught:
        await within_deadline(0.01, "cluster_spec()", operation)
    error = caught.value
    assert error.timeout == 0.01
    assert error.reached == {"selector 'app=a'": "4 pods"}
    assert error.missing == {"selector 'app=b'": "last attempt: busy"}
    assert "selector 'app=b' (last attempt: busy)" in str(error)
    assert error.__cause__ is cause
    assert isinstance(error, TimeoutError)
    assert error.retryable


async def test_a_timeout_raised_inside_is_not_taken_for_the_deadline() -> None:
    async def operation(progress: Progress) -> None:
        raise TimeoutError("another one")

    with pytest.raises(TimeoutError, match="another one"):
        await within_deadline(10, "cluster_spec()", operation)


async def test_cancelling_a_call_is_not_taken_for_its_deadline() -> None:
    started = asyncio.Event()

    async def operation(progress: Progress) -> None:
        started.set()
        await anyio.sleep_forever()

    task = asyncio.ensure_future(within_deadline(60, "cluster_spec()", operation))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_no_deadline_is_refused() -> None:
    async def operation(progress: Progress) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="timeout=inf"):
        await within_deadline(float("inf"), "cluster_spec()", operation)


@given(st.integers(0, 10**6))
def test_retry_after_reads_seconds(seconds: int) -> None:
    assert retry_after(f" {seconds} ") == seconds


@given(st.integers(-(10**6), 10**6))
def test_retry_after_reads_an_http_date_and_is_never_negative(seconds: int) -> None:
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(date, NOW) == max(0, seconds)


@given(st.text())
def test_any_other_retry_after_says_nothing_and_breaks_nothing(header: str) -> None:
    found = retry_after(header, NOW)
    assert found is None or found >= 0


def test_no_retry_after_is_none() -> None:
    assert retry_after(None) is None


POLICY = RetryPolicy(first_wait=1.0, longest_wait=60.0)


@given(st.integers(0, 2_000))
def test_a_backoff_is_jittered_below_a_bound_that_doubles_up_to_the_longest(failures: int) -> None:
    backoff = Backoff(POLICY, failures)
    bound = min(60.0, 2.0 ** min(failures, 10))
    assert 0.0 <= backoff.wait(busy()) <= bound
    assert backoff.failures == failures + 1


def test_backoffs_use_all_of_their_bound() -> None:
    waits = [Backoff(POLICY, 10).wait(busy()) for _ in range(300)]
    assert min(waits) < 10.0
    assert max(waits) > 50.0


def test_a_backoff_begins_again_once_the_source_is_well() -> None:
    backoff = Backoff(POLICY)
    for _ in range(10):
        backoff.wait(busy())
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.wait(busy()) <= 1.0


@given(st.floats(0, 10_000), st.integers(0, 50))
def test_a_backoff_never_undercuts_what_the_server_asks_for(asked: float, failures: int) -> None:
    wait = Backoff(POLICY, failures).wait(busy(retry_after=asked))
    assert asked <= wait <= 1.1 * asked


def test_two_backoffs_of_one_policy_count_for_themselves() -> None:
    one, other = Backoff(POLICY), Backoff(POLICY)
    one.wait(busy())
    assert (one.failures, other.failures) == (1, 0)
