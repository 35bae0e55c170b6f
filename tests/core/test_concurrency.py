"""Bounded fan-out, and the newest value of work that goes on beside its consumer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aioresolve._core.concurrency import Newest, gather, newest_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


async def after(event: anyio.Event, answer: int) -> int:
    await event.wait()
    return answer


async def test_results_stand_in_the_order_of_the_calls_whichever_ends_first() -> None:
    events = [anyio.Event() for _ in range(3)]

    async def open_backwards() -> int:
        for event in reversed(events):
            event.set()
            await anyio.lowlevel.checkpoint()
        return -1

    calls: list[Callable[[], Awaitable[int]]] = [
        partial(after, event, place) for place, event in enumerate(events)
    ]
    assert await gather([*calls, open_backwards], limit=4) == [0, 1, 2, -1]


async def test_no_more_than_the_limit_run_at_a_time() -> None:
    running = most = 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1

    await gather([call] * 50, limit=7)
    assert most == 7


async def test_the_first_failure_cancels_the_others_and_comes_alone() -> None:
    cancelled = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fail() -> None:
        raise ValueError("one error") from KeyError("its cause")

    with pytest.raises(ValueError, match="one error") as caught:
        await gather([wait, wait, fail], limit=3)
    assert cancelled == [True, True]
    assert isinstance(caught.value.__cause__, KeyError)


async def test_cancelling_cancels_every_call() -> None:
    cancelled = []
    started = anyio.Event()

    async def wait() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(True)

    task = asyncio.ensure_future(gather([wait, wait], limit=2))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True, True]


async def test_nothing_to_do_is_no_results() -> None:
    assert await gather([], limit=4) == []


PATIENCE = 5.0


class TestNewest:
    async def test_what_was_put_is_taken_once(self) -> None:
        newest: Newest[int] = Newest()
        newest.put(1)
        assert await newest.taken() == 1
        with anyio.move_on_after(0.01) as scope:
            await newest.taken()
        assert scope.cancelled_caught

    async def test_only_the_newest_is_taken(self) -> None:
        newest: Newest[int] = Newest()
        for number in range(100):
            newest.put(number)
        assert await newest.taken() == 99

    async def test_who_waits_is_told_at_once(self) -> None:
        newest: Newest[int] = Newest()
        task = asyncio.create_task(newest.taken())
        await anyio.lowlevel.checkpoint()
        newest.put(1)
        newest.put(2)
        assert await task == 2

    async def test_nothing_and_none_are_values_as_well(self) -> None:
        newest: Newest[int | None] = Newest()
        newest.put(None)
        assert await newest.taken() is None

    async def test_the_end_comes_after_the_last_value(self) -> None:
        newest: Newest[int] = Newest()
        newest.put(1)
        newest.end()
        assert await newest.taken() == 1
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await newest.taken()

    async def test_an_error_comes_after_the_last_value(self) -> None:
        newest: Newest[int] = Newest()
        error = ValueError("over")
        newest.put(1)
        newest.end(error)
        assert await newest.taken() == 1
        with pytest.raises(ValueError, match="over") as caught:
            await newest.taken()
        assert caught.value is error

    async def test_who_waits_is_told_of_the_end(self) -> None:
        newest: Newest[int] = Newest()
        task = asyncio.create_task(newest.taken())
        await anyio.lowlevel.checkpoint()
        newest.end(ValueError("over"))
        with pytest.raises(ValueError, match="over"):
            await task

    async def test_who_is_cancelled_while_a_value_comes_loses_nothing(self) -> None:
        newest: Newest[int] = Newest()
        task = asyncio.create_task(newest.taken())
        await anyio.lowlevel.checkpoint()
        newest.put(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await newest.taken() == 1


class Counting:
    """Work that puts 0, 1, 2 ... as it is let to, and notes how it ended."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(0)
        self.task: asyncio.Task[None] | None = None
        self.put = 0
        self.ended_by: BaseException | None = None

    async def __call__(self, newest: Newest[int]) -> None:
        self.task = asyncio.current_task()
        try:
            while True:
                newest.put(self.put)
                self.put += 1
                await self.turns.acquire()
        except BaseException as error:
            self.ended_by = error
            raise

    async def let_go(self, times: int) -> None:
        """Let so many values be put."""
        wanted = self.put + times
        for _ in range(times):
            self.turns.release()
        with anyio.fail_after(PATIENCE):
            while self.put < wanted:
                await anyio.lowlevel.checkpoint()

    @property
    def was_cancelled(self) -> bool:
        return isinstance(self.ended_by, asyncio.CancelledError)


