"""A cluster and a task as what a program reads when it starts: environment variables, or a host file.

Pure functions: they take a `ClusterSpec` or `ClusterState`, and most of them the `Task` of the program (see
`ClusterResolver.this_task`), and return variables by name, or text. A LaunchError says why a cluster cannot
be expressed for this kind of program.

| for | function | source of the format |
| --- | --- | --- |
| TensorFlow | `tensorflow` | `tf.distribute.cluster_resolver.TFConfigClusterResolver` |
| JAX | `jax` | `jax.distributed.initialize` and `aioresolve.jax` |
| torchrun | `torchrun` | `torch.distributed.argparse_util.env` |
| PyTorch without torchrun | `torch` | `torch.distributed.init_process_group(init_method="env://")` |
| Open MPI, DeepSpeed | `hostfile` | Open MPI's `mpirun --hostfile`, DeepSpeed's `--hostfile` |
| Horovod, MPICH | `host_slots` | Horovod's `--host-discovery-script`, Hydra's `-f` |
| Megascale (TPU slices) | `megascale` | the variables that GKE and Cloud TPU set |
| Ray | `ray` | `ray.init`, and LeaderWorkerSet's variables |
| vLLM, SGLang | `leader_worker` | LeaderWorkerSet's variables, which their multi-node manifests read |
| anything else | `task_variables` | this module |
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from aioresolve.errors import Hint, LaunchError
from aioresolve.spec import ClusterState, host_port, split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve.errors import PartialClusterError
    from aioresolve.spec import ClusterSpec, Task

__all__ = [
    "CONSUMERS",
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

JAX_TPU_PORT = 8482
"""The port of JAX's coordinator on TPUs."""

EVALUATOR = "evaluator"
"""TensorFlow's job whose task is not part of the cluster, but reads it."""


def task_variables(cluster: ClusterSpec | ClusterState, task: Task) -> dict[str, str]:
    """Return the task in variables of aioresolve's own, for programs and shell scripts without a convention.

    `AIORESOLVE_JOB`, `AIORESOLVE_INDEX`, `AIORESOLVE_ADDRESS` (`host:port`), `AIORESOLVE_RANK`,
    `AIORESOLVE_NUM_TASKS`, and `AIORESOLVE_LEADER`, the address of the task with rank 0.

    Raises:
        LaunchError: `task` is not a task of the cluster.
    """
    leader = _tasks(cluster, task, "env")[0]
    return {
        "AIORESOLVE_JOB": task.job,
        "AIORESOLVE_INDEX": str(task.index),
        "AIORESOLVE_ADDRESS": task.address,
        "AIORESOLVE_RANK": str(task.rank),
        "AIORESOLVE_NUM_TASKS": str(task.num_tasks),
        "AIORESOLVE_LEADER": leader.address,
    }


def tensorflow(
    cluster: ClusterSpec | ClusterState, task: Task | None = None, *, rpc_layer: str | None = None
) -> dict[str, str]:
    """Return `TF_CONFIG`: the cluster as JSON, with `task` if it is given, and `rpc_layer` if it is given.

    A job whose task indices have gaps is an object of index to address. The evaluator need not be a task of
    the cluster.

    Raises:
        LaunchError: `task` is not a task of the cluster.
    """
    spec = _spec(cluster)
    config: dict[str, Any] = {"cluster": spec.as_dict()}
    if task is not None:
        if task.job != EVALUATOR or EVALUATOR in spec.jobs:
            _tasks(cluster, task, "tensorflow")
        config["task"] = {"type": task.job, "index": task.index}
    if rpc_layer is not None:
        config["rpc_layer"] = rpc_layer
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"), ensure_ascii=False)}


def jax(cluster: ClusterSpec | ClusterState, task: Task, *, port: int | None = None) -> dict[str, str]:
    """Return `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, for one process per task.

    JAX reads the address itself. JAX 0.10 does not read the other two: with `import aioresolve.jax`,
    `jax.distributed.initialize()` takes them from here.

    Args:
        cluster: a cluster with one job.
        task: the task of the program.
        port: the port on which process 0 runs the coordinator; by default, that of its address.

    Raises:
        LaunchError: there are several jobs, the task indices have gaps, or the port is missing.
    """
    tasks = _equal_tasks(cluster, task, "jax")
    return {
        "JAX_COORDINATOR_ADDRESS": _with_port(tasks[0], port, "jax"),
        "JAX_NUM_PROCESSES": str(len(tasks)),
        "JAX_PROCESS_ID": str(task.rank),
    }


