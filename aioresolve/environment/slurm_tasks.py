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

Host lists, such as `n[1-2],m5,o[006-011]`, have the grammar of `scontrol show hostnames`
(https://slurm.schedmd.com/scontrol.html), and permit text after brackets, too: `n[1-2]-ib0`. What Slurm
accepts but never writes, such as unbalanced brackets, spaces and empty entries, is an error.
"""

from __future__ import annotations

import itertools
import re
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from aioresolve.errors import ConfigurationError
from aioresolve.spec import host_port

from .base import reject, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aioresolve.errors import EnvironmentVariableError

T = TypeVar("T")

TasksPerNode: TypeAlias = int | Mapping[str, int] | None

Nodes: TypeAlias = dict[str, int]
"""Each node and the number of its tasks, in the order of the node list."""

PROCESS_ID = "SLURM_PROCID"
NODE_NAME = "SLURMD_NODENAME"
STEP_HOSTS = "SLURM_STEP_NODELIST"
STEP_COUNTS = "SLURM_STEP_TASKS_PER_NODE"
STEP_TASKS = "SLURM_STEP_NUM_TASKS"
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

MAX_HOSTS = 65_536
"""The most hosts of a list: a few characters can stand for any number. Slurm has this limit for one range."""

MAX_TASKS = 262_144
"""The most tasks of all nodes."""

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")

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
class SlurmTasks:
    """The tasks of a step or a job.

    Attributes:
        hosts: the name of the node of each task, in the order of their ranks. A task with rank n is
            `$SLURM_PROCID` n; `$SLURM_LOCALID` is its position among those of the same node.
        process_id: the rank of this process; None outside a step.
        source: the variables that they come from, such as `$SLURM_STEP_NODELIST`, for messages.
    """

    hosts: tuple[str, ...]
    process_id: int | None
    source: str

    @property
    def own_ranks(self) -> list[int]:
        """The ranks on the node of this process, by their position there; empty outside a step."""
        own = None if self.process_id is None else self.hosts[self.process_id]
        return [rank for rank, host in enumerate(self.hosts) if host == own]


def find_node(hosts: Collection[str], name: str) -> str | None:
    """Return the host that has a name, if one of the two has a domain too; None if it is not exactly one."""
    if name in hosts:
        return name
    found = {host for host in hosts if host.startswith(f"{name}.") or name.startswith(f"{host}.")}
    return found.pop() if name and len(found) == 1 else None


class SlurmVariables:
    """The variables of Slurm. A variable that is empty is as one that is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __getitem__(self, name: str) -> str:
        return self._environ.get(name, "")

    def integer(self, name: str, limit: int = MAX_TASKS) -> int | None:
        """Return the number in a variable, from 0 to `limit`; None if it is not set."""
        text = self[name]
        if not text:
            return None
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) > limit:
            raise self.wrong(name, f"not an integer from 0 to {limit}")
        return int(text)

    def parsed(self, name: str, parser: Callable[[str], list[T]]) -> list[T]:
        """Return the list in a variable that has to be set; `parser` raises a ValueError."""
        if not self[name]:
            raise reject(name, "is not set", _SRUN)
        try:
            return parser(self[name])
        except ValueError as error:
            raise reject(name, f"is {shorten(self[name])}: {error}", _SRUN) from error

    def hosts(self, name: str) -> list[str]:
        return self.parsed(name, expand_host_list)

    def own_ranks(self) -> list[int]:
        """Return the ranks on the node of this process; empty if they are not set."""
        return self.parsed(OWN_RANKS, lambda text: [*map(int, text.split(","))]) if self[OWN_RANKS] else []

    def wrong(self, name: str, problem: str, hint: str = _SRUN) -> EnvironmentVariableError:
        """Return the error for the value of a variable."""
        return reject(name, f"is {shorten(self._environ.get(name))}, {problem}", hint)


