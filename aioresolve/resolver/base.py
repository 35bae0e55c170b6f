"""ClusterResolver: the async abstract base."""

from __future__ import annotations

import abc
import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Self

from aioresolve._core.retry import Progress, within_deadline
from aioresolve._core.validation import checked_seconds
from aioresolve.errors import ConfigurationError
from aioresolve.spec import Observation

from .polling import polled
from .wait import checked_wanted, complete_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Hashable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from aioresolve._core.shared_context import Pool
    from aioresolve.spec import ClusterSpec, ClusterState

__all__ = ["ClusterResolver", "master_url"]

SHORTEST_PROBE = 0.001
"""Seconds that workers have at least, were they found at the last moment."""


class ClusterResolver(abc.ABC):
    """Answers who is in a cluster, and at which address, afresh at every call.

    To make a resolver for another source, implement `fetch_state`; everything else stands on it:

    >>> class VariableResolver(ClusterResolver):
    ...     async def fetch_state(self, progress):
    ...         return ClusterState.from_spec(ClusterSpec({"worker": os.environ["WORKERS"].split(",")}))
    >>> os.environ["WORKERS"] = "10.0.0.1:8470,10.0.0.2:8470"
    >>> await VariableResolver(rpc_layer="grpc").master("worker", 1)
    'grpc://10.0.0.2:8470'

    Nothing is cached: every call asks the source. Outside `async with`, a call opens what it needs and closes
    it again; inside, connections are kept and shared by the calls. A resolver may be used again from another
    event loop. asyncio is the only backend; on trio nothing here runs.

    Attributes:
        task_type: the job this process belongs to (`"worker"`, `"ps"`, ...), if known. May be set.
        task_id: this process's task index in that job, if known. May be set.
        rpc_layer: the protocol of the tasks (`"grpc"`), which `master` puts before the address. May be set.
        timeout: the total deadline of a call in seconds, where the call itself names none.
    """

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
        self._timeout = checked_seconds("timeout", timeout)

    @property
    def task_type(self) -> str | None:
        """The job this process belongs to (`"worker"`, `"ps"`, ...), or None if that is not known."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's task index in its job, or None if that is not known."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the tasks, such as `"grpc"`; None for bare addresses."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, the empty string everywhere else."""
        return ""

    @property
    def timeout(self) -> float:
        """The total deadline of a call, in seconds, where the call names none."""
        return self._timeout

    @abc.abstractmethod
    async def fetch_state(self, progress: Progress) -> ClusterState:
        """Ask the source once and return the cluster as it is now.

        For implementors; users call `cluster_state`. It runs inside the call's deadline and may be
        cancelled at any await. What it notes in `progress` is what the `DeadlineExceededError` will say.
        """

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        """Ask the source once for the addresses alone; to be overridden where that is cheaper."""
        return (await self.fetch_state(progress)).spec

    async def fetch_observation(self, progress: Progress) -> Observation:
        """Ask the source once for members and for who is missing; to be overridden where it knows these."""
        return Observation(await self.fetch_state(progress))

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        """Yield what the source shows, at first and whenever that may have changed; without end.

        For those who build upon a resolver; users call `watch` and `wait`. To be overridden where the source
        tells its changes by itself; otherwise it is asked at intervals. While it cannot be asked, it is asked
        again with backoff, and what it showed last is yielded with the error.

        Args:
            interval: seconds between two questions to a source that has to be asked.

        Raises:
            ResolveError: one that does not pass.
        """

        async def fetch() -> Observation:
            return await within_deadline(self._timeout, f"a question to {self!r}", self.fetch_observation)

        async with aclosing(polled(fetch, checked_seconds("interval", interval))) as observations:
            async for observation in observations:
                yield observation

    async def watch(self, *, interval: float = 30.0) -> AsyncGenerator[ClusterState, None]:
        """Yield the cluster as it is now, and then as it is after each change of its members; without end.

        No state is yielded twice in a row. A slow consumer sees the newest state, not each in between. Who is
        not running, or not ready to be resolved, is no member meanwhile; `wait` tells why. The loop may be
        left at any point; `contextlib.aclosing` makes sure that all is closed at once.

        Args:
            interval: seconds between two questions to a source that has no watch; others ignore it.

        Raises:
            DeadlineExceededError: there was no first state within the resolver's `timeout`. Later, a source
                that cannot be reached is asked again for as long as the loop goes on.
            ResolveError: one that does not pass.
        """
        async with aclosing(self.observations(interval=interval)) as observations:

            async def first(progress: Progress) -> ClusterState:
                async for observation in observations:
                    if observation.state is not None:
                        return observation.state
                    if observation.error is not None:
                        progress.failed("the first state", observation.error)
                    else:
                        progress.waiting("the first state", "the source has not answered in full")
                raise RuntimeError("observations() has to go on")

            state = await within_deadline(self._timeout, f"watch() of {self!r}", first)
            yield state
            async for observation in observations:
                if observation.state is not None and observation.state != state:
                    state = observation.state
                    yield state

    async def wait(
        self,
        count: int | None = None,
        *,
        jobs: Mapping[str, int] | None = None,
        ready: bool = True,
        reachable: bool | Literal["tcp", "probe"] = False,
        stable_for: float = 0.0,
        timeout: float = 600.0,
        interval: float = 5.0,
    ) -> ClusterState:
        """Return the cluster as soon as it is complete.

        It is complete when each job has a task and nobody who was found is missing; or, where a number is
        given, when there are that many tasks; and all of them are ready, can be reached and stay the same for
        a while, as far as that is asked for. A source that tells its changes by itself is not polled.

        Args:
            count: how many tasks there have to be at least, in all jobs together.
            jobs: how many tasks each of these jobs has to have at least; no other job is looked at.
            ready: whether all tasks have to be ready, as far as the source knows that of them.
            reachable: `"tcp"` (or True): each task has to accept a TCP connection; `"probe"`: it has to tell
                its devices (see `aioresolve.probe`).
            stable_for: seconds for which all that has to have been so, with the same members.
            timeout: the call's total deadline in seconds; a cluster takes minutes to come up.
            interval: seconds between two questions to a source that has no watch; others ignore it.

        Raises:
            IncompleteClusterError: (a TimeoutError) the deadline passed; it says who is missing in each job,
                and why: unschedulable, crashing, waiting for its image, preempted.
            FailedClusterError: (a RuntimeError) it can become complete no more: a TPU was preempted, or pods
                that nobody replaces have ended.
            ResolveError: another error that does not pass.
        """
        wanted = checked_wanted(count, jobs, ready, reachable, stable_for)
        return await complete_state(
            self.observations(interval=checked_seconds("interval", interval)),
            wanted,
            timeout=checked_seconds("timeout", timeout),
            whose=repr(self),
        )

    async def cluster_spec(self, *, timeout: float | None = None) -> ClusterSpec:
        """Return the cluster as it is now: each job's task addresses, `host:port`.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ResolveError: the one thing that went wrong; see `aioresolve.errors`.
        """
        return await within_deadline(self._deadline(timeout), f"cluster_spec() of {self!r}", self.fetch_spec)

    async def cluster_state(self, *, timeout: float | None = None) -> ClusterState:
        """Return the cluster as it is now, with the identity of each task (name, uid, node, ...).

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ResolveError: the one thing that went wrong; see `aioresolve.errors`.
        """
        return await within_deadline(
            self._deadline(timeout), f"cluster_state() of {self!r}", self.fetch_state
        )

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return the session master: `rpc_layer://host:port` of one task, or "" if none is named.

        Args:
            task_type: the task's job; the resolver's own `task_type` where None.
            task_id: the task's index; the resolver's own `task_id` where None.
            rpc_layer: the protocol to put before the address; the resolver's own where None.
            timeout: the call's total deadline in seconds; the resolver's own where None.

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
        """Return accelerator type to number of accelerators per worker, CPUs left out, as the workers tell.

        All workers asked are asked at once, and have to agree.

        Args:
            task_type: the job to ask; where None, the job `worker`, or every job if there is none.
            task_id: the one task of that job to ask.
            config_proto: a `tf.compat.v1.ConfigProto`, whose `operation_timeout_in_ms` bounds the call too.
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such task, or none at all.
            ProbeError: (a RuntimeError) workers cannot be probed, or have different accelerators.
            DeadlineExceededError: workers did not answer in time; it names them.
            ResolveError: the cluster could not be resolved.
        """
        from aioresolve.probe.accelerators import (  # which loads grpc
            accelerators_per_worker,
            operation_timeout,
        )
        from aioresolve.probe.channels import Deadline

        deadline = Deadline.after(min(self._deadline(timeout), operation_timeout(config_proto) or math.inf))
        spec = await self.cluster_spec(timeout=deadline.timeout)
        left = max(deadline.left, SHORTEST_PROBE)
        return await accelerators_per_worker(spec, task_type, task_id, timeout=left)

    @property
    def pool_key(self) -> Hashable | None:
        """What the connections depend on: resolvers with equal keys may use one pool. None: there is none.

        With `new_pool` and `using`, for those who run many resolvers at a time.
        """
        return None

    def new_pool(self) -> Pool:
        """Return a pool for the resolvers that have this `pool_key`, in the event loop that is running."""
        raise ConfigurationError(f"{self!r} has no connections to be shared; enter it with `async with`")

    def using(self, pool: Pool) -> AbstractContextManager[None]:
        """Let the calls and watches inside the block use `pool`, which its owner closes; not in `async with`.

        Args:
            pool: a pool of a resolver with the same `pool_key`.
        """
        raise ConfigurationError(f"{self!r} has no connections to be shared; enter it with `async with`")

    async def aclose(self) -> None:  # noqa: B027 - a source without connections has nothing to close
        """Close what `async with` opened. Closing twice, or without having opened, does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _deadline(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else checked_seconds("timeout", timeout)


def master_url(address: str, rpc_layer: str | None) -> str:
    """Return `rpc_layer://address`, or the bare address where there is no rpc_layer."""
    return f"{rpc_layer}://{address}" if rpc_layer else address