def jax_processes(part: PartialClusterError, *, port: int | None = None) -> dict[str, str]:
    """Return the variables of `jax` for a process that knows only its part of the cluster, such as its slice.

    They are what JAX itself computes in one slice of several (`jax._src.clusters.cloud_tpu_cluster`).

    Args:
        part: the error of the resolver; it is raised if JAX needs more than is known.
        port: the port on which process 0 runs the coordinator; by default 8482, as in JAX.

    Raises:
        PartialClusterError: the coordinator, or the id of this process, is not known.
    """
    if part.coordinator is None or part.process_id is None:
        raise part
    return {
        "JAX_COORDINATOR_ADDRESS": host_port(part.coordinator, port or JAX_TPU_PORT),
        "JAX_NUM_PROCESSES": str(part.num_processes),
        "JAX_PROCESS_ID": str(part.process_id),
    }


def torchrun(
    cluster: ClusterSpec | ClusterState,
    task: Task,
    *,
    port: int | None = None,
    processes_per_task: int | str | None = None,
) -> dict[str, str]:
    """Return torchrun's arguments as the variables that it reads them from, for one torchrun per task.

    `PET_NNODES`, `PET_NODE_RANK`, `PET_MASTER_ADDR` and `PET_MASTER_PORT` select its static rendezvous, in
    which each node keeps its rank. An argument on torchrun's command line takes precedence.

    Args:
        cluster: a cluster with one job.
        task: the task of the program.
        port: the port of the master, on the host of rank 0; by default, that of its address.
        processes_per_task: `PET_NPROC_PER_NODE`: a number, or `"auto"`, `"gpu"` or `"cpu"`; by default unset,
            which means 1.

    Raises:
        LaunchError: there are several jobs, the task indices have gaps, or the port is missing.
    """
    tasks = _equal_tasks(cluster, task, "torchrun")
    host, master_port = split_host_port(_with_port(tasks[0], port, "torchrun"))
    variables = {
        "PET_NNODES": str(len(tasks)),
        "PET_NODE_RANK": str(task.rank),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(master_port),
    }
    if processes_per_task is not None:
        variables["PET_NPROC_PER_NODE"] = str(processes_per_task)
    return variables


def torch(cluster: ClusterSpec | ClusterState, task: Task, *, port: int | None = None) -> dict[str, str]:
    """Return what `torch.distributed.init_process_group` reads, for one process per task.

    `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, `RANK`, `LOCAL_WORLD_SIZE` (1) and `LOCAL_RANK` (0).

    Args:
        cluster: a cluster with one job.
        task: the task of the program.
        port: the port of the store, on the host of rank 0; by default, that of its address.

    Raises:
        LaunchError: there are several jobs, the task indices have gaps, or the port is missing.
    """
    tasks = _equal_tasks(cluster, task, "torch")
    host, master_port = split_host_port(_with_port(tasks[0], port, "torch"))
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(tasks)),
        "RANK": str(task.rank),
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }


def hostfile(cluster: ClusterSpec | ClusterState, *, slots: int = 1) -> str:
    """Return a host file of Open MPI and DeepSpeed: one line `host slots=N` for each host, by rank.

    Args:
        cluster: the cluster; all its jobs are included.
        slots: the number of processes for each task. A host with two tasks has twice as many.

    Raises:
        LaunchError: the cluster has no tasks.
    """
    return "".join(f"{host} slots={number}\n" for host, number in _slots(cluster, slots, "hostfile"))


def host_slots(cluster: ClusterSpec | ClusterState, *, slots: int = 1) -> str:
    """Return the hosts as Horovod and MPICH read them: one line `host:N` for each host, by rank.

    Args:
        cluster: the cluster; all its jobs are included.
        slots: the number of processes for each task. A host with two tasks has twice as many.

    Raises:
        LaunchError: the cluster has no tasks, or a host is an IPv6 address, which the format cannot express.
    """
    hosts = _slots(cluster, slots, "host:slots")
    for host, _ in hosts:
        if ":" in host:
            raise LaunchError(
                f"the format host:slots cannot express the IPv6 address {host}",
                hint=Hint(
                    "Resolve IPv4 addresses or host names: pass {address=pod_ipv4} or {address=hostname}."
                ),
                consumer="host:slots",
            )
    return "".join(f"{host}:{number}\n" for host, number in hosts)


