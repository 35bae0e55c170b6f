"""Facades as async resolvers of the loop thread: what unions and fleets of facades ask."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from aioresolve import resolver as base
from aioresolve.concurrency import newest_of
from aioresolve.errors import ConnectionFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aioresolve.concurrency import Newest
    from aioresolve.retry import Progress
    from aioresolve.sharing import SharedResolver
    from aioresolve.spec import ClusterSpec, ClusterState, Observation

    from .facade import Facade

__all__ = ["Attributes", "InLoop"]


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
