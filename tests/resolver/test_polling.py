"""Polling of a source: how often, and the observations while it fails."""

from collections.abc import Iterable
from contextlib import aclosing

import anyio
import pytest

from aioresolve import ClusterResolver, Progress, Want
from aioresolve.errors import APIError, ConnectionFailedError, ForbiddenError
from aioresolve.spec import ClusterSpec, ClusterState, Missing, Observation
from tests.virtual_time import in_virtual_time

LEAST_JITTER, MOST_JITTER = 0.9, 1.1
"""Each interval is at most a tenth shorter or longer."""

MAX_BACKOFF = 300.0
"""The longest backoff in seconds. The first is twice the interval, each later one twice the one before it,
and each wait at least half of its backoff."""


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


def observation(address: str) -> Observation:
    return Observation(ClusterState.from_spec(ClusterSpec({"worker": [address]})))


class Source(ClusterResolver):
    """Returns or raises one response after another, each after `seconds`, and records when it was polled."""

    def __init__(self, responses: Iterable[Observation | Exception], seconds: float = 0.0) -> None:
        super().__init__()
        self._responses = iter(responses)
        self._seconds = seconds
        self.polled_at: list[float] = []

    async def observe(self, want: Want, progress: Progress) -> Observation:
        self.polled_at.append(anyio.current_time())
        await anyio.sleep(self._seconds)
        response = next(self._responses)
        if isinstance(response, Exception):
            raise response
        return response


async def collect(source: Source, number: int, interval: float = 0.001) -> list[Observation]:
    found: list[Observation] = []
    async with aclosing(source.observations(interval=interval)) as observations:
        while len(found) < number:
            found.append(await anext(observations))
    return found


def gaps(source: Source) -> list[float]:
    return [later - sooner for sooner, later in zip(source.polled_at, source.polled_at[1:], strict=False)]


@in_virtual_time
async def test_interval_counts_from_the_start_of_the_poll_and_is_jittered() -> None:
    source = Source([observation("a:1")] * 100, seconds=3.0)
    await collect(source, 100, interval=10.0)
    shortest, longest = min(gaps(source)), max(gaps(source))
    assert 10.0 * LEAST_JITTER <= shortest < longest <= 10.0 * MOST_JITTER


@in_virtual_time
async def test_waits_after_failures_grow_up_to_a_limit_until_a_poll_succeeds() -> None:
    source = Source([busy()] * 20 + [observation("a:1"), busy(), busy()], seconds=3.0)
    await collect(source, 23, interval=2.0)
    waits = [gap - 3.0 for gap in gaps(source)]  # a wait counts from the failure
    backoffs = [min(4.0 * 2.0**failures, MAX_BACKOFF) for failures in range(20)]
    for wait, backoff in zip(waits[:20] + waits[21:], [*backoffs, backoffs[0]], strict=True):
        assert max(backoff / 2.0, 2.0 * LEAST_JITTER) <= round(wait, 6) <= backoff


@in_virtual_time
async def test_wait_after_a_failure_is_at_least_the_interval_and_that_requested_by_the_server() -> None:
    source = Source([busy()] * 20)
    interval = 30 * MAX_BACKOFF
    await collect(source, 20, interval=interval)
    assert all(LEAST_JITTER <= round(gap / interval, 6) <= MOST_JITTER for gap in gaps(source))
    source = Source([busy(retry_after=60.0), observation("a:1")])
    await collect(source, 2)
    assert gaps(source)[0] >= 60.0


@in_virtual_time
async def test_source_is_polled_at_once_for_a_slow_consumer() -> None:
    source = Source([observation("a:1")] * 2)
    async with aclosing(source.observations(interval=3600.0)) as observations:
        await anext(observations)
        await anyio.sleep(7200.0)
        await anext(observations)
    assert gaps(source) == [7200.0]


@in_virtual_time
async def test_retryable_failure_is_yielded_with_the_previous_observation() -> None:
    failures = [ConnectionFailedError("gone"), busy()]
    absent = Observation(observation("a:1").state, (Missing("worker", "x", "Pending"),))
    before, gone, again, after = await collect(Source([absent, *failures, observation("b:2")]), 4)
    assert (before.error, before.stale_since) == (None, None)
    assert (gone.state, gone.absent, gone.error) == (before.state, before.absent, failures[0])
    assert (again.error, again.stale_since) == (failures[1], gone.stale_since)
    assert gone.stale_since is not None
    assert (after.state, after.error, after.stale_since) == (observation("b:2").state, None, None)


@in_virtual_time
async def test_failure_that_is_not_retryable_is_raised() -> None:
    error = ForbiddenError("no", status=403)
    with pytest.raises(ForbiddenError) as caught:
        await collect(Source([observation("a:1"), error]), 2)
    assert caught.value is error
