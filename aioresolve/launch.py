"""A cluster and a task as what a program reads when it starts: environment variables, or a host file.

Pure functions: they take a `ClusterSpec` or `ClusterState`, and most of them the `Task` of the program (see
`ClusterResolver.this_task`), and return variables by name, or text. `VARIABLE_READERS` and
`HOST_FILE_READERS` have the kinds of programs by name, and the variables that each must not inherit.

A LaunchError says why a cluster cannot be expressed for a kind of program: it has no tasks, `task` is not one
of them, or others have ended with success. The processes of JAX, torchrun, PyTorch, Accelerate and Megascale
are all alike: for them, also if there are several jobs, the task indices have gaps, or a port is missing.

| for | function | source of the format |
| --- | --- | --- |
| TensorFlow | `tensorflow` | `tf.distribute.cluster_resolver.TFConfigClusterResolver` |
| JAX | `jax` | `jax.distributed.initialize` and `aioresolve.jax` |
| torchrun | `torchrun` | `torch.distributed.argparse_util.env` |
| PyTorch without torchrun | `torch` | `torch.distributed.init_process_group(init_method="env://")` |
| Accelerate | `accelerate` | `accelerate launch`, and `accelerate.Accelerator` without it |
| Open MPI, DeepSpeed, Horovod | `hostfile` | the option `hostfile` of `mpirun`, `deepspeed`, `horovodrun` |
| Horovod, MPICH | `host_slots` | Horovod's `--host-discovery-script`, Hydra's `-f` |
| Megascale (TPU slices) | `megascale` | the variables that GKE and Cloud TPU set |
| Ray | `ray` | `ray.init`, and LeaderWorkerSet's variables |
| vLLM, SGLang | `leader_worker` | LeaderWorkerSet's variables, which their multi-node manifests read |
| anything else | `task_variables` | this module |
"""

from __future__ import annotations

import json
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aioresolve.errors import ConfigurationError, LaunchError
from aioresolve.spec import ClusterSpec, ClusterState, host_port, split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aioresolve.errors import PartialClusterError
    from aioresolve.spec import Task

__all__ = [
    "HOST_FILE_READERS",
    "VARIABLE_READERS",
    "accelerate",
    "environment",
    "host_slots",
    "hostfile",
    "jax",
    "jax_processes",
    "leader_worker",
    "megascale",
    "ray",
    "task_variables",
    "tensorflow",
    "torch",
    "torchrun",
]

Cluster: TypeAlias = ClusterSpec | ClusterState

JAX_TPU_PORT = 8482
"""The port of JAX's coordinator on TPUs."""

EVALUATOR = "evaluator"
"""TensorFlow's job whose task is not part of the cluster, but reads it."""


def task_variables(cluster: Cluster, task: Task) -> dict[str, str]:
    """Return the task in variables of aioresolve's own, for programs and shell scripts without a convention.

    `AIORESOLVE_JOB`, `AIORESOLVE_INDEX`, `AIORESOLVE_ADDRESS` (`host:port`), `AIORESOLVE_RANK`, and
    `leader_variables`.
    """
    _tasks(cluster, task, "env")
    return {
        "AIORESOLVE_JOB": task.job,
        "AIORESOLVE_INDEX": str(task.index),
        "AIORESOLVE_ADDRESS": task.address,
        "AIORESOLVE_RANK": str(task.rank),
        **leader_variables(cluster),
    }


def leader_variables(cluster: Cluster) -> dict[str, str]:
    """Return the variables of aioresolve's own that are the same for all tasks.

    `AIORESOLVE_NUM_TASKS`, `AIORESOLVE_LEADER` (the address of the task with rank 0), and its parts
    `AIORESOLVE_LEADER_HOST` (an IPv6 address without brackets) and `AIORESOLVE_LEADER_PORT` (if it has one).

    Without the last three if the leader has ended with success.
    """
    leader = _tasks(cluster, None, "env")[0]
    variables = {"AIORESOLVE_NUM_TASKS": str(leader.num_tasks)}
    if leader.rank == 0:
        host, port = _split(leader)
        variables |= {"AIORESOLVE_LEADER": leader.address, "AIORESOLVE_LEADER_HOST": host}
        variables |= {"AIORESOLVE_LEADER_PORT": str(port)} if port else {}
    return variables


