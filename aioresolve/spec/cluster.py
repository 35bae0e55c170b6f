"""`ClusterSpec`: `tf.train.ClusterSpec` as an immutable value, and its `Task`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, cast

from aioresolve.errors import InvalidClusterError, UnknownTaskError

from .display import MAX_LINE, html_table, short_line, task_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from .cluster_pb2 import ClusterDef

    # A tf.train.ClusterSpec is accepted too, but TensorFlow has no type annotations.
    ClusterLike: TypeAlias = (
        Mapping[str, list[str] | tuple[str, ...] | Mapping[int, str]] | "ClusterSpec" | Message | bytes
    )

Tasks: TypeAlias = dict[str, dict[int, str]]

CHIEF_JOBS = ("chief", "master")
"""The jobs whose task leads the cluster in TensorFlow; `master` is the older name."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a cluster, and its rank among all tasks.

    >>> ClusterSpec({"ps": ["10.0.0.9:8470"], "worker": ["10.0.0.1:8470"]}).task("worker", 0)
    Task(job='worker', index=0, address='10.0.0.1:8470', rank=1, num_tasks=2)

    Attributes:
        job: the job, such as `"worker"`.
        index: the task index in the job.
        address: `host:port`, as in the `ClusterSpec`.
        rank: the position among all tasks, from 0: the chief first, then the other jobs in the order of the
            spec, each by task index. Ranks have no gaps, even if task indices have.
        num_tasks: the number of tasks of all jobs.
    """

    job: str
    index: int
    address: str
    rank: int
    num_tasks: int

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}"


def ranked_tasks(addresses: Mapping[str, Mapping[int, str | None]]) -> tuple[Task, ...]:
    """Return the tasks in the order of ranks: the chief first, then the other jobs in the given order.

    A task without an address is left out, but counts in the ranks of the others.
    """
    jobs = sorted(addresses, key=lambda job: job not in CHIEF_JOBS)
    tasks = [(job, *task) for job in jobs for task in sorted(addresses[job].items())]
    return tuple(
        Task(job, index, address, rank, len(tasks))
        for rank, (job, index, address) in enumerate(tasks)
        if address is not None
    )


class ClusterSpec:
    """The addresses of the tasks of a cluster, by job: `tf.train.ClusterSpec` as an immutable value.

    >>> spec = ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470"], "ps": {3: "10.0.0.9:8470"}})
    >>> spec.task_address("worker", 1), spec.task_indices("ps")
    ('10.0.0.2:8470', [3])

    All members return the same results for the same input as those of TensorFlow, with these differences:

    - It is immutable and hashable, and shares nothing with the value that it was created from.
    - It has `tasks` and `task`, which give each task its rank.
    - It can also be created from any other `Mapping`, from the bytes of a ClusterDef, and from a
      `tf.train.ClusterSpec`.
    - `job_tasks` of a job without tasks is `[]`; TensorFlow fails in `max()`.
    - A negative task index makes `as_dict` sparse and is left out of `job_tasks`. TensorFlow accepts it, and
      then loses the task or overwrites another one.
    - Names and addresses must be `str`; TensorFlow also keeps `bytes`.

    In a spec that was created from another spec or a message, the jobs are in the order of the message
    (sorted by name if that came from a mapping).
    """

    __slots__ = ("_known", "_message", "_read")

    _known: Tasks | None  # None until `_read` has returned them
    _read: Callable[[], Tasks]
    _message: bytes | None  # the ClusterDef this was created from; it keeps the order and duplicates of jobs

    def __init__(self, cluster: ClusterLike) -> None:
        """Create a spec.

        Args:
            cluster: a mapping of job names to addresses (`host:port`): a list or tuple, or a sparse mapping
                of task indices to addresses (keys are converted by `int()`; the last of equal keys is used).
                Or another spec, or a ClusterDef message (of aioresolve or TensorFlow), or its bytes.

        Raises:
            InvalidClusterError: (a TypeError) `cluster` is of another type, or a part of it is malformed.
        """
        self.__setstate__(_parse(cluster))

    @classmethod
    def _trusted(cls, read: Callable[[], Tasks]) -> Self:
        """Return a spec of the tasks that `read` returns, without validation and without a copy.

        For callers that validated them. `read` is called when the tasks are first needed, maybe in several
        threads at once. Task indices are ascending, and all strings are exact `str` and valid UTF-8. The
        tasks must not be changed afterwards; several specs may share the tasks of a job.
        """
        spec = object.__new__(cls)
        object.__setattr__(spec, "_known", None)
        object.__setattr__(spec, "_read", read)
        object.__setattr__(spec, "_message", None)
        return spec

    @property
    def _tasks(self) -> Tasks:
        if self._known is None:
            object.__setattr__(self, "_known", self._read())
        return cast("Tasks", self._known)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, in the given order."""
        return list(self._tasks)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Return job names to addresses: a list if the task indices are 0 to n-1, else `{index: address}`.

        The value for a job without tasks is `{}`.
        """
        return {job: _list_or_dict(tasks) for job, tasks in self._tasks.items()}

    def as_cluster_def(self) -> ClusterDef:
        """Return a new `aioresolve.spec.ClusterDef` message, in the wire format of TensorFlow's ClusterDef.

        Jobs are sorted by name, unless the spec was created from a message: then they keep its order.
        To compare bytes, serialize both with `SerializeToString(deterministic=True)` of the same protobuf.
        """
        from .cluster_pb2 import ClusterDef

        if self._message is not None:
            return ClusterDef.FromString(self._message)
        message = ClusterDef()
        for job, tasks in sorted(self._tasks.items()):
            job_def = message.job.add(name=job)
            job_def.tasks.update(tasks)
        return message

    def num_tasks(self, job_name: str) -> int:
        """Return the number of tasks of the job; raises as `task_indices` does."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the task indices of the job, ascending.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such job.
        """
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of one task, `host:port`, exactly as given.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such job, or the job has no such task.
        """
        tasks = self._job(job_name)
        try:
            return tasks[task_index]
        except KeyError:
            raise UnknownTaskError(
                f"no task {task_index!r} in job {job_name!r}, which has {len(tasks)} tasks:"
                f" {reprlib.repr(list(tasks))}"
            ) from None

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the addresses of the job as a list, each at its task index; None for a missing index.

        The list ends with the highest index. It is empty for a job without tasks.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such job.
        """
        tasks = self._job(job_name)
        addresses: list[str | None] = [None] * (max(tasks, default=-1) + 1)
        for index, address in tasks.items():
            if index >= 0:
                addresses[index] = address
        return addresses

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks in the order of their ranks: the chief first, then job after job."""
        return ranked_tasks(self._tasks)

    def task(self, job_name: str, task_index: int) -> Task:
        """Return one task, with its rank among all tasks.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such job, or the job has no such task.
        """
        self.task_address(job_name, task_index)  # raises if the task does not exist
        return next(task for task in self.tasks if (task.job, task.index) == (job_name, task_index))

    def __bool__(self) -> bool:
        """Return whether there are any jobs."""
        return bool(self._tasks)

    __nonzero__ = __bool__

    def __eq__(self, other: object) -> bool:
        """Return whether `other`, a spec or a mapping `{job: {index: address}}`, has the same tasks.

        As in `tf.train.ClusterSpec`, the order of jobs is ignored, and a mapping to lists is never equal.
        Specs of the two libraries can be compared with each other, in both directions.
        """
        return self._tasks == (other._tasks if isinstance(other, ClusterSpec) else other)

    def __hash__(self) -> int:
        return hash(frozenset((job, frozenset(tasks.items())) for job, tasks in self._tasks.items()))

    def __repr__(self) -> str:
        jobs = ", ".join(f"{job!r}: {tasks!r}" for job, tasks in sorted(self.as_dict().items()))
        text = f"ClusterSpec({{{jobs}}})"  # as in TensorFlow
        if len(text) <= MAX_LINE:
            return text
        return short_line(f"<{self._summary}>")

    def _repr_html_(self) -> str:
        rows = [(task.job, task.index, task.address) for task in self.tasks]
        return html_table(self._summary, ("job", "task", "address"), rows)

    @property
    def _summary(self) -> str:
        return f"ClusterSpec of {task_numbers((job, self.num_tasks(job)) for job in self.jobs)}"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"ClusterSpec is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"ClusterSpec is immutable: cannot delete {name!r}")

    def __getstate__(self) -> tuple[Tasks, bytes | None]:
        return self._tasks, self._message

    def __setstate__(self, state: tuple[Tasks, bytes | None]) -> None:
        object.__setattr__(self, "_known", state[0])
        object.__setattr__(self, "_message", state[1])

    def _job(self, job_name: str) -> dict[int, str]:
        try:
            return self._tasks[job_name]
        except KeyError:
            known = f"its jobs are {', '.join(map(repr, self._tasks))}" if self._tasks else "it has no jobs"
            raise UnknownTaskError(f"no job {job_name!r} in this cluster: {known}") from None


