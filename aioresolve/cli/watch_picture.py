"""What a terminal shows of a cluster that is watched: who is there, who is not, and what changed last."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from .drawing import line, table_lines
from .failures import as_options
from .output import Table, span, spec_table, state_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aioresolve.spec import ClusterState, Member, Missing, Observation

__all__ = ["WatchPicture"]

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
        wrong += as_options(str(observation.error))
        width = max(columns, 1)
        return [line(""), *(line(wrong[at : at + width], "red") for at in range(0, len(wrong), width))][:4]


def _missing_lines(missing: list[Missing]) -> list[Text]:
    if not missing:
        return []
    said = [line(f"{one.job}: {one.name}: {as_options(one.reason)}", "yellow") for one in missing[:MISSING]]
    if len(missing) > MISSING:
        said.append(line(f"and {len(missing) - MISSING} more that are no members or not ready", "yellow"))
    return [line(""), *said]


def _clock(moment: datetime) -> str:
    """Return the time of day at this machine."""
    return f"{moment.astimezone():%H:%M:%S}"
