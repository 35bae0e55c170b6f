"""The connections of a fleet: resolvers are entered once, and share pools by API server."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio.lowlevel

from aioresolve._core.concurrency import ended
from aioresolve._core.shared_context import Pools, Stay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioresolve.resolver.base import ClusterResolver

__all__ = ["Connections"]

logger = logging.getLogger("aioresolve.fleet")


class Connections:
    """Enters resolvers on first use, and closes them after the last `keep_open` block. For one event loop."""

    def __init__(self) -> None:
        self._pools = Pools()
        # By identity: one resolver may have several names in a fleet.
        self._shared: dict[int, Stay[ClusterResolver]] = {}
        self._tasks: dict[Stay[ClusterResolver], asyncio.Task[None]] = {}
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
        """Yield `resolver`, entered.

        Raises:
            BaseException: the error of entering it.
        """
        # A target that was removed while it waited for a slot is cancelled here at the latest: it must not
        # open its resolver again after `release`.
        await anyio.lowlevel.checkpoint_if_cancelled()
        shared = self._shared.get(id(resolver))
        if shared is None or shared.is_over:
            shared = self._shared[id(resolver)] = self._enter(resolver, after=shared)
        async with shared.visit() as entered:
            yield entered

    def release(self, resolver: ClusterResolver) -> None:
        """Close `resolver` as soon as no lease of it is held."""
        shared = self._shared.get(id(resolver))
        if shared is not None:
            shared.leave()

    def _enter(
        self, resolver: ClusterResolver, *, after: Stay[ClusterResolver] | None
    ) -> Stay[ClusterResolver]:
        shared = Stay(resolver, logger=logger, inside=partial(self._pools.inside, resolver), after=after)
        task = self._tasks[shared] = asyncio.create_task(shared.stay())
        task.add_done_callback(lambda _: self._discard(resolver, shared))
        return shared

    def _discard(self, resolver: ClusterResolver, shared: Stay[ClusterResolver]) -> None:
        del self._tasks[shared]
        if self._shared.get(id(resolver)) is shared:
            del self._shared[id(resolver)]

    async def _close(self) -> None:
        """Close every resolver, each within its own `timeout`."""
        for shared in self._shared.values():
            shared.leave()
        await ended(*self._tasks.values())
