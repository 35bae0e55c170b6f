"""Stays inside `async with` that many tasks share, and the pools that several resolvers share.

A `Stay` is entered by the first who visits it, in a task of its own, and left after the last. `Pools` enters
resolvers that have a pool in common by that pool.

Connections that calls share: those of a resolver's `async with`, or a pool that several resolvers use.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio

from aioresolve.errors import ConfigurationError, DeadlineExceededError

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import TracebackType
    from typing import Self

__all__ = ["Enterable", "Pool", "Poolable", "Pools", "Sharing", "Stay"]


class Enterable(Protocol):
    """What is entered and left with `async with`, each within `timeout` seconds."""

    @property
    def timeout(self) -> float:
        """Seconds."""
        ...

    async def __aenter__(self) -> Self:
        """Enter it."""
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None:
        """Leave it."""


class Poolable(Enterable, Protocol):
    """A resolver, as far as its connections are concerned; see `ClusterResolver`."""

    @property
    def pool_key(self) -> Hashable | None:
        """What its connections depend on; None where it has none to share."""

    def new_pool(self) -> Pool:
        """Return a pool for all that have this `pool_key`."""
        ...

    def using(self, pool: Pool) -> AbstractContextManager[None]:
        """Let it use `pool` inside the block."""
        ...


EnterableT = TypeVar("EnterableT", bound=Enterable)


class Stay(Generic[EnterableT]):
    """One stay inside `async with`, in a task of its own, for cancel scopes are left where they were entered.

    Who needs it open visits it. It ends when it was told to and the last visitor is gone.

    Args:
        entered: what is entered, and what the visitors get.
        logger: told of an error on leaving that nobody waits for.
        inside: returns what to be inside of; `entered` itself where None.
        after: the stay before this one, whose end is waited for first.

    Attributes:
        is_over: whether it takes no visitors any more.
    """

    def __init__(
        self,
        entered: EnterableT,
        *,
        logger: logging.Logger,
        inside: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        after: Stay[EnterableT] | None = None,
    ) -> None:
        self.is_over = False
        self._entered = entered
        self._inside = inside or (lambda: entered)
        self._logger = logger
        self._after = after
        self._entering: anyio.CancelScope | None = None
        self._visitors = 0
        self._endless: set[anyio.CancelScope] = set()
        self._is_entered = False
        self._opened = anyio.Event()
        self._vacated = anyio.Event()
        self._ended = anyio.Event()
        self._error: BaseException | None = None
        self._closers = 0

    async def stay(self) -> None:
        """Enter, and leave when told to."""
        try:
            await self._stay_inside()
        except BaseException as error:  # theirs who wait for it; here it would end the loop for everybody
            self._error = error
        self.is_over = True
        self._opened.set()
        self._ended.set()
        if self._error is not None and self._is_entered and not self._closers:
            self._logger.warning("%r was not left cleanly", self._entered, exc_info=self._error)

    def leave(self) -> None:
        """Take no new visitor, send those away that would stay without end, and end with the last of them."""
        self.is_over = True
        for scope in tuple(self._endless):
            scope.cancel()
        if not self._visitors:
            self._vacated.set()
            if self._entering is not None:
                self._entering.cancel()

    async def left(self) -> None:
        """Leave and wait for it.

        Raises:
            BaseException: what leaving raised.
        """
        self._closers += 1
        try:
            self.leave()
            await self._ended.wait()
        finally:
            self._closers -= 1
        if self._error is not None and self._is_entered:
            raise self._error

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[EnterableT]:
        """Yield what was entered.

        Raises:
            BaseException: what entering raised.
        """
        self._visitors += 1
        try:
            await self._opened.wait()
            if self._error is not None and not self._is_entered:
                raise self._error
            yield self._entered
        finally:
            self._visitors -= 1
            if self.is_over:
                self.leave()

    async def visit_until_left(self, work: Callable[[EnterableT], Awaitable[object]]) -> None:
        """Do `work`, which may have no end, with what was entered; `leave` cancels it.

        Raises:
            BaseException: what entering raised, or the work.
        """
        with anyio.CancelScope() as scope:
            self._endless.add(scope)
            try:
                async with self.visit() as entered:
                    await work(entered)
            finally:
                self._endless.discard(scope)

    async def _stay_inside(self) -> None:
        timeout = self._entered.timeout
        if self._after is not None:
            await self._after._ended.wait()
            self._after = None
        if self._vacated.is_set():
            return
        # Shielded, because cancelling would not close what is open: it ends by being told to.
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout) as scope:
            self._entering = scope
            async with self._inside():
                self._entering = None
                scope.deadline = math.inf
                self._is_entered = True
                self._opened.set()
                await self._vacated.wait()
                scope.deadline = anyio.current_time() + timeout
        if scope.cancelled_caught and (self._is_entered or not self._vacated.is_set()):
            raise DeadlineExceededError(
                f"{self._entered!r} was not {'left' if self._is_entered else 'entered'} within"
                f" {timeout:g} s; raise its `timeout`, or see what its `async with` waits for",
                timeout=timeout,
            )


class Pools:
    """The pools of one event loop: one for all resolvers of a `pool_key`, closed after the last of them."""

    def __init__(self) -> None:
        self._pools: dict[Hashable, _SharedPool] = {}

    @asynccontextmanager
    async def inside(self, resolver: Poolable) -> AsyncIterator[None]:
        """Be inside `resolver`: by the pool of its `pool_key`, or by its own `async with` without one."""
        key = resolver.pool_key
        if key is None:
            async with resolver:
                yield
            return
        shared = self._pools.get(key)
        if shared is None:
            shared = self._pools[key] = _SharedPool(resolver.new_pool())
        shared.users += 1
        try:
            with resolver.using(shared.pool):
                yield
        finally:
            shared.users -= 1
            if not shared.users:
                del self._pools[key]
                await shared.pool.aclose()


class _SharedPool:
    """A pool, and how many use it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.users = 0


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
