"""How calls block: an async resolver that they share, and the iterators over its async generators."""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import weakref
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio

from aioresolve._core.concurrency import LatestValue
from aioresolve._core.connections import KeptOpen
from aioresolve.errors import ConfigurationError, ResolveError

from .loop_thread import current_loop_thread, get_loop_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve.resolver import ClusterResolver

    from .loop_thread import LoopThread

logger = logging.getLogger("aioresolve.sync")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SharedResolver:
    """An async resolver that blocking calls of many threads share. The first call enters it.

    In a forked child, a copy replaces it if the parent had entered it.
    """

    def __init__(self, resolver: ClusterResolver) -> None:
        self.resolver = resolver
        self._context: KeptOpen[ClusterResolver] | None = None
        self._thread: LoopThread | None = None  # that of the context

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the entered resolver and return the result. Blocks; not for the loop thread."""

        async def call() -> Any:
            async with self._current_context().acquire() as entered:
                return await getattr(entered, method)(*args, **kwargs)

        return get_loop_thread().run(call)

    async def run_until_closed(self, function: Callable[[ClusterResolver], Awaitable[object]]) -> None:
        """Await `function` with the entered resolver; closing it cancels that. For the loop thread."""
        await self._current_context().run_until_closed(function)

    def close(self) -> None:
        """Wait for the calls in progress, and exit the resolver; the next call enters it again."""
        thread = current_loop_thread()
        if thread is not None and thread is self._thread and thread.is_running and self._context is not None:
            thread.run(self._context.aclose)

    def close_soon(self) -> None:
        """Close the resolver without waiting. Can be called in any thread."""
        if self._thread is not None and self._context is not None:
            self._thread.call_soon(self._context.close)

    def _current_context(self) -> KeptOpen[ClusterResolver]:
        thread, context = current_loop_thread(), self._context
        assert thread is not None
        if context is not None and thread is not self._thread:
            self.resolver, context = copy.copy(self.resolver), None
        if context is None or context.is_closed:
            context = KeptOpen(self.resolver, logger=logger, after=context)
            self._context, self._thread = context, thread
            thread.start_service(context.run)
        return context


class BlockingIterator(Iterator[T]):
    """Iterates over the items of an async generator.

    >>> next(SimpleClusterResolver(ClusterSpec({"worker": ["10.0.0.1:8470"]})).watch())
    <ClusterState of 1 task: worker 1>

    The generator starts with the first `next`, runs in the event loop thread, and sees the context variables
    of that first call. Any thread can call `next`. The iterator ends when it is closed, when its resolver is
    closed, or when the interpreter exits. Ctrl-C interrupts one call of `next` only; the following
    call continues where the interrupted one stopped.

    Leaving a `for` loop is enough to close the iterator, unless something else refers to it. Use
    `contextlib.closing` to close all connections immediately.
    """

    def __init__(
        self, owner: object, shared: SharedResolver, generate: Callable[[Any], AsyncGenerator[T, None]]
    ) -> None:
        self._owner = owner  # it closes its connections when it is garbage-collected
        self._items: _Items[T] = _Items(shared, generate)
        self._thread: LoopThread | None = None

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
        self._items.is_closed = True
        thread = self._thread
        if thread is not None and thread is current_loop_thread() and thread.is_running:
            thread.run(self._items.aclose)

    async def _next(self, thread: LoopThread) -> T:
        items = self._items
        if items.task is None and not items.is_closed:
            items.task = thread.spawn(items.run())
            # Not at exit: there the loop thread itself cancels the task.
            weakref.finalize(self, thread.call_soon, items.task.cancel).atexit = False
        return await items.next()


class _Items(Generic[T]):
    """The items of an async generator, which a task in the loop advances by one item per request.

    Because the generator runs in a task of its own, interrupting a consumer does not interrupt the generator.
    The generator is advanced only on request, so that a slow consumer gets the items that are current then.
    """

    def __init__(self, shared: SharedResolver, generate: Callable[[Any], AsyncGenerator[T, None]]) -> None:
        self.is_closed = False
        self.task: asyncio.Task[None] | None = None
        self._shared = shared
        self._generate = generate
        self._consumer_lock = asyncio.Lock()
        self._requested = asyncio.Event()
        self._is_requested = False  # remains set if a consumer was interrupted before it got its item
        self._item: LatestValue[T] = LatestValue()

    async def run(self) -> None:
        """Run the generator until it ends or is cancelled."""
        failure: BaseException | None = None
        try:
            await self._shared.run_until_closed(self._advance)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # raised by `next`; here it would end the loop
            failure = error
        finally:
            self._item.close(failure)

    async def aclose(self) -> None:
        """Cancel the generator, and wait until it has ended."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self._item.close()  # the task may have been cancelled before it started

    async def next(self) -> T:
        """Return the next item; raises EndOfStream after the last one."""
        if self.is_closed:
            raise anyio.EndOfStream
        async with self._consumer_lock:
            if not self._is_requested:
                self._is_requested = True
                self._requested.set()
            try:
                item = await self._item.get()
            except Exception:
                self._item.close()  # an error is raised once
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


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a facade method that calls an async method of the resolver: the same signature, but it blocks.

    An override of `method` in the resolver's class is called.
    """

    @wraps(method)
    def blocking_method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._shared.call(method.__name__, *args, **kwargs)
        return result

    blocking_method.__doc__ = blocking_text(method.__doc__)
    return blocking_method


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Any, P], BlockingIterator[R]]:
    """Return a facade method for an async generator method: the same signature, but it returns an iterator.

    The first `next` of the iterator calls the method. An override of `method` in the resolver's class is
    called.
    """

    @wraps(method)
    def iterator_method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> BlockingIterator[R]:
        def generate(entered: Any) -> AsyncGenerator[R, None]:
            generator: AsyncGenerator[R, None] = getattr(entered, method.__name__)(*args, **kwargs)
            return generator

        return BlockingIterator(self, self._shared, generate)

    iterator_method.__doc__ = blocking_text(method.__doc__)
    return iterator_method


def blocking_text(docstring: str | None) -> str:
    """Return the docstring of something async as that of its facade, with examples that block."""
    text = re.sub(r"\bawait |\basync (?=with|for)", "", docstring or "")
    return text.replace("contextlib.aclosing", "contextlib.closing")