@pytest.mark.usefixtures("no_leak")
class TestNewestOf:
    async def test_a_slow_consumer_misses_values_and_never_the_newest(self) -> None:
        work = Counting()
        async with aclosing(newest_of(work)) as values:
            assert await anext(values) == 0
            await work.let_go(10)
            assert await anext(values) == 10
            work.turns.release()
            assert await anext(values) == 11

    async def test_a_loop_that_is_left_ends_the_work(self) -> None:
        work = Counting()
        async with aclosing(newest_of(work)) as values:
            async for _ in values:
                break
        assert work.was_cancelled
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_generator_that_was_never_begun_begins_no_work(self) -> None:
        work = Counting()
        await newest_of(work).aclose()
        assert work.task is None

    async def test_a_generator_that_is_dropped_ends_the_work_soon(self) -> None:
        work = Counting()
        async for _ in newest_of(work):
            break
        with anyio.fail_after(PATIENCE):
            while not work.was_cancelled:  # noqa: ASYNC110 - the event loop closes it when it finds the time
                await anyio.sleep(0.001)

    async def test_who_is_cancelled_while_waiting_ends_the_work(self) -> None:
        work = Counting()

        async def consume() -> None:
            async for _ in newest_of(work):
                pass

        task = asyncio.create_task(consume())
        await work.let_go(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.was_cancelled
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_a_deadline_around_one_step_ends_the_work(self) -> None:
        work = Counting()
        values = newest_of(work)
        await anext(values)
        with anyio.move_on_after(0.01) as scope:
            await anext(values)
        assert scope.cancelled_caught
        assert work.was_cancelled
        with pytest.raises(StopAsyncIteration):
            await anext(values)

    async def test_it_may_be_closed_by_another_task(self) -> None:
        work = Counting()
        values = newest_of(work)
        await anext(values)
        await asyncio.create_task(values.aclose())
        assert work.was_cancelled

    async def test_a_second_cancel_does_not_leave_the_work_behind(self) -> None:
        ending = asyncio.Event()
        may_end = asyncio.Event()
        has_ended = False

        async def reluctant(newest: Newest[int]) -> None:
            nonlocal has_ended
            newest.put(1)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    ending.set()
                    await may_end.wait()
                has_ended = True

        async def consume() -> None:
            async with aclosing(newest_of(reluctant)) as values:
                async for _ in values:
                    pass

        task = asyncio.create_task(consume())
        await anyio.sleep(0.01)
        task.cancel()
        await ending.wait()
        task.cancel()
        await anyio.sleep(0.01)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert has_ended

    @pytest.mark.parametrize("error", [ValueError("it broke"), SystemExit(3), KeyboardInterrupt()])
    async def test_what_the_work_raises_comes_after_its_last_value_as_it_is(
        self, error: BaseException
    ) -> None:
        async def failing(newest: Newest[int]) -> None:
            newest.put(1)
            raise error

        values = newest_of(failing)
        assert await anext(values) == 1
        with pytest.raises(type(error)) as caught:
            await anext(values)
        assert caught.value is error

    async def test_work_that_ends_ends_the_loop(self) -> None:
        async def brief(newest: Newest[int]) -> None:
            newest.put(1)
            await anyio.lowlevel.checkpoint()
            newest.put(2)

        assert [value async for value in newest_of(brief)] == [1, 2]

    async def test_what_the_consumer_raises_ends_the_work(self) -> None:
        work = Counting()

        async def consume(values: AsyncGenerator[int, None]) -> None:
            async with aclosing(values):
                async for _ in values:
                    raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await consume(newest_of(work))
        assert work.was_cancelled
