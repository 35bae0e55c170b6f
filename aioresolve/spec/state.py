"""`ClusterState`: the members of a cluster at one time, each an `Endpoint`; `ClusterDiff`: their changes."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from aioresolve.errors import ConfigurationError, InvalidClusterError

from .cluster import ClusterSpec, Task, by_task_index, ranked_tasks
from .display import html_table, short_line, task_numbers

V = TypeVar("V")


class ReadOnlyMapping(Mapping[str, V]):
    """A read-only mapping that, unlike `types.MappingProxyType`, can be pickled."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, V]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))


_LABEL = r"[0-9A-Z_](?:[0-9A-Z_-]{0,61}[0-9A-Z_])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# Names of machines also contain underscores, and may end in the dot of the root.
_HOST = re.compile(
    rf"(?![0-9.]+\Z)(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?|{_OCTET}(?:\.{_OCTET}){{3}}|[0-9]+",
    re.ASCII | re.IGNORECASE,
)
_ZONE = re.compile(r"[\w.-]+", re.ASCII)


def host_port(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets (RFC 3986 section 3.2.2): `[fd00::7]:8470`.

    Raises:
        ConfigurationError: the host is not a host name or IP address, or the port not in 0 to 65535.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port {port!r} of host {host!r} is not in 0 to 65535")
    if _HOST.fullmatch(host):
        return f"{host}:{port}"
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_ipv6(bare):
        raise ConfigurationError(
            f"{host[:300]!r} is not a host name or IP address",
            hint="Leave out the port and other parts of a URL.",
        )
    return f"[{bare}]:{port}"


def _is_ipv6(text: str) -> bool:
    import socket

    address, separator, zone = text.partition("%")
    try:
        socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return False
    return not separator or _ZONE.fullmatch(zone) is not None


def split_host_port(address: str) -> tuple[str, int]:
    """Return the host (an IPv6 address without brackets) and the port of `host:port`.

    Raises:
        ValueError: the port is missing or not a number.
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and identity of one task. Attributes that the source does not report are None.

    >>> Endpoint("10.0.0.1:8470", name="train-0", namespace="ml").full_name
    'ml/train-0'

    `node`, `ready` and `status` can change during the lifetime of a member. They and `accelerators` are
    ignored by comparisons.

    Attributes:
        address: `host:port`, with an IPv6 address in brackets.
        name: the name of the pod, TPU worker or instance.
        namespace: the Kubernetes namespace of `name`.
        uid: a unique identifier of this incarnation of the task, such as the uid of the pod.
        node: the machine that the task runs on.
        ready: whether the task is ready to serve.
        status: as text, `Running` or why the task is not ready, such as `CrashLoopBackOff: 7 restarts`.
        index: the index that the source assigns, such as the completion index of a pod. The task index is
            the position in a `ClusterState`.
        restarts: how often the container of the program was restarted in place, as far as the source reports
            it. A task whose container was restarted is another incarnation, as if its pod had been replaced.
        accelerators: the accelerators that the task declares, by the name of the resource, such as
            `{"google.com/tpu": 4}`; None if it declares none. Read-only.
    """

    address: str
    _: KW_ONLY
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    node: str | None = field(default=None, compare=False)
    ready: bool | None = field(default=None, compare=False)
    status: str | None = field(default=None, compare=False)
    index: int | None = None
    restarts: int = 0
    accelerators: Mapping[str, int] | None = field(default=None, compare=False, repr=False)

    @property
    def full_name(self) -> str | None:
        """`namespace/name`, or `name` without a namespace; None without a name."""
        return f"{self.namespace}/{self.name}" if self.namespace and self.name else self.name

    @property
    def identity(self) -> tuple[str, str]:
        """Identifies this incarnation: `("uid", ...)`, else `("name", ...)`, else `("address", ...)`."""
        if self.uid:
            return "uid", f"{self.uid}, restart {self.restarts}" if self.restarts else self.uid
        if self.full_name:
            return "name", self.full_name
        return "address", self.address


@dataclass(frozen=True, slots=True)
class Member:
    """One task of a cluster at one time: its job, task index and endpoint.

    >>> print(ClusterState.of({"worker": [Endpoint("10.0.0.1:8470", name="train-0")]}).members[0])
    /job:worker/task:0 at 10.0.0.1:8470 (train-0)
    """

    job: str
    task_index: int
    endpoint: Endpoint

    def __str__(self) -> str:
        name = f" ({self.endpoint.full_name})" if self.endpoint.full_name else ""
        return f"/job:{self.job}/task:{self.task_index} at {self.endpoint.address}{name}"

    def as_dict(self) -> dict[str, Any]:
        """Return the task as one object for JSON; see `ClusterState.as_dict`."""
        found = {each.name: getattr(self.endpoint, each.name) for each in fields(self.endpoint)}
        if self.endpoint.accelerators is not None:
            found["accelerators"] = dict(self.endpoint.accelerators)
        return {"task": self.task_index, **found}


@dataclass(frozen=True, slots=True)
class DoneTask:
    """A task that has ended with success, while other tasks of the same run of its controller still run.

    >>> print(DoneTask("worker", 0, "ml/train-0"))
    /job:worker/task:0 (ml/train-0)

    It is not a member, because no other task can connect to it, and it is not missing. It keeps its task
    index, and counts in the ranks of the others.

    Attributes:
        job: the job.
        index: the task index.
        name: `namespace/name` of its pod; None if that no longer exists.
        uid: the uid of its pod.
    """

    job: str
    index: int
    name: str | None = None
    uid: str | None = None

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}{f' ({self.name})' if self.name else ''}"

    def as_dict(self) -> dict[str, Any]:
        """Return the task as one object for JSON; see `ClusterState.as_dict`."""
        return {"job": self.job, "task": self.index, "name": self.name, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class Move:
    """A task whose address, task index or name changed; its job and identity did not."""

    old: Member
    new: Member

    def __str__(self) -> str:
        return f"{self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class ClusterDiff:
    """The changes from an older state to a newer one; false if nothing changed.

    >>> older = ClusterState.of({"worker": [Endpoint("10.0.0.1:8470")]})
    >>> newer = ClusterState.of({"worker": [Endpoint("10.0.0.1:8470"), Endpoint("10.0.0.2:8470")]})
    >>> newer.diff(older)
    <ClusterDiff: joined /job:worker/task:1 at 10.0.0.2:8470>

    Each tuple is in the order of jobs and task indices. A task that changed its job, or whose container was
    restarted in place, is in `left` and in `joined`. `done` are the members that have ended with success.
    """

    joined: tuple[Member, ...] = ()
    left: tuple[Member, ...] = ()
    moved: tuple[Move, ...] = ()
    done: tuple[Member, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.moved or self.done)

    def __str__(self) -> str:
        """Return one line, such as `joined /job:worker/task:2 at 10.0.0.3:8470 (default/trainer-2)`."""
        return short_line("; ".join(f"{verb} {task}" for verb, task in self._changes) or "no change")

    def __repr__(self) -> str:
        return short_line(f"<ClusterDiff: {self}>")

    def _repr_html_(self) -> str:
        return html_table(f"{len(self._changes)} changes", ("change", "task"), self._changes)

    @property
    def _changes(self) -> list[tuple[str, Member | Move]]:
        changes: dict[str, tuple[Member | Move, ...]] = {"joined": self.joined, "left": self.left}
        changes |= {"moved": self.moved, "done": self.done}
        return [(verb, task) for verb, tasks in changes.items() for task in tasks]


class _AddressedEndpoints(Mapping[str, tuple[Endpoint, ...]]):
    """The endpoints of a spec, made when they are first read: most callers of `cluster_spec` read none."""

    __slots__ = ("_made", "_spec")

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._made: dict[str, tuple[Endpoint, ...]] = {}

    def __getitem__(self, job: str) -> tuple[Endpoint, ...]:
        if job not in self._made:
            if job not in self._spec.jobs:
                raise KeyError(job)
            indices = self._spec.task_indices(job)
            self._made[job] = tuple(Endpoint(self._spec.task_address(job, index)) for index in indices)
        return self._made[job]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spec.jobs)

    def __len__(self) -> int:
        return len(self._spec.jobs)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """The members of a cluster at one time.

    >>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
    >>> state = await resolver.cluster_state()
    >>> state, state.endpoints["worker"][0].full_name
    (<ClusterState of 2 tasks: worker 2>, 'ml/train-0')

    Create one by `of` or `from_spec`, which check their arguments; the constructor does not.

    Two states are equal if they have the same members: endpoints by job and task index. Comparisons ignore
    `done`, `version`, `observed_at`, readiness, nodes, the order of jobs, and jobs without tasks.

    Attributes:
        endpoints: the endpoints by job, in the order of `spec.jobs`; the n-th endpoint of a job has the n-th
            index of `spec.task_indices(job)`. Read-only.
        spec: the addresses only.
        version: the version that the source reports (a resourceVersion, an ETag), if any.
        observed_at: when the response arrived, in UTC, if known.
        done: the tasks that have ended with success while others still run, by job and task index. Their
            indices are missing in `spec`.
    """

    endpoints: Mapping[str, tuple[Endpoint, ...]]
    spec: ClusterSpec
    version: str | None = None
    observed_at: datetime | None = None
    done: tuple[DoneTask, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoints", ReadOnlyMapping(self.endpoints))

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
            endpoints: the endpoints by job, as a list in task order or as a sparse `{task index: endpoint}`.
            version: the version that the source reports.
            observed_at: when the response arrived, with a time zone.

        Raises:
            InvalidClusterError: a part is malformed, or a key contradicts the `index` of its endpoint.
        """
        if not isinstance(endpoints, Mapping):
            raise InvalidClusterError(
                f"endpoints must be a mapping of job names to endpoints; got {reprlib.repr(endpoints)}"
            )
        by_job = {job: by_task_index(tasks, f"job {job!r}") for job, tasks in endpoints.items()}
        for job, tasks in by_job.items():
            for index, endpoint in tasks.items():
                if not isinstance(endpoint, Endpoint):
                    raise InvalidClusterError(
                        f"job {job!r}, task {index}: expected an Endpoint, got {type(endpoint).__name__}"
                    )
                if isinstance(endpoints[job], Mapping) and endpoint.index not in (None, index):
                    raise InvalidClusterError(
                        f"job {job!r}: the key of {endpoint} is {index}, but its index is {endpoint.index}"
                    )
        spec = ClusterSpec({job: {i: e.address for i, e in tasks.items()} for job, tasks in by_job.items()})
        ordered = {job: tuple(tasks.values()) for job, tasks in by_job.items()}
        return cls(ordered, spec, version, _in_utc(observed_at))

    @classmethod
    def from_spec(
        cls,
        spec: ClusterSpec,
        *,
        version: str | None = None,
        observed_at: datetime | None = None,
        done: tuple[DoneTask, ...] = (),
    ) -> Self:
        """Return a state of endpoints that have an address only."""
        if not isinstance(spec, ClusterSpec):
            raise InvalidClusterError(
                f"the spec of a ClusterState must be a ClusterSpec; got {reprlib.repr(spec)}"
            )
        return cls(_AddressedEndpoints(spec), spec, version, _in_utc(observed_at), done)

    @property
    def members(self) -> tuple[Member, ...]:
        """All tasks, in the order of jobs and task indices."""
        return tuple(
            Member(job, index, endpoint)
            for job, endpoints in self.endpoints.items()
            for index, endpoint in zip(self.spec.task_indices(job), endpoints, strict=True)
        )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks of `spec` in the order of their ranks, in which the tasks that are done count too."""
        addresses: dict[str, dict[int, str | None]] = {job: {} for job in self.spec.jobs}
        for each in self.done:
            addresses.setdefault(each.job, {})[each.index] = None
        for member in self.members:
            addresses[member.job][member.task_index] = member.endpoint.address
        return ranked_tasks(addresses)

    def task(self, job: str, index: int) -> Task:
        """Return one task, with its rank among all tasks, those that are done included.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such job, or the job has no such task.
        """
        self.spec.task_address(job, index)  # raises if the task does not exist
        return next(task for task in self.tasks if (task.job, task.index) == (job, index))

    def as_dict(self) -> dict[str, Any]:
        """Return the cluster as one object for JSON.

        `{"jobs": {job: [{"task", "address", "name", "namespace", "uid", "node", "ready", "status", "index",
        "restarts", "accelerators"}, ...]}, "done": [{"job", "task", "name", "uid"}, ...], "version",
        "observed_at"}`: `task` is the index of the task in its job, `index` the one that the controller gave
        the pod; `accelerators` is the number of each resource that the pod declares; `version` is the
        resourceVersion; `observed_at` is RFC 3339 in UTC. Unknown values are null.
        """
        jobs: dict[str, list[dict[str, Any]]] = {job: [] for job in self.endpoints}
        for member in self.members:
            jobs[member.job].append(member.as_dict())
        at = None if self.observed_at is None else self.observed_at.isoformat().replace("+00:00", "Z")
        done = [each.as_dict() for each in self.done]
        return {"jobs": jobs, "done": done, "version": self.version, "observed_at": at}

    def diff(self, older: ClusterState) -> ClusterDiff:
        """Return the changes from `older` to this state; false if and only if the two are equal.

        Tasks are matched by their job and the `identity` of their endpoint.
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
        ended = {(one.job, one.name, one.uid) for one in self.done}
        done = {one for one in gone if (one.job, one.endpoint.full_name, one.endpoint.uid) in ended}
        return ClusterDiff(
            tuple(joined),
            tuple(member for member in old if member in gone - done),
            tuple(moved),
            tuple(member for member in old if member in done),
        )

    def __repr__(self) -> str:
        sizes = [(job, self.spec.num_tasks(job)) for job in self.spec.jobs]
        done = f"; {len(self.done)} done" if self.done else ""
        return short_line(f"<ClusterState of {task_numbers(sizes)}{done}>")

    def _repr_html_(self) -> str:
        columns = ("job", "task", "address", "name", "node", "status")
        rows: list[tuple[object, ...]] = [
            (member.job, member.task_index, one.address, one.full_name, one.node, one.status)
            for member in self.members
            for one in [member.endpoint]
        ]
        rows += [(each.job, each.index, None, each.name, None, "done") for each in self.done]
        return html_table(repr(self), columns, rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterState):
            return NotImplemented
        jobs, other_jobs = self._non_empty(), other._non_empty()
        # Endpoints first: if two states of a watch differ, their endpoints nearly always do.
        return jobs == other_jobs and all(
            self.spec.task_indices(job) == other.spec.task_indices(job) for job in jobs
        )

    def __hash__(self) -> int:
        return hash(frozenset(self._non_empty().items()))

    def _non_empty(self) -> dict[str, tuple[Endpoint, ...]]:
        """Return the endpoints by job, without jobs that have none."""
        return {job: endpoints for job, endpoints in self.endpoints.items() if endpoints}


def _in_utc(time: datetime | None) -> datetime | None:
    if time is not None and time.utcoffset() is None:
        raise ConfigurationError(
            f"{time} has no time zone", argument="observed_at", hint="Pass a time such as datetime.now(UTC)."
        )
    return None if time is None else time.astimezone(UTC)
