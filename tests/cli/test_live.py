"""What a command draws while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioresolve.cli.live import call_periodically


async def test_failure_to_draw_is_raised_once_at_the_end_of_the_block() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    drawn = anyio.Event()
    calls = 0
    is_complete = False

    def draw() -> None:
        nonlocal calls
        calls += 1
        drawn.set()
        raise ZeroDivisionError

    async def work() -> None:
        nonlocal is_complete
        with call_periodically(draw, first=0.0, period=0.0):
            await drawn.wait()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            is_complete = True

    with pytest.raises(ZeroDivisionError):
        await work()
    assert (is_complete, calls, logged) == (True, 1, [])
