"""Two event loops in one process: grpc.aio polls one of them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve.probe import ProbeChannels, probe_worker, probe_workers
from aioresolve.probe.grpc_loop import loop_guard, run_in_grpc_loop
from aioresolve.testing.faults import Hang
from aioresolve.testing.tpu_worker import TPUWorker, tpu_worker_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.usefixtures("no_leak")

GENEROUS = 20.0


class OtherLoop:
    """An event loop in another thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="other loop")

    def run(self, operation: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Begin `operation` there, and return what can be awaited here."""

        async def awaited() -> Any:
            return await operation()

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self.loop))


@contextmanager
def other_loop() -> Iterator[OtherLoop]:
    other = OtherLoop()
    other.thread.start()
    try:
        yield other
    finally:
        other.loop.call_soon_threadsafe(other.loop.stop)
        other.thread.join()
        other.loop.close()


async def here() -> int:
    return threading.get_ident()


async def test_what_is_asked_of_a_second_loop_is_awaited_in_the_first() -> None:
    with other_loop() as other:
        assert await other.run(lambda: run_in_grpc_loop(here)) == other.thread.ident
        loop_guard.acquire()
        try:
            assert await other.run(lambda: run_in_grpc_loop(here)) == threading.get_ident()
        finally:
            loop_guard.release(asyncio.get_running_loop())
        assert await other.run(lambda: run_in_grpc_loop(here)) == other.thread.ident


async def test_an_error_comes_back() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with other_loop() as other:
        loop_guard.acquire()
        try:
            with pytest.raises(KeyError, match="mine"):
                await other.run(lambda: run_in_grpc_loop(fail))
        finally:
            loop_guard.release(asyncio.get_running_loop())


async def test_cancelling_waits_until_the_other_loop_has_cleaned_up() -> None:
    began, cleaned_up = threading.Event(), threading.Event()

    async def hang() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            cleaned_up.set()

    async def cancelled() -> bool:
        async with anyio.create_task_group() as group:
            group.start_soon(run_in_grpc_loop, hang)
            await anyio.to_thread.run_sync(began.wait)
            group.cancel_scope.cancel()
        return cleaned_up.is_set()

    with other_loop() as other:
        loop_guard.acquire()
        try:
            assert await other.run(cancelled)
        finally:
            loop_guard.release(asyncio.get_running_loop())


async def test_a_first_loop_that_is_blocked_is_not_waited_for() -> None:
    with other_loop() as other:
        loop_guard.acquire()
        try:
            future = asyncio.run_coroutine_threadsafe(run_in_grpc_loop(here), other.loop)
            # As a notebook does that calls a blocking function, whose own loop is the other.
            assert future.result(GENEROUS) == other.thread.ident
        finally:
            loop_guard.release(asyncio.get_running_loop())


async def test_when_the_first_loop_ends_the_second_goes_on_by_itself() -> None:
    began, answered_in = threading.Event(), []

    async def hang_at_first() -> int:
        answered_in.append(threading.get_ident())
        if len(answered_in) == 1:
            began.set()
            await anyio.sleep_forever()
        return await here()

    async def first() -> None:
        loop_guard.acquire()
        ready.set()
        await anyio.to_thread.run_sync(began.wait)

    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    await anyio.to_thread.run_sync(ready.wait)
    with anyio.fail_after(GENEROUS):
        assert await run_in_grpc_loop(hang_at_first)
    # The second time it is the first loop again, if that has not ended yet by then.
    assert (answered_in[0], len(answered_in)) == (thread.ident, 2)
    await anyio.to_thread.run_sync(thread.join)


def test_a_loop_that_was_closed_counts_no_more() -> None:
    async def enter() -> None:
        loop_guard.acquire()

    asyncio.run(enter())
    assert asyncio.run(run_in_grpc_loop(here)) == threading.get_ident()


class Recorded(asyncio.SelectorEventLoop):
    """An event loop that notes when grpc.aio polls it."""

    def __init__(self, polled: set[int]) -> None:
        super().__init__()
        self._polled = polled

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        if "_handle_events" in repr(callback):
            self._polled.add(id(self))
        super().add_reader(fd, callback, *args)


def in_a_loop(polled: set[int], operation: Callable[[], Awaitable[Any]], results: list[Any]) -> None:
    async def main() -> None:
        results.append(await operation())

    with asyncio.Runner(loop_factory=lambda: Recorded(polled)) as runner:
        runner.run(main())


@pytest.mark.filterwarnings("error")
def test_loops_that_probe_at_the_same_time_let_grpc_poll_one() -> None:
    with tpu_worker_process(ports=16) as addresses:
        polled: set[int] = set()
        results: list[Any] = []
        together = threading.Barrier(4)

        async def probe_again_and_again() -> bool:
            async with ProbeChannels() as channels:
                if threading.current_thread() is first:
                    await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
                await asyncio.to_thread(together.wait)
                rows = [
                    await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
                    for _ in range(5)
                ]
                await asyncio.to_thread(together.wait)
            return all(probe.error is None for row in rows for probe in row)

        threads = [
            threading.Thread(target=in_a_loop, args=(polled, probe_again_and_again, results))
            for _ in range(4)
        ]
        first = threads[0]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 4
    assert len(polled) == 1


async def test_a_worker_in_this_loop_is_probed_from_another() -> None:
    async with TPUWorker() as worker:
        with other_loop() as other:
            probe = await other.run(lambda: probe_worker(worker.address, timeout=GENEROUS))
    assert probe.accelerators == {"TPU": 8}


async def test_the_deadline_holds_across_loops() -> None:
    async with TPUWorker(faults=[Hang()]) as worker:
        with other_loop() as other:
            (probe,) = await other.run(
                lambda: probe_workers([worker.address], timeout=0.3, worker_timeout=GENEROUS)
            )
    assert probe.error is not None
    assert probe.error.code == "deadline"
    assert probe.latency < 2.0
