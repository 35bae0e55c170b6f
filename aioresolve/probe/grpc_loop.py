"""The one event loop of a process that grpc.aio polls.

grpc.aio has one completion queue for a process, and every loop that it meets reads from it: two that run at
the same time take each other's wake-ups and log errors (grpc#25364). So the loop that came first is the one,
for as long as it has a channel or a server open; what is asked from another loop meanwhile is awaited there.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["PolledLoop", "in_polled_loop", "polled_loop"]

T = TypeVar("T")

PATIENCE = 0.25
"""Seconds in which the other loop has to begin. One that does not is blocked, perhaps by who waits for us; it
polls nothing then, so that polling here is right."""

UNWINDING = 5.0
"""Seconds that a cancelled call may take to clean up in the other loop before it is left to it."""


class PolledLoop:
    """Which loop grpc.aio polls, and how many things there need it. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stays: dict[asyncio.AbstractEventLoop, int] = {}

    def enter(self) -> asyncio.AbstractEventLoop:
        """Begin a stay, if the running loop is the one or may become it; return the loop that is the one."""
        here = asyncio.get_running_loop()
        with self._lock:
            self._stays = {loop: stays for loop, stays in self._stays.items() if not loop.is_closed()}
            polled = next((loop for loop in self._stays if loop.is_running()), here)
            if polled is here:
                self._stays[here] = self._stays.get(here, 0) + 1
            return polled

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """End a stay that was begun in `loop`."""
        with self._lock:
            stays = self._stays.pop(loop, 0) - 1
            if stays > 0:
                self._stays[loop] = stays


polled_loop = PolledLoop()


async def in_polled_loop(operation: Callable[[], Awaitable[T]]) -> T:
    """Return what `operation` returns, awaited in the loop that grpc.aio polls: in this, if it polls none.

    Raises:
        Exception: what `operation` raises.
    """
    here = asyncio.get_running_loop()
    while True:
        loop = polled_loop.enter()
        if loop is here:
            try:
                return await operation()
            finally:
                polled_loop.leave(here)
        try:
            return await _awaited_in(loop, operation)
        except _LoopBlockedError:
            return await operation()
        except _LoopEndedError:
            continue


class _LoopBlockedError(Exception):
    """The other loop did not begin."""


class _LoopEndedError(Exception):
    """The other loop ended before the operation did."""


async def _awaited_in(loop: asyncio.AbstractEventLoop, operation: Callable[[], Awaitable[T]]) -> T:
    errand = _Errand(operation)
    try:
        loop.call_soon_threadsafe(errand.begin)
    except RuntimeError as error:  # closed
        raise _LoopEndedError from error
    answer = asyncio.wrap_future(errand.answer)
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=PATIENCE)
            if not answer.done() and errand.answer.cancel():
                raise _LoopBlockedError
            if not answer.done() and not loop.is_running():
                raise _LoopEndedError
    except asyncio.CancelledError:
        if not errand.answer.cancel():
            await _unwound(loop, errand, answer)
        raise
    return answer.result()


async def _unwound(loop: asyncio.AbstractEventLoop, errand: _Errand[T], answer: asyncio.Future[T]) -> None:
    """Cancel an errand that has begun, and return when it has cleaned up."""
    with suppress(RuntimeError):  # closed: nothing is left to cancel
        loop.call_soon_threadsafe(errand.cancel)
        with anyio.move_on_after(UNWINDING, shield=True):
            await asyncio.wait({answer})
    if answer.done():
        answer.exception()  # looked at, or asyncio would complain that nobody did


class _Errand(Generic[T]):
    """One operation for another loop."""

    def __init__(self, operation: Callable[[], Awaitable[T]]) -> None:
        self.answer: Future[T] = Future()
        self._operation = operation
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, unless nobody waits any more."""
        if self.answer.set_running_or_notify_cancel():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Cancel what has begun."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            value = await in_polled_loop(self._operation)
        except Exception as error:  # theirs who wait for it
            self.answer.set_exception(error)
        except BaseException:
            self.answer.set_exception(_LoopEndedError())
            raise
        else:
            self.answer.set_result(value)