def _parse(cluster: Any) -> tuple[Tasks, bytes | None]:
    if isinstance(cluster, ClusterSpec):
        # TensorFlow copies by way of a message, which has jobs sorted by name.
        return dict(
            sorted(cluster._tasks.items())
        ) if cluster._message is None else cluster._tasks, cluster._message
    if isinstance(cluster, Mapping):
        return _from_mapping(cluster), None
    if isinstance(cluster, (bytes, bytearray, memoryview)):
        return _from_message(bytes(cluster)), bytes(cluster)
    if hasattr(cluster, "as_cluster_def"):  # a tf.train.ClusterSpec
        cluster = cluster.as_cluster_def()
    descriptor = getattr(type(cluster), "DESCRIPTOR", None)
    if getattr(descriptor, "full_name", None) in ("aioresolve.spec.ClusterDef", "tensorflow.ClusterDef"):
        message: bytes = cluster.SerializeToString()
        return _from_message(message), message
    raise InvalidClusterError(
        "a cluster must be a mapping of job names to lists of addresses or to {task index: address},"
        f" a ClusterSpec, or a ClusterDef message or its bytes; got {type(cluster).__name__}"
    )


def _from_message(message: bytes) -> Tasks:
    from google.protobuf.message import DecodeError

    from .cluster_pb2 import ClusterDef

    try:
        jobs = ClusterDef.FromString(message).job
    except (DecodeError, UnicodeDecodeError) as error:  # the latter comes from the pure Python protobuf
        raise InvalidClusterError(
            f"{len(message)} bytes that are not a ClusterDef message: {error}"
        ) from error
    return {job_def.name: dict(sorted(job_def.tasks.items())) for job_def in jobs}


