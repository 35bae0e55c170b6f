"""`BlockingIterator`: an async generator that runs in the event loop thread, as a blocking iterator."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from aioresolve._core.concurrency import LatestValue
from aioresolve.errors import ConfigurationError, ResolveError

from .loop_thread import current_loop_thread, get_loop_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from .loop_thread import LoopThread
    from .shared import SharedResource

T = TypeVar("T")


class BlockingIterator(Iterator[T]):
    """Iterates over the items of an async generator.

    The generator starts with the first `next`, runs in the event loop thread, and sees the context variables
    of that first call. Any thread can call `next`. The iterator ends when it is closed, when its resolver or
    fleet is closed, or when the interpreter exits. Ctrl-C interrupts one call of `next` only; the following
    call continues where the interrupted one stopped.

    Leaving a `for` loop is enough to close the iterator, unless something else refers to it. Use
    `contextlib.closing` to close all connections immediately.
    """

    def __init__(
        self,
        owner: object,
        shared: SharedResource[Any],
        generate: Callable[[Any], AsyncGenerator[T, None]],
    ) -> None:
        self._owner = owner  # it closes its connections when it is garbage-collected
        self._create_task = partial(_GeneratorTask[T], shared, generate)
        self._task: _GeneratorTask[T] | None = None
        self._thread: LoopThread | None = None
        self._is_closed = False

    def __iter__(self) -> BlockingIterator[T]:
        return self

    def __next__(self) -> T:
        """Return the next item. Waits until there is one.

        Raises:
            StopIteration: the iterator was closed, or the generator has ended.
            ConfigurationError: the iterator was started before this process was forked.
        """
        thread = self._thread = self._thread or get_loop_thread()
        if thread is not current_loop_thread():
            raise ConfigurationError(
                "this iterator was started before this process was forked, and belongs to the parent process",
                hint="Create another one in this process.",
            )
        try:
            return thread.run(partial(self._next, thread))
        except anyio.EndOfStream:
            raise StopIteration from None
        except ResolveError:
            if thread.is_running:
                raise
            # The interpreter exits: a thread that only watches ends without a traceback.
            raise StopIteration from None

    def close(self) -> None:
        """Stop the generator, and wait until its connections are closed. Closing twice does nothing."""
        self._is_closed = True
        thread, task = self._thread, self._task
        if thread is None or task is None:
            return
        if thread is current_loop_thread() and thread.is_running:
            thread.run(task.aclose)

    async def _next(self, thread: LoopThread) -> T:
        if self._is_closed:
            raise anyio.EndOfStream
        task = self._task
        if task is None:
            task = self._task = self._create_task()
            thread.spawn(task.run)
            # Not at exit: there the loop thread itself cancels the task.
            weakref.finalize(self, thread.call_soon, task.cancel).atexit = False
        return await task.next_item()


class _GeneratorTask(Generic[T]):
    """A task in the loop that advances an async generator by one item per request.

    Because the generator runs in a task of its own, interrupting a consumer does not interrupt the generator.
    The generator is advanced only on request, so that a slow consumer gets the items that are current then.
    """

    def __init__(
        self, shared: SharedResource[Any], generate: Callable[[Any], AsyncGenerator[T, None]]
    ) -> None:
        self._shared = shared
        self._generate = generate
        self._scope = anyio.CancelScope()
        self._consumer_lock = asyncio.Lock()
        self._requested = asyncio.Event()
        self._is_requested = False  # remains set if a consumer was interrupted before it got its item
        self._item: LatestValue[T] = LatestValue()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run the generator until it ends or is cancelled."""
        try:
            with self._scope:
                await self._shared.run_until_closed(self._advance)
        except asyncio.CancelledError:
            self._item.close()
            raise
        except BaseException as error:  # raised by `next_item`; here it would end the loop
            self._item.close(error)
        else:
            self._item.close()
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """Cancel the generator, without waiting."""
        self._scope.cancel()

    async def aclose(self) -> None:
        """Cancel the generator, and wait until it has ended."""
        self.cancel()
        await self._ended.wait()

    async def next_item(self) -> T:
        """Return the next item."""
        async with self._consumer_lock:
            if not self._is_requested:
                self._is_requested = True
                self._requested.set()
            try:
                item = await self._item.get()
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._item.close()
                raise
            self._is_requested = False
            return item

    async def _advance(self, entered: Any) -> None:
        async with aclosing(self._generate(entered)) as items:
            await self._requested.wait()
            async for item in items:
                self._requested.clear()
                self._item.put(item)
                await self._requested.wait()