def megascale(
    cluster: ClusterSpec | ClusterState,
    task: Task,
    *,
    slices: int | Sequence[range] = 1,
    port: int | None = None,
) -> dict[str, str]:
    """Return `MEGASCALE_COORDINATOR_ADDRESS`, `MEGASCALE_NUM_SLICES` and `MEGASCALE_SLICE_ID`.

    Args:
        cluster: a cluster with one job, slice after slice.
        task: the task of the program.
        slices: the number of slices, all of one size; or the task indices of each slice, as
            `TPUSlice.tasks` has them.
        port: `MEGASCALE_PORT`, the port of the coordinator, on the host of the first task; by default unset.

    Raises:
        LaunchError: there are several jobs, the task indices have gaps, or the tasks do not divide into such
            slices.
    """
    tasks = _equal_tasks(cluster, task, "megascale")
    ranges = _slice_ranges(len(tasks), slices)
    variables = {
        "MEGASCALE_COORDINATOR_ADDRESS": _host(tasks[0]),
        "MEGASCALE_NUM_SLICES": str(len(ranges)),
        "MEGASCALE_SLICE_ID": str(next(i for i, members in enumerate(ranges) if task.index in members)),
    }
    if port is not None:
        variables["MEGASCALE_PORT"] = str(port)
    return variables


def leader_worker(cluster: ClusterSpec | ClusterState, task: Task) -> dict[str, str]:
    """Return LeaderWorkerSet's variables, which the multi-node manifests of vLLM and SGLang read.

    `LWS_LEADER_ADDRESS` (the host of rank 0, without a port), `LWS_GROUP_SIZE` and `LWS_WORKER_INDEX`.

    Raises:
        LaunchError: `task` is not a task of the cluster.
    """
    tasks = _tasks(cluster, task, "vllm")
    return {
        "LWS_LEADER_ADDRESS": _host(tasks[0]),
        "LWS_GROUP_SIZE": str(len(tasks)),
        "LWS_WORKER_INDEX": str(task.rank),
    }


def ray(cluster: ClusterSpec | ClusterState, task: Task, *, port: int = 6379) -> dict[str, str]:
    """Return `leader_worker`'s variables, and `RAY_ADDRESS` for all tasks but the head, which has rank 0.

    On the head, `ray start --head` starts the cluster, and would refuse to if `RAY_ADDRESS` named one.

    Args:
        cluster: the cluster.
        task: the task of the program.
        port: the port of Ray's head.

    Raises:
        LaunchError: `task` is not a task of the cluster.
    """
    variables = leader_worker(cluster, task)
    if task.rank:
        variables["RAY_ADDRESS"] = _with_port(_spec(cluster).tasks[0], port, "ray")
    return variables


CONSUMERS: dict[str, Callable[..., dict[str, str]]] = {
    "env": task_variables,
    "jax": jax,
    "megascale": megascale,
    "ray": ray,
    "sglang": leader_worker,
    "tensorflow": tensorflow,
    "torch": torch,
    "torchrun": torchrun,
    "vllm": leader_worker,
}
"""The kinds of programs that read variables, by name, and the function for each."""


def environment(
    consumer: str, cluster: ClusterSpec | ClusterState, task: Task, **options: Any
) -> dict[str, str]:
    """Return the variables for a kind of program, together with `task_variables`.

    Args:
        consumer: a name in `CONSUMERS`.
        cluster: the cluster.
        task: the task of the program.
        options: the options of the consumer's function.

    Raises:
        LaunchError: `consumer` is unknown, has no such option, or cannot express the cluster.
    """
    function = CONSUMERS.get(consumer)
    if function is None:
        raise LaunchError(
            f"{consumer!r} is not a kind of program",
            hint=f"Use one of {', '.join(CONSUMERS)}.",
            consumer=consumer,
        )
    accepted = function.__kwdefaults__ or {}
    if unknown := sorted(options.keys() - accepted.keys()):
        raise LaunchError(
            f"a program of kind {consumer!r} has no option {unknown[0]!r}",
            hint=f"Use {', '.join(accepted)}." if accepted else "Leave it out.",
            consumer=consumer,
        )
    return task_variables(cluster, task) | function(cluster, task, **options)


