"""Live views: a cluster being watched or waited for, or a fleet, redrawn in place on a terminal."""

from __future__ import annotations

import io
import time
from collections import deque
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec
from rich.console import Group
from rich.live import Live
from rich.text import Text

from aioresolve.cli.output.error_messages import status_line
from aioresolve.cli.output.fleet_tables import COLUMNS, fit_columns, fleet_summary, status_row
from aioresolve.cli.output.formats import (
    Table,
    counts_table,
    format_span,
    missing_table,
    some_names,
    spec_table,
    state_table,
)
from aioresolve.fleet.target import Health

from .drawing import new_console, single_line, table_lines
from .progress import call_periodically

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from aioresolve.fleet import Fleet, TargetStatus
    from aioresolve.resolver.wait import Shortfall
    from aioresolve.spec import ClusterState, Member, Missing, Observation

    from .background_writer import BackgroundWriter

MAX_AGE = 1.0
"""Seconds after which a view is redrawn even if nothing changed, because it shows durations."""

FLUSH_TIMEOUT = 1.0
"""Seconds that the terminal has at the end to accept the last output, which shows the cursor again."""

MAX_CHANGES = 5
"""How many of the last changes are shown."""

MAX_MISSING = 8
"""How many reasons for missing tasks are shown below a watched cluster."""

HIGHLIGHT_SECONDS = 5.0
"""Seconds for which the row of a task that joined or moved is highlighted."""

STYLES = {"JOINED": "green", "MOVED": "yellow", "LEFT": "red"}


class View(Protocol):
    """The content of a screen."""

    def render(self, columns: int, lines: int) -> RenderableType:
        """Return the current content, for a terminal of that size."""
        ...


class Screen:
    """Redraws a view in place, without ever waiting for the terminal.

    While the terminal accepts no output (Ctrl-S), redraws are skipped.
    """

    def __init__(self, writer: BackgroundWriter, view: View, *, keep: bool) -> None:
        self._writer = writer
        self._view = view
        self._page = io.StringIO()
        self._console = new_console(self._page)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=not keep,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._is_outdated = True
        self._drawn_at = 0.0

    def invalidate(self) -> None:
        """Redraw soon: the content of the view has changed."""
        self._is_outdated = True

    def redraw_if_due(self) -> None:
        """Redraw if the content has changed or is older than `MAX_AGE`."""
        now = time.monotonic()
        if not self._writer.is_busy and (self._is_outdated or now - self._drawn_at >= MAX_AGE):
            self._is_outdated, self._drawn_at = False, now
            self._draw()

    async def stop(self) -> None:
        """Draw the view a last time or remove it, and show the cursor again."""
        if self._live.is_started:
            if not self._live.transient:
                self._draw()
            self._live.stop()
            self._write()
        # Also after Ctrl-C: the process must not end while the cursor is hidden.
        with anyio.CancelScope(shield=True):
            await self._writer.flush(FLUSH_TIMEOUT)

    def _draw(self) -> None:
        self._live.start()
        size = self._console.size
        # The last line is for the cursor, and for the shell's prompt afterwards.
        self._live.update(self._view.render(size.width, size.height - 1), refresh=True)
        self._write()

    def _write(self) -> None:
        text = self._page.getvalue()
        self._page.seek(0)
        self._page.truncate()
        self._writer.write_soon(text)


@asynccontextmanager
async def live_view(
    writer: BackgroundWriter, view: View, *, show_after: float = 0.0, keep: bool = True
) -> AsyncIterator[Screen]:
    """Yield a screen that shows `view` until the block ends.

    Nothing is drawn for the first `show_after` seconds. With `keep`, the last content remains on the
    terminal.
    """
    screen = Screen(writer, view, keep=keep)
    try:
        with call_periodically(screen.redraw_if_due, first=show_after):
            yield screen
    finally:
        await screen.stop()


class _Change(msgspec.Struct, frozen=True):
    at: datetime
    event: str
    member: Member
    text: str

    def is_recent(self, now: datetime) -> bool:
        return (now - self.at).total_seconds() < HIGHLIGHT_SECONDS


class WatchView:
    """A watched cluster: its tasks, the missing ones, the last changes, and the status of the source."""

    def __init__(self, scope: str, *, is_wide: bool) -> None:
        self._scope = scope
        self._is_wide = is_wide
        self._observation: Observation | None = None
        self._changed_at = datetime.now(UTC)
        self._changes: deque[_Change] = deque(maxlen=MAX_CHANGES)

    def update(self, observation: Observation, now: datetime) -> None:
        """Show `observation`, received at `now` (UTC)."""
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

    def render(self, columns: int, lines: int) -> RenderableType:
        """Return the current content, for a terminal of that size."""
        observation = self._observation
        if observation is None or observation.state is None:
            return Text("")
        now = datetime.now(UTC)
        below = [
            *_missing_lines([*observation.unready, *observation.absent]),
            *self._change_lines(),
            *self._status_lines(observation, now, columns),
        ]
        available = max(lines - len(below), 2)
        return Group(*self._task_lines(observation.state, available, now), *below)

    def _task_lines(self, state: ClusterState, available: int, now: datetime) -> list[Text]:
        columns, rows = state_table(state) if self._is_wide else spec_table(state.spec)
        recent = {change.member: STYLES[change.event] for change in self._changes if change.is_recent(now)}
        styles = [recent.get(member, "") for member in state.members]
        if len(rows) < available:
            return table_lines(Table(columns, rows), styles)
        fitting = max(available - 2, 0)
        more = single_line(f"... and {len(rows) - fitting} more", "dim")
        return [*table_lines(Table(columns, rows[:fitting]), styles), more]

    def _change_lines(self) -> list[Text]:
        lines = [
            single_line(f"{_local_time(change.at)}  {change.event:6}  {change.text}", STYLES[change.event])
            for change in self._changes
        ]
        return [single_line(""), *lines] if lines else []

    def _status_lines(self, observation: Observation, now: datetime, columns: int) -> list[Text]:
        state = observation.state
        assert state is not None
        number = len(state.members)
        tasks = f"{number} task{'' if number == 1 else 's'}"
        if observation.error is None:
            changed_at = _local_time(self._changed_at)
            return [
                single_line(""),
                single_line(f"{tasks}, last changed at {changed_at}: {self._scope}", "dim"),
            ]
        since = observation.stale_since or now
        age = format_span((now - since).total_seconds())
        text = status_line(
            f"{tasks} at {_local_time(since)}, {age} ago; not up to date since", observation.error
        )
        width = max(columns, 1)
        # At most three lines of the error: the rest of the terminal is for the tasks.
        wrapped = [single_line(text[at : at + width], "red") for at in range(0, len(text), width)]
        return [single_line(""), *wrapped][:4]


