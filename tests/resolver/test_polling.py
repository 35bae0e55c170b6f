"""Sources that have to be asked: how often, and what is seen while they fail."""

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

PATIENCE = 5.0


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


def seen(address: str) -> Observation:
    return Observation(ClusterState.from_spec(ClusterSpec({"worker": [address]})))


class Source:
    """Shows one after the other, or fails so, and notes when it was asked."""

    def __init__(self, answers: Iterable[Observation | Exception]) -> None:
        self._answers = iter(answers)
        self.asked_at: list[float] = []

    async def __call__(self) -> Observation:
        self.asked_at.append(anyio.current_time())
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def shown(source: Source, number: int, interval: float = 0.001) -> list[Observation]:
    found: list[Observation] = []
    with anyio.fail_after(PATIENCE):
        async with aclosing(poll(source, interval)) as observations:
            while len(found) < number:
                found.append(await anext(observations))
    return found


class TestPollSchedule:
    async def test_the_interval_counts_from_when_it_was_asked_for_and_is_jittered(self) -> None:
        schedule = PollSchedule(10.0)
        waits = [schedule.next_poll(100.0, None) - 100.0 for _ in range(200)]
        assert all(9.0 <= wait <= 11.0 for wait in waits)
        assert max(waits) - min(waits) > 0.5

    async def test_failures_are_followed_by_ever_longer_waits_up_to_a_bound(self) -> None:
        longest = []
        for _ in range(50):
            schedule = PollSchedule(1.0)
            longest.append([schedule.next_poll(0.0, busy()) - anyio.current_time() for _ in range(20)])
        assert all(0.85 <= wait <= MAX_BACKOFF for waits in longest for wait in waits)
        first, last = (sum(waits[place] for waits in longest) / 50 for place in (0, -1))
        assert first < 2.0
        assert last > 50.0

    async def test_a_failure_is_waited_after_from_when_it_happened(self) -> None:
        asked_at = anyio.current_time() - 100.0  # it took so long
        assert PollSchedule(1.0).next_poll(asked_at, busy()) >= anyio.current_time() + 0.85

    async def test_the_servers_own_wait_is_never_undercut(self) -> None:
        assert PollSchedule(0.001).next_poll(0.0, busy(retry_after=60.0)) >= anyio.current_time() + 59.9

    async def test_a_good_answer_makes_waits_short_again(self) -> None:
        schedule = PollSchedule(1.0)
        for _ in range(20):
            schedule.next_poll(0.0, busy())
        schedule.next_poll(0.0, None)
        assert schedule.next_poll(0.0, busy()) - anyio.current_time() <= 2.0

    async def test_an_interval_longer_than_every_backoff_is_kept(self) -> None:
        schedule = PollSchedule(10_000.0)
        waits = [schedule.next_poll(0.0, busy()) - anyio.current_time() for _ in range(20)]
        assert all(8_999.0 <= wait <= 11_001.0 for wait in waits)


class TestPoll:
    async def test_each_answer_is_shown_in_its_turn(self) -> None:
        answers = [seen("a:1"), seen("a:1"), seen("b:2")]
        assert await shown(Source(answers), 3) == answers

    async def test_it_asks_no_oftener_than_the_interval_says(self) -> None:
        source = Source([seen("a:1")] * 5)
        await shown(source, 5, interval=0.05)
        gaps = [later - sooner for sooner, later in zip(source.asked_at, source.asked_at[1:], strict=False)]
        assert all(gap >= 0.044 for gap in gaps)

    async def test_it_asks_at_once_for_a_consumer_that_takes_longer(self) -> None:
        source = Source([seen("a:1")] * 2)
        async with aclosing(poll(source, 0.2)) as observations:
            await anext(observations)
            await anyio.sleep(0.25)
            due = anyio.current_time()
            await anext(observations)
        assert source.asked_at[1] - due < 0.15

    async def test_a_failure_that_may_pass_is_told_with_what_was_seen_before_it(self) -> None:
        failures = [ConnectionFailedError("gone"), busy()]
        absent = Observation(seen("a:1").state, (Missing("worker", "x", "Pending"),))
        before, gone, again, after = await shown(Source([absent, *failures, seen("b:2")]), 4)
        assert (before.error, before.stale_since) == (None, None)
        assert (gone.state, gone.absent, gone.error) == (before.state, before.absent, failures[0])
        assert (again.error, again.stale_since) == (failures[1], gone.stale_since)
        assert gone.stale_since is not None
        assert (after.state, after.error, after.stale_since) == (seen("b:2").state, None, None)

    async def test_a_failure_before_the_first_answer_is_told_without_a_state(self) -> None:
        failure = busy()
        (first,) = await shown(Source([failure]), 1)
        assert (first.state, first.error) == (None, failure)

    async def test_the_servers_own_wait_is_obeyed(self) -> None:
        source = Source([busy(retry_after=0.2), seen("a:1")])
        await shown(source, 2)
        assert source.asked_at[1] - source.asked_at[0] >= 0.2

    @pytest.mark.parametrize("error", [ForbiddenError("no", status=403), KeyError("a bug")])
    async def test_a_failure_that_does_not_pass_is_raised(self, error: Exception) -> None:
        with pytest.raises(type(error)) as caught:
            await shown(Source([seen("a:1"), error]), 2)
        assert caught.value is error

    async def test_it_may_be_left_while_it_asks(self) -> None:
        async def never() -> Observation:
            await anyio.sleep_forever()
            raise AssertionError

        with anyio.move_on_after(0.01) as scope:
            await anext(poll(never, 1.0))
        assert scope.cancelled_caught
