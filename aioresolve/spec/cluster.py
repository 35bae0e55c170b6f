"""`ClusterSpec`: `tf.train.ClusterSpec` as an immutable value."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeGuard, cast

from aioresolve.errors import InvalidClusterError, UnknownTaskError

from .task import Task, jobs_by_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from .cluster_pb2 import ClusterDef

    # A tf.train.ClusterSpec is accepted too, but TensorFlow has no type annotations.
    ClusterLike: TypeAlias = (
        Mapping[str, list[str] | tuple[str, ...] | Mapping[int, str]] | "ClusterSpec" | Message | bytes
    )

Tasks: TypeAlias = dict[str, dict[int, str]]


class ClusterSpec:
    """The addresses of the tasks of a cluster, by job: `tf.train.ClusterSpec` as an immutable value.

    All members return the same results for the same input as those of TensorFlow, with these differences:

    - It is immutable and hashable, and shares nothing with the value that it was created from.
    - It has `tasks` and `task`, which give each task its rank.
    - It can also be created from any other `Mapping`, from the bytes of a ClusterDef, and from a
      `tf.train.ClusterSpec`.
    - `job_tasks` of a job without tasks is `[]`; TensorFlow fails in `max()`.
    - A negative task index makes `as_dict` sparse and is left out of `job_tasks`. TensorFlow accepts it, and
      then loses the task or overwrites another one.

    As in TensorFlow, names and addresses can be UTF-8 `bytes` and remain so. In a spec that was created from
    another spec or a message, they are `str`, and the jobs are in the order of the message (sorted by name if
    that came from a mapping).
    """

    __slots__ = ("_message", "_read", "_tasks")

    _tasks: Tasks
    _read: Callable[[], Tasks]  # returns `_tasks` if that is not set yet
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
        tasks, message = _parse(cluster)
        object.__setattr__(self, "_tasks", tasks)
        object.__setattr__(self, "_message", message)

    @classmethod
    def _trusted(cls, read: Callable[[], Tasks]) -> Self:
        """Return a spec of the tasks that `read` returns, without validation and without a copy.

        For callers that validated them. `read` is called when the tasks are first needed, maybe in several
        threads at once. Task indices are ascending, and all strings are exact `str` and valid UTF-8. The
        tasks must not be changed afterwards; several specs may share the tasks of a job.
        """
        spec = object.__new__(cls)
        object.__setattr__(spec, "_read", read)
        object.__setattr__(spec, "_message", None)
        return spec

    if not TYPE_CHECKING:  # or type checkers would permit every attribute

        def __getattr__(self, name: str) -> Tasks:
            if name != "_tasks":
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            tasks = self._read()
            object.__setattr__(self, "_tasks", tasks)
            return tasks

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
            job_def = message.job.add(name=_text(job))
            for index, address in tasks.items():
                job_def.tasks[index] = _text(address)
        return message

    def num_tasks(self, job_name: str) -> int:
        """Return the number of tasks of the job.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such job.
        """
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
            known = f"tasks {_ranges(list(tasks))}" if tasks else "no tasks"
            raise UnknownTaskError(f"no task {task_index!r} in job {job_name!r}, which has {known}") from None

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
        ordered = [(job, *task) for job in jobs_by_rank(self.jobs) for task in self._tasks[job].items()]
        return tuple(
            Task(job, index, address, rank, len(ordered))
            for rank, (job, index, address) in enumerate(ordered)
        )

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

    def __ne__(self, other: object) -> bool:
        return self._tasks != (other._tasks if isinstance(other, ClusterSpec) else other)

    def __hash__(self) -> int:
        return hash(frozenset((job, frozenset(tasks.items())) for job, tasks in self._tasks.items()))

    def __repr__(self) -> str:
        jobs = ", ".join(f"{job!r}: {tasks!r}" for job, tasks in sorted(self.as_dict().items()))
        return f"ClusterSpec({{{jobs}}})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"ClusterSpec is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"ClusterSpec is immutable: cannot delete {name!r}")

    def __getstate__(self) -> tuple[Tasks, bytes | None]:
        return self._tasks, self._message

    def __setstate__(self, state: tuple[Tasks, bytes | None]) -> None:
        object.__setattr__(self, "_tasks", state[0])
        object.__setattr__(self, "_message", state[1])

    def _job(self, job_name: str) -> dict[int, str]:
        try:
            return self._tasks[job_name]
        except KeyError:
            known = f"its jobs are {', '.join(map(repr, self._tasks))}" if self._tasks else "it has no jobs"
            raise UnknownTaskError(f"no job {job_name!r} in this cluster: {known}") from None


def _parse(cluster: object) -> tuple[Tasks, bytes | None]:
    if isinstance(cluster, ClusterSpec):
        if cluster._message is not None:
            return cluster._tasks, cluster._message
        # TensorFlow copies by way of a message, which has str only, and jobs sorted by name.
        jobs = sorted(cluster._tasks.items())
        return {_text(job): {i: _text(a) for i, a in tasks.items()} for job, tasks in jobs}, None
    if isinstance(cluster, Mapping):
        return _from_mapping(cluster), None
    if isinstance(cluster, (bytes, bytearray, memoryview)):
        return _from_message(bytes(cluster)), bytes(cluster)
    if _is_tensorflow_spec(cluster):
        cluster = cluster.as_cluster_def()
    if _is_cluster_def(cluster):
        message: bytes = cluster.SerializeToString(deterministic=True)
        return _from_message(message), message
    raise InvalidClusterError(
        "a cluster must be a mapping of job names to lists of addresses or to {task index: address},"
        f" a ClusterSpec, or a ClusterDef message or its bytes; got {type(cluster).__name__}"
    )


def _is_tensorflow_spec(value: object) -> TypeGuard[Any]:
    # If the value is one, TensorFlow is already imported; otherwise it need not even be installed.
    module = sys.modules.get("tensorflow.python.training.server_lib")
    return isinstance(value, getattr(module, "ClusterSpec", ()))


def _is_cluster_def(value: object) -> TypeGuard[Any]:
    descriptor = getattr(type(value), "DESCRIPTOR", None)
    return getattr(descriptor, "full_name", None) in ("aioresolve.spec.ClusterDef", "tensorflow.ClusterDef")


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
        name = _exact_str(job, "job name")
        indexed = by_task_index(tasks, f"job {job!r}")
        if _are_all_exact(indexed.values()):
            spec[name] = indexed
        else:
            spec[name] = {i: _exact_str(a, f"address of task {i} in job {job!r}") for i, a in indexed.items()}
    if len({type(name) for name in spec}) > 1:
        raise InvalidClusterError(f"job names must be all str or all bytes: {', '.join(map(repr, spec))}")
    return spec


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


def _are_all_exact(texts: Collection[Any]) -> bool:
    """Return whether `_exact_str` would return each unchanged: one fast check for thousands of addresses."""
    if set(map(type, texts)) - {str}:
        return False
    try:
        "".join(texts).encode()
    except UnicodeError:
        return False
    return True


def _exact_str(text: Any, what: str) -> str:
    """Return `text` as an exact `str` (or `bytes`, as TensorFlow allows), if it is valid UTF-8."""
    try:
        if isinstance(text, str):
            text.encode()
            return str.__str__(text)  # unlike str(), it returns the value of an enum member that is a str
        if isinstance(text, (bytes, bytearray)):
            text.decode()
            return cast("str", bytes(text))
    except UnicodeError as error:
        raise InvalidClusterError(f"{what}: {reprlib.repr(text)} is not valid Unicode: {error}") from error
    raise InvalidClusterError(f"{what}: expected a str, got {type(text).__name__} {reprlib.repr(text)}")


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _list_or_dict(tasks: dict[int, str]) -> list[str] | dict[int, str]:
    is_dense = bool(tasks) and list(tasks) == list(range(len(tasks)))
    return list(tasks.values()) if is_dense else dict(tasks)


def _ranges(indices: list[int], limit: int = 8) -> str:
    """Return ascending indices as text: `0 to 3, 7`, with at most `limit` ranges."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and index == ranges[-1][-1] + 1:
            ranges[-1][1:] = [index]
        else:
            ranges.append([index])
    texts = [" to ".join(map(str, each)) for each in ranges[:limit]]
    return ", ".join([*texts, "..."] if len(ranges) > limit else texts)
