"""`aioresolve wait`: a cluster, once it is complete."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aioresolve.cli import formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.worker_tables import format_workers
from aioresolve.errors import IncompleteClusterError

from .tpu import find_tpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.wait import Shortfall, WaitCondition
    from aioresolve.spec import ClusterState

SLICES_TIMEOUT = 1.0
"""Seconds that the request for slices has at least, if the TPUs are ready only just before the deadline."""

INTERVAL = 30.0
"""Seconds between two requests for pods while they cannot be watched."""

LINE_PERIOD = 1.0
"""Minimum seconds between two status lines."""

EPILOG = """\
\b
Without --count and --jobs, each job must have all of its tasks: as many as its controller (Job,
StatefulSet, JobSet, LeaderWorkerSet, ...) states. Where that is not known, each job must have a
task, and no task that was found may be missing. With them, exactly these numbers are required,
or as many as a range permits. Tasks that have ended with success count while others still run.

\b
The cluster is printed as by `aioresolve kubernetes` and `aioresolve tpu`. Missing tasks are
reported on stderr while waiting and, each with its reason, when the deadline passes.

\b
Exit codes: 0 complete; 1 cannot become complete, or an error that is not retryable;
2 invalid usage or configuration; 3 deadline passed.
"""

condition_options = options.combine_options(
    click.option(
        "--count",
        metavar="N[:MAX]",
        callback=options.parse_with(options.parse_size),
        help="Wait for exactly this many tasks, in all jobs together; 4:8 permits 4 to 8, and 4: 4 or more.",
    ),
    click.option(
        "--jobs",
        metavar="JOB=N[:MAX]",
        callback=options.parse_with(options.parse_job_size),
        multiple=True,
        help="Wait for exactly this many tasks of a job; repeat it for several. Other jobs are ignored.",
    ),
    click.option(
        "--allow-unready", is_flag=True, help="Count tasks that are not ready.  [default: all must be ready]"
    ),
    click.option(
        "--reachable",
        type=click.Choice(["tcp", "probe"]),
        help="Require that each task accepts a TCP connection, or reports its devices over gRPC.",
    ),
    options.duration_option(
        "--stable-for", "Require that the cluster is complete for this long, with the same tasks."
    ),
)

deadline_option = options.timeout_option("10m")


@click.group(cls=options.CommandGroup, no_args_is_help=False, short_help="A cluster, once it is complete.")
def wait() -> None:
    """Wait until a cluster is complete, and print it."""


def _wait_for_source(source: str, /, interval: float = INTERVAL, **parameters: Any) -> None:
    given = ConditionOptions.pop_from(parameters)
    request = sources.new_request(source, parameters)
    sources.validate_output(request)
    condition = given.condition(request)
    request, resolver = sources.open_source(request)
    content = run_async(lambda _: _wait(request, condition, resolver, interval))
    streams.write_stdout(content, has_headers=request.has_headers)


wait_options = (condition_options, options.output_option(), options.task_options, deadline_option)

options.add_sources(
    wait,
    _wait_for_source,
    *wait_options,
    texts={
        "kubernetes": (
            """Wait for the pods of label selectors, and print them as the tasks of a cluster.

    The tasks are the pods that are running, ready and not being deleted. The API server reports each change
    at once.
            """,
            """\
  # sixteen workers, all of them ready
  aioresolve wait kubernetes -l app=trainer --count 16

\b
  # workers and parameter servers that accept connections, for TensorFlow
  aioresolve wait kubernetes -l worker=app=trainer -l ps=app=ps --jobs worker=16 --jobs ps=2 \\
    --reachable tcp --timeout 5m -o tf-config
""",
        ),
        "tpu": (
            """Wait for the workers of Cloud TPUs, and print them as the tasks of a cluster.

    For NAME see `aioresolve tpu --help`. The tasks are the workers of the TPUs that are ready.
            """,
            """\
  # a TPU that was just created, until each worker reports its devices
  aioresolve wait tpu my-tpu --reachable probe --timeout 30m
""",
        ),
        "here": (
            """Wait for the cluster that this process is part of, and print it.

    `aioresolve here` prints which cluster that is, and why.
            """,
            """\
  # in a pod of an Indexed Job: until all of its pods accept connections
  aioresolve wait here --reachable tcp --timeout 5m
