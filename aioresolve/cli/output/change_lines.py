"""The changes of a watched cluster as text, one change at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import (
    IDENTITY,
    TASK,
    IncrementalTable,
    TaskName,
    as_json_line,
    as_yaml,
    cluster_document,
    identity_cells,
    task_document,
    tf_config,
)

if TYPE_CHECKING:
    from aioresolve.spec import ClusterState, Member


class ChangeRows:
    """One row for each task that joined, left or moved; `is_wide` adds the columns `IDENTITY`.

    In each change, tasks that left come first, then those that moved, then those that joined. The column
    `WAS` of a task that moved shows its previous place as `TASK@ADDRESS`. For the first state, all tasks
    joined.
    """

    COLUMNS = ("EVENT", *TASK, "WAS")

    def __init__(self, *, is_wide: bool, has_headers: bool = True) -> None:
        self._is_wide = is_wide
        columns = (*self.COLUMNS, *IDENTITY) if is_wide else self.COLUMNS
        self._table = IncrementalTable(
            columns, (len("JOINED"), len("worker"), 0, 21, 24), has_headers=has_headers
        )

    def format(self, state: ClusterState, older: ClusterState) -> str:
        """Return the rows of the change from `older` to `state`; the first call also returns the header."""
        change = state.diff(older)
        rows = [self._row("LEFT", member) for member in change.left]
        for move in change.moved:
            was = f"{move.old.task_index}@{move.old.endpoint.address}"
            rows.append(self._row("MOVED", move.new, was))
        rows += [self._row("JOINED", member) for member in change.joined]
        return self._table.rows(rows)

    def _row(self, event: str, member: Member, was: str = "") -> tuple[str, ...]:
        row = (event, member.job, str(member.task_index), member.endpoint.address, was)
        return (*row, *identity_cells(member)) if self._is_wide else row


class TFConfigLines:
    """A line of TensorFlow's TF_CONFIG for `task`, whenever it differs from the previous line.

    `task` can be changed between two lines.
    """

    def __init__(self, task: TaskName | None, *, rpc_layer: str | None = None) -> None:
        self.task = task
        self._rpc_layer = rpc_layer
        self._last = ""

    def format(self, state: ClusterState, _: ClusterState) -> str:
        """Return the line for `state`, empty if it equals the previous one; raises an UnknownTaskError."""
        line = tf_config(state.spec, self.task, rpc_layer=self._rpc_layer)
        if line == self._last:
            return ""
        self._last = line
        return line


def change_document(state: ClusterState, older: ClusterState) -> dict[str, Any]:
    """Return a cluster after a change as one object: that of `cluster_document`, and the change.

    In addition it has `{"joined": [task, ...], "left": [task, ...], "moved": [{"from": task, "to": task},
    ...]}`: a task is that of `jobs`, with its `job` in addition.
    """
    change = state.diff(older)
    return cluster_document(state) | {
        "joined": [_task(member) for member in change.joined],
        "left": [_task(member) for member in change.left],
        "moved": [{"from": _task(move.old), "to": _task(move.new)} for move in change.moved],
    }


def change_json(state: ClusterState, older: ClusterState) -> str:
    """Return `change_document` as one line of JSON."""
    return as_json_line(change_document(state, older))


def change_yaml(state: ClusterState, older: ClusterState) -> str:
    """Return `change_document` as a document of a YAML stream."""
    return f"---\n{as_yaml(change_document(state, older))}"


def _task(member: Member) -> dict[str, Any]:
    return {"job": member.job, **task_document(member)}