def _from_mapping(cluster: Mapping[Any, Any]) -> Tasks:
    spec: Tasks = {}
    for job, tasks in cluster.items():
        _check_str(job, "job name")
        indexed = by_task_index(tasks, f"job {job!r}")
        try:
            "".join([job, *indexed.values()]).encode()
        except TypeError:
            for index, address in indexed.items():
                _check_str(address, f"address of task {index} in job {job!r}")
            raise
        except UnicodeError as error:
            raise InvalidClusterError(f"job {job!r}: not valid Unicode: {error}") from error
        spec[job] = indexed
    return spec


def _check_str(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InvalidClusterError(f"{what}: expected a str, got {type(text).__name__} {reprlib.repr(text)}")


def by_task_index(tasks: Any, where: str) -> dict[int, Any]:
    """Return the tasks of one job by task index, ascending."""
    if isinstance(tasks, (list, tuple)):
        return dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise InvalidClusterError(
            f"{where}: the tasks must be a list, a tuple or a {{task index: ...}} mapping; got"
            f" {type(tasks).__name__} {reprlib.repr(tasks)}"
        )
    indexed: dict[int, Any] = {}
    for key, task in tasks.items():
        try:
            index = int(key)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidClusterError(
                f"{where}: the task index {reprlib.repr(key)} is not an integer"
            ) from error
        if not -(2**31) <= index < 2**31:  # an int32 in ClusterDef
            raise InvalidClusterError(f"{where}: the task index {reprlib.repr(key)} does not fit in 32 bits")
        indexed[index] = task
    return dict(sorted(indexed.items()))


def _list_or_dict(tasks: dict[int, str]) -> list[str] | dict[int, str]:
    is_dense = bool(tasks) and list(tasks) == list(range(len(tasks)))
    return list(tasks.values()) if is_dense else dict(tasks)
