"""Connections that many calls and several resolvers share, and copies of resolvers without connections.

`Connections` has the clients of one event loop, each opened when it is first needed. Resolvers with the same
server and credentials share a client. Outside `async with`, each call has connections of its own; inside, the
calls of a resolver share some; a union, a fleet and the blocking facade lend theirs to their resolvers.

`KeptOpen` keeps an `async with` of a resolver open for many tasks. `Copyable` is copied and pickled as the
arguments that it was created with.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

import anyio

from aioresolve.errors import ConnectionFailedError, DeadlineExceededError, Hint

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Hashable, Iterable

T = TypeVar("T")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(eq=False, slots=True)
class _Client:
    users: set[int] = field(default_factory=set)  # ids of resolvers that have not released it
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    value: Any = None


class Connections:
    """The clients of the running event loop, by what they are made from. Sockets belong to their loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._clients: dict[Hashable, _Client] = {}
        self._is_closed = False

    async def get(self, user: object, key: Hashable, create: Callable[[AsyncExitStack], Awaitable[T]]) -> T:
        """Return the client with this key; the first call creates it, and others wait for that.

        Args:
            user: the resolver that needs the client, until `release`.
            key: what the client is made from: its server and credentials.
            create: returns the client, and enters or pushes to the given stack what closes it.

        Raises:
            ConnectionFailedError: the connections were closed in the meantime.
        """
        client = self._clients.setdefault(key, _Client())
        client.users.add(id(user))
        async with client.lock:
            if client.value is None and not self._is_closed:
                async with AsyncExitStack() as stack:
                    client.value = await create(stack)
                    client.stack = stack.pop_all()
            if self._is_closed:
                await client.stack.aclose()
                raise ConnectionFailedError(
                    "the resolver was closed while this call was running", retryable=False
                )
        return cast("T", client.value)

    async def release(self, user: object) -> None:
        """Close the clients that only `user` has used."""
        unused: list[_Client] = []
        for key, client in list(self._clients.items()):
            client.users.discard(id(user))
            if not client.users:
                # Before any `await`: a resolver that needs the client while it closes opens a new one.
                unused.append(self._clients.pop(key))
        await _close(unused)

    async def aclose(self) -> None:
        """Close all clients. Closing twice does nothing."""
        self._is_closed = True
        await _close(self._clients.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


async def _close(clients: Iterable[_Client]) -> None:
    async with AsyncExitStack() as stack:  # closes the others if one fails
        for client in clients:
            stack.push_async_callback(client.stack.aclose)


class Enterable(AbstractAsyncContextManager[object], Protocol):
    """An async context manager that enters and exits within `timeout` seconds each."""

    @property
    def timeout(self) -> float: ...


EnterableT = TypeVar("EnterableT", bound=Enterable)


class KeptOpen(Generic[EnterableT]):
    """Keeps an async context manager open in its own task, so that many tasks can share it.

    A cancel scope must exit in the task that entered it, so none of the tasks that share the resource can
    enter it: `run` does, in a task that the owner of the context starts. The context exits after `close` was
    called and the last `acquire` has ended.

    Args:
        resource: the context manager, yielded by `acquire`.
        logger: logs an error of exiting, for which maybe no caller waits.
        enter: returns the context manager to enter in place of `resource`.
        after: the previous context of this resource; it exits before this one enters.
    """

    def __init__(
        self,
        resource: EnterableT,
        *,
        logger: logging.Logger,
        enter: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        after: KeptOpen[EnterableT] | None = None,
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
        if self._error is not None and self._is_entered:
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
        self.close()
        await self._exited.wait()
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


class Copyable:
    """Copied and pickled as the arguments of its constructor, and the attributes that were set afterwards.

    The copy has no connections. The arguments must be copyable and picklable themselves; `copy.copy` shares
    them, except those that are `Copyable`.
    """

    _kept_attributes: ClassVar[frozenset[str]] = frozenset()
    """The attributes that a copy has too if they were set after the constructor returned."""

    _is_copy = False
    _arguments_of_init: Arguments
    _assignments: dict[str, tuple[int, Any]]  # name to the number of assignments, and the last value

    if not TYPE_CHECKING:  # type checkers would read this signature instead of that of `__init__`

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            self = super().__new__(cls)
            # Later changes of a list or a mapping do not change the object.
            vars(self).update(_arguments_of_init=_copy_containers((args, kwargs)), _assignments={})
            return self

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            # Python 3.11.2 shows the signature of `__new__` for a class that inherits its `__init__`.
            signature = inspect.signature(cls.__init__)
            cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._kept_attributes:
            number, _ = self._assignments.get(name, (0, None))
            self._assignments[name] = number + 1, value

    def _copied_arguments(self) -> Arguments:
        """Return the arguments of the constructor that make an equal object."""
        return self._arguments_of_init

    def __copy__(self) -> Self:
        args, kwargs = _copy_containers(self._copied_arguments(), _copy_leaf)
        return recreate(type(self), args, kwargs, self._assignments)

    def __reduce__(self) -> tuple[Any, ...]:
        return recreate, (type(self), *self._copied_arguments(), self._assignments)


def recreate(
    kind: type[T], args: tuple[Any, ...], kwargs: dict[str, Any], assignments: dict[str, tuple[int, Any]]
) -> T:
    """Return a new `kind` with these arguments, on which the assignments are repeated."""
    new: Any = kind.__new__(kind, *args, **kwargs)
    vars(new)["_is_copy"] = True
    new.__init__(*args, **kwargs)
    for name, (number, value) in assignments.items():
        # The constructor has made the first ones again, with the values of this process.
        if number > new._assignments.get(name, (0, None))[0]:
            setattr(new, name, value)
    copied: T = new
    return copied


def _copy_leaf(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, Copyable) else value


def _copy_containers(value: Any, copy_leaf: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_containers(item, copy_leaf) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy_containers(item, copy_leaf) for item in value)
    return copy_leaf(value)
