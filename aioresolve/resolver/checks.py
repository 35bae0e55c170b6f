"""The checks that `aioresolve.doctor` runs, and those that every resolver has.

A resolver plans its checks (`ClusterResolver._checks`). They run concurrently, each as soon as those that it
needs are done, and each with its own deadline, so that one that hangs delays only those that need it.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio

from aioresolve._core.concurrency import reject_stray_cancellation
from aioresolve._core.deadline import MIN_TIMEOUT, Progress
from aioresolve.errors import Hint, ResolveError, TaskIdentityError
from aioresolve.spec import ClusterState
from aioresolve.spec.display import html_table, short_line
from aioresolve.spec.observation import MEMBERS

from .completeness import Completeness, WaitCondition
from .wait import MAX_CONNECTIONS, find_unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aioresolve.spec import Member, Observation, Task
    from aioresolve.spec.observation import Want

Result: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

MAX_NAMED = 3
"""The number of unreachable tasks that a check names."""

SHARE = 0.8
"""The share of the time of a check that each of its connections may take, so that it reports the others."""

START_PROGRAM = Hint(
    "Check that the program of the task runs and listens on that port, and that no firewall blocks it."
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of `doctor`.

    Attributes:
        name: what was checked, such as `watch pods`.
        result: `"ok"`; `"warning"`: it works, but may not for every use; `"failed"`; or `"skipped"`: it needs
            something that is missing.
        found: what was found, or why the check failed or was skipped. It contains no secret.
        remedy: what to change; None if nothing has to be changed, or for another check first.
    """

    name: str
    result: Result
    found: str
    remedy: Hint | None = None

    def __str__(self) -> str:
        """Return the check as one text, such as `watch pods: ok: allowed in namespace 'ml'`."""
        text = f"{self.name}: {self.result}: {self.found}"
        return text if self.remedy is None else f"{text}. {self.remedy.render()}"


class Checks(tuple["Check", ...]):
    """The results of `doctor`, in their order."""

    __slots__ = ()

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {one}" for one, number in Counter(one.result for one in self).items())
        first = next((f": {check}" for check in self if check.result == "failed"), "")
        return short_line(f"<Checks: {counts}{first}>")

    def _repr_html_(self) -> str:
        rows = [
            (one.name, one.result, one.found, one.remedy.render() if one.remedy else None) for one in self
        ]
        return html_table("doctor", ("check", "result", "found", "remedy"), rows)


class Finding(NamedTuple):
    """The result of a check without its name; see `Check`."""

    found: str
    result: Result = "ok"
    remedy: Hint | None = None

    def as_check(self, name: str) -> Check:
        """Return it with the name of the check."""
        return Check(name, self.result, self.found, self.remedy)


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """A check to run.

    Attributes:
        name: the subject of the check.
        run: returns what was found. An error means that what other checks need is missing. It has no deadline
            but that of the caller, and updates the `Progress`, which is quoted if the deadline passes.
        after: the names of the checks that it needs. It is skipped if one of them raised an error or was
            skipped, but not if one returned a finding, even if that is `failed`.
    """

    name: str
    run: Callable[[Progress], Awaitable[Finding]]
    after: tuple[str, ...] = ()

    def numbered(self, number: int) -> PlannedCheck:
        """Return it with the number of one of several resolvers before the names."""
        return PlannedCheck(
            f"{number}: {self.name}", self.run, tuple(f"{number}: {name}" for name in self.after)
        )


async def run_checks(
    plan: Sequence[PlannedCheck], *, timeout: float, check_timeout: float, progress: Progress
) -> list[Check]:
    """Return the results of all checks, in the order of the plan. Errors are results too.

    Args:
        plan: the checks; each comes after those that it needs.
        timeout: the deadline of all checks, in seconds.
        check_timeout: the deadline of each check, in seconds, from when those that it needs are done.
        progress: is updated with each check.
    """
    late = f"the deadline of all checks ({timeout:g} s) passed", Hint("Raise {timeout}.")
    findings = {check.name: Finding(late[0], "skipped", late[1]) for check in plan}
    done = {check.name: anyio.Event() for check in plan}
    causes: dict[str, str] = {}  # the name of each check without a result to the check that failed

    async def run(check: PlannedCheck) -> None:
        progress.waiting(check.name, "not checked yet")
        for name in check.after:
            await done[name].wait()
        cause = next((causes[name] for name in check.after if name in causes), None)
        if cause is not None:
            causes[check.name] = cause
            finding = Finding(f"not checked, because {cause!r} failed", "skipped")
        else:
            findings[check.name] = Finding(late[0], "failed", late[1])
            progress.waiting(check.name, "in progress")
            with reject_stray_cancellation():
                finding, has_result = await _run_check(check, check_timeout)
            if not has_result:
                causes[check.name] = check.name
        findings[check.name] = finding
        progress.done(check.name, finding.result)
        done[check.name].set()

    with anyio.move_on_after(timeout):
        async with anyio.create_task_group() as group:
            for check in plan:
                group.start_soon(run, check)
    return [finding.as_check(name) for name, finding in findings.items()]


async def _run_check(check: PlannedCheck, timeout: float) -> tuple[Finding, bool]:
    """Return the finding of a check, and whether it is its result, and not why it has none."""
    progress = Progress()
    try:
        with anyio.move_on_after(timeout):
            return await check.run(progress), True
    except ResolveError as error:
        return failed(error), False
    except Exception as error:  # the resolver or client of a user may raise anything
        remedy = Hint("Call `cluster_state()` of the resolver to see the traceback.")
        return Finding(f"it raised {type(error).__name__}", "failed", remedy), False
    waiting = "".join(f"; {scope}: {what}" for scope, what in progress.missing.items())
    last_hint = None if progress.last_error is None else progress.last_error.hint
    remedy = last_hint or Hint("Check the server and the network, or raise {check_timeout}.")
    return Finding(f"no result within {timeout:g} s{waiting}", "failed", remedy), False


