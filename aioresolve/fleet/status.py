"""`TargetStatus`: the latest known state of one target of a fleet, and its health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from aioresolve._core.validation import validate_count
from aioresolve.errors import ConfigurationError
from aioresolve.resolver.wait import WaitCondition, shortfall
from aioresolve.spec.display import html_table, short_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from aioresolve.errors import ResolveError
    from aioresolve.resolver.wait import Shortfall
    from aioresolve.spec import ClusterState, Missing, Observation

Expected = int | Mapping[str, int] | Literal["controller"]
"""The number of tasks of a target: of all jobs, of each job, or as many as their controllers want."""


class Health(StrEnum):
    """How well a target is, the worst first.

    >>> [str(health) for health in Health]
    ['error', 'stale', 'empty', 'degraded', 'ready']
    """

    ERROR = "error"  # the source does not respond, and never did
    STALE = "stale"  # the source does not respond, but did before
    EMPTY = "empty"  # the source responds, but nothing was found
    DEGRADED = "degraded"  # tasks are missing or not ready
    READY = "ready"

    @property
    def severity(self) -> int:
        """0 for the worst."""
        return list(Health).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """The latest known state of one target, and its health.

    >>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
    >>> (await Fleet({"trainers": resolver}).resolve())["trainers"]
    <TargetStatus 'trainers', Ready 2/2>

    Attributes:
        name: the name of the target.
        health: how well it is.
        reason: why it is not ready, as text: the error, or the first task that is missing or not ready.
        since: since when it has this health, in UTC.
        state: its latest known members, kept while there is an `error`; None before the first success.
        error: why the last request failed; None if it succeeded. It has no traceback.
        latency: seconds until the latest response or failure. A watch has one response, at its start.
        confirmed_at: when the source last confirmed `state`, in UTC; None while a watch reports all changes.
        stale_since: since when `state` may be outdated, in UTC, while there is an `error`: the time of the
            last success, or of the end of the watch. None if there is no `state`.
        absent: pods or TPUs that exist but are not members, such as pending pods, and why; as of `state`.
        unready: members that are not ready, and why; as of `state`.
        found: the number of usable tasks of each job: members that are ready, and tasks that have ended with
            success while others of their job run.
        wanted: the number of tasks that each job should have, where it is known; of the empty name, the total
            of all jobs.
    """

    name: str
    health: Health
    reason: str
    since: datetime
    state: ClusterState | None = None
    error: ResolveError | None = None
    latency: float | None = None
    confirmed_at: datetime | None = None
    stale_since: datetime | None = None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()
    found: Mapping[str, int] = field(default_factory=dict, hash=False)
    wanted: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return short_line(f"<TargetStatus {self.name!r}, {self.summary}{self.reason and f': {self.reason}'}>")

    def _repr_html_(self) -> str:
        members = "" if self.state is None else self.state._repr_html_()
        return statuses_html("TargetStatus", [self]) + members

    @property
    def is_stale(self) -> bool:
        """Whether there is a `state` that may be outdated."""
        return self.health is Health.STALE

    @property
    def num_tasks(self) -> int:
        """The number of tasks of all jobs in `state`; 0 without one."""
        return sum(self.tasks_by_job.values())

    @property
    def tasks_by_job(self) -> dict[str, int]:
        """The number of tasks of each job in `state`."""
        return {} if self.state is None else {job: len(tasks) for job, tasks in self.state.endpoints.items()}

    @property
    def num_found(self) -> int:
        """The number of usable tasks of all jobs."""
        return sum(self.found.values())

    @property
    def num_wanted(self) -> int:
        """The number of tasks that there should be: of a job without a known number, those that exist."""
        if "" in self.wanted:
            return self.wanted[""]
        existing = Counter(self.found)
        existing.update(one.job for one in self.unready)
        for one in self.absent:
            existing[one.job] += one.tasks or 1
        return (existing | Counter(self.wanted)).total()

    @property
    def summary(self) -> str:
        """The health and the numbers of usable and wanted tasks: `Ready 16/16`, `Degraded 3/5`, `Error`."""
        has_tasks = self.state is not None and self.num_wanted
        return self.health.capitalize() + (f" {self.num_found}/{self.num_wanted}" if has_tasks else "")

    def age(self, now: datetime) -> float | None:
        """Return for how many seconds `state` may be outdated; None without a state."""
        if self.state is None:
            return None
        known_at = self.stale_since or self.confirmed_at
        return 0.0 if known_at is None else max(0.0, (now - known_at).total_seconds())

    def differs_from(self, older: TargetStatus | None) -> bool:
        """Whether anything but the times differs from `older`."""
        return older is None or _content(self) != _content(older)

    def as_dict(self, spell: Callable[[str, str | None], str] | None = None) -> dict[str, Any]:
        """Return the status as one object for JSON.

        `{"name", "health", "reason", "since", "found": {job: number}, "wanted": {job: number}, "num_wanted",
        "tasks": {job: number}, "jobs", "version", "observed_at", "absent": [{"job", "name", "reason"}],
        "unready": [{"job", "name", "reason"}], "latency", "stale_since", "error": {"type", "message",
        "retryable"}}`: `jobs`, `version` and `observed_at` are those of `ClusterState.as_dict`, latency is in
        seconds. Unknown values, `error` after a success, and `reason` of a target that is ready, are null.

        Args:
            spell: how the message of the error spells arguments; by default as in Python.
        """
        error, state = self.error, self.state
        return self.overview() | {
            **({"jobs": {}, "version": None, "observed_at": None} if state is None else state.as_dict()),
            "absent": _missing_documents(self.absent),
            "unready": _missing_documents(self.unready),
            "error": error
            and {
                "type": type(error).__name__,
                "message": str(error) if spell is None else error.render(spell),
                "retryable": error.retryable,
            },
        }

    def overview(self) -> dict[str, Any]:
        """Return what `as_dict` does, without the members, the missing tasks and the error."""
        return {
            "name": self.name,
            "health": str(self.health),
            "reason": self.reason or None,
            "since": _instant(self.since),
            "found": dict(self.found),
            "wanted": dict(self.wanted),
            "num_wanted": self.num_wanted,
            "tasks": self.tasks_by_job,
            "latency": None if self.latency is None else round(self.latency, 6),
            "stale_since": _instant(self.stale_since),
        }


def worst_first(statuses: Iterable[TargetStatus]) -> list[TargetStatus]:
    """Return the statuses by health, the worst first; those of one health keep their order."""
    return sorted(statuses, key=lambda status: status.health.severity)


def statuses_html(caption: str, statuses: Iterable[TargetStatus]) -> str:
    """Return a table of the statuses, the worst first, as HTML for notebooks."""
    rows = [
        (status.name, status.summary, status.reason, f"{status.since:%Y-%m-%d %H:%M:%S}")
        for status in worst_first(statuses)
    ]
    return html_table(caption, ("target", "status", "reason", "since (UTC)"), rows)


def condition_of(expected: Any) -> WaitCondition:
    """Return when a target with this `expected` is ready.

    Raises:
        ConfigurationError: it is not an `Expected`.
    """
    if expected == "controller":
        return WaitCondition()
    if isinstance(expected, Mapping) and expected:
        numbers = {job: validate_count(f"expected[{job!r}]", number) for job, number in expected.items()}
        return WaitCondition(jobs={job: (number, number) for job, number in numbers.items()})
    if isinstance(expected, bool) or not isinstance(expected, int) or expected < 1:
        raise ConfigurationError(
            f"{expected!r} is not an expected number of tasks",
            argument="expected",
            hint="Pass a number such as 16, one for each job such as {'worker': 16}, or 'controller'.",
        )
    return WaitCondition((expected, expected))


def status_of(
    name: str,
    observation: Observation,
    condition: WaitCondition,
    *,
    since: Callable[[Health], datetime],
    latency: float | None = None,
    confirmed_at: datetime | None = None,
) -> TargetStatus:
    """Return the status of a target after an observation.

    Args:
        name: the name of the target.
        observation: its latest members, with the error if the last request failed.
        condition: when it is ready.
        since: returns since when the target has this health.
        latency: seconds until the response.
        confirmed_at: when the source last confirmed the members, if no watch reports changes of them.
    """
    error, state = observation.error, observation.state
    # While there is an error, the numbers are those of the last response.
    lacking = shortfall(replace(observation, error=None), condition)
    found = _found(observation, condition)
    if error is not None:
        health, reason = Health.ERROR if state is None else Health.STALE, error.summary
    elif lacking is None:
        health, reason = Health.READY, ""
    elif any(found.values()) or observation.absent or observation.unready:
        health, reason = Health.DEGRADED, _reason(observation, lacking) or _shortage(found, lacking)
    else:
        health, reason = Health.EMPTY, _reason(observation, lacking) or "nothing was found"
    return TargetStatus(
        name=name,
        health=health,
        reason=reason,
        since=since(health),
        state=state,
        error=error,
        latency=latency,
        confirmed_at=confirmed_at,
        stale_since=None if state is None else observation.stale_since,
        absent=observation.absent,
        unready=observation.unready,
        found=found,
        wanted=_wanted(observation, condition),
    )


def _found(observation: Observation, condition: WaitCondition) -> dict[str, int]:
    if observation.state is None:
        return {}
    unready = Counter(one.job for one in observation.unready)
    done = Counter(one.job for one in observation.state.done)
    done |= Counter({job: expected.done for job, expected in observation.expected.items()})
    tasks = observation.state.endpoints
    jobs = tasks if condition.jobs is None else condition.jobs
    return {job: max(0, len(tasks.get(job, ())) + done[job] - unready[job]) for job in jobs}


def _wanted(observation: Observation, condition: WaitCondition) -> dict[str, int]:
    if condition.count is not None:
        return {"": condition.count[0]}
    if condition.jobs is not None:
        return {job: number for job, (number, _) in condition.jobs.items()}
    return {job: expected.number for job, expected in observation.expected.items()}


def _reason(observation: Observation, lacking: Shortfall) -> str:
    """Return why the first task is missing; empty if none of those that are missing was found."""
    faults = list(dict.fromkeys((*observation.absent, *lacking.missing))) or list(observation.failed)
    if not faults:
        return ""
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{faults[0].name}: {faults[0].reason}{more}"


def _shortage(found: Mapping[str, int], lacking: Shortfall) -> str:
    """Return which job has too few tasks, and what says so."""
    for job, wanted in lacking.least.items():
        number = found.get(job, 0) if job else sum(found.values())
        if number < wanted:
            of = f"job {job!r}: " if job else ""
            source = f" ({lacking.sources[job]})" if job in lacking.sources else ""
            return f"{of}{number} of {wanted} tasks{source}"
    return ", ".join(f"job {job!r}: nothing was found" for job, number in found.items() if not number)


def _content(status: TargetStatus) -> tuple[object, ...]:
    error = status.error
    identity = None if error is None else (type(error), str(error))
    return status.health, status.reason, status.state, identity, status.absent, status.unready, status.wanted


def _missing_documents(missing: Iterable[Missing]) -> list[dict[str, str]]:
    return [{"job": one.job, "name": one.name, "reason": one.reason} for one in missing]


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
