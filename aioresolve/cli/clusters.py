"""Clusters in each format of `-o`: tables, documents, templates, and what programs read."""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve import launch
from aioresolve.spec import Task

from .formats import Table, as_yaml, printable
from .templates import compile_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve.spec import ClusterSpec, ClusterState, DoneTask, Member

OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")
"""The values of `-o`."""

PROGRAM_OUTPUTS = (*launch.VARIABLE_READERS, *launch.HOST_FILES)
"""The values of `-o` for what a kind of program reads: variables or a host file (see `aioresolve.launch`)."""

WATCH_OUTPUTS = ("table", "wide", "json", "yaml", "tf-config")
"""The values of `-o` for a watch. In a list of names, it would not be visible where the next list begins."""

TASK = ("JOB", "TASK", "ADDRESS")
COLUMNS = ("JOB", "TASK", "NAME", "ADDRESS", "NODE", "STATUS")
WIDE_COLUMNS = (*COLUMNS[:-1], "NAMESPACE", "READY", "RESTARTS", "ACCELERATORS", "STATUS")
"""The columns of tables of tasks: `JOB`, and the keys of `Member.as_dict`."""

EXPENDABLE = ("ACCELERATORS", "RESTARTS", "READY", "NAMESPACE", "NODE", "ADDRESS")
"""The columns that a narrow terminal does not show, in this order."""


class TaskName(msgspec.Struct, frozen=True):
    """A task of a cluster: its job, and its index in the job."""

    job: str
    index: int


def members_table(
    state: ClusterState,
    *,
    is_wide: bool = False,
    more: Sequence[Mapping[str, str]] = (),
) -> Table:
    """Return one row per task, without the columns in which no task has a value.

    The tasks that are done follow the members. `more` are the cells of further columns of each task, in place
    of those that `is_wide` adds.
    """
    columns: Sequence[str] = WIDE_COLUMNS if is_wide and not more else COLUMNS
    rows = [member_cells(member, columns) for member in state.members]
    rows += [_done_cells(task, columns) for task in state.done]
    if more:
        columns = [*columns, *more[0]]
        rows = [[*row, *cells.values()] for row, cells in zip(rows, more, strict=True)]
    optional = [name for name in columns if name not in TASK]
    return Table(columns, rows, expendable=EXPENDABLE).without_empty(optional)


def member_cells(member: Member, columns: Iterable[str], **others: str) -> list[str]:
    """Return the cells of a task in these columns; `others` are values that a member does not have."""
    restarts = member.endpoint.restarts or None
    values = {"job": member.job, **member.as_dict(), "restarts": restarts, **others}
    return [_cell(values[column.lower()]) for column in columns]


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case dict():
            return ",".join(f"{name}={number}" for name, number in value.items())
    return str(value)


def _done_cells(task: DoneTask, columns: Iterable[str]) -> list[str]:
    namespace, _, name = (task.name or "").rpartition("/")
    values = {**task.as_dict(), "name": name, "namespace": namespace, "status": "done"}
    return [_cell(values.get(column.lower())) for column in columns]


def is_document(output: str) -> bool:
    """Whether `output` shows one object: as `json`, as `yaml`, or by a template."""
    return output in ("json", "yaml") or "=" in output


def has_identities(output: str) -> bool:
    """Whether `output` may show whole identities. For the others, less is requested from the server."""
    return output == "wide" or is_document(output)


def format_cluster(
    output: str,
    state: ClusterState,
    task: TaskName | None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> str | Table:
    """Return the cluster in the format `output`: one of `OUTPUTS`, `PROGRAM_OUTPUTS`, or a template.

    Args:
        output: the format.
        state: the cluster; with identities if `has_identities`.
        task: the task that reads the output; required for the variables of programs.
        options: those of the function of `aioresolve.launch`.
    """
    match output:
        case "table" | "wide":
            return members_table(state, is_wide=output == "wide")
        case "name":
            return "".join(f"{printable(one.address)}\n" for one in state.spec.tasks)
        case "tf-config":
            return tf_config(state.spec, task, **options)
    if output not in PROGRAM_OUTPUTS:
        document = state.as_dict()
        return format_document(output, document, tasks_of(document))
    if output in launch.HOST_FILES:
        return launch.HOST_FILES[output](state.spec, **options)
    assert task is not None
    variables = launch.environment(output, state.spec, _find_task(state.spec, task), **options)
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def format_document(output: str, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str | Table:
    """Return `document` in the format `output`, or `rows` as a table with custom columns."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if output == "yaml":
        return as_yaml(document)
    return compile_template(output)(document, rows)


def tasks_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of all jobs of `ClusterState.as_dict`, each with its `job`."""
    return [{"job": job, **task} for job, tasks in document["jobs"].items() for task in tasks]


def tf_config(spec: ClusterSpec, task: TaskName | None = None, *, rpc_layer: str | None = None) -> str:
    """Return the cluster as TensorFlow's `TF_CONFIG`, a line of JSON: `{"cluster": ..., "task": ...}`.

    See `aioresolve.launch.tensorflow`. The key `task` names the task that will read it; without a task it is
    omitted. A task that the cluster does not have, and that is not an evaluator, is an UnknownTaskError.
    """
    found = None if task is None else _find_task(spec, task)
    return launch.tensorflow(spec, found, rpc_layer=rpc_layer)["TF_CONFIG"] + "\n"


def _find_task(spec: ClusterSpec, name: TaskName) -> Task:
    """Return the task of that name; an unknown one is an UnknownTaskError.

    TensorFlow's evaluator need not be in the cluster. It then has no address and no rank of its own.
    """
    if name.job == launch.EVALUATOR and launch.EVALUATOR not in spec.jobs:
        return Task(name.job, name.index, "", 0, 0)
    return spec.task(name.job, name.index)
