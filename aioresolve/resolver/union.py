"""`UnionClusterResolver`: the clusters of several resolvers, merged into one.

It follows `tf.distribute.cluster_resolver.UnionResolver`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from aioresolve._core.concurrency import gather, stream_latest
from aioresolve._core.connections import Connections
from aioresolve.errors import ConfigurationError, InvalidClusterError, TaskConflictError
from aioresolve.spec import ClusterSpec, ClusterState, DoneTask, Endpoint, ExpectedTasks, Missing, Observation

from .base import ClusterResolver, master_url
from .this_task import TaskClaim

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress
    from aioresolve.spec.observation import Want

    from .checks import PlannedCheck


class UnionClusterResolver(ClusterResolver):
    """Resolves several clusters concurrently and merges them into one.

    >>> chief = SimpleClusterResolver(ClusterSpec({"chief": ["10.0.0.9:8470"]}))
    >>> workers = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
    >>> await UnionClusterResolver(chief, workers).cluster_spec()
    ClusterSpec({'chief': ['10.0.0.9:8470'], 'worker': ['10.8.0.10:8470', '10.8.0.11:8470']})

    If several resolvers return tasks of the same job and all number them from zero, their tasks are
    concatenated in the order of the resolvers. If the tasks of any of them are sparse, all keep their
    indices, and no index may occur twice. A resolver that returns a job without tasks adds nothing to that
    job (TensorFlow treats it as sparse).

    `environment` is that of the first resolver. `task_type`, `task_id` and `rpc_layer` are those of the first
    resolver too, unless overridden by a value other than None (TensorFlow ignores `task_id=0`).

    One deadline, that of the union, applies to all resolvers. `async with` enters the resolvers too: do not
    enter them yourself.

    Args:
        *resolvers: the resolvers to merge, at least one.
        rpc_layer: overrides that of the first resolver.
        task_type: overrides that of the first resolver.
        task_id: overrides that of the first resolver.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) no resolver was given.
        InvalidClusterError: (a TypeError) an argument is not an `aioresolve.ClusterResolver`.
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
            raise ConfigurationError("UnionClusterResolver needs at least one resolver")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise InvalidClusterError(
                    "UnionClusterResolver takes resolvers of aioresolve;"
                    f" got {type(resolver).__name__} {resolver!r}",
                    hint="Put TensorFlow's own resolvers into tf.distribute.cluster_resolver.UnionResolver,"
                    " which takes those of aioresolve.tensorflow too.",
                )
        self._resolvers = resolvers
        self._entered: AsyncExitStack | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {list(self._resolvers)}>"

    def _default(self, name: str) -> Any:
        return getattr(self._resolvers[0], name)

    @property
    def environment(self) -> str:
        """The `environment` of the first resolver."""
        return self._resolvers[0].environment

    @property
    def known_jobs(self) -> Sequence[str] | None:
        """The jobs of all resolvers; None if one of them does not know its own."""
        known = [resolver.known_jobs for resolver in self._resolvers]
        return None if None in known else list(dict.fromkeys(job for jobs in known for job in jobs or ()))

    @property
    def _parts(self) -> Sequence[ClusterResolver]:
        return list(dict.fromkeys(one for resolver in self._resolvers for one in resolver._parts))

    @asynccontextmanager
    async def _checks(self) -> AsyncIterator[Sequence[PlannedCheck]]:
        # Imported here because only `aioresolve.doctor` needs it.
        from .checks import cluster_checks

        async with AsyncExitStack() as stack:
            plan: list[PlannedCheck] = []
            for number, resolver in enumerate(dict.fromkeys(self._resolvers), 1):
                checks = await stack.enter_async_context(resolver._checks())
                plan += [check.numbered(number) for check in checks]
            yield [*plan, cluster_checks(self._call_observe, self._explain, self.this_task)[0]]

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Return the members of all resolvers and what they lack, fetched concurrently."""
        calls = [partial(resolver._call_observe, want, progress) for resolver in self._resolvers]
        return _merge_observations(await gather(calls, limit=len(calls)))

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        """Yield the merged observation whenever one of the resolvers yields a new one.

        The state is None until each resolver has returned one. While a resolver cannot reach its source, its
        last observation is used. Two sources may both return a task for a moment, while it moves from one to
        the other: if the merged state was valid before, it is yielded again with the conflict as its error.

        Raises:
            TaskConflictError: two resolvers return the same task in the first state.
            ResolveError: an error of a resolver that is not retryable.
        """
        async with aclosing(stream_latest(partial(self._follow_all, want, interval))) as observations:
            async for observation in observations:
                yield observation

    async def _follow_all(self, want: Want, interval: float, latest: LatestValue[Observation]) -> None:
        parts = [Observation(None)] * len(self._resolvers)
        merged = Observation(None)

        async def follow(position: int, resolver: ClusterResolver) -> None:
            nonlocal merged
            async with aclosing(resolver._call_changes(want, interval)) as observations:
                async for observation in observations:
                    parts[position] = observation
                    try:
                        merged = _merge_observations(parts)
                    except TaskConflictError as conflict:
                        if merged.state is None:
                            raise
                        merged = merged.stale(conflict, datetime.now(UTC))
                    latest.put(merged)

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
        """Return `rpc_layer://host:port` of the given task, or else the master of the first resolver.

        As in TensorFlow, the address of a task is bare unless `rpc_layer` is given here or to the union; the
        master of the first resolver has the `rpc_layer` given here or that of the first resolver. For the
        arguments and errors see `ClusterResolver.master`.
        """
        timeout = self._deadline(timeout)
        if task_type is not None and task_id is not None:
            spec = await self.cluster_spec(timeout=timeout)
            return master_url(spec.task_address(task_type, task_id), rpc_layer or self._rpc_layer)
        return await self._resolvers[0].master(rpc_layer=rpc_layer, timeout=timeout)

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return the accelerators that the first resolver reports, as in TensorFlow."""
        return await self._resolvers[0].num_accelerators(
            task_type, task_id, config_proto, timeout=self._deadline(timeout)
        )

    async def _claim(self, progress: Progress) -> TaskClaim:
        if self._task_type is not None or self._task_id is not None:
            return TaskClaim(self.task_type, self.task_id)
        return await self._resolvers[0]._claim(progress)

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        found = [await resolver._unmatched(observation) for resolver in self._resolvers]
        return tuple(chain.from_iterable(found))

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise ConfigurationError(
                f"{self!r} is already entered", hint="Use the entered union, or create another one."
            )
        async with AsyncExitStack() as stack:
            connections = await stack.enter_async_context(Connections())
            for resolver in self._parts:
                await stack.enter_async_context(resolver._using(connections))
            self._entered = stack.pop_all()
        return self

    async def aclose(self) -> None:
        """Close what the resolvers opened inside `async with`."""
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.aclose()


