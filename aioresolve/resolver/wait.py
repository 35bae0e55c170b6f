"""Waiting until a cluster is complete.

`shortfall` compares one observation with a condition. `wait_until_complete` follows the observations of a
source until one of them meets the condition for long enough and its tasks are reachable.
"""

from __future__ import annotations

import logging
import math
import os
import reprlib
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from aioresolve._core.concurrency import LatestValue, first_error, gather
from aioresolve._core.tcp import connect
from aioresolve._core.validation import validate_count, validate_seconds
from aioresolve.errors import ConfigurationError, FailedClusterError, Hint, IncompleteClusterError
from aioresolve.spec import Missing, Observation, split_host_port

from .want import Want

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from aioresolve.spec import ClusterState, Member

logger = logging.getLogger("aioresolve.watch")

Reachability: TypeAlias = Literal["tcp", "probe"]

Size: TypeAlias = tuple[int, int | None]
"""The least and the most number of tasks; None for no limit."""

MAX_CONNECTIONS = 128
"""The number of tasks that are connected to at the same time."""

CONNECT_TIMEOUT = 5.0
"""The time limit for each task, in seconds."""

RECHECK_INTERVAL = 1.0
"""Seconds after which unreachable tasks are tried again."""

MAX_RECHECKS = 10
"""Tasks are tried this often in a long `stable_for`, to load them little."""

MAX_REASONS = 20
"""The number of missing tasks that an error message names."""

MAX_REMOVED = 1000
"""How many removed tasks are remembered in a long wait."""


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """When a cluster is complete; see `ClusterResolver.wait`."""

    count: Size | None = None  # of all jobs together
    jobs: Mapping[str, Size] | None = None  # if given, other jobs are ignored
    ready: bool = True
    reachable: Reachability | None = None
    stable_for: float = 0.0
    needs_all: bool = False  # whether all tasks will connect to each other, so that none may be done

    @property
    def has_number(self) -> bool:
        """Whether it says how many tasks there must be."""
        return self.count is not None or self.jobs is not None

    @property
    def want(self) -> Want:
        """What the observations have to say."""
        # Also with a number, controllers say whether a job without live pods will have any.
        return Want(controllers=True, sizes=not self.has_number)


def validate_condition(
    count: Any, jobs: Any, ready: bool, reachable: object, stable_for: object, *, needs_all: bool = False
) -> WaitCondition:
    """Return the condition with these arguments of `ClusterResolver.wait`."""
    if count is not None and jobs is not None:
        raise ConfigurationError(
            "count and jobs cannot be combined",
            hint="Pass {count} for the total of all jobs, or {jobs} for a number per job.",
        )
    if jobs is not None and (not isinstance(jobs, Mapping) or not jobs):
        raise ConfigurationError(
            f"{reprlib.repr(jobs)} is not a mapping of job names to numbers of tasks",
            argument="jobs",
            hint="Pass one such as `{'worker': 16}`.",
        )
    return WaitCondition(
        None if count is None else _validate_size("count", count),
        None if jobs is None else {job: _validate_size(f"jobs[{job!r}]", size) for job, size in jobs.items()},
        ready,
        _validate_reachable(reachable),
        validate_seconds("stable_for", stable_for, may_be_zero=True),
        needs_all,
    )


def _validate_size(argument: str, size: Any) -> Size:
    if not isinstance(size, tuple):
        return validate_count(argument, size), size
    if len(size) != 2:
        raise ConfigurationError(
            f"{reprlib.repr(size)} is not a range", argument=argument, hint="Pass one such as (4, 8)."
        )
    least, most = validate_count(argument, size[0]), size[1]
    if most is not None and validate_count(argument, most) < least:
        raise ConfigurationError(
            f"the range {size} ends before it begins", argument=argument, hint="Pass the lower number first."
        )
    return least, most