def _spec(cluster: ClusterSpec | ClusterState) -> ClusterSpec:
    return cluster.spec if isinstance(cluster, ClusterState) else cluster


def _tasks(cluster: ClusterSpec | ClusterState, task: Task, consumer: str) -> tuple[Task, ...]:
    """Return all tasks by rank, if `task` is one of them."""
    tasks = _spec(cluster).tasks
    if not 0 <= task.rank < len(tasks) or tasks[task.rank] != task:
        raise LaunchError(
            f"{task} at {task.address}, rank {task.rank} of {task.num_tasks}, is not a task of this cluster"
            f" of {len(tasks)} tasks",
            hint="Take the task and the cluster from the same state: `resolver.this_task(state)`.",
            consumer=consumer,
        )
    return tasks


def _equal_tasks(cluster: ClusterSpec | ClusterState, task: Task, consumer: str) -> tuple[Task, ...]:
    """Return all tasks by rank, if they are of one job and without gaps."""
    tasks = _tasks(cluster, task, consumer)
    jobs = list(dict.fromkeys(each.job for each in tasks))
    if len(jobs) > 1:
        raise LaunchError(
            f"the processes of {consumer} are all alike, but the cluster has the jobs {', '.join(jobs)}",
            hint="Resolve one job, or several selectors as one job.",
            consumer=consumer,
        )
    if tasks[-1].index != len(tasks) - 1:
        present = {each.index for each in tasks}
        missing = next(index for index in range(len(tasks)) if index not in present)
        raise LaunchError(
            f"the ranks of {consumer} have no gaps, but job {jobs[0]!r} has no task {missing}",
            hint=Hint("Wait until the cluster is complete, with {count} for the number of its tasks."),
            consumer=consumer,
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


def _with_port(task: Task, port: int | None, consumer: str) -> str:
    """Return `host:port` of a task, with `port` if it is given, else with the port of its address."""
    host, own_port = _split(task)
    found = own_port if port is None else port
    if not 0 < found <= 65535:
        what = f"{port} is not one" if port is not None else f"its address {task.address!r} has none"
        raise LaunchError(
            f"{consumer} needs a port on {host}, the host of {task}, but {what}",
            hint=Hint("Pass {port}, a free port of that host from 1 to 65535."),
            consumer=consumer,
        )
    return f"[{host}]:{found}" if ":" in host else f"{host}:{found}"


def _slots(cluster: ClusterSpec | ClusterState, slots: int, consumer: str) -> list[tuple[str, int]]:
    if slots < 1:
        raise LaunchError(
            f"{slots} processes for each task is too few",
            hint=Hint("Pass {slots}, at least 1."),
            consumer=consumer,
        )
    hosts = Counter(_host(task) for task in _spec(cluster).tasks)
    if not hosts:
        raise LaunchError("the cluster has no tasks, and a host file needs one", consumer=consumer)
    return [(host, tasks * slots) for host, tasks in hosts.items()]


def _slice_ranges(num_tasks: int, slices: int | Sequence[range]) -> list[range]:
    """Return the task indices of each slice."""
    if isinstance(slices, int):
        if slices < 1 or num_tasks % slices:
            raise LaunchError(
                f"{num_tasks} tasks cannot be divided into {slices} slices of one size",
                hint=Hint("Correct {slices}, or wait until the cluster is complete."),
                consumer="megascale",
            )
        size = num_tasks // slices
        return [range(first, first + size) for first in range(0, num_tasks, size)]
    if [index for members in slices for index in members] != list(range(num_tasks)):
        found = ", ".join(f"{each.start} to {each.stop - 1}" for each in slices)
        raise LaunchError(
            f"the slices have the tasks {found or '(none)'}, but the cluster has 0 to {num_tasks - 1}",
            hint="Take the slices and the cluster from the same state.",
            consumer="megascale",
        )
    return list(slices)
