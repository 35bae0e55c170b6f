"""`Want`: what a call needs to know of a source. `Observation`: what the source says about the cluster."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from .display import html_table, short_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from aioresolve.errors import ResolveError

    from .state import ClusterState


@dataclass(frozen=True, slots=True)
class Missing:
    """A pod or TPU that should be part of a job but cannot be used, and why.

    Attributes:
        job: the job.
        name: `namespace/name` of a pod, or the name of a TPU.
        reason: why it cannot be used, such as `Pending (Unschedulable: 0/5 nodes are available)`.
        is_final: whether it will never become usable.
        tasks: the number of tasks of the job that it stands for; None if the source does not know it yet.
        has_succeeded: whether it has ended with success.
    """

    job: str
    name: str
    reason: str
    _: KW_ONLY
    is_final: bool = False
    tasks: int | None = 1
    has_succeeded: bool = False

    def __str__(self) -> str:
        """Return the name and the reason, without the name if the reason has it."""
        return self.reason if self.name in self.reason else f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ExpectedTasks:
    """How many tasks a job has, and what that was derived from.

    >>> ExpectedTasks(4, "spec.parallelism of Job ml/train", done=1)
    ExpectedTasks(number=4, source='spec.parallelism of Job ml/train', done=1)

    Attributes:
        number: the number of tasks, including those that are done.
        source: what states the number, such as `spec.replicas of StatefulSet ml/trainer`.
        done: how many of them have ended with success, as far as the source knows: also those whose pods no
            longer exist, and thus are not in `ClusterState.done`.
    """

    number: int
    source: str
    done: int = 0


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """What the controller of a job says about the job as a whole.

    >>> print(ControllerStatus("failed", "Job ml/train", "BackoffLimitExceeded"))
    failed (BackoffLimitExceeded)

    Attributes:
        phase: `"failed"`, `"complete"` (it has ended with success) or `"suspended"` (it has no pods until it
            is resumed).
        controller: the controller, such as `Job ml/train`.
        reason: why, such as `BackoffLimitExceeded: Job has reached the specified backoff limit`, or empty.
    """

    phase: Literal["failed", "complete", "suspended"]
    controller: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.phase} ({self.reason})" if self.reason else self.phase


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a cluster at one time, and its missing members.

    >>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
    >>> async for observation in resolver.observations():
    ...     break
    >>> observation
    <Observation: <ClusterState of 2 tasks: worker 2>>

    Attributes:
        state: the members; None before the first complete response of the source.
        absent: what was found but is not a member, such as pending pods and TPUs that are being created.
        unready: the members that are not ready, and why.
        error: why the source cannot be reached at present; everything else is then from its last response.
        stale_since: since when, in UTC; None while the source responds.
        expected: how many tasks each job has, for the jobs of which the source knows it.
        controllers: by job, what its controllers say, if all of them have ended or are suspended.
        failed: the pods that have failed and have a controller, which replaces them until it gives up.
        unmatched: names and selectors that nothing was found for, with what exists in their place, if that
            was requested (by `wait`, fleets and commands). Comparisons ignore it.
        polled_at: when the poll that returned it began, on the clock of the event loop; None if the source
            reports its changes. Comparisons ignore it.
    """

    state: ClusterState | None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()
    error: ResolveError | None = None
    stale_since: datetime | None = None
    expected: Mapping[str, ExpectedTasks] = field(default_factory=dict, hash=False)
    controllers: Mapping[str, Sequence[ControllerStatus]] = field(default_factory=dict, hash=False)
    failed: tuple[Missing, ...] = field(default=(), compare=False)
    unmatched: tuple[Missing, ...] = field(default=(), compare=False)
    polled_at: float | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        parts = [repr(self.state)]
        if self.error is not None:
            parts.append(f"error: {self.error.summary}")
        for what, tasks in (("absent", self.absent), ("not ready", self.unready)):
            if tasks:
                parts.append(f"{len(tasks)} {what}: {tasks[0].name}: {tasks[0].reason}")
        return short_line(f"<Observation: {'; '.join(parts)}>")

    def _repr_html_(self) -> str:
        rows = [(one.job, one.name, one.reason) for one in (*self.absent, *self.unready)]
        missing = html_table("missing or not ready", ("job", "name", "reason"), rows) if rows else ""
        error = html_table("error", ("reason",), [(self.error.summary,)]) if self.error is not None else ""
        return error + missing + (self.state._repr_html_() if self.state is not None else "")

    def stale(self, error: ResolveError, now: datetime) -> Observation:
        """Return this observation with `error`, because of which the source could not be reached at `now`."""
        return replace(self, error=error, stale_since=self.stale_since or now)


@dataclass(frozen=True, slots=True)
class Want:
    """What a call needs to know about a cluster. A source may leave out the rest if that is cheaper.

    >>> resolver = SimpleClusterResolver(ClusterSpec({"worker": ["10.0.0.1:8470"]}))
    >>> await resolver.observe(Want(sizes=True), Progress())
    <Observation: <ClusterState of 1 task: worker 1>>

    Attributes:
        complete: the call has no use for a part of the cluster: tasks that are missing or not ready are an
            error that the source raises, and not a part of the observation.
        identities: whether names, uids, nodes and devices of the members are needed besides their addresses.
        names: whether at least the names, nodes and statuses are.
        controllers: whether `Observation.controllers` is needed for jobs without members.
        sizes: whether `Observation.expected` is needed, even where only further requests show it.
    """

    complete: bool = False
    identities: bool = True
    names: bool = True
    controllers: bool = False
    sizes: bool = False


ADDRESSES = Want(complete=True, identities=False, names=False)
"""What `cluster_spec` needs."""

NAMES = Want(complete=True, identities=False)
"""What a table of members needs."""

MEMBERS = Want(complete=True)
"""What `cluster_state` needs."""
