"""`aioresolve poll`: many clusters, polled or watched at once."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import formats, options, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, DEADLINE, field_spelling, short_message
from aioresolve.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from rich.console import RenderableType

    from aioresolve.cli.application import ExitRequest
    from aioresolve.fleet import Fleet, TargetStatus
    from aioresolve.spec import Missing

INTERVAL = 30.0
TIMEOUT = 30.0
CONCURRENCY = 256
"""The values if neither the command nor the file has one; intervals and timeouts in seconds."""

COLUMNS = ("TARGET", "STATUS", "TASKS", "AGE", "LATENCY", "REASON")

EXPENDABLE = ("LATENCY", "AGE", "TASKS")
"""The columns that a narrow terminal does not show, in this order."""

REASON_WIDTH = 40
"""How much of a reason should be visible on a narrow terminal, in characters."""

STYLES = {"ready": "green", "degraded": "yellow", "empty": "red", "stale": "yellow", "error": "red"}
"""The style of the row of a target on a terminal, by its health."""

SEVERITY = ("error", "stale", "empty", "degraded", None, "ready")
"""The order of targets, the worst first; None for one without a response yet."""

NO_STATE: dict[str, Any] = {"jobs": {}, "version": None, "observed_at": None}

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
@options.duration_option(
    "--interval", "Time between two requests to a target.  [default: that of the file, else 30s]"
)
@options.duration_option("--timeout", "Deadline of each request.  [default: that of the file, else 30s]")
@options.number_option(
    "--max-concurrency", "Maximum number of targets polled at a time.  [default: that of the file, else 256]"
)
@click.option(
    "--shards",
    "shard",
    metavar="[I/]N",
    callback=options.parse_with(options.parse_shard),
    help="Only the I-th of N parts of the targets, counted from 0. Without I, the part of this pod of an"
    " Indexed Job, $JOB_COMPLETION_INDEX.",
)
@options.output_option(("table", "json"))
@options.quiet_option
@options.verbose_option
@click.pass_context
def poll(
    context: click.Context,
    /,
    is_once: bool,
    is_watched: bool,
    interval: float | None,
    output: str,
    has_headers: bool,
    quiet: bool,
    **parameters: Any,
) -> None:
    """Poll all targets of a fleet until interrupted.

    FLEET.YAML lists the targets: clusters, TPUs, or fixed ones. Each is polled independently, so that one
    that hangs or fails does not delay the others. A target that fails keeps its last known state.
    """
    if is_once and is_watched:
        raise click.UsageError("--once and --watch exclude each other; pass one of them")
    fleet, file_interval = _read_fleet(quiet=quiet, **parameters)
    if is_once:
        statuses = run_async(lambda _: _run_round(fleet, quiet=quiet))
        if output == "json":
            streams.write_stdout(
                "".join(formats.as_json_line(status_document(status)) for status in statuses)
            )
        else:
            now = datetime.now(UTC)
            rows = [status_row(status, status.stale_since or now, now) for status in statuses]
            streams.write_stdout(formats.Table(COLUMNS, rows), has_headers=has_headers)
            if statuses and not quiet:
                streams.write_stderr(f"{fleet_summary(len(fleet.targets), statuses)}\n")
        context.exit(round_exit_code(statuses))

    async def follow(exit_request: ExitRequest) -> None:
        updates = fleet.watch if is_watched else fleet.poll
        statuses = updates(interval=interval or file_interval or INTERVAL)
        async with fleet, aclosing(statuses):
            if output == "table" and streams.can_draw(sys.stdout):
                await _follow_on_screen(fleet, statuses, is_watched=is_watched)
                return
            with streams.stdout_writer(exit_request.exit) as stdout:
                table = new_status_table(fleet.targets, has_headers=has_headers)
                async for status in statuses:
                    now = datetime.now(UTC)
                    if output == "json":
                        await stdout.write(formats.as_json_line(status_document(status)))
                    else:
                        row = status_row(status, status.stale_since or now, now)
                        await stdout.write(table.lines([row]))

    run_async(follow)


def _read_fleet(
    *,
    file: str,
    timeout: float | None,
    max_concurrency: int | None,
    shard: int | tuple[int, int] | None,
    quiet: bool,
) -> tuple[Fleet, float | None]:
    """Return the fleet that the file describes, and its interval in seconds."""
    from aioresolve.fleet import Fleet
    from aioresolve.fleet.config import read_fleet

    config = read_fleet(file)
    fleet = Fleet(
        config.targets,
        timeout=timeout or config.timeout or TIMEOUT,
        max_concurrency=max_concurrency or config.max_concurrency or CONCURRENCY,
        shard=shard,
    )
    if not (fleet.targets or quiet):
        number = f"{len(config.targets)} target{'' if len(config.targets) == 1 else 's'}"
        is_shard = shard is not None and config.targets
        streams.write_stderr(f"this shard is empty; the fleet has {number}\n" if is_shard else "no targets\n")
    return fleet, config.interval


async def _run_round(fleet: Fleet, *, quiet: bool) -> list[TargetStatus]:
    from aioresolve.cli.live import show_counts

    def counts() -> tuple[int, int]:
        readings = fleet.readings
        return len(readings), sum(status.error is not None for status in readings.values())

    with show_counts(len(fleet.targets), counts, quiet=quiet):
        return list((await fleet.resolve()).values())


async def _follow_on_screen(
    fleet: Fleet, statuses: AsyncGenerator[TargetStatus, None], *, is_watched: bool
) -> None:
    from aioresolve.cli.live import draw_live

    def render(columns: int, lines: int) -> RenderableType:
        return render_fleet(fleet, columns, lines, is_watched=is_watched)

    with draw_live(sys.stdout, render, first=0.0, keep=True):
        async for _ in statuses:
            pass


def new_status_table(names: Iterable[str], *, has_headers: bool = True) -> formats.TextTable:
    """Return a table for `status_row`; `names` are those of all targets."""
    longest = max(map(formats.text_width, names), default=0)
    widths = (longest, len("Degraded"), len("worker:16,ps:2"), len("5m12s"), len("12.3ms"))
    return formats.TextTable(COLUMNS, widths, has_headers=has_headers)


def fit_columns(table: formats.Table, width: int) -> formats.Table:
    """Return `table` without the columns that leave too little of a terminal of that width to the reasons."""
    columns, rows = list(table.columns), [list(row) for row in table.rows]
    longest = max((formats.text_width(row[-1]) for row in rows), default=0)
    for name in EXPENDABLE:
        used = [
            max(map(formats.text_width, cells)) + 3
            for cells in zip(columns[:-1], *(row[:-1] for row in rows), strict=True)
        ]
        if width - sum(used) >= min(longest, REASON_WIDTH):
            break
        position = columns.index(name)
        del columns[position]
        for row in rows:
            del row[position]
    return formats.Table(columns, rows, table.styles)


def status_row(status: TargetStatus, current_at: datetime, now: datetime) -> tuple[str, ...]:
    """Return the cells of a status in the columns `COLUMNS`.

    `current_at` is when its state was last known to be current; both times are in UTC.
    """
    is_known = status.state is not None
    return (
        status.name,
        status.health.capitalize(),
        ",".join(f"{job}:{number}" for job, number in status.tasks_by_job.items()),
        _format_age((now - current_at).total_seconds()) if is_known else "",
        "" if status.latency is None else formats.format_latency(status.latency),
        status.reason if status.error is None else short_message(status.error),
    )


def status_document(status: TargetStatus) -> dict[str, Any]:
    """Return a status as one object.

    `{"name", "health", "reason", "tasks": {job: number}, "jobs", "version", "observed_at", "absent": [{"job",
    "name", "reason"}], "unready": [{"job", "name", "reason"}], "latency", "stale_since", "error": {"type",
    "message", "retryable"}}`: `jobs` is that of `cluster_document`, latency is in seconds. The values of
    unknown fields, of `error` after a success, and of `reason` if the target is ready, are null.
    """
    error = status.error
    state = NO_STATE if status.state is None else formats.cluster_document(status.state)
    return {
        "name": status.name,
        "health": str(status.health),
        "reason": status.reason or None,
        "tasks": status.tasks_by_job,
        **state,
        "absent": [_missing_document(one) for one in status.absent],
        "unready": [_missing_document(one) for one in status.unready],
        "latency": None if status.latency is None else round(status.latency, 6),
        "stale_since": formats.format_instant(status.stale_since),
        "error": None
        if error is None
        else {
            "type": type(error).__name__,
            "message": error.render(field_spelling),
            "retryable": error.retryable,
        },
    }


def round_exit_code(statuses: Sequence[TargetStatus]) -> int:
    """Return the exit code of a round: 0 if all are ready, 3 if only deadlines passed, otherwise 1."""
    sick = [status for status in statuses if status.health != "ready"]
    if not sick:
        return 0
    only_late = all(isinstance(status.error, DeadlineExceededError) for status in sick)
    return DEADLINE if only_late else COULD_NOT_RESOLVE


def fleet_summary(targets: int, statuses: Sequence[TargetStatus]) -> str:
    """Return one line: how many of the targets are ready, how many are not, and the number of tasks."""
    # Imported here because the help of the command need not load the package of fleets.
    from aioresolve.fleet import Health

    healths = Counter(status.health for status in statuses)
    tasks = sum(status.num_tasks for status in statuses)
    plural = "" if tasks == 1 else "s"
    text = f"{healths[Health.READY]} of {targets} targets ready, {tasks} task{plural}"
    sick = [f"{healths[one]} {one}" for one in Health if one != Health.READY and healths[one]]
    return "; ".join((text, ", ".join(sick))) if sick else text


def _format_age(seconds: float) -> str:
    return formats.format_span(seconds) if seconds >= 1 else "0s"


def _missing_document(one: Missing) -> dict[str, str]:
    return {"job": one.job, "name": one.name, "reason": one.reason}


def render_fleet(fleet: Fleet, columns: int, lines: int, *, is_watched: bool) -> RenderableType:
    """Return the latest status of each target, in their order, for a terminal of that size.

    If there are more targets than lines, the worst come first. A status that `is_watched` is current until it
    changes; otherwise its age counts from the last response.
    """
    from rich.console import Group

    from aioresolve.cli.drawing import single_line, table_lines

    now = datetime.now(UTC)
    statuses = dict(fleet.readings)
    names = list(fleet.targets)
    available = max(lines - 3, 1)
    if len(names) > available:
        names.sort(key=lambda name: SEVERITY.index(statuses[name].health if name in statuses else None))
        names = names[: available - 1]
    rows = [_live_row(name, statuses.get(name), now, is_watched=is_watched) for name in names]
    styles = [STYLES[statuses[name].health] if name in statuses else "" for name in names]
    more = len(fleet.targets) - len(names)
    return Group(
        *table_lines(fit_columns(formats.Table(COLUMNS, rows, styles), columns)),
        *([single_line(f"... and {more} more", "dim")] if more else []),
        single_line(""),
        single_line(fleet_summary(len(fleet.targets), list(statuses.values())), "dim"),
    )


def _live_row(name: str, status: TargetStatus | None, now: datetime, *, is_watched: bool) -> tuple[str, ...]:
    if status is None:
        return (name, "", "", "", "", "no response yet")
    received_at = None if status.state is None else status.state.observed_at
    if status.error is not None:
        return status_row(status, status.stale_since or now, now)
    return status_row(status, now if is_watched or received_at is None else received_at, now)
