"""`ClusterResolver`: the abstract base class of all async resolvers."""

from __future__ import annotations

import abc
import asyncio
import logging
import math
import re
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from aioresolve._core.connections import Connections, Copyable
from aioresolve._core.deadline import Deadline, Progress, is_too_long, requested_wait, within_deadline
from aioresolve._core.threads import run_in_thread
from aioresolve._core.validation import validate_seconds
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.spec.observation import ADDRESSES, MEMBERS, Want

from .polling import poll

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioresolve.probe.workers import Declared
    from aioresolve.spec import ClusterSpec, ClusterState, Missing, Observation, Task

    from .checks import PlannedCheck
    from .completeness import Completeness, WaitCondition
    from .this_task import TaskClaim


EXISTING_TIMEOUT = 2.0
"""Seconds that a source has to list what exists; a message does not wait for it any longer."""

HOOKS = frozenset({"observe", "changes", "fetch_slices", "watch_policy"})
"""What writers of resolvers implement or use, and users do not."""


def settable(name: str, doc: str) -> Any:
    """Return a property that can be set; until then, or if it is None, it is what `_default` returns."""

    def read(resolver: ClusterResolver) -> Any:
        own = getattr(resolver, f"_{name}")
        return resolver._default(name) if own is None else own

    return property(
        read, lambda resolver, value: setattr(resolver, f"_{name}", value), doc=f"{doc} Can be set."
    )


@contextmanager
def source_errors(source: object, method: str) -> Iterator[None]:
    """Raise what a method of a source raises as a ResolveError, with the exception as its cause."""
    try:
        yield
    except ResolveError:
        raise
    except Exception as error:
        raise ResolveError(
            f"{type(source).__name__}.{method}() raised {type(error).__name__}: {error}",
            hint="Correct the method, or raise a ConnectionFailedError there if the source does not respond.",
        ) from error


