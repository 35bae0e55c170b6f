"""The event loop thread of the blocking facade."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import sys
import threading
import traceback
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.sync import loop_thread
from aioresolve.sync.loop_thread import LoopThread, current_loop_thread, get_loop_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

THREADS = 32
REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop thread for this test only; it has ended after the test."""
    thread = LoopThread()
    yield thread
    thread.close()
    assert not thread._thread.is_alive()


@pytest.fixture
def not_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process before its first call."""
    monkeypatch.setattr(loop_thread, "_current", None)
    yield
    if loop_thread._current is not None:
        loop_thread._current.close()


class Service:
    """Runs until it is stopped, and then takes `stopping` seconds to end."""

    def __init__(self, stopping: float = 0.0) -> None:
        self.history: list[str] = []
        self._stopping = stopping
        self._stopped = anyio.Event()

    async def run(self) -> None:
        self.history.append("started")
        await self._stopped.wait()
        await anyio.sleep(self._stopping)
        self.history.append("ended")

    def stop(self) -> None:
        self._stopped.set()


async def start_service(thread: LoopThread, stopping: float = 0.05) -> Service:
    service = Service(stopping)
    thread.start_service(service.run, service.stop)
    await anyio.wait_all_tasks_blocked()
    return service


async def thread_name() -> str:
    return threading.current_thread().name


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def number_of_tasks() -> int:
    await anyio.wait_all_tasks_blocked()
    return len(asyncio.all_tasks())


# Calls


def test_calls_run_in_the_loop_thread(thread: LoopThread) -> None:
    assert thread.run(thread_name) == "aioresolve.sync" != threading.current_thread().name


def test_calls_of_many_threads_run_concurrently_in_one_loop(thread: LoopThread) -> None:
    barrier = asyncio.Barrier(THREADS)

    async def meet() -> asyncio.AbstractEventLoop:
        await barrier.wait()
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(THREADS) as threads:
        loops = list(threads.map(lambda _: thread.run(meet), range(THREADS)))
    assert set(loops) == {thread.run(running_loop)}


def test_signal_that_does_not_end_the_wait_interrupts_the_call(thread: LoopThread) -> None:
    # Like a signal that arrives just before the wait, one that another thread handles only sets a flag.
    class InterruptedCallError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptedCallError

    async def wait() -> None:
        await anyio.sleep(0.1)  # the caller should wait by then; if not, this test shows less
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(InterruptedCallError):
            thread.run(wait)
    finally:
        signal.signal(signal.SIGINT, before)


def test_call_sees_the_context_variables_of_its_caller(thread: LoopThread) -> None:
    async def request() -> str:
        return REQUEST.get("none")

    assert thread.run(request) == "none"
    assert contextvars.copy_context().run(lambda: (REQUEST.set("7"), thread.run(request))[1]) == "7"
    assert thread.run(request) == "none"


async def test_call_can_be_made_inside_another_running_loop(thread: LoopThread) -> None:
    assert thread.run(running_loop) is not asyncio.get_running_loop()


def test_call_in_the_loop_thread_raises_instead_of_waiting_for_itself(thread: LoopThread) -> None:
    async def call_again() -> str:
        return thread.run(thread_name)

    with pytest.raises(ConfigurationError, match="Await the async resolver there instead"):
        thread.run(call_again)
    assert thread.run(thread_name)


# Errors


def test_error_is_raised_unchanged_with_its_traceback(thread: LoopThread) -> None:
    error = ResolveError("no such cluster")

    async def raise_it() -> None:
        raise error from OSError("cause")

    with pytest.raises(ResolveError) as caught:
        thread.run(raise_it)
    assert caught.value is error
    assert isinstance(error.__cause__, OSError)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[0] == "test_error_is_raised_unchanged_with_its_traceback"
    assert frames[-1] == "raise_it"


def test_handled_error_is_released(thread: LoopThread) -> None:
    async def raise_it() -> None:
        raise ResolveError("once")

    def handle() -> weakref.ref[ResolveError]:
        try:
            thread.run(raise_it)
        except ResolveError as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        assert handle()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_exception_that_would_end_a_loop_reaches_only_the_caller(
    thread: LoopThread, kind: type[BaseException]
) -> None:
    async def raise_it() -> None:
        raise kind

    with pytest.raises(kind):
        thread.run(raise_it)
    assert thread.run(thread_name)


def test_resolver_that_cancels_itself_raises_a_resolve_error(thread: LoopThread) -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ResolveError, match="cancelled itself"):
        thread.run(cancel)
    assert thread.run(thread_name)


# Interrupts


class Interrupt(BaseException):
    """Raised by the signal handler, as SIGINT raises KeyboardInterrupt."""


@pytest.fixture
def interruptible() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_cancels_the_call_and_waits_until_it_has_cleaned_up(thread: LoopThread) -> None:
    history: list[str] = []

    async def interrupted() -> None:
        interrupt_main_thread()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            history.append("cleaned up")

    tasks = thread.run(number_of_tasks)
    with pytest.raises(Interrupt):
        thread.run(interrupted)
    assert history == ["cleaned up"]
    assert thread.run(number_of_tasks) == tasks


@pytest.mark.usefixtures("interruptible")
def test_interrupted_call_that_does_not_end_does_not_block_its_caller(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "INTERRUPT_TIMEOUT", 0.05)
    released = thread.run(create_event)

    async def shielded() -> None:
        interrupt_main_thread()
        with anyio.CancelScope(shield=True):
            await released.wait()

    with pytest.raises(Interrupt):
        thread.run(shielded)
    thread.call_soon(released.set)


async def create_event() -> anyio.Event:
    return anyio.Event()


async def test_call_interrupted_before_it_starts_never_starts() -> None:
    history: list[str] = []

    async def start() -> None:
        history.append("started")

    call = loop_thread._Call(start)
    call.cancel()
    await call.run()
    assert call.finished.is_set()
    assert history == []


@pytest.fixture
def interrupted_start(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Interrupt the main thread while the loop thread starts, which continues once the event is set."""
    serve, handled = LoopThread._serve, threading.Event()

    async def interrupted(self: LoopThread, started: Future[None]) -> None:
        interrupt_main_thread()
        await anyio.to_thread.run_sync(handled.wait)
        await serve(self, started)

    monkeypatch.setattr(LoopThread, "_serve", interrupted)
    return handled


