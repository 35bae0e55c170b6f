"""The one event loop of `aioresolve.sync`: a daemon thread in which the calls of all threads are made.

It starts with the first call and ends with the interpreter. A forked child starts with none, and gets its own
at its first call: the thread stayed with the parent, whose loop, sockets and locks are left alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import anyio
import anyio.from_thread

from aioresolve.errors import ConfigurationError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from anyio.abc import TaskGroup

__all__ = ["Guest", "Portal", "running_portal", "started_portal"]

T = TypeVar("T")

UNWINDING = 5.0
"""Seconds that an interrupted call may take to clean up before its thread goes on without it."""

CLOSING = 5.0
"""Seconds that the interpreter's exit waits for connections to be closed."""


class Guest(Protocol):
    """What stays in the loop between calls, and is asked to leave before the loop ends."""

    async def stay(self) -> None:
        """Run until `leave` is called; raises nothing."""

    def leave(self) -> None:
        """Let `stay` return soon. Called in the loop."""


class Portal:
    """An event loop in a daemon thread, running from construction until `close`.

    Raises:
        ResolveError: the thread could not be started.
    """

    _calls: anyio.from_thread.BlockingPortal
    _context: contextvars.Context
    _ended: anyio.Event
    _stays: TaskGroup
    _works: TaskGroup

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guests: set[Guest] = set()
        self._unwanted = False
        self._ending = False
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(started,), name="aioresolve.sync", daemon=True
        )
        try:
            self._thread.start()
            started.result()
        except RuntimeError as error:
            raise ResolveError(f"the loop thread of aioresolve.sync could not be started: {error}") from error
        except BaseException:  # such as a KeyboardInterrupt, while the thread starts
            self._unwanted = True
            self.soon(self._end)
            raise

    @property
    def is_running(self) -> bool:
        """Whether the loop takes calls."""
        return self._thread.is_alive() and not self._ending

    def run(self, asked: Callable[[], Awaitable[T]]) -> T:
        """Return what `asked` returns when awaited in the loop, in the caller's context variables.

        An exception that a signal raises in the waiting thread, such as KeyboardInterrupt, cancels the call
        and is raised on when that has unwound.

        Raises:
            ConfigurationError: called in the loop's own thread, where waiting for the loop would be for ever.
            ResolveError: the interpreter exits.
        """
        if threading.get_ident() == self._thread.ident:
            raise ConfigurationError(
                "a blocking call was made in the loop thread of aioresolve.sync, by a callback or a resolver"
                " that runs there, and would wait for itself; await the async resolver there instead"
            )
        call = _Call(asked)
        try:
            self._submit(call)
            call.finished.wait()
        except BaseException:
            self.soon(call.cancel)
            call.finished.wait(UNWINDING)
            raise
        return call.result()

    def soon(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the loop, if that still runs. Never waits, in whatever thread."""
        loop = self._loop
        if loop is not None:
            # A loop that is closed at this very moment has nothing left that could be called.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(callback)

    def welcome(self, guest: Guest) -> None:
        """Let `guest` stay, in a task and a context of its own. Called in the loop."""
        self._context.run(self._stays.start_soon, self._host, guest)

    def go_on(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`, which raises nothing, beside the calls; it is cancelled before the guests have to leave.

        It sees the context variables of the caller. Called in the loop.
        """
        self._works.start_soon(work)

    def close(self) -> None:
        """Cancel calls and works, let the guests leave, end the thread; wait `CLOSING` seconds at most."""
        self.soon(self._end)
        self._thread.join(CLOSING)

    def disown(self) -> None:
        """In a forked child, never touch the loop again: its wakeup pipe and epoll are still the parent's."""
        self._loop = None

    def _submit(self, call: _Call[Any]) -> None:
        try:
            self._calls.start_task_soon(call.run)
        except RuntimeError as error:
            call.finished.set()
            raise _exiting() from error

    def _main(self, started: Future[None]) -> None:
        try:
            anyio.run(self._serve, started, backend="asyncio")
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            # Python 3.12 and later have no threads at exit, and asyncio ends its executor in one.
            elif not (self._ending and isinstance(error, RuntimeError)):
                raise

    async def _serve(self, started: Future[None]) -> None:
        self._ended = anyio.Event()
        self._loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as self._stays:
            self._context = contextvars.copy_context()
            async with anyio.create_task_group() as self._works:
                async with anyio.from_thread.BlockingPortal() as self._calls:
                    started.set_result(None)
                    if not self._unwanted:
                        await self._ended.wait()
                    self._ending = True
                    await self._calls.stop(cancel_remaining=True)
                self._works.cancel_scope.cancel()
            for guest in tuple(self._guests):
                guest.leave()

    async def _host(self, guest: Guest) -> None:
        self._guests.add(guest)
        try:
            await guest.stay()
        finally:
            self._guests.discard(guest)

    def _end(self) -> None:
        self._ending = True
        self._ended.set()


class _Call(Generic[T]):
    """One call: run in the loop, awaited in another thread."""

    def __init__(self, asked: Callable[[], Awaitable[T]]) -> None:
        self.finished = threading.Event()
        self._asked = asked
        self._scope: anyio.CancelScope | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Make the call, in the loop."""
        if self.finished.is_set():
            return
        try:
            with anyio.CancelScope() as self._scope:
                self._value = await self._asked()
        except asyncio.CancelledError:
            self._error = ResolveError(
                "the call was cancelled in the loop thread of aioresolve.sync: the interpreter exits, or the"
                " resolver cancelled itself"
            )
            raise
        except BaseException as error:  # SystemExit too is the caller's: here it would end the loop
            self._error = error
        finally:
            self.finished.set()

    def cancel(self) -> None:
        """Cancel the call, in the loop; one that has not begun is forgotten."""
        if self._scope is None:
            self.finished.set()
        else:
            self._scope.cancel()

    def result(self) -> T:
        """Return what the finished call returned, or raise what it raised; to be asked once."""
        # The error's traceback leads here and to `run`: nothing on that way may still hold the error.
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return cast("T", self._value)


def _exiting() -> ResolveError:
    return ResolveError("the call was not made: the interpreter exits, and aioresolve.sync has ended with it")


_lock = threading.Lock()
_portal: Portal | None = None
_inherited: list[Portal] = []
_exited = False


def running_portal() -> Portal:
    """Return the process's portal, started if need be.

    Raises:
        ResolveError: the interpreter exits, or the thread could not be started.
    """
    global _portal
    portal = _portal
    if portal is not None and portal.is_running:
        return portal
    with _lock:
        if _exited:
            raise _exiting()
        if _portal is None or not _portal.is_running:
            _portal = Portal()
        return _portal


def started_portal() -> Portal | None:
    """Return the process's portal, or None if no call has started it yet."""
    return _portal


def _close_at_exit() -> None:
    global _exited
    with _lock:
        _exited = True
    if _portal is not None:
        _portal.close()


def _start_anew_in_child() -> None:
    global _lock, _portal
    _lock = threading.Lock()
    if _portal is not None:
        _portal.disown()
        # Collecting it would close what the parent uses.
        _inherited.append(_portal)
        _portal = None


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew_in_child)
