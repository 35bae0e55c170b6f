"""Clusters as text: tables, JSON, YAML, TF_CONFIG, and what an incomplete cluster lacks."""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from aioresolve.spec import ClusterSpec, ClusterState, Member, Task

OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")
"""The values of `-o`."""

PROGRAM_OUTPUTS = (
    *("env", "jax", "torch", "torchrun", "accelerate", "tensorflow", "megascale", "ray", "vllm", "sglang"),
    *("hostfile", "host:slots"),
)
"""The values of `-o` for what a kind of program reads: variables or a host file (see `aioresolve.launch`)."""

HOST_FILES = ("hostfile", "host:slots")
"""Those of `PROGRAM_OUTPUTS` that are the same for all tasks."""

WATCH_OUTPUTS = ("table", "wide", "json", "yaml", "tf-config")
"""The values of `-o` for a watch. In a list of names, it would not be visible where the next list begins."""

TEMPLATES = ("jsonpath", "custom-columns")
"""The outputs that have a template after `=`, in kubectl's syntax."""

ABSENT = "<none>"
"""What a column shows for a missing value, as in kubectl's tables."""

TASK = ("JOB", "TASK", "ADDRESS")
IDENTITY = ("NAME", "NAMESPACE", "NODE", "READY", "UID", "ACCELERATORS", "STATUS")

MAX_REASONS = 20
"""How many reasons for missing tasks are listed at most."""

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

MAX_NAMES = 3
"""How many of the tasks that are missing for one reason are named."""


class Table(NamedTuple):
    """The column names of a table, its rows with one cell per column, and on a terminal their styles."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str] = ()


class TaskName(msgspec.Struct, frozen=True):
    """A task of a cluster: its job, and its index in the job."""

    job: str
    index: int


def spec_table(spec: ClusterSpec) -> Table:
    """Return one row per task: its job, index and address."""
    rows = [
        (job, str(index), spec.task_address(job, index))
        for job in spec.jobs
        for index in spec.task_indices(job)
    ]
    return Table(TASK, rows)


def state_table(state: ClusterState) -> Table:
    """Return one row per task, with the identity of its pod."""
    rows = [
        (member.job, str(member.task_index), member.endpoint.address, *identity_cells(member))
        for member in state.members
    ]
    return Table((*TASK, *IDENTITY), rows)


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


class TextTable:
    """A table as kubectl prints it, for `awk` and for terminals; its rows may become known one after another.

    Columns are three spaces apart and as wide as the widest cell so far; no cell is truncated, empty or
    contains unprintable characters. `widths` are the minimum widths of the first columns; a column is at
    least as wide as its name.
    """

    def __init__(
        self, columns: Sequence[str], widths: Sequence[int] = (), *, has_headers: bool = True
    ) -> None:
        self._columns = columns
        known = [*widths, *[0] * (len(columns) - len(widths))]
        self._widths = [*map(max, known, map(text_width, columns))][:-1]
        self._needs_header = has_headers

    def lines(self, rows: Sequence[Sequence[str]]) -> str:
        """Return one line per row; the first call also returns the header."""
        shown = [[printable(cell) or ABSENT for cell in row] for row in rows]
        for cells in shown:
            self._widths = [*map(max, self._widths, map(text_width, cells))]
        if self._needs_header:
            shown.insert(0, [*self._columns])
        self._needs_header = False
        return "".join("   ".join([*map(pad, cells, self._widths), cells[-1]]) + "\n" for cells in shown)


def aligned(table: Table, *, has_headers: bool = True) -> str:
    """Return the table as text; one without rows is empty text."""
    return TextTable(table.columns, has_headers=has_headers).lines(table.rows) if table.rows else ""


def format_cluster(
    output: str,
    spec: ClusterSpec,
    state: ClusterState | None,
    task: TaskName | None,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> str | Table:
    """Return the cluster in the format `output`: one of `OUTPUTS`, `PROGRAM_OUTPUTS`, or a template.

    `state`, the same cluster with identities, is required if `has_identities`; for `task` see `tf_config`,
    and for `options` see `format_for_program`.
    """
    if output in PROGRAM_OUTPUTS:
        return format_for_program(output, spec, task, options)
    match output:
        case "table":
            return spec_table(spec)
        case "tf-config":
            return tf_config(spec, task, **options)
        case "name":
            return "".join(f"{printable(address)}\n" for _, _, address in spec_table(spec).rows)
    assert state is not None
    if output == "wide":
        return state_table(state)
    document = state.as_dict()
    return format_document(output, document, tasks_of(document))


def is_document(output: str) -> bool:
    """Whether `output` shows one object: as `json`, as `yaml`, or by one of `TEMPLATES`."""
    return output in ("json", "yaml") or "=" in output


def has_identities(output: str) -> bool:
    """Whether `output` may show pod identities. For the others, less is requested from the server."""
    return output == "wide" or is_document(output)


def format_document(output: str, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str | Table:
    """Return `document` in the format `output`, or `rows` as a table with custom columns."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if output == "yaml":
        return as_yaml(document)
    from .templates import format_columns, format_jsonpath

    kind, _, template = output.partition("=")
    if kind == "jsonpath":
        return format_jsonpath(template, document)
    return Table(*format_columns(template, rows))