def reject_impossible(condition: WaitCondition, *, timeout: float, known_jobs: Sequence[str] | None) -> None:
    """Raise ConfigurationError for a condition that no cluster can meet within `timeout` seconds.

    `known_jobs` are the jobs that the resolver can return, or None.
    """
    if condition.stable_for >= timeout:
        raise ConfigurationError(
            f"{condition.stable_for:g} s is not shorter than the timeout of {timeout:g} s",
            argument="stable_for",
            hint="Raise {timeout}.",
        )
    unknown = [] if known_jobs is None else [job for job in condition.jobs or () if job not in known_jobs]
    if unknown:
        raise ConfigurationError(
            f"no job is named {unknown[0]!r}",
            argument="jobs",
            hint=Hint("The jobs are {known}.", {"known": ", ".join(map(repr, known_jobs or ()))}),
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
    """Why a cluster is not complete. `found`, `wanted` and `sources` are as in `IncompleteClusterError`."""

    found: Mapping[str, int]
    wanted: Mapping[str, Size]
    missing: tuple[Missing, ...] = ()
    is_final: bool = False  # the cluster cannot become complete with the tasks that exist now
    sources: Mapping[str, str] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)  # those of `found` that have ended with success
    hint: Hint | str = ""

    def __str__(self) -> str:
        """Return one line: `job 'worker': 14 of 16 tasks; ml/trainer-7: Pending (...)`."""
        counts = []
        for job, found in self.found.items():
            of = f" of {_size_text(self.wanted[job])}" if job in self.wanted else ""
            done = f", {self.done[job]} of them done" if self.done.get(job) else ""
            source = f" ({self.sources[job]})" if job in self.sources else ""
            plural = "" if (found, of) == (1, "") else "s"
            counts.append(f"job {job!r}: {found}{of} task{plural}{done}{source}")
        if "" in self.wanted:
            done = f", {sum(self.done.values())} of them done" if any(self.done.values()) else ""
            counts.append(f"{sum(self.found.values())} of {_size_text(self.wanted[''])} tasks in total{done}")
        parts = [", ".join(counts) or "no job was found"]
        parts += [f"{name}: {reason}" for name, reason in list(self.reasons.items())[:MAX_REASONS]]
        if len(self.reasons) > MAX_REASONS:
            parts.append(f"and {len(self.reasons) - MAX_REASONS} more")
        return "; ".join(parts)

    @property
    def reasons(self) -> dict[str, str]:
        """The name of each missing task to the reason."""
        return {one.name: one.reason for one in self.missing}

    @property
    def least(self) -> dict[str, int]:
        """The least number of tasks of each job."""
        return {job: least for job, (least, _) in self.wanted.items()}


def _size_text(size: Size) -> str:
    least, most = size
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def shortfall(observation: Observation, condition: WaitCondition) -> Shortfall | None:
    """Return what `observation` lacks to meet `condition`, apart from reachability; None if it is complete.

    There must be the required number of tasks, and absent tasks do not matter otherwise. Tasks that are done
    count, unless all tasks are needed. Without a number, that of each job is the one that the source expects;
    if it expects none, the job must have a task, and nothing may be absent. An observation with an error is
    never complete, because it may be outdated.
    """
    jobs = condition.jobs
    state = observation.state
    sizes = _sizes(state, condition)
    done = {} if condition.needs_all else _done(observation, condition)
    required = _required_numbers(observation, condition)
    absent = [one for one in observation.absent if jobs is None or one.job in jobs]
    unready = [one for one in observation.unready if jobs is None or one.job in jobs]
    if not condition.ready:
        unready = []
    is_short, is_final = _compare(sizes, done, absent, required)
    if not condition.has_number:
        others = [one for one in absent if one.job not in required]
        is_short |= not sizes or bool(others)
        is_short |= any(size == 0 for job, size in sizes.items() if job not in required)
        is_final |= any(one.is_final for one in others)
    faults, hint = (
        _faults_of_done(observation, condition)
        or _surplus(observation, condition, sizes, done)
        or (_faults_of_controllers(observation, condition, sizes) if is_short else None)
        or ([], "Replace the missing tasks, and wait again.")
    )
    is_final |= any(one.is_final for one in faults)
    if state is not None and observation.error is None and not is_short and not unready and not faults:
        return None
    missing = (*unready, *absent, *faults)
    if observation.error is not None:
        missing = (Missing("", "the source", observation.error.summary), *missing)
    # Parts of the source that did not respond may still return the tasks that are missing.
    is_known = state is not None and observation.error is None
    found = {
        job: size + done.get(job, 0) - sum(one.job == job for one in unready) for job, size in sizes.items()
    }
    sources = _sources(observation, condition)
    return Shortfall(found, required, missing, is_final and is_known, sources, done, hint)


