"""`aioresolve wait`: a cluster, once it is complete."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aioresolve.cli.detection import detect_resolver
from aioresolve.cli.options import (
    CommandGroup,
    combine_options,
    coordinator_port_option,
    duration_option,
    interval_option,
    max_requests_option,
    output_option,
    parse_job_size,
    parse_size,
    parse_with,
    pod_options,
    quiet_option,
    task_options,
    timeout_option,
    tpu_options,
    verbose_option,
)
from aioresolve.cli.output.formats import OUTPUTS, format_cluster, has_identities, one_line
from aioresolve.cli.output.worker_tables import FoundTPUs, format_workers
from aioresolve.cli.requests import (
    HereRequest,
    PodRequest,
    TPURequest,
    find_task_name,
    new_pod_resolver,
    new_tpu_resolver,
    validate_output,
    validate_pod_request,
)
from aioresolve.cli.terminal import streams
from aioresolve.errors import IncompleteClusterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aioresolve.cli.application import ExitRequest
    from aioresolve.cli.output.formats import TaskName
    from aioresolve.cli.requests import ClusterRequest
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.wait import Shortfall, WaitCondition
    from aioresolve.spec import ClusterState

SLICES_TIMEOUT = 1.0
"""Seconds that the request for slices has at least, if the TPUs are ready only just before the deadline."""

POD_INTERVAL = 30.0
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

condition_options = combine_options(
    click.option(
        "--count",
        metavar="N[:MAX]",
        callback=parse_with(parse_size),
        help="Wait for exactly this many tasks, in all jobs together; 4:8 permits 4 to 8, and 4: 4 or more.",
    ),
    click.option(
        "--jobs",
        metavar="JOB=N[:MAX]",
        callback=parse_with(parse_job_size),
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
    duration_option(
        "--stable-for", "Require that the cluster is complete for this long, with the same tasks."
    ),
)

deadline_option = timeout_option("10m")


@click.group(cls=CommandGroup, no_args_is_help=False, short_help="A cluster, once it is complete.")
def wait() -> None:
    """Wait until a cluster is complete, and print it."""


@wait.command(
    "kubernetes",
    short_help="The pods of label selectors.",
    epilog=f"""\
\b
Examples:
  # sixteen workers, all of them ready
  aioresolve wait kubernetes -l app=trainer --count 16

\b
  # workers and parameter servers that accept connections, for TensorFlow
  aioresolve wait kubernetes -l worker=app=trainer -l ps=app=ps --jobs worker=16 --jobs ps=2 \\
    --reachable tcp --timeout 5m -o tf-config

{EPILOG}""",
)
@pod_options
@condition_options
@output_option(OUTPUTS)
@task_options
@deadline_option
@max_requests_option
@quiet_option
@verbose_option
def wait_kubernetes(**parameters: Any) -> None:
    """Wait for the pods of label selectors, and print them as the tasks of a cluster.

    The tasks are the pods that are running, ready and not being deleted. The API server reports each change
    at once.
    """
    options = ConditionOptions.pop_from(parameters)
    request = PodRequest(**parameters)
    validate_pod_request(request)
    validate_jobs(options, request)
    condition = options.condition()
    from aioresolve.cli.application import run_async

    state, task = run_async(partial(_wait, request, condition, new_pod_resolver(request), POD_INTERVAL))
    content = format_cluster(request.output, state.spec, state, task, request.program_options(request.output))
    streams.write_stdout(content, has_headers=request.has_headers)


@wait.command(
    "tpu",
    short_help="The workers of Cloud TPUs.",
    epilog=f"""\
\b
Example:
  # a TPU that was just created, until each worker reports its devices
  aioresolve wait tpu my-tpu --reachable probe --timeout 30m

{EPILOG}""",
)
@tpu_options
@condition_options
@output_option(OUTPUTS)
@coordinator_port_option
@task_options
@interval_option("5s")
@deadline_option
@quiet_option
@verbose_option
def wait_tpu(interval: float, **parameters: Any) -> None:
    """Wait for the workers of Cloud TPUs, and print them as the tasks of a cluster.

    For NAME see `aioresolve tpu --help`. The tasks are the workers of the TPUs that are ready.
    """
    options = ConditionOptions.pop_from(parameters)
    request = TPURequest(**parameters)
    validate_output(request)
    validate_jobs(options, request)
    condition = options.condition()
    if options.reachable == "probe":
        streams.silence_grpc()
    from aioresolve.cli.application import run_async

    found, task = run_async(partial(_wait_for_tpus, request, condition, interval))
    content = format_workers(request.output, found, task, request.program_options(request.output))
    streams.write_stdout(content, has_headers=request.has_headers)


@wait.command(
    "here",
    short_help="The cluster that this process is part of.",
    epilog=f"""\
\b
Example:
  # in a pod of an Indexed Job: until all of its pods accept connections
  aioresolve wait here --reachable tcp --timeout 5m

