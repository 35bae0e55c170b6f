"""From the readings of a fleet to the text that is printed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, DEADLINE, error_message
from aioresolve.errors import DeadlineExceededError

from .formats import RowByRow, Table, as_json_line, document, instant, latency, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from aioresolve.fleet import TargetStatus
    from aioresolve.spec import Missing

__all__ = [
    "COLUMNS",
    "ReadingRows",
    "reading_document",
    "reading_json",
    "reading_row",
    "readings_table",
    "round_code",
]

COLUMNS = ("TARGET", "TASKS", "MISSING", "AGE", "LATENCY", "ERROR")

NO_STATE: dict[str, Any] = {"jobs": {}, "version": None, "observed_at": None}


class ReadingRows:
    """Rows that are printed reading by reading, under columns that are named once.

    Args:
        names: of the targets.
    """

    def __init__(self, names: Iterable[str]) -> None:
        longest = max(map(len, names), default=0)
        self._table = RowByRow(COLUMNS, (longest, len("worker:16,ps:2"), 0, len("5m12s"), len("12.3ms")))

    def text(self, reading: TargetStatus, now: datetime) -> str:
        """Return the line of `reading`, the columns' names before the first."""
        return self._table.headed([reading_row(reading, reading.stale_since or now, now)])


def readings_table(readings: Iterable[TargetStatus], now: datetime) -> Table:
    """Return one row per reading that was taken just now."""
    return Table(COLUMNS, [reading_row(one, one.stale_since or now, now) for one in readings])


def reading_row(reading: TargetStatus, right_at: datetime, now: datetime) -> tuple[str, ...]:
    """Return a reading's cells under `COLUMNS`.

    Args:
        reading: the reading.
        right_at: when its state was last known to be right.
        now: the present; both in UTC.
    """
    is_known = reading.state is not None
    return (
        reading.name,
        ",".join(f"{job}:{number}" for job, number in reading.tasks_by_job.items()),
        str(len(reading.absent) + len(reading.unready)) if is_known else "",
        _age((now - right_at).total_seconds()) if is_known else "",
        "" if reading.latency is None else latency(reading.latency),
        "" if reading.error is None else reading.error.summary.partition("; ")[0],
    )


def reading_document(reading: TargetStatus) -> dict[str, Any]:
    """Return a reading as one object.

    `{"name", "tasks": {job: number}, "jobs", "version", "observed_at", "absent": [{"job", "name", "reason"}],
    "unready": [{"job", "name", "reason"}], "latency", "stale_since", "error": {"type", "message",
    "retryable"}}`: `jobs` is that of `document`, latency is in seconds; what is not known is null, and so is
    the error of a target that answered.
    """
    error = reading.error
    state = NO_STATE if reading.state is None else document(reading.state)
    return {
        "name": reading.name,
        "tasks": reading.tasks_by_job,
        **state,
        "absent": [_missing(one) for one in reading.absent],
        "unready": [_missing(one) for one in reading.unready],
        "latency": None if reading.latency is None else round(reading.latency, 6),
        "stale_since": instant(reading.stale_since),
        "error": None
        if error is None
        else {
            "type": type(error).__name__,
            "message": error_message(error),
            "retryable": error.retryable,
        },
    }


def reading_json(reading: TargetStatus, _: datetime) -> str:
    """Return `reading_document` on one line."""
    return as_json_line(reading_document(reading))


def round_code(readings: Sequence[TargetStatus]) -> int:
    """Return the exit code of a round: 0 where all answered, 3 where some were only late, 1 otherwise."""
    errors = [reading.error for reading in readings if reading.error is not None]
    if not errors:
        return 0
    return DEADLINE if all(isinstance(one, DeadlineExceededError) for one in errors) else COULD_NOT_RESOLVE


def _age(seconds: float) -> str:
    return span(seconds) if seconds >= 1 else "0s"


def _missing(one: Missing) -> dict[str, str]:
    return {"job": one.job, "name": one.name, "reason": one.reason}
