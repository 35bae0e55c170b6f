"""Following a fleet: what `aioresolve poll` prints while it goes on."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.fleet import Fleet
from aioresolve.fleet.file import read_fleet

from . import streams
from .counting import counted
from .pen import pen
from .poll_output import ReadingRows, reading_json, readings_table, round_code
from .running import run
from .ticking import ticking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aioresolve.fleet import Reading

    from .pen import Pen
    from .request import PollRequest
    from .running import Ending

__all__ = ["poll_fleet", "poll_once"]

INTERVAL = 30.0
TIMEOUT = 30.0
CONCURRENCY = 256
"""What holds where neither the command nor the file says anything."""


def poll_once(request: PollRequest) -> int:
    """Print what each target answers to one question, and return the exit code.

    Raises:
        ConfigurationError: the file is wrong, or cannot be read.
    """
    fleet, _ = _fleet(request)
    readings = run(lambda _: _round(fleet, quiet=request.quiet))
    now = datetime.now(UTC)
    if request.output == "json":
        streams.write("".join(reading_json(reading, now) for reading in readings))
    else:
        streams.write(streams.table_text(readings_table(readings, now)))
    return round_code(readings)


def poll_fleet(request: PollRequest) -> None:
    """Print what all targets answer, for as long as nobody ends that.

    Raises:
        ConfigurationError: the file is wrong, or cannot be read.
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, or whoever read stdout has gone.
    """
    fleet, interval = _fleet(request)
    run(partial(_followed, request, fleet, interval))


def _fleet(request: PollRequest) -> tuple[Fleet, float]:
    """Return the fleet that the file describes, and the seconds between two questions to a target."""
    file = read_fleet(request.file)
    fleet = Fleet(
        file.targets,
        timeout=request.timeout or file.timeout or TIMEOUT,
        max_concurrency=request.max_concurrency or file.max_concurrency or CONCURRENCY,
        shard=request.shard,
    )
    if not (fleet.targets or request.quiet):
        of = "" if request.shard is None else f" in this shard, and {len(file.targets)} in all"
        streams.complain(f"there is no target{of}\n")
    return fleet, request.interval or file.interval or INTERVAL


async def _round(fleet: Fleet, *, quiet: bool) -> list[Reading]:
    with counted(len(fleet.targets), quiet=quiet) as count:

        def look() -> None:
            count.done = len(fleet.readings)
            count.failed = sum(reading.error is not None for reading in fleet.readings.values())

        with ticking(look):
            return list((await fleet.resolve()).values())


async def _followed(request: PollRequest, fleet: Fleet, interval: float, ending: Ending) -> None:
    with pen(sys.stdout, ending) as stdout:
        readings = fleet.watch(interval=interval) if request.is_watched else fleet.poll(interval=interval)
        async with fleet, aclosing(readings):
            if request.output == "table" and streams.can_draw(sys.stdout):
                await _on_screen(request, fleet, readings, stdout)
                return
            text = reading_json if request.output == "json" else ReadingRows(fleet.targets).text
            async for reading in readings:
                await stdout.write(text(reading, datetime.now(UTC)))


async def _on_screen(
    request: PollRequest, fleet: Fleet, readings: AsyncGenerator[Reading, None], stdout: Pen
) -> None:
    """Draw all targets in place."""
    # Here and not above: it loads rich.
    from .poll_picture import PollPicture
    from .screen import screen

    async with screen(stdout, PollPicture(fleet, is_watched=request.is_watched).drawn) as live:
        async for _ in readings:
            live.stir()
