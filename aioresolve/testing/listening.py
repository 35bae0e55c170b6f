"""Ports of the loopback servers: how they are closed, and how connections are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["drop_connections", "stop_listening"]


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
