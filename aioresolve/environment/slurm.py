"""`SlurmClusterResolver`: the tasks of a Slurm job step, and the GPUs of each.

It follows `tf.distribute.cluster_resolver.SlurmClusterResolver`. The meaning of `CUDA_VISIBLE_DEVICES`:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
What Slurm sets: https://slurm.schedmd.com/gres.html#Running_Jobs
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioresolve._core.validation import validate_count
from aioresolve.errors import ConfigurationError, EnvironmentVariableError, TaskIdentityError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.launchers import launched_process
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import ClusterState, Endpoint, Observation

from .base import Description, EnvironmentClusterResolver, addresses_by_rank, counted, reject, shorten
from .detection import Evidence, absent, given, invalid
from .slurm_tasks import (
    INTERACTIVE_STEP,
    JOB_HOSTS,
    NODE_NAME,
    PROCESS_ID,
    STEP_HOSTS,
    STEP_ID,
    STEP_TASKS,
    SlurmTasks,
    SlurmVariables,
    find_node,
    read_tasks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.launchers import LaunchedProcess
    from aioresolve.spec.observation import Want

    from .slurm_tasks import TasksPerNode

JOB = "worker"

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

OTHER_VISIBLE_DEVICES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "SLURM_STEP_GPUS")
"""What names the devices of a task on AMD's and Intel's GPUs, and on all."""

GPUS_ON_NODE, GPUS_PER_TASK = "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK"

DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver has a folder there for each GPU of the machine."""

MAX_GPUS = 1024
"""The most GPUs of a node."""

_REQUEST = re.compile(r"(?:[A-Za-z0-9._-]+:)*([0-9]{1,6})")

