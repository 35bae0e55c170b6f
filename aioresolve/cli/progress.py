"""What is said on stderr while something is waited for."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from . import streams
from .output import printable
from .ticking import ticking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve.retry import Progress

    from .drawing import Line

__all__ = ["shown", "waiting_line"]


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