def _faults_of_done(
    observation: Observation, condition: WaitCondition
) -> tuple[list[Missing], Hint | str] | None:
    """Return why tasks that have ended with success prevent that the cluster becomes complete."""
    jobs, state = condition.jobs, observation.state
    done = [one for one in state.done if jobs is None or one.job in jobs] if state is not None else []
    if condition.needs_all and done:
        reason = "has ended with success, so that the others cannot connect to it"
        hint = "Create the job again, so that all of its tasks start together."
        return [_fault(one.job, one.name or str(one), reason) for one in done], hint
    for job, expected in observation.expected.items():
        if state is None or (jobs is not None and job not in jobs):
            continue
        vanished = expected.done - sum(one.job == job for one in done)
        # A pod that has succeeded may be a member until the watch reports its end.
        if vanished > 0 and len(state.endpoints.get(job, ())) + expected.done <= expected.number:
            reason = f"{vanished} have ended with success and no longer exist, so that ranks are unknown"
            by_index = Hint("Order the tasks of an Indexed Job by their indices: {order_by=index}.")
            return [_fault(job, f"tasks of job {job!r}", reason)], by_index
    return None


def _surplus(
    observation: Observation, condition: WaitCondition, sizes: Mapping[str, int], done: Mapping[str, int]
) -> tuple[list[Missing], Hint] | None:
    """Return that there are more tasks than required, and which tasks there are."""
    for job, (_, most) in _required_numbers(observation, condition).items():
        numbers = [sum(each.values()) if job == "" else each.get(job, 0) for each in (sizes, done)]
        if observation.state is None or most is None or sum(numbers) <= most:
            continue
        names = [_name(one) for one in _members(observation.state, condition) if job in ("", one.job)]
        names += [f"{one.name} (done)" for one in observation.state.done if job in ("", one.job)]
        more = f" and {len(names) - MAX_REASONS} more" if len(names) > MAX_REASONS else ""
        reason = f"there are {sum(numbers)} instead of {most}: {', '.join(names[:MAX_REASONS])}{more}"
        # Tasks that are not ready may be about to end, and so may those of a controller that was scaled.
        is_final = condition.has_number and not observation.unready
        hint = Hint("Correct the selector, or {count}, which may be a range too.")
        return [_fault(job, "the tasks", reason, is_final=is_final)], hint
    return None


def _faults_of_controllers(
    observation: Observation, condition: WaitCondition, sizes: Mapping[str, int]
) -> tuple[list[Missing], str] | None:
    """Return that the controllers of jobs without tasks have ended or are suspended, and the failed pods."""
    ended = {job: one for job, one in observation.controllers.items() if job in sizes}
    # Of several jobs whose tasks are counted together, another one may still have enough.
    is_over = condition.count is None or ended.keys() == sizes.keys()
    faults: list[Missing] = []
    for job, statuses in ended.items():
        is_final = is_over and all(one.phase != "suspended" for one in statuses)
        faults += [_fault(job, one.controller, str(one), is_final=is_final) for one in statuses]
        faults += [one for one in observation.failed if one.job == job]
    return (faults, "Create the job again, or resume it, and wait again.") if faults else None


def _fault(job: str, name: str, reason: str, *, is_final: bool = True) -> Missing:
    return Missing(job, name, reason, is_final=is_final, tasks=0)


def _done(observation: Observation, condition: WaitCondition) -> dict[str, int]:
    """Return the number of tasks of each job that have ended with success, if there are any."""
    done = Counter({job: expected.done for job, expected in observation.expected.items()})
    if observation.state is not None:
        done |= Counter(one.job for one in observation.state.done)
    return {job: number for job, number in done.items() if condition.jobs is None or job in condition.jobs}


def _sizes(state: ClusterState | None, condition: WaitCondition) -> dict[str, int]:
    """Return the number of tasks of each job that the condition concerns."""
    sizes = {} if state is None else {job: len(tasks) for job, tasks in state.endpoints.items()}
    return sizes if condition.jobs is None else {job: sizes.get(job, 0) for job in condition.jobs}


def _members(state: ClusterState, condition: WaitCondition) -> list[Member]:
    """Return the tasks of the jobs that the condition concerns."""
    return [one for one in state.members if condition.jobs is None or one.job in condition.jobs]


def _name(member: Member) -> str:
    return member.endpoint.full_name or member.endpoint.address


def _required_numbers(observation: Observation, condition: WaitCondition) -> dict[str, Size]:
    """Return job name to the required number of tasks; `""` for the total of all jobs."""
    if condition.count is not None:
        return {"": condition.count}
    if condition.jobs is not None:
        return dict(condition.jobs)
    return {job: (expected.number, expected.number) for job, expected in observation.expected.items()}


def _sources(observation: Observation, condition: WaitCondition) -> dict[str, str]:
    """Return job name to what states the required number, unless the caller of `wait` did."""
    if condition.has_number:
        return {}
    return {job: expected.source for job, expected in observation.expected.items()}


