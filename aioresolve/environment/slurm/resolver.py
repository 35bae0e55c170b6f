"""`SlurmClusterResolver`: the tasks of a Slurm job step.

It follows `tf.distribute.cluster_resolver.SlurmClusterResolver`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aioresolve._core.validation import validate_count
from aioresolve.environment.base import Description, EnvironmentClusterResolver, shorten
from aioresolve.errors import ConfigurationError, EnvironmentVariableError, TaskIdentityError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.launchers import launched_process
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import ClusterState, Endpoint, Observation, host_port

from .gpus import assign_gpus, bound_gpus, devices_of_task, gpus_of_node, gpus_per_task
from .launched import read_processes
from .tasks import NODE_NAME, PROCESS_ID, SlurmTasks, find_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.want import Want

JOB = "worker"


class SlurmClusterResolver(EnvironmentClusterResolver):
    """Resolves the tasks of a Slurm job step, or of a job: the task with rank n is `$SLURM_PROCID` n.

    In a task of `srun --nodes 2 --ntasks 3` on the nodes `n1` and `n2`:

    >>> await SlurmClusterResolver().cluster_spec()
    ClusterSpec({'worker': ['n1:8888', 'n1:8889', 'n2:8888']})

    `srun` sets the variables of the step: `$SLURM_STEP_NODELIST`, `$SLURM_STEP_TASKS_PER_NODE`,
    `$SLURM_DISTRIBUTION`, `$SLURM_PROCID`, and those of each component of a heterogeneous step. A batch
    script and a shell of `salloc` are not tasks; there, the variables of the job describe the tasks that
    `srun` would start: `$SLURM_JOB_NODELIST`, `$SLURM_TASKS_PER_NODE` and `$SLURM_NTASKS`, without which it
    starts one on each node. Every call and every property reads them again.

    Tasks have the order of their ranks. Jobs are sorted by name, as in TensorFlow, and each takes the next
    ranks. The first task of a node listens on `port_base`, the others on the following ports.

    Args:
        jobs: the number of tasks of each job; all tasks are of the job `worker` by default.
        port_base: the port of the first task of each node.
        gpus_per_node: the GPUs of each node; by default those of this node, which may be none, as the
            variables of Slurm, `$CUDA_VISIBLE_DEVICES`, or NVIDIA's driver report them.
        gpus_per_task: the GPUs of each task; by default those that Slurm has bound it to, or else
            `$SLURM_GPUS_PER_TASK`, or an equal share of those of the node.
        tasks_per_node: the number of tasks of each node, or of each by its name; by default as Slurm reports.
        auto_set_gpu: whether calls set `$CUDA_VISIBLE_DEVICES` of this process to the GPUs of its task. It is
            not changed where there are no GPUs, or Slurm has bound the task to its own.
        rpc_layer: the protocol of the tasks.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid. Calls and properties raise an
            EnvironmentVariableError (a ValueError and RuntimeError) if variables are missing or malformed.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
        *,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(rpc_layer=rpc_layer, timeout=timeout)
        self._jobs = None if jobs is None else _validate_counts("jobs", jobs)
        self._port_base = validate_count("port_base", port_base)
        self._gpus_per_node = _validate_number("gpus_per_node", gpus_per_node)
        self._gpus_per_task = _validate_number("gpus_per_task", gpus_per_task)
        self._tasks_per_node = (
            _validate_counts("tasks_per_node", tasks_per_node)
            if isinstance(tasks_per_node, Mapping)
            else _validate_number("tasks_per_node", tasks_per_node)
        )
        self._auto_set_gpu = auto_set_gpu

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of jobs {list(self.known_jobs)}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The given jobs, sorted by name; `worker` by default."""
        return [JOB] if self._jobs is None else sorted(self._jobs)

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the tasks, such as `"grpc"`; None for bare addresses. Can be set."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return `task_type` and `task_id`: the job of this process, and its task index in that job.

        Raises:
            EnvironmentVariableError: (a RuntimeError) variables are missing or malformed.
        """
        return self.task_type, self.task_id

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Return the tasks of the step, and set `$CUDA_VISIBLE_DEVICES` if `auto_set_gpu` is set."""
        tasks = self._read_tasks()
        if self._auto_set_gpu:
            number = self._gpus_of_task(tasks)
            own = tasks.own
            if own is not None:
                devices = devices_of_task(os.environ, own.local_id, own.tasks_on_node, number)
                if devices is not None:
                    assign_gpus(devices)
        return Observation(self._describe(tasks).state)

    master = ClusterResolver.master

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return the number of GPUs of each task: `{"GPU": 2}`. No task is probed, as in TensorFlow.

        Args:
            task_type: ignored.
            task_id: ignored.
            config_proto: ignored.
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            EnvironmentVariableError: (a RuntimeError) variables are missing or malformed, or a node has fewer
                GPUs than its tasks need.
        """
        self._deadline(timeout)  # raises if it is invalid; nothing here waits
        return {"GPU": self._gpus_of_task(self._read_tasks())}

    async def _claim(self, progress: Progress) -> TaskClaim:
        tasks = self._read_tasks()
        # A batch script has a rank too, but it is not a task.
        if tasks.process_id is not None or self._task_id is not None:
            launched = launched_process(os.environ)
            variable = PROCESS_ID if launched is None else launched.launcher.rank
            is_task = tasks.process_id is not None
            return TaskClaim(self.task_type, self.task_id, variable if is_task else None)
        name = os.environ.get(NODE_NAME) or socket.gethostname()
        node = find_node({task.host for task in tasks.tasks}, name)
        claims = [
            TaskClaim(member.job, member.task_index)
            for member in self._describe(tasks).state.members
            if member.endpoint.node == node and self._task_type in (None, member.job)
        ]
        if len(claims) != 1:
            raise TaskIdentityError(
                f"this process is not a task of `srun`, and its node {shorten(name)} has {len(claims)} of the"
                f" {len(tasks.tasks)} tasks ({tasks.source})",
                hint="Start the program with `srun`, or set {task_type} and {task_id}.",
                tried=(f"${PROCESS_ID}", f"the node {shorten(name)}"),
            )
        return claims[0]

    def _read(self) -> Description:
        return self._describe(self._read_tasks())

    def _read_tasks(self) -> SlurmTasks:
        tasks = read_processes(os.environ, self._tasks_per_node)
        wanted = len(tasks.tasks) if self._jobs is None else sum(self._jobs.values())
        if wanted != len(tasks.tasks):
            raise EnvironmentVariableError(
                f"the jobs have {wanted} tasks together, but Slurm starts {len(tasks.tasks)}"
                f" ({tasks.source})",
                argument="jobs",
                hint="Correct {jobs}, or the number of tasks (`--ntasks`).",
            )
        return tasks

    def _describe(self, tasks: SlurmTasks) -> Description:
        jobs = {JOB: len(tasks.tasks)} if self._jobs is None else self._jobs
        highest = self._port_base + max((task.local_id for task in tasks.tasks), default=0)
        if highest > 65535:
            raise ConfigurationError(
                f"{self._port_base} is too high: the ports end at {highest}", argument="port_base"
            )
        endpoints: dict[str, list[Endpoint]] = {}
        own: tuple[str, int] | tuple[None, None] = (None, None)
        start = 0
        for job, number in sorted(jobs.items()):
            endpoints[job] = [
                Endpoint(host_port(task.host, self._port_base + task.local_id), node=task.host, index=rank)
                for rank, task in enumerate(tasks.tasks[start : start + number], start)
            ]
            if tasks.process_id is not None and start <= tasks.process_id < start + number:
                own = (job, tasks.process_id - start)
            start += number
        return Description(ClusterState.of(endpoints, observed_at=datetime.now(UTC)), *own)

    def _gpus_of_task(self, tasks: SlurmTasks) -> int:
        """Return the GPUs of each task, after checking that the node has enough of them."""
        if self._gpus_per_node is None and self._gpus_per_task is None:
            # Before variables of the job, which may say what was requested for other steps.
            bound = bound_gpus(os.environ)
            if bound is not None:
                return bound
            requested = gpus_per_task(os.environ)
            if requested is not None:
                return requested  # Slurm has checked it
        own, most = tasks.own, max((task.tasks_on_node for task in tasks.tasks), default=0)
        if self._gpus_per_node is not None:
            available, sharing = self._gpus_per_node, most
        else:
            # Nodes may have different numbers; the variables are those of this node.
            available, sharing = gpus_of_node(os.environ), most if own is None else own.tasks_on_node
        needed = self._gpus_per_task
        if needed is None:
            return available // sharing if sharing else 0
        if needed * sharing > available:
            raise EnvironmentVariableError(
                f"{sharing} tasks with {needed} GPUs each share a node, which has only {available}",
                argument="gpus_per_task",
                hint="Request more GPUs (`--gpus-per-node`), or pass {gpus_per_node} and {gpus_per_task}.",
            )
        return needed


def _validate_number(name: str, number: Any) -> int | None:
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigurationError(f"{shorten(number)} is not an integer from 0", argument=name)
    return number


def _validate_counts(name: str, counts: Any) -> dict[str, int]:
    if not isinstance(counts, Mapping) or not counts:
        raise ConfigurationError(
            f"{shorten(counts)} is not a mapping of names to numbers of tasks",
            argument=name,
            hint="Pass one such as {'worker': 4}." if name == "jobs" else "Pass one such as {'n1': 2}.",
        )
    for key, number in counts.items():
        if not isinstance(key, str) or _validate_number(name, number) is None:
            raise ConfigurationError(
                f"{shorten(key)}: {shorten(number)} is not a number of tasks", argument=name
            )
    return dict(counts)
