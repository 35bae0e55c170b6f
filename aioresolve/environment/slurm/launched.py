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
    NODE_NAME,
    STEP_HOSTS,
    STEP_ID,
    SlurmTask,
    SlurmTasks,
    read_integer,
    read_tasks,
)

if TYPE_CHECKING:
    from .tasks import Environ, TasksPerNode

# Preferred, because MPICH hands the name of the node of `mpiexec` on to all processes.
NODE_ID = "SLURM_NODEID"


def read_processes(environ: Environ, tasks_per_node: TasksPerNode = None) -> SlurmTasks:
    """Return the processes of the innermost launcher; `read_tasks` if it is `srun`.

    Raises:
        EnvironmentVariableError: see `read_tasks`; or the hosts of the launcher's processes are not known.
        ConfigurationError: see `read_tasks`.
    """
    process = launched_process(environ)
    job = JOB_HOSTS if environ.get(JOB_HOSTS) else STEP_HOSTS
    step = STEP_HOSTS if environ.get(STEP_HOSTS) else job
    if process is None or not environ.get(job):
        return read_tasks(environ, tasks_per_node)
    if process.local_size is None or tasks_per_node is not None:
        tasks = read_tasks(environ, tasks_per_node)
        if process.has_number(tasks.process_id, len(tasks.tasks)):
            return tasks
        raise process.contradicts(f"${step} has {len(tasks.tasks)} tasks, and this is {tasks.process_id}")
    is_in_step = step == STEP_HOSTS and environ.get(STEP_ID) != INTERACTIVE_STEP
    variable = job if process.launcher.is_mpi or not is_in_step else step
    hosts, nodes = _hosts(environ, variable), _hosts(environ, step)
    own, node_id = environ.get(NODE_NAME), read_integer(environ, NODE_ID, MAX_HOSTS)
    if node_id is not None:
        own = nodes[node_id] if node_id < len(nodes) else None
    if own is None or own not in nodes:
        raise process.contradicts(f"${step} has {len(nodes)} nodes, and ${NODE_ID} is {node_id}")
    if process.all_on_this_host:
        number = read_integer(environ, "SLURM_STEP_NUM_TASKS", MAX_TASKS) if is_in_step else None
        if (number or 1) > 1:  # each of the tasks may have started a launcher of its own
            raise process.contradicts(f"$SLURM_STEP_NUM_TASKS is {number}")
        hosts = [own]
    elif environ.get("SLURM_HET_SIZE", "1") != "1":  # the launcher may use the nodes of one component
        raise process.contradicts(f"$SLURM_HET_SIZE is {environ['SLURM_HET_SIZE']}")
    placed = process.place(hosts, own)
    if placed is None:
        raise process.contradicts(f"${variable} has {len(hosts)} nodes, and this is {own} (${NODE_ID})")
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