def tensorflow(cluster: Cluster, task: Task | None = None, *, rpc_layer: str | None = None) -> dict[str, str]:
    """Return `TF_CONFIG`: the cluster as JSON, with `task` if it is given, and `rpc_layer` if it is given.

    A job whose task indices have gaps is an object of index to address. Indices of a controller that begin
    after 0, such as those of the second group of a LeaderWorkerSet, are counted from 0, as TensorFlow does.
    The evaluator need not be a task of the cluster.
    """
    spec = cluster.spec if isinstance(cluster, ClusterState) else cluster
    first = {job: _first_index(cluster, job) for job in spec.jobs}
    jobs = {
        job: {index - first[job]: spec.task_address(job, index) for index in spec.task_indices(job)}
        for job in spec.jobs
    }
    config: dict[str, Any] = {"cluster": ClusterSpec(jobs).as_dict()}
    if task is not None:
        if task.job != EVALUATOR or EVALUATOR in spec.jobs:
            _tasks(cluster, task, "tensorflow")
        config["task"] = {"type": task.job, "index": task.index - first.get(task.job, 0)}
    if rpc_layer is not None:
        config["rpc_layer"] = rpc_layer
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def jax(cluster: Cluster, task: Task, *, port: int | None = None) -> dict[str, str]:
    """Return `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, for one process per task.

    JAX reads the address itself. JAX 0.10 does not read the other two: with `import aioresolve.jax`,
    `jax.distributed.initialize()` takes them from here. If other tasks are on the same host,
    `JAX_LOCAL_DEVICE_IDS` gives each of them one device, as JAX does by itself under Slurm and Open MPI.

    Args:
        port: the port on which process 0 runs the coordinator; by default, that of its address.
    """
    tasks = _equal_tasks(cluster, task, "jax")
    local = _on_host_of(task, tasks)
    return {
        "JAX_COORDINATOR_ADDRESS": _with_port(tasks[0], port, "jax"),
        "JAX_NUM_PROCESSES": str(len(tasks)),
        "JAX_PROCESS_ID": str(task.rank),
        **({"JAX_LOCAL_DEVICE_IDS": str(local.index(task))} if len(local) > 1 else {}),
    }


def jax_processes(part: PartialClusterError, *, port: int | None = None) -> dict[str, str]:
    """Return the variables of `jax` for a process that knows only its part of the cluster, such as its slice.

    They are what JAX itself computes in one slice of several (`jax._src.clusters.cloud_tpu_cluster`).

    Args:
        part: the error of the resolver; it is raised if JAX needs more than is known.
        port: the port on which process 0 runs the coordinator; by default 8482, as in JAX.

    Raises:
        PartialClusterError: the coordinator, the number of processes, or the id of this one is not known.
    """
    if part.coordinator is None or part.num_processes is None or part.process_id is None:
        raise part
    return {
        "JAX_COORDINATOR_ADDRESS": host_port(part.coordinator, port or JAX_TPU_PORT),
        "JAX_NUM_PROCESSES": str(part.num_processes),
        "JAX_PROCESS_ID": str(part.process_id),
    }


