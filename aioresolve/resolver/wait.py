"""Which of the tasks at these addresses can be talked to: they accept TCP, or answer the probe.

Waiting for a cluster: which observations show a complete one, and what is missing in the others.

`shortfall` judges one observation, and is pure; `complete_state` follows a source's observations until one
satisfies it for long enough.
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

from aioresolve._core.concurrency import Newest, gather
from aioresolve._core.validation import checked_count, checked_seconds
from aioresolve.errors import ConfigurationError, FailedClusterError, IncompleteClusterError
from aioresolve.spec import Missing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from aioresolve.spec import ClusterState, Member, Observation

__all__ = ["Reach", "Shortfall", "Wanted", "checked_wanted", "complete_state", "shortfall", "unreachable"]

Reach: TypeAlias = Literal["tcp", "probe"]

AT_ONCE = 128
"""How many tasks are asked at a time."""

PATIENCE = 5.0
"""Seconds that each of them has."""


async def unreachable(addresses: Sequence[str], reach: Reach) -> dict[str, str]:
    """Return whoever of `addresses` (`host:port`) cannot be reached, and why, in words.

    Args:
        addresses: the tasks.
        reach: `"tcp"`: the port accepts a connection; `"probe"`: the worker tells its devices over gRPC.
    """
    if reach == "probe":
        from aioresolve.probe import probe_workers  # which loads grpc

        probes = zip(addresses, await probe_workers(addresses, worker_timeout=PATIENCE), strict=True)
        return {address: str(probe.error) for address, probe in probes if probe.error is not None}
    reasons = await gather([partial(_refusal, address) for address in addresses], limit=AT_ONCE)
    return {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason is not None}


async def _refusal(address: str) -> str | None:
    """Return why no TCP connection is accepted at `address`; None where one is."""
    host, _, port = address.rpartition(":")
    with anyio.move_on_after(PATIENCE):
        try:
            connection = await anyio.connect_tcp(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            return f"no TCP connection to {address}: {_words(error)}"
        await connection.aclose()
        return None
    return f"no TCP connection to {address} within {PATIENCE:g} s"


def _words(error: OSError | ValueError) -> str:
    """Return what happened in the system's own words; event loops and anyio have other ones each."""
    # anyio tells what happened in the cause.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and not isinstance(cause, socket.gaierror) and cause.errno:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause)


RECHECK = 1.0
"""Seconds after which tasks that could not be reached are asked again."""