@pytest.mark.usefixtures("interruptible", "not_started")
def test_interrupt_while_the_thread_starts_leaves_it_to_the_next_call(
    interrupted_start: threading.Event,
) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Interrupt):
        get_loop_thread()
    interrupted_start.set()
    assert get_loop_thread().run(thread_name)
    assert len({thread for thread in threading.enumerate() if thread.name == "aioresolve.sync"} - before) == 1


@pytest.mark.usefixtures("not_started")
def test_signal_handler_can_make_a_call_while_the_first_call_starts_the_thread(
    interrupted_start: threading.Event,
) -> None:
    calls: list[LoopThread] = []

    def handle(number: int, frame: object) -> None:
        threading.Timer(0.01, interrupted_start.set).start()
        thread = get_loop_thread()
        thread.run(thread_name)
        calls.append(thread)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert get_loop_thread().run(thread_name)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [current_loop_thread()]


def test_signal_handler_can_make_a_call_during_another_call(thread: LoopThread) -> None:
    names: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: names.append(thread.run(thread_name)))

    async def interrupted() -> str:
        interrupt_main_thread()
        while not names:  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.001)
        return "outer"

    try:
        assert thread.run(interrupted) == "outer"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert names == ["aioresolve.sync"]


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("not_started")
@pytest.mark.parametrize("is_first", [True, False])
def test_signal_handler_can_make_a_call_at_any_point_of_another_call(is_first: bool) -> None:
    """Interrupt the main thread at each line that it executes in the facade and in the standard library."""
    interrupted: set[tuple[str, int]] = set()
    is_handling = False

    def handle(number: int, frame: object) -> None:
        nonlocal is_handling
        if not is_handling:
            is_handling = True
            assert get_loop_thread().run(thread_name) == "aioresolve.sync"
            is_handling = False

    def interrupt(frame: FrameType, event: str, arg: object) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line not in interrupted:
            interrupted.add(line)
            signal.raise_signal(signal.SIGUSR1)
        return interrupt

    if not is_first:
        get_loop_thread()
    before, traced = signal.signal(signal.SIGUSR1, handle), sys.gettrace()
    sys.settrace(interrupt)
    try:
        for _ in range(3):
            get_loop_thread().run(thread_name)
    finally:
        sys.settrace(traced)
        signal.signal(signal.SIGUSR1, before)
    assert len(interrupted) > 10