def failed(error: ResolveError) -> Finding:
    """Return the finding of a check that ended with this error."""
    return Finding(error.summary, "failed", error.hint)


def time_left() -> float:
    """Return the seconds that the running check still has, of which it should use `SHARE` at most."""
    return max(anyio.current_effective_deadline() - anyio.current_time(), MIN_TIMEOUT)


# The checks of the tasks, whatever the source of the cluster


@dataclass
class FoundTasks:
    """What the checks of the tasks have found so far.

    Attributes:
        state: the cluster; set it before they run.
        may_refuse: whether a task is fine although nothing listens at its port, as on a TPU without a server.
    """

    state: ClusterState = field(default_factory=lambda: ClusterState.of({}))
    may_refuse: bool = False

    @property
    def counts(self) -> str:
        """The number of tasks of each job as text, such as `worker: 16, ps: 2`."""
        spec = self.state.spec
        return ", ".join(f"{job}: {spec.num_tasks(job)}" for job in spec.jobs) or "no tasks"

    async def check_addresses(self, remedy: Hint) -> Finding:
        """Connect to each task; `remedy` is for tasks that accept no connection."""
        members = self.state.members[:MAX_CONNECTIONS]
        if not members:
            return Finding("there is no task to connect to", "skipped")
        addresses = list(dict.fromkeys(member.endpoint.address for member in members))
        unreachable = await find_unreachable(addresses, "tcp", timeout=SHARE * time_left())
        total, more = len(members), len(self.state.members) - len(members)
        untried = f"; {more} more were not tried" if more else ""
        lost = [member for member in members if member.endpoint.address in unreachable]
        if not lost:
            return Finding(f"{total} of {total} tasks accept a TCP connection{untried}")
        shown = [f"{_name(member)}: {unreachable[member.endpoint.address]}" for member in lost[:MAX_NAMED]]
        if len(lost) > MAX_NAMED:
            shown.append(f"and {len(lost) - MAX_NAMED} more")
        found = f"{len(lost)} of {total} tasks accept no TCP connection: {'; '.join(shown)}{untried}"
        refusal = os.strerror(errno.ECONNREFUSED)
        if self.may_refuse and all(reason.endswith(refusal) for reason in unreachable.values()):
            return Finding(found, "warning", remedy)
        return Finding(found, "failed", remedy)

    async def check_this_task(self, this_task: Callable[[ClusterState], Awaitable[Task]]) -> Finding:
        """Find the task of this process."""
        if not self.state.members:
            return Finding("the cluster has no tasks", "skipped")
        try:
            task = await this_task(self.state)
        except TaskIdentityError as error:
            if error.candidates or os.environ.get("POD_UID") or os.environ.get("POD_NAME"):
                return Finding(error.summary, "warning", error.hint)
            return Finding("this process is not known to be one of the tasks")
        return Finding(f"/job:{task.job}/task:{task.index}, rank {task.rank} of {task.num_tasks}")


def cluster_checks(
    observe: Callable[[Want, Progress], Awaitable[Observation]],
    explain: Callable[[Observation], Awaitable[Observation]],
    this_task: Callable[[ClusterState], Awaitable[Task]],
    *,
    after: tuple[str, ...] = (),
    remedy: Hint = START_PROGRAM,
) -> list[PlannedCheck]:
    """Return the checks of the cluster of a resolver, whatever its source.

    `tasks` has what `wait` would wait for, and the error that `cluster_state` raises.

    Args:
        observe: returns what the source says, as `ClusterResolver.observe`.
        explain: adds to an observation what exists in place of what was not found.
        this_task: see `task_checks`, as for the other arguments.
    """
    tasks, condition = FoundTasks(), WaitCondition()

    async def resolve(progress: Progress) -> Finding:
        found = Completeness(await explain(await observe(condition.want, progress)), condition)
        tasks.state = found.observation.state or tasks.state
        try:
            await observe(MEMBERS, progress)  # which raises what `cluster_state` raises
        except ResolveError as error:
            is_named = any(one.name in error.summary for one in found.missing)
            return Finding(f"{found}" if is_named else f"{found}; {error.summary}", "failed", error.hint)
        if found.is_complete:
            return Finding(f"{found}")
        if not tasks.state.members:
            hint = Hint("Correct what selects the tasks, or wait for them: `aioresolve wait`.")
            return Finding(f"{found}", "failed", hint)
        return Finding(f"{found}", "warning", Hint("Wait until all are ready: `aioresolve wait`."))

    plan = [PlannedCheck("tasks", resolve, after)]
    return [*plan, *task_checks(tasks, this_task, after=("tasks",), remedy=remedy)]


def task_checks(
    tasks: FoundTasks,
    this_task: Callable[[ClusterState], Awaitable[Task]],
    *,
    after: tuple[str, ...],
    remedy: Hint,
) -> list[PlannedCheck]:
    """Return the checks of the tasks: their addresses, and which one this process is.

    Args:
        tasks: the cluster, which the checks in `after` set.
        this_task: returns which task this process is.
        after: the names of the checks that find the cluster.
        remedy: what to do about tasks that accept no connection.
    """
    return [
        PlannedCheck("addresses", lambda _: tasks.check_addresses(remedy), after),
        PlannedCheck("this task", lambda _: tasks.check_this_task(this_task), after),
    ]


def _name(member: Member) -> str:
    return member.endpoint.full_name or f"/job:{member.job}/task:{member.task_index}"
