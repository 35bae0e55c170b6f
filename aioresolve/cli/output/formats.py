"""From a cluster to the text that is printed. Pure: no stream, no clock, no colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from aioresolve.cli.options import Task
    from aioresolve.spec import ClusterSpec, ClusterState, Member

__all__ = [
    "ABSENT",
    "IDENTITY",
    "TASK",
    "RowByRow",
    "Section",
    "Table",
    "address_lines",
    "aligned",
    "as_json",
    "as_json_line",
    "as_yaml",
    "cluster_json",
    "cluster_yaml",
    "document",
    "identity_cells",
    "instant",
    "latency",
    "one_line",
    "plain_sections",
    "printable",
    "span",
    "spec_table",
    "state_table",
    "task_document",
    "tf_config",
]

ABSENT = "<none>"
"""What stands in a column for a value that is not there, as in kubectl's."""

TASK = ("JOB", "TASK", "ADDRESS")
IDENTITY = ("NAME", "NAMESPACE", "NODE", "READY", "UID")

EVALUATOR = "evaluator"
"""The job that TensorFlow keeps out of the cluster: its task is named in TF_CONFIG all the same."""


class Table(NamedTuple):
    """A table's column names and its rows of as many cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Section(NamedTuple):
    """A part of a page: a heading, and below it a table, lines of text, or Python that can be pasted."""

    title: str
    body: str | Table
    is_code: bool = False


def spec_table(spec: ClusterSpec) -> Table:
    """Return one row per task: its job, its index and its address."""
    rows = [
        (job, str(index), spec.task_address(job, index))
        for job in spec.jobs
        for index in spec.task_indices(job)
    ]
    return Table(TASK, rows)


def state_table(state: ClusterState) -> Table:
    """Return one row per task, with its pod's identity."""
    rows = [
        (member.job, str(member.task_index), member.endpoint.address, *identity_cells(member))
        for member in state.members
    ]
    return Table((*TASK, *IDENTITY), rows)