SHOWN = 20
"""How many of the missing a message names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What makes a cluster complete.

    Attributes:
        count: how many tasks at least there are in all; None where that is not said.
        jobs: how many tasks at least each of these jobs has; only they are looked at, if there are any.
        ready: whether all of them have to be ready; who is not known to be unready is.
        reachable: how they have to be reachable; None where that is no matter.
        stable_for: seconds for which all that has to have been so, with the same members.
    """

    count: int | None = None
    jobs: Mapping[str, int] | None = None
    ready: bool = True
    reachable: Reach | None = None
    stable_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a cluster is not complete.

    Attributes:
        found: each job to the number of its tasks that can be used.
        wanted: each job to the number that is wanted, where one is; the empty name stands for all jobs.
        missing: who is missing, and why.
        is_final: whether nobody who is here now can make it complete.
    """

    found: Mapping[str, int]
    wanted: Mapping[str, int]
    missing: tuple[Missing, ...] = ()
    is_final: bool = False

    def __str__(self) -> str:
        """One line: `job 'worker': 14 of 16 tasks; ml/trainer-7: Pending (...)`."""
        counts = []
        for job, found in self.found.items():
            of = f" of {self.wanted[job]}" if job in self.wanted else ""
            counts.append(f"job {job!r}: {found}{of} task{'' if (found, of) == (1, '') else 's'}")
        if "" in self.wanted:
            counts.append(f"{sum(self.found.values())} of {self.wanted['']} tasks in all")
        parts = [", ".join(counts) or "no job has been seen yet"]
        parts += [f"{name}: {reason}" for name, reason in list(self.reasons.items())[:SHOWN]]
        if len(self.reasons) > SHOWN:
            parts.append(f"and {len(self.reasons) - SHOWN} more")
        return "; ".join(parts)

    @property
    def reasons(self) -> dict[str, str]:
        """Each name that is missing to the reason why."""
        return {one.name: one.reason for one in self.missing}


def checked_wanted(
    count: int | None, jobs: Any, ready: bool, reachable: object, stable_for: object
) -> Wanted:
    """Return what is wanted, checked.

    Raises:
        ConfigurationError: an argument makes no sense, or two contradict each other.
    """
    if count is not None and jobs is not None:
        raise ConfigurationError("count= is for all jobs together and jobs= for each: give one of the two")
    if count is not None:
        checked_count("count", count)
    if jobs is not None:
        if not isinstance(jobs, Mapping) or not jobs:
            raise ConfigurationError(
                f"jobs={reprlib.repr(jobs)}: give the number of tasks of each job, such as {{'worker': 16}}"
            )
        for job, number in jobs.items():
            checked_count(f"jobs[{job!r}]", number)
    return Wanted(
        count,
        None if jobs is None else dict(jobs),
        ready,
        _reach(reachable),
        checked_seconds("stable_for", stable_for, may_be_zero=True),
    )


def _reach(reachable: object) -> Reach | None:
    match reachable:
        case False | None:
            return None
        case True | "tcp":
            return "tcp"
        case "probe":
            return "probe"
    raise ConfigurationError(f"reachable={reachable!r}: give False, 'tcp' (or True), or 'probe'")


def shortfall(observation: Observation, wanted: Wanted) -> Shortfall | None:
    """Return what `observation` lacks of what is `wanted`; None where it is complete.

    With no number wanted, every job has to have a task, and nobody who was found may be absent. With a
    number, there have to be that many tasks; who else is absent is no matter. All tasks have to be ready, if
    that is wanted. What a source said before it failed proves nothing.
    """
    looked_at = wanted.jobs
    state = observation.state
    sizes = _sizes(state, wanted)
    absent = [one for one in observation.absent if looked_at is None or one.job in looked_at]
    unready = [one for one in observation.unready if looked_at is None or one.job in looked_at]
    if not wanted.ready:
        unready = []
    found = {job: size - sum(one.job == job for one in unready) for job, size in sizes.items()}
    numbers = _numbers(wanted)
    is_short, is_final = _verdict(sizes, absent, numbers)
    if state is not None and observation.error is None and not is_short and not unready:
        return None
    missing = (*unready, *absent)
    if observation.error is not None:
        missing = (Missing("", "the source", str(observation.error)), *missing)
    # While parts of the source have not answered, or not of late, nobody knows who may come from there.
    return Shortfall(found, numbers, missing, is_final and state is not None and observation.error is None)


def _sizes(state: ClusterState | None, wanted: Wanted) -> dict[str, int]:
    """Return the number of tasks of each job that is looked at."""
    sizes = {} if state is None else {job: len(tasks) for job, tasks in state.endpoints.items()}
    return sizes if wanted.jobs is None else {job: sizes.get(job, 0) for job in wanted.jobs}


def _members(state: ClusterState, wanted: Wanted) -> frozenset[Member]:
    """Return the tasks of the jobs that are looked at."""
    return frozenset(one for one in state.members if wanted.jobs is None or one.job in wanted.jobs)


def _numbers(wanted: Wanted) -> dict[str, int]:
    """Return the number of tasks wanted of each job; that of all jobs together under the empty name."""
    if wanted.count is not None:
        return {"": wanted.count}
    return dict(wanted.jobs or {})


def _verdict(
    sizes: Mapping[str, int], absent: Iterable[Missing], numbers: Mapping[str, int]
) -> tuple[bool, bool]:
    """Return whether tasks are missing, and whether nobody who is here can take their places."""
    absent = list(absent)
    if not numbers:
        is_short = not sizes or not all(sizes.values()) or bool(absent)
        return is_short, any(one.is_final for one in absent)
    is_short = is_final = False
    for job, number in numbers.items():
        size = sum(sizes.values()) if job == "" else sizes.get(job, 0)
        if size >= number:
            continue
        is_short = True
        here = [one for one in absent if job in ("", one.job)]
        may_come = [one.tasks for one in here if not one.is_final]
        if any(one.is_final for one in here) and None not in may_come:
            is_final |= size + sum(tasks or 0 for tasks in may_come) < number
    return is_short, is_final


async def complete_state(
    observations: AsyncGenerator[Observation, None],
    wanted: Wanted,
    *,
    timeout: float,
    whose: str,
    on_shortfall: Callable[[Shortfall], None] = lambda _: None,
) -> ClusterState:
    """Return the state of the first observation that shows what is wanted, and for long enough.

    Args:
        observations: of the source; closed in the end.
        wanted: what is waited for.
        timeout: seconds that it may take.
        whose: the source, in words.
        on_shortfall: told of each reason why the cluster is not complete yet, as soon as that is known.

    Raises:
        IncompleteClusterError: the time is over; it says who is missing, and why.
        FailedClusterError: it can become complete no more.
        ResolveError: the source failed for good.
    """
    wait = _Wait(wanted, whose, on_shortfall)
    try:
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as group:
                group.start_soon(wait.follow, observations)
                state = await wait.completed()
                group.cancel_scope.cancel()
                return state
    except BaseExceptionGroup as errors:
        # Followed and waited for by two tasks, of which each fails alone.
        error = errors.exceptions[0]
        raise error from error.__cause__
    lacking = wait.lacking
    raise IncompleteClusterError(
        f"the cluster of {whose} was not complete within {timeout:g} s: {lacking};"
        " see to what is missing, raise `timeout`, or wait for less",
        timeout=timeout,
        found=lacking.found,
        wanted=lacking.wanted,
        missing=lacking.reasons,
    )


class _Wait:
    """One wait: the newest observation, and since when it has shown what is wanted."""

    def __init__(self, wanted: Wanted, whose: str, on_shortfall: Callable[[Shortfall], None]) -> None:
        self._lacking = Shortfall({}, _numbers(wanted))
        self._wanted = wanted
        self._whose = whose
        self._on_shortfall = on_shortfall
        self._newest: Newest[Observation] = Newest()

    @property
    def lacking(self) -> Shortfall:
        """Why the cluster is not complete, as far as that is known; each new reason is told."""
        return self._lacking

    @lacking.setter
    def lacking(self, lacking: Shortfall) -> None:
        self._lacking = lacking
        self._on_shortfall(lacking)

    async def follow(self, observations: AsyncGenerator[Observation, None]) -> None:
        """Keep the newest of `observations`."""
        try:
            async with aclosing(observations):
                async for observation in observations:
                    self._newest.put(observation)
        except Exception as error:
            self._newest.end(error)
        else:
            self._newest.end(
                ConfigurationError(f"the observations of {self._whose} ended: they have to go on")
            )

    async def completed(self) -> ClusterState:
        """Return the state that has been complete for long enough."""
        members: frozenset[Member] | None = None
        due = 0.0
        is_reached = False
        observation = await self._newest.taken()
        while True:
            lacking = shortfall(observation, self._wanted)
            if lacking is not None:
                self.lacking, members = lacking, None
                if lacking.is_final:
                    raise self._failed(lacking)
                observation = await self._newest.taken()
                continue
            state = observation.state
            assert state is not None
            if (now := _members(state, self._wanted)) != members:
                members, is_reached = now, self._wanted.reachable is None
                due = anyio.current_time() + self._wanted.stable_for
                self.lacking = self._unproven(state)
            # Whatever was observed meanwhile is looked at first, also after the tasks were asked.
            changed = await self._next_within(due)
            if changed is not None:
                observation = changed
            elif is_reached:
                return state
            elif await self._is_reached(state):
                is_reached = True
            else:
                due = anyio.current_time() + max(self._wanted.stable_for, RECHECK)

    async def _next_within(self, until: float) -> Observation | None:
        """Return the next observation, or None if there is none until the moment `until`."""
        with anyio.CancelScope(deadline=until):
            return await self._newest.taken()
        return None

    def _unproven(self, state: ClusterState) -> Shortfall:
        """Return what is lacking of a cluster that is complete for the moment."""
        stable_for = self._wanted.stable_for
        reason = f"not the same for {stable_for:g} s yet" if stable_for else "not known to be reachable yet"
        found = _sizes(state, self._wanted)
        return Shortfall(found, _numbers(self._wanted), (Missing("", "the tasks", reason),))

    async def _is_reached(self, state: ClusterState) -> bool:
        """Whether all tasks can be reached; those that cannot become what is lacking."""
        assert self._wanted.reachable is not None
        looked_at = _members(state, self._wanted)
        members = [one for one in state.members if one in looked_at]
        addresses = list(dict.fromkeys(one.endpoint.address for one in members))
        reasons = await unreachable(addresses, self._wanted.reachable)
        missing = tuple(
            Missing(one.job, one.endpoint.full_name or one.endpoint.address, reason)
            for one in members
            if (reason := reasons.get(one.endpoint.address)) is not None
        )
        if missing:
            sizes = _sizes(state, self._wanted)
            found = {job: size - sum(one.job == job for one in missing) for job, size in sizes.items()}
            self.lacking = Shortfall(found, _numbers(self._wanted), missing)
        return not missing

    def _failed(self, lacking: Shortfall) -> FailedClusterError:
        return FailedClusterError(
            f"the cluster of {self._whose} can become complete no more: {lacking};"
            " see to what is missing, and wait again",
            found=lacking.found,
            wanted=lacking.wanted,
            missing=lacking.reasons,
        )
