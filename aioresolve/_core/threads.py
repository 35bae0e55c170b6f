"""Blocking work in threads that can be abandoned."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, process_time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aioresolve.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Callable


P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 256
"""The number of threads of `run_in_thread` at a time, including those that hang."""

MAX_THREADS_PER_PURPOSE = 8
"""The number of these threads with one purpose: work that always hangs leaves threads for other work."""

EXIT_GRACE = 0.25
"""Seconds after which the exit of the process no longer waits for threads that do not use the processor."""

MAX_EXIT_WAIT = 5.0
"""Seconds after which the exit of the process no longer waits for any of these threads."""


async def run_in_thread(purpose: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a daemon thread and return its result.

    A thread cannot be cancelled: if this call is cancelled, it returns at once and its thread is abandoned.
    The event loop, which waits at its end for the threads of asyncio and anyio, does not wait for this one.
    The exit of the process waits for it only while threads use the processor. The call waits for the end of
    another thread while `MAX_THREADS` are running, or `MAX_THREADS_PER_PURPOSE` with this purpose.

    Args:
        purpose: what the thread does and with what, for its name and for the error: `look up example.com`.
        function: is called with the context variables of the caller.

    Raises:
        ResolveError: the system starts no more threads.
    """
    loop = asyncio.get_running_loop()
    # The future says only that the call has ended: a future with the error of an abandoned thread would be
    # logged as an exception that was never retrieved.
    ended: asyncio.Future[None] = loop.create_future()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(context.run(function, *args, **kwargs))
        except BaseException as error:
            errors.append(error)
        with suppress(RuntimeError):  # the loop was closed, and the call with it
            loop.call_soon_threadsafe(end)

    def end() -> None:
        if not ended.done():  # as it is after a cancellation
            ended.set_result(None)

    context = contextvars.copy_context()
    work = _ThreadWork(purpose, run)
    _threads.start(work)
    try:
        await ended
        if errors:
            raise errors[0]
        return results[0]
    finally:
        _threads.withdraw(work)
        errors.clear()  # the error refers to this frame, which would keep it alive


@dataclass(eq=False, slots=True)
class _ThreadWork:
    purpose: str
    run: Callable[[], None]


class _Threads:
    """The threads of `run_in_thread`, and the work that waits for one of them to end."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every thread: a forked child has none of them, and maybe a lock that none will release."""
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._running: Counter[str] = Counter()
        self._waiting: deque[_ThreadWork] = deque()

    def start(self, work: _ThreadWork) -> None:
        with self._lock:
            if not self._may_start(work):
                self._waiting.append(work)
                return
            self._running[work.purpose] += 1
        try:
            threading.Thread(
                target=self._run, args=(work,), name=f"aioresolve: {work.purpose}", daemon=True
            ).start()
        except RuntimeError as error:  # also raised while the interpreter exits
            with self._lock:
                self._running -= Counter([work.purpose])
            raise ResolveError(
                f"cannot start a thread to {work.purpose}: {error}",
                hint="Raise the limits of this process on threads and memory (`ulimit -u`, `ulimit -v`).",
                retryable=True,
            ) from error

    def withdraw(self, work: _ThreadWork) -> None:
        with self._lock, suppress(ValueError):
            self._waiting.remove(work)

    def wait_at_exit(self) -> None:
        """Wait until no thread is running, or none of them uses the processor.

        The exit of the process cleans OpenSSL up: a thread that loads certificates at that time would crash
        the process. A thread that hangs must not keep the process from ending.
        """
        ends = monotonic() + MAX_EXIT_WAIT
        with self._lock:
            while self._running and monotonic() < ends:
                used = process_time()
                if not self._ended.wait(EXIT_GRACE) and process_time() - used < EXIT_GRACE / 100:
                    return

    def _run(self, work: _ThreadWork | None) -> None:
        while work is not None:
            work.run()
            work = self._next(work.purpose)

    def _next(self, ended: str) -> _ThreadWork | None:
        """Return the work that can run in the thread that has done work with the purpose `ended`."""
        with self._lock:
            self._running -= Counter([ended])
            self._ended.notify_all()
            work = next(filter(self._may_start, self._waiting), None)
            if work is not None:
                self._waiting.remove(work)
                self._running[work.purpose] += 1
            return work

    def _may_start(self, work: _ThreadWork) -> bool:
        return self._running.total() < MAX_THREADS and self._running[work.purpose] < MAX_THREADS_PER_PURPOSE


_threads = _Threads()
atexit.register(_threads.wait_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)
