"""Many awaits at once: a bounded fan-out with one error, and a lock that several event loops share."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

__all__ = ["Turn", "gather"]

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
    except BaseExceptionGroup as failures:
        first = _first(failures)
        raise first from first.__cause__
    return [results[position] for position in range(len(calls))]


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure


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
