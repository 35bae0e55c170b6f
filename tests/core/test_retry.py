"""Deadlines, backoff and Retry-After."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.deadline import Progress, within_deadline
from aioresolve._core.retry import (
    RETRYABLE_STATUSES,
    Backoff,
    RetryPolicy,
    call_with_retries,
    parse_retry_after,
)
from aioresolve.errors import APIError, ConfigurationError, DeadlineExceededError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
QUICK = RetryPolicy(first_wait=0.001, longest_wait=0.002)


class Flaky:
    """An operation that fails with each of `errors` in turn and then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "response"


def ignore(error: ResolveError, wait: float) -> None:
    """Ignore the failure of an attempt."""


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


async def test_retryable_error_is_retried() -> None:
    operation = Flaky(busy(), busy())
    assert await call_with_retries(operation, policy=QUICK, on_failure=ignore) == "response"
    assert operation.attempts == 3


def test_statuses_of_failures_that_may_be_temporary() -> None:
    assert {408, 425, 429, 500, 502, 503, 504} == RETRYABLE_STATUSES


async def test_error_that_is_not_retryable_is_raised_at_once() -> None:
    operation = Flaky(APIError("gone", status=404))
    with pytest.raises(APIError, match="gone"):
        await call_with_retries(operation, policy=QUICK, on_failure=ignore)
    assert operation.attempts == 1


async def test_error_of_another_library_is_not_retried() -> None:
    operation = Flaky(KeyError("a bug"))
    with pytest.raises(KeyError):
        await call_with_retries(operation, policy=QUICK, on_failure=ignore)
    assert operation.attempts == 1


async def test_number_of_attempts_never_ends_a_call() -> None:
    operation = Flaky(*[busy() for _ in range(100)])
    with anyio.fail_after(600):
        assert await call_with_retries(operation, policy=QUICK, on_failure=ignore) == "response"
    assert operation.attempts == 101


async def test_last_error_is_raised_when_its_wait_would_exceed_the_deadline() -> None:
    errors = [APIError(f"attempt {number}", status=503, retryable=True) for number in range(9)]
    operation = Flaky(*errors, busy(retry_after=60))
    with anyio.fail_after(60), pytest.raises(APIError, match="busy"):
        await call_with_retries(operation, policy=QUICK, on_failure=ignore)
    assert operation.attempts == 10


async def test_wait_is_at_least_the_retry_after_of_the_server() -> None:
    waits: list[float] = []
    operation = Flaky(busy(retry_after=0.05))
    started = anyio.current_time()
    await call_with_retries(operation, policy=QUICK, on_failure=lambda _, wait: waits.append(wait))
    assert anyio.current_time() - started >= 0.05
    assert 0.05 <= waits[0] <= 0.055


async def test_wait_that_would_exceed_the_deadline_is_not_started() -> None:
    operation = Flaky(busy(retry_after=3600))
    with anyio.fail_after(60), pytest.raises(APIError, match="busy"):
        await call_with_retries(operation, policy=QUICK, on_failure=ignore)
    assert operation.attempts == 1


async def test_wait_before_a_retry_can_be_cancelled() -> None:
    waiting = asyncio.Event()
    task = asyncio.ensure_future(
        call_with_retries(Flaky(busy(retry_after=3600)), policy=QUICK, on_failure=lambda *_: waiting.set())
    )
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_deadline_error_lists_complete_and_missing_requests() -> None:
    cause = busy()

    async def operation(progress: Progress) -> None:
        progress.done("selector 'app=a'", "4 pods")
        progress.waiting("selector 'app=b'", "no response yet")
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


async def test_other_timeout_error_is_not_mistaken_for_the_deadline() -> None:
    async def operation(progress: Progress) -> None:
        raise TimeoutError("another one")

    with pytest.raises(TimeoutError, match="another one"):
        await within_deadline(10, "cluster_spec()", operation)


