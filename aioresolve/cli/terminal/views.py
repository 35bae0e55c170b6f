"""What a terminal shows of a cluster that is watched: who is there, who is not, and what changed last.

What a terminal shows while a cluster is waited for: who is missing, and why.

What a terminal shows of a fleet: the newest of each target.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from aioresolve.cli.error_messages import error_message
from aioresolve.cli.output.fleet_tables import COLUMNS, reading_row
from aioresolve.cli.output.formats import Table, span, spec_table, state_table
from aioresolve.cli.output.wait_report import counts_table, missing_table

from .drawing import line, table_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from aioresolve.fleet import Fleet, TargetStatus
    from aioresolve.resolver.wait import Shortfall
    from aioresolve.spec import ClusterState, Member, Missing, Observation

__all__ = ["PollPicture", "WaitPicture", "WatchPicture"]

CHANGES = 5
"""How many of the last changes are shown."""

MISSING = 8
"""How many of those who are missing are shown."""

FRESH = 5.0
"""Seconds for which a change is lit up."""

STYLES = {"JOINED": "green", "MOVED": "yellow", "LEFT": "red"}


@dataclass(frozen=True, slots=True)
class _Change:
    at: datetime
    event: str
    member: Member
    said: str

    def is_fresh(self, now: datetime) -> bool:
        return (now - self.at).total_seconds() < FRESH


class WatchPicture:
    """The newest that is known of a cluster.

    Args:
        asked: what is watched, in words.
        is_wide: whether the table has who each task is.
    """

    def __init__(self, asked: str, *, is_wide: bool) -> None:
        self._asked = asked
        self._is_wide = is_wide
        self._observation: Observation | None = None
        self._changed_at = datetime.now(UTC)
        self._changes: deque[_Change] = deque(maxlen=CHANGES)

    def show(self, observation: Observation, now: datetime) -> None:
        """Take `observation`, seen at `now` (UTC), for the newest."""
        older = None if self._observation is None else self._observation.state
        self._observation = observation
        if observation.state is None or observation.state == older:
            return
        self._changed_at = now
        if older is None:
            return
        change = observation.state.diff(older)
        self._changes.extend(
            [
                *(_Change(now, "LEFT", member, str(member)) for member in change.left),
                *(_Change(now, "MOVED", move.new, str(move)) for move in change.moved),
                *(_Change(now, "JOINED", member, str(member)) for member in change.joined),
            ]
        )

    def drawn(self, columns: int, lines: int) -> RenderableType:
        """Return the picture, in so many columns and lines of the terminal."""
        observation = self._observation
        if observation is None or observation.state is None:
            return Text("")
        now = datetime.now(UTC)
        below = [
            *_missing_lines([*observation.unready, *observation.absent]),
            *self._change_lines(),
            *self._status_lines(observation, now, columns),
        ]
        room = max(lines - len(below), 2)
        return Group(*self._members(observation.state, room, now), *below)

    def _members(self, state: ClusterState, room: int, now: datetime) -> list[Text]:
        """Return the table, of as many rows as there is room for."""
        columns, rows = state_table(state) if self._is_wide else spec_table(state.spec)
        fresh = {change.member: STYLES[change.event] for change in self._changes if change.is_fresh(now)}
        styles = [fresh.get(member, "") for member in state.members]
        if len(rows) < room:
            return table_lines(Table(columns, rows), styles)
        fitting = max(room - 2, 0)
        more = line(f"... and {len(rows) - fitting} more", "dim")
        return [*table_lines(Table(columns, rows[:fitting]), styles), more]

    def _change_lines(self) -> list[Text]:
        said = [
            line(f"{_clock(change.at)}  {change.event:6}  {change.said}", STYLES[change.event])
            for change in self._changes
        ]
        return [line(""), *said] if said else []

    def _status_lines(self, observation: Observation, now: datetime, columns: int) -> list[Text]:
        state = observation.state
        assert state is not None
        number = len(state.members)
        what = f"{number} task{'' if number == 1 else 's'}"
        if observation.error is None:
            return [
                line(""),
                line(f"{what}, last changed at {_clock(self._changed_at)}: {self._asked}", "dim"),
            ]
        since = observation.stale_since or now
        wrong = f"{what} at {_clock(since)}, {span((now - since).total_seconds())} ago, and since then: "
        wrong += error_message(observation.error)
        width = max(columns, 1)
        return [line(""), *(line(wrong[at : at + width], "red") for at in range(0, len(wrong), width))][:4]


def _missing_lines(missing: list[Missing]) -> list[Text]:
    if not missing:
        return []
    said = [line(f"{one.job}: {one.name}: {one.reason}", "yellow") for one in missing[:MISSING]]
    if len(missing) > MISSING:
        said.append(line(f"and {len(missing) - MISSING} more that are no members or not ready", "yellow"))
    return [line(""), *said]


def _clock(moment: datetime) -> str:
    """Return the time of day at this machine."""
    return f"{moment.astimezone():%H:%M:%S}"


class WaitPicture:
    """What is lacking, and how long it may.

    Args:
        asked: what is waited for, in words.
        timeout: seconds that it may take.
        ends: when these are over, by `time.monotonic`.
    """

    def __init__(self, asked: str, timeout: float, ends: float) -> None:
        self.lacking: Shortfall | None = None
        self._asked = asked
        self._timeout = timeout
        self._ends = ends

    def drawn(self, columns: int, lines: int) -> RenderableType:
        """Return the picture, in so many columns and lines of the terminal."""
        waited = self._timeout - (self._ends - time.monotonic())
        head = line(f"waiting for {self._asked}: {span(waited)} of {span(self._timeout)}", "cyan")
        if self.lacking is None:
            return Group(head, line("no answer yet"))
        counts = counts_table(self.lacking.found, self.lacking.wanted)
        above = [head, *(table_lines(counts) if counts.rows else [])]
        names, missing = missing_table(self.lacking.reasons)
        if not missing:
            return Group(*above)
        room = max(lines - len(above) - 1, 2)
        fitting = len(missing) if len(missing) < room else room - 1
        below = table_lines(Table(names, missing[:fitting]))
        if fitting < len(missing):
            below.append(line(f"and {len(missing) - fitting} more", "dim"))
        return Group(*above, *below)


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

    def _row(self, name: str, reading: TargetStatus | None, now: datetime) -> tuple[str, ...]:
        if reading is None:
            return (name, "", "", "", "", "no answer yet")
        answered_at = None if reading.state is None else reading.state.observed_at
        if reading.error is None:
            right_at = now if self._is_watched or answered_at is None else answered_at
        else:
            right_at = reading.stale_since or now
        return reading_row(reading, right_at, now)


def _summary(targets: int, readings: Sequence[TargetStatus]) -> str:
    failing = sum(reading.error is not None for reading in readings)
    tasks = sum(reading.num_tasks for reading in readings)
    said = f"{len(readings) - failing} of {targets} targets answer, {tasks} tasks"
    return f"{said}; {failing} do not" if failing else said
