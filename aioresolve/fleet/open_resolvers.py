"""The resolvers of a fleet: each is entered once, and those of one API server share its connections."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio.lowlevel

from aioresolve._core.concurrency import wait_until_done
from aioresolve._core.connections import Connections, KeptOpen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from aioresolve.resolver.base import ClusterResolver

logger = logging.getLogger("aioresolve.fleet")


class OpenResolvers:
    """Enters resolvers on first use, and closes them after the last `keep_open` block. For one event loop."""

    def __init__(self) -> None:
        self._connections = Connections()
        # By identity: one resolver may have several names in a fleet, and be part of unions.
        self._contexts: dict[int, KeptOpen[ClusterResolver]] = {}
        self._tasks: dict[KeptOpen[ClusterResolver], asyncio.Task[None]] = {}
        self._num_keepers = 0

    @asynccontextmanager
    async def keep_open(self) -> AsyncIterator[None]:
        """Keep resolvers open inside the block; the last such block closes all of them."""
        self._num_keepers += 1
        try:
            yield
        finally:
            self._num_keepers -= 1
            if not self._num_keepers:
                await self._close()

    @asynccontextmanager
    async def lease(self, resolver: ClusterResolver) -> AsyncIterator[ClusterResolver]:
        """Yield `resolver`, whose components are entered, each of them once for all leases."""
        # A target that was removed while it waited for a slot is cancelled here at the latest: it must not
        # open its resolver again after `release`.
        await anyio.lowlevel.checkpoint_if_cancelled()
        contexts = [self._context(component) for component in resolver._parts]
        async with AsyncExitStack() as stack:
            for context in contexts:
                await stack.enter_async_context(context.acquire())
            yield resolver

    def release(self, resolver: ClusterResolver, *, used: Iterable[ClusterResolver]) -> None:
        """Close the components of `resolver` that none of `used` has, as soon as no lease of them is held."""
        kept = {id(component) for one in used for component in one._parts}
        for component in resolver._parts:
            context = self._contexts.get(id(component))
            if context is not None and id(component) not in kept:
                context.close()

    def _context(self, resolver: ClusterResolver) -> KeptOpen[ClusterResolver]:
        """Return the open context of `resolver`, opening it if needed."""
        context = self._contexts.get(id(resolver))
        if context is None or context.is_closed:
            context = self._contexts[id(resolver)] = self._enter(resolver, after=context)
        return context

    def _enter(
        self, resolver: ClusterResolver, *, after: KeptOpen[ClusterResolver] | None
    ) -> KeptOpen[ClusterResolver]:
        context = KeptOpen(
            resolver, logger=logger, enter=partial(resolver._using, self._connections), after=after
        )
        task = self._tasks[context] = asyncio.create_task(context.run())
        task.add_done_callback(lambda _: self._discard(resolver, context))
        return context

    def _discard(self, resolver: ClusterResolver, context: KeptOpen[ClusterResolver]) -> None:
        del self._tasks[context]
        if self._contexts.get(id(resolver)) is context:
            del self._contexts[id(resolver)]

    async def _close(self) -> None:
        """Close every resolver, each within its own `timeout`."""
        for context in self._contexts.values():
            context.close()
        await wait_until_done(*self._tasks.values())
