"""`Endpoint`, `ClusterState` and `ClusterDiff`: who is in a cluster, at one moment and between two.

`Observation` and `Missing`: what a source shows at one moment, the members and who is missing.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from aioresolve.errors import ConfigurationError, InvalidClusterError

from .cluster import ClusterSpec, by_task_index

if TYPE_CHECKING:
    from aioresolve.errors import ResolveError

__all__ = ["ClusterDiff", "ClusterState", "Endpoint", "Member", "Missing", "Move", "Observation", "host_port"]


def host_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets (RFC 3986, section 3.2.2): `[fd00::7]:8470`.

    Raises:
        ConfigurationError: the host is empty or holds a port already, or the port is not in 0 to 65535.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port {port!r} of host {host!r} is not in 0 to 65535")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or bare.count(":") == 1 or not {"[", "]"}.isdisjoint(bare):
        raise ConfigurationError(f"{host!r} is not a host alone: give its name or IP address without a port")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One task's address, with the identity its source knows; None where it does not.

    Attributes:
        address: `host:port`, an IPv6 address in brackets.
        name: what the source calls it: the pod, the TPU worker, the instance.
        uid: the source's own identity of this very incarnation, such as a pod's uid.
        namespace: the Kubernetes namespace of `name`.
        node: the machine it runs on.
        ready: whether the source deems it ready to serve.
        index: the index that the source itself gave it, such as a pod's completion index; its place in a
            `ClusterState` is its task index.

    `node` and `ready` may change while the member stays the same: they take no part in comparison.
    """

    address: str
    _: KW_ONLY
    name: str | None = None
    uid: str | None = None
    namespace: str | None = None
    node: str | None = field(default=None, compare=False)
    ready: bool | None = field(default=None, compare=False)
    index: int | None = None

    @property
    def full_name(self) -> str | None:
        """`namespace/name`, or the bare name where there is no namespace; None where there is no name."""
        return f"{self.namespace}/{self.name}" if self.namespace and self.name else self.name

    @property
    def identity(self) -> tuple[str, str]:
        """What stays while a task moves: `("uid", ...)`, else `("name", ...)`, else `("address", ...)`."""
        if self.uid:
            return "uid", self.uid
        if self.full_name:
            return "name", self.full_name
        return "address", self.address


@dataclass(frozen=True, slots=True)
class Member:
    """One task of a cluster at one moment: its job, its task index and its endpoint."""

    job: str
    task_index: int
    endpoint: Endpoint

    def __str__(self) -> str:
        name = f" ({self.endpoint.full_name})" if self.endpoint.full_name else ""
        return f"/job:{self.job}/task:{self.task_index} at {self.endpoint.address}{name}"


@dataclass(frozen=True, slots=True)
class Move:
    """One task, before and after: of the same job and identity, with another address, task index or name."""

    old: Member
    new: Member

    def __str__(self) -> str:
        return f"{self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class ClusterDiff:
    """What changed from an older state to a newer one; falsy where nothing did.

    Each part is in the order of jobs and task indices. A task that is gone from one job and found in
    another has left the one and joined the other.
    """

    joined: tuple[Member, ...] = ()
    left: tuple[Member, ...] = ()
    moved: tuple[Move, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.moved)

    def __str__(self) -> str:
        """One line for a log, such as `joined /job:worker/task:2 at 10.0.0.3:8470 (default/trainer-2)`."""
        changes = {"joined": self.joined, "left": self.left, "moved": self.moved}
        return "; ".join(f"{verb} {task}" for verb, tasks in changes.items() for task in tasks) or "no change"


