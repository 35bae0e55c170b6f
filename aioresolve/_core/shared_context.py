"""Contexts and connections that many tasks share.

`SharedContext` keeps one `async with` open for many tasks. `Pools` opens one connection pool for all
resolvers that can share it. `PoolLease` decides which connections the calls of one resolver use.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio
import msgspec

from aioresolve.errors import ConfigurationError, DeadlineExceededError, Hint

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
    from contextlib import AbstractContextManager


class Enterable(AbstractAsyncContextManager[object], Protocol):
    """An async context manager that enters and exits within `timeout` seconds each."""

    @property
    def timeout(self) -> float: ...


class Pool(Protocol):
    """The connections of one event loop, opened when they are first needed."""

    async def aclose(self) -> None:
        """Close them. Closing twice has no effect."""


class LoopPool(Pool, Protocol):
    """A pool that knows the event loop to which its sockets belong."""

    loop: asyncio.AbstractEventLoop


class Poolable(Enterable, Protocol):
    """The part of `ClusterResolver` that concerns connections."""

    @property
    def pool_key(self) -> Hashable | None:
        """Equal for resolvers that can share a pool; None for a resolver that cannot."""

    def new_pool(self) -> Pool:
        """Return a pool for every resolver with this `pool_key`."""
        ...

    def using(self, pool: Pool) -> AbstractContextManager[None]:
        """Use `pool` for the calls inside the block."""
        ...


EnterableT = TypeVar("EnterableT", bound=Enterable)
LoopPoolT = TypeVar("LoopPoolT", bound=LoopPool)


class SharedContext(Generic[EnterableT]):
    """Keeps an async context manager open in its own task, so that many tasks can share it.

    A cancel scope must exit in the task that entered it, so none of the tasks that share the resource can
    enter it: `run` does, in a task that the owner of the context starts. The context exits after `close` was
    called and the last `acquire` has ended.

    Args:
        resource: the context manager, yielded by `acquire`.
        logger: logs an error of exiting that no caller waits for.
        enter: returns the context manager to enter in place of `resource`.
        after: the previous context of this resource; it exits before this one enters.
    """

    def __init__(
        self,
        resource: EnterableT,
        *,
        logger: logging.Logger,
        enter: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        after: SharedContext[EnterableT] | None = None,
    ) -> None:
        self.is_closed = False
        self._resource = resource
        self._enter = enter or (lambda: resource)
        self._logger = logger
        self._after = after
        self._entering: anyio.CancelScope | None = None
        self._users = 0
        self._endless: set[anyio.CancelScope] = set()
        self._is_entered = False
        self._opened = anyio.Event()  # set also if entering failed
        self._unused = anyio.Event()
        self._exited = anyio.Event()
        self._error: BaseException | None = None
        self._closers = 0

    async def run(self) -> None:
        """Enter the context, wait until it is closed and unused, and exit it."""
        try:
            await self._run()
        except BaseException as error:  # for those that wait; raised here it would end the whole event loop
            # The end of `asyncio.run` cancels every task, which exits the context like `close` does.
            if not (self._is_entered and isinstance(error, asyncio.CancelledError)):
                self._error = error
        self.is_closed = True
        self._opened.set()
        self._exited.set()
        if self._error is not None and self._is_entered and not self._closers:
            self._logger.warning("%r was not exited cleanly", self._resource, exc_info=self._error)

    def close(self) -> None:
        """Refuse new users, cancel `run_until_closed`, and exit after the last user. Does not wait."""
        self.is_closed = True
        for scope in tuple(self._endless):
            scope.cancel()
        if not self._users:
            self._unused.set()
            if self._entering is not None:
                self._entering.cancel()

    async def aclose(self) -> None:
        """Close the context and wait until it has exited; raises the error of exiting."""
        self._closers += 1
        try:
            self.close()
            await self._exited.wait()
        finally:
            self._closers -= 1
        if self._error is not None and self._is_entered:
            raise self._error

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[EnterableT]:
        """Yield the entered resource, which is not exited inside the block; raises the error of entering."""
        self._users += 1
        try:
            await self._opened.wait()
            if self._error is not None and not self._is_entered:
                raise self._error
            yield self._resource
        finally:
            self._users -= 1
            if self.is_closed:
                self.close()

    async def run_until_closed(self, work: Callable[[EnterableT], Awaitable[object]]) -> None:
        """Await `work`, which may be endless, with the entered resource; `close` cancels it."""
        with anyio.CancelScope() as scope:
            self._endless.add(scope)
            try:
                async with self.acquire() as entered:
                    await work(entered)
            finally:
                self._endless.discard(scope)

    async def _run(self) -> None:
        timeout = self._resource.timeout
        if self._after is not None:
            await self._after._exited.wait()
            self._after = None
        if self._unused.is_set():
            return
        # Shielded, because cancellation would leave connections open: the context ends by `close` only.
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout) as scope:
            self._entering = scope
            async with self._enter():
                self._entering = None
                scope.deadline = math.inf
                self._is_entered = True
                self._opened.set()
                await self._unused.wait()
                scope.deadline = anyio.current_time() + timeout
        if scope.cancelled_caught and (self._is_entered or not self._unused.is_set()):
            step = "exited" if self._is_entered else "entered"
            raise DeadlineExceededError(
                f"{self._resource!r} was not {step} within {timeout:g} s",
                hint=Hint("Raise its {timeout}, or check what its `async with` waits for."),
                timeout=timeout,
            )


class Pools:
    """The pools of one event loop: one for each `pool_key`, closed after its last resolver."""

    def __init__(self) -> None:
        self._pools: dict[Hashable, _CountedPool] = {}

    @asynccontextmanager
    async def enter(self, resolver: Poolable) -> AsyncIterator[None]:
        """Connect `resolver` to the pool of its `pool_key`; without a key, enter the resolver itself."""
        key = resolver.pool_key
        if key is None:
            async with resolver:
                yield
            return
        counted = self._pools.get(key)
        if counted is None:
            counted = self._pools[key] = _CountedPool(resolver.new_pool())
        counted.users += 1
        try:
            with resolver.using(counted.pool):
                yield
        finally:
            counted.users -= 1
            if not counted.users:
                # Before the `await`: a resolver that enters while the pool closes needs a new one.
                del self._pools[key]
                await counted.pool.aclose()


class _CountedPool(msgspec.Struct):
    pool: Pool
    users: int = 0


class PoolLease(Generic[LoopPoolT]):
    """The connections that the calls of a resolver use: those of its `async with`, a lent pool, or their own.

    `new` returns a new pool for the running event loop, without open connections.
    """

    def __init__(self, resolver: object, new: Callable[[], LoopPoolT]) -> None:
        self._resolver = resolver
        self._new = new
        self._pool: LoopPoolT | None = None
        self._is_lent = False

    def enter(self) -> None:
        """Share one new pool between all calls until `aclose`."""
        self._check_free()
        self._pool, self._is_lent = self._new(), False

    async def aclose(self) -> None:
        """Close the pool of `enter`. A lent pool belongs to its owner."""
        if self._pool is not None and not self._is_lent:
            pool, self._pool = self._pool, None
            await pool.aclose()

    @contextmanager
    def using(self, pool: LoopPoolT) -> Iterator[None]:
        """Use `pool` for the calls inside the block."""
        self._check_free()
        self._pool, self._is_lent = pool, True
        try:
            yield
        finally:
            self._pool = None

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[LoopPoolT]:
        """Yield the shared pool, or a new one for this call only if the resolver has none in this loop."""
        pool = self._pool
        # Sockets belong to the loop that opened them: a call from another loop uses its own.
        if pool is not None and pool.loop is asyncio.get_running_loop():
            yield pool
            return
        own = self._new()
        try:
            yield own
        finally:
            await own.aclose()

    def mismatch(self, pool: Pool) -> ConfigurationError:
        """Return the error for a pool of another kind of resolver."""
        return ConfigurationError(
            f"{pool!r} is not a pool for {self._resolver!r}",
            hint="Pass the pool of a resolver with the same pool_key.",
        )

    def _check_free(self) -> None:
        if self._pool is not None:
            raise ConfigurationError(
                f"{self._resolver!r} is already entered", hint="Use that resolver, or create another one."
            )
