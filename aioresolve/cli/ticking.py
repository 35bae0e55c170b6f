"""Looking again and again while the event loop does something else."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PATIENCE", "PERIOD", "ticking"]

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