def read_tasks(variables: SlurmVariables, tasks_per_node: TasksPerNode) -> SlurmTasks:
    """Return the tasks of the step that this process belongs to; outside of steps, those of the job.

    Args:
        variables: the variables.
        tasks_per_node: replaces the variable: the number of tasks of each node, or of each by its name.

    Raises:
        EnvironmentVariableError: variables are missing, malformed, or contradict each other, or do not say
            on which node each task is.
        ConfigurationError: `tasks_per_node` names a host that is not in the list.
    """
    suffixes = _component_suffixes(variables)
    # A batch script that was submitted inside a step has inherited the variables of that step.
    is_step = bool(variables[STEP_HOSTS]) and variables[STEP_ID] != INTERACTIVE_STEP
    if is_step and variables[JOB_HOSTS]:
        is_step = set(variables.hosts(STEP_HOSTS)) <= set(variables.hosts(JOB_HOSTS))
    if is_step:
        source = STEP_HOSTS
        components = _read_step(variables, suffixes, tasks_per_node)
    elif suffixes or variables[JOB_HOSTS]:
        source = f"{JOB_HOSTS}{suffixes[0] if suffixes else ''}"
        components = {suffix: _read_job(variables, suffix, tasks_per_node) for suffix in suffixes or [""]}
    else:
        raise reject(STEP_HOSTS, f"and ${JOB_HOSTS} are not set", _SRUN)
    counts = Counter({host: count for nodes in components.values() for host, count in nodes.items()})
    if isinstance(tasks_per_node, Mapping) and (unknown := sorted(tasks_per_node.keys() - counts.keys())):
        raise ConfigurationError(
            f"{shorten(unknown)} are not among the nodes {shorten(sorted(counts))}", argument="tasks_per_node"
        )
    if counts.total() > MAX_TASKS:
        raise reject(source, f"stands for more than {MAX_TASKS} tasks", _SRUN)
    rank = _read_rank(variables, counts.total()) if is_step else None
    hosts = _hosts_by_rank(variables, components, +counts, rank)
    if rank is not None:
        _check_own_task(variables, hosts, rank)
    return SlurmTasks(tuple(hosts), rank, f"${source}")


def _component_suffixes(variables: SlurmVariables) -> list[str]:
    """Return the suffixes of the variables of the components; empty if the job is not heterogeneous."""
    size = variables.integer("SLURM_HET_SIZE", MAX_COMPONENTS)
    size = variables.integer("SLURM_PACK_SIZE", MAX_COMPONENTS) if size is None else size
    labels = ("_HET_GROUP_", "_PACK_GROUP_")
    label = next((label for label in labels if variables[f"{JOB_HOSTS}{label}0"]), labels[0])
    job, first = variables["SLURM_JOB_ID"], variables[f"SLURM_JOB_ID{label}0"]
    if job and first and job != first:
        return []  # inherited by a job that was submitted inside the heterogeneous one
    return [f"{label}{number}" for number in range(size or 0)]


def _read_nodes(
    variables: SlurmVariables, hosts_variable: str, counts_variable: str, tasks_per_node: TasksPerNode
) -> Nodes:
    hosts = variables.hosts(hosts_variable)
    if isinstance(tasks_per_node, Mapping):
        counts = [tasks_per_node.get(host, 0) for host in hosts]
    elif tasks_per_node is not None:
        counts = [tasks_per_node] * len(hosts)
    else:
        counts = variables.parsed(counts_variable, expand_counts)
    if len(counts) != len(hosts):
        raise variables.wrong(
            counts_variable,
            f"which has {len(counts)} nodes, but ${hosts_variable} is {shorten(variables[hosts_variable])},"
            f" which has {len(hosts)}",
            "Correct one of them, or pass {tasks_per_node}.",
        )
    nodes = dict(zip(hosts, counts, strict=True))
    if len(nodes) < len(hosts):
        raise variables.wrong(hosts_variable, "which names a host twice")
    return nodes


def _read_step(
    variables: SlurmVariables, suffixes: list[str], tasks_per_node: TasksPerNode
) -> dict[str, Nodes]:
    """Return the nodes of a step by the suffixes of their components, in the order of their ranks."""
    nodes = _read_nodes(variables, STEP_HOSTS, STEP_COUNTS, tasks_per_node)
    left, components = dict(nodes), {}
    for suffix in suffixes:
        hosts = variables.hosts(f"{JOB_HOSTS}{suffix}")
        if part := {host: left.pop(host) for host in hosts if host in left}:
            components[suffix] = part
    if suffixes and left:
        variable = f"{JOB_HOSTS}{suffixes[0]}"
        raise variables.wrong(
            STEP_HOSTS,
            f"but no component of the job has {shorten(next(iter(left)))} (${variable} is"
            f" {shorten(variables[variable])}, ...)",
        )
    return components if len(components) > 1 else {"": nodes}


