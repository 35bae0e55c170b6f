"""What a terminal shows of a fleet: the newest of each target."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group

from .drawing import line, table_lines
from .output import Table
from .poll_output import COLUMNS, reading_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from aioresolve.fleet import Fleet, Reading

__all__ = ["PollPicture"]


class PollPicture:
    """The newest reading of each target, in the order of the targets.

    Where there are more targets than lines, those that something is wrong with come first.

    Args:
        fleet: the fleet.
        is_watched: whether what its readings say is right until they say something else.
    """

    def __init__(self, fleet: Fleet, *, is_watched: bool) -> None:
        self._fleet = fleet
        self._is_watched = is_watched

    def drawn(self, columns: int, lines: int) -> RenderableType:
        """Return the picture, in so many columns and lines of the terminal."""
        now = datetime.now(UTC)
        readings = dict(self._fleet.readings)
        names = list(self._fleet.targets)
        room = max(lines - 3, 1)
        if len(names) > room:
            names.sort(key=lambda name: name not in readings or readings[name].error is None)
            names = names[: room - 1]
        rows = [self._row(name, readings.get(name), now) for name in names]
        styles = ["red" if name in readings and readings[name].error else "" for name in names]
        more = len(self._fleet.targets) - len(names)
        return Group(
            *table_lines(Table(COLUMNS, rows), styles),
            *([line(f"... and {more} more", "dim")] if more else []),
            line(""),
            line(_summary(len(self._fleet.targets), list(readings.values())), "dim"),
        )

    def _row(self, name: str, reading: Reading | None, now: datetime) -> tuple[str, ...]:
        if reading is None:
            return (name, "", "", "", "", "no answer yet")
        answered_at = None if reading.state is None else reading.state.observed_at
        if reading.error is None:
            right_at = now if self._is_watched or answered_at is None else answered_at
        else:
            right_at = reading.stale_since or now
        return reading_row(reading, right_at, now)


def _summary(targets: int, readings: Sequence[Reading]) -> str:
    failing = sum(reading.error is not None for reading in readings)
    tasks = sum(reading.num_tasks for reading in readings)
    said = f"{len(readings) - failing} of {targets} targets answer, {tasks} tasks"
    return f"{said}; {failing} do not" if failing else said