class _ReadOnlyByJob(Mapping[str, tuple[Endpoint, ...]]):
    """What `types.MappingProxyType` is, and can be pickled."""

    __slots__ = ("_by_job",)

    def __init__(self, by_job: dict[str, tuple[Endpoint, ...]]) -> None:
        self._by_job = by_job

    def __getitem__(self, job: str) -> tuple[Endpoint, ...]:
        return self._by_job[job]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_job)

    def __len__(self) -> int:
        return len(self._by_job)

    def __repr__(self) -> str:
        return repr(self._by_job)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """The members of a cluster, as its source told them at one moment.

    Two states are equal if they have the same members: endpoints by job and task index. When and in which
    version that was seen, readiness, nodes, the order of jobs and jobs without tasks make no difference.

    Attributes:
        endpoints: by job, in the order of `spec.jobs`; the n-th endpoint of a job is that of the n-th of
            `spec.task_indices(job)`. Read-only.
        spec: the addresses alone.
        version: the source's own version of the answer (a resourceVersion, an etag), if it has one.
        observed_at: when the answer arrived, in UTC, if that was noted.

    Raises:
        InvalidClusterError: `endpoints` and `spec` contradict each other.
        ConfigurationError: `observed_at` has no time zone.
    """

    endpoints: Mapping[str, tuple[Endpoint, ...]]
    spec: ClusterSpec
    version: str | None = None
    observed_at: datetime | None = None

    def __post_init__(self) -> None:
        _check_agreement(self.endpoints, self.spec)
        by_job = {job: tuple(self.endpoints[job]) for job in self.spec.jobs}
        object.__setattr__(self, "endpoints", _ReadOnlyByJob(by_job))
        if self.observed_at is None:
            return
        if self.observed_at.utcoffset() is None:
            raise ConfigurationError(
                f"observed_at={self.observed_at} has no time zone; give one such as datetime.now(UTC)"
            )
        object.__setattr__(self, "observed_at", self.observed_at.astimezone(UTC))

    @classmethod
    def of(
        cls,
        endpoints: Mapping[str, list[Endpoint] | tuple[Endpoint, ...] | Mapping[int, Endpoint]],
        *,
        version: str | None = None,
        observed_at: datetime | None = None,
    ) -> Self:
        """Return the state of these endpoints.

        Args:
            endpoints: by job, as a list in task order or as a sparse `{task index: endpoint}`.
            version: the source's own version of the answer.
            observed_at: when the answer arrived, with a time zone.

        Raises:
            InvalidClusterError: a part is malformed, or a key contradicts the endpoint's own `index`.
        """
        if not isinstance(endpoints, Mapping):
            raise InvalidClusterError(
                f"endpoints are given by job in a mapping; got {reprlib.repr(endpoints)}"
            )
        by_job = {job: by_task_index(tasks, f"job {job!r}") for job, tasks in endpoints.items()}
        for job, tasks in by_job.items():
            for index, endpoint in tasks.items():
                _check_endpoint(endpoint, job, index)
                if isinstance(endpoints[job], Mapping) and endpoint.index not in (None, index):
                    raise InvalidClusterError(
                        f"job {job!r}: {endpoint} is given as task {index}, but says it is {endpoint.index}"
                    )
        spec = ClusterSpec({job: {i: e.address for i, e in tasks.items()} for job, tasks in by_job.items()})
        ordered = {job: tuple(tasks.values()) for job, tasks in by_job.items()}
        return cls(ordered, spec, version, observed_at)

    @classmethod
    def from_spec(
        cls, spec: ClusterSpec, *, version: str | None = None, observed_at: datetime | None = None
    ) -> Self:
        """Return the state of which nothing but the addresses is known."""
        _check_spec(spec)
        endpoints = {
            job: tuple(Endpoint(spec.task_address(job, index)) for index in spec.task_indices(job))
            for job in spec.jobs
        }
        return cls(endpoints, spec, version, observed_at)

    @classmethod
    def _trusted(
        cls,
        endpoints: dict[str, tuple[Endpoint, ...]],
        spec: ClusterSpec,
        version: str | None,
        observed_at: datetime | None,
    ) -> Self:
        """Return the state of these parts as they are, unchecked, for who made them agree.

        Args:
            endpoints: by job, in the order of `spec.jobs`; not to be changed any more.
            spec: the addresses of `endpoints`.
            version: the source's own version of the answer.
            observed_at: when the answer arrived, in UTC.
        """
        state = object.__new__(cls)
        object.__setattr__(state, "endpoints", _ReadOnlyByJob(endpoints))
        object.__setattr__(state, "spec", spec)
        object.__setattr__(state, "version", version)
        object.__setattr__(state, "observed_at", observed_at)
        return state

    @property
    def members(self) -> tuple[Member, ...]:
        """Every task of every job, in the order of jobs and task indices."""
        return tuple(
            Member(job, index, endpoint)
            for job, endpoints in self.endpoints.items()
            for index, endpoint in zip(self.spec.task_indices(job), endpoints, strict=True)
        )

    def diff(self, older: ClusterState) -> ClusterDiff:
        """Return what changed from `older` to this state; falsy if and only if the two are equal.

        A task is told by its endpoint's `identity` within its job.
        """
        new, old = self.members, older.members
        same = set(new) & set(old)
        candidates: dict[tuple[str, tuple[str, str]], list[Member]] = {}
        for member in reversed(old):
            if member not in same:
                candidates.setdefault((member.job, member.endpoint.identity), []).append(member)
        joined: list[Member] = []
        moved: list[Move] = []
        for member in new:
            if member in same:
                continue
            if before := candidates.get((member.job, member.endpoint.identity)):
                moved.append(Move(before.pop(), member))
            else:
                joined.append(member)
        gone = {member for members in candidates.values() for member in members}
        return ClusterDiff(tuple(joined), tuple(member for member in old if member in gone), tuple(moved))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterState):
            return NotImplemented
        jobs, its = self._staffed(), other._staffed()
        # Endpoints first: where two states of a watch differ, it is nearly always in these.
        return jobs == its and all(
            self.spec.task_indices(job) == other.spec.task_indices(job) for job in jobs
        )

    def __hash__(self) -> int:
        return hash(frozenset(self._staffed().items()))

    def _staffed(self) -> dict[str, tuple[Endpoint, ...]]:
        """Return the endpoints of the jobs that have any."""
        return {job: endpoints for job, endpoints in self.endpoints.items() if endpoints}


