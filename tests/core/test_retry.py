"""Deadlines, backoff and Retry-After."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.deadline import (
    Backoff,
    Progress,
    RetryPolicy,
    parse_retry_after,
    send_with_retries,
    within_deadline,
)
from aioresolve.errors import APIError, DeadlineExceededError

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


async def send(operation: Callable[[], Awaitable[str]], progress: Progress | None = None) -> str:
    return await send_with_retries(
        lambda _: operation(), scope="x", host="h", progress=progress or Progress(), policy=QUICK
    )


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


async def test_retryable_error_is_retried_and_another_one_is_raised_at_once() -> None:
    operation = Flaky(*[busy() for _ in range(100)])
    assert await send(operation) == "response"
    assert operation.attempts == 101
    for error in (APIError("gone", status=404), KeyError("a bug")):
        operation = Flaky(error)
        with pytest.raises(type(error)):
            await send(operation)
        assert operation.attempts == 1


async def test_last_error_is_raised_when_its_wait_would_exceed_the_deadline() -> None:
    errors = [APIError(f"attempt {number}", status=503, retryable=True) for number in range(9)]
    operation = Flaky(*errors, busy(retry_after=60))
    with anyio.fail_after(60), pytest.raises(APIError, match="busy"):
        await send(operation)
    assert operation.attempts == 10


async def test_wait_before_a_retry_can_be_cancelled() -> None:
    waiting = asyncio.Event()
    progress = Progress(on_failure=lambda _: waiting.set())
    flaky = Flaky(busy(retry_after=3600), busy())
    task = asyncio.ensure_future(within_deadline(7200, "cluster_spec()", lambda _: send(flaky, progress)))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):  # not a DeadlineExceededError
        await task
    with anyio.CancelScope() as scope:
        scope.cancel()
        await send(flaky)
    assert scope.cancelled_caught


async def test_deadline_error_lists_complete_and_missing_requests() -> None:
    cause = busy()

    async def operation(progress: Progress) -> None:
        for scope in ("the token", "selector 'app=a'", "selector 'app=b'"):
            progress.waiting(scope, "no response yet")
        progress.ready("the token")
        progress.done("selector 'app=a'", "4 pods")
        progress.failed("selector 'app=b'", cause)
        await anyio.sleep_forever()

    with pytest.raises(DeadlineExceededError) as caught:
        await within_deadline(0.01, "cluster_spec()", operation)
    error = caught.value
    assert error.timeout == 0.01
    assert error.reached == {"selector 'app=a'": "4 pods"}
    assert error.missing == {"selector 'app=b'": "last attempt: busy"}
    assert str(error) == (
        "no complete response within 0.01 s to cluster_spec(); still waiting for selector 'app=b' (last"
        " attempt: busy); already complete: selector 'app=a' (4 pods). Try again, or raise `timeout=`."
    )
    assert error.__cause__ is cause
    assert isinstance(error, TimeoutError)
    assert error.retryable


def test_retry_after_is_read_in_seconds() -> None:
    assert parse_retry_after(" 7 ") == 7.0
    assert parse_retry_after("9" * 400) == math.inf
    for invalid in (None, "", "soon", "-1", "1.5", "٣", "Fri, 31 Dec 2999 00:00:00 GMT"):
        assert parse_retry_after(invalid) is None


POLICY = RetryPolicy(first_wait=1.0, longest_wait=60.0)


@given(st.integers(0, 2_000), st.none() | st.floats(allow_nan=False))
def test_wait_doubles_up_to_the_longest_unless_the_server_requests_more_up_to_five_minutes(
    failures: int, requested: float | None
) -> None:
    backoff = Backoff(POLICY, failures)
    bound = min(60.0, 2.0 ** min(failures, 10))
    granted = min(300.0, max(0.0, requested or 0.0))
    wait = backoff.wait(busy(retry_after=requested))
    assert max(bound / 2.0, granted) <= wait <= max(bound, 1.1 * granted)
    assert backoff.failures == failures + 1
    backoff.reset()
    assert backoff.wait(busy()) <= 1.0


def test_clients_that_were_rejected_together_return_at_different_times() -> None:
    # hypothesis seeds `random` with 0 for each example.
    random.seed()
    waits = [Backoff(POLICY).wait(busy(retry_after=100.0)) for _ in range(300)]
    assert 100.0 <= min(waits) < 101.0
    assert 109.0 < max(waits) <= 110.0
