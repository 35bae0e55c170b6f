"""The resolver or fleet behind a facade: the first call enters it, and all calls share it."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aioresolve._core.connections import Enterable, KeptOpen

from .loop_thread import current_loop_thread, get_loop_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .loop_thread import LoopThread

logger = logging.getLogger("aioresolve.sync")

ResourceT = TypeVar("ResourceT", bound=Enterable)


class SharedResource(Generic[ResourceT]):
    """A resolver or fleet that blocking calls of many threads share.

    In a forked child, `recreate` replaces it if the parent had entered it.
    """

    def __init__(self, resource: ResourceT, recreate: Callable[[ResourceT], ResourceT]) -> None:
        self.resource = resource
        self._recreate = recreate
        self._context: _LoopContext[ResourceT] | None = None

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the entered resource and return the result. Blocks; not for the loop thread."""
        return get_loop_thread().run(partial(self.acall, method, *args, **kwargs))

    async def acall(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the entered resource and return the result. Must be awaited in the loop thread."""
        async with self.acquire() as entered:
            return await getattr(entered, method)(*args, **kwargs)

    def apply(self, function: Callable[[ResourceT], object]) -> None:
        """Call `function` with the entered resource, in the loop. Blocks; not for the loop thread."""

        async def call_function() -> None:
            async with self.acquire() as entered:
                function(entered)

        get_loop_thread().run(call_function)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[ResourceT]:
        """Yield the entered resource, which is not exited inside the block. For the loop thread."""
        async with self._current_context().acquire() as entered:
            yield entered

    async def run_until_closed(self, function: Callable[[ResourceT], Awaitable[object]]) -> None:
        """Await `function` with the entered resource; closing it cancels that. For the loop thread."""
        await self._current_context().run_until_closed(function)

    def close(self) -> None:
        """Wait for the calls in progress, and exit the resource; the next call enters it again."""
        thread, context = current_loop_thread(), self._context
        if thread is not None and thread.is_running and context is not None and context.thread is thread:
            thread.run(context.aclose)

    def close_soon(self) -> None:
        """Close the resource without waiting. Can be called in any thread."""
        if self._context is not None:
            self._context.thread.call_soon(self._context.close)

    def _current_context(self) -> _LoopContext[ResourceT]:
        thread, context = current_loop_thread(), self._context
        assert thread is not None
        if context is not None and context.thread is not thread:
            self.resource, context = self._recreate(self.resource), None
        if context is None or context.is_closed:
            context = self._context = _LoopContext(thread, self.resource, after=context)
            thread.start_service(context.run, context.close)
        return context


class _LoopContext(KeptOpen[ResourceT]):
    """A shared context in the loop of `thread`."""

    def __init__(
        self, thread: LoopThread, resource: ResourceT, *, after: _LoopContext[ResourceT] | None
    ) -> None:
        super().__init__(resource, logger=logger, after=after)
        self.thread = thread