def torchrun(
    cluster: Cluster,
    task: Task,
    *,
    port: int | None = None,
    processes_per_task: int | str | None = None,
) -> dict[str, str]:
    """Return torchrun's arguments as the variables that it reads them from, for one torchrun per task.

    `PET_NNODES`, `PET_NODE_RANK`, `PET_MASTER_ADDR` and `PET_MASTER_PORT` describe its static rendezvous, in
    which each node keeps its rank. `PET_RDZV_BACKEND` selects it, and `PET_RDZV_ENDPOINT`, `PET_RDZV_ID`,
    `PET_RDZV_CONF` and `PET_STANDALONE` have torchrun's defaults, in place of what the program inherits from
    an elastic job. An argument on torchrun's command line takes precedence. Each torchrun numbers its
    processes, `LOCAL_RANK`, from 0, also if several are on one host.

    Args:
        port: the port of the master, on the host of rank 0; by default, that of its address.
        processes_per_task: `PET_NPROC_PER_NODE`: a number, or `"auto"`, `"gpu"` or `"cpu"`; by default the
            one that the program inherits, else 1.
    """
    tasks = _equal_tasks(cluster, task, "torchrun")
    host, master_port = split_host_port(_with_port(tasks[0], port, "torchrun"))
    variables = {
        "PET_NNODES": str(len(tasks)),
        "PET_NODE_RANK": str(task.rank),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(master_port),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": "",
        "PET_RDZV_ID": "none",
        "PET_RDZV_CONF": "",
        "PET_STANDALONE": "0",
    }
    if processes_per_task is not None:
        variables["PET_NPROC_PER_NODE"] = str(processes_per_task)
    return variables


def torch(cluster: Cluster, task: Task, *, port: int | None = None) -> dict[str, str]:
    """Return what `torch.distributed.init_process_group` reads, for one process per task.

    `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE` and `RANK`; `LOCAL_WORLD_SIZE` and `LOCAL_RANK`, the number of
    tasks on the host of this one, and its position among them; `NODE_RANK` (of PyTorch Lightning) and
    `GROUP_RANK` (of torchrun), the position of the host among the hosts. Two tasks are on one host if the
    hosts of their addresses are equal.

    Args:
        port: the port of the store, on the host of rank 0; by default, that of its address.
    """
    tasks = _equal_tasks(cluster, task, "torch")
    host, master_port = split_host_port(_with_port(tasks[0], port, "torch"))
    local = _on_host_of(task, tasks)
    node = str([*dict.fromkeys(map(_host, tasks))].index(_host(task)))
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(tasks)),
        "RANK": str(task.rank),
        "LOCAL_WORLD_SIZE": str(len(local)),
        "LOCAL_RANK": str(local.index(task)),
        "NODE_RANK": node,
        "GROUP_RANK": node,
    }


def accelerate(cluster: Cluster, task: Task, *, port: int = 29500) -> dict[str, str]:
    """Return `torchrun`'s and `torch`'s variables, for one `accelerate launch` or one process per task.

    `accelerate launch` has no variables for the cluster. If it starts several processes, it starts torchrun,
    which reads its own; for one process, `accelerate.Accelerator` reads those of `torch`. That requires that
    neither its command line nor its configuration file has a number of machines; the number of processes
    (`--num_processes`) is that of the task.

    Args:
        port: the port of the master, on the host of rank 0. Pass one other than Accelerate's own to
            `accelerate launch` too, as `--main_process_port`.
    """
    _equal_tasks(cluster, task, "accelerate")
    return torchrun(cluster, task, port=port) | torch(cluster, task, port=port)


def hostfile(cluster: Cluster, *, slots: int = 1) -> str:
    """Return a host file of Open MPI, DeepSpeed and Horovod: one line `host slots=N` for each host, by rank.

    All jobs are included. Open MPI cuts a name at its first dot, unless the variable
    `OMPI_MCA_orte_keep_fqdn_hostnames` (version 4) or `PRTE_MCA_prte_keep_fqdn_hostnames` (5) is `true`.

    Args:
        slots: the number of processes for each task. A host with two tasks has twice as many.

    Raises:
        LaunchError: the cluster has no tasks, or a host is an IPv6 address, which Open MPI 4, Horovod and
            DeepSpeed's pdsh cannot read.
    """
    found = _slots(cluster, slots, "mpirun, DeepSpeed and Horovod")
    return "".join(f"{host} slots={number}\n" for host, number in found)


