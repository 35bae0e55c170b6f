"""The one loop thread of the blocking facade."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import time
import traceback
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.sync import loop_thread as room
from aioresolve.sync.loop_thread import Portal, running_portal, started_portal

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = 32
REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST")


@pytest.fixture
def portal() -> Iterator[Portal]:
    """A portal of the test's own; its thread is gone after the test."""
    portal = Portal()
    yield portal
    portal.close()
    assert not portal._thread.is_alive()


@pytest.fixture
def no_portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process as it is before its first call."""
    monkeypatch.setattr(room, "_portal", None)
    yield
    if room._portal is not None:
        room._portal.close()


class Guest:
    """Stays until it is told to leave, and then takes its time."""

    def __init__(self, takes: float = 0.0) -> None:
        self.history: list[str] = []
        self._takes = takes
        self._leaving = anyio.Event()

    async def stay(self) -> None:
        self.history.append("came")
        await self._leaving.wait()
        await anyio.sleep(self._takes)
        self.history.append("left")

    def leave(self) -> None:
        self._leaving.set()


async def thread_name() -> str:
    return threading.current_thread().name


async def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


# Calls


def test_a_call_is_made_in_the_loop_thread(portal: Portal) -> None:
    assert portal.run(thread_name) == "aioresolve.sync" != threading.current_thread().name


def test_the_calls_of_many_threads_are_made_in_one_loop_at_the_same_time(portal: Portal) -> None:
    barrier = asyncio.Barrier(THREADS)

    async def meet() -> asyncio.AbstractEventLoop:
        await barrier.wait()
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(THREADS) as threads:
        loops = list(threads.map(lambda _: portal.run(meet), range(THREADS)))
    assert set(loops) == {portal.run(loop)}


def test_a_call_sees_the_context_variables_of_its_caller(portal: Portal) -> None:
    async def request() -> str:
        return REQUEST.get("none")

    assert portal.run(request) == "none"
    assert contextvars.copy_context().run(lambda: (REQUEST.set("7"), portal.run(request))[1]) == "7"
    assert portal.run(request) == "none"


async def test_a_call_may_be_made_inside_a_running_loop(portal: Portal) -> None:
    assert portal.run(loop) is not asyncio.get_running_loop()


def test_a_call_made_in_the_loop_thread_is_refused_instead_of_waiting_for_itself(portal: Portal) -> None:
    async def call_again() -> str:
        return portal.run(thread_name)

    with pytest.raises(ConfigurationError, match="await the async resolver there instead"):
        portal.run(call_again)
    assert portal.run(thread_name)


# Errors


def test_an_error_comes_out_as_it_is_with_the_way_it_took(portal: Portal) -> None:
    error = ResolveError("no such cluster")

    async def raise_it() -> None:
        raise error from OSError("cause")

    with pytest.raises(ResolveError) as caught:
        portal.run(raise_it)
    assert caught.value is error
    assert isinstance(error.__cause__, OSError)
    way = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert way[0] == "test_an_error_comes_out_as_it_is_with_the_way_it_took"
    assert way[-1] == "raise_it"


def test_an_error_that_was_dealt_with_is_held_by_nothing(portal: Portal) -> None:
    async def raise_it() -> None:
        raise ResolveError("once")

    def dealt_with() -> weakref.ref[ResolveError]:
        try:
            portal.run(raise_it)
        except ResolveError as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        assert dealt_with()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_would_end_a_loop_reaches_the_caller_and_spares_the_loop(
    portal: Portal, kind: type[BaseException]
) -> None:
    async def raise_it() -> None:
        raise kind

    with pytest.raises(kind):
        portal.run(raise_it)
    assert portal.run(thread_name)


def test_a_resolver_that_cancels_itself_is_an_error_of_ours(portal: Portal) -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ResolveError, match="cancelled itself"):
        portal.run(cancel)
    assert portal.run(thread_name)


# Interrupts


class Interrupted(BaseException):
    """What the signal handler raises, as that of SIGINT raises KeyboardInterrupt."""


@pytest.fixture
def interruptible() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_the_call_and_waits_until_it_has_unwound(portal: Portal) -> None:
    history: list[str] = []

    async def interrupted() -> None:
        interrupt_main_thread()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            history.append("unwound")

    tasks = portal.run(tasks_at_rest)
    with pytest.raises(Interrupted):
        portal.run(interrupted)
    assert history == ["unwound"]
    assert portal.run(tasks_at_rest) == tasks


async def tasks_at_rest() -> int:
    await anyio.wait_all_tasks_blocked()
    return len(asyncio.all_tasks())


@pytest.mark.usefixtures("interruptible")
def test_a_call_that_does_not_unwind_does_not_hold_its_thread(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "UNWINDING", 0.05)
    let_go = portal.run(event)

    async def stubborn() -> None:
        interrupt_main_thread()
        with anyio.CancelScope(shield=True):
            await let_go.wait()

    with pytest.raises(Interrupted):
        portal.run(stubborn)
    portal.soon(let_go.set)


async def event() -> anyio.Event:
    return anyio.Event()


async def test_a_call_interrupted_before_it_has_begun_never_begins() -> None:
    history: list[str] = []

    async def begin() -> None:
        history.append("began")

    call = room._Call(begin)
    call.cancel()
    await call.run()
    assert call.finished.is_set()
    assert history == []


@pytest.mark.usefixtures("interruptible", "no_portal")
def test_an_interrupt_while_the_thread_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Portal._serve

    async def interrupted(self: Portal, started: Future[None]) -> None:
        interrupt_main_thread()
        await anyio.sleep(0.05)
        await serve(self, started)

    monkeypatch.setattr(Portal, "_serve", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(Interrupted):
        running_portal()
    assert started_portal() is None
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive()


# One portal for the process


@pytest.mark.usefixtures("no_portal")
def test_many_threads_that_make_the_first_call_start_one_portal() -> None:
    barrier = threading.Barrier(THREADS)

    def first_call() -> Portal:
        barrier.wait()
        return running_portal()

    with ThreadPoolExecutor(THREADS) as threads:
        portals = {future.result() for future in [threads.submit(first_call) for _ in range(THREADS)]}
    assert portals == {started_portal()}


@pytest.mark.usefixtures("no_portal")
def test_nothing_is_started_before_the_first_call() -> None:
    assert started_portal() is None


@pytest.mark.usefixtures("no_portal")
def test_a_portal_that_has_ended_is_replaced_by_the_next_call() -> None:
    ended = running_portal()
    ended.close()
    assert running_portal().run(thread_name)
    assert running_portal() is not ended


@pytest.mark.usefixtures("no_portal")
def test_a_thread_that_cannot_be_started_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ResolveError, match="can't start new thread"):
        running_portal()
    assert started_portal() is None


@pytest.mark.usefixtures("no_portal")
def test_a_call_after_the_interpreter_began_to_exit_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_exited", False)
    portal = running_portal()
    room._close_at_exit()
    with pytest.raises(ResolveError, match="the interpreter exits"):
        running_portal()
    with pytest.raises(ResolveError, match="the interpreter exits"):
        portal.run(thread_name)


# Its end


def test_a_portal_that_closes_cancels_the_calls_in_flight(portal: Portal) -> None:
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await anyio.sleep_forever()

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(portal.run, endless)
        begun.wait()
        portal.close()
        with pytest.raises(ResolveError, match="the interpreter exits"):
            call.result()


def test_a_portal_that_closes_lets_its_guests_leave_first(portal: Portal) -> None:
    guest = portal.run(partial(welcomed, portal))
    portal.close()
    assert guest.history == ["came", "left"]


async def welcomed(portal: Portal, takes: float = 0.05) -> Guest:
    guest = Guest(takes)
    portal.welcome(guest)
    await anyio.wait_all_tasks_blocked()
    return guest


def test_closing_does_not_wait_for_ever_for_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CLOSING", 0.05)
    portal = Portal()
    portal.run(partial(welcomed, portal, 0.5))
    started = time.monotonic()
    portal.close()
    assert time.monotonic() - started < 0.4
    portal._thread.join()


def test_a_guest_lives_in_no_callers_context(portal: Portal) -> None:
    seen: list[str] = []

    class Curious(Guest):
        async def stay(self) -> None:
            seen.append(REQUEST.get("none"))

    async def welcome() -> None:
        portal.welcome(Curious())

    contextvars.copy_context().run(lambda: (REQUEST.set("7"), portal.run(welcome)))
    portal.run(tasks_at_rest)
    assert seen == ["none"]


def test_what_is_to_be_called_soon_in_a_closed_loop_is_not_called(portal: Portal) -> None:
    history: list[str] = []
    portal.close()
    portal.soon(lambda: history.append("called"))
    portal.close()
    assert history == []


def test_the_loop_of_a_disowned_portal_is_not_woken(portal: Portal) -> None:
    history: list[str] = []
    loop = portal._loop
    portal.disown()
    portal.soon(lambda: history.append("called"))
    portal.run(tasks_at_rest)
    assert history == []
    portal._loop = loop
