"""Calls with one error, the latest value of a task, blocking work in threads, a lock, and a cached token.

The threads, the lock and the token cache also serve tasks of several event loops.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import copy
import os
import threading
from collections import Counter, deque
from contextlib import contextmanager, suppress
from time import monotonic, process_time
from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, TypeVar

import anyio

from aioresolve.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence


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


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], *, limit: int) -> list[T]:
    """Return the results of `calls` in their order, running at most `limit` of them at a time.

    The first failure cancels the other calls. It is raised as it is, not inside an exception group: a caller
    that wants one result gets one error.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    pending = iter(enumerate(calls))  # shared: each worker takes the next call

    async def work() -> None:
        for position, call in pending:
            with reject_stray_cancellation():
                results[position] = await call()

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(limit, len(calls))):
                group.start_soon(work)
    except BaseExceptionGroup as group_error:
        error = first_error(group_error)
        raise error from error.__cause__
    return [results[position] for position in range(len(calls))]


@contextmanager
def reject_stray_cancellation() -> Iterator[None]:
    """Raise RuntimeError for a CancelledError in the block if nothing has cancelled the current task.

    A call raises one if it awaits another task that was cancelled, for example. A task group would take the
    task for one that it cancelled itself, and end without an error.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("a CancelledError was raised, but the task was not cancelled") from error


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of an exception group, which may be nested."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


class LatestValue(Generic[T]):
    """Holds one value: the latest that was put and not yet taken."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._is_closed = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def put(self, value: T) -> None:
        """Store `value`; it replaces a value that was not taken."""
        self._values = [value]
        self._changed.set()

    def close(self, error: BaseException | None = None) -> None:
        """Mark the stored value as the last one. `error`, if given, is raised after it was taken."""
        self._is_closed, self._error = True, error
        self._changed.set()

    async def get(self) -> T:
        """Wait for a value that was not taken yet, take it and return it.

        After the last value it raises the error of `close`, or anyio.EndOfStream.
        """
        while not self._values:
            if self._is_closed:
                raise anyio.EndOfStream if self._error is None else self._error
            self._changed.clear()
            await self._changed.wait()
        return self._values.pop()


async def stream_latest(work: Callable[[LatestValue[T]], Awaitable[None]]) -> AsyncGenerator[T, None]:
    """Yield what `work` puts into a `LatestValue`.

    A slow consumer skips intermediate values but always gets the latest one. `work` runs in its own task,
    which ends with this generator. No cancel scope spans a `yield`, as that of a task group would: a
    generator that is dropped is closed by another task, and a cancel scope must exit in the task that
    entered it. After the last value, the error of `work` is raised.
    """
    latest: LatestValue[T] = LatestValue()

    async def run() -> None:
        try:
            await work(latest)
        except BaseException as error:
            latest.close(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            latest.close()

    task = asyncio.create_task(run())
    try:
        with suppress(anyio.EndOfStream):
            while True:
                yield await latest.get()
    finally:
        task.cancel()
        await wait_until_done(task)


async def wait_until_done(*tasks: asyncio.Task[None]) -> None:
    """Wait until every task is done, even if the caller is cancelled while waiting. Errors are not raised."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while running := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as error:  # a native `cancel()`, which no scope shields from
                cancelled = error
    if cancelled is not None:
        raise cancelled


async def run_in_thread(purpose: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a daemon thread and return its result.

    A thread cannot be cancelled. If this call is cancelled, it returns at once and its thread is abandoned.
    The end of the event loop does not wait for that thread, as it does for those of asyncio and anyio; the
    exit of the process waits for it only while threads use the processor. While `MAX_THREADS`, or
    `MAX_THREADS_PER_PURPOSE` with this purpose, are running, the call waits for one of them to end.

    Args:
        purpose: what the thread does and with what, for its name and for the error: `look up example.com`.
        function: is called with the context variables of the caller.

    Raises:
        ResolveError: the system starts no more threads.
    """
    loop = asyncio.get_running_loop()
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
        if not ended.done():
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


class _ThreadWork:
    def __init__(self, purpose: str, run: Callable[[], None]) -> None:
        self.purpose = purpose
        self.run = run


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
        """Start a thread for `work`, or let it wait."""
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
        """Do not run `work` if it still waits."""
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


class CrossLoopLock:
    """A lock for tasks of several event loops; those of anyio and asyncio serve the tasks of one loop.

    A task that is cancelled while it waits does not block the others.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_locked = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def __aenter__(self) -> None:
        while True:
            with self._mutex:
                if not self._is_locked:
                    self._is_locked = True
                    return
                released = asyncio.Event()
                self._waiters.append((asyncio.get_running_loop(), released))
            await released.wait()

    async def __aexit__(self, *exc_info: object) -> None:
        with self._mutex:
            self._is_locked = False
            waiters, self._waiters = self._waiters, []
        # All of them, not one: the one chosen might have been cancelled, and nothing would wake the others.
        for loop, released in waiters:
            with suppress(RuntimeError):  # that loop was closed, and its waiting task with it
                loop.call_soon_threadsafe(released.set)


class Token(Protocol):
    """A token that may expire."""

    @property
    def is_fresh(self) -> bool:
        """Whether it need not be renewed yet."""
        ...

    @property
    def is_valid(self) -> bool:
        """Whether a server will accept it."""
        ...


TokenT = TypeVar("TokenT", bound=Token)


class TokenCache(Generic[TokenT]):
    """Keeps a token while it is fresh. Tasks of several event loops may share one cache.

    The attribute `token` is the last one that was fetched, fresh or not.

    Args:
        token: the first token, if there is one already.
        min_age: seconds for which a token is kept although it is not fresh.
        max_age: seconds after which a token is fetched again although it is fresh; None for no limit.
    """

    def __init__(
        self, token: TokenT | None = None, *, min_age: float = 0.0, max_age: float | None = None
    ) -> None:
        self.token = token
        self._min_age = min_age
        self._max_age = max_age
        self._fetched_at = monotonic()
        self._error: ResolveError | None = None
        self._num_fetches = 0
        self._lock = CrossLoopLock()

    async def get(self, fetch: Callable[[], Awaitable[TokenT]]) -> TokenT:
        """Return the token, fetched again if it is not fresh, or too old.

        If a fetch fails with a retryable error, a token that is still valid is returned.
        """
        token = self.token
        age = monotonic() - self._fetched_at
        is_old = self._max_age is not None and age >= self._max_age
        if token is not None and (age < self._min_age or (token.is_fresh and not is_old)):
            return token
        try:
            return await self.renew(fetch)
        except ResolveError as error:
            if token is not None and token.is_valid and error.retryable:
                return token
            raise

    async def renew(self, fetch: Callable[[], Awaitable[TokenT]]) -> TokenT:
        """Return a token whose fetch ended after this call began: its own fetch, or that of another task.

        If that fetch fails, every task that waited for it raises its error.
        """
        num_fetches = self._num_fetches
        async with self._lock:
            if self._num_fetches == num_fetches:
                # A cancelled fetch leaves the number unchanged: the next task that waits fetches again.
                try:
                    self.token, self._error = await fetch(), None
                    self._fetched_at = monotonic()
                except ResolveError as error:
                    self._error = error
                self._num_fetches += 1
            token, failure = self.token, self._error
        if failure is not None:
            # A copy for each task: an exception raised by several tasks collects the tracebacks of all.
            raise copy.copy(failure) from failure.__cause__
        assert token is not None
        return token
