"""Concurrent calls with one error, and the latest value of a task."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

T = TypeVar("T")


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
        self._end: BaseException | type[BaseException] | None = None
        self._changed = asyncio.Event()

    def put(self, value: T) -> None:
        """Store `value`; it replaces a value that was not taken."""
        self._values = [value]
        self._changed.set()

    def close(self, error: BaseException | None = None) -> None:
        """Mark the stored value as the last one. `error`, if given, is raised after it was taken."""
        self._end = error or anyio.EndOfStream
        self._changed.set()

    async def get(self) -> T:
        """Wait for a value that was not taken yet, take it and return it.

        After the last value it raises the error of `close`, or anyio.EndOfStream.
        """
        while not self._values:
            if self._end is not None:
                raise self._end
            self._changed.clear()
            await self._changed.wait()
        return self._values.pop()


async def stream_latest(work: Callable[[LatestValue[T]], Awaitable[None]]) -> AsyncGenerator[T, None]:
    """Yield what `work`, which never returns, puts into a `LatestValue`.

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

    task = asyncio.create_task(run())
    try:
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
