"""`watch()` of the blocking facade: an iterator that runs in the event loop thread."""

import asyncio
import contextvars
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import anyio
import pytest

from aioresolve import ClusterResolver, Progress, Want, sync
from aioresolve.errors import APIError, ConfigurationError
from aioresolve.spec import ClusterState, Observation
from aioresolve.sync.loop_thread import get_loop_thread
from tests.fleet.fleets import Scripted, workers

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST")


def settle() -> None:
    """Wait until all tasks of the event loop thread are blocked."""
    get_loop_thread().run(anyio.wait_all_tasks_blocked)


class Source(ClusterResolver):
    """Yields the states that a test passes to `show` in any thread; counts its running watches."""

    def __init__(self) -> None:
        super().__init__(timeout=5.0)
        self.watches = 0
        self.yielded = 0
        self.requests: list[str] = []
        self._pending: list[ClusterState | BaseException] = []
        self._changed = asyncio.Event()

    def show(self, *shown: ClusterState | BaseException) -> None:
        """Have the watches yield or raise these."""

        async def show() -> None:
            self._pending += shown
            self._changed.set()

        get_loop_thread().run(show)

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return Observation(workers(1))

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        self.watches += 1
        self.requests.append(REQUEST.get("none"))
        try:
            while True:
                while self._pending:
                    shown = self._pending.pop(0)
                    if isinstance(shown, BaseException):
                        raise shown
                    self.yielded += 1
                    yield Observation(shown)
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.watches -= 1


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    settle()
    assert source.watches == 0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


async def until(condition: Any) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - a condition on anything has no event of its own
            await anyio.sleep(0.001)


# Ending


def test_closing_ends_the_watch_immediately(source: Source) -> None:
    source.show(workers(1))
    with closing(sync.ClusterResolver(source).watch()) as watch:
        next(watch)
        assert source.watches == 1
    assert source.watches == 0
    watch.close()
    assert list(watch) == []
    unused = sync.ClusterResolver(source).watch()
    unused.close()
    source.show(workers(2))
    assert next(unused, None) is None


def test_watch_ends_with_the_interpreter_and_is_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.sync.loop_thread._current", None)
    watch = sync.ClusterResolver(Scripted()).watch()
    assert next(watch) == workers(1)
    get_loop_thread().close()
    with pytest.raises(StopIteration):
        next(watch)
    monkeypatch.setattr("aioresolve.sync.loop_thread._current", None)  # as in a forked child
    with pytest.raises(ConfigurationError, match="was started before this process was forked"):
        next(watch)


def test_closing_the_resolver_ends_its_watches(source: Source, threads: ThreadPoolExecutor) -> None:
    resolver = sync.ClusterResolver(source)
    source.show(workers(1))
    watch, started = resolver.watch(), threading.Event()

    def follow() -> list[ClusterState]:
        states = []
        for state in watch:
            states.append(state)
            started.set()
        return states

    following = threads.submit(follow)
    started.wait()
    resolver.close()
    assert following.result() == [workers(1)]
    assert list(watch) == []
    source.show(workers(2))
    assert next(resolver.watch()) == workers(2)


def test_closing_a_watch_ends_next_in_another_thread(source: Source, threads: ThreadPoolExecutor) -> None:
    watch = sync.ClusterResolver(source).watch()
    following = threads.submit(list, watch)
    get_loop_thread().run(partial(until, lambda: source.watches == 1))
    watch.close()
    assert following.result() == []


# Errors


def test_error_is_raised_once_and_ends_the_watch(source: Source) -> None:
    source.show(workers(1), APIError("403: no", status=403))
    watch = sync.ClusterResolver(source).watch()
    assert next(watch) == workers(1)
    with pytest.raises(APIError, match="403: no"):
        next(watch)
    assert list(watch) == []
    assert source.watches == 0


def test_first_next_raises_an_error_for_an_invalid_argument(source: Source) -> None:
    resolver: Any = sync.ClusterResolver(source)
    with pytest.raises(TypeError, match="unexpected keyword argument 'intervall'"):
        next(resolver.watch(intervall=1.0))
    with pytest.raises(ConfigurationError, match="`interval=`: 0"):
        next(sync.ClusterResolver(Scripted()).watch(interval=0))


# Threads and contexts


def test_watch_sees_the_context_variables_of_its_first_next(source: Source) -> None:
    source.show(workers(1))
    watch = sync.ClusterResolver(source).watch()
    contextvars.copy_context().run(lambda: (REQUEST.set("7"), next(watch)))
    assert source.requests == ["7"]
    watch.close()


class Interrupt(BaseException):
    """Raised by the signal handler, as SIGINT raises KeyboardInterrupt."""


def test_interrupt_ends_one_call_of_next_but_not_the_watch(source: Source) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        source.show(workers(1))
        watch = sync.ClusterResolver(source).watch()
        next(watch)
        timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
        timer.start()
        with pytest.raises(Interrupt):
            next(watch)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    source.show(workers(2), workers(3))
    settle()
    assert next(watch) == workers(2)
    settle()
    assert (len(source.requests), source.yielded) == (1, 2)  # the third waits for its request
    watch.close()
