"""Resolvers that do what a test says, for fleets made of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio

from aioresolve.errors import ConnectionFailedError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterSpec, ClusterState, Observation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator

    from aioresolve._core.retry import Progress
    from aioresolve._core.shared_context import Pool
    from aioresolve.fleet import Reading

__all__ = [
    "Pooled",
    "Scripted",
    "ScriptedPool",
    "Source",
    "answer_of",
    "fail",
    "hang",
    "no_task_left",
    "scripted",
    "taken",
    "until",
    "workers",
]


def workers(number: int) -> ClusterState:
    """Return a state of so many workers."""
    return ClusterState.from_spec(ClusterSpec({"worker": [f"10.0.0.{n}:1" for n in range(number)]}))


async def hang() -> ClusterState:
    """Never answer."""
    await anyio.sleep_forever()
    raise AssertionError


async def fail() -> ClusterState:
    """Fail in a way that may pass."""
    raise ConnectionFailedError("nobody there")


def answer_of(number: int) -> Callable[[], Awaitable[ClusterState]]:
    """Answer with so many workers."""

    async def answer() -> ClusterState:
        return workers(number)

    return answer


class Scripted(ClusterResolver):
    """Answers as the test says, and keeps count."""

    def __init__(
        self, answer: Callable[[], Awaitable[ClusterState]] | None = None, *, timeout: float = 5.0
    ) -> None:
        super().__init__(timeout=timeout)
        self.answer = answer or answer_of(1)
        self.asked = 0
        self.asking = 0
        self.history: list[str] = []

    async def fetch_state(self, progress: Progress) -> ClusterState:
        self.asked += 1
        self.asking += 1
        try:
            return await self.answer()
        finally:
            self.asking -= 1

    async def __aenter__(self) -> Self:
        self.history.append("entered")
        return self

    async def aclose(self) -> None:
        self.history.append("left")


class Source(ClusterResolver):
    """Has a watch: `show` is what it tells, and an error is what it ends with."""

    def __init__(self) -> None:
        super().__init__(timeout=5.0)
        self.watches = 0
        self.begun = 0
        self._shown: list[Observation | Exception] = []
        self._stirred = anyio.Event()

    def show(self, *shown: Observation | Exception) -> None:
        """Let the watch that goes on tell this."""
        self._shown += shown
        self._stirred.set()

    async def fetch_state(self, progress: Progress) -> ClusterState:
        raise AssertionError("it is to be watched")

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        self.begun += 1
        self.watches += 1
        try:
            while True:
                while self._shown:
                    shown = self._shown.pop(0)
                    if isinstance(shown, Exception):
                        raise shown
                    yield shown
                self._stirred = anyio.Event()
                await self._stirred.wait()
        finally:
            self.watches -= 1


class ScriptedPool:
    """A pool that knows who uses it, and whether it is closed."""

    def __init__(self) -> None:
        self.users: list[ClusterResolver] = []
        self.is_closed = False

    async def aclose(self) -> None:
        assert not self.users
        self.is_closed = True


class Pooled(Scripted):
    """Shares a pool with those of the same key."""

    def __init__(self, key: str, pools: list[ScriptedPool]) -> None:
        super().__init__()
        self._key = key
        self._pools = pools
        self._pool: Pool | None = None

    @property
    def pool_key(self) -> Hashable:
        return self._key

    def new_pool(self) -> ScriptedPool:
        self._pools.append(ScriptedPool())
        return self._pools[-1]

    @contextmanager
    def using(self, pool: Pool) -> Iterator[None]:
        assert isinstance(pool, ScriptedPool)
        assert self._pool is None
        self._pool = pool
        pool.users.append(self)
        yield
        pool.users.remove(self)
        self._pool = None

    async def fetch_state(self, progress: Progress) -> ClusterState:
        assert self._pool is not None
        return await super().fetch_state(progress)


async def taken(readings: AsyncGenerator[Reading, None], number: int) -> list[Reading]:
    """Return the next `number` readings."""
    with anyio.fail_after(10.0):
        return [await anext(readings) for _ in range(number)]


def scripted(number: int, **arguments: Any) -> dict[str, Scripted]:
    """Return so many targets, `t0` and so on."""
    return {f"t{n}": Scripted(**arguments) for n in range(number)}


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as `condition` holds."""
    with anyio.fail_after(10.0):
        while not condition():  # noqa: ASYNC110 - a condition on anything has no event of its own
            await anyio.sleep(0.002)


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Fail where tasks that were begun inside the block go on after it."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: asyncio.all_tasks() - before <= {asyncio.current_task()})
