"""Runs all use of grpc.aio in one event loop of the process.

grpc.aio has one completion queue per process, and every event loop that uses it reads from that queue. Two
loops that run at the same time steal each other's events and log errors (grpc#25364). So the first loop that
opens a channel or a server remains the only one as long as it has any; other loops run their calls there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

START_TIMEOUT = 0.25
"""Seconds that the other loop has to start a call. If it does not, it is blocked, perhaps by the very thread
that waits for the call. A blocked loop does not poll gRPC, so using gRPC in this loop is then safe."""

CANCEL_TIMEOUT = 5.0
"""Seconds that a cancelled call may take to clean up in the other loop before this loop stops waiting."""


class LoopGuard:
    """The event loop that grpc.aio polls, and the number of its users. Can be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[asyncio.AbstractEventLoop, int] = {}
        self._was_used = False
        self._is_inherited = False

    def validate_process(self) -> None:
        """Raise a ConfigurationError if this process was forked after gRPC had been used."""
        if self._is_inherited:
            raise ConfigurationError(
                "workers cannot be probed in this process: it was forked after its parent had probed workers,"
                " and gRPC hangs or crashes in such a process",
                hint="Fork before the first probe, or start processes with the method 'spawn'"
                " (`multiprocessing.set_start_method`).",
            )

    def acquire(self) -> asyncio.AbstractEventLoop:
        """Return the loop that gRPC polls. If it is the running loop, or gRPC polls none, count a user."""
        here = asyncio.get_running_loop()
        self._was_used = True
        with self._lock:
            self._users = {loop: users for loop, users in self._users.items() if not loop.is_closed()}
            active = next((loop for loop in self._users if loop.is_running()), here)
            if active is here:
                self._users[here] = self._users.get(here, 0) + 1
            return active

    def release(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove a user that `acquire` counted in `loop`."""
        with self._lock:
            users = self._users.pop(loop, 0) - 1
            if users > 0:
                self._users[loop] = users

    def reset_after_fork(self) -> None:
        """In a forked child, refuse to use gRPC if the parent has used it: its threads do not exist here."""
        self._lock = threading.Lock()
        self._users = {}
        self._is_inherited = self._was_used


loop_guard = LoopGuard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=loop_guard.reset_after_fork)


async def run_in_grpc_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Await `function()` in the loop that gRPC polls, or in this loop if it polls none; return the result."""
    here = asyncio.get_running_loop()
    while True:
        loop = loop_guard.acquire()
        if loop is here:
            try:
                return await function()
            finally:
                loop_guard.release(here)
        try:
            return await _run_in(loop, function)
        except _LoopBlockedError:
            return await function()
        except _LoopEndedError:
            continue


class _LoopBlockedError(Exception):
    """The other loop did not start the call."""


class _LoopEndedError(Exception):
    """The other loop ended before the call did."""


async def _run_in(loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[T]]) -> T:
    result: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        if result.set_running_or_notify_cancel():  # else the caller no longer waits
            tasks.append(loop.create_task(run()))

    async def run() -> None:
        try:
            value = await run_in_grpc_loop(function)
        except Exception as error:  # raised in the caller's loop
            result.set_exception(error)
        except BaseException:
            result.set_exception(_LoopEndedError())
            raise
        else:
            result.set_result(value)

    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError as error:  # closed
        raise _LoopEndedError from error
    waiting = asyncio.wrap_future(result)
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=START_TIMEOUT)
            if not waiting.done() and result.cancel():
                raise _LoopBlockedError
            if not waiting.done() and not loop.is_running():
                raise _LoopEndedError
    except asyncio.CancelledError:
        if not result.cancel():
            await _cancel_and_wait(loop, tasks, waiting)
        raise
    return waiting.result()


async def _cancel_and_wait(
    loop: asyncio.AbstractEventLoop, tasks: list[asyncio.Task[None]], waiting: asyncio.Future[T]
) -> None:
    """Cancel a call that has started, and wait until it has cleaned up."""
    with suppress(RuntimeError):  # closed: there is nothing left to cancel
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
            await asyncio.wait({waiting})
    if waiting.done():
        waiting.exception()  # or asyncio would log that the exception was never retrieved
