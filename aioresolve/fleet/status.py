"""`Target`: a resolver in a fleet, and what its requests have found: its latest `TargetStatus`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from aioresolve._core.validation import validate_count
from aioresolve.errors import ConfigurationError
from aioresolve.resolver.completeness import Completeness, WaitCondition
from aioresolve.spec import Observation
from aioresolve.spec.display import html_table, short_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aioresolve.errors import ResolveError
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState, Missing
    from aioresolve.spec.observation import Want

T = TypeVar("T")

MAX_CAUSES = 8
"""Errors, each the cause of the previous one, that a status keeps."""

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
        "tasks": {job: number}, "jobs", "done", "version", "observed_at", "absent": [{"job", "name",
        "reason"}], "unready": [{"job", "name", "reason"}], "latency", "stale_since", "error": {"type",
        "message", "retryable"}}`: `jobs`, `done`, `version` and `observed_at` are those of
        `ClusterState.as_dict`, latency is in seconds. Unknown values, `error` after a success, and `reason`
        of a target that is ready, are null.

        Args:
            spell: how the message of the error spells arguments; by default as in Python.
        """
        error, state = self.error, self.state
        nothing: dict[str, Any] = {"jobs": {}, "done": [], "version": None, "observed_at": None}
        return self.overview() | {
            **(nothing if state is None else state.as_dict()),
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
    """Return the statuses by health, the worst first; statuses of the same health keep their order."""
    return sorted(statuses, key=lambda status: status.health.severity)


def statuses_html(caption: str, statuses: Iterable[TargetStatus]) -> str:
    """Return a table of the statuses, the worst first, as HTML for notebooks."""
    rows = [
        (status.name, status.summary, status.reason, f"{status.since:%Y-%m-%d %H:%M:%S}")
        for status in worst_first(statuses)
    ]
    return html_table(caption, ("target", "status", "reason", "since (UTC)"), rows)


def _condition_of(expected: Any) -> WaitCondition:
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


def _content(status: TargetStatus) -> tuple[object, ...]:
    identity = type(status.error), str(status.error)
    return status.health, status.reason, status.state, identity, status.absent, status.unready, status.wanted


def _missing_documents(missing: Iterable[Missing]) -> list[dict[str, str]]:
    return [{"job": one.job, "name": one.name, "reason": one.reason} for one in missing]


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


class Target:
    """A name, a resolver, and the latest status, which is passed to `publish` until the target is removed.

    Attributes:
        failing_since: since when its state is stale, or its requests fail, in UTC; None if it responds.
        status: the latest status, if there is one.
        num_requests: the number of its requests so far; a watch counts as one.
        num_errors: how many failures there were, by the class of the error; an outage of a watch is one.
    """

    def __init__(
        self,
        name: str,
        resolver: ClusterResolver,
        expected: Expected,
        publish: Callable[[TargetStatus], None],
    ) -> None:
        self.name = name
        self.resolver = resolver
        self.expected = expected
        self.failing_since: datetime | None = None
        self.is_removed = False
        self.status: TargetStatus | None = None
        self.num_requests = 0
        self.num_errors: Counter[str] = Counter()
        self._condition = _condition_of(expected)
        self._publish = publish
        self._last_good = Observation(None)
        self._completeness = Completeness(self._last_good, self._condition)
        self._empty: list[str] = []  # the jobs without tasks, for which `_unmatched` was requested
        self._unmatched: tuple[Missing, ...] = ()
        self._confirmed_at: datetime | None = None
        self._latency: float | None = None
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def want(self) -> Want:
        """What its observations have to say: the controllers of jobs, unless the expected number is known."""
        return self._condition.want

    async def explained(self, observation: Observation) -> Observation:
        """Return the observation with what exists in place of jobs for which nothing was found."""
        if observation.state is None or observation.error is not None:
            return observation
        empty = [job for job, tasks in observation.state.endpoints.items() if not tasks]
        if empty != self._empty:  # otherwise it was requested already
            self._empty, self._unmatched = empty, ()
            if empty:
                self._unmatched = (await self.resolver._explain(observation)).unmatched
        return replace(observation, unmatched=self._unmatched)

    def update(
        self, observation: Observation, latency: float | None, *, is_watched: bool = False
    ) -> TargetStatus:
        """Store and return the status after an observation.

        Args:
            observation: what the source says.
            latency: seconds until the response; None for a change that a watch reported.
            is_watched: whether a watch will report the next change, so that the observation remains current.
        """
        if observation.state is not None:
            self._last_good = replace(observation, error=None, stale_since=None)
            self._completeness = Completeness(self._last_good, self._condition)
        if observation.error is not None:
            return self.fail(observation.error, latency, observation.stale_since)
        self._confirmed_at = None if is_watched else datetime.now(UTC)
        self.failing_since = None
        return self._store(None, latency)

    def fail(self, error: ResolveError, latency: float | None, since: datetime | None = None) -> TargetStatus:
        """Store and return the status after a failure; until `since`, a watch reported all changes."""
        self.failing_since = self.failing_since or since or self._confirmed_at or datetime.now(UTC)
        # A watch that fails may report other changes meanwhile, each with the same error.
        if since is None or self.status is None or self.status.error is not error:
            self.num_errors[type(error).__name__] += 1
        return self._store(strip_error(error), latency)

    async def run_unless_removed(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of `work`; None if the target is removed during it, which cancels it."""
        if self.is_removed:  # before its task started
            return None
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await work()
            finally:
                self._scopes.discard(scope)
        return None

    def remove(self) -> None:
        """Cancel its requests; no further status of it is published."""
        self.is_removed = True
        for scope in tuple(self._scopes):
            scope.cancel()

    def _store(self, error: ResolveError | None, latency: float | None) -> TargetStatus:
        self._latency = self._latency if latency is None else latency
        # While there is an error, the members and the numbers are those of the last response.
        last, found = self._last_good, self._completeness
        if error is not None:
            health, reason = Health.ERROR if last.state is None else Health.STALE, error.summary
        elif found.is_complete:
            health, reason = Health.READY, ""
        else:
            has_tasks = any(found.found.values()) or last.absent or last.unready
            health = Health.DEGRADED if has_tasks else Health.EMPTY
            reason = _first_fault(found) or (
                found.counts(only_short=True) if has_tasks else "nothing was found"
            )
        self.status = TargetStatus(
            name=self.name,
            health=health,
            reason=reason,
            since=self._since(health),
            state=last.state,
            error=error,
            latency=self._latency,
            confirmed_at=self._confirmed_at,
            stale_since=None if last.state is None else self.failing_since,
            absent=last.absent,
            unready=last.unready,
            found={} if last.state is None else found.found,
            wanted=found.least,
        )
        if not self.is_removed:
            self._publish(self.status)
        return self.status

    def _since(self, health: Health) -> datetime:
        """Return since when the target has this health."""
        if self.status is not None and self.status.health is health:
            return self.status.since
        return datetime.now(UTC)


def _first_fault(found: Completeness) -> str:
    """Return why the first task is missing; empty if no missing task is known."""
    # An unmatched name says more than one that is absent.
    faults = list({one.name: one for one in (*found.observation.absent, *found.missing)}.values())
    if not (faults := faults or list(found.observation.failed)):
        return ""
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{faults[0]}{more}"


def strip_error(error: ResolveError) -> ResolveError:
    """Remove the tracebacks of `error` and its causes, and the causes beyond `MAX_CAUSES`; return `error`.

    Tracebacks keep the variables of their frames alive, such as the bodies of responses; and an error that a
    resolver raises repeatedly gets a longer traceback each time.
    """
    link: BaseException | None = error
    for depth in range(MAX_CAUSES):
        if link is None:
            break
        link.__traceback__ = None
        link.__context__ = None
        if depth == MAX_CAUSES - 1:
            link.__cause__ = None
        link = link.__cause__
    return error
