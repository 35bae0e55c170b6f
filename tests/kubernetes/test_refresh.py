"""One identity for many tasks: fetched once, kept while good, renewed when asked."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from aioresolve._core.concurrency import CrossLoopLock
from aioresolve.errors import CredentialsError
from aioresolve.kubernetes.auth.connection import EXPIRY_MARGIN, IdentitySource
from aioresolve.kubernetes.auth.identity import Identity


class Fetches:
    """A fetch that is let go by hand, and counts itself: the identities are "1", "2", ..."""

    def __init__(self, *, expires: float | None = None) -> None:
        self.started = 0
        self.running = asyncio.Event()
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.error: CredentialsError | None = None
        self.expires = expires

    async def __call__(self) -> Identity:
        self.started += 1
        number = self.started
        self.running.set()
        await self.let_go.wait()
        if self.error is not None:
            raise self.error
        return Identity(authorization=str(number), expires=self.expires)


async def test_nothing_is_fetched_before_it_is_asked_for_and_then_it_is_kept() -> None:
    fetches = Fetches()
    source = IdentitySource(fetches)
    assert fetches.started == 0
    assert [(await source.current()).authorization for _ in range(3)] == ["1", "1", "1"]


async def test_an_identity_that_is_there_already_is_not_fetched() -> None:
    fetches = Fetches()
    assert await IdentitySource(fetches, Identity("0")).current() == Identity("0")
    assert fetches.started == 0


@pytest.mark.parametrize(("seconds", "fetched"), [(-1, 2), (EXPIRY_MARGIN / 2, 2), (EXPIRY_MARGIN + 60, 1)])
async def test_what_is_expired_or_about_to_is_fetched_anew(seconds: float, fetched: int) -> None:
    fetches = Fetches(expires=time.time() + seconds)
    source = IdentitySource(fetches)
    await source.current()
    await source.current()
    assert fetches.started == fetched


@pytest.mark.parametrize(("max_age", "fetched"), [(0.0, 2), (1000.0, 0), (None, 0)])
async def test_what_is_too_old_is_fetched_anew(max_age: float | None, fetched: int) -> None:
    fetches = Fetches()
    source = IdentitySource(fetches, Identity("0"), max_age=max_age)
    await source.current()
    await source.current()
    assert fetches.started == fetched


async def test_many_who_ask_at_once_share_one_fetch() -> None:
    fetches = Fetches()
    fetches.let_go.clear()
    source = IdentitySource(fetches)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(source.renewed()) for _ in range(10)]
        await fetches.running.wait()
        fetches.let_go.set()
    assert [task.result().authorization for task in asked] == ["1"] * 10
    assert fetches.started == 1


async def test_many_who_ask_at_once_share_one_failure_each_with_an_error_of_its_own() -> None:
    fetches = Fetches()
    fetches.let_go.clear()
    fetches.error = CredentialsError("no", tried=("a",), retryable=True)
    fetches.error.__cause__ = OSError()
    source = IdentitySource(fetches)
    asked = [asyncio.create_task(source.current()) for _ in range(10)]
    await fetches.running.wait()
    fetches.let_go.set()
    await asyncio.wait(asked)
    errors = [task.exception() for task in asked]
    assert fetches.started == 1
    assert len({id(error) for error in errors}) == 10
    for error in errors:
        assert isinstance(error, CredentialsError)
        assert (str(error), error.tried, error.retryable) == ("no", ("a",), True)
        assert isinstance(error.__cause__, OSError)


async def test_a_failure_is_not_kept() -> None:
    fetches = Fetches()
    fetches.error = CredentialsError("no")
    source = IdentitySource(fetches)
    with pytest.raises(CredentialsError):
        await source.current()
    fetches.error = None
    assert (await source.current()).authorization == "2"


async def test_a_later_request_to_renew_fetches_again() -> None:
    fetches = Fetches()
    source = IdentitySource(fetches)
    assert [(await source.renewed()).authorization for _ in range(3)] == ["1", "2", "3"]


async def test_a_cancelled_fetch_is_taken_over_by_the_next_who_waits() -> None:
    fetches = Fetches()
    fetches.let_go.clear()
    source = IdentitySource(fetches)
    first = asyncio.create_task(source.renewed())
    await fetches.running.wait()
    second = asyncio.create_task(source.renewed())
    await asyncio.sleep(0)
    fetches.running.clear()
    first.cancel()
    await fetches.running.wait()
    fetches.let_go.set()
    assert (await second).authorization == "2"
    assert first.cancelled()


async def test_one_who_stops_waiting_stops_nobody_else() -> None:
    fetches = Fetches()
    fetches.let_go.clear()
    source = IdentitySource(fetches)
    first, second, third = (asyncio.create_task(source.renewed()) for _ in range(3))
    await fetches.running.wait()
    second.cancel()
    await asyncio.wait([second])
    fetches.let_go.set()
    assert await first == await third
    assert fetches.started == 1


def test_tasks_of_several_event_loops_take_turns() -> None:
    turn = CrossLoopLock()
    inside = 0
    entered = 0

    async def work() -> None:
        nonlocal inside, entered
        for _ in range(20):
            async with turn:
                inside += 1
                await asyncio.sleep(0)
                assert inside == 1
                entered += 1
                inside -= 1

    async def loop() -> None:
        with anyio.fail_after(30):
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(work())

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(asyncio.run, loop()) for _ in range(4)]:
            done.result()
    assert entered == 4 * 5 * 20


def test_a_loop_that_was_closed_while_it_waited_is_passed_over() -> None:
    turn = CrossLoopLock()

    async def hold(entered: threading.Event, leave: threading.Event) -> None:
        async with turn:
            entered.set()
            await asyncio.to_thread(leave.wait)

    async def give_up() -> None:
        with anyio.move_on_after(0.01):
            async with turn:
                raise AssertionError("two hold the turn")

    entered, leave = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(asyncio.run, hold(entered, leave))
        entered.wait()
        asyncio.run(give_up())
        leave.set()
        holder.result()
    asyncio.run(hold(threading.Event(), leave))
