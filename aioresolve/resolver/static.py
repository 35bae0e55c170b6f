"""The clusters of several sources -> one cluster. Pure.

Resolvers without a source of their own: one is told the answer, the other asks several resolvers.

They follow `tf.distribute.cluster_resolver.SimpleClusterResolver` and `UnionResolver`.
"""

from __future__ import annotations

import reprlib
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio

from aioresolve._core.concurrency import gather, newest_of
from aioresolve._core.retry import Progress
from aioresolve.errors import ConfigurationError, InvalidClusterError, TaskConflictError
from aioresolve.spec import ClusterSpec, ClusterState, Observation

from .base import ClusterResolver, master_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from aioresolve._core.concurrency import Newest
    from aioresolve.spec import Endpoint

__all__ = [
    "SimpleClusterResolver",
    "UnionClusterResolver",
    "merged_observation",
    "merged_spec",
    "merged_state",
]

T = TypeVar("T")


def merged_spec(specs: Iterable[ClusterSpec]) -> ClusterSpec:
    """Return all addresses; see `UnionClusterResolver` for how they are numbered.

    Raises:
        TaskConflictError: a task index is taken twice.
    """
    return ClusterSpec(_merged(_addresses(spec) for spec in specs))


def merged_state(states: Sequence[ClusterState]) -> ClusterState:
    """Return all endpoints, numbered as `merged_spec` does, as old as the oldest answer.

    Raises:
        TaskConflictError: a task index is taken twice.
    """
    jobs = _merged(_endpoints(state) for state in states)
    spec = ClusterSpec({job: {i: e.address for i, e in tasks.items()} for job, tasks in jobs.items()})
    endpoints = {job: tuple(tasks[i] for i in spec.task_indices(job)) for job, tasks in jobs.items()}
    moments = [state.observed_at for state in states if state.observed_at is not None]
    return ClusterState(endpoints, spec, observed_at=min(moments, default=None))


def merged_observation(observations: Sequence[Observation]) -> Observation:
    """Return what all of them show: a state once each has one, as stale as the stalest.

    Raises:
        TaskConflictError: a task index is taken twice.
    """
    states = [one.state for one in observations if one.state is not None]
    stale = [one.stale_since for one in observations if one.stale_since is not None]
    return Observation(
        merged_state(states) if len(states) == len(observations) else None,
        absent=tuple(missing for one in observations for missing in one.absent),
        unready=tuple(missing for one in observations for missing in one.unready),
        error=next((one.error for one in observations if one.error is not None), None),
        stale_since=min(stale, default=None),
    )


def _addresses(spec: ClusterSpec) -> dict[str, dict[int, str]]:
    return {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}


def _endpoints(state: ClusterState) -> dict[str, dict[int, Endpoint]]:
    return {
        job: dict(zip(state.spec.task_indices(job), endpoints, strict=True))
        for job, endpoints in state.endpoints.items()
    }


def _merged(clusters: Iterable[Mapping[str, dict[int, T]]]) -> dict[str, dict[int, T]]:
    """Return the tasks of all clusters by job and task index, jobs in the order they are first met."""
    by_job: dict[str, list[dict[int, T]]] = {}
    for cluster in clusters:
        for job, tasks in cluster.items():
            by_job.setdefault(job, []).append(tasks)
    return {job: _merged_tasks(job, parts) for job, parts in by_job.items()}


def _merged_tasks(job: str, parts: list[dict[int, T]]) -> dict[int, T]:
    if all(list(tasks) == list(range(len(tasks))) for tasks in parts):
        return dict(enumerate(task for tasks in parts for task in tasks.values()))
    merged: dict[int, T] = {}
    for tasks in parts:
        if twice := sorted(merged.keys() & tasks.keys()):
            raise TaskConflictError(
                f"job {job!r}: more than one resolver of the union knows task {', '.join(map(str, twice))}; "
                "the tasks of at least one are sparse, so all keep their indices: let each have its own",
                job=job,
                indices=twice,
            )
        merged |= tasks
    return merged


