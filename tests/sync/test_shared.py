"""A shared resolver: entered once for the blocking calls of many threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest

from aioresolve.errors import ConnectionFailedError, DeadlineExceededError, ResolveError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterSpec, ClusterState
from aioresolve.sync import loop_thread
from aioresolve.sync.loop_thread import get_loop_thread
from aioresolve.sync.shared import SharedResource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import TaskGroup

    from aioresolve._core.deadline import Progress

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

    async def fetch_state(self, progress: Progress) -> ClusterState:
        await self._calling()
        self.history.append("called")
        return ClusterState.from_spec(WORKERS)

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


def failing(error: BaseException) -> Callable[[], Awaitable[object]]:
    async def fail() -> None:
        raise error

    return fail


def share(resolver: ClusterResolver) -> SharedResource[ClusterResolver]:
    return SharedResource(resolver, lambda old: old)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as threads:
        yield threads


def settle() -> None:
    """Wait until all tasks of the loop are blocked."""
    get_loop_thread().run(anyio.wait_all_tasks_blocked)


# Entering


def test_first_call_enters_the_resolver() -> None:
    resolver = Scripted()
    shared = share(resolver)
    assert resolver.history == []
    assert shared.call("cluster_spec") == shared.call("cluster_spec", timeout=1.0) == WORKERS
    assert resolver.history == ["entered", "called", "called"]
    shared.close()


def test_concurrent_calls_enter_the_resolver_once_and_run_concurrently(threads: ThreadPoolExecutor) -> None:
    meeting = asyncio.Barrier(THREADS)
    resolver = Scripted(calling=meeting.wait)
    shared = share(resolver)
    specs = list(threads.map(lambda _: shared.call("cluster_spec"), range(THREADS)))
    shared.close()
    assert specs == [WORKERS] * THREADS
    assert resolver.history == ["entered", *["called"] * THREADS, "closed"]


def test_all_waiting_calls_raise_the_error_of_entering(threads: ThreadPoolExecutor) -> None:
    gate, error = Gate(), ConnectionFailedError("unreachable")

    async def fail() -> None:
        await gate()
        raise error

    shared = share(Scripted(entering=fail))
    calls = [threads.submit(shared.call, "cluster_spec") for _ in range(THREADS)]
    gate.reached.wait()
    settle()
    gate.open()
    assert {call.exception() for call in calls} == {error}


def test_next_call_after_an_error_of_entering_enters_again() -> None:
    errors = [ConnectionFailedError("unreachable")]

    async def fail_once() -> None:
        if errors:
            raise errors.pop()

    resolver = Scripted(entering=fail_once)
    shared = share(resolver)
    with pytest.raises(ConnectionFailedError, match="unreachable"):
        shared.call("cluster_spec")
    shared.close()
    assert shared.call("cluster_spec") == WORKERS
    shared.close()
    assert resolver.history == ["entered", "called", "closed"]


def test_entering_has_a_deadline() -> None:
    shared = share(Scripted(entering=anyio.sleep_forever, timeout=0.05))
    with pytest.raises(DeadlineExceededError, match=r"Scripted object at .* was not entered within 0\.05 s"):
        shared.call("cluster_spec")


def test_interrupted_first_call_leaves_the_resolver_entered(
    threads: ThreadPoolExecutor,
) -> None:
    gate = Gate()
    resolver = Scripted(entering=gate)
    shared = share(resolver)

    async def first_call() -> None:
        with anyio.move_on_after(0.01):
            await shared.acall("cluster_spec")

    get_loop_thread().run(first_call)
    second = threads.submit(shared.call, "cluster_spec")
    gate.open()
    assert second.result() == WORKERS
    shared.close()
    assert resolver.history == ["entered", "called", "closed"]


# Closing


def test_call_after_closing_enters_the_resolver_again() -> None:
    resolver = Scripted()
    shared = share(resolver)
    shared.close()
    shared.call("cluster_spec")
    shared.close()
    shared.close()
    assert resolver.history == ["entered", "called", "closed"]
    shared.call("cluster_spec")
    shared.close()
    assert resolver.history == ["entered", "called", "closed"] * 2


def test_closing_waits_for_the_calls_in_progress(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(calling=gate)
    shared = share(resolver)
    call = threads.submit(shared.call, "cluster_spec")
    gate.reached.wait()
    closing = threads.submit(shared.close)
    settle()
    assert not closing.done()
    gate.open()
    closing.result()
    assert call.result() == WORKERS
    assert resolver.history == ["entered", "called", "closed"]


def test_two_concurrent_closings_both_wait_until_the_resolver_is_closed(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(closing=gate)
    shared = share(resolver)
    shared.call("cluster_spec")
    closings = [threads.submit(shared.close) for _ in range(2)]
    gate.reached.wait()
    settle()
    assert not any(closing.done() for closing in closings)
    gate.open()
    for closing in closings:
        closing.result()
    assert resolver.history == ["entered", "called", "closed"]


def test_call_made_during_closing_enters_the_resolver_afterwards(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(closing=gate)
    shared = share(resolver)
    shared.call("cluster_spec")
    closing = threads.submit(shared.close)
    gate.reached.wait()
    call = threads.submit(shared.call, "cluster_spec")
    settle()
    gate.open()
    closing.result()
    assert call.result() == WORKERS
    shared.close()
    assert resolver.history == ["entered", "called", "closed"] * 2


def test_resolver_is_exited_in_the_task_that_entered_it(
    threads: ThreadPoolExecutor,
) -> None:
    class Grouped(Scripted):
        async def __aenter__(self) -> Self:
            self._group: TaskGroup = await anyio.create_task_group().__aenter__()
            self._group.start_soon(anyio.sleep_forever)
            return await super().__aenter__()

        async def aclose(self) -> None:
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)
            await super().aclose()

    resolver = Grouped()
    shared = share(resolver)
    threads.submit(shared.call, "cluster_spec").result()
    threads.submit(shared.close).result()
    assert resolver.history == ["entered", "called", "closed"]


def test_close_raises_the_error_of_closing() -> None:
    errors = [ConnectionFailedError("broken pipe")]

    async def fail_once() -> None:
        if errors:
            raise errors.pop()

    shared = share(Scripted(closing=fail_once))
    shared.call("cluster_spec")
    with pytest.raises(ConnectionFailedError, match="broken pipe"):
        shared.close()
    assert shared.call("cluster_spec") == WORKERS
    shared.close()


def test_closing_has_a_deadline() -> None:
    shared = share(Scripted(closing=anyio.sleep_forever, timeout=0.05))
    shared.call("cluster_spec")
    with pytest.raises(DeadlineExceededError, match=r"Scripted object at .* was not exited within 0\.05 s"):
        shared.close()


# Closing without waiting


@pytest.mark.parametrize("in_loop", [False, True], ids=["any thread", "the loop thread"])
def test_close_soon_closes_the_resolver_without_waiting(in_loop: bool) -> None:
    gate = Gate()
    resolver = Scripted(closing=gate)
    shared = share(resolver)
    shared.call("cluster_spec")

    async def release() -> None:
        shared.close_soon()

    if in_loop:
        get_loop_thread().run(release)
    else:
        shared.close_soon()
    gate.reached.wait()
    assert resolver.history == ["entered", "called"]
    gate.open()
    settle()
    assert resolver.history == ["entered", "called", "closed"]


def test_close_soon_before_the_first_call_does_nothing() -> None:
    resolver = Scripted()
    share(resolver).close_soon()
    assert resolver.history == []


def test_error_of_close_soon_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shared = share(Scripted(closing=failing(ConnectionFailedError("broken pipe"))))
    shared.call("cluster_spec")
    shared.close_soon()
    settle()
    assert [record.name for record in caplog.records] == ["aioresolve.sync.shared"]
    assert "was not exited cleanly" in caplog.text
    assert "broken pipe" in caplog.text


def test_resolver_that_fails_between_calls_is_entered_again(caplog: pytest.LogCaptureFixture) -> None:
    gates = [Gate()]
    first = gates[0]

    class Breaking(Scripted):
        async def __aenter__(self) -> Self:
            self._group: TaskGroup = await anyio.create_task_group().__aenter__()
            self._group.start_soon(self._watch)
            return await super().__aenter__()

        async def _watch(self) -> None:
            if gates:
                await gates.pop()()
                raise ResolveError("lost its connection")

        async def aclose(self) -> None:
            await super().aclose()
            await self._group.__aexit__(None, None, None)

    resolver = Breaking()
    shared = share(resolver)
    shared.call("cluster_spec")
    first.open()
    settle()
    assert "lost its connection" in caplog.text
    assert shared.call("cluster_spec") == WORKERS
    shared.close()
    assert resolver.history == ["entered", "called", "closed"] * 2


# In another loop thread, as in a forked child


@pytest.fixture
def other_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    yield partial(monkeypatch.setattr, loop_thread, "_current", None)
    get_loop_thread().close()


def test_in_another_thread_the_resolver_is_created_again(
    other_thread: Callable[[], None],
) -> None:
    first, second = Scripted(), Scripted()
    shared = SharedResource[ClusterResolver](first, lambda _: second)
    shared.call("cluster_spec")
    context: Any = shared._context
    other_thread()
    shared.call("cluster_spec")
    shared.call("cluster_spec")
    shared.close()
    context.thread.run(context.aclose)
    assert first.history == ["entered", "called", "closed"]
    assert second.history == ["entered", "called", "called", "closed"]
    assert shared.resource is second


def test_in_another_thread_a_resolver_that_was_not_entered_is_kept(
    other_thread: Callable[[], None],
) -> None:
    resolver = Scripted()
    shared = SharedResource[ClusterResolver](resolver, lambda _: pytest.fail("created again"))
    other_thread()
    shared.call("cluster_spec")
    shared.close()
    assert resolver.history == ["entered", "called", "closed"]