# What this process set, and the value before: later calls read the latter, as if it had not been changed.
_assigned: tuple[str, str | None] | None = None


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
            if tasks.process_id is not None and number:
                _assign_gpus(tasks.own_ranks.index(tasks.process_id), len(tasks.own_ranks), number)
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

        The arguments are ignored.

        Raises:
            EnvironmentVariableError: (a RuntimeError) variables are missing or malformed, or a node has fewer
                GPUs than its tasks need.
        """
        return {"GPU": self._gpus_of_task(self._read_tasks())}

    async def _claim(self, progress: Progress) -> TaskClaim:
        tasks = self._read_tasks()
        if tasks.process_id is not None:
            launched = launched_process(os.environ)
            variable = PROCESS_ID if launched is None else launched.launcher.rank
            return TaskClaim(self.task_type, self.task_id, variable)
        if self._task_id is not None:
            return TaskClaim(self.task_type, self.task_id)
        name = os.environ.get(NODE_NAME) or socket.gethostname()
        node = find_node(set(tasks.hosts), name)
        claims = [
            TaskClaim(member.job, member.task_index)
            for member in self._describe(tasks).state.members
            if member.endpoint.node == node and self._task_type in (None, member.job)
        ]
        if len(claims) != 1:
            raise TaskIdentityError(
                f"this process is not a task of `srun`, and its node {shorten(name)} has {len(claims)} of the"
                f" {len(tasks.hosts)} tasks ({tasks.source})",
                hint="Start the program with `srun`, or set {task_type} and {task_id}.",
                tried=(f"${PROCESS_ID}", f"the node {shorten(name)}"),
            )
        return claims[0]

    def _read(self) -> Description:
        return self._describe(self._read_tasks())

    def _read_tasks(self) -> SlurmTasks:
        tasks = _read_processes(os.environ, self._tasks_per_node)
        wanted = len(tasks.hosts) if self._jobs is None else sum(self._jobs.values())
        if wanted != len(tasks.hosts):
            raise EnvironmentVariableError(
                f"the jobs have {wanted} tasks together, but Slurm starts {len(tasks.hosts)}"
                f" ({tasks.source})",
                argument="jobs",
                hint="Correct {jobs}, or the number of tasks (`--ntasks`).",
            )
        return tasks

    def _describe(self, tasks: SlurmTasks) -> Description:
        try:
            addresses = addresses_by_rank(tasks.hosts, self._port_base)
        except ConfigurationError as error:
            raise ConfigurationError(error.summary, argument="port_base") from error
        endpoints = [
            Endpoint(address, node=host, index=rank)
            for rank, (host, address) in enumerate(zip(tasks.hosts, addresses, strict=True))
        ]
        jobs: dict[str, list[Endpoint]] = {}
        own: tuple[str, int] | tuple[None, None] = (None, None)
        start = 0
        for job, number in sorted((self._jobs or {JOB: len(endpoints)}).items()):
            jobs[job] = endpoints[start : start + number]
            if tasks.process_id is not None and tasks.process_id - start in range(number):
                own = (job, tasks.process_id - start)
            start += number
        return Description(ClusterState.of(jobs, observed_at=datetime.now(UTC)), *own)

    def _gpus_of_task(self, tasks: SlurmTasks) -> int:
        """Return the GPUs of each task, after checking that the node has enough of them."""
        if self._gpus_per_node is None and self._gpus_per_task is None:
            # Before variables of the job, which may say what was requested for other steps.
            bound = _bound_gpus()
            if bound is not None:
                return bound
            if os.environ.get(GPUS_PER_TASK):
                return _requested(GPUS_PER_TASK)  # Slurm has checked it
        sharing = max(Counter(tasks.hosts).values(), default=0)
        available = self._gpus_per_node
        if available is None:
            # Nodes may have different numbers; the variables are those of this node.
            available, sharing = _gpus_of_node(), len(tasks.own_ranks) or sharing
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


def examine(port: int | None) -> Evidence:
    """Return whether Slurm started this process; `port` is that of the first task of each node."""
    if not any(value and name.startswith((STEP_HOSTS, JOB_HOSTS)) for name, value in os.environ.items()):
        return absent("Slurm", f"${STEP_HOSTS} and ${JOB_HOSTS} are not set")
    try:
        tasks = _read_processes(os.environ)
    except ConfigurationError as error:
        return invalid("Slurm", error)
    own = "" if tasks.process_id is None else f"; this is task {tasks.process_id}"
    reason = f"{tasks.source} has {counted(len(tasks.hosts), 'task')}{own}"
    # Detection must not change the environment of the process.
    new_resolver = partial(SlurmClusterResolver, auto_set_gpu=False, **given("port_base", port))
    return Evidence("Slurm", True, reason, new_resolver)


def _read_processes(environ: Mapping[str, str], tasks_per_node: TasksPerNode = None) -> SlurmTasks:
    """Return the processes of the innermost launcher: `srun`, or what runs in its tasks, such as `mpirun`.

    `mpirun` and `mpiexec` start one daemon on each other node by `srun`, whose processes inherit the
    variables of that step: they count the daemons, not the processes. For arguments and errors see
    `read_tasks`.
    """
    variables, process = SlurmVariables(environ), launched_process(environ)
    if process is None or not (variables[JOB_HOSTS] or variables[STEP_HOSTS]):
        return read_tasks(variables, tasks_per_node)
    if process.local_size is not None and tasks_per_node is None:
        return _read_launched(variables, process)
    tasks = read_tasks(variables, tasks_per_node)
    if process.has_number(tasks.process_id, len(tasks.hosts)):
        return tasks
    raise process.contradicts(f"{tasks.source} has {len(tasks.hosts)} tasks, and this is {tasks.process_id}")


def _read_launched(variables: SlurmVariables, process: LaunchedProcess) -> SlurmTasks:
    """Return the processes of a launcher that runs inside a job or a step."""
    step = STEP_HOSTS if variables[STEP_HOSTS] else JOB_HOSTS
    is_in_step = step == STEP_HOSTS and variables[STEP_ID] != INTERACTIVE_STEP
    is_on_job = variables[JOB_HOSTS] and (process.launcher.is_mpi or not is_in_step)
    variable = JOB_HOSTS if is_on_job else step
    hosts, nodes = variables.hosts(variable), variables.hosts(step)
    # The number is preferred, because MPICH hands the name of the node of `mpiexec` on to all processes.
    own, node_id = variables[NODE_NAME], variables.integer("SLURM_NODEID")
    if node_id is not None:
        own = nodes[node_id] if node_id < len(nodes) else ""
    if own not in nodes:
        raise process.contradicts(f"${step} has {len(nodes)} nodes, and $SLURM_NODEID is {node_id}")
    if process.all_on_this_host:
        number = variables.integer(STEP_TASKS) if is_in_step else None
        if number not in (None, 1):  # each of the tasks may have started a launcher of its own
            raise process.contradicts(f"${STEP_TASKS} is {number}")
        hosts = [own]
    elif variables["SLURM_HET_SIZE"] not in ("", "1"):  # the launcher may use the nodes of one component
        raise process.contradicts(f"$SLURM_HET_SIZE is {variables['SLURM_HET_SIZE']}")
    placed = process.place(hosts, own)
    if placed is None:
        raise process.contradicts(f"${variable} has {len(hosts)} nodes, and this is {own} ($SLURM_NODEID)")
    source = f"${process.launcher.size} of {process.launcher.name} on ${variable}"
    return SlurmTasks(tuple(placed), process.rank, source)


def _gpus_of_node() -> int:
    """Return the number of GPUs that the step has on this node, from the first source that is known."""
    for variable in (GPUS_ON_NODE, "SLURM_GPUS_PER_NODE"):
        if os.environ.get(variable):
            return _requested(variable)
    if os.environ.get("SLURM_STEP_GPUS"):
        return len(os.environ["SLURM_STEP_GPUS"].split(","))
    devices = _visible_devices()
    if devices is not None:
        return len(devices)
    return len(os.listdir(DRIVER_FOLDER)) if DRIVER_FOLDER.is_dir() else 0


def _bound_gpus() -> int | None:
    """Return the number of GPUs that Slurm, or its user, has bound this task to.

    None if the task sees those of all tasks of the node, or nothing is known.
    """
    devices = _visible_devices()
    if devices is None:
        other = next((os.environ[name] for name in OTHER_VISIBLE_DEVICES if os.environ.get(name)), None)
        if other is None:
            return None
        devices = other.split(",")
    # The text is that of `--gpu-bind`, such as `gpu:single:1`.
    binding = os.environ.get("SLURMD_TRES_BIND", "")
    is_bound = not devices or re.search("gpu:(?!(verbose,)?none)", binding) is not None
    if not is_bound and os.environ.get(GPUS_ON_NODE):
        is_bound = len(devices) < _requested(GPUS_ON_NODE)
    return len(devices) if is_bound else None


def _initial_devices() -> str | None:
    """Return the value of `$CUDA_VISIBLE_DEVICES` that this process did not set itself."""
    value = os.environ.get(VISIBLE_DEVICES)
    return _assigned[1] if _assigned is not None and value == _assigned[0] else value


def _visible_devices() -> list[str] | None:
    """Return the devices that CUDA uses; None for all of them, which is the default."""
    value = _initial_devices()
    if value is None:
        return None
    devices = [device.strip() for device in value.split(",")]
    # CUDA ignores an invalid device and all after it. Slurm writes NoDevFiles for no device.
    return list(takewhile(lambda device: device not in ("", "-1", "NoDevFiles"), devices))


def _assign_gpus(local_id: int, tasks_on_node: int, number: int) -> None:
    """Set `$CUDA_VISIBLE_DEVICES` of this process, unless the devices in it are not those of the whole node.

    Args:
        local_id: the position of the task on its node.
        tasks_on_node: the number of tasks of the node.
        number: the GPUs of each task.
    """
    global _assigned
    visible, before = _visible_devices(), _initial_devices()
    if not visible:  # TensorFlow too replaces an empty variable by the devices of its arguments
        visible = [str(index) for index in range(tasks_on_node * number)]
    elif _bound_gpus() is not None or len(visible) < tasks_on_node * number:
        return
    devices = ",".join(visible[local_id * number : (local_id + 1) * number])
    os.environ[VISIBLE_DEVICES] = devices
    _assigned = (devices, before)


def _requested(variable: str) -> int:
    """Return a number of GPUs as options of Slurm have it: `4`, `a100:4`, or `a100:2,v100:2`."""
    matches = [_REQUEST.fullmatch(part) for part in os.environ[variable].split(",")]
    total = sum(int(match[1]) if match else MAX_GPUS + 1 for match in matches)
    if total > MAX_GPUS:
        raise reject(
            variable,
            f"is {shorten(os.environ[variable])}, not a number of GPUs such as 4 or a100:4",
            "Correct it, or pass {gpus_per_node} and {gpus_per_task}.",
        )
    return total


def _validate_number(name: str, number: Any) -> int | None:
    if number is not None and (type(number) is not int or number < 0):
        raise ConfigurationError(f"{shorten(number)} is not an integer from 0", argument=name)
    return number


def _validate_counts(name: str, counts: Any) -> dict[str, int]:
    is_mapping = isinstance(counts, Mapping) and counts and all(isinstance(key, str) for key in counts)
    if not is_mapping or None in counts.values():
        example = "{'worker': 4}" if name == "jobs" else "{'n1': 4}"
        problem = f"{shorten(counts)} is not a mapping of names to numbers of tasks, such as {example}"
        raise ConfigurationError(problem, argument=name)
    return {key: _validate_number(name, number) or 0 for key, number in counts.items()}
