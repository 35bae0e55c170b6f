"""Connections that many calls and several resolvers share."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioresolve._core.concurrency import gather
from aioresolve._core.connections import Connections, KeptOpen
from aioresolve.errors import ConnectionFailedError, DeadlineExceededError
from tests.fleet.fleets import Scripted, until
from tests.virtual_time import in_virtual_time

logger = logging.getLogger("contexts")


@asynccontextmanager
async def run_context(resolver: Scripted) -> AsyncIterator[KeptOpen[Scripted]]:
    """Run a context of `resolver`, yield it and close it."""
    context = KeptOpen(resolver, logger=logger)
    task = asyncio.create_task(context.run())
    yield context
    context.close()
    await task


class TestKeptOpen:
    async def test_resource_is_entered_once_and_exited_after_the_last_user(self) -> None:
        resolver = Scripted()
        async with run_context(resolver) as context:
            async with context.acquire() as one, context.acquire() as other:
                assert one is other is resolver
                context.close()
                await anyio.wait_all_tasks_blocked()
                assert resolver.history == ["entered"]
            await context.aclose()
            assert resolver.history == ["entered", "left"]

    async def test_next_context_enters_after_the_previous_one(self) -> None:
        resolver = Scripted()
        async with run_context(resolver) as previous, previous.acquire():
            context = KeptOpen(resolver, logger=logger, after=previous)
            task = asyncio.create_task(context.run())
            previous.close()
            await anyio.wait_all_tasks_blocked()
            assert resolver.history == ["entered"]
        async with context.acquire():
            assert resolver.history == ["entered", "left", "entered"]
        context.close()
        await task

    async def test_closing_cancels_endless_work(self) -> None:
        resolver = Scripted()
        history = []

        async def work(entered: Scripted) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                history.append(list(entered.history))

        async with run_context(resolver) as context, anyio.create_task_group() as group:
            group.start_soon(context.run_until_closed, work)
            await anyio.wait_all_tasks_blocked()
            await context.aclose()
        assert history == [["entered"]]
        assert resolver.history == ["entered", "left"]

    async def test_closing_does_not_wait_for_entering(self, caplog: pytest.LogCaptureFixture) -> None:
        class Slow(Scripted):
            async def __aenter__(self) -> Any:
                self.history.append("entering")
                try:
                    await anyio.sleep_forever()
                finally:
                    self.history.append("given up")

        async def enter() -> None:
            async with context.acquire():
                raise AssertionError

        resolver = Slow(timeout=3600.0)
        async with run_context(resolver) as context:
            async with anyio.create_task_group() as group:
                group.start_soon(enter)
                await until(lambda: resolver.history == ["entering"])
                group.cancel_scope.cancel()
            await context.aclose()
        assert resolver.history == ["entering", "given up"]
        assert not caplog.records

    @in_virtual_time
    async def test_entering_and_exiting_have_the_deadline_of_the_resource(self) -> None:
        class SlowEnter(Scripted):
            async def __aenter__(self) -> Any:
                await anyio.sleep(3600)

        class SlowExit(Scripted):
            async def aclose(self) -> None:
                await anyio.sleep(3600)

        async with run_context(SlowEnter(timeout=5.0)) as context:
            with pytest.raises(DeadlineExceededError, match="was not entered within 5 s"):
                async with context.acquire():
                    raise AssertionError
        assert anyio.current_time() == 5
        async with run_context(SlowExit(timeout=5.0)) as context:
            async with context.acquire():
                await anyio.sleep(10)  # no deadline inside
            with pytest.raises(DeadlineExceededError, match="was not exited within 5 s"):
                await context.aclose()
        assert anyio.current_time() == 20


class TestConnections:
    async def test_client_is_created_once_for_concurrent_calls_and_closed_after_its_last_user(self) -> None:
        one, other = object(), object()
        history: list[str] = []

        async def create(stack: AsyncExitStack) -> str:
            await anyio.lowlevel.checkpoint()
            stack.callback(history.append, "closed")
            history.append("created")
            return "client"

        async with Connections() as connections:
            calls = [partial(connections.get, user, "key", create) for user in (one, other, one)]
            assert await gather(calls, limit=3) == ["client"] * 3
            await connections.release(one)
            assert history == ["created"]
            await connections.release(other)
            assert history == ["created", "closed"]
            await connections.get(one, "key", create)
            await connections.get(one, "another", create)
        assert history == ["created", "closed", "created", "created", "closed", "closed"]

    async def test_failure_to_create_a_client_closes_what_was_opened_and_is_not_kept(self) -> None:
        history: list[str] = []

        async def create(stack: AsyncExitStack) -> str:
            stack.callback(history.append, "closed")
            if len(history) < 1:
                raise ConnectionFailedError("unreachable")
            return "client"

        async with Connections() as connections:
            with pytest.raises(ConnectionFailedError):
                await connections.get(self, "key", create)
            assert history == ["closed"]
            assert await connections.get(self, "key", create) == "client"

    async def test_client_whose_owner_is_closed_meanwhile_is_closed_and_not_returned(self) -> None:
        created, closed = anyio.Event(), anyio.Event()
        connections = Connections()

        async def create(stack: AsyncExitStack) -> str:
            stack.callback(closed.set)
            await created.wait()
            return "client"

        async def get() -> None:
            with pytest.raises(ConnectionFailedError, match="was closed while this call was runn") as caught:
                await connections.get(self, "key", create)
            assert not caught.value.retryable

        async with anyio.create_task_group() as group:
            group.start_soon(get)
            await anyio.wait_all_tasks_blocked()
            await connections.aclose()
            created.set()
        assert closed.is_set()