def aligned(table: Table) -> str:
    """Return the table as kubectl prints one: columns padded to one width and three spaces apart.

    No cell is empty or holds what is not printable, so `awk` and a terminal can rely on the columns. Without
    rows there is nothing at all.
    """
    if not table.rows:
        return ""
    lines = [table.columns, *([printable(cell) or ABSENT for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0
    return "".join("   ".join(map(str.ljust, line, widths)) + "\n" for line in lines)


class RowByRow:
    """A table that is printed row by row: no width of a column is known before all its cells are.

    Columns are three spaces apart and as wide as the widest cell so far, which is never cut. No cell is empty
    or holds what is not printable.

    Args:
        columns: the names.
        widths: of the columns but the last one, at least; a column's name always has room.
    """

    def __init__(self, columns: Sequence[str], widths: Sequence[int] = ()) -> None:
        self._columns = columns
        known = [*widths, *[0] * (len(columns) - len(widths))]
        self._widths = [*map(max, known, map(len, columns))][:-1]
        self._is_headed = False

    def headed(self, rows: Sequence[Sequence[str]]) -> str:
        """Return a line for each row, the columns' names before the first of all."""
        lines = self.rows(rows)
        header = "" if self._is_headed else self.header()
        self._is_headed = True
        return header + lines

    def header(self) -> str:
        """Return the line of the columns' names."""
        return self._line(self._columns)

    def rows(self, rows: Sequence[Sequence[str]]) -> str:
        """Return a line for each row."""
        shown = [[printable(cell) or ABSENT for cell in row] for row in rows]
        for row in shown:
            self._widths = [*map(max, self._widths, map(len, row))]
        return "".join(map(self._line, shown))

    def _line(self, cells: Sequence[str]) -> str:
        *padded, last = cells
        return "   ".join([*map(str.ljust, padded, self._widths), last]) + "\n"


def plain_sections(sections: Iterable[Section]) -> str:
    """Return a page as text alone, an empty line between its sections."""
    return "\n".join(
        f"# {section.title}\n{aligned(section.body) if isinstance(section.body, Table) else section.body}"
        for section in sections
    )


def address_lines(spec: ClusterSpec) -> str:
    """Return every task's address on a line of its own, in the order of jobs and task indices."""
    return "".join(f"{printable(address)}\n" for _, _, address in spec_table(spec).rows)


def tf_config(spec: ClusterSpec, task: Task | None = None) -> str:
    """Return the cluster as TensorFlow's `TF_CONFIG`, a line of JSON: `{"cluster": ..., "task": ...}`.

    Format: what `tf.distribute.cluster_resolver.TFConfigClusterResolver` reads. A job whose task indices have
    gaps is an object of index to address.

    Args:
        spec: the cluster.
        task: the task that will read it, the `task` key; left out where None.

    Raises:
        UnknownTaskError: the cluster has no such task, nor is it an evaluator.
    """
    import msgspec

    config: dict[str, Any] = {"cluster": spec.as_dict()}
    if task is not None:
        if task.job != EVALUATOR or EVALUATOR in spec.jobs:
            spec.task_address(task.job, task.index)
        config["task"] = {"type": task.job, "index": task.index}
    return msgspec.json.encode(config).decode() + "\n"


def cluster_json(state: ClusterState) -> str:
    """Return the cluster as indented JSON; its shape is that of `document`."""
    return as_json(document(state))


def cluster_yaml(state: ClusterState) -> str:
    """Return the cluster as YAML; its shape is that of `document`."""
    return as_yaml(document(state))


def as_json(value: dict[str, Any]) -> str:
    """Return an object as indented JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def as_json_line(value: dict[str, Any]) -> str:
    """Return an object as JSON on one line, which ends in a line feed."""
    import msgspec

    return msgspec.json.encode(value).decode() + "\n"


def as_yaml(value: dict[str, Any]) -> str:
    """Return an object as YAML."""
    import yaml

    # libyaml writes a thousand pods ten times as fast, where PyYAML was built with it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def document(state: ClusterState) -> dict[str, Any]:
    """Return the cluster as one object.

    `{"jobs": {job: [{"task", "address", "name", "namespace", "uid", "node", "ready", "index"}, ...]},
    "version", "observed_at"}`: `task` is the task's index in its job, `index` the one its controller gave the
    pod; `version` is the resourceVersion; `observed_at` is RFC 3339 in UTC. What is not known is null.
    """
    jobs: dict[str, list[dict[str, Any]]] = {job: [] for job in state.endpoints}
    for member in state.members:
        jobs[member.job].append(task_document(member))
    return {"jobs": jobs, "version": state.version, "observed_at": instant(state.observed_at)}


def task_document(member: Member) -> dict[str, Any]:
    """Return a task as an object: a part of `document`."""
    endpoint = member.endpoint
    return {
        "task": member.task_index,
        "address": endpoint.address,
        "name": endpoint.name,
        "namespace": endpoint.namespace,
        "uid": endpoint.uid,
        "node": endpoint.node,
        "ready": endpoint.ready,
        "index": endpoint.index,
    }


def instant(moment: datetime | None) -> str | None:
    """Return a moment in UTC as RFC 3339 writes it, such as `2026-11-20T19:27:00.123456Z`."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def span(seconds: float) -> str:
    """Return a span of time by its two largest units, as kubectl shows ages: `350ms`, `7s`, `5m12s`."""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f}ms"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number)


def latency(seconds: float) -> str:
    """Return how long an answer took, such as `1.5ms` or `2.25s`."""
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def one_line(text: str) -> str:
    """Return `text` as one `printable` line, its words a space apart."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    r"""Return `text` with every character that could steer a terminal written out, as `\x1b`."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def identity_cells(member: Member) -> tuple[str, ...]:
    """Return a task's cells under `IDENTITY`."""
    endpoint = member.endpoint
    return (
        endpoint.name or "",
        endpoint.namespace or "",
        endpoint.node or "",
        "" if endpoint.ready is None else str(endpoint.ready).lower(),
        endpoint.uid or "",
    )
