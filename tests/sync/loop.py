"""The event loop thread, as tests of the facade need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.sync.loop_thread import LoopThread, current_loop_thread, get_loop_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

__all__ = ["LoopThread", "call_soon", "current_loop_thread", "get_loop_thread", "in_loop", "settle"]


def in_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `function`, which is awaited in the event loop thread."""
    return get_loop_thread().run(function)


def call_soon(function: Callable[[], object]) -> None:
    """Call `function` in the event loop thread, without waiting for it."""
    get_loop_thread().call_soon(function)


def settle() -> None:
    """Wait until all tasks of the loop are blocked."""
    in_loop(anyio.wait_all_tasks_blocked)
