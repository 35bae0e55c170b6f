"""Several event loops in one process: grpc.aio polls one of them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from aioresolve.probe import ProbeChannels, probe_worker
from aioresolve.probe.channels import START_TIMEOUT, loop_guard, run_in_grpc_loop
from aioresolve.testing import TPUWorker

pytestmark = pytest.mark.usefixtures("no_leak")

GENEROUS = 60.0


class OtherLoop:
    """An event loop in another thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="other loop")

    def run(self, function: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Run `function` there, and return a future of this loop."""

        async def call() -> Any:
            return await function()

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self.loop))


@contextmanager
def other_loop() -> Iterator[OtherLoop]:
    other = OtherLoop()
    other.thread.start()
    try:
        yield other
    finally:
        other.loop.call_soon_threadsafe(other.loop.stop)
        other.thread.join(GENEROUS)
        other.loop.close()


@contextmanager
def held_guard() -> Iterator[None]:
    """Make the running loop the one that gRPC polls."""
    loop_guard.acquire()
    try:
        yield
    finally:
        loop_guard.release(asyncio.get_running_loop())


async def current_thread() -> int:
    return threading.get_ident()


async def slow() -> int:
    await anyio.sleep(START_TIMEOUT * 1.1)
    return threading.get_ident()


async def fail() -> None:
    raise ZeroDivisionError


async def test_call_of_a_second_loop_runs_in_the_first() -> None:
    with other_loop() as other:
        assert await other.run(lambda: run_in_grpc_loop(current_thread)) == other.thread.ident
        with held_guard():
            with held_guard():
                pass  # the loop is used until its last call ends
            assert await other.run(lambda: run_in_grpc_loop(slow)) == threading.get_ident()
            with pytest.raises(ZeroDivisionError):
                await other.run(lambda: run_in_grpc_loop(fail))
        assert await other.run(lambda: run_in_grpc_loop(current_thread)) == other.thread.ident


async def test_cancelling_waits_until_the_other_loop_has_cleaned_up() -> None:
    started, cleaned_up = threading.Event(), threading.Event()

    async def hang() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            cleaned_up.set()

    async def cancelled() -> bool:
        async with anyio.create_task_group() as group:
            group.start_soon(run_in_grpc_loop, hang)
            assert await anyio.to_thread.run_sync(started.wait, GENEROUS)
            group.cancel_scope.cancel()
        return cleaned_up.is_set()

    with other_loop() as other, held_guard():
        assert await other.run(cancelled)


async def test_call_does_not_wait_for_a_blocked_loop() -> None:
    with other_loop() as other, held_guard():
        future = asyncio.run_coroutine_threadsafe(run_in_grpc_loop(current_thread), other.loop)
        # Like a notebook that calls a blocking function, whose event loop is the other one.
        assert future.result(GENEROUS) == other.thread.ident


async def test_second_loop_continues_alone_when_the_first_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.probe.channels.START_TIMEOUT", GENEROUS)  # the first loop is not blocked
    second_loop = asyncio.get_running_loop()
    ready, called = threading.Event(), asyncio.Event()
    ran_in: list[int] = []

    async def first() -> None:
        loop_guard.acquire()
        ready.set()
        await called.wait()

    async def hang_at_first() -> None:
        ran_in.append(threading.get_ident())
        if len(ran_in) == 1:
            # Until the first loop has ended, the second would run the call there again.
            second_loop.call_soon_threadsafe(thread.join, GENEROUS)
            called.set()
            await anyio.sleep_forever()

    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    assert await anyio.to_thread.run_sync(ready.wait, GENEROUS)
    with anyio.fail_after(GENEROUS):
        await run_in_grpc_loop(hang_at_first)
    assert ran_in == [thread.ident, threading.get_ident()]


def test_closed_loop_is_ignored() -> None:
    async def enter() -> None:
        loop_guard.acquire()

    asyncio.run(enter())
    assert asyncio.run(run_in_grpc_loop(current_thread)) == threading.get_ident()


async def test_loop_with_a_worker_or_open_channels_is_used_by_another() -> None:
    with other_loop() as other:
        async with ProbeChannels() as channels:
            async with TPUWorker() as worker:
                await probe_worker(worker.address, channels=channels, timeout=GENEROUS)
                probe = await other.run(lambda: probe_worker(worker.address, timeout=GENEROUS))
            assert await other.run(lambda: run_in_grpc_loop(current_thread)) == threading.get_ident()
        assert await other.run(lambda: run_in_grpc_loop(current_thread)) == other.thread.ident
    assert probe.accelerators == {"TPU": 8}
