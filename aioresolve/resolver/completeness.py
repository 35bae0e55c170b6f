"""Whether a cluster is complete: an observation, compared with what `wait` or a fleet requires."""

from __future__ import annotations

import copy
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from aioresolve._core.validation import validate_count, validate_seconds
from aioresolve.errors import ConfigurationError, Hint
from aioresolve.spec import Missing
from aioresolve.spec.observation import Want

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve.spec import DoneTask, Member, Observation

OfJobT = TypeVar("OfJobT", "Member", "DoneTask", Missing)

Reachability: TypeAlias = Literal["tcp", "probe"]

Size: TypeAlias = tuple[int, int | None]
"""The least and the most number of tasks; None for no limit."""

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

    def concerns(self, job: str) -> bool:
        """Whether the tasks of a job count."""
        return self.jobs is None or job in self.jobs

    def required(self, observation: Observation) -> dict[str, Size]:
        """Return job name to the required number of tasks; `""` for the total of all jobs."""
        if self.count is not None:
            return {"": self.count}
        if self.jobs is not None:
            return dict(self.jobs)
        return {job: (each.number, each.number) for job, each in observation.expected.items()}


def validate_condition(
    count: Any, jobs: Any, ready: bool, reachable: Any, stable_for: object, *, needs_all: bool = False
) -> WaitCondition:
    """Return the condition with these arguments of `ClusterResolver.wait`."""
    if count is not None and jobs is not None:
        raise ConfigurationError(
            "count and jobs cannot be combined",
            hint="Pass {count} for the total of all jobs, or {jobs} for a number per job.",
        )
    if jobs is not None and (not isinstance(jobs, Mapping) or not jobs or "" in jobs):
        raise ConfigurationError(
            f"{reprlib.repr(jobs)} is not a mapping of job names to numbers of tasks",
            argument="jobs",
            hint="Pass one such as `{'worker': 16}`.",
        )
    if reachable not in (False, True, None, "tcp", "probe"):
        hint = "Pass False, 'tcp' (or True), or 'probe'."
        raise ConfigurationError(f"{reachable!r} is invalid", argument="reachable", hint=hint)
    return WaitCondition(
        None if count is None else _validate_size("count", count),
        None if jobs is None else {job: _validate_size(f"jobs[{job!r}]", size) for job, size in jobs.items()},
        ready,
        "tcp" if reachable is True else reachable or None,
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


class Completeness:
    """Whether an observation meets a condition, apart from reachability, and what it lacks otherwise.

    There must be the required number of tasks, and absent tasks do not matter otherwise. Without a number,
    that of each job is the one that the source expects; if it expects none, the job must have a task, and
    nothing may be absent. An observation with an error is never complete, because it may be outdated.

    Attributes:
        is_complete: whether the observation meets the condition.
        is_final: whether the cluster cannot become complete with the tasks that exist now.
        found: job name to the number of its usable tasks, those that are done included.
        required: job name to the required number of tasks; `""` for the total of all jobs.
        done: job name to the number of tasks in `found` that have ended with success.
        sources: job name to what states the required number, unless the condition does.
        missing: the tasks that are missing or not usable, and other faults.
        hint: what to do if it `is_final`.
    """

    def __init__(self, observation: Observation, condition: WaitCondition) -> None:
        self.observation = observation
        self._condition = condition
        self.required = condition.required(observation)
        expected, state = observation.expected, observation.state
        self.sources = {} if condition.has_number else {job: each.source for job, each in expected.items()}
        sizes = {} if state is None else {job: len(tasks) for job, tasks in state.endpoints.items()}
        self._sizes = Counter({job: sizes.get(job, 0) for job in condition.jobs or sizes})
        self._done_tasks = [] if state is None else self._of_jobs(state.done)
        # Tasks that are done count, unless all tasks are needed.
        done = Counter({job: each.done for job, each in expected.items() if condition.concerns(job)})
        done |= Counter(each.job for each in self._done_tasks)
        self.done = Counter[str]() if condition.needs_all else done
        unready = self._of_jobs(observation.unready) if condition.ready else []
        self.found = {job: self._number(job) - _number_of(job, unready) for job in self._sizes}

        absent = self._of_jobs(observation.absent)
        is_short, is_final = self._shortage(absent)
        faults, self.hint = (
            self._faults_of_done()
            or self._surplus()
            or (self._faults_of_controllers() if is_short else None)
            or ([], "Replace the missing tasks, and wait again.")
        )
        # Parts of a source that did not respond may still return the tasks that are missing.
        is_known = state is not None and observation.error is None
        self.is_complete = is_known and not (is_short or unready or faults)
        self.is_final = is_known and (is_final or any(one.is_final for one in faults))
        self.missing = [] if self.is_complete else [*unready, *absent, *faults]
        if observation.error is not None:
            self.missing.insert(0, Missing("", "the source", observation.error.summary))
        if not self.is_complete:
            self.missing += [*self._failed_tasks(), *self._of_jobs(observation.unmatched)]

    def __str__(self) -> str:
        """Return one line: `job 'worker': 14 of 16 tasks; ml/trainer-7: Pending (...)`."""
        parts = [self.counts(), *map(str, {one.name: one for one in self.missing}.values())]
        more = len(self.reasons) - MAX_REASONS
        return "; ".join(parts[: MAX_REASONS + 1] + [f"and {more} more"] * (more > 0))

    def counts(self, *, only_short: bool = False) -> str:
        """Return the numbers of tasks as text, such as `job 'worker': 14 of 16 tasks`; or those too low."""
        counts, total = [], sum(self.found.values())
        for job, found in self.found.items():
            if only_short and found >= self.least.get(job, 1):
                continue
            of = f" of {_size_text(self.required[job])}" if job in self.required else ""
            done = f", {self.done[job]} of them done" if self.done.get(job) else ""
            source = f" ({self.sources[job]})" if job in self.sources else ""
            plural = "" if (found, of) == (1, "") else "s"
            counts.append(f"job {job!r}: {found}{of} task{plural}{done}{source}")
        if "" in self.required:
            done = f", {self.done.total()} of them done" if self.done.total() else ""
            counts.append(f"{total} of {_size_text(self.required[''])} tasks in total{done}")
        return ", ".join(counts) or "no job was found"

    @property
    def members(self) -> list[Member]:
        """The members that count."""
        state = self.observation.state
        return [] if state is None else self._of_jobs(state.members)

    @property
    def reasons(self) -> dict[str, str]:
        """The name of each missing task to the reason."""
        return {one.name: one.reason for one in self.missing}

    @property
    def least(self) -> dict[str, int]:
        """The least number of tasks of each job."""
        return {job: least for job, (least, _) in self.required.items()}

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of an error that reports it."""
        return {"found": self.found, "wanted": self.least, "missing": self.reasons, "sources": self.sources}

    def without(self, unusable: Sequence[Missing]) -> Completeness:
        """Return it with members that are not usable after all."""
        other = copy.copy(self)
        other.missing = list(unusable)
        other.found = {job: number - _number_of(job, unusable) for job, number in self.found.items()}
        return other

    def _of_jobs(self, tasks: Iterable[OfJobT]) -> list[OfJobT]:
        return [each for each in tasks if self._condition.concerns(each.job)]

    def _number(self, job: str) -> int:
        """Return the number of tasks of a job, or of all jobs if it is `""`."""
        if job == "":
            return self._sizes.total() + self.done.total()
        return self._sizes[job] + self.done[job]

    def _shortage(self, absent: Sequence[Missing]) -> tuple[bool, bool]:
        """Return whether tasks are missing, and whether those that may still come cannot suffice."""
        is_short = is_final = False
        for job, (least, _) in self.required.items():
            of_job = [one for one in absent if job in ("", one.job)]
            may_come = [one.tasks for one in of_job if not one.is_final]
            is_short |= self._number(job) < least
            # None: the source does not know yet how many tasks will come.
            if any(one.is_final for one in of_job) and None not in may_come:
                is_final |= self._number(job) + sum(tasks or 0 for tasks in may_come) < least
        if not self._condition.has_number:
            others = [one for one in absent if one.job not in self.required]
            is_short |= not self._sizes or bool(others)
            is_short |= any(size == 0 for job, size in self._sizes.items() if job not in self.required)
            is_final |= any(one.is_final for one in others)
        return is_short, is_final

    def _faults_of_done(self) -> tuple[list[Missing], Hint | str] | None:
        """Return why tasks that have ended with success prevent that the cluster becomes complete."""
        if self._condition.needs_all and self._done_tasks:
            reason = "has ended with success, so that the others cannot connect to it"
            hint = "Create the job again, so that all of its tasks start together."
            return [_fault(one.job, one.name or str(one), reason) for one in self._done_tasks], hint
        for job, expected in self.observation.expected.items():
            if self.observation.state is None or not self._condition.concerns(job):
                continue
            vanished = expected.done - _number_of(job, self._done_tasks)
            # A pod that has succeeded may be a member until the watch reports its end.
            if vanished > 0 and self._sizes[job] + expected.done <= expected.number:
                reason = f"{vanished} have ended with success and no longer exist, so that ranks are unknown"
                by_index = Hint("Order the tasks of an Indexed Job by their indices: {order_by=index}.")
                return [_fault(job, f"tasks of job {job!r}", reason)], by_index
        return None

    def _surplus(self) -> tuple[list[Missing], Hint] | None:
        """Return that there are more tasks than required, and which tasks there are."""
        for job, (_, most) in self.required.items():
            if self.observation.state is None or most is None or self._number(job) <= most:
                continue
            names = [task_name(one) for one in self.members if job in ("", one.job)]
            names += [f"{one.name} (done)" for one in self._done_tasks if job in ("", one.job)]
            more = f" and {len(names) - MAX_REASONS} more" if len(names) > MAX_REASONS else ""
            listed = f"{', '.join(names[:MAX_REASONS])}{more}"
            reason = f"there are {self._number(job)} instead of {most}: {listed}"
            # Tasks that are not ready may be about to end, and so may those of a controller that was scaled.
            is_final = self._condition.has_number and not self.observation.unready
            hint = Hint("Correct the selector, or {count}, which may be a range too.")
            return [_fault(job, "the tasks", reason, is_final=is_final)], hint
        return None

    def _faults_of_controllers(self) -> tuple[list[Missing], str] | None:
        """Return that controllers of jobs without tasks have ended or are suspended, and failed pods."""
        controllers = self.observation.controllers
        ended = {job: controllers[job] for job in controllers if job in self._sizes}
        # Of several jobs whose tasks are counted together, another one may still have enough.
        is_over = self._condition.count is None or ended.keys() == self._sizes.keys()
        faults: list[Missing] = []
        for job, statuses in ended.items():
            is_final = is_over and all(one.phase != "suspended" for one in statuses)
            faults += [_fault(job, one.controller, str(one), is_final=is_final) for one in statuses]
            faults += [one for one in self.observation.failed if one.job == job]
        return (faults, "Create the job again, or resume it, and wait again.") if faults else None

    def _failed_tasks(self) -> list[Missing]:
        """Return the latest failed tasks, at most as many as lack a reason."""
        named = Counter(one.job for one in self.missing if one.job)
        found: list[Missing] = []
        for job, least in self.least.items():
            of_job = [one for one in self.observation.failed if job in ("", one.job)]
            if job == "":
                unexplained = least - sum(self.found.values()) - named.total()
            else:
                unexplained = least - self.found.get(job, 0) - named[job]
            found += of_job[-unexplained:] if unexplained > 0 else []
        return [one for one in found if one.name not in self.reasons]


def task_name(member: Member) -> str:
    """Return what messages call a task."""
    return member.endpoint.full_name or member.endpoint.address


def _number_of(job: str, tasks: Iterable[Missing | DoneTask]) -> int:
    return sum(one.job == job for one in tasks)


def _size_text(size: Size) -> str:
    least, most = size
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def _fault(job: str, name: str, reason: str, *, is_final: bool = True) -> Missing:
    return Missing(job, name, reason, is_final=is_final, tasks=0)
