"""Waiting until a cluster is complete.

`shortfall` compares one observation with a condition. `wait_until_complete` follows the observations of a
source until one of them meets the condition for long enough and its tasks are reachable.
"""

from __future__ import annotations

import logging
import os
import reprlib
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import anyio

from aioresolve._core.concurrency import first_error, gather
from aioresolve._core.network import connect
from aioresolve._core.validation import validate_count, validate_seconds
from aioresolve.errors import ConfigurationError, FailedClusterError, Hint, IncompleteClusterError
from aioresolve.spec import Missing, Observation, split_host_port
from aioresolve.spec.observation import Want

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from anyio.abc import TaskGroup

    from aioresolve.spec import ClusterState, DoneTask, Member

logger = logging.getLogger("aioresolve.watch")

OfJobT = TypeVar("OfJobT", "Member", "DoneTask", Missing)

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

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of an error that reports it."""
        return {"found": self.found, "wanted": self.least, "missing": self.reasons, "sources": self.sources}


def _size_text(size: Size) -> str:
    least, most = size
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"


class _Tasks:
    """What an observation says about the jobs of a condition."""

    def __init__(self, observation: Observation, condition: WaitCondition) -> None:
        self.observation = observation
        self._condition = condition
        state = observation.state
        self.done_tasks = [] if state is None else self._of_jobs(state.done)
        self.absent = self._of_jobs(observation.absent)
        self.unready = self._of_jobs(observation.unready) if condition.ready else []
        sizes = {} if state is None else {job: len(tasks) for job, tasks in state.endpoints.items()}
        self.sizes = {job: sizes.get(job, 0) for job in condition.jobs or sizes}
        # Tasks that are done count, unless all tasks are needed.
        done = Counter({job: each.done for job, each in observation.expected.items() if self._concerns(job)})
        done |= Counter(each.job for each in self.done_tasks)
        self.done = Counter[str]() if condition.needs_all else done

    def _concerns(self, job: str) -> bool:
        return self._condition.jobs is None or job in self._condition.jobs

    def _of_jobs(self, tasks: Iterable[OfJobT]) -> list[OfJobT]:
        return [each for each in tasks if self._concerns(each.job)]

    @property
    def members(self) -> list[Member]:
        state = self.observation.state
        return [] if state is None else self._of_jobs(state.members)

    @property
    def required(self) -> dict[str, Size]:
        """Job name to the required number of tasks; `""` for the total of all jobs."""
        if self._condition.count is not None:
            return {"": self._condition.count}
        if self._condition.jobs is not None:
            return dict(self._condition.jobs)
        return {job: (each.number, each.number) for job, each in self.observation.expected.items()}

    def number(self, job: str) -> int:
        """Return the number of tasks of a job, or of all jobs if it is `""`."""
        if job == "":
            return sum(self.sizes.values()) + sum(self.done.values())
        return self.sizes.get(job, 0) + self.done[job]

    def shortage(self) -> tuple[bool, bool]:
        """Return whether tasks are missing, and whether those that may still come cannot suffice."""
        is_short = is_final = False
        required = self.required
        for job, (least, _) in required.items():
            of_job = [one for one in self.absent if job in ("", one.job)]
            may_come = [one.tasks for one in of_job if not one.is_final]
            is_short |= self.number(job) < least
            # None: the source does not know yet how many tasks will come.
            if any(one.is_final for one in of_job) and None not in may_come:
                is_final |= self.number(job) + sum(tasks or 0 for tasks in may_come) < least
        if not self._condition.has_number:
            others = [one for one in self.absent if one.job not in required]
            is_short |= not self.sizes or bool(others)
            is_short |= any(size == 0 for job, size in self.sizes.items() if job not in required)
            is_final |= any(one.is_final for one in others)
        return is_short, is_final

    def faults(self, is_short: bool) -> tuple[list[Missing], Hint | str]:
        """Return the faults other than missing tasks, and what to do."""
        return (
            self._faults_of_done()
            or self._surplus()
            or (self._faults_of_controllers() if is_short else None)
            or ([], "Replace the missing tasks, and wait again.")
        )

    def _faults_of_done(self) -> tuple[list[Missing], Hint | str] | None:
        """Return why tasks that have ended with success prevent that the cluster becomes complete."""
        if self._condition.needs_all and self.done_tasks:
            reason = "has ended with success, so that the others cannot connect to it"
            hint = "Create the job again, so that all of its tasks start together."
            return [_fault(one.job, one.name or str(one), reason) for one in self.done_tasks], hint
        for job, expected in self.observation.expected.items():
            if self.observation.state is None or not self._concerns(job):
                continue
            vanished = expected.done - sum(one.job == job for one in self.done_tasks)
            # A pod that has succeeded may be a member until the watch reports its end.
            if vanished > 0 and self.sizes.get(job, 0) + expected.done <= expected.number:
                reason = f"{vanished} have ended with success and no longer exist, so that ranks are unknown"
                by_index = Hint("Order the tasks of an Indexed Job by their indices: {order_by=index}.")
                return [_fault(job, f"tasks of job {job!r}", reason)], by_index
        return None

    def _surplus(self) -> tuple[list[Missing], Hint] | None:
        """Return that there are more tasks than required, and which tasks there are."""
        for job, (_, most) in self.required.items():
            if self.observation.state is None or most is None or self.number(job) <= most:
                continue
            names = [_name(one) for one in self.members if job in ("", one.job)]
            names += [f"{one.name} (done)" for one in self.done_tasks if job in ("", one.job)]
            more = f" and {len(names) - MAX_REASONS} more" if len(names) > MAX_REASONS else ""
            listed = f"{', '.join(names[:MAX_REASONS])}{more}"
            reason = f"there are {self.number(job)} instead of {most}: {listed}"
            # Tasks that are not ready may be about to end, and so may those of a controller that was scaled.
            is_final = self._condition.has_number and not self.observation.unready
            hint = Hint("Correct the selector, or {count}, which may be a range too.")
            return [_fault(job, "the tasks", reason, is_final=is_final)], hint
        return None

    def _faults_of_controllers(self) -> tuple[list[Missing], str] | None:
        """Return that controllers of jobs without tasks have ended or are suspended, and failed pods."""
        controllers = self.observation.controllers
        ended = {job: controllers[job] for job in controllers if job in self.sizes}
        # Of several jobs whose tasks are counted together, another one may still have enough.
        is_over = self._condition.count is None or ended.keys() == self.sizes.keys()
        faults: list[Missing] = []
        for job, statuses in ended.items():
            is_final = is_over and all(one.phase != "suspended" for one in statuses)
            faults += [_fault(job, one.controller, str(one), is_final=is_final) for one in statuses]
            faults += [one for one in self.observation.failed if one.job == job]
        return (faults, "Create the job again, or resume it, and wait again.") if faults else None

    def lacking(self, missing: Sequence[Missing], unusable: Sequence[Missing], **more: Any) -> Shortfall:
        """Return the shortfall of these tasks; the `unusable` ones are members."""
        found = {job: self.number(job) - sum(one.job == job for one in unusable) for job in self.sizes}
        return Shortfall(found, self.required, tuple(missing), sources=self.sources, done=self.done, **more)

    @property
    def sources(self) -> dict[str, str]:
        """Job name to what states the required number, unless the caller of `wait` did."""
        if self._condition.has_number:
            return {}
        return {job: expected.source for job, expected in self.observation.expected.items()}


def _fault(job: str, name: str, reason: str, *, is_final: bool = True) -> Missing:
    return Missing(job, name, reason, is_final=is_final, tasks=0)


def _name(member: Member) -> str:
    return member.endpoint.full_name or member.endpoint.address


def shortfall(observation: Observation, condition: WaitCondition) -> Shortfall | None:
    """Return what `observation` lacks to meet `condition`, apart from reachability; None if it is complete.

    There must be the required number of tasks, and absent tasks do not matter otherwise. Without a number,
    that of each job is the one that the source expects; if it expects none, the job must have a task, and
    nothing may be absent. An observation with an error is never complete, because it may be outdated.
    """
    tasks = _Tasks(observation, condition)
    is_short, is_final = tasks.shortage()
    faults, hint = tasks.faults(is_short)
    # Parts of a source that did not respond may still return the tasks that are missing.
    is_known = observation.state is not None and observation.error is None
    if is_known and not (is_short or tasks.unready or faults):
        return None
    missing = [*tasks.unready, *tasks.absent, *faults]
    if observation.error is not None:
        missing.insert(0, Missing("", "the source", observation.error.summary))
    is_final = is_known and (is_final or any(one.is_final for one in faults))
    return tasks.lacking(missing, tasks.unready, is_final=is_final, hint=hint)


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
                group.start_soon(waiter.follow, observations, group)
                await waiter.proven.wait()
                group.cancel_scope.cancel()
            return waiter.state()
    except BaseExceptionGroup as group_error:
        error = first_error(group_error)
        raise error from error.__cause__
    raise IncompleteClusterError(
        f"the cluster of {source} was not complete within {timeout:g} s: {waiter.lacking}",
        hint="Check the missing tasks, raise {timeout}, or wait for fewer tasks.",
        timeout=timeout,
        **waiter.lacking.attributes,
    )


class _Waiter:
    """One call of `wait_until_complete`.

    `follow` compares each observation with the condition. While the cluster is complete, it runs `_prove`,
    which shows that the same members are reachable and stable.
    """

    def __init__(
        self, condition: WaitCondition, source: str, on_shortfall: Callable[[Shortfall], None]
    ) -> None:
        self._condition = condition
        self._source = source
        self._on_shortfall = on_shortfall
        self.lacking = _Tasks(Observation(None), condition).lacking((), ())
        self.proven = anyio.Event()
        self._complete: _Tasks  # of the latest observation of a complete cluster
        self._members: frozenset[Member] | None = None  # those that are being proven
        self._proof = anyio.CancelScope()
        self._replaced = anyio.Event()  # set when `_complete` is, with the same members

    async def follow(self, observations: AsyncGenerator[Observation, None], group: TaskGroup) -> None:
        """Compare each observation with the condition, until `proven` is set."""
        async with aclosing(observations):
            async for observation in observations:
                lacking = shortfall(observation, self._condition)
                if lacking is not None:
                    self._proof.cancel()
                    self._members = None
                    failed = _failed_tasks(observation, lacking)
                    self._record(replace(lacking, missing=(*lacking.missing, *failed)))
                    if lacking.is_final:
                        raise FailedClusterError(
                            f"the cluster of {self._source} cannot become complete: {self.lacking}",
                            hint=lacking.hint,
                            **self.lacking.attributes,
                        )
                    continue
                self._complete = _Tasks(observation, self._condition)
                self._replaced.set()
                members = frozenset(self._complete.members)
                if members != self._members:
                    self._proof.cancel()
                    self._members, self._proof = members, anyio.CancelScope()
                    group.start_soon(self._prove, self._proof)

    def state(self) -> ClusterState:
        """Return the state of the cluster that is proven, and log where the required numbers come from."""
        for job, source in self._complete.sources.items():
            number = self._complete.required[job][0]
            logger.info("%s has all %d tasks of job %r (%s)", self._source, number, job, source)
        state = self._complete.observation.state
        assert state is not None
        return state

    async def _prove(self, scope: anyio.CancelScope) -> None:
        """Set `proven` once the tasks have been reachable at each check for `stable_for` seconds.

        A polled source has to be polled at the end of that time, or later: its last observation says nothing
        about the time since then.
        """
        with scope:
            stable_for = self._condition.stable_for
            reachable_since: float | None = None
            self._record_unproven()
            while True:
                if not await self._check_reachable():
                    reachable_since = None
                    await anyio.sleep(RECHECK_INTERVAL)
                    continue
                now = anyio.current_time()
                if reachable_since is None:
                    reachable_since = now
                    self._record_unproven()
                end = reachable_since + stable_for
                polled_at = self._complete.observation.polled_at
                if now < end:
                    await anyio.sleep(min(end - now, max(RECHECK_INTERVAL, stable_for / MAX_RECHECKS)))
                elif stable_for and polled_at is not None and polled_at < end:
                    self._replaced = anyio.Event()
                    await self._replaced.wait()
                else:
                    self.proven.set()
                    return

    def _record_unproven(self) -> None:
        """Record that the cluster is complete, but not stable or reachable as far as known."""
        stable_for = self._condition.stable_for
        reason = f"not stable for {stable_for:g} s yet" if stable_for else "not known to be reachable yet"
        self._record(self._complete.lacking([Missing("", "the tasks", reason)], ()))

    async def _check_reachable(self) -> bool:
        """Return whether all tasks are reachable, if they must be; if not, record the shortfall."""
        if self._condition.reachable is None:
            return True
        members = self._complete.members
        addresses = list(dict.fromkeys(one.endpoint.address for one in members))
        reasons = await find_unreachable(addresses, self._condition.reachable)
        missing = [
            Missing(one.job, _name(one), reason)
            for one in members
            if (reason := reasons.get(one.endpoint.address)) is not None
        ]
        if missing:
            self._record(self._complete.lacking(missing, missing))
        return not missing

    def _record(self, lacking: Shortfall) -> None:
        self.lacking = lacking
        self._on_shortfall(lacking)


def _failed_tasks(observation: Observation, lacking: Shortfall) -> list[Missing]:
    """Return the latest failed tasks, at most as many as lack a reason in `lacking`."""
    named = Counter(one.job for one in lacking.missing if one.job)
    found: list[Missing] = []
    for job, least in lacking.least.items():
        of_job = [one for one in observation.failed if job in ("", one.job)]
        if job == "":
            unexplained = least - sum(lacking.found.values()) - named.total()
        else:
            unexplained = least - lacking.found.get(job, 0) - named[job]
        found += of_job[-unexplained:] if unexplained > 0 else []
    return [one for one in found if one.name not in lacking.reasons]


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