def _compare(
    sizes: Mapping[str, int], done: Mapping[str, int], absent: Sequence[Missing], required: Mapping[str, Size]
) -> tuple[bool, bool]:
    """Return whether tasks are missing, and whether the absent tasks that may still come cannot suffice."""
    is_short = is_final = False
    for job, (number, _) in required.items():
        size = sum(sizes.values()) if job == "" else sizes.get(job, 0)
        size += sum(done.values()) if job == "" else done.get(job, 0)
        of_job = [one for one in absent if job in ("", one.job)]
        may_come = [one.tasks for one in of_job if not one.is_final]
        is_short |= size < number
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
        wanted=lacking.least,
        missing=lacking.reasons,
        sources=lacking.sources,
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
        self.lacking = Shortfall({}, _required_numbers(Observation(None), condition))
        self._latest: LatestValue[Observation] = LatestValue()
        self._removed = _RemovedTasks()
        self._complete: Observation  # the latest one of a complete cluster
        self._replaced = anyio.Event()  # set when `_complete` is, with the same members

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
        observation = await self._latest.get()
        while True:
            self._removed.update(observation)
            lacking = shortfall(observation, self._condition)
            if lacking is not None:
                self._record(replace(lacking, missing=(*lacking.missing, *self._removed.among(lacking))))
                if lacking.is_final:
                    raise self._failed(self.lacking)
                observation = await self._latest.get()
                continue
            self._complete = observation
            newer = await self._change_before_proof()
            if newer is None:
                self._log_sources()
                return self._state
            observation = newer

    @property
    def _state(self) -> ClusterState:
        assert self._complete.state is not None
        return self._complete.state

    async def _change_before_proof(self) -> Observation | None:
        """Return None once `_complete` is proven, or else the first observation that disproves it.

        Observations are received while tasks are connected to: a cluster may fail in that time.
        """
        members = frozenset(_members(self._state, self._condition))
        change: Observation | None = None
        with anyio.CancelScope() as until_proven:

            async def prove() -> None:
                await self._prove()
                until_proven.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(prove)
                change = await self._next_change(members)
                group.cancel_scope.cancel()
        if change is None:
            # An observation may have arrived at the very moment of the proof. `get` does not wait for it.
            with anyio.CancelScope(deadline=-math.inf):
                change = await self._next_change(members)
        return change

    async def _next_change(self, members: frozenset[Member]) -> Observation:
        """Return the next observation of an incomplete cluster or of other members."""
        while True:
            observation = await self._latest.get()
            if shortfall(observation, self._condition) is not None:
                return observation
            self._complete = observation
            self._replaced.set()
            if frozenset(_members(self._state, self._condition)) != members:
                return observation

    async def _prove(self) -> None:
        """Return once the tasks have been reachable at each check for `stable_for` seconds.

        A polled source has to be polled at the end of that time, or later: its last observation says nothing
        about the time since then.
        """
        stable_for = self._condition.stable_for
        reachable_since: float | None = None
        self._record(self._not_yet_proven())
        while True:
            if not await self._check_reachable():
                reachable_since = None
                await anyio.sleep(RECHECK_INTERVAL)
                continue
            now = anyio.current_time()
            if reachable_since is None:
                reachable_since = now
                self._record(self._not_yet_proven())
            end = reachable_since + stable_for
            polled_at = self._complete.polled_at
            if now < end:
                await anyio.sleep(min(end - now, max(RECHECK_INTERVAL, stable_for / MAX_RECHECKS)))
            elif stable_for and polled_at is not None and polled_at < end:
                self._replaced = anyio.Event()
                await self._replaced.wait()
            else:
                return

    def _not_yet_proven(self) -> Shortfall:
        """Return the shortfall of a cluster that is complete, but not stable or reachable as far as known."""
        stable_for = self._condition.stable_for
        reason = f"not stable for {stable_for:g} s yet" if stable_for else "not known to be reachable yet"
        return self._unproven((Missing("", "the tasks", reason),), _sizes(self._state, self._condition))

    def _unproven(self, missing: tuple[Missing, ...], found: Mapping[str, int]) -> Shortfall:
        """Return the shortfall of a cluster that is complete; `found` are the members that are usable."""
        done = _done(self._complete, self._condition)
        return Shortfall(
            {job: number + done.get(job, 0) for job, number in found.items()},
            _required_numbers(self._complete, self._condition),
            missing,
            sources=_sources(self._complete, self._condition),
            done=done,
        )

    async def _check_reachable(self) -> bool:
        """Return whether all tasks are reachable, if they must be; if not, record the shortfall."""
        if self._condition.reachable is None:
            return True
        members = _members(self._state, self._condition)
        addresses = list(dict.fromkeys(one.endpoint.address for one in members))
        reasons = await find_unreachable(addresses, self._condition.reachable)
        missing = tuple(
            Missing(one.job, _name(one), reason)
            for one in members
            if (reason := reasons.get(one.endpoint.address)) is not None
        )
        if missing:
            sizes = _sizes(self._state, self._condition)
            found = {job: size - sum(one.job == job for one in missing) for job, size in sizes.items()}
            self._record(self._unproven(missing, found))
        return not missing

    def _log_sources(self) -> None:
        """Log where the required numbers come from, unless the caller of `wait` gave them."""
        numbers = _required_numbers(self._complete, self._condition)
        for job, source in _sources(self._complete, self._condition).items():
            logger.info("%s has all %d tasks of job %r (%s)", self._source, numbers[job][0], job, source)

    def _record(self, lacking: Shortfall) -> None:
        self.lacking = lacking
        self._on_shortfall(lacking)

    def _failed(self, lacking: Shortfall) -> FailedClusterError:
        return FailedClusterError(
            f"the cluster of {self._source} cannot become complete: {lacking}",
            hint=lacking.hint,
            found=lacking.found,
            wanted=lacking.least,
            missing=lacking.reasons,
            sources=lacking.sources,
        )


