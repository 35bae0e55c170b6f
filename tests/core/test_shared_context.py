"""Stays that many share, and pools that several resolvers share."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve._core.shared_context import Pools, Stay
from aioresolve.errors import ConnectionFailedError
from tests.fleet.fleets import Pooled, Scripted, ScriptedPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioresolve._core.shared_context import Pool

logger = logging.getLogger("stays")


@asynccontextmanager
async def staying(resolver: Scripted) -> AsyncIterator[Stay[Scripted]]:
    """Yield a stay inside `resolver`, and end it."""
    stay = Stay(resolver, logger=logger)
    task = asyncio.create_task(stay.stay())
    yield stay
    stay.leave()
    await task


class TestStay:
    async def test_it_is_entered_once_for_all_visitors_and_left_after_the_last(self) -> None:
        resolver = Scripted()
        async with staying(resolver) as stay:
            async with stay.visit() as one, stay.visit() as other:
                assert one is other is resolver
                stay.leave()
                await anyio.wait_all_tasks_blocked()
                assert resolver.history == ["entered"]
            await stay.left()
            assert resolver.history == ["entered", "left"]

    async def test_leaving_cancels_what_would_go_on_without_end(self) -> None:
        resolver = Scripted()
        history = []

        async def work(visited: Scripted) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                history.append(list(visited.history))

        async with staying(resolver) as stay, anyio.create_task_group() as group:
            group.start_soon(stay.visit_until_left, work)
            await anyio.wait_all_tasks_blocked()
            await stay.left()
        assert history == [["entered"]]
        assert resolver.history == ["entered", "left"]

    async def test_leaving_before_it_is_entered_begins_nothing(self) -> None:
        resolver = Scripted()

        async def work(visited: Scripted) -> None:
            raise AssertionError

        stay = Stay(resolver, logger=logger)
        async with anyio.create_task_group() as group:
            group.start_soon(stay.visit_until_left, work)
            await anyio.wait_all_tasks_blocked()
            stay.leave()
        await stay.stay()
        assert resolver.history == []

    async def test_leaving_does_not_wait_until_it_is_entered(self, caplog: pytest.LogCaptureFixture) -> None:
        class Slow(Scripted):
            async def __aenter__(self) -> Any:
                self.history.append("entering")
                try:
                    await anyio.sleep_forever()
                finally:
                    self.history.append("given up")

        resolver = Slow(timeout=3600.0)
        async with staying(resolver) as stay:
            with anyio.move_on_after(0.01):
                async with stay.visit():
                    raise AssertionError
            assert resolver.history == ["entering"]
            await stay.left()
        assert resolver.history == ["entering", "given up"]
        assert not caplog.records

    async def test_what_the_work_raises_is_raised(self) -> None:
        async def work(visited: Scripted) -> None:
            raise ZeroDivisionError("a bug")

        async with staying(Scripted()) as stay:
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await stay.visit_until_left(work)

    async def test_what_entering_raises_is_raised(self) -> None:
        class Broken(Scripted):
            async def __aenter__(self) -> Any:
                raise ConnectionFailedError("nobody there")

        async def work(visited: Scripted) -> None:
            raise AssertionError

        async with staying(Broken()) as stay:
            with pytest.raises(ConnectionFailedError, match="nobody there"):
                await stay.visit_until_left(work)


class TestPools:
    async def test_a_resolver_without_a_key_is_entered_itself(self) -> None:
        resolver = Scripted()
        async with Pools().inside(resolver):
            assert resolver.history == ["entered"]
        assert resolver.history == ["entered", "left"]

    async def test_those_of_one_key_use_one_pool_at_a_time_and_another_after_it_was_closed(self) -> None:
        made: list[ScriptedPool] = []
        pools, one, other = Pools(), Pooled("key", made), Pooled("key", made)
        async with pools.inside(one):
            async with pools.inside(other):
                assert made[0].users == [one, other]
            assert [pool.is_closed for pool in made] == [False]
        assert [pool.is_closed for pool in made] == [True]
        async with pools.inside(one):
            assert [pool.is_closed for pool in made] == [True, False]

    async def test_a_pool_that_nobody_could_use_is_closed(self) -> None:
        class Busy(Pooled):
            def using(self, pool: Pool) -> Any:
                raise ConnectionFailedError("is entered already")

        made: list[ScriptedPool] = []
        inside = Pools().inside(Busy("key", made))
        with pytest.raises(ConnectionFailedError, match="is entered already"):
            await inside.__aenter__()
        assert [pool.is_closed for pool in made] == [True]
