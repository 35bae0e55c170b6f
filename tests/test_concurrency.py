"""Bounded fan-out."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aioresolve.concurrency import gather

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


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
