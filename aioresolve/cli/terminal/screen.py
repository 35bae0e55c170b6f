"""A part of a terminal that is drawn anew, in place, while a command goes on: the room of `rich.live`."""

from __future__ import annotations

import io
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from rich.live import Live

from .drawing import console
from .progress import ticking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rich.console import RenderableType

    from .background_writer import Pen

__all__ = ["Screen", "screen"]

AGE = 1.0
"""Seconds after which a picture is drawn anew though nothing is new in it but the time."""

PARTING = 1.0
"""Seconds that a terminal has to take what gives its cursor back."""


class Screen:
    """Draws what `picture` returns, given the columns and lines there are, and never waits for the terminal.

    While the terminal takes no more (Ctrl-S), pictures are left out.
    """

    def __init__(
        self, pen: Pen, picture: Callable[[int, int], RenderableType], *, is_left_behind: bool
    ) -> None:
        self._pen = pen
        self._picture = picture
        self._page = io.StringIO()
        self._console = console(self._page)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=not is_left_behind,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._is_new = True
        self._drawn_at = 0.0

    def stir(self) -> None:
        """Let the picture be drawn anew soon: something has changed in it."""
        self._is_new = True

    def look(self) -> None:
        """Draw the picture if that is due."""
        now = time.monotonic()
        if not self._pen.is_busy and (self._is_new or now - self._drawn_at >= AGE):
            self._is_new, self._drawn_at = False, now
            self._draw()

    async def stop(self) -> None:
        """Draw the last picture, or leave nothing behind, and give the cursor back."""
        if self._live.is_started:
            if not self._live.transient:
                self._draw()
            self._live.stop()
            self._put()
        with anyio.CancelScope(shield=True):
            await self._pen.drained(PARTING)

    def _draw(self) -> None:
        self._live.start()
        size = self._console.size
        # The last line is left to the cursor of whoever comes after.
        self._live.update(self._picture(size.width, size.height - 1), refresh=True)
        self._put()

    def _put(self) -> None:
        text = self._page.getvalue()
        self._page.seek(0)
        self._page.truncate()
        self._pen.put(text)


@asynccontextmanager
async def screen(
    pen: Pen,
    picture: Callable[[int, int], RenderableType],
    *,
    patience: float = 0.0,
    is_left_behind: bool = True,
) -> AsyncIterator[Screen]:
    """Yield a screen that shows `picture` until the block ends.

    Args:
        pen: what writes to the terminal.
        picture: returns what there is to see, given the terminal's columns and lines.
        patience: seconds before anything is drawn.
        is_left_behind: whether the last picture stays.
    """
    one = Screen(pen, picture, is_left_behind=is_left_behind)
    try:
        with ticking(one.look, first=patience):
            yield one
    finally:
        await one.stop()