class _RemovedTasks:
    """The tasks that have failed, or that the source returned earlier in a wait and no longer returns."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}  # name of each task in the last observation: its job
        self._removed: dict[str, Missing] = {}  # the latest one is last

    def update(self, observation: Observation) -> None:
        """Compare `observation` with the previous one."""
        state = observation.state
        if state is None or observation.error is not None:
            return
        jobs = {_name(one): one.job for one in state.members}
        jobs |= {one.name: one.job for one in observation.absent}
        jobs |= {one.name: one.job for one in state.done if one.name is not None}
        for name in self._removed.keys() & jobs:
            del self._removed[name]
        for name, job in self._jobs.items():
            if name not in jobs:
                self._removed[name] = Missing(job, name, "no longer found; it was found earlier")
        self._removed |= {one.name: one for one in observation.failed}
        for name in list(self._removed)[:-MAX_REMOVED]:
            del self._removed[name]
        self._jobs = jobs

    def among(self, lacking: Shortfall) -> tuple[Missing, ...]:
        """Return the latest removed tasks, at most as many as lack a reason in `lacking`."""
        named = [one.job for one in lacking.missing if one.job]
        found: list[Missing] = []
        for job, wanted in lacking.least.items():
            if job == "":
                unexplained = wanted - sum(lacking.found.values()) - len(named)
                of_job = list(self._removed.values())
            else:
                unexplained = wanted - lacking.found.get(job, 0) - named.count(job)
                of_job = [one for one in self._removed.values() if one.job == job]
            found += of_job[-unexplained:] if unexplained > 0 else []
        return tuple(one for one in found if one.name not in lacking.reasons)


async def find_unreachable(
    addresses: Sequence[str], reachability: Reachability, *, timeout: float = CONNECT_TIMEOUT
) -> dict[str, str]:
    """Return each address that is not reachable within `timeout` seconds to the reason."""
    if reachability == "probe":
        # Imported here because it loads grpc, which only probing needs.
        from aioresolve.probe import probe_workers

        probes = zip(addresses, await probe_workers(addresses, worker_timeout=timeout), strict=True)
        return {address: probe.error.summary for address, probe in probes if probe.error is not None}
    calls = [partial(_connect_error, address, timeout) for address in addresses]
    reasons = await gather(calls, limit=MAX_CONNECTIONS)
    return {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason is not None}


async def _connect_error(address: str, timeout: float) -> str | None:
    """Return why no TCP connection to `address` can be opened within `timeout` seconds; None if one can."""
    with anyio.move_on_after(timeout):
        try:
            connection = await connect(*split_host_port(address))
        except (OSError, ValueError) as error:
            return f"no TCP connection to {address}: {_system_message(error)}"
        await connection.aclose()
        return None
    return f"no TCP connection to {address} within {timeout:.3g} s"


def _system_message(error: OSError | ValueError) -> str:
    """Return the operating system's message; asyncio, uvloop and anyio each phrase errors differently."""
    # anyio raises an error of its own, with the system's as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and not isinstance(cause, socket.gaierror) and cause.errno:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause)
