"""A bar on stderr that counts answers, and the answers on stdout that go around it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import streams
from .ticking import ticking

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Count", "counted"]

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