def _check_agreement(endpoints: Mapping[str, Sequence[Endpoint]], spec: ClusterSpec) -> None:
    _check_spec(spec)
    if set(endpoints) != set(spec.jobs):
        raise InvalidClusterError(f"endpoints of jobs {list(endpoints)}, but a spec of jobs {spec.jobs}")
    for job, known in endpoints.items():
        indices = spec.task_indices(job)
        if len(known) != len(indices):
            raise InvalidClusterError(f"job {job!r}: {len(known)} endpoints for {len(indices)} tasks")
        for index, endpoint in zip(indices, known, strict=True):
            _check_endpoint(endpoint, job, index)
            address = spec.task_address(job, index)
            if endpoint.address != address:
                raise InvalidClusterError(
                    f"job {job!r}, task {index}: {endpoint} is not at the spec's {address!r}"
                )


def _check_spec(spec: object) -> None:
    if not isinstance(spec, ClusterSpec):
        raise InvalidClusterError(
            f"the spec of a ClusterState must be a ClusterSpec; got {reprlib.repr(spec)}"
        )


def _check_endpoint(endpoint: object, job: str, index: int) -> None:
    if not isinstance(endpoint, Endpoint):
        raise InvalidClusterError(
            f"job {job!r}, task {index}: expected an Endpoint, got {type(endpoint).__name__}"
        )


@dataclass(frozen=True, slots=True)
class Missing:
    """Who is wanted in a job and cannot be used, and why.

    Attributes:
        job: the job.
        name: what the source calls it: `namespace/name` of a pod, the name of a TPU.
        reason: why, in words, such as `Pending (Unschedulable: 0/5 nodes are available)`.
        is_final: whether it can never be used any more, by itself.
        tasks: how many tasks of the job it stands for; None where the source does not know yet.
    """

    job: str
    name: str
    reason: str
    _: KW_ONLY
    is_final: bool = False
    tasks: int | None = 1


@dataclass(frozen=True, slots=True)
class Observation:
    """What a source shows at one moment.

    Attributes:
        state: the members; None before the source has answered at all.
        absent: who was found and is no member: pods that are pending, TPUs in creation.
        unready: the members that are not ready, and why.
        error: why the source cannot be asked at present; all else is then what it said last.
        stale_since: the moment in UTC since which that is so; None while the source answers.
    """

    state: ClusterState | None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()
    error: ResolveError | None = None
    stale_since: datetime | None = None

    def stale(self, error: ResolveError, now: datetime) -> Observation:
        """Return the same, once the source could not be asked because of `error`."""
        return replace(self, error=error, stale_since=self.stale_since or now)
