"""`aioresolve wait`: a cluster, once it is complete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import formats, options, sources, streams
from aioresolve.cli.application import run_async

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.completeness import Completeness, WaitCondition
    from aioresolve.spec import ClusterState

LAST_TIMEOUT = 1.0
"""Seconds that each step after the wait has at least, if the cluster is complete just before the deadline."""

LINE_PERIOD = 1.0
"""Minimum seconds between two status lines."""

EPILOG = """\
\b
Without --count and --jobs, each job must have all of its tasks: as many as its controller (Job,
StatefulSet, JobSet, LeaderWorkerSet, ...) states. Where that is not known, each job must have a
task, and no task that was found may be missing. With them, exactly these numbers are required,
or as many as a range permits. Tasks that have ended with success count while others still run.

\b
The cluster is printed as by `aioresolve kubernetes`. Missing tasks are reported on stderr while
waiting and, each with its reason, when the deadline passes (exit code 3).
"""

condition_options = options.combine_options(
    options.text_option(
        "--count",
        "N[:MAX]",
        "Wait for exactly this many tasks, in all jobs together; 4:8 permits 4 to 8, and 4: 4 or more.",
        parse=options.parse_size,
    ),
    options.text_option(
        "--jobs",
        "JOB=N[:MAX]",
        "Wait for exactly this many tasks of a job; repeat it for several. Other jobs are ignored.",
        parse=options.parse_job_size,
        multiple=True,
    ),
    options.flag_option("--allow-unready", "Count tasks that are not ready.  [default: all must be ready]"),
    options.text_option(
        "--reachable",
        None,
        "Require that each task accepts a TCP connection, or reports its devices over gRPC.",
        type=click.Choice(["tcp", "probe"]),
    ),
    options.duration_option(
        "--stable-for", "Require that the cluster is complete for this long, with the same tasks."
    ),
    options.interval_option("5s"),
)


@click.group(cls=options.CommandGroup, no_args_is_help=False, short_help="A cluster, once it is complete.")
def wait() -> None:
    """Wait until a cluster is complete, and print it."""


def _wait_for_source(source: str, /, interval: float, **parameters: Any) -> None:
    given = pop_condition(parameters)
    request = sources.new_request(source, parameters)
    condition = new_condition(request, **given)
    request, resolver = sources.open_source(request)

    async def complete_cluster() -> str | formats.Table:
        ends = time.monotonic() + request.timeout
        async with resolver:
            state = await wait_for_cluster(resolver, request, condition, interval)
            left = sources.with_time_left(request, ends, least=LAST_TIMEOUT)
            return await sources.format_for_task(left, resolver, state)

    content = run_async(lambda _: complete_cluster())
    streams.write_stdout(content, has_headers=request.has_headers)


sources.add_sources(
    wait,
    _wait_for_source,
    "Wait for {what}, and print the cluster.\n\nThe tasks are the pods that are running, ready and not being"
    " deleted, or the workers of TPUs that are ready.",
    {
        "kubernetes": """\
  # workers and parameter servers that accept connections, for TensorFlow
  aioresolve wait kubernetes -l worker=app=trainer -l ps=app=ps --jobs worker=16 --jobs ps=2 \\
    --reachable tcp --timeout 5m -o tf-config
""",
        "tpu": """\
  # a TPU that was just created, until each worker reports its devices
  aioresolve wait tpu my-tpu --reachable probe --timeout 30m
""",
        "here": """\
  # in a pod of an Indexed Job: until all of its pods accept connections
  aioresolve wait here --reachable tcp --timeout 5m
""",
    },
    options.output_option(),
    options.task_options,
    options.timeout_option("10m"),
    conditions=condition_options,
    epilog=EPILOG,
    has_port=True,
)


def pop_condition(parameters: dict[str, Any]) -> dict[str, Any]:
    """Remove the values that describe a condition from the parameters of a command, and return them."""
    names = ("count", "jobs", "allow_unready", "reachable", "stable_for")
    return {name: parameters.pop(name) for name in names}


def new_condition(
    request: sources.ClusterRequest,
    *,
    count: tuple[int, int | None] | None,
    jobs: tuple[tuple[str, tuple[int, int | None]], ...],
    allow_unready: bool,
    reachable: str | None,
    stable_for: float | None,
    needs_all: bool = False,
) -> WaitCondition:
    """Return the condition for a cluster that `condition_options` describe.

    Raises:
        UsageError: they contradict each other, or name a job that is not requested.
    """
    if count is not None and jobs:
        raise click.UsageError("--count and --jobs exclude each other; pass one of them")
    number_by_job = sources.one_number_per_job(jobs)
    for job in number_by_job:
        sources.validate_job(request, job, "--jobs")
    from aioresolve.resolver.completeness import validate_condition

    return validate_condition(
        count, number_by_job or None, not allow_unready, reachable, stable_for or 0.0, needs_all=needs_all
    )


async def wait_for_cluster(
    resolver: ClusterResolver, request: sources.ClusterRequest, condition: WaitCondition, interval: float
) -> ClusterState:
    """Return the cluster once it is complete, and show on stderr what it lacks until then.

    On a terminal this is removed at the end, but not by Ctrl-C. Otherwise it is a line for each change that
    lasts at least `LINE_PERIOD`.

    Raises:
        IncompleteClusterError: `request.timeout` passed.
        FailedClusterError: the cluster cannot become complete.
        ResolveError: another error that is not retryable.
    """
    from aioresolve.cli.live import show_status

    started_at = time.monotonic()
    lacking: Completeness | None = None

    def update(found: Completeness) -> None:
        nonlocal lacking
        lacking = found

    def render(columns: int, lines: int) -> RenderableType:
        from rich.console import Group

        from aioresolve.cli.live import single_line

        waited = formats.format_span(time.monotonic() - started_at)
        of = formats.format_span(request.timeout)
        head = single_line(f"waiting for {request.scope}: {waited} of {of}", "cyan")
        if lacking is None:
            return Group(head, single_line("no response yet"))
        # Other lines: the first one, headers, an empty one, the number of further reasons, jobs and their
        # total.
        fitting = max(lines - 6 - len(lacking.found), 1)
        given = (lacking.found, lacking.least, lacking.reasons, lacking.sources)
        report = formats.wait_report(*given, width=columns, max_reasons=fitting).splitlines()
        if len(report) >= lines:
            report = formats.wait_report(*given, max_reasons=fitting).splitlines()
        return Group(head, *map(single_line, report))

    def line() -> str:
        return "" if lacking is None else f"waiting: {lacking}"

    with show_status(render, line, quiet=request.quiet, keep=True, period=LINE_PERIOD):
        return await resolver._wait(
            condition, timeout=request.timeout, interval=interval, source=request.scope, on_shortfall=update
        )