{EPILOG}""",
)
@condition_options
@output_option(OUTPUTS)
@coordinator_port_option
@task_options
@interval_option("5s", "a source that")
@deadline_option
@quiet_option
@verbose_option
def wait_here(interval: float, **parameters: Any) -> None:
    """Wait for the cluster that this process is part of, and print it.

    `aioresolve here` prints which cluster that is, and why.
    """
    options = ConditionOptions.pop_from(parameters)
    request = HereRequest(**parameters)
    validate_output(request)
    condition = options.condition()
    if options.reachable == "probe":
        streams.silence_grpc()
    request, resolver = detect_resolver(request)
    from aioresolve.cli.application import run_async

    state, task = run_async(partial(_wait, request, condition, resolver, interval))
    content = format_cluster(request.output, state.spec, state, task, request.program_options(request.output))
    streams.write_stdout(content, has_headers=request.has_headers)


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

    def condition(self, *, needs_all: bool = False) -> WaitCondition:
        """Return the condition that they describe; raises a UsageError if they contradict each other."""
        if self.count is not None and self.jobs:
            raise click.UsageError("--count and --jobs exclude each other; pass one of them")
        if len(dict(self.jobs)) < len(self.jobs):
            raise click.UsageError("--jobs names a job twice; pass one number for each job")
        from aioresolve.resolver.wait import validate_condition

        jobs = dict(self.jobs) or None
        return validate_condition(
            self.count,
            jobs,
            not self.allow_unready,
            self.reachable,
            self.stable_for or 0.0,
            needs_all=needs_all,
        )


def validate_jobs(options: ConditionOptions, request: ClusterRequest) -> None:
    """Raise a UsageError for a `--jobs` that names a job which is not requested."""
    for job, _ in options.jobs:
        if isinstance(request, TPURequest) and job != request.job_name:
            raise click.UsageError(f"--jobs {job}: the job of the workers is {request.job_name!r}")
        if isinstance(request, PodRequest) and job not in request.jobs:
            raise click.UsageError(f"--jobs {job}: no -l selects this job; add -l {job}=SELECTOR")


async def _wait(
    request: ClusterRequest,
    condition: WaitCondition,
    resolver: ClusterResolver,
    interval: float,
    exit_request: ExitRequest,
) -> tuple[ClusterState, TaskName | None]:
    async with resolver:
        state = await wait_for_cluster(resolver, request, condition, exit_request, interval)
        return state, await find_task_name(resolver, request, state)


async def _wait_for_tpus(
    request: TPURequest, condition: WaitCondition, interval: float, exit_request: ExitRequest
) -> tuple[FoundTPUs, TaskName | None]:
    from .tpu import found_tpus

    resolver = new_tpu_resolver(request)
    ends = time.monotonic() + request.timeout
    async with resolver:
        state = await wait_for_cluster(resolver, request, condition, exit_request, interval)
        found = FoundTPUs((), state)
        if has_identities(request.output) or request.output == "megascale":
            # The state has no slices, so request them once more.
            slices = await resolver.slices(timeout=max(ends - time.monotonic(), SLICES_TIMEOUT))
            found = found_tpus(slices, resolver.get_job_name())
        return found, await find_task_name(resolver, request, found.state)


async def wait_for_cluster(
    resolver: ClusterResolver,
    request: ClusterRequest,
    condition: WaitCondition,
    exit_request: ExitRequest,
    interval: float = 30.0,
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
    async with _show_shortfall(request, ends, exit_request) as on_shortfall:
        try:
            return await wait_until_complete(
                resolver._observations_for(condition, interval),
                condition,
                timeout=max(ends - time.monotonic(), 0.0),
                source=request.scope,
                on_shortfall=on_shortfall,
            )
        except IncompleteClusterError as error:
            # The deadline of the whole command, not only of the time after the resolver was opened.
            error.timeout = request.timeout
            raise


@asynccontextmanager
async def _show_shortfall(
    request: ClusterRequest, ends: float, exit_request: ExitRequest
) -> AsyncIterator[Callable[[Shortfall], None]]:
    """Yield a function that shows what the cluster lacks on stderr, until the block ends.

    On a terminal this is drawn in place, and removed at the end. Otherwise, and if `-v` writes log lines, it
    is a line for each change.
    """
    from aioresolve.cli.terminal.progress import SHOW_AFTER, call_periodically

    if request.quiet:
        yield lambda _: None
        return
    if not streams.can_draw(sys.stderr):
        lines = _ShortfallLines()
        with call_periodically(lines.write_if_new, first=SHOW_AFTER, period=LINE_PERIOD):
            yield lines.update
        return
    from aioresolve.cli.terminal.background_writer import background_writer
    from aioresolve.cli.terminal.views import WaitView, live_view

    view = WaitView(request.scope, request.timeout, ends)
    with background_writer(sys.stderr, exit_request.exit) as stderr:
        async with live_view(stderr, view, show_after=SHOW_AFTER, keep=False) as screen:

            def update(lacking: Shortfall) -> None:
                view.lacking = lacking
                screen.invalidate()

            yield update


class _ShortfallLines:
    """Status lines; intermediate changes between two calls of `write_if_new` are skipped."""

    def __init__(self) -> None:
        self._line = ""
        self._written = ""

    def update(self, lacking: Shortfall) -> None:
        self._line = f"waiting: {lacking}"

    def write_if_new(self) -> None:
        if self._line != self._written and streams.write_stderr(f"{one_line(self._line)}\n"):
            self._written = self._line
