"""Clusters in each format of `-o`: tables, documents, templates, and what programs read."""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from .formats import Table, as_yaml, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aioresolve.spec import ClusterSpec, ClusterState, Member, Task

OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")
"""The values of `-o`."""

HOST_FILES = ("hostfile", "host:slots")

PROGRAM_OUTPUTS = (
    *("env", "jax", "torch", "torchrun", "accelerate", "tensorflow", "megascale", "ray", "vllm", "sglang"),
    *HOST_FILES,
)
"""The values of `-o` for what a kind of program reads: variables or a host file (see `aioresolve.launch`)."""

WATCH_OUTPUTS = ("table", "wide", "json", "yaml", "tf-config")
"""The values of `-o` for a watch. In a list of names, it would not be visible where the next list begins."""

TASK = ("JOB", "TASK", "ADDRESS")
IDENTITY = ("NAME", "NAMESPACE", "NODE", "READY", "UID", "ACCELERATORS", "STATUS")

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class TaskName(msgspec.Struct, frozen=True):
    """A task of a cluster: its job, and its index in the job."""

    job: str
    index: int


def spec_table(spec: ClusterSpec) -> Table:
    """Return one row per task: its job, index and address."""
    return Table(
        TASK,
        [
            (job, str(index), spec.task_address(job, index))
            for job in spec.jobs
            for index in spec.task_indices(job)
        ],
    )


def state_table(state: ClusterState) -> Table:
    """Return one row per task, with the identity of its pod."""
    return Table(
        (*TASK, *IDENTITY),
        [
            (member.job, str(member.task_index), member.endpoint.address, *identity_cells(member))
            for member in state.members
        ],
    )


def identity_cells(member: Member) -> tuple[str, ...]:
    """Return the cells of a task in the columns `IDENTITY`."""
    endpoint = member.endpoint
    return (
        endpoint.name or "",
        endpoint.namespace or "",
        endpoint.node or "",
        "" if endpoint.ready is None else str(endpoint.ready).lower(),
        endpoint.uid or "",
        ",".join(f"{name}={number}" for name, number in (endpoint.accelerators or {}).items()),
        endpoint.status or "",
    )


def is_document(output: str) -> bool:
    """Whether `output` shows one object: as `json`, as `yaml`, or by a template."""
    return output in ("json", "yaml") or "=" in output


def has_identities(output: str) -> bool:
    """Whether `output` may show pod identities. For the others, less is requested from the server."""
    return output == "wide" or is_document(output)


def format_cluster(
    output: str,
    spec: ClusterSpec,
    state: ClusterState | None,
    task: TaskName | None,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> str | Table:
    """Return the cluster in the format `output`: one of `OUTPUTS`, `PROGRAM_OUTPUTS`, or a template.

    Args:
        output: the format.
        spec: the cluster.
        state: the same cluster with identities; required if `has_identities`.
        task: the task that reads the output; required for the variables of programs.
        options: those of the function of `aioresolve.launch`.
    """
    match output:
        case "table":
            return spec_table(spec)
        case "name":
            return "".join(f"{printable(address)}\n" for _, _, address in spec_table(spec).rows)
        case "tf-config":
            return tf_config(spec, task, **options)
        case "hostfile" | "host:slots":
            from aioresolve import launch

            return (launch.hostfile if output == "hostfile" else launch.host_slots)(spec, **options)
    if output in PROGRAM_OUTPUTS:
        from aioresolve import launch

        assert task is not None
        variables = launch.environment(output, spec, _find_task(spec, task), **options)
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    assert state is not None
    if output == "wide":
        return state_table(state)
    document = state.as_dict()
    return format_document(output, document, tasks_of(document))


def format_document(output: str, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str | Table:
    """Return `document` in the format `output`, or `rows` as a table with custom columns."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if output == "yaml":
        return as_yaml(document)
    from .templates import compile_template

    return compile_template(output)(document, rows)


def tasks_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of all jobs of `ClusterState.as_dict`, each with its `job`."""
    return [{"job": job, **task} for job, tasks in document["jobs"].items() for task in tasks]


def tf_config(spec: ClusterSpec, task: TaskName | None = None, *, rpc_layer: str | None = None) -> str:
    """Return the cluster as TensorFlow's `TF_CONFIG`, a line of JSON: `{"cluster": ..., "task": ...}`.

    See `aioresolve.launch.tensorflow`. The key `task` names the task that will read it; without a task it is
    omitted. A task that the cluster does not have, and that is not an evaluator, is an UnknownTaskError.
    """
    from aioresolve import launch

    found = None if task is None else _find_task(spec, task)
    return launch.tensorflow(spec, found, rpc_layer=rpc_layer)["TF_CONFIG"] + "\n"


def _find_task(spec: ClusterSpec, name: TaskName) -> Task:
    """Return the task of that name; an unknown one is an UnknownTaskError.

    TensorFlow's evaluator need not be in the cluster. It then has no address and no rank of its own.
    """
    from aioresolve.launch import EVALUATOR
    from aioresolve.spec import Task

    if name.job == EVALUATOR and EVALUATOR not in spec.jobs:
        return Task(name.job, name.index, "", 0, 0)
    return spec.task(name.job, name.index)
