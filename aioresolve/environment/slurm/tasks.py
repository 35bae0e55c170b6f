"""The tasks of a Slurm job step, or else of a job, as its variables describe them. No I/O.

Slurm's documentation of the variables: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES.
`srun` sets `SLURM_STEP_...` in each task, for the whole step even if it has several components
(`--het-group`). `sbatch` and `salloc` set the variables of the job; in a heterogeneous job, each component
has its own, with the suffix `_HET_GROUP_n`.

With `use_interactive_step` (https://slurm.schedmd.com/slurm.conf.html#OPT_LaunchParameters), `salloc` runs
its shell as a step of one task on the first node, the interactive step. The variables of that step do not
describe the tasks that `srun` starts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from aioresolve.environment.base import reject, shorten
from aioresolve.errors import ConfigurationError

from .host_list import MAX_TASKS, expand_counts, expand_host_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

Environ = Mapping[str, str]
TasksPerNode: TypeAlias = int | Mapping[str, int] | None

PROCESS_ID = "SLURM_PROCID"

STEP_ID, INTERACTIVE_STEP = "SLURM_STEP_ID", "4294967290"
"""The variable with the id of a step, and its value in the interactive step."""

MAX_COMPONENTS = 128
"""The most components of a heterogeneous job: that of Slurm."""

_SRUN = "Start the program with `srun`, which sets it, or run it inside a job of `sbatch` or `salloc`."


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """One task of a step; its position in `SlurmTasks.tasks` is its rank, `$SLURM_PROCID`.

    Attributes:
        host: the name of its node.
        local_id: its position among the tasks of the node, `$SLURM_LOCALID`.
        port_offset: its position among all tasks on that host; differs from `local_id` only if two components
            of a heterogeneous step share the host.
        tasks_on_node: the number of tasks of the node.
    """

    host: str
    local_id: int
    port_offset: int
    tasks_on_node: int


@dataclass(frozen=True, slots=True)
class SlurmTasks:
    """The tasks of a step or a job, in the order of their ranks.

    Attributes:
        tasks: the tasks.
        process_id: the rank of this process; None outside a step.
        source: the variables that they come from, such as `$SLURM_STEP_NODELIST`, for messages.
    """

    tasks: tuple[SlurmTask, ...]
    process_id: int | None
    source: str

    @property
    def own(self) -> SlurmTask | None:
        """The task of this process; None outside a step."""
        return None if self.process_id is None else self.tasks[self.process_id]


@dataclass(frozen=True, slots=True)
class _Component:
    """The names of the variables of a step, of a job, or of one component of a heterogeneous job."""

    hosts: str
    tasks_per_node: str
    suffix: str = ""

    @property
    def distribution(self) -> str:
        return f"SLURM_DISTRIBUTION{self.suffix}"

    @property
    def plane_size(self) -> str:
        return f"SLURM_DIST_PLANESIZE{self.suffix}"


STEP = _Component("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
JOB = _Component("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE")


def read_tasks(environ: Environ, tasks_per_node: TasksPerNode = None) -> SlurmTasks:
    """Return the tasks of the step that this process belongs to; outside of steps, those of the job.

    Args:
        environ: the environment variables.
        tasks_per_node: replaces the variable: the number of tasks of each node, or of each by its name.

    Raises:
        EnvironmentVariableError: variables are missing, malformed, or contradict each other.
        ConfigurationError: `tasks_per_node` names a host that is not in the list.
    """
    components = _components(environ)
    tasks: list[SlurmTask] = []
    hosts: set[str] = set()
    ports: Counter[str] = Counter()
    if not components and not isinstance(tasks_per_node, Mapping):
        raise reject(STEP.hosts, f"and ${JOB.hosts} are not set", _SRUN)
    for component in components or [STEP]:
        if isinstance(tasks_per_node, Mapping) and not components:
            nodes = list(tasks_per_node.items())
        else:
            nodes = _read_nodes(environ, component, tasks_per_node)
        if len(tasks) + sum(count for _, count in nodes) > MAX_TASKS:
            raise reject(component.hosts, f"stands for more than {MAX_TASKS} tasks", _SRUN)
        tasks += _arrange(nodes, _chunk(environ, component, nodes), ports)
        hosts.update(host for host, _ in nodes)
    if isinstance(tasks_per_node, Mapping) and (unknown := sorted(tasks_per_node.keys() - hosts)):
        raise ConfigurationError(
            f"{shorten(unknown)} are not among the nodes {shorten(sorted(hosts))}", argument="tasks_per_node"
        )
    is_step = components in ([], [STEP])
    source = " and ".join(f"${component.hosts}" for component in components[:2]) or "`tasks_per_node`"
    process_id = _read_process_id(environ, tasks) if is_step else None
    return SlurmTasks(tuple(tasks), process_id, source)


def _components(environ: Environ) -> list[_Component]:
    if environ.get(STEP.hosts) and environ.get(STEP_ID) != INTERACTIVE_STEP:
        return [STEP]
    if environ.get("SLURM_HET_SIZE"):
        size = read_integer(environ, "SLURM_HET_SIZE", MAX_COMPONENTS)
        suffixes = [f"_HET_GROUP_{number}" for number in range(size or 0)]
        return [
            _Component(f"{JOB.hosts}{suffix}", f"{JOB.tasks_per_node}{suffix}", suffix) for suffix in suffixes
        ]
    return [JOB] if environ.get(JOB.hosts) else []


def _read_nodes(
    environ: Environ, component: _Component, tasks_per_node: TasksPerNode
) -> list[tuple[str, int]]:
    """Return each node and the number of its tasks, in the order of the list."""
    hosts = _parse(expand_host_list, environ, component.hosts)
    if isinstance(tasks_per_node, int):
        return [(host, tasks_per_node) for host in hosts]
    if tasks_per_node is not None:
        return [(host, tasks_per_node.get(host, 0)) for host in hosts]
    counts = _parse(expand_counts, environ, component.tasks_per_node)
    if len(counts) != len(hosts):
        raise reject(
            component.tasks_per_node,
            f"has {len(counts)} nodes, but ${component.hosts} has {len(hosts)}",
            "Correct one of them, or pass {tasks_per_node}.",
        )
    return list(zip(hosts, counts, strict=True))


def _parse(parser: Callable[[str], list[T]], environ: Environ, variable: str) -> list[T]:
    text = environ.get(variable)
    if not text:
        raise reject(variable, "is not set", _SRUN)
    try:
        return parser(text)
    except ValueError as error:
        raise reject(variable, f"is {shorten(text)}: {error}", _SRUN) from error


def _chunk(environ: Environ, component: _Component, nodes: Sequence[tuple[str, int]]) -> int | None:
    """Return how many consecutive ranks are on one node before the next one follows; None for all of them.

    https://slurm.schedmd.com/srun.html#OPT_distribution
    """
    if len(nodes) == 1:
        return None  # every method has all tasks there, `arbitrary` too
    text = environ.get(component.distribution, "")
    method = re.split("[:,=]", text)[0]
    if max((count for _, count in nodes), default=0) <= 1 and method in ("cyclic", "plane"):
        return None
    if method in ("", "*", "block"):
        return None
    if component is STEP and environ.get("SLURM_HET_SIZE", "1") != "1":
        raise reject(
            component.distribution,
            f"is {shorten(text)}, which does not say where the tasks of a heterogeneous step are",
            "Use `srun --distribution=block`.",
        )
    if method == "cyclic":
        return 1
    if method == "plane" and (size := read_integer(environ, component.plane_size, MAX_TASKS)):
        return size
    raise reject(
        component.distribution,
        f"is {shorten(text)}, which does not say on which node each task is",
        "Use `srun --distribution` with `block`, `cyclic` or `plane=SIZE`.",
    )


def _arrange(nodes: Sequence[tuple[str, int]], chunk: int | None, ports: Counter[str]) -> Iterator[SlurmTask]:
    """Yield the tasks of the nodes by rank: `chunk` tasks of each node, until all nodes have theirs."""
    started = [0] * len(nodes)
    pending = [number for number, (_, count) in enumerate(nodes) if count]
    while pending:
        for number in pending:
            host, count = nodes[number]
            size = count if chunk is None else min(chunk, count - started[number])
            for _ in range(size):
                yield SlurmTask(host, started[number], ports[host], count)
                started[number] += 1
                ports[host] += 1
        pending = [number for number in pending if started[number] < nodes[number][1]]


def _read_process_id(environ: Environ, tasks: Sequence[SlurmTask]) -> int | None:
    """Return the rank of this process, after comparing it with the other variables of the step."""
    expected = read_integer(environ, "SLURM_STEP_NUM_TASKS", MAX_TASKS)
    if expected is not None and expected != len(tasks):
        raise reject(
            "SLURM_STEP_NUM_TASKS",
            f"is {expected}, but the nodes of the step have {len(tasks)} tasks",
            f"Correct ${STEP.tasks_per_node}, or {{tasks_per_node}} if it is passed.",
        )
    rank = read_integer(environ, PROCESS_ID, MAX_TASKS)
    if rank is None:
        return None
    if rank >= len(tasks):
        raise reject(PROCESS_ID, f"is {rank}, but the step has only {len(tasks)} tasks", _SRUN)
    own = tasks[rank]
    evidence = {"SLURMD_NODENAME": own.host, "SLURM_LOCALID": str(own.local_id)}
    for variable, value in evidence.items():
        if environ.get(variable, value) != value:
            raise reject(
                variable,
                f"is {shorten(environ[variable])}, but according to the node list of the step, task {rank} is"
                f" number {own.local_id} on {own.host}",
                "Check {tasks_per_node}, or start the step with `srun --distribution=block`.",
            )
    return rank


def read_integer(environ: Environ, variable: str, limit: int) -> int | None:
    """Return the number in a variable, from 0 to `limit`; None if it is not set or empty.

    Raises:
        EnvironmentVariableError: it is not such a number.
    """
    text = environ.get(variable)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) > limit:
        raise reject(variable, f"is {shorten(text)}, not an integer from 0 to {limit}", _SRUN)
    return int(text)
