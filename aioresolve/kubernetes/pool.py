"""`ConnectionPool`: what the calls of an entered resolver share, or those of several resolvers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .api import PodAPI

__all__ = ["ConnectionPool"]


class ConnectionPool:
    """One PodAPI, opened by the first who asks for it, in the event loop that is running.

    Attributes:
        loop: that loop; sockets belong to it.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._opening = anyio.Lock()
        self._api: PodAPI | None = None
        self._is_closed = False

    async def opened(self, opening: Callable[[], Awaitable[PodAPI]]) -> PodAPI:
        """Return the one PodAPI, opened by the first to ask."""
        async with self._opening:
            if self._api is None:
                self._api = await opening()
                if self._is_closed:
                    # `async with` ended meanwhile: the call that opened this is told so when it asks.
                    await self._api.aclose()
            return self._api

    async def aclose(self) -> None:
        """Close what was opened, and what is being opened as soon as it is."""
        self._is_closed = True
        if self._api is not None:
            await self._api.aclose()
