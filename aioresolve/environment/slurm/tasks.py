"""The tasks of a Slurm job step, or else of a job, as its variables describe them.

Slurm's documentation of the variables: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES.
`srun` sets `SLURM_STEP_...` in each task. `sbatch` and `salloc` set the variables of the job. There, a step
does not exist yet, and its tasks are those that `srun` would start.

A heterogeneous job has several components, each with its own variables. Their suffix is `_HET_GROUP_n`, and
only `_PACK_GROUP_n` in a job that `srun` created. The ranks of a step follow its components, while `srun`
sorts the node list of the step by name.

With `use_interactive_step` (https://slurm.schedmd.com/slurm.conf.html#OPT_LaunchParameters), `salloc` runs
its shell as a step of one task on the first node, the interactive step. The variables of that step do not
describe the tasks that `srun` starts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from aioresolve.environment.base import reject, shorten
from aioresolve.errors import ConfigurationError

from .host_list import MAX_TASKS, expand_counts, expand_host_file, expand_host_list

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

T = TypeVar("T")

Environ = Mapping[str, str]
TasksPerNode: TypeAlias = int | Mapping[str, int] | None

PROCESS_ID = "SLURM_PROCID"
NODE_NAME = "SLURMD_NODENAME"
STEP_HOSTS = "SLURM_STEP_NODELIST"
STEP_COUNTS = "SLURM_STEP_TASKS_PER_NODE"
JOB_HOSTS = "SLURM_JOB_NODELIST"
JOB_COUNTS = "SLURM_TASKS_PER_NODE"
OWN_RANKS = "SLURM_GTIDS"
DISTRIBUTION = "SLURM_DISTRIBUTION"
PLANE_SIZE = "SLURM_DIST_PLANESIZE"
HOST_FILE = "SLURM_HOSTFILE"

STEP_ID, INTERACTIVE_STEP = "SLURM_STEP_ID", "4294967290"
"""The variable with the id of a step, and its value in the interactive step."""

MAX_COMPONENTS = 128
"""The most components of a heterogeneous job: that of Slurm."""

_SRUN = "Start the program with `srun`, which sets it, or run it inside a job of `sbatch` or `salloc`."
_DISTRIBUTIONS = (
    "Use `srun --distribution` with `block`, `cyclic` or `plane=SIZE`, or with `arbitrary` and a file"
    " $SLURM_HOSTFILE that all nodes can read."
)
_COMPONENTS = (
    "Use `srun --distribution=block` for each component, or pass `--distribution` to `sbatch` or `salloc`,"
    " which set it for all tasks."
)


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """One task of a step; its position in `SlurmTasks.tasks` is its rank, `$SLURM_PROCID`.

    Attributes:
        host: the name of its node.
        local_id: its position among the tasks of the node, `$SLURM_LOCALID`.
        tasks_on_node: the number of tasks of the node.
    """

    host: str
    local_id: int
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
    """Nodes whose tasks have consecutive ranks: those of a step, of a job, or of a component of either.

    Attributes:
        nodes: each node and the number of its tasks.
        suffix: that of the variables of a component.
    """

    nodes: tuple[tuple[str, int], ...]
    suffix: str = ""

    @property
    def num_tasks(self) -> int:
        return sum(count for _, count in self.nodes)


def read_tasks(environ: Environ, tasks_per_node: TasksPerNode = None) -> SlurmTasks:
    """Return the tasks of the step that this process belongs to; outside of steps, those of the job.

    Args:
        environ: the environment variables.
        tasks_per_node: replaces the variable: the number of tasks of each node, or of each by its name.

    Raises:
        EnvironmentVariableError: variables are missing, malformed, or contradict each other, or do not say
            on which node each task is.
        ConfigurationError: `tasks_per_node` names a host that is not in the list.
    """
    is_step = _is_step(environ)
    groups = _component_suffixes(environ)
    if is_step:
        source = STEP_HOSTS
        nodes = _read_nodes(environ, STEP_HOSTS, STEP_COUNTS, tasks_per_node)
        components = _split_step(environ, nodes, groups)
    elif groups or environ.get(JOB_HOSTS):
        source = JOB_HOSTS + (groups[0] if groups else "")
        components = [_read_job(environ, suffix, tasks_per_node) for suffix in groups or [""]]
    elif isinstance(tasks_per_node, Mapping):
        source = ""
        components = [_Component(tuple(tasks_per_node.items()))]
    else:
        raise reject(STEP_HOSTS, f"and ${JOB_HOSTS} are not set", _SRUN)
    counts = Counter(host for component in components for host, _ in component.nodes)
    if repeated := [host for host, number in counts.items() if number > 1]:
        raise reject(source, f"names {shorten(repeated[0])} twice", _SRUN)
    if isinstance(tasks_per_node, Mapping) and (unknown := sorted(tasks_per_node.keys() - counts.keys())):
        raise ConfigurationError(
            f"{shorten(unknown)} are not among the nodes {shorten(sorted(counts))}", argument="tasks_per_node"
        )
    if (total := sum(component.num_tasks for component in components)) > MAX_TASKS:
        raise reject(source, f"stands for more than {MAX_TASKS} tasks", _SRUN)
    rank = _read_rank(environ, total) if is_step else None
    hosts = _hosts_by_rank(environ, components, rank)
    tasks = _with_local_ids(hosts)
    if rank is not None:
        _check_own_task(environ, tasks, rank)
    return SlurmTasks(tasks, rank, f"${source}" if source else "`tasks_per_node`")


def find_node(hosts: Collection[str], name: str | None) -> str | None:
    """Return the host that has a name, if one of the two has a domain too; None if it is not exactly one."""
    if not name or name in hosts:
        return name or None
    found = {host for host in hosts if host.startswith(f"{name}.") or name.startswith(f"{host}.")}
    return found.pop() if len(found) == 1 else None


def _is_step(environ: Environ) -> bool:
    """Whether the variables of a step are those of a step that this process is a task of.

    A batch script that was submitted inside a step has inherited them. It has the rank 0, and no other rank
    on its node.
    """
    if not environ.get(STEP_HOSTS) or environ.get(STEP_ID) == INTERACTIVE_STEP:
        return False
    if not environ.get(JOB_HOSTS):
        return True
    hosts = _parse(expand_host_list, environ, STEP_HOSTS)
    if not set(hosts) <= set(_parse(expand_host_list, environ, JOB_HOSTS)):
        return False
    step, job = environ.get(STEP_COUNTS), environ.get(JOB_COUNTS)
    if job and step != job and environ.get(PROCESS_ID) == environ.get(OWN_RANKS) == "0":
        raise reject(
            STEP_COUNTS,
            f"is {shorten(step)}, but ${JOB_COUNTS} is {shorten(job)}: this is a step, or a job that was"
            " submitted inside a step",
            f"In a job, unset ${STEP_HOSTS}. In a step, do not use `srun --preserve-env`.",
        )
    return True


def _component_suffixes(environ: Environ) -> list[str]:
    """Return the suffixes of the variables of the components; empty if the job is not heterogeneous."""
    size = read_integer(environ, "SLURM_HET_SIZE", MAX_COMPONENTS)
    size = read_integer(environ, "SLURM_PACK_SIZE", MAX_COMPONENTS) if size is None else size
    labels = ("_HET_GROUP_", "_PACK_GROUP_")
    label = next((label for label in labels if f"{JOB_HOSTS}{label}0" in environ), labels[0])
    job, first = environ.get("SLURM_JOB_ID"), environ.get(f"SLURM_JOB_ID{label}0")
    if job and first and job != first:
        return []  # inherited by a job that was submitted inside the heterogeneous one
    return [f"{label}{number}" for number in range(size or 0)]


def _read_nodes(
    environ: Environ, hosts_variable: str, counts_variable: str, tasks_per_node: TasksPerNode
) -> tuple[tuple[str, int], ...]:
    """Return each node and the number of its tasks, in the order of the list."""
    hosts = _parse(expand_host_list, environ, hosts_variable)
    if isinstance(tasks_per_node, int):
        return tuple((host, tasks_per_node) for host in hosts)
    if tasks_per_node is not None:
        return tuple((host, tasks_per_node.get(host, 0)) for host in hosts)
    counts = _parse(expand_counts, environ, counts_variable)
    if len(counts) != len(hosts):
        raise reject(
            counts_variable,
            f"is {shorten(environ[counts_variable])}, which has {len(counts)} nodes, but ${hosts_variable}"
            f" is {shorten(environ[hosts_variable])}, which has {len(hosts)}",
            "Correct one of them, or pass {tasks_per_node}.",
        )
    return tuple(zip(hosts, counts, strict=True))


def _read_job(environ: Environ, suffix: str, tasks_per_node: TasksPerNode) -> _Component:
    """Return the tasks that `srun` would start in a job, or in one component of a heterogeneous job."""
    counts = f"{JOB_COUNTS}{suffix}"
    # `srun` reads the variable of the component, or else that of the job.
    total = next((name for name in (f"SLURM_NTASKS{suffix}", "SLURM_NTASKS") if environ.get(name)), None)
    if tasks_per_node is None and total is None:
        # The variable counts the CPUs of each node here, while `srun` starts one task there.
        names = (f"SLURM_NTASKS_PER_NODE{suffix}", "SLURM_NTASKS_PER_NODE")
        tasks_per_node = next(filter(None, (read_integer(environ, name, MAX_TASKS) for name in names)), 1)
    component = _Component(_read_nodes(environ, f"{JOB_HOSTS}{suffix}", counts, tasks_per_node), suffix)
    if tasks_per_node is None and total is not None:
        if read_integer(environ, total, MAX_TASKS) != component.num_tasks:
            raise reject(
                total,
                f"is {environ[total]}, but ${counts} is {shorten(environ[counts])}, which has"
                f" {component.num_tasks} tasks",
                "Pass {tasks_per_node}, or the number of tasks to `sbatch` or `salloc` (`--ntasks`).",
            )
        _check_counts(environ, component)
    return component


def _check_counts(environ: Environ, component: _Component) -> None:
    """Raise an error if `srun` may start other numbers of tasks on the nodes of a job than the variables say.

    They are those of `block` and `--cpus-per-task`. With `pack` and `plane`, `srun` fills the nodes in
    another way, unless the job has no more CPUs than its tasks need. The `srun` of Slurm 22.05 to 23.02 reads
    only `$SRUN_CPUS_PER_TASK`, so that more tasks fit on a node, and balances their numbers.
    """
    counts = [count for _, count in component.nodes]
    if len(counts) == 1:
        return
    read = read_integer(environ, "SRUN_CPUS_PER_TASK", MAX_TASKS) or 1
    variable = f"{DISTRIBUTION}{component.suffix}"
    if {"pack", "plane"} & set(re.split("[:,=]", environ.get(variable, ""))):
        cpus = _parse(expand_counts, environ, f"SLURM_JOB_CPUS_PER_NODE{component.suffix}")
        is_certain = [number // read for number in cpus] == counts
    else:
        variable = f"SLURM_CPUS_PER_TASK{component.suffix}"
        size, more = divmod(component.num_tasks, len(counts))
        is_balanced = counts == [size + (number < more) for number in range(len(counts))]
        is_certain = is_balanced or (read_integer(environ, variable, MAX_TASKS) or 1) == read
    if not is_certain:
        raise reject(
            variable,
            f"is {shorten(environ[variable])}, so that `srun` may start other numbers of tasks on the nodes"
            f" than ${JOB_COUNTS}{component.suffix} has: {shorten(environ[JOB_COUNTS + component.suffix])}",
            "Run the program in a task of `srun`, or pass {tasks_per_node}.",
        )


def _split_step(
    environ: Environ, nodes: tuple[tuple[str, int], ...], groups: Sequence[str]
) -> list[_Component]:
    """Return the components of a step, in the order of their ranks."""
    left, components = dict(nodes), []
    for suffix in groups:
        hosts = _parse(expand_host_list, environ, f"{JOB_HOSTS}{suffix}")
        if part := tuple((host, left.pop(host)) for host in hosts if host in left):
            components.append(_Component(part, suffix))
    if groups and left:
        raise reject(
            STEP_HOSTS,
            f"is {shorten(environ[STEP_HOSTS])}, but no component of the job has {shorten(next(iter(left)))}"
            f" (${JOB_HOSTS}{groups[0]} is {shorten(environ[JOB_HOSTS + groups[0]])}, ...)",
            _SRUN,
        )
    return components if len(components) > 1 else [_Component(nodes)]


def _parse(parser: Callable[[str], list[T]], environ: Environ, variable: str) -> list[T]:
    text = environ.get(variable)
    if not text:
        raise reject(variable, "is not set", _SRUN)
    try:
        return parser(text)
    except ValueError as error:
        raise reject(variable, f"is {shorten(text)}: {error}", _SRUN) from error


def _hosts_by_rank(environ: Environ, components: Sequence[_Component], rank: int | None) -> list[str]:
    """Return the host of each rank."""
    nodes = [node for component in components for node in component.nodes if node[1]]
    own_ranks = _own_ranks(environ) if rank is not None else None
    own_host = find_node([host for host, _ in nodes], environ.get(NODE_NAME))
    if len(nodes) == 2 and own_ranks is not None and own_host is not None:
        # Whatever the distribution is: the tasks that are not on this node are on the other one.
        other = next(host for host, _ in nodes if host != own_host)
        ranks = set(own_ranks)
        hosts = [own_host if each in ranks else other for each in range(sum(count for _, count in nodes))]
        if Counter(hosts) == Counter(dict(nodes)):
            return hosts
        # The ranks contradict the numbers of tasks: `_check_own_task` reports it.
    hosts = []
    for component in components:
        first = len(hosts)
        hosts += _arrange(environ, component, f"{DISTRIBUTION}{component.suffix}")
        if rank is not None and len(components) > 1 and first <= rank < len(hosts):
            _check_distribution(environ, component, components[-1])
    return hosts


def _check_distribution(environ: Environ, own: _Component, last: _Component) -> None:
    """Raise an error if `srun --distribution` was not `block` for each component of a step.

    `srun` sets the distribution of the task's own component, or that of the last one. For the others, the
    task has to assume the default, which `_arrange` does. Thus the tasks of a component that has another
    distribution raise an error. No task has to assume anything if `sbatch` or `salloc` has set the variables
    of the components.
    """
    is_plane = environ.get(DISTRIBUTION, "").startswith("plane")
    # The size for a component before the last one remains set.
    variable = PLANE_SIZE if environ.get(PLANE_SIZE) and not is_plane else DISTRIBUTION
    for component in (own, last) if variable == DISTRIBUTION else ():
        assumed = _arrange(environ, component, f"{DISTRIBUTION}{component.suffix}")
        if _arrange(environ, component, DISTRIBUTION, _COMPONENTS) == assumed:
            return
    raise reject(
        variable,
        f"is {shorten(environ[variable])}, but ${variable}{own.suffix} is not set, so that the tasks of other"
        " components cannot know on which node each task is",
        _COMPONENTS,
    )


def _arrange(environ: Environ, component: _Component, variable: str, hint: str = _DISTRIBUTIONS) -> list[str]:
    """Return the hosts of the tasks of a component by rank, for the distribution in a variable.

    https://slurm.schedmd.com/srun.html#OPT_distribution
    """
    nodes = [node for node in component.nodes if node[1]]
    text = environ.get(variable, "")
    method = re.split("[:,=]", text)[0]
    most = max((count for _, count in nodes), default=1)
    if len(nodes) <= 1 or method in ("", "*", "block", "pack", "nopack"):
        size: int | None = most
    elif method == "cyclic":
        size = 1
    elif method == "plane":
        size_variable = variable.replace(DISTRIBUTION, PLANE_SIZE)
        size = 1 if most == 1 else read_integer(environ, size_variable, MAX_TASKS)
    elif method == "arbitrary" and variable == DISTRIBUTION and environ.get(HOST_FILE):
        return _read_host_file(environ, component)
    else:
        size = None
    if not size:
        raise reject(variable, f"is {shorten(text)}, which does not say on which node each task is", hint)
    hosts: list[str] = []
    started = 0
    while nodes:  # `size` tasks on each node, until all nodes have theirs
        for host, count in nodes:
            hosts += [host] * min(size, count - started)
        started += size
        nodes = [node for node in nodes if node[1] > started]
    return hosts


def _read_host_file(environ: Environ, component: _Component) -> list[str]:
    """Return the hosts of the tasks by rank with `--distribution=arbitrary`."""
    path, expected = environ[HOST_FILE], Counter(dict(component.nodes))
    try:
        hosts = expand_host_file(Path(path).read_text())[: component.num_tasks]
    except (OSError, ValueError) as error:
        raise reject(
            HOST_FILE, f"is {shorten(path)}, which cannot be read: {error}", _DISTRIBUTIONS
        ) from error
    if (found := Counter(hosts)) != expected:
        host = next(iter((found - expected) or (expected - found)))
        raise reject(
            HOST_FILE,
            f"is {shorten(path)}, which has {shorten(host)} {found[host]} times, but ${STEP_HOSTS} is"
            f" {shorten(environ.get(STEP_HOSTS))} and has {expected[host]} tasks there",
            f"Correct the file. {_DISTRIBUTIONS}",
        )
    return hosts


def _with_local_ids(hosts: Sequence[str]) -> tuple[SlurmTask, ...]:
    total, started, tasks = Counter(hosts), Counter[str](), []
    for host in hosts:
        tasks.append(SlurmTask(host, started[host], total[host]))
        started[host] += 1
    return tuple(tasks)


def _read_rank(environ: Environ, total: int) -> int | None:
    """Return the rank of this process in a step with that many tasks; None if it is not set."""
    counts = f"${STEP_COUNTS} is {shorten(environ.get(STEP_COUNTS))}"
    expected = read_integer(environ, "SLURM_STEP_NUM_TASKS", MAX_TASKS)
    if expected is not None and expected != total:
        raise reject(
            "SLURM_STEP_NUM_TASKS",
            f"is {expected}, but the nodes of the step have {total} tasks ({counts})",
            f"Correct ${STEP_COUNTS}, or {{tasks_per_node}} if it is passed.",
        )
    rank = read_integer(environ, PROCESS_ID, MAX_TASKS)
    if rank is not None and rank >= total:
        raise reject(PROCESS_ID, f"is {rank}, but the step has only {total} tasks ({counts})", _SRUN)
    return rank


def _own_ranks(environ: Environ) -> list[int] | None:
    """Return the ranks on the node of this process; None if they are not set."""
    if not environ.get(OWN_RANKS):
        return None
    return _parse(lambda text: [int(number) for number in text.split(",")], environ, OWN_RANKS)


def _check_own_task(environ: Environ, tasks: Sequence[SlurmTask], rank: int) -> None:
    """Raise an error if the task of this process is not where Slurm has started this process."""
    own = tasks[rank]
    ranks = [number for number, task in enumerate(tasks) if task.host == own.host]
    node, local_id = environ.get(NODE_NAME), environ.get("SLURM_LOCALID")
    if node and find_node({task.host for task in tasks}, node) != own.host:
        variable = NODE_NAME
    elif local_id and local_id != str(own.local_id):
        variable = "SLURM_LOCALID"
    elif (_own_ranks(environ) or ranks) != ranks:
        variable = OWN_RANKS
    else:
        return
    texts = [f"${name} {shorten(environ[name])}" for name in (STEP_HOSTS, DISTRIBUTION) if name in environ]
    raise reject(
        variable,
        f"is {shorten(environ[variable])}, but task {rank} (${PROCESS_ID}) is number {own.local_id} on"
        f" {own.host}, which has the tasks {shorten(ranks)}, according to {' and '.join(texts)}",
        f"Check {{tasks_per_node}} if it is passed. {_COMPONENTS}",
    )


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
