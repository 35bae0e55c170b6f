"""The base of all facades: an async resolver or fleet with blocking methods."""

from __future__ import annotations

import weakref
from contextlib import aclosing
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from aioresolve._core.concurrency import stream_latest
from aioresolve._core.copying import Copyable
from aioresolve.errors import ConnectionFailedError
from aioresolve.resolver import base

from .iteration import BlockingIterator
from .shared import SharedResource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.this_task import TaskClaim
    from aioresolve.resolver.want import Want
    from aioresolve.spec import Observation


P = ParamSpec("P")
R = TypeVar("R")
SharedT = TypeVar("SharedT", bound=SharedResource[Any])


class ResolverAttributes:
    """The properties of a facade: they read and set those of the async resolver."""

    _shared: SharedResource[base.ClusterResolver]

    task_type: str | None = base.forwarded("task_type", "_shared.resource")
    task_id: int | None = base.forwarded("task_id", "_shared.resource")
    rpc_layer: str | None = base.forwarded("rpc_layer", "_shared.resource")

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, an empty string everywhere else."""
        return self._shared.resource.environment

    @property
    def timeout(self) -> float:
        """The default total deadline of a call, in seconds."""
        return self._shared.resource.timeout


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return a facade method that calls an async method of the resolver: the same signature, but it blocks.

    An override of `method` in the resolver's class is called.
    """
    name = method.__name__

    @wraps(method)
    def blocking_method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._shared.call(name, *args, **kwargs)
        return result

    return blocking_method


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Facade[Any], P], BlockingIterator[R]]:
    """Return a facade method for an async generator method: the same signature, but it returns an iterator.

    The first `next` of the iterator calls the method. An override of `method` in the resolver's class is
    called.
    """
    name = method.__name__

    @wraps(method)
    def iterator_method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> BlockingIterator[R]:
        def generate(entered: Any) -> AsyncGenerator[R, None]:
            generator: AsyncGenerator[R, None] = getattr(entered, name)(*args, **kwargs)
            return generator

        return BlockingIterator(self, self._shared, generate)

    iterator_method.__doc__ = (method.__doc__ or "").replace("contextlib.aclosing", "contextlib.closing")
    return iterator_method


class Facade(Copyable, Generic[SharedT]):
    """An async resolver or fleet with blocking methods. The first call enters it, in the loop thread."""

    _kept_attributes = base.ClusterResolver._kept_attributes

    def __init__(self, shared: SharedT) -> None:
        self._shared = shared
        # Not at exit: there the loop thread itself exits everything that was entered.
        weakref.finalize(self, shared.close_soon).atexit = False

    def __repr__(self) -> str:
        return f"<sync {type(self).__name__} of {self._shared.resource!r}>"

    def close(self) -> None:
        """Wait for the calls in progress in other threads, and close the connections that the calls share.

        Running iterators end. Closing twice, or before the first call, does nothing. The next call opens
        connections again.

        Raises:
            DeadlineExceededError: they could not be closed within `timeout` seconds.
        """
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class FacadeResolver(ResolverAttributes, base.ClusterResolver):  # pyright: ignore[reportIncompatibleVariableOverride]
    """An async resolver that calls the resolver behind a facade, for unions and fleets of facades.

    It must be used in the event loop thread, and shares the connections of the facade.
    """

    def __init__(self, facade: Facade[SharedResource[base.ClusterResolver]]) -> None:
        super().__init__(timeout=facade._shared.resource.timeout)
        self._facade = facade  # it closes its connections when it is garbage-collected
        self._shared = facade._shared

    def __repr__(self) -> str:
        return repr(self._facade)

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return cast("Observation", await self._shared.acall("observe", want, progress))

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        async with aclosing(stream_latest(partial(self._follow, want, interval))) as observations:
            async for observation in observations:
                yield observation

    async def _follow(self, want: Want, interval: float, latest: LatestValue[Observation]) -> None:
        async def follow(resolver: base.ClusterResolver) -> None:
            async with aclosing(resolver.changes(want, interval)) as observations:
                async for observation in observations:
                    latest.put(observation)

        await self._shared.run_until_closed(follow)
        raise ConnectionFailedError(
            f"{self!r} was closed while it was watched",
            hint="Close the union or fleet that watches it first.",
            retryable=False,
        )

    async def _claim(self, progress: Progress) -> TaskClaim:
        return cast("TaskClaim", await self._shared.acall("_claim", progress))

    async def master(self, *args: Any, **kwargs: Any) -> str:
        return cast("str", await self._shared.acall("master", *args, **kwargs))

    async def num_accelerators(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        return cast("dict[str, int]", await self._shared.acall("num_accelerators", *args, **kwargs))