async def test_cancellation_is_not_mistaken_for_the_deadline() -> None:
    started = asyncio.Event()

    async def operation(progress: Progress) -> None:
        started.set()
        await anyio.sleep_forever()

    task = asyncio.ensure_future(within_deadline(60, "cluster_spec()", operation))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_invalid_deadline_is_rejected() -> None:
    async def operation(progress: Progress) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="timeout=`: inf"):
        await within_deadline(float("inf"), "cluster_spec()", operation)


@given(st.integers(0, 10**6))
def test_retry_after_reads_seconds(seconds: int) -> None:
    assert parse_retry_after(f" {seconds} ") == seconds


@given(st.integers(-(10**6), 10**6))
def test_retry_after_reads_an_http_date_and_is_never_negative(seconds: int) -> None:
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert parse_retry_after(date, NOW) == max(0, seconds)


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000", "", "+0200"])
def test_retry_after_reads_a_date_without_a_known_zone_as_utc(zone: str) -> None:
    seconds = 10 - 2 * 3600 if zone == "+0200" else 10
    assert parse_retry_after(f"Fri, 20 Nov 2026 12:00:10 {zone}", NOW) == max(0, seconds)


def test_retry_after_of_400_digits_is_a_number() -> None:
    assert parse_retry_after("9" * 400) == float("inf")


@given(st.text())
def test_invalid_retry_after_is_ignored(header: str) -> None:
    found = parse_retry_after(header, NOW)
    assert found is None or found >= 0


def test_missing_retry_after_is_none() -> None:
    assert parse_retry_after(None) is None


POLICY = RetryPolicy(first_wait=1.0, longest_wait=60.0)


@given(st.integers(0, 2_000))
def test_wait_is_below_a_bound_that_doubles_up_to_the_longest(failures: int) -> None:
    backoff = Backoff(POLICY, failures)
    bound = min(60.0, 2.0 ** min(failures, 10))
    assert bound / 2.0 <= backoff.wait(busy()) <= bound
    assert backoff.failures == failures + 1


@pytest.fixture
def random_numbers() -> Iterator[None]:
    """Seed `random` differently each time: hypothesis seeds it with 0 for each example."""
    state = random.getstate()
    random.seed()
    yield
    random.setstate(state)


@pytest.mark.usefixtures("random_numbers")
def test_waits_are_spread_over_the_whole_range() -> None:
    waits = [Backoff(POLICY, 10).wait(busy()) for _ in range(300)]
    assert 30.0 <= min(waits) < 33.0
    assert 57.0 < max(waits) <= 60.0


@pytest.mark.usefixtures("random_numbers")
def test_clients_that_were_rejected_together_return_at_different_times() -> None:
    waits = [Backoff(POLICY).wait(busy(retry_after=100.0)) for _ in range(300)]
    assert 100.0 <= min(waits) < 101.0
    assert 109.0 < max(waits) <= 110.0


@pytest.mark.parametrize("requested", [0, -1, -1e300, None], ids=str)
def test_server_cannot_request_a_shorter_wait_than_the_backoff(requested: float | None) -> None:
    for failures in range(8):
        assert Backoff(POLICY, failures).wait(busy(retry_after=requested)) >= min(60.0, 2.0**failures) / 2.0


@pytest.mark.parametrize("requested", [301.0, 1e5, 1e300, float("inf")], ids=str)
def test_server_can_request_at_most_five_minutes(requested: float) -> None:
    assert 300.0 <= Backoff(POLICY).wait(busy(retry_after=requested)) <= 330.0


def test_reset_starts_with_short_waits_again() -> None:
    backoff = Backoff(POLICY)
    for _ in range(10):
        backoff.wait(busy())
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.wait(busy()) <= 1.0


@given(st.floats(0, 300), st.integers(0, 50))
def test_wait_is_never_shorter_than_the_server_requests(requested: float, failures: int) -> None:
    wait = Backoff(POLICY, failures).wait(busy(retry_after=requested))
    assert requested <= wait <= max(1.1 * requested, min(60.0, 2.0**failures))


def test_two_backoffs_of_one_policy_count_separately() -> None:
    one, other = Backoff(POLICY), Backoff(POLICY)
    one.wait(busy())
    assert (one.failures, other.failures) == (1, 0)
