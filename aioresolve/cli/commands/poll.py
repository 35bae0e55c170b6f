"""`aioresolve poll`: many clusters, polled or watched at once."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.options import (
    Integer,
    duration_option,
    output_option,
    parse_shard,
    parse_with,
    quiet_option,
    verbose_option,
)
from aioresolve.cli.output.fleet_tables import (
    StatusRows,
    fleet_summary,
    round_exit_code,
    status_json,
    statuses_table,
)
from aioresolve.cli.requests import PollRequest
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aioresolve.cli.application import ExitRequest
    from aioresolve.cli.terminal.background_writer import BackgroundWriter
    from aioresolve.fleet import Fleet, TargetStatus

INTERVAL = 30.0
TIMEOUT = 30.0
CONCURRENCY = 256
"""The values if neither the command nor the file has one; intervals and timeouts in seconds."""

EPILOG = """\
\b
Examples:
  # all clusters, in place on a terminal
  aioresolve poll fleet.yaml

\b
  # one round, for a script: which clusters are not ready, and why
  aioresolve poll fleet.yaml --once -o json | jq -r 'select(.reason) | [.name, .reason] | @tsv'

\b
  # a quarter of the fleet, in a pod of an Indexed Job of four
  aioresolve poll fleet.yaml --shards 4 -o json

\b
Outputs:
  table  on a terminal all targets, in place; otherwise a row for each response: the target,
         its status (Ready, Degraded, Empty, Stale or Error), the number of tasks of each job,
         the age and the latency of the response, and why the target is not ready
  json   {"name", "health", "reason", "tasks": {JOB: N}, "jobs", "version", "observed_at",
         "absent", "unready", "latency", "stale_since", "error": null or {"type", "message",
         "retryable"}}, on one line for each response; latency in seconds

\b
Exit codes: with --once 0 all targets are ready, 1 some are not, 3 only deadlines passed;
otherwise 130 ended by Ctrl-C, 143 by SIGTERM, 141 by the reader of stdout;
2 invalid usage or configuration.
"""


@click.command(epilog=EPILOG, short_help="Many clusters, polled or watched at once.")
@click.argument("file", metavar="FLEET.YAML", type=click.Path())
@click.option("--once", "is_once", is_flag=True, help="Poll each target once, print all results, and exit.")
@click.option(
    "-w", "--watch", "is_watched", is_flag=True, help="Watch API servers for changes instead of polling them."
)
@duration_option(
    "--interval", "Time between two requests to a target.  [default: that of the file, else 30s]"
)
@duration_option("--timeout", "Deadline of each request.  [default: that of the file, else 30s]")
@click.option(
    "--max-concurrency",
    metavar="N",
    type=Integer(min=1),
    help="Maximum number of targets polled at a time.  [default: that of the file, else 256]",
)
@click.option(
    "--shards",
    "shard",
    metavar="[I/]N",
    callback=parse_with(parse_shard),
    help="Only the I-th of N parts of the targets, counted from 0. Without I, the part of this pod of an"
    " Indexed Job, $JOB_COMPLETION_INDEX.",
)
@output_option(("table", "json"))
@quiet_option
@verbose_option
@click.pass_context
def poll(context: click.Context, /, **parameters: Any) -> None:
    """Poll all targets of a fleet until interrupted.

    FLEET.YAML lists the targets: clusters, TPUs, or fixed ones. Each is polled independently, so that one
    that hangs or fails does not delay the others. A target that fails keeps its last known state.
    """
    request = PollRequest(**parameters)
    if request.is_once and request.is_watched:
        raise click.UsageError("--once and --watch exclude each other; pass one of them")
    if request.is_once:
        context.exit(_poll_once(request))
    from aioresolve.cli.application import run_async

    fleet, interval = _read_fleet(request)
    run_async(partial(_follow, request, fleet, interval))


def _poll_once(request: PollRequest) -> int:
    """Print the status of each target after one round, and return the exit code."""
    from aioresolve.cli.application import run_async

    fleet, _ = _read_fleet(request)
    statuses = run_async(lambda _: _run_round(fleet, quiet=request.quiet))
    now = datetime.now(UTC)
    if request.output == "json":
        streams.write_stdout("".join(status_json(status, now) for status in statuses))
    else:
        streams.write_stdout(statuses_table(statuses, now), has_headers=request.has_headers)
    if statuses and request.output == "table" and not request.quiet:
        streams.write_stderr(f"{fleet_summary(len(fleet.targets), statuses)}\n")
    return round_exit_code(statuses)


async def _run_round(fleet: Fleet, *, quiet: bool) -> list[TargetStatus]:
    from aioresolve.cli.terminal.progress import call_periodically, show_bar

    with show_bar(len(fleet.targets), quiet=quiet) as bar:

        def count() -> None:
            bar.done = len(fleet.readings)
            bar.failed = sum(status.error is not None for status in fleet.readings.values())

        with call_periodically(count):
            return list((await fleet.resolve()).values())


async def _follow(request: PollRequest, fleet: Fleet, interval: float, exit_request: ExitRequest) -> None:
    from aioresolve.cli.terminal.background_writer import background_writer

    with background_writer(sys.stdout, exit_request.exit) as stdout:
        statuses = fleet.watch(interval=interval) if request.is_watched else fleet.poll(interval=interval)
        async with fleet, aclosing(statuses):
            if request.output == "table" and streams.can_draw(sys.stdout):
                await _follow_on_screen(request, fleet, statuses, stdout)
                return
            rows = StatusRows(fleet.targets, has_headers=request.has_headers)
            format_status = status_json if request.output == "json" else rows.format
            async for status in statuses:
                await stdout.write(format_status(status, datetime.now(UTC)))


async def _follow_on_screen(
    request: PollRequest, fleet: Fleet, statuses: AsyncGenerator[TargetStatus, None], stdout: BackgroundWriter
) -> None:
    from aioresolve.cli.terminal.views import FleetView, live_view

    async with live_view(stdout, FleetView(fleet, is_watched=request.is_watched)) as screen:
        async for _ in statuses:
            screen.invalidate()


def _read_fleet(request: PollRequest) -> tuple[Fleet, float]:
    """Return the fleet that the file describes, and the interval in seconds."""
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
        number = f"{len(file.targets)} target{'' if len(file.targets) == 1 else 's'}"
        is_shard = request.shard is not None and file.targets
        streams.write_stderr(f"this shard is empty; the fleet has {number}\n" if is_shard else "no targets\n")
    return fleet, request.interval or file.interval or INTERVAL
