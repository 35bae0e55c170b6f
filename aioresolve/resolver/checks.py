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

from .wait import MAX_CONNECTIONS, find_unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from aioresolve.probe.workers import LibtpuPorts
    from aioresolve.spec import Member, Observation, Task

Result: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

MAX_TASKS = MAX_CONNECTIONS
"""The number of tasks that are connected to and probed, all at once."""

MAX_NAMED = 3
"""The number of tasks, or of different states, that a check names."""

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
    running = _Run(timeout, check_timeout, progress, {check.name: anyio.Event() for check in plan})
    with anyio.move_on_after(timeout):
        async with anyio.create_task_group() as group:
            for check in plan:
                group.start_soon(running.run, check)
    return [running.finding(check.name).as_check(check.name) for check in plan]


@dataclass
class _Run:
    """One call of `run_checks`.

    `missing` is the name of each check without a finding of its own to the check whose failure caused that.
    """

    timeout: float
    check_timeout: float
    progress: Progress
    done: Mapping[str, anyio.Event]
    findings: dict[str, Finding] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)

    async def run(self, check: PlannedCheck) -> None:
        self.progress.waiting(check.name, "not checked yet")
        for name in check.after:
            await self.done[name].wait()
        cause = next((self.missing[name] for name in check.after if name in self.missing), None)
        if cause is not None:
            self.missing[check.name] = cause
            finding = Finding(f"not checked, because {cause!r} failed", "skipped")
        else:
            self.started.add(check.name)
            self.progress.waiting(check.name, "in progress")
            with reject_stray_cancellation():
                finding = await self._run_started(check)
        self.findings[check.name] = finding
        self.progress.done(check.name, finding.result)
        self.done[check.name].set()

    async def _run_started(self, check: PlannedCheck) -> Finding:
        progress = Progress()
        try:
            with anyio.move_on_after(self.check_timeout):
                return await check.run(progress)
            finding = self._late(progress)
        except ResolveError as error:
            finding = failed(error)
        except Exception as error:  # the resolver or client of a user may raise anything
            finding = Finding(
                f"it raised {type(error).__name__}",
                "failed",
                Hint("Call `cluster_state()` of the resolver to see the traceback."),
            )
        self.missing[check.name] = check.name
        return finding

    def _late(self, progress: Progress) -> Finding:
        waiting = "".join(f"; {scope}: {what}" for scope, what in progress.missing.items())
        found = f"no result within {self.check_timeout:g} s{waiting}"
        error = progress.last_error
        if error is not None and error.hint is not None:
            return Finding(found, "failed", error.hint)
        return Finding(found, "failed", Hint("Check the server and the network, or raise {check_timeout}."))

    def finding(self, name: str) -> Finding:
        """Return the finding of a check, also if the deadline of all checks passed before its end."""
        found = f"the deadline of all checks ({self.timeout:g} s) passed"
        result: Result = "failed" if name in self.started else "skipped"
        return self.findings.get(name) or Finding(found, result, Hint("Raise {timeout}."))


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
        libtpu_ports: the ports of libtpu as `probe_workers` takes them, if they are known.
        may_refuse: whether a task is fine although nothing listens at its port, as on a TPU without a server.
        unreachable: the addresses that accept no connection, to the reason.
    """

    state: ClusterState = field(default_factory=lambda: ClusterState.of({}))
    libtpu_ports: LibtpuPorts = ()
    may_refuse: bool = False
    unreachable: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> list[Member]:
        """The tasks to connect to: the first ones."""
        return list(self.state.members)[:MAX_TASKS]

    @property
    def counts(self) -> str:
        """The number of tasks of each job as text, such as `worker: 16, ps: 2`."""
        spec = self.state.spec
        return ", ".join(f"{job}: {spec.num_tasks(job)}" for job in spec.jobs) or "no tasks"


def cluster_checks(
    observe: Callable[[Progress], Awaitable[Observation]],
    this_task: Callable[[ClusterState], Awaitable[Task]],
    *,
    after: tuple[str, ...] = (),
    remedy: Hint = START_PROGRAM,
) -> list[PlannedCheck]:
    """Return the checks of a resolver of which nothing else is known; for the arguments see `task_checks`."""
    tasks = FoundTasks()

    async def resolve(progress: Progress) -> Finding:
        observation = await observe(progress)
        tasks.state = observation.state or tasks.state
        missing = [f"{one.name}: {one.reason}" for one in (*observation.absent, *observation.unready)]
        if not missing:
            return Finding(tasks.counts)
        result: Result = "failed" if observation.absent else "warning"
        found = f"{tasks.counts}; {len(missing)} missing or not ready: {some(missing)}"
        return Finding(found, result, Hint("Wait until they are ready: `aioresolve wait`."))

    plan = [PlannedCheck("tasks", resolve, after)]
    return [*plan, *task_checks(tasks, this_task, after=("tasks",), remedy=remedy)]


def number_checks(number: int, plan: Iterable[PlannedCheck]) -> list[PlannedCheck]:
    """Return the checks of one of several resolvers, with its number before their names."""
    return [
        PlannedCheck(f"{number}: {check.name}", check.run, tuple(f"{number}: {name}" for name in check.after))
        for check in plan
    ]


def task_checks(
    tasks: FoundTasks,
    this_task: Callable[[ClusterState], Awaitable[Task]],
    *,
    after: tuple[str, ...],
    remedy: Hint = START_PROGRAM,
) -> list[PlannedCheck]:
    """Return the checks of the tasks: their addresses, their devices, and which one this process is.

    Args:
        tasks: the cluster, which the checks in `after` set.
        this_task: returns which task this process is.
        after: the names of the checks that find the cluster.
        remedy: what to do about tasks that accept no connection.
    """

    async def check_addresses(_: Progress) -> Finding:
        return await _check_addresses(tasks, remedy)

    async def check_devices(_: Progress) -> Finding:
        return await _check_devices(tasks)

    async def check_this_task(_: Progress) -> Finding:
        return await _check_this_task(tasks, this_task)

    return [
        PlannedCheck("addresses", check_addresses, after),
        PlannedCheck("devices", check_devices, ("addresses",)),
        PlannedCheck("this task", check_this_task, after),
    ]


async def _check_addresses(tasks: FoundTasks, remedy: Hint) -> Finding:
    members = tasks.shown
    if not members:
        return Finding("there is no task to connect to", "skipped")
    addresses = list(dict.fromkeys(member.endpoint.address for member in members))
    tasks.unreachable = await find_unreachable(addresses, "tcp", timeout=SHARE * time_left())
    total, more = len(members), len(tasks.state.members) - len(members)
    untried = f"; {more} more were not tried" if more else ""
    lost = [member for member in members if member.endpoint.address in tasks.unreachable]
    if not lost:
        return Finding(f"{total} of {total} tasks accept a TCP connection{untried}")
    reasons = [f"{_name(member)}: {tasks.unreachable[member.endpoint.address]}" for member in lost]
    found = f"{len(lost)} of {total} tasks accept no TCP connection: {some(reasons)}{untried}"
    if tasks.may_refuse and all(map(_is_refusal, tasks.unreachable.values())):
        tasks.unreachable.clear()  # libtpu may listen on another port
        return Finding(found, "warning", remedy)
    return Finding(found, "failed", remedy)


async def _check_devices(tasks: FoundTasks) -> Finding:
    # Imported here because it loads grpc.
    from aioresolve.probe import LIBTPU_PORTS, probe_workers

    addresses = [member.endpoint.address for member in tasks.shown]
    addresses = [each for each in dict.fromkeys(addresses) if each not in tasks.unreachable]
    if not addresses:
        return Finding("no task accepts a connection", "skipped")
    left = time_left()
    probes = await probe_workers(
        addresses,
        timeout=SHARE * left,
        worker_timeout=SHARE * SHARE * left,
        libtpu_ports=tasks.libtpu_ports or LIBTPU_PORTS,
    )
    errors = [probe.error for probe in probes if probe.error is not None]
    if errors:
        return Finding(
            f"{len(errors)} of {len(probes)} tasks report no devices: {some(e.summary for e in errors)}",
            "warning",
            errors[0].hint
            or Hint(
                "Ignore this unless the tasks are TensorFlow servers, or TPU hosts on which libtpu runs."
            ),
        )
    counts = Counter(
        ", ".join(f"{number} {kind}" for kind, number in sorted(probe.accelerators.items())) or "only CPUs"
        for probe in probes
    )
    found = "; ".join(
        f"{number} of {len(probes)} tasks have {devices}" for devices, number in counts.most_common()
    )
    if len(counts) == 1:
        return Finding(found)
    return Finding(found, "warning", Hint("Give all tasks of a job the same devices."))


async def _check_this_task(
    tasks: FoundTasks, this_task: Callable[[ClusterState], Awaitable[Task]]
) -> Finding:
    if not tasks.state.members:
        return Finding("the cluster has no tasks", "skipped")
    try:
        task = await this_task(tasks.state)
    except TaskIdentityError as error:
        is_task = bool(error.candidates or os.environ.get("POD_UID") or os.environ.get("POD_NAME"))
        if is_task:
            return Finding(error.summary, "warning", error.hint)
        return Finding("this process is not known to be one of the tasks")
    return Finding(f"/job:{task.job}/task:{task.index}, rank {task.rank} of {task.num_tasks}")


def _is_refusal(reason: str) -> bool:
    """Whether the host responded that nothing listens at the port."""
    return reason.endswith(os.strerror(errno.ECONNREFUSED))


def _name(member: Member) -> str:
    return member.endpoint.full_name or f"/job:{member.job}/task:{member.task_index}"


def some(texts: Iterable[str]) -> str:
    """Return the first texts, and the number of the others."""
    shown = list(texts)
    more = len(shown) - MAX_NAMED
    return "; ".join(shown[:MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
