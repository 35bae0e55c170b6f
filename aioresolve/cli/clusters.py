"""Clusters in each format of `-o`: tables, documents, custom columns, and what programs read."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve import launch
from aioresolve.spec import Task

from .formats import Table, as_yaml, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve.spec import ClusterState, DoneTask, Member

OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")
"""The values of `-o`."""

PROGRAM_OUTPUTS = (*launch.VARIABLE_READERS, *launch.HOST_FILES)
"""The values of `-o` for what a kind of program reads: variables or a host file (see `aioresolve.launch`)."""

CUSTOM_COLUMNS = "custom-columns="
"""The start of a value of `-o` that lists columns, as in kubectl."""

WATCH_OUTPUTS = ("table", "wide", "json")
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


def members_table(state: ClusterState, *, is_wide: bool, more: Table | None = None) -> Table:
    """Return one row per task, without the columns in which no task has a value.

    The tasks that are done follow the members. `more` has further columns of each member.
    """
    columns: Sequence[str] = WIDE_COLUMNS if is_wide else COLUMNS
    rows = [member_cells(member, columns) for member in state.members]
    rows += [_done_cells(task, columns) for task in state.done]
    if more:
        columns = [*columns, *more.columns]
        rows = [[*row, *cells] for row, cells in zip(rows, more.rows, strict=True)]
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
    """Whether `output` shows one object: as `json`, as `yaml`, or by columns of its tasks."""
    return output in ("json", "yaml") or output.startswith(CUSTOM_COLUMNS)


def has_identities(output: str) -> bool:
    """Whether `output` may show whole identities. For the others, less is requested from the server."""
    return output == "wide" or is_document(output)


def format_cluster(
    output: str,
    state: ClusterState,
    task: TaskName | None,
    options: Mapping[str, Any],
) -> str | Table:
    """Return the cluster in the format `output`: one of `OUTPUTS` or `PROGRAM_OUTPUTS`, or custom columns.

    Args:
        output: the format.
        state: the cluster; with identities if `has_identities`.
        task: the task that reads the output; required for the variables of programs.
        options: those of the function of `aioresolve.launch`.
    """
    # A state without a wait does not show whether indices begin after 0 or the first tasks do not exist yet.
    cluster = state if state.done else state.spec
    match output:
        case "table" | "wide":
            return members_table(state, is_wide=output == "wide")
        case "name":
            return "".join(f"{printable(one.address)}\n" for one in state.spec.tasks)
        case "tf-config":
            found = None if task is None else _find_tensorflow_task(state, task)
            return launch.tensorflow(cluster, found)["TF_CONFIG"] + "\n"
    if output not in PROGRAM_OUTPUTS:
        return format_document(output, state.as_dict())
    if output in launch.HOST_FILES:
        return launch.HOST_FILES[output](cluster, **options)
    assert task is not None
    variables = launch.environment(output, cluster, state.task(task.job, task.index), **options)
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def format_document(output: str, document: dict[str, Any]) -> str | Table:
    """Return an object as JSON or YAML; or that of a cluster as a table of its tasks with custom columns."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if output == "yaml":
        return as_yaml(document)
    columns = parse_columns(output)
    tasks = [{"job": job, **task} for job, tasks in document["jobs"].items() for task in tasks]
    return Table(
        [name for name, _ in columns], [[_value(task, path) for _, path in columns] for task in tasks]
    )


def parse_columns(output: str) -> list[tuple[str, list[str]]]:
    r"""Return the columns of `custom-columns=NAME:PATH,...`, each with the keys on its path.

    As in kubectl, `\.` is a dot in a key, and the first dot of a path can be left out.

    Raises:
        ValueError: a column has another form.
    """
    columns = []
    for text in output.removeprefix(CUSTOM_COLUMNS).split(","):
        name, _, path = text.partition(":")
        if not (name and re.fullmatch(r"\.?(?:[\w/-]|\\\.)+(?:\.(?:[\w/-]|\\\.)+)*", path)):
            raise ValueError(
                rf"{text!r} is not a column; write NAME:PATH, such as NODE:.node or"
                r" GPUS:.accelerators.nvidia\.com/gpu"
            )
        keys = re.split(r"(?<!\\)\.", path.removeprefix("."))
        columns.append((name, [key.replace("\\.", ".") for key in keys]))
    return columns


def _value(task: Any, path: Sequence[str]) -> str:
    for key in path:
        task = task.get(key) if isinstance(task, dict) else None
    return _cell(task)


def _find_tensorflow_task(state: ClusterState, name: TaskName) -> Task:
    """Return the task of that name; an unknown one is an UnknownTaskError.

    TensorFlow's evaluator need not be in the cluster. It then has no address and no rank of its own.
    """
    if name.job == launch.EVALUATOR and launch.EVALUATOR not in state.spec.jobs:
        return Task(name.job, name.index, "", 0, 0)
    return state.task(name.job, name.index)
