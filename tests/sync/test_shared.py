"""A resolver of the facade is entered once, for the blocking calls of many threads, until it is closed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import anyio
import pytest

from aioresolve import ClusterResolver, Observation, Progress, Want, sync
from aioresolve.errors import ConnectionFailedError
from aioresolve.spec import ClusterSpec, ClusterState
from aioresolve.sync.loop_thread import get_loop_thread

THREADS = 32
WORKERS = ClusterSpec({"worker": ["a:1"]})


async def nothing() -> None:
    """Return at once."""


class Scripted(ClusterResolver):
    """Records its history, and awaits the given functions when it is entered, called and closed."""

    def __init__(
        self,
        *,
        entering: Callable[[], Awaitable[object]] = nothing,
        calling: Callable[[], Awaitable[object]] = nothing,
        closing: Callable[[], Awaitable[object]] = nothing,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(timeout=timeout)
        self._entering = entering
        self._calling = calling
        self._closing = closing
        self.history: list[str] = []

    async def observe(self, want: Want, progress: Progress) -> Observation:
        await self._calling()
        self.history.append("called")
        return Observation(ClusterState.from_spec(WORKERS))

    async def __aenter__(self) -> Self:
        await self._entering()
        self.history.append("entered")
        return self

    async def aclose(self) -> None:
        await self._closing()
        self.history.append("closed")


class Gate:
    """A function that waits in the loop until the test opens the gate."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        get_loop_thread().call_soon(self._open.set)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as threads:
        yield threads


def settle() -> None:
    """Wait until all tasks of the event loop thread are blocked."""
    get_loop_thread().run(anyio.wait_all_tasks_blocked)


# Entering


def test_concurrent_calls_enter_the_resolver_once_and_run_concurrently(threads: ThreadPoolExecutor) -> None:
    meeting = asyncio.Barrier(THREADS)
    resolver = Scripted(calling=meeting.wait)
    shared = sync.ClusterResolver(resolver)
    specs = list(threads.map(lambda _: shared.cluster_spec(), range(THREADS)))
    shared.close()
    assert specs == [WORKERS] * THREADS
    assert resolver.history == ["entered", *["called"] * THREADS, "closed"]


def test_all_waiting_calls_raise_the_error_of_entering_and_the_next_one_enters_again(
    threads: ThreadPoolExecutor,
) -> None:
    gate, error = Gate(), ConnectionFailedError("unreachable")
    errors = [error]

    async def fail_once() -> None:
        await gate()
        if errors:
            raise errors.pop()

    resolver = Scripted(entering=fail_once)
    shared = sync.ClusterResolver(resolver)
    calls = [threads.submit(shared.cluster_spec) for _ in range(THREADS)]
    gate.reached.wait()
    settle()
    gate.open()
    assert {call.exception() for call in calls} == {error}
    assert shared.cluster_spec() == WORKERS
    shared.close()
    assert resolver.history == ["entered", "called", "closed"]


# Closing


def test_call_after_closing_enters_the_resolver_again() -> None:
    resolver = Scripted()
    shared = sync.ClusterResolver(resolver)
    shared.close()
    shared.cluster_spec()
    shared.close()
    shared.close()
    assert resolver.history == ["entered", "called", "closed"]
    shared.cluster_spec()
    shared.close()
    assert resolver.history == ["entered", "called", "closed"] * 2


def test_closing_waits_for_the_calls_in_progress(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(calling=gate)
    shared = sync.ClusterResolver(resolver)
    call = threads.submit(shared.cluster_spec)
    gate.reached.wait()
    closing = threads.submit(shared.close)
    settle()
    assert not closing.done()
    gate.open()
    closing.result()
    assert call.result() == WORKERS
    assert resolver.history == ["entered", "called", "closed"]


def test_error_of_closing_the_resolver_of_a_watch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ConnectionFailedError("broken pipe")

    watch = sync.ClusterResolver(Scripted(closing=fail)).watch()
    next(watch)
    del watch
    settle()
    assert [record.name for record in caplog.records] == ["aioresolve.sync"]
    assert "was not exited cleanly" in caplog.text
    assert "broken pipe" in caplog.text
