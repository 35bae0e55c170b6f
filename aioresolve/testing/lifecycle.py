"""Ports of the loopback servers: how they are closed, and how connections are dropped.

Loopback servers for code without an event loop: each runs in a loop and a thread of its own.
"""

from __future__ import annotations

import abc
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from aiohttp import web

__all__ = ["ThreadedServer", "drop_connections", "stop_listening"]


async def stop_listening(site: web.BaseSite) -> None:
    """Refuse connections from now on; those that are there stay."""
    # asyncio loses a connection, its socket open, that it accepted in the round of its loop before a server
    # is closed (python/cpython#109564). Timers come last in a round: who was woken by one comes after all
    # that was accepted in that round has been taken over, and before anything more is accepted.
    with anyio.CancelScope(shield=True):
        await anyio.sleep(0.001)
        await site.stop()


def drop_connections(runner: web.AppRunner) -> None:
    """Close every connection at once, whatever is under way."""
    for connection in () if runner.server is None else list(runner.server.connections):
        if connection.transport is not None:
            connection.transport.abort()


S = TypeVar("S", bound=AbstractAsyncContextManager[object])


class ThreadedServer(abc.ABC, Generic[S]):
    """`with` in the place of a server's `async with`."""

    _server: S
    _exits: ExitStack
    _portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        """Start the thread and listen; raises as the server's `__aenter__` does."""
        with ExitStack() as stack:
            name = type(self._server).__name__
            portal = stack.enter_context(start_blocking_portal("asyncio", name=name))
            stack.enter_context(portal.wrap_async_context_manager(self._server))
            self._portal = portal
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._exits.close()

    @property
    def _running(self) -> BlockingPortal:
        """The way into the server's loop."""
        if self._portal is None:
            raise self._not_running()
        return self._portal

    @abc.abstractmethod
    def _not_running(self) -> Exception:
        """Return the error of what can only be done to a running server."""
