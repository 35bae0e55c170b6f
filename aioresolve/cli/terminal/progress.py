"""Progress on stderr: a spinner, a progress bar, and status lines."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aioresolve._core.deadline import within_deadline
from aioresolve.cli.output.error_messages import error_message, status_line
from aioresolve.cli.output.formats import format_instant, one_line, printable

from . import streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from rich.status import Status

    from aioresolve._core.deadline import Progress
    from aioresolve.cli.requests import ClusterRequest
    from aioresolve.spec import Observation

T = TypeVar("T")

SHOW_AFTER = 0.4
"""Seconds before progress is shown: a faster command needs neither progress nor the import of rich."""

REDRAW_PERIOD = 0.1
"""Seconds between two updates of the terminal."""


@contextmanager
def call_periodically(
    function: Callable[[], None], *, first: float = SHOW_AFTER, period: float = REDRAW_PERIOD
) -> Iterator[None]:
    """Call `function` after `first` seconds, and then every `period` seconds, until the block ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def call() -> None:
        nonlocal timer
        timer = loop.call_later(period, call)
        function()

    timer = loop.call_later(first, call)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def show_progress(progress: Progress, *, quiet: bool) -> Iterator[None]:
    """Show on stderr what `progress` is waiting for, until the block ends.

    On a terminal this is one line with a spinner, which is removed at the end. Otherwise, and if `-v` writes
    log lines, it is a plain line for each failed attempt.
    """
    if quiet:
        yield
        return
    if not streams.can_draw(sys.stderr):
        with call_periodically(partial(_FailureLines().update, progress)):
            yield
        return
    spinner = _Spinner()
    with call_periodically(partial(spinner.update, progress)):
        try:
            yield
        finally:
            spinner.stop()


async def run_with_progress(
    request: ClusterRequest, operation: Callable[[Progress], Awaitable[T]], scope: str = ""
) -> T:
    """Run `operation` within the deadline of `request`, and show on stderr what it is waiting for."""

    async def run(progress: Progress) -> T:
        with show_progress(progress, quiet=request.quiet):
            return await operation(progress)

    return await within_deadline(request.timeout, scope or request.scope, run)


def progress_line(progress: Progress) -> str:
    """Return what `progress` is waiting for, as one line."""
    if not progress.missing:
        return "looking for the API server and credentials"
    scope, what = next(iter(progress.missing.items()))
    total = len(progress.missing) + len(progress.reached)
    counts = f" ({len(progress.reached)} of {total} received)" if total > 1 else ""
    return printable(f"waiting for {scope}{counts}: {what}")


class _Spinner:
    def __init__(self) -> None:
        self._status: Status | None = None

    def update(self, progress: Progress) -> None:
        # Imported when the spinner is first drawn, which a fast command never does.
        from rich.text import Text

        from .drawing import new_spinner

        if self._status is None:
            self._status = new_spinner(sys.stderr)
        self._status.update(Text(progress_line(progress)))
        self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()


class _FailureLines:
    def __init__(self) -> None:
        self._written: set[str] = set()

    def update(self, progress: Progress) -> None:
        line = "" if progress.last_error is None else status_line("retrying", progress.last_error)
        if line and line not in self._written and streams.write_stderr(f"{line}\n"):
            self._written.add(line)


ERASE_LINE = "\r\x1b[2K"


class ProgressBar:
    """How many of `total` workers or targets have completed, as a bar on stderr."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.failed = 0
        self._is_drawn = False
        self._is_hidden = False

    def add(self, *, is_failure: bool) -> None:
        """Count one more as completed."""
        self.done += 1
        self.failed += is_failure

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar inside the block, in which results are written: stdout may be the same terminal."""
        self.erase()
        self._is_hidden = True
        try:
            yield
        finally:
            self._is_hidden = False

    def draw(self) -> None:
        """Draw the bar in place of the previous one."""
        if self._is_hidden:
            return
        from .drawing import render_bar

        text = f"{self.done} of {self.total} done"
        if self.failed:
            text += f", {self.failed} failed"
        bar = render_bar(self.done / self.total if self.total else 1.0, text, _terminal_columns() - 1)
        streams.write_stderr(f"{ERASE_LINE}{bar}")
        self._is_drawn = True

    def erase(self) -> None:
        """Remove the bar from the terminal."""
        if self._is_drawn:
            streams.write_stderr(ERASE_LINE)
            self._is_drawn = False


@contextmanager
def show_bar(total: int, *, quiet: bool) -> Iterator[ProgressBar]:
    """Yield a progress bar, which is drawn if stderr is a terminal without log lines.

    Nothing is drawn before `SHOW_AFTER`, and the bar is removed at the end.
    """
    bar = ProgressBar(total)
    if quiet or not streams.can_draw(sys.stderr):
        yield bar
        return
    with call_periodically(bar.draw):
        try:
            yield bar
        finally:
            bar.erase()


def _terminal_columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class StatusReporter:
    """Writes status lines about a watched source to stderr, and never the same status twice in a row."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._error = ""

    def report(self, observation: Observation) -> None:
        """Write that the source is failing, or that it works again."""
        error = "" if observation.error is None else error_message(observation.error)
        if error == self._error:
            return
        line = "up to date again"
        if observation.error is not None:
            since = format_instant(observation.stale_since)
            prefix = f"not up to date{f' since {since}' if since else ''}; retrying"
            line = status_line(prefix, observation.error)
        if self.write(line):
            self._error = error

    def write(self, text: str) -> bool:
        """Write `text` as one line, and return False if it was dropped because stderr is not read."""
        return self._quiet or streams.write_stderr(f"{one_line(text)}\n")
