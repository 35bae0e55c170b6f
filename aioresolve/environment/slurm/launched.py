"""The processes that `mpirun`, `mpiexec` or `torchrun` started inside a Slurm job. No I/O.

`mpirun` and `mpiexec` start one daemon on each other node by `srun`, whose processes inherit the variables of
that step: they count the daemons, not the processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.environment.base import reject, shorten
from aioresolve.resolver.launchers import launched_process

from .host_list import MAX_HOSTS, MAX_TASKS, expand_host_list
from .tasks import (
    INTERACTIVE_STEP,
    JOB_HOSTS,
    STEP_HOSTS,
    STEP_ID,
    SlurmTask,
    SlurmTasks,
    read_integer,
    read_tasks,
)

if TYPE_CHECKING:
    from .tasks import Environ, TasksPerNode

# The node that `$SLURMD_NODENAME` names is that of mpiexec in every process of MPICH.
NODE_ID = "SLURM_NODEID"


def read_processes(environ: Environ, tasks_per_node: TasksPerNode = None) -> SlurmTasks:
    """Return the processes of the innermost launcher; `read_tasks` if it is `srun`.

    Raises:
        EnvironmentVariableError: see `read_tasks`; or the hosts of the launcher's processes are not known.
        ConfigurationError: see `read_tasks`.
    """
    process = launched_process(environ)
    step, job = STEP_HOSTS, JOB_HOSTS if environ.get(JOB_HOSTS) else STEP_HOSTS
    if process is None or not environ.get(job):
        return read_tasks(environ, tasks_per_node)
    if process.local_size is None or tasks_per_node is not None:
        tasks = read_tasks(environ, tasks_per_node)
        if process.has_number(tasks.process_id, len(tasks.tasks)):
            return tasks
        raise process.contradicts(
            f"${STEP_HOSTS} has {len(tasks.tasks)} tasks, and this is {tasks.process_id}"
        )
    is_in_step = bool(environ.get(step)) and environ.get(STEP_ID) != INTERACTIVE_STEP
    variable = job if process.launcher.is_mpi or not is_in_step else step
    hosts = _hosts(environ, variable)
    nodes = _hosts(environ, step if environ.get(step) else job)
    node_id = read_integer(environ, NODE_ID, MAX_HOSTS)
    if node_id is None or node_id >= len(nodes):
        raise process.contradicts(f"${NODE_ID} is {node_id}, and Slurm has {len(nodes)} nodes")
    if process.all_on_this_host:
        number = read_integer(environ, "SLURM_STEP_NUM_TASKS", MAX_TASKS) if is_in_step else None
        if (number or 1) > 1:  # each of the tasks may have started a launcher of its own
            raise process.contradicts(f"$SLURM_STEP_NUM_TASKS is {number}")
        hosts = [nodes[node_id]]
    elif environ.get("SLURM_HET_SIZE", "1") != "1":  # the launcher may use the nodes of one component
        raise process.contradicts(f"$SLURM_HET_SIZE is {environ['SLURM_HET_SIZE']}")
    placed = process.place(hosts, nodes[node_id])
    if placed is None:
        raise process.contradicts(
            f"${variable} has {len(hosts)} nodes, and this is {nodes[node_id]} (${NODE_ID})"
        )
    return SlurmTasks(
        tuple(SlurmTask(host, local_id, process.local_size) for host, local_id in placed),
        process.rank,
        f"${process.launcher.size} of {process.launcher.name} on ${variable}",
    )


def _hosts(environ: Environ, variable: str) -> list[str]:
    try:
        return expand_host_list(environ[variable])
    except ValueError as error:
        raise reject(
            variable, f"is {shorten(environ[variable])}: {error}", "Start the program inside a job of Slurm."
        ) from error
