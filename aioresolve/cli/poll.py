"""`aioresolve poll`: all clusters of a fleet, asked side by side."""

from __future__ import annotations

from typing import Any

import click

from aioresolve.durations import seconds

from .arguments import shard
from .options import output_option, quiet_option, read_by, verbose_option
from .request import PollRequest

__all__ = ["poll"]

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
    # Here and not above: `--help` and completion are not to pay for it.
    from .polling import poll_fleet, poll_once

    if request.is_once:
        context.exit(poll_once(request))
    poll_fleet(request)