def _read_job(variables: SlurmVariables, suffix: str, tasks_per_node: TasksPerNode) -> Nodes:
    """Return the tasks that `srun` would start in a job, or in one component of a heterogeneous job."""

    def own(name: str) -> str:
        # `srun` reads the variable of the component, or else that of the job.
        return f"{name}{suffix}" if variables[f"{name}{suffix}"] else name

    total, counts = variables.integer(own("SLURM_NTASKS")), f"{JOB_COUNTS}{suffix}"
    is_certain = tasks_per_node is not None or total is None
    if is_certain and tasks_per_node is None:
        # The counts are those of the CPUs here, while `srun` starts one task on each node.
        tasks_per_node = variables.integer(own("SLURM_NTASKS_PER_NODE")) or 1
    nodes = _read_nodes(variables, f"{JOB_HOSTS}{suffix}", counts, tasks_per_node)
    if is_certain:
        return nodes
    if total != sum(nodes.values()):
        raise variables.wrong(
            own("SLURM_NTASKS"),
            f"but ${counts} is {shorten(variables[counts])}, which has {sum(nodes.values())} tasks",
            "Pass {tasks_per_node}, or the number of tasks to `sbatch` or `salloc` (`--ntasks`).",
        )
    _check_counts(variables, suffix, list(nodes.values()))
    return nodes


