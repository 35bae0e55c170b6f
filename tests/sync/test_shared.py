"""One async resolver, entered once for the blocking calls of many threads."""

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
from aioresolve.sync.shared import SharedResolver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import TaskGroup

    from aioresolve._core.retry import Progress

THREADS = 32
WORKERS = ClusterSpec({"worker": ["a:1"]})


async def nothing() -> None:
    """Take no time."""


class Scripted(ClusterResolver):
    """Writes down what happens to it, and does what the test says while it is entered, asked and left."""

    def __init__(
        self,
        *,
        entering: Callable[[], Awaitable[object]] = nothing,
        asked: Callable[[], Awaitable[object]] = nothing,
        leaving: Callable[[], Awaitable[object]] = nothing,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(timeout=timeout)
        self._entering = entering
        self._asked = asked
        self._leaving = leaving
        self.history: list[str] = []

    async def fetch_state(self, progress: Progress) -> ClusterState:
        await self._asked()
        self.history.append("asked")
        return ClusterState.from_spec(WORKERS)

    async def __aenter__(self) -> Self:
        await self._entering()
        self.history.append("entered")
        return self

    async def aclose(self) -> None:
        await self._leaving()
        self.history.append("left")


class Gate:
    """Where a resolver waits, in the loop, until the test lets it go on."""

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


def shared(resolver: ClusterResolver) -> SharedResolver:
    return SharedResolver(resolver, lambda: resolver)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as threads:
        yield threads


def settle() -> None:
    """Wait until the loop has nothing left to do."""
    get_loop_thread().run(anyio.wait_all_tasks_blocked)


# Entering


def test_a_resolver_is_entered_by_the_first_call_and_kept() -> None:
    resolver = Scripted()
    share = shared(resolver)
    assert resolver.history == []
    assert share.call("cluster_spec") == share.call("cluster_spec", timeout=1.0) == WORKERS
    assert resolver.history == ["entered", "asked", "asked"]
    share.close()


def test_many_threads_enter_a_resolver_once_and_ask_it_at_the_same_time(threads: ThreadPoolExecutor) -> None:
    meeting = asyncio.Barrier(THREADS)
    resolver = Scripted(asked=meeting.wait)
    share = shared(resolver)
    specs = list(threads.map(lambda _: share.call("cluster_spec"), range(THREADS)))
    share.close()
    assert specs == [WORKERS] * THREADS
    assert resolver.history == ["entered", *["asked"] * THREADS, "left"]


def test_an_error_on_entering_reaches_everybody_who_waits(threads: ThreadPoolExecutor) -> None:
    gate, error = Gate(), ConnectionFailedError("nobody there")

    async def fail() -> None:
        await gate()
        raise error

    share = shared(Scripted(entering=fail))
    calls = [threads.submit(share.call, "cluster_spec") for _ in range(THREADS)]
    gate.reached.wait()
    settle()
    gate.open()
    assert {call.exception() for call in calls} == {error}


def test_after_an_error_on_entering_the_next_call_tries_again() -> None:
    errors = [ConnectionFailedError("nobody there")]

    async def fail_once() -> None:
        if errors:
            raise errors.pop()

    resolver = Scripted(entering=fail_once)
    share = shared(resolver)
    with pytest.raises(ConnectionFailedError, match="nobody there"):
        share.call("cluster_spec")
    share.close()
    assert share.call("cluster_spec") == WORKERS
    share.close()
    assert resolver.history == ["entered", "asked", "left"]


def test_entering_has_a_deadline() -> None:
    share = shared(Scripted(entering=anyio.sleep_forever, timeout=0.05))
    with pytest.raises(DeadlineExceededError, match=r"Scripted object at .* was not entered within 0\.05 s"):
        share.call("cluster_spec")


def test_an_interrupted_first_call_leaves_the_resolver_entered_for_the_next(
    threads: ThreadPoolExecutor,
) -> None:
    gate = Gate()
    resolver = Scripted(entering=gate)
    share = shared(resolver)

    async def first_call() -> None:
        with anyio.move_on_after(0.01):
            await share.acall("cluster_spec")

    get_loop_thread().run(first_call)
    second = threads.submit(share.call, "cluster_spec")
    gate.open()
    assert second.result() == WORKERS
    share.close()
    assert resolver.history == ["entered", "asked", "left"]


# Leaving


def test_closing_leaves_the_resolver_and_the_next_call_enters_it_again() -> None:
    resolver = Scripted()
    share = shared(resolver)
    share.close()
    share.call("cluster_spec")
    share.close()
    share.close()
    assert resolver.history == ["entered", "asked", "left"]
    share.call("cluster_spec")
    share.close()
    assert resolver.history == ["entered", "asked", "left"] * 2


def test_closing_lets_the_calls_in_flight_finish(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(asked=gate)
    share = shared(resolver)
    call = threads.submit(share.call, "cluster_spec")
    gate.reached.wait()
    closing = threads.submit(share.close)
    settle()
    assert not closing.done()
    gate.open()
    closing.result()
    assert call.result() == WORKERS
    assert resolver.history == ["entered", "asked", "left"]


def test_two_who_close_both_wait_until_the_resolver_is_left(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(leaving=gate)
    share = shared(resolver)
    share.call("cluster_spec")
    closings = [threads.submit(share.close) for _ in range(2)]
    gate.reached.wait()
    settle()
    assert not any(closing.done() for closing in closings)
    gate.open()
    for closing in closings:
        closing.result()
    assert resolver.history == ["entered", "asked", "left"]


def test_a_call_made_while_the_resolver_is_left_enters_it_after_that(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    resolver = Scripted(leaving=gate)
    share = shared(resolver)
    share.call("cluster_spec")
    closing = threads.submit(share.close)
    gate.reached.wait()
    call = threads.submit(share.call, "cluster_spec")
    settle()
    gate.open()
    closing.result()
    assert call.result() == WORKERS
    share.close()
    assert resolver.history == ["entered", "asked", "left"] * 2


def test_a_resolver_with_a_task_group_is_left_in_the_task_that_entered_it(
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
    share = shared(resolver)
    threads.submit(share.call, "cluster_spec").result()
    threads.submit(share.close).result()
    assert resolver.history == ["entered", "asked", "left"]


def test_an_error_on_leaving_is_raised_to_who_closes() -> None:
    errors = [ConnectionFailedError("broken pipe")]

    async def fail_once() -> None:
        if errors:
            raise errors.pop()

    share = shared(Scripted(leaving=fail_once))
    share.call("cluster_spec")
    with pytest.raises(ConnectionFailedError, match="broken pipe"):
        share.close()
    assert share.call("cluster_spec") == WORKERS
    share.close()


def test_leaving_has_a_deadline() -> None:
    share = shared(Scripted(leaving=anyio.sleep_forever, timeout=0.05))
    share.call("cluster_spec")
    with pytest.raises(DeadlineExceededError, match=r"Scripted object at .* was not left within 0\.05 s"):
        share.close()


# Releasing: nobody waits


@pytest.mark.parametrize("in_loop", [False, True], ids=["any thread", "the loop thread"])
def test_releasing_leaves_the_resolver_without_waiting(in_loop: bool) -> None:
    gate = Gate()
    resolver = Scripted(leaving=gate)
    share = shared(resolver)
    share.call("cluster_spec")

    async def release() -> None:
        share.close_soon()

    if in_loop:
        get_loop_thread().run(release)
    else:
        share.close_soon()
    gate.reached.wait()
    assert resolver.history == ["entered", "asked"]
    gate.open()
    settle()
    assert resolver.history == ["entered", "asked", "left"]


def test_releasing_what_was_never_entered_does_nothing() -> None:
    resolver = Scripted()
    shared(resolver).close_soon()
    assert resolver.history == []


def test_an_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    share = shared(Scripted(leaving=failing(ConnectionFailedError("broken pipe"))))
    share.call("cluster_spec")
    share.close_soon()
    settle()
    assert [record.name for record in caplog.records] == ["aioresolve.sync.shared"]
    assert "was not left cleanly" in caplog.text
    assert "broken pipe" in caplog.text


def test_a_resolver_that_breaks_between_calls_is_entered_again(caplog: pytest.LogCaptureFixture) -> None:
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
                raise ResolveError("lost its watch")

        async def aclose(self) -> None:
            await super().aclose()
            await self._group.__aexit__(None, None, None)

    resolver = Breaking()
    share = shared(resolver)
    share.call("cluster_spec")
    first.open()
    settle()
    assert "lost its watch" in caplog.text
    assert share.call("cluster_spec") == WORKERS
    share.close()
    assert resolver.history == ["entered", "asked", "left"] * 2


# In another portal, as in a forked child


@pytest.fixture
def another_portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    yield partial(monkeypatch.setattr, loop_thread, "_current", None)
    get_loop_thread().close()


def test_in_another_portal_the_resolver_is_made_again_with_its_attributes(
    another_portal: Callable[[], None],
) -> None:
    first, second = Scripted(), Scripted()
    share = SharedResolver(first, lambda: second)
    first.task_type = "worker"
    share.call("cluster_spec")
    first.task_id = 3
    context: Any = share._context
    another_portal()
    share.call("cluster_spec")
    share.call("cluster_spec")
    share.close()
    context.thread.run(context.left)
    assert first.history == ["entered", "asked", "left"]
    assert second.history == ["entered", "asked", "asked", "left"]
    assert share.resolver is second
    assert (second.task_type, second.task_id, second.rpc_layer) == ("worker", 3, None)


def test_in_another_portal_a_resolver_that_was_not_entered_yet_is_kept(
    another_portal: Callable[[], None],
) -> None:
    resolver = Scripted()
    share = SharedResolver(resolver, lambda: pytest.fail("made again"))
    another_portal()
    share.call("cluster_spec")
    share.close()
    assert resolver.history == ["entered", "asked", "left"]