""",
        ),
    },
    epilog=EPILOG,
    interval="5s",
    has_port=True,
)


class ConditionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The values of `condition_options`."""

    count: tuple[int, int | None] | None
    jobs: tuple[tuple[str, tuple[int, int | None]], ...]
    allow_unready: bool
    reachable: str | None
    stable_for: float | None

    @classmethod
    def pop_from(cls, parameters: dict[str, Any]) -> ConditionOptions:
        """Remove these options from the parameters of a command, and return them."""
        return cls(**{name: parameters.pop(name) for name in cls.__struct_fields__})

    def condition(self, request: sources.ClusterRequest, *, needs_all: bool = False) -> WaitCondition:
        """Return the condition that they describe for a cluster.

        Raises:
            UsageError: they contradict each other, or name a job that is not requested.
        """
        if self.count is not None and self.jobs:
            raise click.UsageError("--count and --jobs exclude each other; pass one of them")
        jobs = sources.one_number_per_job(self.jobs)
        for job in jobs.keys() - request.jobs if request.jobs else ():
            if request.source == "tpu":
                raise click.UsageError(f"--jobs {job}: the job of the workers is {request.jobs[0]!r}")
            raise click.UsageError(f"--jobs {job}: no -l selects this job; add -l {job}=SELECTOR")
        if self.reachable == "probe":
            streams.silence_grpc()
        from aioresolve.resolver.wait import validate_condition

        return validate_condition(
            self.count,
            jobs or None,
            not self.allow_unready,
            self.reachable,
            self.stable_for or 0.0,
            needs_all=needs_all,
        )


async def _wait(
    request: sources.ClusterRequest, condition: WaitCondition, resolver: ClusterResolver, interval: float
) -> str | formats.Table:
    """Return the complete cluster in the format of the output."""
    output, given = request.output, request.program_options(request.output)
    ends = time.monotonic() + request.timeout
    async with resolver:
        state = await wait_for_cluster(resolver, request, condition, interval)
        if request.source == "tpu" and (formats.has_identities(output) or output == "megascale"):
            # The state has no slices, so request them once more.
            found = await find_tpus(resolver, max(ends - time.monotonic(), SLICES_TIMEOUT))
            task = await sources.find_task_name(resolver, request, found.state)
            return format_workers(output, found, task, given)
        task = await sources.find_task_name(resolver, request, state)
    return formats.format_cluster(output, state.spec, state, task, given)


async def wait_for_cluster(
    resolver: ClusterResolver, request: sources.ClusterRequest, condition: WaitCondition, interval: float
) -> ClusterState:
    """Return the cluster once it is complete, and report on stderr what it lacks until then.

    Raises:
        IncompleteClusterError: `request.timeout` passed.
        FailedClusterError: the cluster cannot become complete.
        ResolveError: another error that is not retryable.
    """
    from aioresolve.resolver.wait import reject_impossible, wait_until_complete

    ends = time.monotonic() + request.timeout
    reject_impossible(condition, timeout=request.timeout, known_jobs=resolver.known_jobs)
    with _show_shortfall(request, ends) as on_shortfall:
        try:
            return await wait_until_complete(
                resolver.changes(condition.want, interval),
                condition,
                timeout=max(ends - time.monotonic(), 0.0),
                source=request.scope,
                on_shortfall=on_shortfall,
            )
        except IncompleteClusterError as error:
            # The deadline of the whole command, not only of the time after the resolver was opened.
            error.timeout = request.timeout
            raise


@contextmanager
def _show_shortfall(request: sources.ClusterRequest, ends: float) -> Iterator[Callable[[Shortfall], None]]:
    """Yield a function that shows what the cluster lacks on stderr, until the block ends.

    On a terminal this is drawn in place, and removed at the end. Otherwise, and if `-v` writes log lines, it
    is a line for each change, without those that last less than `LINE_PERIOD`.
    """
    from aioresolve.cli.live import call_periodically, draw_live

    if request.quiet:
        yield lambda _: None
        return
    lacking: Shortfall | None = None
    written = ""

    def update(shortfall: Shortfall) -> None:
        nonlocal lacking
        lacking = shortfall

    def render(columns: int, lines: int) -> RenderableType:
        return render_shortfall(lacking, request.scope, request.timeout, ends, lines)

    def write_if_new() -> None:
        nonlocal written
        line = "" if lacking is None else formats.one_line(f"waiting: {lacking}")
        if line != written:
            streams.write_stderr(f"{line}\n")
            written = line

    if streams.can_draw(sys.stderr):
        with draw_live(sys.stderr, render):
            yield update
    else:
        with call_periodically(write_if_new, period=LINE_PERIOD):
            yield update


def render_shortfall(
    lacking: Shortfall | None, scope: str, timeout: float, ends: float, lines: int
) -> RenderableType:
    """Return what a cluster lacks, and how much of the deadline is used, for so many lines of a terminal.

    The deadline is `ends` by `time.monotonic`, `timeout` seconds after the start. `lacking` is None before
    the first response.
    """
    from rich.console import Group

    from aioresolve.cli.drawing import single_line

    waited = formats.format_span(timeout - (ends - time.monotonic()))
    head = single_line(f"waiting for {scope}: {waited} of {formats.format_span(timeout)}", "cyan")
    if lacking is None:
        return Group(head, single_line("no response yet"))
    # Other lines: the first one, headers, an empty one, the number of further reasons, jobs and their total.
    fitting = max(lines - 6 - len(lacking.found), 1)
    report = formats.wait_report(lacking.found, lacking.least, lacking.reasons, lacking.sources, fitting)
    return Group(head, *map(single_line, report.splitlines()))