class ClusterResolver(Copyable, abc.ABC):
    """Returns the members of a cluster and their addresses.

    To write a resolver for another source, implement `observe`; all other methods use it:

    >>> class VariableResolver(ClusterResolver):
    ...     async def observe(self, want, progress):
    ...         spec = ClusterSpec({"worker": os.environ["WORKERS"].split(",")})
    ...         return Observation(ClusterState.from_spec(spec))
    >>> os.environ["WORKERS"] = "10.0.0.1:8470,10.0.0.2:8470"
    >>> await VariableResolver(rpc_layer="grpc").master("worker", 1)
    'grpc://10.0.0.2:8470'

    Nothing is cached: every call sends a request to the source. Outside `async with`, each call opens its own
    connections and closes them when it returns; inside, calls share connections. A resolver may be used from
    several event loops, one after another. asyncio is the only supported backend; trio is not.

    A resolver is its arguments: `copy`, `deepcopy`, `pickle` and `cloudpickle` give one without connections,
    created with the same arguments, with the `task_type`, `task_id` and `rpc_layer` that were set. In another
    process it reads the variables and files of that process.

    Args:
        task_type: the job of this process (`"worker"`, `"ps"`, ...), if known. It, `task_id` and `rpc_layer`
            are attributes too, which can be set.
        task_id: the task index of this process in that job, if known.
        rpc_layer: the protocol of the tasks (`"grpc"`), which `master` puts before the address.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: `timeout` is not a finite number above zero.
    """

    _kept_attributes = frozenset({"task_type", "task_id", "rpc_layer"})

    # For subclasses that do not call `__init__`.
    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    _timeout = 30.0

    def __init__(
        self,
        *,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._timeout = validate_seconds("timeout", timeout)

    # What users read and call

    task_type: str | None = settable(
        "task_type", 'The job of this process, such as `"worker"`; None if unknown.'
    )
    task_id: int | None = settable("task_id", "The task index of this process in its job; None if unknown.")
    rpc_layer: str | None = settable(
        "rpc_layer", 'The protocol of the tasks, such as `"grpc"`; None for bare addresses.'
    )

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, an empty string everywhere else."""
        return ""

    @property
    def timeout(self) -> float:
        """The default total deadline of a call, in seconds."""
        return self._timeout

    async def cluster_spec(self, *, timeout: float | None = None) -> ClusterSpec:
        """Return the current address of each task, `host:port`, by job.

        Args:
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            ResolveError: the cluster could not be resolved; see `aioresolve.errors` for the subclasses.
        """
        return (await self._resolve("cluster_spec", ADDRESSES, timeout)).spec

    async def cluster_state(self, *, timeout: float | None = None) -> ClusterState:
        """Return the current address and identity (name, uid, node, ...) of each task, by job.

        Args:
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            ResolveError: the cluster could not be resolved; see `aioresolve.errors` for the subclasses.
        """
        return await self._resolve("cluster_state", MEMBERS, timeout)

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return the session master: `rpc_layer://host:port` of one task, or `""` if no task is given.

        Args:
            task_type: the job of the task; the resolver's `task_type` by default.
            task_id: the task index; the resolver's `task_id` by default.
            rpc_layer: the protocol before the address; the resolver's `rpc_layer` by default.
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            UnknownTaskError: the cluster has no such task.
            ResolveError: the cluster could not be resolved.
        """
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        spec = await self.cluster_spec(timeout=timeout)
        return master_url(spec.task_address(task_type, task_id), rpc_layer or self.rpc_layer)

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return the number of accelerators per worker, by accelerator type, without CPUs.

        All workers are probed concurrently, and must report the same accelerators. If none of them runs a
        server that can be probed, pods and instances count as having those that they declare
        (`Endpoint.accelerators`); a log record of `aioresolve.probe` says so.

        Args:
            task_type: the job to probe; by default the job `worker`, or all jobs of a cluster without it.
            task_id: probe only this task of the job.
            config_proto: a `tf.compat.v1.ConfigProto`; its `operation_timeout_in_ms` also limits the call.
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such task, or no task at all.
            ProbeError: (a RuntimeError) workers cannot be probed, or have different accelerators.
            ProbeDeadlineError: (a DeadlineExceededError and RuntimeError) workers did not respond in time;
                it lists them.
            ResolveError: the cluster could not be resolved.
        """
        # Imported here because it loads grpc, which only probing needs.
        from aioresolve.probe.workers import operation_timeout, probed_or_declared

        deadline = Deadline.after(min(self._deadline(timeout), operation_timeout(config_proto) or math.inf))
        spec = await self.cluster_spec(timeout=deadline.timeout)
        declared = partial(self._declared_accelerators, task_type, task_id)
        return await probed_or_declared(repr(self), spec, task_type, task_id, deadline, declared)

    async def this_task(self, state: ClusterState | None = None, *, timeout: float | None = None) -> Task:
        """Return the task of the calling process: its job, task index, address and rank.

        The first of these that identifies a member decides:

        1. `task_type` and `task_id` of the resolver, if both are set. `task_type` alone limits the search to
           that job.
        2. The pod's uid, in `$POD_UID`, and then its name, in `$POD_NAME`. If the manifest sets them, they
           must match.
        3. The host name: that of the pod in its namespace, or that of the address.
        4. An IP address of this machine, if exactly one member has it.

        A variable in which the controller writes the index of this process (`$JOB_COMPLETION_INDEX`,
        `$TPU_WORKER_ID`) must agree with the result.

        Args:
            state: a state that this resolver returned, in which the task is looked up; by default, the
                current state is requested.
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            TaskIdentityError: (a RuntimeError) no member or several members match, or the evidence is
                contradictory; it lists what was tried.
            UnknownTaskError: (a ValueError) the cluster has no task `task_id` of job `task_type`.
            ResolveError: the cluster could not be resolved.
        """
        deadline = Deadline.after(self._deadline(timeout))
        state = state or await self.cluster_state(timeout=deadline.timeout)
        identify = partial(self._identify, state)
        return await within_deadline(deadline.next_timeout, f"this_task() of {self!r}", identify)

    async def wait(
        self,
        count: int | tuple[int, int | None] | None = None,
        *,
        jobs: Mapping[str, int | tuple[int, int | None]] | None = None,
        ready: bool = True,
        reachable: bool | Literal["tcp", "probe"] = False,
        stable_for: float = 0.0,
        timeout: float = 600.0,
        interval: float = 5.0,
    ) -> ClusterState:
        """Return the cluster as soon as it is complete.

        With `count` or `jobs`, the cluster is complete when there are exactly that many tasks. Without them,
        it is complete when each job has as many tasks as its source expects (on Kubernetes: as its
        controllers want); where the source expects no number, at least one, and no member is missing. All
        these tasks must also meet `ready`, `reachable` and `stable_for`. Sources that report changes are
        watched; others are polled.

        Tasks that have ended with success count, while others of the same job still run. They are in
        `ClusterState.done`, not among the members: no other task can connect to them.

        Args:
            count: the number of tasks of all jobs together. `(4, 8)` permits 4 to 8, `(4, None)` 4 or more.
            jobs: the number of tasks of each of these jobs, in the same form; other jobs are ignored.
            ready: whether all tasks must be ready. A task whose readiness is unknown counts as ready.
            reachable: `"tcp"` (or True): each task must accept a TCP connection; `"probe"`: each task must
                report its devices (see `aioresolve.probe`).
            stable_for: seconds for which the conditions must hold without a change of the members. Tasks that
                must be reachable are tried again during that time. A source that does not report changes is
                polled once more after it.
            timeout: the total deadline of the call, in seconds.
            interval: seconds between two polls of a source that does not report changes.

        Raises:
            ConfigurationError: (a ValueError) an argument is invalid, or cannot be met: a job that is not in
                `known_jobs`, or a `stable_for` that is not shorter than `timeout`.
            IncompleteClusterError: (a TimeoutError) the deadline passed. The error lists what each job lacks
                and why: unschedulable, crashing, pulling its image, preempted; and what states how many
                tasks a job should have, unless `count` or `jobs` does.
            FailedClusterError: (a RuntimeError) the cluster cannot become complete: a TPU was preempted,
                pods have failed and no controller replaces them, their Job has failed or is complete, or
                there are more tasks than `count` or `jobs` permits.
            ResolveError: another error that is not retryable.
        """
        from .completeness import validate_condition

        condition = validate_condition(count, jobs, ready, reachable, stable_for)
        interval = validate_seconds("interval", interval)
        return await self._wait(condition, timeout=validate_seconds("timeout", timeout), interval=interval)

    async def watch(self, *, interval: float = 30.0) -> AsyncGenerator[ClusterState, None]:
        """Yield the current cluster, and then the cluster after each change of its members. Does not end.

        Two consecutive states always differ. Slow consumers skip intermediate states but always get the
        latest one. Pods that are not running and TPUs that are not ready are not members; `wait` reports why.
        A task that ends with success leaves the members too, but is in `done` while others of its job run:
        the `diff` of the two states says so, and the others keep their task indices.
        You can leave the loop at any point; use `contextlib.aclosing` to close all connections immediately.

        Args:
            interval: seconds between two polls of a source that does not report changes.

        Raises:
            DeadlineExceededError: no first state was available within the resolver's `timeout`. After the
                first state, an unreachable source is retried without limit.
            ResolveError: an error that is not retryable; before the first state, also one after which the
                server requests a longer wait than the resolver's `timeout`.
        """
        async with aclosing(self.observations(interval=interval)) as observations:
            state: ClusterState | None = None

            async def next_state(progress: Progress) -> ClusterState:
                while True:
                    observation = await anext(observations)
                    if observation.state is not None and observation.state != state:
                        return observation.state
                    if observation.error is not None:
                        # The source waits as long as its server requests, which may be too long here.
                        wait = requested_wait(observation.error)
                        if state is None and wait and is_too_long(wait):
                            raise observation.error
                        progress.failed("the first state", observation.error)
                    else:
                        progress.waiting("the first state", "the source has not returned a complete state")

            state = await within_deadline(self._timeout, f"watch() of {self!r}", next_state)
            while True:
                yield state
                state = await next_state(Progress())

    def observations(
        self, *, sizes: bool = False, interval: float = 30.0
    ) -> AsyncGenerator[Observation, None]:
        """Yield the members and the missing tasks at once, and after each change. Does not end.

        While the source cannot be reached, the previous observation is yielded together with the error.

        Args:
            sizes: whether `expected` is needed, even where only further requests show it.
            interval: seconds between two polls of a source that does not report changes.

        Raises:
            ResolveError: an error that is not retryable.
        """
        return self._call_changes(Want(sizes=sizes), validate_seconds("interval", interval))

    async def __aenter__(self) -> Self:
        self._connect(Connections())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that the calls inside `async with` share."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.aclose()

    def __dir__(self) -> list[str]:
        """Return the names for users of the resolver, so that completion shows no others."""
        return [name for name in super().__dir__() if name not in HOOKS and not re.match("_[^_]", name)]

    # What writers of resolvers implement

    @abc.abstractmethod
    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Send one request to the source and return what it says now.

        Implement this method; users call `cluster_spec`, `cluster_state` and `wait`. It runs inside the
        deadline of the call and may be cancelled at any `await`. What it records in `progress` appears in the
        `DeadlineExceededError`.

        Args:
            want: what the call needs. A source that always returns the same may ignore it, but must
                not return a part of the cluster if `want.complete`.
            progress: records what the call waits for.

        Raises:
            ResolveError: the source does not respond, or `want.complete` and the cluster is not. Callers get
                another exception as the cause of a ResolveError.
        """

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        """Yield an observation at once, and again whenever the source may have changed. Does not end.

        Override it if the source reports its changes; this implementation polls `observe`. While the source
        cannot be reached, it is polled with backoff, and the previous observation is yielded together with
        the error. Observations of polls have `polled_at`.

        Args:
            want: what the call needs; never `complete`.
            interval: seconds between two polls of a source that does not report changes.

        Raises:
            ResolveError: an error that is not retryable.
        """
        observe = partial(self._call_observe, want)
        fetch = partial(within_deadline, self._timeout, f"a poll of {self!r}", observe)
        async with aclosing(poll(fetch, interval)) as observations:
            async for observation in observations:
                yield observation

    @property
    def known_jobs(self) -> Sequence[str] | None:
        """The only jobs that the resolver can return; None if they are not known before a request.

        Override it, so that `wait` rejects other jobs.
        """
        return None

    # What the resolvers of aioresolve override

    @property
    def _parts(self) -> Sequence[ClusterResolver]:
        """The resolvers that have connections: this one, or those that it combines, each once."""
        return (self,)

    def _default(self, name: str) -> Any:
        """Return `task_type`, `task_id` or `rpc_layer` if it was not set."""
        return None

    async def _claim(self, progress: Progress) -> TaskClaim:
        """Return what the source knows about the task of this process. Override it to know more."""
        from .this_task import TaskClaim

        return TaskClaim(self.task_type, self.task_id)

    async def _identify(self, state: ClusterState, progress: Progress) -> Task:
        # Imported here because few programs need it, and the import would slow down all others.
        from .this_task import identify_task, read_process

        # In a thread, because it reads a file, and tries to bind a socket to the address of each task.
        process = await run_in_thread("identify this process", read_process, state)
        return identify_task(state, process, await self._claim(progress))

    async def _declared_accelerators(
        self, task_type: str | None, task_id: int | None, timeout: float
    ) -> Declared:
        """Return the accelerators that the source declares for each worker, or why they are unknown."""
        from aioresolve.probe.workers import Declared

        return Declared()

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        """Return the names and selectors without a result, each with what exists in its place.

        Override it in a resolver that can list what exists. It is called inside a deadline, and should send
        requests only if `observation` lacks something.
        """
        return ()

    def _checks(self) -> AbstractAsyncContextManager[Sequence[PlannedCheck]]:
        """Return the checks that `aioresolve.doctor` runs inside this context, which may open connections.

        Override it in a resolver that can check more than the cluster as a whole.
        """
        from .checks import cluster_checks

        return nullcontext(cluster_checks(self._call_observe, self._explain, self.this_task))

    # Calls of the source

    def _deadline(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else validate_seconds("timeout", timeout)

    async def _call_observe(self, want: Want, progress: Progress) -> Observation:
        with source_errors(self, "observe"):
            return await self.observe(want, progress)

    async def _call_changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        with source_errors(self, "changes"):
            async with aclosing(self.changes(want, interval)) as observations:
                async for observation in observations:
                    yield observation
        raise ConfigurationError(f"{type(self).__name__}.changes() has ended; it must not end")

    async def _resolve(self, call: str, want: Want, timeout: float | None) -> ClusterState:
        observe = partial(self._call_observe, want)
        observation = await within_deadline(self._deadline(timeout), f"{call}() of {self!r}", observe)
        if observation.state is None:
            raise observation.error or ConfigurationError(f"observe() of {self!r} returned no state")
        return observation.state

    async def _wait(
        self,
        condition: WaitCondition,
        *,
        timeout: float,
        interval: float,
        source: str | None = None,
        on_shortfall: Callable[[Completeness], None] = lambda _: None,
    ) -> ClusterState:
        """Return the cluster as soon as it meets `condition`; see `wait`.

        `source` is what messages call the resolver, and `on_shortfall` is called with each new reason why the
        cluster is not complete yet.
        """
        from .wait import wait_until_complete

        return await wait_until_complete(
            self._call_changes(condition.want, interval),
            condition,
            timeout=timeout,
            source=source or repr(self),
            known_jobs=self.known_jobs,
            explain=self._explain,
            on_shortfall=on_shortfall,
        )

    async def _explain(self, observation: Observation) -> Observation:
        """Return the observation with `unmatched`: the selectors and names that match nothing.

        Requests are sent only if there are some. The observation is unchanged if the source does not respond
        in time.
        """
        try:
            found = await within_deadline(
                EXISTING_TIMEOUT, repr(self), lambda _: self._unmatched(observation)
            )
        except ResolveError as error:
            logging.getLogger("aioresolve").debug("could not list what exists: %s", error)
            return observation
        return replace(observation, unmatched=found)

    # Connections

    _connections: Connections | None = None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connections]:
        """Yield the connections of `async with`, or else some for this call only."""
        shared = self._connections
        # A call from another loop cannot use their sockets.
        if shared is not None and shared.loop is asyncio.get_running_loop():
            yield shared
            return
        async with Connections() as own:
            yield own

    @asynccontextmanager
    async def _using(self, connections: Connections) -> AsyncIterator[None]:
        """Use `connections` inside the block, or enter a resolver that opens connections of its own."""
        if type(self).__aenter__ is not ClusterResolver.__aenter__:
            async with self:
                yield
            return
        self._connect(connections)
        try:
            yield
        finally:
            self._connections = None
            await connections.release(self)

    def _connect(self, connections: Connections) -> None:
        if self._connections is not None and self._connections.loop is connections.loop:
            raise ConfigurationError(
                f"{self!r} is already entered", hint="Use that resolver, or create another one."
            )
        self._connections = connections


def master_url(address: str, rpc_layer: str | None) -> str:
    """Return `rpc_layer://address`, or the bare address if there is no `rpc_layer`."""
    return f"{rpc_layer}://{address}" if rpc_layer else address
