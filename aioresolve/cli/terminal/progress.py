"""Looking again and again while the event loop does something else.

What is said on stderr while something is waited for.

A bar on stderr that counts answers, and the answers on stdout that go around it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aioresolve.cli.output.formats import printable

from . import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aioresolve._core.retry import Progress

    from .drawing import Line

__all__ = ["PATIENCE", "PERIOD", "Count", "counted", "shown", "ticking", "waiting_line"]

PATIENCE = 0.4
"""Seconds before anything is said: an answer that comes sooner needs no word, nor the import of rich."""

PERIOD = 0.1
"""Seconds between two looks at what is drawn on a terminal."""


@contextmanager
def ticking(look: Callable[[], None], *, first: float = PATIENCE, period: float = PERIOD) -> Iterator[None]:
    """Call `look` after `first` seconds, and every `period` seconds from there, until the block ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tick() -> None:
        nonlocal timer
        timer = loop.call_later(period, tick)
        look()

    timer = loop.call_later(first, tick)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def shown(progress: Progress, *, quiet: bool) -> Iterator[None]:
    """Say on stderr what `progress` waits for, until the block ends.

    On a terminal that is one moving line, which leaves nothing behind. Elsewhere, and among the log lines of
    `-v`, it is a plain line per failed attempt, and nothing while all is well.
    """
    if quiet:
        yield
        return
    show: _Show = _MovingLine() if streams.can_draw(sys.stderr) else _LinePerFailure()
    with ticking(partial(show.update, progress)):
        try:
            yield
        finally:
            show.stop()


def waiting_line(progress: Progress) -> str:
    """Return what is still waited for, in a line of words."""
    if not progress.missing:
        return "looking for the API server and credentials"
    scope, what = next(iter(progress.missing.items()))
    total = len(progress.missing) + len(progress.reached)
    counted = f" ({len(progress.reached)} of {total} answered)" if total > 1 else ""
    return printable(f"waiting for {scope}{counted}: {what}")


class _Show(Protocol):
    def update(self, progress: Progress) -> None: ...

    def stop(self) -> None: ...


class _MovingLine:
    def __init__(self) -> None:
        self._line: Line | None = None

    def update(self, progress: Progress) -> None:
        text = waiting_line(progress)
        if self._line is not None:
            self._line.say(text)
            return
        from .drawing import Line

        self._line = Line(sys.stderr, text)

    def stop(self) -> None:
        if self._line is not None:
            self._line.stop()


class _LinePerFailure:
    def __init__(self) -> None:
        self._said: set[str] = set()

    def update(self, progress: Progress) -> None:
        line = "" if progress.last_error is None else printable(str(progress.last_error))
        if line and line not in self._said:
            self._said.add(line)
            streams.complain(f"trying again: {line}\n")

    def stop(self) -> None:
        """Leave what was said."""


ERASE = "\r\x1b[2K"


class Count:
    """How many of `total` have answered. The bar is there only while `is_shown`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.failed = 0
        self._is_shown = False

    def add(self, *, is_failure: bool) -> None:
        """Count one more answer."""
        self.done += 1
        self.failed += is_failure

    def write(self, text: str) -> None:
        """Write an answer to stdout, with the bar out of its way until that is drawn again."""
        if text:
            self.erase()
            streams.write(text)

    def draw(self) -> None:
        """Draw the bar, in the place of the one before."""
        from .drawing import drawn_bar

        said = f"{self.done} of {self.total} asked"
        if self.failed:
            said += f", {self.failed} without an answer"
        bar = drawn_bar(self.done / self.total if self.total else 1.0, said, _columns() - 1)
        streams.complain(f"{ERASE}{bar}")
        self._is_shown = True

    def erase(self) -> None:
        """Leave nothing of the bar."""
        if self._is_shown:
            streams.complain(ERASE)
            self._is_shown = False


@contextmanager
def counted(total: int, *, quiet: bool) -> Iterator[Count]:
    """Yield a count, and draw it on stderr where that is a terminal and no log lines go there.

    Nothing is drawn of what takes less than `ticking.PATIENCE`, nor left when the block ends.
    """
    count = Count(total)
    if quiet or not streams.can_draw(sys.stderr):
        yield count
        return
    with ticking(count.draw):
        try:
            yield count
        finally:
            count.erase()


def _columns() -> int:
    """Return how wide the terminal is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
