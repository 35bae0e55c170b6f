"""Waiting until a cluster is complete.

`shortfall` compares one observation with a condition. `wait_until_complete` follows the observations of a
source until one of them meets the condition for long enough and its tasks are reachable.
"""

from __future__ import annotations

import os
import reprlib
import socket
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from aioresolve._core.concurrency import LatestValue, first_error, gather
from aioresolve._core.validation import validate_count, validate_seconds
from aioresolve.errors import ConfigurationError, FailedClusterError, IncompleteClusterError
from aioresolve.spec import Missing, split_host_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from aioresolve.spec import ClusterState, Member, Observation

Reachability: TypeAlias = Literal["tcp", "probe"]

MAX_CONNECTIONS = 128
"""The number of tasks that are connected to at the same time."""

CONNECT_TIMEOUT = 5.0
"""The time limit for each task, in seconds."""

RECHECK_INTERVAL = 1.0
"""Seconds after which unreachable tasks are tried again."""

MAX_REASONS = 20
"""The number of missing tasks that an error message names."""


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """When a cluster is complete; see `ClusterResolver.wait`."""

    count: int | None = None  # of all jobs together
    jobs: Mapping[str, int] | None = None  # if given, other jobs are ignored
    ready: bool = True
    reachable: Reachability | None = None
    stable_for: float = 0.0


def validate_condition(
    count: int | None, jobs: Any, ready: bool, reachable: object, stable_for: object
) -> WaitCondition:
    """Return the condition with these arguments of `ClusterResolver.wait`."""
    if count is not None and jobs is not None:
        raise ConfigurationError(
            "count and jobs cannot be combined",
            hint="Pass {count} for the total of all jobs, or {jobs} for a number per job.",
        )
    if count is not None:
        validate_count("count", count)
    if jobs is not None:
        if not isinstance(jobs, Mapping) or not jobs:
            raise ConfigurationError(
                f"{reprlib.repr(jobs)} is not a mapping of job names to numbers of tasks",
                argument="jobs",
                hint="Pass one such as `{'worker': 16}`.",
            )
        for job, number in jobs.items():
            validate_count(f"jobs[{job!r}]", number)
    return WaitCondition(
        count,
        None if jobs is None else dict(jobs),
        ready,
        _validate_reachable(reachable),
        validate_seconds("stable_for", stable_for, may_be_zero=True),
    )


