"""What a terminal shows while a cluster is waited for: who is missing, and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group

from .drawing import line, table_lines
from .failures import as_options
from .output import Table, span
from .wait_output import counts_table, missing_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aioresolve.waiting import Shortfall

__all__ = ["WaitPicture"]


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
        reasons = {name: as_options(reason) for name, reason in self.lacking.reasons.items()}
        names, missing = missing_table(reasons)
        if not missing:
            return Group(*above)
        room = max(lines - len(above) - 1, 2)
        fitting = len(missing) if len(missing) < room else room - 1
        below = table_lines(Table(names, missing[:fitting]))
        if fitting < len(missing):
            below.append(line(f"and {len(missing) - fitting} more", "dim"))
        return Group(*above, *below)