class SimpleClusterResolver(ClusterResolver):
    """Answers what it was given.

    Args:
        cluster_spec: the cluster; a `tf.train.ClusterSpec` is taken as well.
        master: what `master()` returns where it is asked for no task, without the rpc_layer.
        task_type: the job this process belongs to.
        task_id: this process's task index in that job.
        environment: what `environment` returns.
        num_accelerators: what `num_accelerators()` returns: devices per host, by type.
        rpc_layer: the protocol of the tasks, such as `"grpc"`.
        timeout: the total deadline of a call, in seconds.

    Raises:
        InvalidClusterError: (a TypeError) `cluster_spec` is no ClusterSpec, or `master` no str.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(task_type=task_type, task_id=task_id, rpc_layer=rpc_layer, timeout=timeout)
        self._cluster_spec = _checked_spec(cluster_spec)
        if not isinstance(master, str):
            raise InvalidClusterError(
                f"master must be a str, such as 'host:port'; got {reprlib.repr(master)}"
            )
        self._master = master
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of jobs {self._cluster_spec.jobs}>"

    @property
    def environment(self) -> str:
        """The `environment` given to the constructor."""
        return self._environment

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        """Return the spec given to the constructor."""
        return self._cluster_spec

    async def fetch_state(self, progress: Progress) -> ClusterState:
        """Return the spec given to the constructor, as endpoints of which only the address is known."""
        return ClusterState.from_spec(self._cluster_spec, observed_at=datetime.now(UTC))

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        """Yield the cluster, and then nothing for ever: it does not change."""
        yield Observation(await self.fetch_state(Progress()))
        await anyio.sleep_forever()

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return `rpc_layer://host:port` of the task named, or the `master` given to the constructor.

        As in TensorFlow, the resolver's own `task_type` and `task_id` play no part.

        Args:
            task_type: the task's job.
            task_id: the task's index.
            rpc_layer: the protocol to put before the address; the resolver's own where None.
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            UnknownTaskError: the cluster has no such task.
        """
        master = self._master
        if task_type is not None and task_id is not None:
            spec = await self.cluster_spec(timeout=timeout)
            master = spec.task_address(task_type, task_id)
        return master_url(master, rpc_layer or self.rpc_layer)

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return the devices per host, by type, that the constructor was given. No argument is used."""
        return dict(self._num_accelerators)


class UnionClusterResolver(ClusterResolver):
    """Answers with the clusters of several resolvers, asked at the same time and merged into one.

    Where several resolvers know a job: if all number its tasks from zero, these follow one another in the
    order of the resolvers; if the tasks of any are sparse, all keep their indices, and none may be taken
    twice. A resolver that knows the job without tasks adds nothing to it (TensorFlow counts it as sparse).

    `environment` is that of the first resolver, and so are `task_type`, `task_id` and `rpc_layer` where they
    are not overridden, by any value but None (TensorFlow ignores `task_id=0`).

    One deadline, the union's own, bounds all. `async with` enters the resolvers too: enter the union alone.

    Args:
        *resolvers: the resolvers to ask, at least one.
        rpc_layer: overrides that of the first resolver.
        task_type: overrides that of the first resolver.
        task_id: overrides that of the first resolver.
        timeout: the total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) no resolver was given.
        InvalidClusterError: (a TypeError) an argument is no `aioresolve.ClusterResolver`.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(task_type=task_type, task_id=task_id, rpc_layer=rpc_layer, timeout=timeout)
        if not resolvers:
            raise ConfigurationError("a UnionClusterResolver needs at least one resolver; none was given")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise InvalidClusterError(
                    f"a union is made of aioresolve's resolvers; got {type(resolver).__name__} {resolver!r}"
                )
        self._resolvers = resolvers
        self._entered: AsyncExitStack | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {list(self._resolvers)}>"

    @property
    def task_type(self) -> str | None:
        """The job this process belongs to, as overridden, or as the first resolver says."""
        return self._resolvers[0].task_type if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's task index in its job, as overridden, or as the first resolver says."""
        return self._resolvers[0].task_id if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the tasks, as overridden, or as the first resolver says."""
        return self._resolvers[0].rpc_layer if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        """The `environment` of the first resolver."""
        return self._resolvers[0].environment

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        """Ask every resolver for its addresses, at once, and return all of them."""
        calls = [partial(resolver.fetch_spec, progress) for resolver in self._resolvers]
        return merged_spec(await gather(calls, limit=len(calls)))

    async def fetch_state(self, progress: Progress) -> ClusterState:
        """Ask every resolver for its endpoints, at once, and return all, as old as the oldest answer."""
        calls = [partial(resolver.fetch_state, progress) for resolver in self._resolvers]
        return merged_state(await gather(calls, limit=len(calls)))

    async def fetch_observation(self, progress: Progress) -> Observation:
        """Ask every resolver for its members and for who is missing, at once, and return all."""
        calls = [partial(resolver.fetch_observation, progress) for resolver in self._resolvers]
        return merged_observation(await gather(calls, limit=len(calls)))

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        """Yield what all resolvers show together, whenever one of them shows something new.

        Each is watched in its own way. There is a state once each has one, and while one of them cannot be
        asked, its part is what it showed last. Likewise, where a task is taken twice after that, as may be
        for a moment when it goes from one source to another, the last state is yielded with that error.

        Raises:
            TaskConflictError: a task is taken twice in the first state.
            ResolveError: an error of one of them that does not pass.
        """
        async with aclosing(newest_of(partial(self._follow, interval))) as observations:
            async for observation in observations:
                yield observation

    async def _follow(self, interval: float, newest: Newest[Observation]) -> None:
        """Put what all resolvers show into `newest`, whenever one of them shows something new."""
        observed = [Observation(None)] * len(self._resolvers)
        merged = Observation(None)

        async def follow(position: int, resolver: ClusterResolver) -> None:
            nonlocal merged
            async with aclosing(resolver.observations(interval=interval)) as observations:
                async for observation in observations:
                    observed[position] = observation
                    try:
                        merged = merged_observation(observed)
                    except TaskConflictError as conflict:
                        if merged.state is None:
                            raise
                        merged = merged.stale(conflict, datetime.now(UTC))
                    newest.put(merged)

        calls = [partial(follow, position, resolver) for position, resolver in enumerate(self._resolvers)]
        await gather(calls, limit=len(calls))

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return `rpc_layer://host:port` of the task named, or the master of the first resolver.

        As in TensorFlow, the address of a task is bare unless `rpc_layer` is given here or to the union, and
        the first resolver's master has the `rpc_layer` given here or its own.

        Args:
            task_type: the task's job.
            task_id: the task's index.
            rpc_layer: the protocol to put before the address.
            timeout: the call's total deadline in seconds; the union's own where None.

        Raises:
            UnknownTaskError: no resolver knows such a task.
            ResolveError: a cluster could not be resolved.
        """
        deadline = self._deadline(timeout)
        if task_type is not None and task_id is not None:
            spec = await self.cluster_spec(timeout=deadline)
            return master_url(spec.task_address(task_type, task_id), rpc_layer or self._rpc_layer)
        return await self._resolvers[0].master(rpc_layer=rpc_layer, timeout=deadline)

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return what the first resolver says, as in TensorFlow. One that was told them overrides the others.

        Args:
            task_type: the job to ask.
            task_id: the one task of that job to ask.
            config_proto: a `tf.compat.v1.ConfigProto`, whose `operation_timeout_in_ms` bounds the call too.
            timeout: the call's total deadline in seconds; the union's own where None.

        Raises:
            ResolveError: as the first resolver's.
        """
        return await self._resolvers[0].num_accelerators(
            task_type, task_id, config_proto, timeout=self._deadline(timeout)
        )

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise ConfigurationError(f"{self!r} is entered already; use the one union, or make another")
        async with AsyncExitStack() as stack:
            for resolver in dict.fromkeys(self._resolvers):
                await stack.enter_async_context(resolver)
            self._entered = stack.pop_all()
        return self

    async def aclose(self) -> None:
        """Close what the resolvers opened inside `async with`."""
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.aclose()


def _checked_spec(spec: Any) -> ClusterSpec:
    if isinstance(spec, ClusterSpec):
        return spec
    if not hasattr(spec, "as_cluster_def"):  # which a tf.train.ClusterSpec has
        raise InvalidClusterError(
            f"cluster_spec must be a ClusterSpec; got {type(spec).__name__}. "
            "Write SimpleClusterResolver(ClusterSpec(...))"
        )
    return ClusterSpec(spec)
