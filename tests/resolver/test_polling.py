"""Polling of a source: how often, and the observations while it fails."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve.errors import APIError, ConnectionFailedError, ForbiddenError
from aioresolve.resolver.polling import MAX_BACKOFF, PollSchedule, poll
from aioresolve.spec import ClusterSpec, ClusterState, Missing, Observation

if TYPE_CHECKING:
    from collections.abc import Iterable

PATIENCE = 60.0


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


def observation(address: str) -> Observation:
    return Observation(ClusterState.from_spec(ClusterSpec({"worker": [address]})))


class Source:
    """Returns or raises one response after another, and records when it was polled."""

    def __init__(self, responses: Iterable[Observation | Exception]) -> None:
        self._responses = iter(responses)
        self.polled_at: list[float] = []

    async def __call__(self) -> Observation:
        self.polled_at.append(anyio.current_time())
        response = next(self._responses)
        if isinstance(response, Exception):
            raise response
        return response


async def collect(source: Source, number: int, interval: float = 0.001) -> list[Observation]:
    found: list[Observation] = []
    with anyio.fail_after(PATIENCE):
        async with aclosing(poll(source, interval)) as observations:
            while len(found) < number:
                found.append(await anext(observations))
    return found


class TestPollSchedule:
    async def test_interval_counts_from_the_start_of_the_poll_and_is_jittered(self) -> None:
        schedule = PollSchedule(10.0)
        waits = [schedule.next_poll(100.0, None) - 100.0 for _ in range(200)]
        assert all(9.0 <= wait <= 11.0 for wait in waits)
        assert max(waits) - min(waits) > 0.5

    async def test_waits_after_failures_grow_up_to_a_limit(self) -> None:
        all_waits = []
        for _ in range(50):
            schedule = PollSchedule(1.0)
            all_waits.append([schedule.next_poll(0.0, busy()) - anyio.current_time() for _ in range(20)])
        assert all(0.85 <= wait <= MAX_BACKOFF for waits in all_waits for wait in waits)
        first, last = (sum(waits[position] for waits in all_waits) / 50 for position in (0, -1))
        assert first < 2.0
        assert last > 50.0

    async def test_wait_after_a_failure_counts_from_the_failure(self) -> None:
        polled_at = anyio.current_time() - 100.0  # the poll took that long
        assert PollSchedule(1.0).next_poll(polled_at, busy()) >= anyio.current_time() + 0.85

    async def test_wait_is_at_least_that_requested_by_the_server(self) -> None:
        assert PollSchedule(0.001).next_poll(0.0, busy(retry_after=60.0)) >= anyio.current_time() + 59.9

    async def test_success_resets_the_backoff(self) -> None:
        schedule = PollSchedule(1.0)
        for _ in range(20):
            schedule.next_poll(0.0, busy())
        schedule.next_poll(0.0, None)
        assert schedule.next_poll(0.0, busy()) - anyio.current_time() <= 2.0

    async def test_interval_longer_than_every_backoff_is_kept(self) -> None:
        schedule = PollSchedule(10_000.0)
        waits = [schedule.next_poll(0.0, busy()) - anyio.current_time() for _ in range(20)]
        assert all(8_999.0 <= wait <= 11_001.0 for wait in waits)


class TestPoll:
    async def test_each_observation_is_yielded(self) -> None:
        responses = [observation("a:1"), observation("a:1"), observation("b:2")]
        assert await collect(Source(responses), 3) == responses

    async def test_source_is_not_polled_more_often_than_the_interval(self) -> None:
        source = Source([observation("a:1")] * 5)
        await collect(source, 5, interval=0.05)
        gaps = [later - sooner for sooner, later in zip(source.polled_at, source.polled_at[1:], strict=False)]
        assert all(gap >= 0.044 for gap in gaps)

    async def test_source_is_polled_at_once_for_a_slow_consumer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = Source([observation("a:1")] * 2)
        now = anyio.current_time
        async with aclosing(poll(source, interval=3600.0)) as observations:
            with monkeypatch.context() as patch:  # the consumer has had the first observation for two hours
                patch.setattr(anyio, "current_time", lambda: now() - 7200.0)
                await anext(observations)
            with anyio.fail_after(PATIENCE):
                await anext(observations)
        assert len(source.polled_at) == 2

    async def test_retryable_failure_is_yielded_with_the_previous_observation(self) -> None:
        failures = [ConnectionFailedError("gone"), busy()]
        absent = Observation(observation("a:1").state, (Missing("worker", "x", "Pending"),))
        before, gone, again, after = await collect(Source([absent, *failures, observation("b:2")]), 4)
        assert (before.error, before.stale_since) == (None, None)
        assert (gone.state, gone.absent, gone.error) == (before.state, before.absent, failures[0])
        assert (again.error, again.stale_since) == (failures[1], gone.stale_since)
        assert gone.stale_since is not None
        assert (after.state, after.error, after.stale_since) == (observation("b:2").state, None, None)

    async def test_failure_of_the_first_poll_is_yielded_without_a_state(self) -> None:
        failure = busy()
        (first,) = await collect(Source([failure]), 1)
        assert (first.state, first.error) == (None, failure)

    async def test_retry_after_is_respected(self) -> None:
        source = Source([busy(retry_after=0.2), observation("a:1")])
        await collect(source, 2)
        assert source.polled_at[1] - source.polled_at[0] >= 0.2

    @pytest.mark.parametrize("error", [ForbiddenError("no", status=403), KeyError("a bug")])
    async def test_failure_that_is_not_retryable_is_raised(self, error: Exception) -> None:
        with pytest.raises(type(error)) as caught:
            await collect(Source([observation("a:1"), error]), 2)
        assert caught.value is error

    async def test_poll_can_be_cancelled(self) -> None:
        async def never() -> Observation:
            await anyio.sleep_forever()
            raise AssertionError

        with anyio.move_on_after(0.01) as scope:
            await anext(poll(never, 1.0))
        assert scope.cancelled_caught
