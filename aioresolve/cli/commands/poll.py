"""`aioresolve poll`: many clusters, polled or watched at once."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import formats, options, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.completion import find_contexts
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, DEADLINE, field_spelling
from aioresolve.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from rich.console import RenderableType

    from aioresolve.cli.application import ExitWith
    from aioresolve.fleet import Fleet, TargetStatus

INTERVAL = 30.0
TIMEOUT = 30.0
CONCURRENCY = 256
"""The values if neither the command nor the file has one; intervals and timeouts in seconds."""

COLUMNS = ("TARGET", "STATUS", "TASKS", "AGE", "REASON")

EXPENDABLE = ("TASKS", "AGE")
"""The columns that a narrow terminal does not show, in this order."""

STYLES = {"ready": "green", "degraded": "yellow", "empty": "red", "stale": "yellow", "error": "red"}
"""The style of the row of a target on a terminal, by its health."""

EPILOG = """\
\b
Examples:
  # all clusters, in place on a terminal
  aioresolve poll fleet.yaml

\b
  # one round, for a script: which clusters are not ready, and why
  aioresolve poll fleet.yaml --once -o json | jq -r 'select(.reason) | [.name, .reason] | @tsv'

\b
  # a page for a browser, and metrics for Prometheus
  aioresolve poll fleet.yaml -w --listen 127.0.0.1:8080

\b
  # a new file, with the contexts of the kubeconfig
  aioresolve poll fleet.yaml --init

\b
  # a quarter of the fleet, in a pod of an Indexed Job of four
  aioresolve poll fleet.yaml --shards 4 -o json

\b
Outputs:
  table  on a terminal all targets, in place, the worst first; otherwise a row for each response:
         the target, its status (Ready, Degraded, Empty, Stale or Error) with the numbers of usable
         and expected tasks, the tasks of each job, why it is not ready, and how old that is
  json   an object on one line for each response; latency in seconds

