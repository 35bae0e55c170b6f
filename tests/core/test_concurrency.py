"""Concurrent calls with a limit, the latest value of a background task, and blocking work in threads."""

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from aioresolve._core import threads
from aioresolve._core.concurrency import LatestValue, gather, stream_latest
from aioresolve.errors import ResolveError


async def test_results_are_in_the_order_of_the_calls_of_which_at_most_limit_run_at_a_time() -> None:
    running = most = 0

    async def call(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(50 - number):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return number

    assert await gather([partial(call, number) for number in range(50)], limit=7) == list(range(50))
    assert most == 7
    assert await gather([], limit=7) == []


async def test_first_failure_cancels_the_others_and_is_raised_alone() -> None:
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


PATIENCE = 60.0


async def test_latest_value_is_taken_once_and_the_end_or_error_comes_after_the_last_one() -> None:
    for error in (None, ValueError("over")):
        latest: LatestValue[int | None] = LatestValue()
        for number in range(100):
            latest.put(number)
        assert await latest.get() == 99
        with anyio.move_on_after(0.01) as scope:
            await latest.get()
        assert scope.cancelled_caught
        latest.put(None)
        latest.close(error)
        assert await latest.get() is None
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream if error is None else ValueError):
                await latest.get()


@pytest.mark.usefixtures("no_leak")
class TestStreamLatest:
    async def test_slow_consumer_skips_values_and_its_end_cancels_the_work(self) -> None:
        ended_by: list[BaseException] = []

        async def work(latest: LatestValue[int]) -> None:
            try:
                for number in range(10):
                    latest.put(number)
                await anyio.sleep_forever()
            except asyncio.CancelledError as error:
                ended_by.append(error)
                raise

        async def consume() -> None:
            async for value in stream_latest(work):
                seen.append(value)  # noqa: PERF401 - it never ends

        seen: list[int] = []
        task = asyncio.create_task(consume())
        while not seen:
            await anyio.lowlevel.checkpoint()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == [9]
        assert len(ended_by) == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @pytest.mark.parametrize("error", [ValueError("it broke"), SystemExit(3), KeyboardInterrupt()])
    async def test_error_of_the_work_is_raised_unchanged_after_its_last_value(
        self, error: BaseException
    ) -> None:
        async def failing(latest: LatestValue[int]) -> None:
            latest.put(1)
            raise error

        values = stream_latest(failing)
        assert await anext(values) == 1
        with pytest.raises(type(error)) as caught:
            await anext(values)
        assert caught.value is error


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


@pytest.mark.usefixtures("no_leak")
class TestRunInThread:
    async def test_result_is_returned_and_an_error_is_raised(self) -> None:
        assert await threads.run_in_thread("divide", divmod, 7, 2) == (3, 1)
        NAME.set("caller")
        assert await threads.run_in_thread("read a variable", NAME.get) == "caller"
        for error in (KeyError("mine"), SystemExit(3), KeyboardInterrupt()):

            def fail(error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)) as caught:
                await threads.run_in_thread("fail", fail)
            assert caught.value is error

    async def test_cancelled_call_does_not_wait_for_its_thread(self) -> None:
        released, ended = threading.Event(), threading.Event()

        def hang() -> None:
            released.wait()
            ended.set()

        with anyio.move_on_after(0.01) as scope:
            await threads.run_in_thread("hang", hang)
        assert scope.cancelled_caught
        assert not ended.is_set()
        released.set()
        assert ended.wait(PATIENCE)

    async def test_work_that_hangs_leaves_threads_for_work_with_another_purpose(self) -> None:
        released = threading.Event()
        most = threads.MAX_THREADS_PER_PURPOSE
        async with anyio.create_task_group() as group:
            for _ in range(most + 1):
                group.start_soon(threads.run_in_thread, "hang", released.wait)
            await anyio.lowlevel.checkpoint()
            with anyio.fail_after(PATIENCE):
                assert await threads.run_in_thread("add", sum, (1, 2)) == 3
            assert sum(thread.name == "aioresolve: hang" for thread in threading.enumerate()) == most
            released.set()

    async def test_number_of_threads_is_bounded_and_the_rest_of_the_work_waits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(threads, "MAX_THREADS", 2)
        released, order = threading.Event(), list[int]()
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(threads.run_in_thread, f"hang {number}", released.wait)
            await anyio.lowlevel.checkpoint()
            for number in range(5):
                group.start_soon(threads.run_in_thread, f"append {number}", partial(order.append, number))
            await anyio.lowlevel.checkpoint()
            assert order == []
            with anyio.move_on_after(0.01) as scope:
                await threads.run_in_thread("append 5", order.append, 5)
            assert scope.cancelled_caught
            released.set()
        assert sorted(order) == [0, 1, 2, 3, 4]

    async def test_refused_thread_is_one_retryable_error_that_names_the_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(2 * threads.MAX_THREADS_PER_PURPOSE):
                with pytest.raises(ResolveError, match=r"to add: can't start new thread.*ulimit") as caught:
                    await threads.run_in_thread("add", sum, (1, 2))
                assert caught.value.retryable
        assert await threads.run_in_thread("add", sum, (1, 2)) == 3


FORK = """
import asyncio, os, threading
from aioresolve._core.threads import MAX_THREADS_PER_PURPOSE, run_in_thread

async def hang():
    calls = [run_in_thread("wait", threading.Event().wait) for _ in range(MAX_THREADS_PER_PURPOSE)]
    await asyncio.wait([asyncio.create_task(call) for call in calls], timeout=0)

asyncio.run(hang())
child = os.fork()
if child == 0:
    asyncio.run(run_in_thread("wait", os.write, 1, b"ran"))
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_forked_child_does_not_count_the_threads_of_its_parent() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.communicate(timeout=60)[0] == b"ran"
        finally:
            with suppress(ProcessLookupError):  # the parent and its child have ended
                os.killpg(process.pid, signal.SIGKILL)
