"""Many awaits at once: a bounded fan-out with one error, the newest value of work that goes on beside its
consumer, and a lock that several event loops share.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from types import TracebackType

__all__ = ["Newest", "Turn", "ended", "first_error", "gather", "newest_of"]

T = TypeVar("T")


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], *, limit: int) -> list[T]:
    """Return the results of `calls`, in their order, at most `limit` of them running at a time.

    The first failure cancels the others and is raised as it is, not inside an exception group: whoever asks
    for one answer gets one error.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    pending = iter(enumerate(calls))

    async def work() -> None:
        for position, call in pending:
            results[position] = await call()

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(limit, len(calls))):
                group.start_soon(work)
    except BaseExceptionGroup as group_error:
        error = first_error(group_error)
        raise error from error.__cause__
    return [results[position] for position in range(len(calls))]


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of an exception group, which may be nested."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


class Newest(Generic[T]):
    """A place for one value: the newest that was put there and not taken yet."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._is_over = False
        self._error: BaseException | None = None
        self._stirred = asyncio.Event()

    def put(self, value: T) -> None:
        """Let `value` be the next to be taken, in the place of one that nobody took."""
        self._values = [value]
        self._stirred.set()

    def end(self, error: BaseException | None = None) -> None:
        """Let nothing follow the value that is here, but `error`, if there is one."""
        self._is_over, self._error = True, error
        self._stirred.set()

    async def taken(self) -> T:
        """Return the newest value as soon as there is one that was not taken yet.

        Raises:
            anyio.EndOfStream: nothing follows.
            BaseException: what the values ended with.
        """
        while not self._values:
            if self._is_over:
                raise anyio.EndOfStream if self._error is None else self._error
            self._stirred.clear()
            await self._stirred.wait()
        return self._values.pop()


async def newest_of(work: Callable[[Newest[T]], Awaitable[None]]) -> AsyncGenerator[T, None]:
    """Yield what `work` puts into a `Newest`: a slow consumer misses values, and never a newer one.

    `work` runs in a task of its own, which ends with this generator, whenever and wherever that is left. No
    cancel scope spans a `yield`, as that of a task group would: whoever drops an async generator has another
    task close it.

    Raises:
        BaseException: what `work` raised, once the last value was taken.
    """
    newest: Newest[T] = Newest()

    async def run() -> None:
        try:
            await work(newest)
        except BaseException as error:
            newest.end(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            newest.end()

    task = asyncio.create_task(run())
    try:
        with suppress(anyio.EndOfStream):
            while True:
                yield await newest.taken()
    finally:
        task.cancel()
        await ended(task)


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Return once tasks that were told to end have ended, even if the caller is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while running := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as error:  # a second native `cancel()`, which no scope shields from
                cancelled = error
    if cancelled is not None:
        raise cancelled


class Turn:
    """A lock for tasks of several event loops; those of anyio and asyncio serve the tasks of one.

    `async with turn:` lets one task in at a time; who is cancelled while waiting holds up nobody.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_free = True
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def __aenter__(self) -> None:
        while True:
            with self._mutex:
                if self._is_free:
                    self._is_free = False
                    return
                woken = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), woken))
            await woken.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._mutex:
            self._is_free = True
            waiting, self._waiting = self._waiting, []
        for loop, woken in waiting:
            with suppress(RuntimeError):  # that loop was closed, and its waiting task with it
                loop.call_soon_threadsafe(woken.set)
