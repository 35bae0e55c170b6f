"""From a cluster's changes to the text that is printed, change by change. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import (
    IDENTITY,
    TASK,
    RowByRow,
    as_json_line,
    as_yaml,
    document,
    identity_cells,
    task_document,
    tf_config,
)

if TYPE_CHECKING:
    from aioresolve.cli.options import Task
    from aioresolve.spec import ClusterDiff, ClusterState, Member

__all__ = ["ChangeRows", "SpecLines", "change_document", "change_json", "change_yaml"]


class ChangeRows:
    """Rows of what happened to tasks, under columns that are named once.

    Of one change those that left come first, then those that moved, then those that joined; at first all
    have. A row of a task that moved says in the column `WAS` where it was, as `TASK@ADDRESS`.

    Args:
        is_wide: with who each task is: name, namespace, node, readiness and uid.
    """

    COLUMNS = ("EVENT", *TASK, "WAS")

    def __init__(self, *, is_wide: bool) -> None:
        self._is_wide = is_wide
        columns = (*self.COLUMNS, *IDENTITY) if is_wide else self.COLUMNS
        self._table = RowByRow(columns, (len("JOINED"), len("worker"), 0, 21, 24))

    def text(self, state: ClusterState, older: ClusterState) -> str:
        """Return the lines of what changed from `older` to `state`, the columns' names before the first."""
        change = state.diff(older)
        rows = [self._row("LEFT", member) for member in change.left]
        for move in change.moved:
            was = f"{move.old.task_index}@{move.old.endpoint.address}"
            rows.append(self._row("MOVED", move.new, was))
        rows += [self._row("JOINED", member) for member in change.joined]
        return self._table.headed(rows)

    def _row(self, event: str, member: Member, was: str = "") -> tuple[str, ...]:
        row = (event, member.job, str(member.task_index), member.endpoint.address, was)
        return (*row, *identity_cells(member)) if self._is_wide else row


class SpecLines:
    """TensorFlow's TF_CONFIG on a line of its own, whenever it is another.

    Args:
        task: the task that will read it.
    """

    def __init__(self, task: Task | None) -> None:
        self._task = task
        self._last = ""

    def text(self, state: ClusterState, _: ClusterState) -> str:
        """Return the line of `state`; nothing where it is the last one.

        Raises:
            UnknownTaskError: the task is not there now.
        """
        line = tf_config(state.spec, self._task)
        if line == self._last:
            return ""
        self._last = line
        return line


def change_document(state: ClusterState, older: ClusterState) -> dict[str, Any]:
    """Return a cluster after a change as one object: that of `document`, and what changed.

    `{"jobs", "version", "observed_at", "joined": [task, ...], "left": [task, ...], "moved": [{"from": task,
    "to": task}, ...]}`: a task is that of `jobs`, and has its `job` besides.
    """
    change: ClusterDiff = state.diff(older)
    return document(state) | {
        "joined": [_task(member) for member in change.joined],
        "left": [_task(member) for member in change.left],
        "moved": [{"from": _task(move.old), "to": _task(move.new)} for move in change.moved],
    }


def change_json(state: ClusterState, older: ClusterState) -> str:
    """Return `change_document` on one line."""
    return as_json_line(change_document(state, older))


def change_yaml(state: ClusterState, older: ClusterState) -> str:
    """Return `change_document` as a YAML document of a stream."""
    return f"---\n{as_yaml(change_document(state, older))}"


def _task(member: Member) -> dict[str, Any]:
    return {"job": member.job, **task_document(member)}
