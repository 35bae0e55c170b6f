"""`BlockingIterator`: an async generator that goes on in the loop thread, without `await`."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from aioresolve._core.concurrency import Newest
from aioresolve.errors import ConfigurationError, ResolveError

from .loop_thread import running_portal, started_portal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from .loop_thread import Portal
    from .shared import Shared

__all__ = ["BlockingIterator"]

T = TypeVar("T")


class BlockingIterator(Iterator[T]):
    """What an async generator yields, one item after another.

    It runs in the loop thread from the first `next` on, and sees the context variables of that. It may be
    asked from any thread, and ends when it is closed, when its resolver or fleet is, or with the interpreter.
    Ctrl-C ends the `next` that it interrupts, and no more: the next one goes on where that was.

    Nobody has to close it: leaving a `for` loop is enough, where nothing else holds it.
    `contextlib.closing` makes sure that all is closed at once.
    """

    def __init__(
        self, owner: object, shared: Shared[Any], items: Callable[[Any], AsyncGenerator[T, None]]
    ) -> None:
        self._owner = owner  # which closes its connections when nobody holds it
        self._begun = partial(_Iteration[T], shared, items)
        self._iteration: _Iteration[T] | None = None
        self._portal: Portal | None = None
        self._is_closed = False

    def __iter__(self) -> BlockingIterator[T]:
        return self

    def __next__(self) -> T:
        """Return the next item as soon as there is one.

        Raises:
            StopIteration: it was closed, or the generator has ended.
            ConfigurationError: it was begun before this process was forked.
        """
        portal = self._portal = self._portal or running_portal()
        if portal is not started_portal():
            raise ConfigurationError(
                "this iterator was begun before this process was forked, and goes on in the parent; begin"
                " another one here"
            )
        try:
            return portal.run(partial(self._next, portal))
        except anyio.EndOfStream:
            raise StopIteration from None
        except ResolveError:
            if portal.is_running:
                raise
            raise StopIteration from None  # the interpreter exits, and so does a thread that only watches

    def close(self) -> None:
        """End it, and wait until all that it opened is closed; closing twice does nothing."""
        self._is_closed = True
        portal, iteration = self._portal, self._iteration
        if portal is None or iteration is None:
            return
        if portal is started_portal() and portal.is_running:
            portal.run(iteration.left)

    async def _next(self, portal: Portal) -> T:
        if self._is_closed:
            raise anyio.EndOfStream
        iteration = self._iteration
        if iteration is None:
            iteration = self._iteration = self._begun()
            portal.go_on(iteration.run)
            # At exit the portal itself ends it.
            weakref.finalize(self, portal.soon, iteration.leave).atexit = False
        return await iteration.item()


class _Iteration(Generic[T]):
    """An async generator in a task of its own, in the loop: it goes on to an item when that is asked for.

    So whoever asks may be interrupted, which leaves the generator alone; and a consumer that takes its time
    is told then what is new then, as the generator sees fit.
    """

    def __init__(self, shared: Shared[Any], items: Callable[[Any], AsyncGenerator[T, None]]) -> None:
        self._shared = shared
        self._items = items
        self._scope = anyio.CancelScope()
        self._turn = asyncio.Lock()
        self._asked = asyncio.Event()
        self._is_asked = False
        self._item: Newest[T] = Newest()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run the generator until it ends, or until `leave`."""
        try:
            with self._scope:
                await self._shared.visit_until_left(self._follow)
        except asyncio.CancelledError:
            self._item.end()
            raise
        except BaseException as error:  # theirs who ask; here it would end the loop for everybody
            self._item.end(error)
        else:
            self._item.end()
        finally:
            self._ended.set()

    def leave(self) -> None:
        """Let it end soon."""
        self._scope.cancel()

    async def left(self) -> None:
        """End, and wait for that."""
        self.leave()
        await self._ended.wait()

    async def item(self) -> T:
        """Return the next item.

        Raises:
            anyio.EndOfStream: there is none any more.
            BaseException: what the generator raised; once.
        """
        async with self._turn:
            if not self._is_asked:
                self._is_asked = True
                self._asked.set()
            try:
                item = await self._item.taken()
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._item.end()
                raise
            self._is_asked = False
            return item

    async def _follow(self, entered: Any) -> None:
        async with aclosing(self._items(entered)) as items:
            await self._asked.wait()
            async for item in items:
                self._asked.clear()
                self._item.put(item)
                await self._asked.wait()
