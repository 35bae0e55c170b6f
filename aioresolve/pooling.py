"""Connections that calls share: those of a resolver's `async with`, or a pool that several resolvers use."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

__all__ = ["Pool", "Sharing"]


class Pool(Protocol):
    """The connections of one event loop, opened as they are needed."""

    async def aclose(self) -> None:
        """Close them. Closing twice does nothing."""


class PoolOfLoop(Pool, Protocol):
    """A pool that says which event loop its sockets belong to."""

    loop: asyncio.AbstractEventLoop


P = TypeVar("P", bound=PoolOfLoop)


class Sharing(Generic[P]):
    """Which connections the calls of a resolver use: those of its `async with`, a pool's, or each its own.

    Args:
        resolver: whose calls, for messages.
        new: returns connections of the event loop that is running, none of them open yet.
    """

    def __init__(self, resolver: object, new: Callable[[], P]) -> None:
        self._resolver = resolver
        self._new = new
        self._shared: P | None = None
        self._is_lent = False

    def enter(self) -> None:
        """Let the calls from now on share connections, until `aclose`.

        Raises:
            ConfigurationError: they do already.
        """
        self._check_free()
        self._shared, self._is_lent = self._new(), False

    async def aclose(self) -> None:
        """Close the connections of `enter`; those of a pool are its owner's."""
        if self._shared is not None and not self._is_lent:
            shared, self._shared = self._shared, None
            await shared.aclose()

    @contextmanager
    def using(self, pool: P) -> Iterator[None]:
        """Let the calls inside the block share the connections of `pool`.

        Raises:
            ConfigurationError: they share others already.
        """
        self._check_free()
        self._shared, self._is_lent = pool, True
        try:
            yield
        finally:
            self._shared = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[P]:
        """Yield the connections that calls share, or one call's own where they share none."""
        shared = self._shared
        # Sockets belong to the loop that opened them: a call from another one brings its own.
        if shared is not None and shared.loop is asyncio.get_running_loop():
            yield shared
            return
        own = self._new()
        try:
            yield own
        finally:
            await own.aclose()

    def unfit(self, pool: Pool) -> ConfigurationError:
        """Return the error for a pool that is not of this kind of resolver."""
        return ConfigurationError(
            f"{pool!r} is no pool for {self._resolver!r}; take that of a resolver with its pool_key"
        )

    def _check_free(self) -> None:
        if self._shared is not None:
            raise ConfigurationError(
                f"{self._resolver!r} is entered already; use the one resolver, or make another"
            )