def _validate_reachable(reachable: object) -> Reachability | None:
    match reachable:
        case False | None:
            return None
        case True | "tcp":
            return "tcp"
        case "probe":
            return "probe"
    raise ConfigurationError(
        f"{reachable!r} is invalid", argument="reachable", hint="Pass False, 'tcp' (or True), or 'probe'."
    )


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a cluster is not complete. `found` and `wanted` are as in `IncompleteClusterError`."""

    found: Mapping[str, int]
    wanted: Mapping[str, int]
    missing: tuple[Missing, ...] = ()
    is_final: bool = False  # the cluster cannot become complete with the tasks that exist now

    def __str__(self) -> str:
        """Return one line: `job 'worker': 14 of 16 tasks; ml/trainer-7: Pending (...)`."""
        counts = []
        for job, found in self.found.items():
            of = f" of {self.wanted[job]}" if job in self.wanted else ""
            counts.append(f"job {job!r}: {found}{of} task{'' if (found, of) == (1, '') else 's'}")
        if "" in self.wanted:
            counts.append(f"{sum(self.found.values())} of {self.wanted['']} tasks in total")
        parts = [", ".join(counts) or "no job was found"]
        parts += [f"{name}: {reason}" for name, reason in list(self.reasons.items())[:MAX_REASONS]]
        if len(self.reasons) > MAX_REASONS:
            parts.append(f"and {len(self.reasons) - MAX_REASONS} more")
        return "; ".join(parts)

    @property
    def reasons(self) -> dict[str, str]:
        """The name of each missing task to the reason."""
        return {one.name: one.reason for one in self.missing}


def shortfall(observation: Observation, condition: WaitCondition) -> Shortfall | None:
    """Return what `observation` lacks to meet `condition`, apart from reachability; None if it is complete.

    Without a required number, each job must have a task, and nothing may be absent. With one, there must be
    that many tasks, and absent tasks do not matter otherwise. An observation with an error is never complete,
    because it may be outdated.
    """
    jobs = condition.jobs
    state = observation.state
    sizes = _sizes(state, condition)
    absent = [one for one in observation.absent if jobs is None or one.job in jobs]
    unready = [one for one in observation.unready if jobs is None or one.job in jobs]
    if not condition.ready:
        unready = []
    found = {job: size - sum(one.job == job for one in unready) for job, size in sizes.items()}
    required = _required_numbers(condition)
    is_short, is_final = _compare(sizes, absent, required)
    if state is not None and observation.error is None and not is_short and not unready:
        return None
    missing = (*unready, *absent)
    if observation.error is not None:
        missing = (Missing("", "the source", observation.error.summary), *missing)
    # Parts of the source that did not respond may still return the tasks that are missing.
    is_known = state is not None and observation.error is None
    return Shortfall(found, required, missing, is_final and is_known)


def _sizes(state: ClusterState | None, condition: WaitCondition) -> dict[str, int]:
    """Return the number of tasks of each job that the condition concerns."""
    sizes = {} if state is None else {job: len(tasks) for job, tasks in state.endpoints.items()}
    return sizes if condition.jobs is None else {job: sizes.get(job, 0) for job in condition.jobs}


def _members(state: ClusterState, condition: WaitCondition) -> list[Member]:
    """Return the tasks of the jobs that the condition concerns."""
    return [one for one in state.members if condition.jobs is None or one.job in condition.jobs]


def _required_numbers(condition: WaitCondition) -> dict[str, int]:
    """Return job name to the required number of tasks; `""` for the total of all jobs."""
    if condition.count is not None:
        return {"": condition.count}
    return dict(condition.jobs or {})


def _compare(
    sizes: Mapping[str, int], absent: Iterable[Missing], required: Mapping[str, int]
) -> tuple[bool, bool]:
    """Return whether tasks are missing, and whether the absent tasks that may still come cannot suffice."""
    absent = list(absent)
    if not required:
        is_short = not sizes or not all(sizes.values()) or bool(absent)
        return is_short, any(one.is_final for one in absent)
    is_short = is_final = False
    for job, number in required.items():
        size = sum(sizes.values()) if job == "" else sizes.get(job, 0)
        if size >= number:
            continue
        is_short = True
        of_job = [one for one in absent if job in ("", one.job)]
        may_come = [one.tasks for one in of_job if not one.is_final]
        # None: the source does not know yet how many tasks will come.
        if any(one.is_final for one in of_job) and None not in may_come:
            is_final |= size + sum(tasks or 0 for tasks in may_come) < number
    return is_short, is_final


async def wait_until_complete(
    observations: AsyncGenerator[Observation, None],
    condition: WaitCondition,
    *,
    timeout: float,
    source: str,
    on_shortfall: Callable[[Shortfall], None] = lambda _: None,
) -> ClusterState:
    """Return the state of the first observation that meets `condition`, for as long as that requires.

    Closes `observations`. Calls `on_shortfall` with each new reason why the cluster is not complete yet.
    """
    waiter = _Waiter(condition, source, on_shortfall)
    try:
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as group:
                group.start_soon(waiter.follow, observations)
                state = await waiter.wait()
                group.cancel_scope.cancel()
                return state
    except BaseExceptionGroup as group_error:
        error = first_error(group_error)
        raise error from error.__cause__
    lacking = waiter.lacking
    raise IncompleteClusterError(
        f"the cluster of {source} was not complete within {timeout:g} s: {lacking}",
        hint="Check the missing tasks, raise {timeout}, or wait for fewer tasks.",
        timeout=timeout,
        found=lacking.found,
        wanted=lacking.wanted,
        missing=lacking.reasons,
    )


class _Waiter:
    """One call of `wait_until_complete`.

    `follow` and `wait` run concurrently, so that observations are received while tasks are connected to.
    """

    def __init__(
        self, condition: WaitCondition, source: str, on_shortfall: Callable[[Shortfall], None]
    ) -> None:
        self._condition = condition
        self._source = source
        self._on_shortfall = on_shortfall
        self.lacking = Shortfall({}, _required_numbers(condition))
        self._latest: LatestValue[Observation] = LatestValue()

    async def follow(self, observations: AsyncGenerator[Observation, None]) -> None:
        """Keep the latest of `observations` for `wait`."""
        try:
            async with aclosing(observations):
                async for observation in observations:
                    self._latest.put(observation)
        except Exception as error:
            self._latest.close(error)
        else:
            self._latest.close(
                ConfigurationError(f"the observations of {self._source} ended; they must not end")
            )

    async def wait(self) -> ClusterState:
        """Return the state of the cluster once it has been complete for long enough."""
        members: frozenset[Member] | None = None
        due = 0.0
        is_reachable = False
        observation = await self._latest.get()
        while True:
            lacking = shortfall(observation, self._condition)
            if lacking is not None:
                self._record(lacking)
                members = None
                if lacking.is_final:
                    raise self._failed(lacking)
                observation = await self._latest.get()
                continue
            state = observation.state
            assert state is not None
            if (current := frozenset(_members(state, self._condition))) != members:
                members, is_reachable = current, self._condition.reachable is None
                due = anyio.current_time() + self._condition.stable_for
                self._record(self._not_yet_proven(state))
            # A newer observation always comes first, also one that arrived while tasks were connected to.
            newer = await self._next_before(due)
            if newer is not None:
                observation = newer
            elif is_reachable:
                return state
            elif await self._check_reachable(state):
                is_reachable = True
            else:
                due = anyio.current_time() + max(self._condition.stable_for, RECHECK_INTERVAL)

    async def _next_before(self, deadline: float) -> Observation | None:
        """Return the next observation, or None if none arrives before `deadline`."""
        with anyio.CancelScope(deadline=deadline):
            return await self._latest.get()
        return None

    def _not_yet_proven(self, state: ClusterState) -> Shortfall:
        """Return the shortfall of a cluster that is complete, but not stable or reachable as far as known."""
        stable_for = self._condition.stable_for
        reason = f"not stable for {stable_for:g} s yet" if stable_for else "not known to be reachable yet"
        return Shortfall(
            _sizes(state, self._condition),
            _required_numbers(self._condition),
            (Missing("", "the tasks", reason),),
        )

    async def _check_reachable(self, state: ClusterState) -> bool:
        """Return whether all tasks are reachable; if not, record the shortfall."""
        assert self._condition.reachable is not None
        members = _members(state, self._condition)
        addresses = list(dict.fromkeys(one.endpoint.address for one in members))
        reasons = await find_unreachable(addresses, self._condition.reachable)
        missing = tuple(
            Missing(one.job, one.endpoint.full_name or one.endpoint.address, reason)
            for one in members
            if (reason := reasons.get(one.endpoint.address)) is not None
        )
        if missing:
            sizes = _sizes(state, self._condition)
            found = {job: size - sum(one.job == job for one in missing) for job, size in sizes.items()}
            self._record(Shortfall(found, _required_numbers(self._condition), missing))
        return not missing

    def _record(self, lacking: Shortfall) -> None:
        self.lacking = lacking
        self._on_shortfall(lacking)

    def _failed(self, lacking: Shortfall) -> FailedClusterError:
        return FailedClusterError(
            f"the cluster of {self._source} cannot become complete: {lacking}",
            hint="Replace the missing tasks, and wait again.",
            found=lacking.found,
            wanted=lacking.wanted,
            missing=lacking.reasons,
        )


async def find_unreachable(addresses: Sequence[str], reachability: Reachability) -> dict[str, str]:
    """Return each address that is not reachable to the reason."""
    if reachability == "probe":
        # Imported here because it loads grpc, which only probing needs.
        from aioresolve.probe import probe_workers

        probes = zip(addresses, await probe_workers(addresses, worker_timeout=CONNECT_TIMEOUT), strict=True)
        return {address: probe.error.summary for address, probe in probes if probe.error is not None}
    reasons = await gather([partial(_connect_error, address) for address in addresses], limit=MAX_CONNECTIONS)
    return {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason is not None}


async def _connect_error(address: str) -> str | None:
    """Return why no TCP connection to `address` can be opened; None if one can."""
    with anyio.move_on_after(CONNECT_TIMEOUT):
        try:
            connection = await anyio.connect_tcp(*split_host_port(address))
        except (OSError, ValueError) as error:
            return f"no TCP connection to {address}: {_system_message(error)}"
        await connection.aclose()
        return None
    return f"no TCP connection to {address} within {CONNECT_TIMEOUT:g} s"


def _system_message(error: OSError | ValueError) -> str:
    """Return the operating system's message; asyncio, uvloop and anyio each phrase errors differently."""
    # anyio raises an error of its own, with the system's as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and not isinstance(cause, socket.gaierror) and cause.errno:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause)
