"""One async resolver for the blocking calls of many threads: entered by the first, left after the last."""

from __future__ import annotations

import logging
import math
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from .errors import DeadlineExceededError
from .portal import running_portal, started_portal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .portal import Portal
    from .resolver import ClusterResolver

__all__ = ["SharedResolver"]

logger = logging.getLogger(__name__)


class SharedResolver:
    """An async resolver, the stay inside its `async with` that calls share, and a way to make it again.

    Args:
        resolver: the resolver.
        remade: called in a forked child if the parent had entered the resolver; returns one to use instead.

    Attributes:
        resolver: the resolver in use.
    """

    def __init__(self, resolver: ClusterResolver, remade: Callable[[], ClusterResolver]) -> None:
        self.resolver = resolver
        self._remade = remade
        self._stay: _Stay | None = None

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the resolver's `method` answers. Waits for it, in any thread but the loop's own."""
        return running_portal().run(partial(self.answer, method, *args, **kwargs))

    async def answer(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the resolver's `method` answers. Awaited in the loop."""
        async with self._current_stay().visit() as resolver:
            return await getattr(resolver, method)(*args, **kwargs)

    def close(self) -> None:
        """Leave the resolver, when the calls in flight have their answers; the next call enters it again."""
        portal, stay = started_portal(), self._stay
        if portal is not None and portal.is_running and stay is not None and stay.portal is portal:
            portal.run(stay.left)

    def release(self) -> None:
        """Let the resolver be left soon. Never waits, in whatever thread."""
        if self._stay is not None:
            self._stay.portal.soon(self._stay.leave)

    def _current_stay(self) -> _Stay:
        portal, stay = started_portal(), self._stay
        assert portal is not None
        if stay is not None and stay.portal is not portal:
            self.resolver, stay = _like(self.resolver, self._remade()), None
        if stay is None or stay.is_over:
            stay = self._stay = _Stay(portal, self.resolver, after=stay)
            portal.welcome(stay)
        return stay


class _Stay:
    """One stay inside `async with resolver`, in a task of its own, for cancel scopes are left where entered.

    Calls visit it. It ends when it was told to and the last visitor is gone.
    """

    def __init__(self, portal: Portal, resolver: ClusterResolver, *, after: _Stay | None) -> None:
        self.portal = portal
        self.is_over = False
        self._resolver = resolver
        self._after = after
        self._visitors = 0
        self._is_entered = False
        self._opened = anyio.Event()
        self._vacated = anyio.Event()
        self._ended = anyio.Event()
        self._error: BaseException | None = None
        self._closers = 0

    async def stay(self) -> None:
        """Enter the resolver, and leave it when told to."""
        try:
            await self._inside()
        except BaseException as error:  # theirs who wait for it; here it would end the loop for everybody
            self._error = error
        self.is_over = True
        self._opened.set()
        self._ended.set()
        if self._error is not None and self._is_entered and not self._closers:
            logger.warning("%r was not left cleanly", self._resolver, exc_info=self._error)

    def leave(self) -> None:
        """Take no new visitor, and end when the last one is gone."""
        self.is_over = True
        if not self._visitors:
            self._vacated.set()

    async def left(self) -> None:
        """Leave and wait for it.

        Raises:
            BaseException: what the resolver raised when it was left.
        """
        self._closers += 1
        try:
            self.leave()
            await self._ended.wait()
        finally:
            self._closers -= 1
        if self._error is not None and self._is_entered:
            raise self._error

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[ClusterResolver]:
        """Yield the entered resolver.

        Raises:
            BaseException: what the resolver raised when it was entered.
        """
        self._visitors += 1
        try:
            await self._opened.wait()
            if self._error is not None and not self._is_entered:
                raise self._error
            yield self._resolver
        finally:
            self._visitors -= 1
            if self.is_over:
                self.leave()

    async def _inside(self) -> None:
        timeout = self._resolver.timeout
        if self._after is not None:
            await self._after._ended.wait()
            self._after = None
        if self._vacated.is_set():
            return
        # Shielded, because cancelling would not close what is open; the portal asks its guests to leave.
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout) as scope:
            async with self._resolver:
                scope.deadline = math.inf
                self._is_entered = True
                self._opened.set()
                await self._vacated.wait()
                scope.deadline = anyio.current_time() + timeout
        if scope.cancelled_caught:
            raise DeadlineExceededError(
                f"{self._resolver!r} was not {'left' if self._is_entered else 'entered'} within"
                f" {timeout:g} s; raise its `timeout`, or see what its `async with` waits for",
                timeout=timeout,
            )


def _like(old: ClusterResolver, new: ClusterResolver) -> ClusterResolver:
    """Return `new`, with the attributes that may have been set on `old`."""
    for name in ("task_type", "task_id", "rpc_layer"):
        if getattr(new, name) != getattr(old, name):
            setattr(new, name, getattr(old, name))
    return new
