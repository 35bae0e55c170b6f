"""The target statuses of a fleet as tables and JSON, and the exit code of a round."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from aioresolve.errors import DeadlineExceededError

from .error_messages import COULD_NOT_RESOLVE, DEADLINE, field_spelling, short_message
from .formats import (
    IncrementalTable,
    Table,
    as_json_line,
    cluster_document,
    format_instant,
    format_latency,
    format_span,
    text_width,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from aioresolve.fleet import TargetStatus
    from aioresolve.spec import Missing

COLUMNS = ("TARGET", "STATUS", "TASKS", "AGE", "LATENCY", "REASON")

EXPENDABLE = ("LATENCY", "AGE", "TASKS")
"""The columns that a narrow terminal does not show, in this order."""

REASON_WIDTH = 40
"""How much of a reason should be visible on a narrow terminal, in characters."""

NO_STATE: dict[str, Any] = {"jobs": {}, "version": None, "observed_at": None}


class StatusRows:
    """Statuses as a table that is printed row by row; `names` are those of all targets."""

    def __init__(self, names: Iterable[str], *, has_headers: bool = True) -> None:
        longest = max(map(text_width, names), default=0)
        widths = (longest, len("Degraded"), len("worker:16,ps:2"), len("5m12s"), len("12.3ms"))
        self._table = IncrementalTable(COLUMNS, widths, has_headers=has_headers)

    def format(self, status: TargetStatus, now: datetime) -> str:
        """Return the row of `status`; the first call also returns the header."""
        return self._table.rows([status_row(status, status.stale_since or now, now)])


def statuses_table(statuses: Iterable[TargetStatus], now: datetime) -> Table:
    """Return one row per status, all of them received just now."""
    return Table(COLUMNS, [status_row(status, status.stale_since or now, now) for status in statuses])


def fit_columns(table: Table, width: int) -> Table:
    """Return `table` without the columns that leave too little of a terminal of that width to the reasons."""
    columns, rows = list(table.columns), [list(row) for row in table.rows]
    longest = max((text_width(row[-1]) for row in rows), default=0)
    for name in EXPENDABLE:
        used = [
            max(map(text_width, cells)) + 3
            for cells in zip(columns[:-1], *(row[:-1] for row in rows), strict=True)
        ]
        if width - sum(used) >= min(longest, REASON_WIDTH):
            break
        position = columns.index(name)
        del columns[position]
        for row in rows:
            del row[position]
    return Table(columns, rows)


def status_row(status: TargetStatus, current_at: datetime, now: datetime) -> tuple[str, ...]:
    """Return the cells of a status in the columns `COLUMNS`.

    `current_at` is when its state was last known to be current; both times are in UTC.
    """
    is_known = status.state is not None
    return (
        status.name,
        status.health.capitalize(),
        ",".join(f"{job}:{number}" for job, number in status.tasks_by_job.items()),
        _format_age((now - current_at).total_seconds()) if is_known else "",
        "" if status.latency is None else format_latency(status.latency),
        status.reason if status.error is None else short_message(status.error),
    )


def status_document(status: TargetStatus) -> dict[str, Any]:
    """Return a status as one object.

    `{"name", "health", "reason", "tasks": {job: number}, "jobs", "version", "observed_at", "absent": [{"job",
    "name", "reason"}], "unready": [{"job", "name", "reason"}], "latency", "stale_since", "error": {"type",
    "message", "retryable"}}`: `jobs` is that of `cluster_document`, latency is in seconds. The values of
    unknown fields, of `error` after a success, and of `reason` if the target is ready, are null.
    """
    error = status.error
    state = NO_STATE if status.state is None else cluster_document(status.state)
    return {
        "name": status.name,
        "health": str(status.health),
        "reason": status.reason or None,
        "tasks": status.tasks_by_job,
        **state,
        "absent": [_missing_document(one) for one in status.absent],
        "unready": [_missing_document(one) for one in status.unready],
        "latency": None if status.latency is None else round(status.latency, 6),
        "stale_since": format_instant(status.stale_since),
        "error": None
        if error is None
        else {
            "type": type(error).__name__,
            "message": error.render(field_spelling),
            "retryable": error.retryable,
        },
    }


def status_json(status: TargetStatus, _: datetime) -> str:
    """Return `status_document` as one line of JSON."""
    return as_json_line(status_document(status))


def round_exit_code(statuses: Sequence[TargetStatus]) -> int:
    """Return the exit code of a round: 0 if all are ready, 3 if only deadlines passed, otherwise 1."""
    sick = [status for status in statuses if status.health != "ready"]
    if not sick:
        return 0
    only_late = all(isinstance(status.error, DeadlineExceededError) for status in sick)
    return DEADLINE if only_late else COULD_NOT_RESOLVE


def fleet_summary(targets: int, statuses: Sequence[TargetStatus]) -> str:
    """Return one line: how many of the targets are ready, how many are not, and the number of tasks."""
    # Imported here because the help of the command need not load the package of fleets.
    from aioresolve.fleet import Health

    healths = Counter(status.health for status in statuses)
    tasks = sum(status.num_tasks for status in statuses)
    plural = "" if tasks == 1 else "s"
    text = f"{healths[Health.READY]} of {targets} targets ready, {tasks} task{plural}"
    sick = [f"{healths[one]} {one}" for one in Health if one != Health.READY and healths[one]]
    return "; ".join((text, ", ".join(sick))) if sick else text


def _format_age(seconds: float) -> str:
    return format_span(seconds) if seconds >= 1 else "0s"


def _missing_document(one: Missing) -> dict[str, str]:
    return {"job": one.job, "name": one.name, "reason": one.reason}