def _check_counts(variables: SlurmVariables, suffix: str, counts: list[int]) -> None:
    """Raise an error if `srun` may start other numbers of tasks on the nodes of a job than the variables say.

    They are those of `block` and `--cpus-per-task`. With `pack` and `plane`, `srun` fills the nodes in
    another way, unless the job has no more CPUs than its tasks need. The `srun` of Slurm 22.05 to 23.02 reads
    only `$SRUN_CPUS_PER_TASK`, so that more tasks fit on a node, and balances their numbers.
    """
    read = variables.integer("SRUN_CPUS_PER_TASK") or 1
    variable = f"{DISTRIBUTION}{suffix}"
    if {"pack", "plane"} & set(re.split("[:,=]", variables[variable])):
        cpus = variables.parsed(f"SLURM_JOB_CPUS_PER_NODE{suffix}", expand_counts)
        is_certain = [number // read for number in cpus] == counts
    else:
        variable = f"SLURM_CPUS_PER_TASK{suffix}"
        size, more = divmod(sum(counts), len(counts))
        is_balanced = counts == [size + (number < more) for number in range(len(counts))]
        is_certain = is_balanced or (variables.integer(variable) or 1) == read
    if len(counts) > 1 and not is_certain:
        raise variables.wrong(
            variable,
            f"so that `srun` may start other numbers of tasks on the nodes than {shorten(counts)}, which"
            f" ${JOB_COUNTS}{suffix} has",
            "Run the program in a task of `srun`, or pass {tasks_per_node}.",
        )


def _hosts_by_rank(
    variables: SlurmVariables, components: Mapping[str, Nodes], counts: Counter[str], rank: int | None
) -> list[str]:
    """Return the host of each task; `counts` has the number of each node with tasks."""
    own_ranks = variables.own_ranks() if rank is not None else []
    own_host = find_node(counts.keys(), variables[NODE_NAME])
    if len(counts) == 2 and own_ranks and own_host is not None:
        # Whatever the distribution is: the tasks that are not on this node are on the other one.
        other = next(host for host in counts if host != own_host)
        hosts = [own_host if each in own_ranks else other for each in range(counts.total())]
        if Counter(hosts) == counts:
            return hosts
        # The ranks contradict the numbers of tasks: `_check_own_task` reports it.
    hosts = []
    for suffix, nodes in components.items():
        first = len(hosts)
        hosts += _arrange(variables, nodes, f"{DISTRIBUTION}{suffix}")
        if rank is not None and len(components) > 1 and first <= rank < len(hosts):
            _check_distribution(variables, components, suffix)
    return hosts


def _check_distribution(variables: SlurmVariables, components: Mapping[str, Nodes], own: str) -> None:
    """Raise an error if `srun --distribution` was not `block` for each component of a step.

    `srun` sets the distribution of the task's own component, or that of the last one. For the others, the
    task has to assume the default, which `_arrange` does. Thus the tasks of a component that has another
    distribution raise an error. No task has to assume anything if `sbatch` or `salloc` has set the variables
    of the components.
    """
    variable = DISTRIBUTION
    if variables[PLANE_SIZE] and not variables[DISTRIBUTION].startswith("plane"):
        variable = PLANE_SIZE  # it is left of a component before the last one
    for suffix in (own, list(components)[-1]) if variable == DISTRIBUTION else ():
        assumed = _arrange(variables, components[suffix], f"{DISTRIBUTION}{suffix}")
        if _arrange(variables, components[suffix], DISTRIBUTION, _COMPONENTS) == assumed:
            return
    problem = f"but ${variable}{own} is not set, so that tasks of other components cannot know where this is"
    raise variables.wrong(variable, problem, _COMPONENTS)


def _arrange(variables: SlurmVariables, nodes: Nodes, variable: str, hint: str = _DISTRIBUTIONS) -> list[str]:
    """Return the hosts of the tasks of a component by rank, for the distribution in a variable.

    https://slurm.schedmd.com/srun.html#OPT_distribution
    """
    counts = {host: count for host, count in nodes.items() if count}
    method = re.split("[:,=]", variables[variable])[0]
    most = max(counts.values(), default=1)
    size: int | None = None
    if len(counts) <= 1 or method in ("", "*", "block", "pack", "nopack"):
        size = most
    elif method == "cyclic" or (method == "plane" and most == 1):
        size = 1
    elif method == "plane":
        size = variables.integer(variable.replace(DISTRIBUTION, PLANE_SIZE))
    elif method == "arbitrary" and variable == DISTRIBUTION and variables[HOST_FILE]:
        return _read_host_file(variables, counts)
    if not size:
        raise variables.wrong(variable, "which does not say on which node each task is", hint)
    # `size` tasks on each node, until all nodes have theirs.
    return [
        host
        for started in range(0, most, size)
        for host, count in counts.items()
        for _ in range(min(size, count - started))
    ]


def _read_host_file(variables: SlurmVariables, counts: Nodes) -> list[str]:
    """Return the hosts of the tasks by rank with `--distribution=arbitrary`."""
    try:
        hosts = expand_host_file(Path(variables[HOST_FILE]).read_text())[: sum(counts.values())]
    except (OSError, ValueError) as error:
        raise variables.wrong(HOST_FILE, f"which cannot be read: {error}", _DISTRIBUTIONS) from error
    if Counter(hosts) != Counter(counts):
        problem = f"which has {shorten(hosts)}, but the tasks of the step are on {shorten(counts)}"
        raise variables.wrong(HOST_FILE, problem, f"Correct the file. {_DISTRIBUTIONS}")
    return hosts


def _read_rank(variables: SlurmVariables, total: int) -> int | None:
    """Return the rank of this process in a step with that many tasks; None if it is not set."""
    counts = f"but the step has {total} tasks (${STEP_COUNTS} is {shorten(variables[STEP_COUNTS])})"
    if variables.integer(STEP_TASKS) not in (None, total):
        hint = f"Correct ${STEP_COUNTS}, or {{tasks_per_node}} if it is passed."
        raise variables.wrong(STEP_TASKS, counts, hint)
    rank = variables.integer(PROCESS_ID)
    if rank is not None and rank >= total:
        raise variables.wrong(PROCESS_ID, counts)
    return rank


def _check_own_task(variables: SlurmVariables, hosts: list[str], rank: int) -> None:
    """Raise an error if the task of this process is not where Slurm has started this process."""
    own = hosts[rank]
    ranks = [number for number, host in enumerate(hosts) if host == own]
    node, local_id = variables[NODE_NAME], variables["SLURM_LOCALID"]
    if node and find_node(set(hosts), node) != own:
        variable = NODE_NAME
    elif local_id and local_id != str(ranks.index(rank)):
        variable = "SLURM_LOCALID"
    elif (variables.own_ranks() or ranks) != ranks:
        variable = OWN_RANKS
    else:
        return
    raise variables.wrong(
        variable,
        f"but task {rank} (${PROCESS_ID}) is number {ranks.index(rank)} of the tasks {shorten(ranks)} on"
        f" {own}, according to ${STEP_HOSTS} {shorten(variables[STEP_HOSTS])} and ${DISTRIBUTION}"
        f" {shorten(variables[DISTRIBUTION])}",
        f"Check {{tasks_per_node}} if it is passed. {_COMPONENTS}",
    )


# Lists of hosts and numbers


def expand_host_list(text: str) -> list[str]:
    """Return the hosts of a list, in its order, with repetitions.

    Raises:
        ValueError: the list is malformed, or has more than `MAX_HOSTS` hosts.
    """
    entries = _ENTRY.findall(text)
    if not entries or ",".join(entries) != text:
        raise ValueError("an entry is empty, or brackets are unbalanced")
    hosts: list[str] = []
    for entry in entries:
        hosts += _expand_entry(entry, MAX_HOSTS - len(hosts))
    return hosts


def expand_counts(text: str) -> list[int]:
    """Return the number of each node, in the order of the nodes: `3(x2),2,1` is `[3, 3, 2, 1]`.

    Raises:
        ValueError: the text is malformed, or there are more than `MAX_HOSTS` nodes or `MAX_TASKS` in total.
    """
    counts: list[int] = []
    total = 0
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise ValueError(f"{reprlib.repr(part)} is not a number such as 2, or 2(x3) for three nodes")
        count, repetitions = int(match[1]), int(match[2] or 1)
        total += count * repetitions
        if len(counts) + repetitions > MAX_HOSTS or total > MAX_TASKS:
            raise ValueError(f"more than {MAX_HOSTS} nodes or {MAX_TASKS} tasks")
        counts += [count] * repetitions
    return counts


def expand_host_file(text: str) -> list[str]:
    """Return the host of each task, for the text of a `$SLURM_HOSTFILE`: `n2*3` is three tasks on `n2`.

    Raises:
        ValueError: the text is malformed, or has more than `MAX_TASKS` hosts.
    """
    hosts: list[str] = []
    for line in text.splitlines():
        for entry in _ENTRY.findall(re.sub(r"\s+", ",", line.partition("#")[0])):
            name, _, repetitions = entry.partition("*")
            names, number = expand_host_list(name), int(repetitions or 1)
            if len(hosts) + len(names) * number > MAX_TASKS:
                raise ValueError(f"more than {MAX_TASKS} hosts")
            hosts += names * number
    return hosts


def _expand_entry(entry: str, limit: int) -> list[str]:
    """Return the hosts of one entry: `a[1-2]b[3,5]` has four. The last bracket varies fastest."""
    parts: list[list[str]] = []
    number = 1
    for ranges, literal in _PART.findall(entry):
        parts.append([literal] if literal else _expand_ranges(ranges, limit))
        number *= len(parts[-1])
        if number > limit:  # checked before the hosts are generated
            raise ValueError(f"more than {MAX_HOSTS} hosts")
    longest = "".join(max(part, key=len) for part in parts)  # the others differ in digits only
    try:
        host_port(longest, 1)
    except ConfigurationError:
        raise ValueError(f"{reprlib.repr(longest)} is not a host name") from None
    return ["".join(name) for name in itertools.product(*parts)]


def _expand_ranges(text: str, limit: int) -> list[str]:
    """Return the numbers between brackets, with the width of the first number of each range: `006-008,11`."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{reprlib.repr(part)} between brackets is not a number, or a range such as 1-4")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"the range {part} is descending")
        if len(numbers) + last - first + 1 > limit:
            raise ValueError(f"more than {MAX_HOSTS} hosts")
        width = len(match[1])
        numbers += [f"{number:0{width}}" for number in range(first, last + 1)]
    return numbers