def _merge_observations(observations: Sequence[Observation]) -> Observation:
    """Return the merged observation, without a state unless each has one, and as old as the oldest."""
    states = [one.state for one in observations if one.state is not None]
    stale = [one.stale_since for one in observations if one.stale_since is not None]
    polled = [one.polled_at for one in observations if one.polled_at is not None]
    # Without jobs of which a resolver returns tasks.
    ended = {job for one in observations for job in one.controllers}
    ended -= {job for state in states for job, endpoints in state.endpoints.items() if endpoints}
    return Observation(
        _merge_states(states) if len(states) == len(observations) else None,
        absent=tuple(missing for one in observations for missing in one.absent),
        unready=tuple(missing for one in observations for missing in one.unready),
        error=next((one.error for one in observations if one.error is not None), None),
        stale_since=min(stale, default=None),
        expected=_sum_expected(observations),
        controllers={
            job: tuple(status for one in observations for status in one.controllers.get(job, ()))
            for job in ended
        },
        failed=tuple(missing for one in observations for missing in one.failed),
        polled_at=min(polled, default=None),
    )


def _sum_expected(observations: Sequence[Observation]) -> dict[str, ExpectedTasks]:
    """Return the sum for each job, without jobs that a resolver returns although it expects no number."""
    expected: dict[str, list[ExpectedTasks]] = {}
    unknown: set[str] = set()
    for one in observations:
        for job, tasks in one.expected.items():
            expected.setdefault(job, []).append(tasks)
        found = set() if one.state is None else set(one.state.endpoints)
        unknown |= (found | {missing.job for missing in one.absent}) - set(one.expected)
    return {
        job: ExpectedTasks(
            sum(each.number for each in parts),
            ", ".join(dict.fromkeys(each.source for each in parts)),
            sum(each.done for each in parts),
        )
        for job, parts in expected.items()
        if job not in unknown
    }


def _merge_states(states: Sequence[ClusterState]) -> ClusterState:
    parts: dict[str, list[dict[int, Endpoint | DoneTask]]] = {}
    for state in states:
        for job, tasks in _tasks_by_index(state).items():
            parts.setdefault(job, []).append(tasks)
    merged = {job: _merge_tasks(job, of_job) for job, of_job in parts.items()}
    endpoints = {
        job: {index: task for index, task in sorted(tasks.items()) if isinstance(task, Endpoint)}
        for job, tasks in merged.items()
    }
    done = tuple(
        replace(task, index=index)
        for tasks in merged.values()
        for index, task in tasks.items()
        if isinstance(task, DoneTask)
    )
    times = [state.observed_at for state in states if state.observed_at is not None]
    return ClusterState(
        {job: tuple(tasks.values()) for job, tasks in endpoints.items()},
        ClusterSpec({job: {i: e.address for i, e in tasks.items()} for job, tasks in endpoints.items()}),
        observed_at=min(times, default=None),
        done=done,
    )


def _tasks_by_index(state: ClusterState) -> dict[str, dict[int, Endpoint | DoneTask]]:
    tasks: dict[str, dict[int, Endpoint | DoneTask]] = {job: {} for job in state.endpoints}
    for member in state.members:
        tasks[member.job][member.task_index] = member.endpoint
    for each in state.done:
        tasks.setdefault(each.job, {})[each.index] = each
    return {job: dict(sorted(by_index.items())) for job, by_index in tasks.items()}


def _merge_tasks(job: str, parts: Sequence[dict[int, Endpoint | DoneTask]]) -> dict[int, Endpoint | DoneTask]:
    if all(list(tasks) == list(range(len(tasks))) for tasks in parts):
        return dict(enumerate(task for tasks in parts for task in tasks.values()))
    merged: dict[int, Endpoint | DoneTask] = {}
    for tasks in parts:
        if duplicates := sorted(merged.keys() & tasks.keys()):
            raise TaskConflictError(
                f"job {job!r}: more than one resolver of the union returned task"
                f" {', '.join(map(str, duplicates))}; the tasks of at least one resolver are sparse, so all"
                " keep their indices",
                hint="Give each resolver task indices of its own.",
            )
        merged |= tasks
    return merged
