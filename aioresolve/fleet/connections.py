"""The connections of a fleet: every resolver entered once, those on one API server by one pool."""

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
    """Enters resolvers as they are asked for the first time, and leaves them when nobody keeps them any more.

    It belongs to the event loop that is running.
    """

    def __init__(self) -> None:
        self._pools = Pools()
        self._stays: dict[int, Stay[ClusterResolver]] = {}
        self._tasks: dict[Stay[ClusterResolver], asyncio.Task[None]] = {}
        self._keepers = 0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep inside the block what is opened; after the last such block all of it is closed."""
        self._keepers += 1
        try:
            yield
        finally:
            self._keepers -= 1
            if not self._keepers:
                await self._closed()

    @asynccontextmanager
    async def visit(self, resolver: ClusterResolver) -> AsyncIterator[ClusterResolver]:
        """Yield `resolver`, entered, inside `async with`.

        Raises:
            BaseException: what entering it raised.
        """
        # Who was removed while its turn came is cancelled only now: it may not open again what was closed.
        await anyio.lowlevel.checkpoint_if_cancelled()
        stay = self._stays.get(id(resolver))
        if stay is None or stay.is_over:
            stay = self._stays[id(resolver)] = self._begun(resolver, after=stay)
        async with stay.visit() as entered:
            yield entered

    def release(self, resolver: ClusterResolver) -> None:
        """Let `resolver` be left as soon as no question to it is under way."""
        stay = self._stays.get(id(resolver))
        if stay is not None:
            stay.leave()

    def _begun(
        self, resolver: ClusterResolver, *, after: Stay[ClusterResolver] | None
    ) -> Stay[ClusterResolver]:
        stay = Stay(resolver, logger=logger, inside=partial(self._pools.inside, resolver), after=after)
        task = self._tasks[stay] = asyncio.create_task(stay.stay())
        task.add_done_callback(lambda _: self._forget(resolver, stay))
        return stay

    def _forget(self, resolver: ClusterResolver, stay: Stay[ClusterResolver]) -> None:
        del self._tasks[stay]
        if self._stays.get(id(resolver)) is stay:
            del self._stays[id(resolver)]

    async def _closed(self) -> None:
        """Leave every resolver, each within its own `timeout`, and wait for it."""
        for stay in self._stays.values():
            stay.leave()
        await ended(*self._tasks.values())
