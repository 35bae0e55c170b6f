"""The event loop thread of the blocking facade."""

import _thread
import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import anyio
import anyio.to_thread
import pytest

from aioresolve.errors import ResolveError
from aioresolve.sync import loop_thread
from aioresolve.sync.loop_thread import LoopThread, current_loop_thread, get_loop_thread

THREADS = 32


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop thread for this test only; it has ended after the test, and keeps no call in memory."""
    thread = LoopThread()
    yield thread
    thread.close()
    assert not thread._thread.is_alive()
    assert not thread._calls


@pytest.fixture
def not_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process before its first call."""
    monkeypatch.setattr(loop_thread, "_current", None)
    yield
    if loop_thread._current is not None:
        loop_thread._current.close()


async def thread_name() -> str:
    return threading.current_thread().name


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [(SystemExit(7), SystemExit, "7"), (asyncio.CancelledError(), ResolveError, "cancelled itself")],
)
def test_exception_that_would_end_a_loop_reaches_only_the_caller(
    thread: LoopThread, error: BaseException, raised: type[BaseException], words: str
) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(raised, match=words):
        thread.run(fail)
    assert thread.run(thread_name) == "aioresolve.sync"


# Interrupts


class Interrupt(BaseException):
    """Raised by the signal handler, as SIGINT raises KeyboardInterrupt."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupt


def test_interrupted_call_that_does_not_end_does_not_block_its_caller(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "INTERRUPT_TIMEOUT", 0.05)
    released = thread.run(create_event)

    async def shielded() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    before = signal.signal(signal.SIGUSR1, interrupt)
    with pytest.raises(Interrupt):
        thread.run(shielded)
    signal.signal(signal.SIGUSR1, before)
    thread.call_soon(released.set)


def test_signal_that_does_not_wake_the_caller_interrupts_it(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "SIGNAL_PERIOD", 0.01)
    has_cleaned_up = False

    async def endless() -> None:
        nonlocal has_cleaned_up
        await anyio.sleep(0.05)  # until the caller waits
        _thread.interrupt_main(signal.SIGUSR1)  # wakes no wait, as a signal just before it begins
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0.01)
            has_cleaned_up = True

    before = signal.signal(signal.SIGUSR1, interrupt)
    with pytest.raises(Interrupt):
        thread.run(endless)
    assert has_cleaned_up
    signal.signal(signal.SIGUSR1, before)


async def create_event() -> anyio.Event:
    return anyio.Event()


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


def test_event_loop_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(serving: Coroutine[None, None, None]) -> None:
        serving.close()
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio, "run", fail)
    with pytest.raises(ResolveError, match=r"aioresolve\.sync did not start: too many open files"):
        LoopThread()


# Closing


def test_thread_that_ends_reports_any_error_but_that_no_more_threads_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, reported, bug = asyncio.run, list[BaseException | None](), OSError("a bug")
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    for error in (RuntimeError("can't create new thread at interpreter shutdown"), bug):

        def fail(serving: Coroutine[None, None, None], error: Exception = error) -> None:
            run(serving)
            raise error

        monkeypatch.setattr(asyncio, "run", fail)
        LoopThread().close()
    assert reported == [bug]


@pytest.mark.usefixtures("not_started")
def test_exit_of_the_interpreter_ends_the_thread_and_refuses_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_has_exited", False)
    thread = get_loop_thread()
    loop_thread._close_at_exit()
    assert not thread.is_running
    with pytest.raises(ResolveError, match="accepts no more calls"):
        get_loop_thread()


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