\b
Exit codes with --once: 0 all targets are ready, 1 some are not, 3 only deadlines passed.
"""


parse_shard = options.matching(
    "(?:([0-9]{1,9})/)?([1-9][0-9]{0,8})",
    "a valid shard; write INDEX/N with an index below N, such as 0/4, or only N in a pod of an Indexed Job",
    lambda index, number: (
        int(number) if index is None else (int(index), int(number)) if int(index) < int(number) else None
    ),
)
parse_listen = options.matching(
    r"(\[[^]]+\]|[^:\[\]]+):([0-9]{1,5})",
    "an address and a port; write one such as 127.0.0.1:8080, or [::1]:8080 for IPv6",
    lambda host, port: (host.strip("[]"), int(port)) if int(port) <= 65535 else None,
)


@click.command(epilog=EPILOG, short_help="Many clusters, polled or watched at once.")
@click.argument("file", metavar="FLEET.YAML", type=click.Path())
@options.flag_option("--init is_new", "Write the file, with a target for each context of the kubeconfig.")
@options.flag_option("--check is_checked", "Only check the file: exit with 0 if it is valid, else with 2.")
@options.flag_option("--once is_once", "Poll each target once, print all results, and exit.")
@options.flag_option("-w --watch is_watched", "Watch API servers for changes instead of polling them.")
@options.duration_option(
    "--interval", "Time between two requests to a target.  [default: that of the file, else 30s]"
)
@options.duration_option("--timeout", "Deadline of each request.  [default: that of the file, else 30s]")
@options.number_option(
    "--max-concurrency", "Maximum number of targets polled at a time.  [default: that of the file, else 256]"
)
@options.text_option(
    "--shards shard",
    "[I/]N",
    "Only the I-th of N parts of the targets, counted from 0. Without I, the part of this pod of an"
    " Indexed Job, $JOB_COMPLETION_INDEX.",
    parse=parse_shard,
)
@options.text_option(
    "--listen",
    "HOST:PORT",
    "Serve a page, JSON, events, and metrics for Prometheus there, read-only; for what see the"
    " documentation of fleets. HOST is an address of this machine, such as 127.0.0.1, 0.0.0.0 or [::1].",
    parse=parse_listen,
)
@options.text_option(
    "--allow-host allowed_hosts",
    "NAME",
    "With --listen: a name under which browsers reach the server; can be repeated.",
    multiple=True,
)
@options.text_option(
    "--peer peers",
    "URL",
    "With --listen: the server of another shard, which the page shows with ?peers=URL; can be repeated.",
    multiple=True,
)
@options.output_option(("table", "json"))
@options.quiet_option
@options.verbose_option
@click.pass_context
def poll(
    context: click.Context,
    /,
    is_checked: bool,
    is_new: bool,
    is_once: bool,
    is_watched: bool,
    interval: float | None,
    listen: tuple[str, int] | None,
    allowed_hosts: Sequence[str],
    peers: Sequence[str],
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
    if is_once and listen is not None:
        raise click.UsageError("--once and --listen exclude each other; pass one of them")
    if listen is None and (allowed_hosts or peers):
        raise click.UsageError("--allow-host and --peer need --listen HOST:PORT")
    if is_new:
        _write_fleet(parameters["file"])
        return
    fleet, file_interval = _read_fleet(quiet=quiet, **parameters)
    if is_checked:
        streams.write_stdout(f"{parameters['file']}: valid, {_targets(len(fleet.targets))}\n")
        return
    if is_once:
        from aioresolve.fleet.status import worst_first

        statuses = run_async(lambda _: _run_round(fleet, quiet=quiet))
        if output == "json":
            streams.write_stdout("".join(map(_json_line, statuses)))
        else:
            _write_table(worst_first(statuses), has_headers=has_headers)
            if statuses and not quiet:
                streams.write_stderr(f"{fleet_summary(len(fleet.targets), statuses)}\n")
        context.exit(round_exit_code(statuses))

    async def follow(exit_with: ExitWith) -> None:
        updates = fleet.watch if is_watched else fleet.poll
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(fleet)
            if listen is not None:
                served = fleet.serve(*listen, allowed_hosts=allowed_hosts, peers=peers)
                url = await stack.enter_async_context(served)
                if not quiet:
                    streams.write_stderr(f"serving {url}\n")
            statuses = updates(interval=interval or file_interval or INTERVAL)
            await stack.enter_async_context(aclosing(statuses))
            if output == "table" and streams.can_draw(sys.stdout):
                await _follow_on_screen(fleet, statuses)
                return
            with streams.stdout_writer(exit_with) as stdout:
                table = new_status_table(fleet.targets, has_headers=has_headers)
                async for status in statuses:
                    row = status_row(status, datetime.now(UTC))
                    await stdout.write(_json_line(status) if output == "json" else table.lines([row]))

    run_async(follow)


def _write_fleet(file: str) -> None:
    contexts = [name.replace("$", "$$") for name in find_contexts()]
    if not contexts:
        raise click.UsageError("the kubeconfig has no contexts; set $KUBECONFIG, or write the file by hand")
    content = {
        "defaults": {"kubernetes": {"namespace": "CONTEXT_NAMESPACE", "jobs": {"worker": "app=trainer"}}},
        "targets": {name: {"kubernetes": {"context": name}} for name in contexts},
    }
    text = f"# Correct the selector, and run: aioresolve poll {file} --check\n{formats.as_yaml(content)}"
    try:
        with open(file, "x") as opened:
            opened.write(text)
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from error
    streams.write_stderr(f"wrote {file} with {_targets(len(contexts))}; correct the selector in it\n")


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
        expected=config.expected,
        shard=shard,
    )
    if not (fleet.targets or quiet):
        streams.write_stderr(f"this shard is empty; the fleet has {_targets(len(config.targets))}\n")
    return fleet, config.interval


def _targets(number: int) -> str:
    return f"{number} target{'' if number == 1 else 's'}"


async def _run_round(fleet: Fleet, *, quiet: bool) -> list[TargetStatus]:
    from aioresolve.cli.live import show_counts

    with show_counts(len(fleet.targets), lambda: fleet.readings.values(), quiet=quiet):
        return list((await fleet.resolve()).values())


def _write_table(statuses: Sequence[TargetStatus], *, has_headers: bool) -> None:
    now = datetime.now(UTC)
    table = formats.Table(
        COLUMNS,
        [status_row(status, now) for status in statuses],
        [STYLES[status.health] for status in statuses],
        EXPENDABLE,
    )
    streams.write_stdout(table, has_headers=has_headers)


async def _follow_on_screen(fleet: Fleet, statuses: AsyncGenerator[TargetStatus, None]) -> None:
    from aioresolve.cli.live import draw_live

    def render(columns: int, lines: int) -> RenderableType:
        return render_fleet(fleet, columns, lines)

    with draw_live(sys.stdout, render, first=0.0, keep=True):
        async for _ in statuses:
            pass


def new_status_table(names: Iterable[str], *, has_headers: bool) -> formats.TextTable:
    """Return a table for `status_row`; `names` are those of all targets."""
    longest = max(map(formats.text_width, names), default=0)
    widths = (longest, len("Degraded 16/16"), len("worker:16,ps:2"), len("5m12s"))
    return formats.TextTable(COLUMNS, widths, has_headers=has_headers)


def status_row(status: TargetStatus, now: datetime) -> tuple[str, ...]:
    """Return the cells of a status in the columns `COLUMNS`."""
    age = status.age(now)
    wanted = status.wanted
    tasks = [
        f"{job}:{number}" + (f"/{wanted[job]}" if job in wanted else "")
        for job, number in status.tasks_by_job.items()
    ]
    return (
        status.name,
        status.summary,
        ",".join(tasks),
        "" if age is None else formats.format_span(age) if age >= 1 else "0s",
        status.reason,
    )


def _json_line(status: TargetStatus) -> str:
    return formats.as_json_line(status.as_dict(field_spelling))


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


def render_fleet(fleet: Fleet, columns: int, lines: int) -> RenderableType:
    """Return the latest status of each target, the worst first, for a terminal of that size.

    If there are more targets than lines, those that are ready, or have no response yet, become one line each.
    Sick targets that still do not fit are listed by their names.
    """
    from rich.console import Group

    from aioresolve.cli.live import single_line, table_lines
    from aioresolve.fleet.status import worst_first

    statuses = worst_first(fleet.readings[name] for name in fleet.targets if name in fleet.readings)
    waiting = [name for name in fleet.targets if name not in fleet.readings]
    ready = [status.name for status in statuses if status.health == "ready"]
    shown, folded = statuses, list[str]()
    available = max(lines - 3, 2)
    if len(statuses) + len(waiting) > available:
        shown = statuses[: len(statuses) - len(ready)]
        for what, names in (("ready", ready), ("without a response yet", waiting)):
            if names:
                folded.append(f"{len(names)} {what}: {', '.join(names)}")
        waiting = []
    names_of_others, shown = _split_to_fit(shown, columns, available - len(folded))
    now = datetime.now(UTC)
    rows = [status_row(status, now) for status in shown]
    rows += [(name, "", "", "", "no response yet") for name in waiting]
    table = formats.Table(COLUMNS, rows, [STYLES[status.health] for status in shown], EXPENDABLE)
    return Group(
        *table_lines(table, columns),
        *(single_line(line, "red") for line in names_of_others),
        *(single_line(line, "dim") for line in folded),
        single_line(""),
        single_line(fleet_summary(len(fleet.targets), statuses), "dim"),
    )


def _split_to_fit(
    statuses: list[TargetStatus], columns: int, lines: int
) -> tuple[list[str], list[TargetStatus]]:
    """Return lines with the names of the statuses that have no row, and the statuses that have one."""
    import textwrap

    number, listed = min(len(statuses), lines), list[str]()
    while number < len(statuses):
        names = [formats.printable(status.name) for status in statuses[number:]]
        listed = textwrap.wrap(f"and {len(names)} more: {', '.join(names)}", columns)
        if number + len(listed) <= lines:
            break
        if not number:  # not even their names fit
            return [*listed[: lines - 1], f"... and more: {len(statuses)} targets are not ready"], []
        number -= 1
    return listed, statuses[:number]