def host_slots(cluster: Cluster, *, slots: int = 1) -> str:
    """Return the hosts as Horovod and MPICH read them: one line `host:N` for each host, by rank.

    Args:
        slots: the number of processes for each task. A host with two tasks has twice as many.

    Raises:
        LaunchError: the cluster has no tasks, or a host is an IPv6 address, which the format cannot express.
    """
    return "".join(f"{host}:{number}\n" for host, number in _slots(cluster, slots, "Horovod and MPICH"))


def megascale(cluster: Cluster, task: Task, *, slices: int = 1, port: int | None = None) -> dict[str, str]:
    """Return `MEGASCALE_COORDINATOR_ADDRESS`, `MEGASCALE_NUM_SLICES` and `MEGASCALE_SLICE_ID`.

    Args:
        cluster: a cluster with one job, slice after slice.
        task: the task of the program.
        slices: the number of slices, all of one size.
        port: `MEGASCALE_PORT`, the port of the coordinator, on the host of the first task; by default unset.

    Raises:
        LaunchError: the tasks do not divide into such slices.
    """
    tasks = _equal_tasks(cluster, task, "megascale")
    if slices < 1 or len(tasks) % slices:
        raise LaunchError(
            f"{len(tasks)} tasks cannot be divided into {slices} slices of one size",
            hint="Correct {slices}, or wait until the cluster is complete.",
        )
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": _host(tasks[0]),
        "MEGASCALE_NUM_SLICES": str(slices),
        "MEGASCALE_SLICE_ID": str(task.rank * slices // len(tasks)),
        **({} if port is None else {"MEGASCALE_PORT": str(port)}),
    }


def leader_worker(cluster: Cluster, task: Task) -> dict[str, str]:
    """Return LeaderWorkerSet's variables, which the multi-node manifests of vLLM and SGLang read.

    `LWS_LEADER_ADDRESS` (the host of rank 0, without a port), `LWS_GROUP_SIZE` and `LWS_WORKER_INDEX`.
    """
    tasks = _tasks(cluster, task, "vLLM and SGLang")
    return {
        "LWS_LEADER_ADDRESS": _host(tasks[0]),
        "LWS_GROUP_SIZE": str(len(tasks)),
        "LWS_WORKER_INDEX": str(task.rank),
    }


def ray(cluster: Cluster, task: Task, *, port: int = 6379) -> dict[str, str]:
    """Return `leader_worker`'s variables, and `RAY_ADDRESS` for all tasks but the head, which has rank 0.

    On the head, `ray start --head` starts the cluster, and would refuse to if `RAY_ADDRESS` named one.

    Args:
        port: the port of Ray's head.
    """
    _tasks(cluster, task, "Ray")
    variables = leader_worker(cluster, task)
    if task.rank:
        variables["RAY_ADDRESS"] = _with_port(cluster.tasks[0], port, "ray")
    return variables


