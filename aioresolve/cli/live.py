"""What a terminal shows while a command runs, and the status lines where nothing can be drawn.

The functions import rich, which a command that draws nothing does not need.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from . import streams
from .error_messages import error_message, status_line
from .formats import Table, TextTable, format_instant, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from aioresolve._core.deadline import Progress
    from aioresolve.spec import Observation

SHOW_AFTER = 0.4
"""Seconds before progress is shown: a faster command needs neither progress nor the import of rich."""

REDRAW_PERIOD = 0.1
"""Seconds between two updates of the terminal."""

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def call_periodically(
    function: Callable[[], None], *, first: float | None = None, period: float = REDRAW_PERIOD
) -> Iterator[None]:
    """Call `function` after `first` seconds, and then every `period` seconds, until the block ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def call() -> None:
        nonlocal timer
        function()
        timer = loop.call_later(period, call)  # not after an exception, which the event loop logs

    timer = loop.call_later(SHOW_AFTER if first is None else first, call)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def draw_live(
    stream: TextIO,
    render: Callable[[int, int], RenderableType],
    *,
    first: float | None = None,
    keep: bool,
) -> Iterator[None]:
    """Draw what `render` returns for a number of columns and lines, again and again until the block ends.

    Nothing is drawn for the `first` seconds. With `keep`, the last content remains on the terminal if the
    block is cancelled, as by Ctrl-C.
    """
    live: Live | None = None

    def draw() -> None:
        nonlocal live
        if live is None:
            live = _new_live(stream, render)
            live.start()
        live.refresh()

    with call_periodically(draw, first=first):
        try:
            yield
        except asyncio.CancelledError:
            if live is not None:
                live.transient = not keep
            raise
        finally:
            if live is not None:
                live.stop()  # it shows the cursor again


def _new_live(stream: TextIO, render: Callable[[int, int], RenderableType]) -> Live:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, force_terminal=True, no_color=bool(os.environ.get("NO_COLOR")))
    return Live(
        # The last line is for the cursor, and for the shell's prompt afterwards.
        get_renderable=lambda: render(console.width, console.height - 1),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )


def single_line(text: str | Text, style: str = "") -> Text:
    """Return `text` as one line, which a narrow terminal truncates with an ellipsis."""
    from rich.text import Text

    shown = Text(printable(text), style) if isinstance(text, str) else text
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def table_lines(table: Table, columns: int) -> list[Text]:
    """Return the header and the rows of the table as lines for a terminal of that width."""
    from rich.text import Text

    fitted = table.fitted(columns)
    text = TextTable(fitted.columns, has_colors=True).lines(fitted.rows, fitted.styles)
    return [single_line(Text.from_ansi(line)) for line in text.splitlines()]


@contextmanager
def show_status(
    render: Callable[[int, int], RenderableType],
    line: Callable[[], str],
    *,
    quiet: bool,
    keep: bool = False,
    period: float = REDRAW_PERIOD,
) -> Iterator[None]:
    """Show on stderr what a command is waiting for until the block ends, unless the user wants errors only.

    On a terminal this is what `render` returns, drawn in place, and removed at the end; see `draw_live`.
    Otherwise, and if `-v` writes log lines, it is the `line` whenever it has changed; it is empty at first.
    """
    written = ""

    def write_if_new() -> None:
        nonlocal written
        if (text := one_line(line())) != written:
            streams.write_stderr(f"{text}\n")
            written = text

    if quiet:
        yield
    elif streams.can_draw(sys.stderr):
        with draw_live(sys.stderr, render, keep=keep):
            yield
    else:
        with call_periodically(write_if_new, period=period):
            yield


def show_progress(progress: Progress, *, quiet: bool) -> AbstractContextManager[None]:
    """Show on stderr what `progress` is waiting for; without a terminal, each failure once."""
    failures: dict[str, None] = {}

    def failure() -> str:
        # Concurrent requests fail in turns, so that the last error differs from the one before it.
        if progress.last_error is not None:
            failures.setdefault(status_line("retrying", progress.last_error))
        return next(reversed(failures), "")

    return show_status(_spinner(lambda: progress_line(progress)), failure, quiet=quiet)


def progress_line(progress: Progress) -> str:
    """Return what `progress` is waiting for, as one line."""
    if not progress.missing:
        return "looking for the API server and credentials"
    scope, what = next(iter(progress.missing.items()))
    total = len(progress.missing) + len(progress.reached)
    counts = f" ({len(progress.reached)} of {total} received)" if total > 1 else ""
    return printable(f"waiting for {scope}{counts}: {what}")


def show_counts(
    total: int, results: Callable[[], Collection[Any]], *, quiet: bool
) -> AbstractContextManager[None]:
    """Show on a terminal how many of `total` workers or targets have a result, and how many an `error`."""

    def text() -> str:
        failed = sum(one.error is not None for one in results())
        return f"{len(results())} of {total} done" + (f", {failed} failed" if failed else "")

    return show_status(_spinner(text), lambda: "", quiet=quiet)


def _spinner(text: Callable[[], str]) -> Callable[[int, int], RenderableType]:
    def render(columns: int, lines: int) -> RenderableType:
        frame = SPINNER[int(time.monotonic() / REDRAW_PERIOD) % len(SPINNER)]
        return single_line(f"{frame} {text()}")

    return render


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
        self._error = error
        line = "up to date again"
        if observation.error is not None:
            since = format_instant(observation.stale_since)
            prefix = f"not up to date{f' since {since}' if since else ''}; retrying"
            line = status_line(prefix, observation.error)
        self.write(line)

    def write(self, text: str) -> None:
        """Write `text` as one line."""
        if not self._quiet:
            streams.write_stderr(f"{one_line(text)}\n")
