"""The event loop thread of `aioresolve.sync`: all blocking calls of a process enter one event loop here.

The daemon thread starts with the first call and ends with the interpreter. A forked child inherits no thread:
it abandons the loop of its parent, whose sockets and locks it must not touch, and starts a thread of its own
with its first call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from aioresolve.errors import ConfigurationError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPT_TIMEOUT = 5.0
"""Seconds that an interrupted call may take to clean up before its caller stops waiting for it."""

SIGNAL_PERIOD = 0.5
"""Seconds after which a waiting caller handles a signal that arrived just before it began to wait."""

EXIT_TIMEOUT = 5.0
"""Seconds that the exit of the interpreter waits for connections to be closed."""


class LoopThread:
    """An event loop in a daemon thread. It runs from construction until `close`."""

    _context: contextvars.Context
    _ended: asyncio.Event
    _loop: asyncio.AbstractEventLoop | None

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[None]] = set()
        self._services: set[asyncio.Task[None]] = set()
        self._is_ending = False
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(started,), name="aioresolve.sync", daemon=True
        )
        try:
            self._thread.start()
            started.result()
        except (OSError, RuntimeError) as error:
            raise ResolveError(f"the event loop thread of aioresolve.sync did not start: {error}") from error

    @property
    def is_running(self) -> bool:
        """Whether the loop accepts calls."""
        return self._thread.is_alive() and not self._is_ending

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()` in the loop, with the context variables of the caller, and return its result.

        An exception that a signal handler raises in the waiting thread, such as KeyboardInterrupt, cancels
        the call; it is raised again after the call has cleaned up.
        """
        if threading.get_ident() == self._thread.ident:
            raise ConfigurationError(
                "a callback or a resolver made a blocking call in the event loop thread of aioresolve.sync,"
                " which would wait for itself",
                hint="Await the async resolver there instead.",
            )
        call = _Call(function)
        try:
            # Not by a BlockingPortal, which waits here: an interrupt at that time would not cancel the call.
            if not self.is_running or not self.call_soon(partial(self._start, call)):
                raise _exiting_error()
            # Python wakes no wait for a lock if the signal arrives between its last check and the wait.
            while not call.result.done():
                wait([call.result], SIGNAL_PERIOD)
            return call.result.result()
        except BaseException:
            if not call.result.done():
                self.call_soon(call.cancel)
                wait([call.result], INTERRUPT_TIMEOUT)
            raise
        finally:
            # The traceback of an error has this frame: the cycle would keep alive what the caller released.
            del call

    def call_soon(self, callback: Callable[[], object]) -> bool:
        """Call `callback` in the loop, in any thread, without waiting. Return False if the loop has ended."""
        loop = self._loop
        with suppress(RuntimeError):  # the loop may be closed at this very moment
            if loop is not None:
                loop.call_soon_threadsafe(callback)
                return True
        return False

    def start_service(self, run: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a task that outlives the call that starts it. Must be called in the loop.

        It does not get the context variables of that call. `run` must not raise. It is cancelled when the
        loop ends, after all calls and generators.
        """
        service = asyncio.create_task(run(), context=self._context.copy())
        self._services.add(service)
        service.add_done_callback(self._services.discard)

    def spawn(self, run: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task with the context variables of the caller. Must be called in the loop.

        The task must not raise. It is cancelled when the loop ends.
        """
        task = asyncio.create_task(run)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    def close(self) -> None:
        """Cancel all calls and tasks, stop the services, and end the thread. Waits at most `EXIT_TIMEOUT`."""
        self.call_soon(self._end)
        self._thread.join(EXIT_TIMEOUT)

    def detach_after_fork(self) -> None:
        """In a forked child, stop using the loop: its wakeup pipe and epoll are shared with the parent."""
        self._loop = None

    def _main(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            # Since Python 3.12 no thread can be started at exit, but asyncio starts one to end its executor.
            elif not (self._is_ending and isinstance(error, RuntimeError)):
                raise

    async def _serve(self, started: Future[None]) -> None:
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        started.set_result(None)
        await self._ended.wait()
        # In this order: calls and generators use the resources that services hold open.
        for tasks in (self._calls, self._services):
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, call: _Call[Any]) -> None:
        """Start a call, in the loop, with the context variables of the caller."""
        if self._is_ending:
            call.result.set_exception(_exiting_error())
        else:
            call.task = self.spawn(call.run())
            call.task.add_done_callback(call.finish)

    def _end(self) -> None:
        self._is_ending = True
        self._ended.set()


class _Call(Generic[T]):
    """One call: it runs in the loop, while another thread waits for `result`."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.result: Future[T] = Future()
        self.task: asyncio.Task[None] | None = None
        self._function = function

    async def run(self) -> None:
        """Run the call, in the loop."""
        try:
            self.result.set_result(await self._function())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit too belongs to the caller; here it would end the loop
            self.result.set_exception(error)

    def cancel(self) -> None:
        """Cancel the call, in the loop."""
        if self.task is not None:
            self.task.cancel()

    def finish(self, _: asyncio.Task[None]) -> None:
        """Set the result of a call that has no other, because it was cancelled."""
        if not self.result.done():
            self.result.set_exception(
                ResolveError(
                    "the call was cancelled in the event loop thread of aioresolve.sync: the interpreter"
                    " exits, or the resolver cancelled itself"
                )
            )


def _exiting_error() -> ResolveError:
    return ResolveError("aioresolve.sync accepts no more calls, because the interpreter exits")


_lock = threading.Lock()
_current: LoopThread | None = None
_inherited: list[LoopThread] = []
_has_exited = False


def get_loop_thread() -> LoopThread:
    """Return the event loop thread of this process; start it if it is not running."""
    global _current
    with _lock:
        if _current is None or not _current.is_running:
            if _has_exited:  # Python 3.12 starts no thread at that time, and says so in other words
                raise _exiting_error()
            _current = LoopThread()
        return _current


def current_loop_thread() -> LoopThread | None:
    """Return the event loop thread of this process, or None if no call has started one yet."""
    return _current


def blocking_function(function: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Return a function with the same signature that awaits `function` in the event loop thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return get_loop_thread().run(partial(function, *args, **kwargs))

    return call


def _close_at_exit() -> None:
    global _has_exited
    _has_exited = True
    if _current is not None:
        _current.close()


def _reset_after_fork() -> None:
    global _lock, _current
    _lock = threading.Lock()  # another thread of the parent may have held the old one
    if _current is not None:
        _current.detach_after_fork()
        # Garbage collection would close sockets that the parent uses.
        _inherited.append(_current)
        _current = None


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