# One loop thread per process


@pytest.mark.usefixtures("not_started")
def test_concurrent_first_calls_start_one_thread() -> None:
    barrier = threading.Barrier(THREADS)

    def first_call() -> LoopThread:
        barrier.wait()
        return get_loop_thread()

    with ThreadPoolExecutor(THREADS) as threads:
        started = {future.result() for future in [threads.submit(first_call) for _ in range(THREADS)]}
    assert started == {current_loop_thread()}


@pytest.mark.usefixtures("not_started")
def test_no_thread_is_started_before_the_first_call() -> None:
    assert current_loop_thread() is None


@pytest.mark.usefixtures("not_started")
def test_next_call_replaces_a_thread_that_has_ended() -> None:
    ended = get_loop_thread()
    ended.close()
    assert get_loop_thread().run(thread_name)
    assert get_loop_thread() is not ended


@pytest.mark.usefixtures("not_started")
def test_thread_that_cannot_be_started_raises_a_resolve_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ResolveError, match="can't start new thread"):
        get_loop_thread()
    assert current_loop_thread() is None


@pytest.mark.usefixtures("not_started")
def test_call_during_the_exit_of_the_interpreter_raises_a_resolve_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_thread, "_has_exited", False)
    thread = get_loop_thread()
    loop_thread._close_at_exit()
    with pytest.raises(ResolveError, match="the interpreter exits"):
        get_loop_thread()
    with pytest.raises(ResolveError, match="the interpreter exits"):
        thread.run(thread_name)


# Closing


def test_call_that_a_loop_has_not_started_when_it_ends_raises_a_resolve_error(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "_submit", lambda call: thread.close())
    with pytest.raises(ResolveError, match="the interpreter exits"):
        thread.run(thread_name)


def test_closing_cancels_the_calls_in_progress(thread: LoopThread) -> None:
    started = threading.Event()

    is_running = []

    async def endless() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            is_running.append(thread.is_running)

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(thread.run, endless)
        started.wait()
        assert thread.is_running
        thread.close()
        with pytest.raises(ResolveError, match="the interpreter exits"):
            call.result()
    assert is_running == [False]


def test_closing_stops_the_services_first(thread: LoopThread) -> None:
    service = thread.run(partial(start_service, thread))
    thread.close()
    assert service.history == ["started", "ended"]


def test_closing_does_not_stop_a_service_that_has_ended(thread: LoopThread) -> None:
    stopped: list[str] = []

    async def end_at_once() -> None:
        return

    async def start() -> None:
        thread.start_service(end_at_once, lambda: stopped.append("again"))
        await anyio.wait_all_tasks_blocked()

    thread.run(start)
    thread.close()
    assert stopped == []


def test_closing_does_not_wait_forever_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "EXIT_TIMEOUT", 0.05)
    thread = LoopThread()
    service = thread.run(partial(start_service, thread, 1.0))
    thread.close()
    assert service.history == ["started"]
    thread._thread.join()


def test_service_does_not_get_the_context_variables_of_a_caller(thread: LoopThread) -> None:
    seen: list[str] = []

    async def record() -> None:
        seen.append(REQUEST.get("none"))

    async def start() -> None:
        thread.start_service(record, lambda: None)

    contextvars.copy_context().run(lambda: (REQUEST.set("7"), thread.run(start)))
    thread.run(number_of_tasks)
    assert seen == ["none"]


def test_callback_for_a_closed_loop_is_not_called(thread: LoopThread) -> None:
    history: list[str] = []
    thread.close()
    thread.call_soon(lambda: history.append("called"))
    thread.close()
    assert history == []


def test_detached_loop_is_not_woken_up(thread: LoopThread) -> None:
    history: list[str] = []
    loop = thread._loop
    thread.detach_after_fork()
    thread.call_soon(lambda: history.append("called"))
    thread.run(number_of_tasks)
    assert history == []
    thread._loop = loop


def test_loop_of_the_parent_is_not_garbage_in_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_lock", threading.Lock())
    monkeypatch.setattr(loop_thread, "_inherited", [])
    monkeypatch.setattr(loop_thread, "_current", LoopThread())
    current = current_loop_thread()
    assert current is not None
    current.close()  # a forked child has no thread either
    inherited = weakref.ref(current)
    del current
    loop_thread._reset_after_fork()
    gc.collect()
    assert inherited() is not None
    assert current_loop_thread() is None
