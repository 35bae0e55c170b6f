"""Facades as async resolvers of the loop thread: what unions and fleets of facades ask.

What every facade is: methods that block, over an async one that their calls share.
"""

from __future__ import annotations

import weakref
from contextlib import aclosing
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from aioresolve._core.concurrency import newest_of
from aioresolve.errors import ConnectionFailedError
from aioresolve.resolver import base

from .iteration import BlockingIterator
from .shared import Shared

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from types import TracebackType

    from aioresolve._core.concurrency import Newest
    from aioresolve._core.retry import Progress
    from aioresolve.spec import ClusterSpec, ClusterState, Observation

    from .shared import SharedResolver

__all__ = ["Attributes", "Facade", "InLoop", "blocking", "blocking_iterator"]


class Attributes:
    """The attributes of the async resolver, read and set through its facade."""

    _shared: SharedResolver

    @property
    def task_type(self) -> str | None:
        """The job this process belongs to (`"worker"`, `"ps"`, ...), or None if that is not known."""
        return self._shared.resolver.task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._shared.resolver.task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's task index in its job, or None if that is not known."""
        return self._shared.resolver.task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._shared.resolver.task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the tasks, such as `"grpc"`; None for bare addresses."""
        return self._shared.resolver.rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._shared.resolver.rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, the empty string everywhere else."""
        return self._shared.resolver.environment

    @property
    def timeout(self) -> float:
        """The total deadline of a call, in seconds, where the call names none."""
        return self._shared.resolver.timeout


class InLoop(Attributes, base.ClusterResolver):
    """A facade as an async resolver of the loop thread: what a union or a fleet of facades asks."""

    def __init__(self, facade: Facade[SharedResolver]) -> None:
        super().__init__(timeout=facade._shared.resolver.timeout)
        self._facade = facade  # which closes its connections when nobody holds it
        self._shared = facade._shared

    def __repr__(self) -> str:
        return repr(self._facade)

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        spec: ClusterSpec = await self._shared.answer("fetch_spec", progress)
        return spec

    async def fetch_state(self, progress: Progress) -> ClusterState:
        state: ClusterState = await self._shared.answer("fetch_state", progress)
        return state

    async def fetch_observation(self, progress: Progress) -> Observation:
        observation: Observation = await self._shared.answer("fetch_observation", progress)
        return observation

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        async with aclosing(newest_of(partial(self._observe, interval))) as observations:
            async for observation in observations:
                yield observation

    async def _observe(self, interval: float, newest: Newest[Observation]) -> None:
        async def follow(resolver: base.ClusterResolver) -> None:
            async with aclosing(resolver.observations(interval=interval)) as observations:
                async for observation in observations:
                    newest.put(observation)

        await self._shared.visit_until_left(follow)
        raise ConnectionFailedError(
            f"{self!r} was closed while it was watched; close it after what watches it", retryable=False
        )

    async def master(self, *args: Any, **kwargs: Any) -> str:
        master: str = await self._shared.answer("master", *args, **kwargs)
        return master

    async def num_accelerators(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        accelerators: dict[str, int] = await self._shared.answer("num_accelerators", *args, **kwargs)
        return accelerators


P = ParamSpec("P")
R = TypeVar("R")
SharedT = TypeVar("SharedT", bound=Shared[Any])


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return `method` of an async resolver as a method of its facade: the same signature, without `await`.

    The resolver's own override of it is what is called.
    """
    name = method.__name__

    @wraps(method)
    def blocking_method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._shared.ask(name, *args, **kwargs)
        return answer

    return blocking_method


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Facade[Any], P], BlockingIterator[R]]:
    """Return an async generator `method` as one of the facade, which returns an iterator of the same items.

    The resolver's own override of it is what is called, with the first `next`.
    """
    name = method.__name__

    @wraps(method)
    def iterator_method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> BlockingIterator[R]:
        def items(entered: Any) -> AsyncGenerator[R, None]:
            generator: AsyncGenerator[R, None] = getattr(entered, name)(*args, **kwargs)
            return generator

        return BlockingIterator(self, self._shared, items)

    # What it tells of how to close is told of the blocking one here.
    iterator_method.__doc__ = (method.__doc__ or "").replace("contextlib.aclosing", "contextlib.closing")
    return iterator_method


class Facade(Generic[SharedT]):
    """An async resolver or fleet, blocking. Its first call enters it, in the loop thread."""

    def __init__(self, shared: SharedT) -> None:
        self._shared = shared
        # At exit the portal itself leaves everything that was entered.
        weakref.finalize(self, shared.release).atexit = False

    def __repr__(self) -> str:
        return f"<sync {type(self).__name__} of {self._shared.entered!r}>"

    def close(self) -> None:
        """Close the connections that the calls share, once those in flight in other threads are done.

        Iterators that go on end. Closing twice, or without having made a call, does nothing. The next call
        opens connections again.

        Raises:
            DeadlineExceededError: they could not be closed within `timeout` seconds.
        """
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