_TORCHELASTIC = (
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
_LEADER = ("AIORESOLVE_LEADER", "AIORESOLVE_LEADER_HOST", "AIORESOLVE_LEADER_PORT")
_TASK = ("AIORESOLVE_JOB", "AIORESOLVE_INDEX", "AIORESOLVE_ADDRESS", "AIORESOLVE_RANK")


class VariableReader(NamedTuple):
    """A kind of program that reads the variables that `function` returns for a task.

    `help` says which they are, and `cleared` are variables that it would read instead of them.
    `aioresolve exec` removes those from what the program inherits, before it sets the others:

        cleared = VARIABLE_READERS["jax"].cleared
        inherited = {name: value for name, value in os.environ.items() if name not in cleared}
        variables = inherited | environment("jax", cluster, task)
    """

    function: Callable[..., dict[str, str]]
    help: str
    cleared: tuple[str, ...] = ()


class HostFileReader(NamedTuple):
    """A program that reads the host file that `function` returns, and starts the tasks itself.

    It reads the path of the file in `path_variables`, or else in an option, and needs further `variables`.
    """

    function: Callable[..., str]
    path_variables: tuple[str, ...] = ()
    variables: Mapping[str, str] = MappingProxyType({})
    cleared: tuple[str, ...] = _TASK  # it is not a task


VARIABLE_READERS = {
    "env": VariableReader(
        task_variables,
        "AIORESOLVE_RANK, AIORESOLVE_NUM_TASKS, AIORESOLVE_LEADER, AIORESOLVE_LEADER_HOST,"
        " AIORESOLVE_LEADER_PORT, AIORESOLVE_JOB, AIORESOLVE_INDEX, AIORESOLVE_ADDRESS, which all other"
        " programs get too",
        _LEADER,
    ),
    "jax": VariableReader(
        jax,
        "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID; JAX_LOCAL_DEVICE_IDS on a shared host",
        # Without them JAX's own detection of Open MPI and Slurm does not come before that of aioresolve.jax.
        ("JAX_COORDINATOR_BIND_ADDRESS", "OMPI_MCA_orte_hnp_uri", "SLURM_LOCALID"),
    ),
    "torch": VariableReader(
        torch,
        "MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, GROUP_RANK",
        _TORCHELASTIC,
    ),
    "torchrun": VariableReader(torchrun, "the options of torchrun as PET_NNODES, PET_NODE_RANK, ..."),
    "accelerate": VariableReader(accelerate, "those of torch and torchrun", _TORCHELASTIC),
    "tensorflow": VariableReader(tensorflow, "TF_CONFIG"),
    "megascale": VariableReader(
        megascale,
        "MEGASCALE_COORDINATOR_ADDRESS, MEGASCALE_NUM_SLICES, MEGASCALE_SLICE_ID",
        ("MEGASCALE_PORT",),
    ),
    "ray": VariableReader(ray, "LWS_* as for vllm, and RAY_ADDRESS except on the head", ("RAY_ADDRESS",)),
    "vllm": VariableReader(
        leader_worker, "LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX", ("RAY_ADDRESS",)
    ),
    "sglang": VariableReader(leader_worker, "those of vllm"),
}
"""The kinds of programs that read variables."""

HOST_FILE_READERS = {
    "mpi": HostFileReader(
        hostfile,
        # Open MPI 4 and 5: https://docs.open-mpi.org/en/main/launching-apps/scheduling.html
        ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
        # Otherwise Open MPI cuts the names of hosts at the first dot.
        {"OMPI_MCA_orte_keep_fqdn_hostnames": "true", "PRTE_MCA_prte_keep_fqdn_hostnames": "true"},
    ),
    "deepspeed": HostFileReader(hostfile),
    "horovod": HostFileReader(hostfile),
    # MPICH and Intel MPI
    "mpich": HostFileReader(host_slots, ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")),
}
"""The programs that read a host file."""

HOST_FILES: dict[str, Callable[..., str]] = {"hostfile": hostfile, "host:slots": host_slots}
"""The formats of host files, and the function for each."""


def environment(consumer: str, cluster: Cluster, task: Task, **options: Any) -> dict[str, str]:
    """Return the variables for a kind of program, together with `task_variables`.

    Args:
        consumer: a name in `VARIABLE_READERS`.
        cluster: the cluster.
        task: the task of the program.
        options: the options of the consumer's function.

    Raises:
        LaunchError: `consumer` is unknown, has no such option, or cannot express the cluster.
    """
    reader = VARIABLE_READERS.get(consumer)
    if reader is None:
        raise LaunchError(
            f"{consumer!r} is not a kind of program", hint=f"Use one of {', '.join(VARIABLE_READERS)}."
        )
    accepted = options_of(reader.function)
    if unknown := sorted(options.keys() - accepted):
        raise LaunchError(
            f"a program of kind {consumer!r} has no option {unknown[0]!r}",
            hint=f"Use {', '.join(accepted)}." if accepted else "Leave it out.",
        )
    return task_variables(cluster, task) | reader.function(cluster, task, **options)


def options_of(function: Callable[..., Any]) -> Collection[str]:
    """Return the names of the options of a function of this module."""
    return getattr(function, "__kwdefaults__", None) or ()


def _first_index(cluster: Cluster, job: str) -> int:
    """Return the first task index of a job if a controller gave its indices and none is missing, else 0."""
    if not isinstance(cluster, ClusterState):
        return 0
    indices = {*cluster.spec.task_indices(job), *(done.index for done in cluster.done if done.job == job)}
    is_given = all(endpoint.index is not None for endpoint in cluster.endpoints[job])
    first = min(indices, default=0)
    return first if is_given and indices == {*range(first, first + len(indices))} else 0


def _tasks(cluster: Cluster, task: Task | None, consumer: str) -> tuple[Task, ...]:
    """Return all tasks by rank, at least one, if `task` is one of them, and the consumer can use them."""
    tasks = cluster.tasks
    if isinstance(cluster, ClusterState) and cluster.done and consumer != "env":
        first, *others = cluster.done
        more = f" and {len(others)} more" if others else ""
        raise LaunchError(
            f"the processes of {consumer} connect to each other, but {first}{more} ended with success",
            hint="Create the job again, so that all of its tasks start together.",
        )
    if not tasks:
        raise LaunchError("the cluster has no tasks, and such a program needs one")
    if task is not None and task not in tasks:
        raise LaunchError(
            f"{task} at {task.address}, rank {task.rank} of {task.num_tasks}, is not a task of this cluster"
            f" of {len(tasks)} tasks",
            hint="Take the task and the cluster from the same state: `resolver.this_task(state)`.",
        )
    return tasks


def _equal_tasks(cluster: Cluster, task: Task, consumer: str) -> tuple[Task, ...]:
    """Return all tasks by rank, if they are of one job and without gaps. The first index need not be 0."""
    tasks = _tasks(cluster, task, consumer)
    jobs = list(dict.fromkeys(each.job for each in tasks))
    if len(jobs) > 1:
        raise LaunchError(
            f"the processes of {consumer} are all alike, but the cluster has the jobs {', '.join(jobs)}",
            hint="Resolve one job, or several selectors as one job.",
        )
    indices = [each.index for each in tasks]
    if missing := set(range(min(indices), max(indices))).difference(indices):
        raise LaunchError(
            f"the ranks of {consumer} have no gaps, but job {jobs[0]!r} has no task {min(missing)}",
            hint="Wait until the cluster is complete, with {count} for the number of its tasks.",
        )
    return tasks


def _split(task: Task) -> tuple[str, int]:
    """Return the host of a task's address, an IPv6 address without brackets, and its port or 0."""
    try:
        return split_host_port(task.address)
    except ValueError:
        return task.address.strip("[]"), 0


def _host(task: Task) -> str:
    return _split(task)[0]


def _on_host_of(task: Task, tasks: Sequence[Task]) -> list[Task]:
    return [each for each in tasks if _host(each) == _host(task)]


def _with_port(task: Task, port: int | None, consumer: str) -> str:
    """Return `host:port` of a task, with `port` if it is given, else with the port of its address."""
    host, own_port = _split(task)
    found = own_port if port is None else port
    if not 0 < found <= 65535:
        what = f"{port} is not one" if port is not None else f"its address {task.address!r} has none"
        raise LaunchError(
            f"{consumer} needs a port on {host}, the host of {task}, but {what}",
            hint="Pass {port}, a free port of that host from 1 to 65535.",
        )
    return _checked(host, found)


def _checked(host: str, port: int) -> str:
    try:
        return host_port(host, port)
    except ConfigurationError as error:
        raise LaunchError(error.summary, hint=error.hint) from error


def _slots(cluster: Cluster, slots: int, consumer: str) -> list[tuple[str, int]]:
    if slots < 1:
        raise LaunchError(f"{slots} processes for each task is too few", hint="Pass {slots}, at least 1.")
    hosts = Counter(map(_host, _tasks(cluster, None, consumer)))
    for host in hosts:
        _checked(host, 0)
        if ":" in host:
            raise LaunchError(
                f"a host file cannot express the IPv6 address {host}",
                hint="Resolve IPv4 addresses or host names: pass {address=pod_ipv4} or {address=hostname}.",
            )
    return [(host, tasks * slots) for host, tasks in hosts.items()]
