"""Following a fleet: what `aioresolve poll` prints while it goes on.

`aioresolve poll`: all clusters of a fleet, asked side by side.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aioresolve._core.validation import seconds
from aioresolve.cli.options import PollRequest, output_option, quiet_option, read_by, shard, verbose_option
from aioresolve.cli.output.fleet_tables import ReadingRows, reading_json, readings_table, round_code
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aioresolve.cli.running import Ending
    from aioresolve.cli.terminal.background_writer import Pen
    from aioresolve.fleet import Fleet, TargetStatus

__all__ = ["poll", "poll_fleet", "poll_once"]

INTERVAL = 30.0
TIMEOUT = 30.0
CONCURRENCY = 256
"""What holds where neither the command nor the file says anything."""


def poll_once(request: PollRequest) -> int:
    """Print what each target answers to one question, and return the exit code.

    Raises:
        ConfigurationError: the file is wrong, or cannot be read.
    """
    # Imported here, so that `--help` and completion load click only.
    from aioresolve.cli.running import run

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
    from aioresolve.cli.running import run

    fleet, interval = _fleet(request)
    run(partial(_followed, request, fleet, interval))


def _fleet(request: PollRequest) -> tuple[Fleet, float]:
    """Return the fleet that the file describes, and the seconds between two questions to a target."""
    from aioresolve.fleet import Fleet
    from aioresolve.fleet.config import read_fleet

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


async def _round(fleet: Fleet, *, quiet: bool) -> list[TargetStatus]:
    from aioresolve.cli.terminal.progress import counted, ticking

    with counted(len(fleet.targets), quiet=quiet) as count:

        def look() -> None:
            count.done = len(fleet.readings)
            count.failed = sum(reading.error is not None for reading in fleet.readings.values())

        with ticking(look):
            return list((await fleet.resolve()).values())


async def _followed(request: PollRequest, fleet: Fleet, interval: float, ending: Ending) -> None:
    from aioresolve.cli.terminal.background_writer import pen

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
    request: PollRequest, fleet: Fleet, readings: AsyncGenerator[TargetStatus, None], stdout: Pen
) -> None:
    """Draw all targets in place."""
    # Here and not above: it loads rich.
    from aioresolve.cli.terminal.screen import screen
    from aioresolve.cli.terminal.views import PollPicture

    async with screen(stdout, PollPicture(fleet, is_watched=request.is_watched).drawn) as live:
        async for _ in readings:
            live.stir()


EPILOG = """\
\b
Examples:
  # all clusters, in place on a terminal
  aioresolve poll fleet.yaml

\b
  # one round, for a script: which clusters did not answer, and why
  aioresolve poll fleet.yaml --once -o json | jq -r 'select(.error) | [.name, .error.message] | @tsv'

\b
  # a quarter of the fleet, in a pod of an Indexed Job of four
  aioresolve poll fleet.yaml --shards 4 -o json

\b
Outputs:
  table  on a terminal all targets, in place; elsewhere a row for each answer: the target, the
         number of tasks of each job, how many are missing or not ready, how old that is, how
         long the answer took, and what is wrong
  json   {"name", "tasks": {JOB: N}, "jobs", "version", "observed_at", "absent", "unready",
         "latency", "stale_since", "error": null or {"type", "message", "retryable"}}, on a
         line for each answer; latency in seconds

\b
Exit codes: with --once 0 all answered, 1 some did not, 3 some were late and nothing else was
wrong; otherwise 130 ended by Ctrl-C, 143 by SIGTERM, 141 by a reader who has gone;
2 wrong usage or configuration.
"""


@click.command(epilog=EPILOG, short_help="All clusters of a fleet, asked side by side.")
@click.argument("file", metavar="FLEET.YAML", type=click.Path())
@click.option("--once", "is_once", is_flag=True, help="Ask each target once, print all answers, and end.")
@click.option(
    "-w",
    "--watch",
    "is_watched",
    is_flag=True,
    help="Follow the changes that API servers tell, in place of asking again and again.",
)
@click.option(
    "--interval",
    metavar="DURATION",
    callback=read_by(seconds),
    help="How long to wait between two questions to a target.  [default: the file's, else 30s]",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    callback=read_by(seconds),
    help="Give a target's answer up after this long.  [default: the file's, else 30s]",
)
@click.option(
    "--max-concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many targets are asked at a time.  [default: the file's, else 256]",
)
@click.option(
    "--shards",
    "shard",
    metavar="[I/]N",
    callback=read_by(shard),
    help="Take the I-th of N parts of the targets, counted from 0; without I, the part of this pod of an"
    " Indexed Job, $JOB_COMPLETION_INDEX.",
)
@output_option(("table", "json"))
@quiet_option
@verbose_option
@click.pass_context
def poll(context: click.Context, /, **parameters: Any) -> None:
    """Ask all targets of a fleet, again and again, until somebody ends that.

    FLEET.YAML names the targets: clusters, TPUs, or fixed ones. Each is asked on a clock of its own, so that
    one that hangs or fails holds up no other; it keeps what is known of it, with its age.
    """
    request = PollRequest(**parameters)
    if request.is_once and request.is_watched:
        raise click.UsageError("--once asks once and --watch goes on; give one of the two")
    if request.is_once:
        context.exit(poll_once(request))
    poll_fleet(request)