def tasks_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of all jobs of `ClusterState.as_dict`, each with its `job`."""
    return [{"job": job, **task} for job, tasks in document["jobs"].items() for task in tasks]


def tf_config(spec: ClusterSpec, task: TaskName | None = None, *, rpc_layer: str | None = None) -> str:
    """Return the cluster as TensorFlow's `TF_CONFIG`, a line of JSON: `{"cluster": ..., "task": ...}`.

    See `aioresolve.launch.tensorflow`. The key `task` names the task that will read it; without a task it is
    omitted. A task that the cluster does not have, and that is not an evaluator, is an UnknownTaskError.
    """
    # Imported now because few commands need it.
    from aioresolve.launch import tensorflow

    found = None if task is None else find_task(spec, task)
    return tensorflow(spec, found, rpc_layer=rpc_layer)["TF_CONFIG"] + "\n"


def format_for_program(
    output: str, spec: ClusterSpec, task: TaskName | None, options: Mapping[str, Any]
) -> str:
    """Return what a program reads: a host file, or variables as lines `NAME=VALUE`, quoted for a shell.

    Args:
        output: one of `PROGRAM_OUTPUTS`.
        spec: the cluster.
        task: the task of the program; host files need none.
        options: the options of the function of `aioresolve.launch`.
    """
    from aioresolve import launch

    if output in HOST_FILES:
        return (launch.hostfile if output == "hostfile" else launch.host_slots)(spec, **options)
    assert task is not None
    variables = launch.environment(output, spec, find_task(spec, task), **options)
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def find_task(spec: ClusterSpec, name: TaskName) -> Task:
    """Return the task of that name; an unknown one is an UnknownTaskError.

    TensorFlow's evaluator need not be in the cluster. It then has no address and no rank of its own.
    """
    # Imported now because few commands need it.
    from aioresolve.launch import EVALUATOR

    if name.job == EVALUATOR and EVALUATOR not in spec.jobs:
        from aioresolve.spec import Task

        return Task(name.job, name.index, "", 0, 0)
    return spec.task(name.job, name.index)


def as_json_line(value: dict[str, Any]) -> str:
    """Return an object as one line of JSON, with its line feed."""
    return msgspec.json.encode(value).decode() + "\n"


def as_yaml(value: dict[str, Any]) -> str:
    """Return an object as YAML."""
    import yaml

    # If PyYAML was built with libyaml, this writes a thousand pods ten times as fast.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def some_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def wait_report(
    found: Mapping[str, int],
    wanted: Mapping[str, int],
    missing: Mapping[str, str],
    sources: Mapping[str, str] = MappingProxyType({}),
    max_reasons: int = MAX_REASONS,
) -> str:
    """Return what a cluster lacks: a table of missing tasks, an empty line, and a table of numbers.

    The first table has a row for each reason, at most `max_reasons`. The second has a row for each job: the
    number of its usable tasks, the wanted number, and what states it. In `wanted`, the empty name stands for
    the total of all jobs.
    """
    if "" in wanted and len(found) == 1:
        wanted = dict.fromkeys(found, wanted[""])
    names: dict[str, list[str]] = {}
    for name, reason in missing.items():
        names.setdefault(" ".join(reason.split()), []).append(name)
    reasons = [(some_names(each), reason) for reason, each in names.items()]
    counts = [(job, str(number), str(wanted.get(job, ""))) for job, number in found.items()]
    if "" in wanted:
        counts.append(("(all)", str(sum(found.values())), str(wanted[""])))
    columns = ("JOB", "FOUND", "WANTED")[: 3 if wanted else 2]
    rows: list[tuple[str, ...]] = [row[: len(columns)] for row in counts]
    if sources:
        columns = (*columns, "WANTED BY")
        rows = [(*row, sources.get(row[0], "")) for row in rows]
    tables = [aligned(Table(("MISSING", "REASON"), reasons[:max_reasons])), aligned(Table(columns, rows))]
    if len(reasons) > max_reasons:
        tables[0] += f"and {len(reasons) - max_reasons} more reasons\n"
    return "\n".join(filter(None, tables)) or "no response yet\n"


def format_instant(moment: datetime | None) -> str | None:
    """Return a time in UTC in the format of RFC 3339, such as `2026-11-20T19:27:00.123456Z`."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def format_span(seconds: float) -> str:
    """Return a duration by its two largest units, as kubectl shows ages: `350ms`, `7s`, `5m12s`."""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f}ms"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number)


def format_latency(seconds: float) -> str:
    """Return the duration of a request, such as `1.5ms` or `2.25s`."""
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def one_line(text: str) -> str:
    """Return `text` as one `printable` line, with single spaces between its words."""
    return printable(" ".join(text.split()))


def text_width(text: str) -> int:
    """Return how many columns of a terminal a printable text takes: two for an East Asian wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # imported now because few texts need it

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """Return `text` with spaces after it, so that it takes at least so many columns of a terminal."""
    return text + " " * (columns - text_width(text))


def printable(text: str) -> str:
    r"""Return `text` with unprintable characters escaped (`\x1b`), so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