def _missing_lines(missing: list[Missing]) -> list[Text]:
    if not missing:
        return []
    names: dict[tuple[str, str], list[str]] = {}
    for one in missing:
        names.setdefault((one.job, one.reason), []).append(one.name)
    groups = [f"{job}: {some_names(each)}: {reason}" for (job, reason), each in names.items()]
    lines = [single_line(line, "yellow") for line in groups[:MAX_MISSING]]
    if len(groups) > MAX_MISSING:
        more = sum(map(len, [*names.values()][MAX_MISSING:]))
        lines.append(single_line(f"and {more} more missing or not ready", "yellow"))
    return [single_line(""), *lines]


def _local_time(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"


class WaitView:
    """What a cluster being waited for lacks, and how much of the deadline is used.

    The deadline is `ends` by `time.monotonic`, `timeout` seconds after the start. `lacking` is None before
    the first response.
    """

    def __init__(self, scope: str, timeout: float, ends: float) -> None:
        self.lacking: Shortfall | None = None
        self._scope = scope
        self._timeout = timeout
        self._ends = ends

    def render(self, columns: int, lines: int) -> RenderableType:
        """Return the current content, for a terminal of that size."""
        waited = format_span(self._timeout - (self._ends - time.monotonic()))
        head = single_line(f"waiting for {self._scope}: {waited} of {format_span(self._timeout)}", "cyan")
        if self.lacking is None:
            return Group(head, single_line("no response yet"))
        counts = counts_table(self.lacking.found, self.lacking.least, self.lacking.sources)
        above = [head, *(table_lines(counts) if counts.rows else [])]
        names, missing = missing_table(self.lacking.reasons)
        if not missing:
            return Group(*above)
        available = max(lines - len(above) - 1, 2)
        fitting = len(missing) if len(missing) <= available else available - 1
        below = table_lines(Table(names, missing[:fitting]))
        if fitting < len(missing):
            below.append(single_line(f"and {len(missing) - fitting} more reasons", "dim"))
        return Group(*above, *below)


SEVERITY = (Health.ERROR, Health.STALE, Health.EMPTY, Health.DEGRADED, None, Health.READY)
"""The order of targets, the worst first; None for one without a response yet."""

HEALTH_STYLES = {
    Health.ERROR: "red",
    Health.STALE: "yellow",
    Health.EMPTY: "red",
    Health.DEGRADED: "yellow",
    Health.READY: "green",
}


def _health(status: TargetStatus | None) -> Health | None:
    return None if status is None else status.health


class FleetView:
    """The latest status of each target, in the order of the targets.

    If there are more targets than lines, the worst come first. A status that `is_watched` is
    current until it changes; otherwise its age counts from the last response.
    """

    def __init__(self, fleet: Fleet, *, is_watched: bool) -> None:
        self._fleet = fleet
        self._is_watched = is_watched

    def render(self, columns: int, lines: int) -> RenderableType:
        """Return the current content, for a terminal of that size."""
        now = datetime.now(UTC)
        statuses = dict(self._fleet.readings)
        names = list(self._fleet.targets)
        available = max(lines - 3, 1)
        if len(names) > available:
            names.sort(key=lambda name: SEVERITY.index(_health(statuses.get(name))))
            names = names[: available - 1]
        rows = [self._row(name, statuses.get(name), now) for name in names]
        styles = ["" if name not in statuses else HEALTH_STYLES[statuses[name].health] for name in names]
        more = len(self._fleet.targets) - len(names)
        return Group(
            *table_lines(fit_columns(Table(COLUMNS, rows), columns), styles),
            *([single_line(f"... and {more} more", "dim")] if more else []),
            single_line(""),
            single_line(fleet_summary(len(self._fleet.targets), list(statuses.values())), "dim"),
        )

    def _row(self, name: str, status: TargetStatus | None, now: datetime) -> tuple[str, ...]:
        if status is None:
            return (name, "", "", "", "", "no response yet")
        received_at = None if status.state is None else status.state.observed_at
        if status.error is None:
            current_at = now if self._is_watched or received_at is None else received_at
        else:
            current_at = status.stale_since or now
        return status_row(status, current_at, now)
