"""Resolvers that a test controls, for fleets."""

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

import anyio

from aioresolve import Want
from aioresolve.errors import ConnectionFailedError
from aioresolve.fleet import TargetStatus
from aioresolve.resolver import ClusterResolver
from aioresolve.spec import ClusterSpec, ClusterState, Observation
from tests.virtual_time import in_virtual_time

__all__ = [
    "Pooled",
    "Scripted",
    "Source",
    "each_in_virtual_time",
    "fail",
    "hang",
    "no_task_left",
    "respond_with",
    "scripted",
    "take",
    "until",
    "workers",
]

T = TypeVar("T")

PATIENCE = 60.0
"""A timeout in seconds that does not pass, even on a busy machine."""


def workers(number: int) -> ClusterState:
    """Return a state with this many workers."""
    return ClusterState.from_spec(ClusterSpec({"worker": [f"10.0.0.{n}:1" for n in range(number)]}))


async def hang() -> ClusterState:
    """Never return."""
    await anyio.sleep_forever()
    raise AssertionError


async def fail() -> ClusterState:
    """Fail with a retryable error."""
    raise ConnectionFailedError("connection refused")


def respond_with(number: int) -> Callable[[], Awaitable[ClusterState]]:
    """Return a response with this many workers."""

    async def respond() -> ClusterState:
        return workers(number)

    return respond


class Scripted(ClusterResolver):
    """Returns what the test sets, and counts the requests."""

    def __init__(
        self, respond: Callable[[], Awaitable[ClusterState]] | None = None, *, timeout: float = 5.0
    ) -> None:
        super().__init__(timeout=timeout)
        self.respond = respond or respond_with(1)
        self.num_requests = 0
        self.num_active = 0
        self.history: list[str] = []

    async def observe(self, want: Want, progress: Any) -> Observation:
        self.num_requests += 1
        self.num_active += 1
        try:
            return Observation(await self.respond())
        finally:
            self.num_active -= 1

    async def __aenter__(self) -> Self:
        self.history.append("entered")
        return self

    async def aclose(self) -> None:
        self.history.append("left")


class Source(ClusterResolver):
    """Has a watch that yields what the test emits, and ends when it emits an error."""

    def __init__(self) -> None:
        super().__init__(timeout=5.0)
        self.num_active = 0
        self.num_started = 0
        self._emitted: list[Observation | BaseException] = []
        self._wakeup = anyio.Event()

    def emit(self, *emitted: Observation | BaseException) -> None:
        """Make the watch yield observations, or raise an error."""
        self._emitted += emitted
        self._wakeup.set()

    async def observe(self, want: Want, progress: Any) -> Observation:
        raise AssertionError("a source with a watch is not polled")

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        self.num_started += 1
        self.num_active += 1
        try:
            while True:
                while self._emitted:
                    emitted = self._emitted.pop(0)
                    if isinstance(emitted, BaseException):
                        raise emitted
                    yield emitted
                self._wakeup = anyio.Event()
                await self._wakeup.wait()
        finally:
            self.num_active -= 1


class Pooled(Scripted):
    """Uses a client that the resolvers of the same key share; `clients` shows which are open."""

    def __init__(self, key: str, clients: list[str]) -> None:
        super().__init__()
        self._key = key
        self._open_clients = clients

    __aenter__ = ClusterResolver.__aenter__  # pyright: ignore[reportAssignmentType]
    aclose = ClusterResolver.aclose

    async def observe(self, want: Want, progress: Any) -> Observation:
        async def create(stack: AsyncExitStack) -> str:
            self._open_clients.append(self._key)
            stack.callback(self._open_clients.remove, self._key)
            return self._key

        async with self._connected() as connections:
            assert await connections.get(self, self._key, create) == self._key
        return await super().observe(want, progress)


async def take(statuses: AsyncGenerator[TargetStatus, None], number: int) -> list[TargetStatus]:
    """Return the next `number` statuses."""
    with anyio.fail_after(PATIENCE):
        return [await anext(statuses) for _ in range(number)]


def scripted(number: int, **arguments: Any) -> dict[str, Scripted]:
    """Return this many targets: `t0`, `t1`, ..."""
    return {f"t{n}": Scripted(**arguments) for n in range(number)}


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as `condition` is true."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - an arbitrary condition has no event
            await anyio.sleep(0.002)


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Fail if tasks that were started inside the block outlive it."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: asyncio.all_tasks() - before <= {asyncio.current_task()})


def each_in_virtual_time(tests: type[T]) -> type[T]:
    """Run each async test of a class in an event loop with virtual time, in which it leaves no task."""
    for name, test in list(vars(tests).items()):
        if inspect.iscoroutinefunction(test):
            setattr(tests, name, in_virtual_time(_without_tasks_left(test)))
    return tests


def _without_tasks_left(test: Callable[..., Awaitable[None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def run_test(*args: Any, **kwargs: Any) -> None:
        async with no_task_left():
            await test(*args, **kwargs)

    return run_test
