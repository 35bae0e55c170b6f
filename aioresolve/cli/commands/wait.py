"""Waiting for a cluster: what `aioresolve wait` does, and says on stderr, until it is complete.

`aioresolve wait`: a cluster, once it is complete.
"""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aioresolve._core.validation import seconds
from aioresolve.cli.options import (
    PodRequest,
    TPURequest,
    check_pods,
    check_tpus,
    interval_option,
    job_and_count,
    output_option,
    pod_options,
    quiet_option,
    read_by,
    requests_at_once_option,
    stacked,
    task_option,
    timeout_option,
    tpu_options,
    verbose_option,
)
from aioresolve.cli.output.cluster_text import OUTPUTS, cluster_text, workers_text
from aioresolve.cli.output.formats import one_line
from aioresolve.cli.terminal import streams
from aioresolve.errors import IncompleteClusterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aioresolve.cli.running import Ending
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.wait import Shortfall, WaitCondition
    from aioresolve.spec import ClusterState

    from .tpu import FoundTPUs

__all__ = ["complete_pods", "complete_tpus", "wait"]

WITH_SLICES = frozenset({"wide", "json", "yaml"})
"""The outputs that tell of a TPU what its workers do not."""

LEAST = 1.0
"""Seconds that the API has for a last question, were the TPUs ready at the last moment."""

LINE_PERIOD = 1.0
"""Seconds between two lines about who is missing, at least."""


def complete_pods(request: PodRequest, wanted: WaitCondition) -> ClusterState:
    """Return the pods' cluster once it is what is wanted.

    Raises:
        IncompleteClusterError: the deadline passed.
        ResolveError: it can become complete no more, or an error that does not pass.
    """
    # Imported here, so that `--help` and completion load click only.
    from aioresolve.cli.running import run

    return run(partial(_pods, request, wanted))


def complete_tpus(request: TPURequest, wanted: WaitCondition, interval: float) -> FoundTPUs:
    """Return the TPUs, asked about every `interval` seconds, as `complete_pods` does."""
    from aioresolve.cli.running import run

    return run(partial(_tpus, request, wanted, interval))


async def _pods(request: PodRequest, wanted: WaitCondition, ending: Ending) -> ClusterState:
    # Loaded before the deadline starts.
    import aioresolve.kubernetes.auth  # noqa: F401
    from aioresolve._core.retry import Progress, within_deadline
    from aioresolve.cli.terminal.progress import shown

    from .kubernetes import kubernetes_resolver

    ends = time.monotonic() + request.timeout
    with shown(progress := Progress(), quiet=request.quiet):
        resolver = await within_deadline(
            request.timeout, request.asked, lambda _: kubernetes_resolver(request, progress)
        )
    async with resolver:
        return await _complete(resolver, request, wanted, ends, ending)


async def _tpus(request: TPURequest, wanted: WaitCondition, interval: float, ending: Ending) -> FoundTPUs:
    from aioresolve.tpu.slices import cluster_of

    from .tpu import FoundTPUs, tpu_resolver

    ends = time.monotonic() + request.timeout
    async with tpu_resolver(request) as resolver:
        state = await _complete(resolver, request, wanted, ends, ending, interval)
        if request.output not in WITH_SLICES:
            return FoundTPUs((), state)
        slices = await resolver.slices(timeout=max(ends - time.monotonic(), LEAST))
    return FoundTPUs(slices, cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC)))


async def _complete(
    resolver: ClusterResolver,
    request: PodRequest | TPURequest,
    wanted: WaitCondition,
    ends: float,
    ending: Ending,
    interval: float = 30.0,
) -> ClusterState:
    from aioresolve.resolver.wait import wait_until_complete

    async with _told(request, ends, ending) as tell:
        try:
            return await wait_until_complete(
                resolver.observations(interval=interval),
                wanted,
                timeout=max(ends - time.monotonic(), 0.0),
                source=request.asked,
                on_shortfall=tell,
            )
        except IncompleteClusterError as error:
            error.timeout = request.timeout  # of the whole, with what came before the wait
            raise


@asynccontextmanager
async def _told(
    request: PodRequest | TPURequest, ends: float, ending: Ending
) -> AsyncIterator[Callable[[Shortfall], None]]:
    """Yield what is to be told of each shortfall, which is shown on stderr until the block ends.

    On a terminal that is drawn in place, and leaves nothing behind. Elsewhere, and among the log lines of
    `-v`, it is a line whenever it has changed.
    """
    from aioresolve.cli.terminal.background_writer import pen
    from aioresolve.cli.terminal.progress import PATIENCE, ticking

    if request.quiet:
        yield lambda _: None
        return
    if not streams.can_draw(sys.stderr):
        lines = _Lines()
        with ticking(lines.look, period=LINE_PERIOD):
            yield lines.tell
        return
    # Here and not above: it loads rich.
    from aioresolve.cli.terminal.screen import screen
    from aioresolve.cli.terminal.views import WaitPicture

    picture = WaitPicture(request.asked, request.timeout, ends)
    with pen(sys.stderr, ending) as stderr:
        async with screen(stderr, picture.drawn, patience=PATIENCE, is_left_behind=False) as live:

            def tell(lacking: Shortfall) -> None:
                picture.lacking = lacking
                live.stir()

            yield tell


class _Lines:
    """A line on stderr for each shortfall that is there when it is looked at."""

    def __init__(self) -> None:
        self._line = ""
        self._said = ""

    def tell(self, lacking: Shortfall) -> None:
        self._line = f"waiting: {lacking}"

    def look(self) -> None:
        if self._line != self._said:
            self._said = self._line
            streams.complain(f"{one_line(self._line)}\n")


EPILOG = """\
\b
Without --count and --jobs, each job has to have a task and nobody who was found may be
missing; with them there have to be so many tasks, whoever else is missing.

\b
The cluster is printed as `aioresolve kubernetes` and `aioresolve tpu` print it. Who is missing
is told on stderr meanwhile, and once more, each with the reason, when the deadline passes.

\b
Exit codes: 0 complete; 1 it can become complete no more, or an error that does not pass;
2 wrong usage or configuration; 3 the deadline passed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What makes a cluster complete, as it was typed."""

    count: int | None
    jobs: tuple[tuple[str, int], ...]
    allow_unready: bool
    reachable: str | None
    stable_for: float | None

    @classmethod
    def taken(cls, parameters: dict[str, Any]) -> _Wish:
        """Return the wish among a command's parameters, which are left without it."""
        return cls(**{field.name: parameters.pop(field.name) for field in fields(cls)})

    def wanted(self) -> WaitCondition:
        """Return what is to be waited for; raises where that makes no sense."""
        if self.count is not None and self.jobs:
            raise click.UsageError("--count is for all jobs and --jobs for each of them; give one of the two")
        if len(dict(self.jobs)) < len(self.jobs):
            raise click.UsageError("--jobs names a job twice; give one number for each")
        # Here and not above: `--help` and completion are not to pay for it.
        from aioresolve.resolver.wait import validate_condition

        jobs = dict(self.jobs) or None
        ready = not self.allow_unready
        return validate_condition(self.count, jobs, ready, self.reachable, self.stable_for or 0.0)


wanted_options = stacked(
    click.option(
        "--count",
        metavar="N",
        type=click.IntRange(min=1),
        help="Wait for this many tasks, in all jobs together.",
    ),
    click.option(
        "--jobs",
        metavar="JOB=N",
        callback=read_by(job_and_count),
        multiple=True,
        help="Wait for this many tasks of a job; repeat it for several. No other job is looked at.",
    ),
    click.option(
        "--allow-unready",
        is_flag=True,
        help="Take tasks that are not ready as well.  [default: all have to be ready]",
    ),
    click.option(
        "--reachable",
        type=click.Choice(["tcp", "probe"]),
        help="Each task has to accept a TCP connection, or to tell its devices over gRPC.",
    ),
    click.option(
        "--stable-for",
        metavar="DURATION",
        callback=read_by(seconds),
        help="All that has to have been so for this long, with the same tasks.",
    ),
)

deadline_option = timeout_option("10m")


@click.group(no_args_is_help=False, short_help="A cluster, once it is complete.")
def wait() -> None:
    """Wait until a cluster is complete, and print it."""


@wait.command(
    "kubernetes",
    short_help="The pods of label selectors.",
    epilog=f"""\
\b
Examples:
  # sixteen workers, all of them ready
  aioresolve wait kubernetes -l worker=app=trainer --count 16

\b
  # workers and parameter servers that can be talked to, as TensorFlow reads them
  aioresolve wait kubernetes -l worker=app=trainer -l ps=app=ps --jobs worker=16 --jobs ps=2 \\
    --reachable tcp --timeout 5m -o tf-config

{EPILOG}""",
)
@pod_options
@wanted_options
@output_option(OUTPUTS)
@task_option
@deadline_option
@requests_at_once_option
@quiet_option
@verbose_option
def wait_kubernetes(**parameters: Any) -> None:
    """Wait for the pods of label selectors, and print them as the tasks of a cluster.

    The API server tells each change as it happens. Pods that run, are ready and are not being deleted are
    tasks.
    """
    wish = _Wish.taken(parameters)
    request = PodRequest(**parameters)
    check_pods(request)
    for job, _ in wish.jobs:
        if job not in request.jobs:
            raise click.UsageError(f"--jobs {job} is of a job that no -l names; add -l {job}=SELECTOR")
    wanted = wish.wanted()
    state = complete_pods(request, wanted)
    streams.write(cluster_text(request.output, state.spec, state, request.task))


@wait.command(
    "tpu",
    short_help="The workers of Cloud TPUs.",
    epilog=f"""\
\b
Example:
  # a TPU that was just asked for, up to the moment when each worker tells its devices
  aioresolve wait tpu my-tpu --reachable probe --timeout 30m

{EPILOG}""",
)
@tpu_options
@wanted_options
@output_option(OUTPUTS)
@task_option
@interval_option("5s", "the API, which has to be asked for changes")
@deadline_option
@quiet_option
@verbose_option
def wait_tpu(interval: float, **parameters: Any) -> None:
    """Wait for the workers of Cloud TPUs, and print them as the tasks of a cluster.

    NAME is as of `aioresolve tpu`. The workers of TPUs that are ready are tasks.
    """
    wish = _Wish.taken(parameters)
    request = TPURequest(**parameters)
    check_tpus(request)
    for job, _ in wish.jobs:
        if job != request.job_name:
            raise click.UsageError(f"--jobs {job}: the workers are the job {request.job_name!r}")
    wanted = wish.wanted()
    if wish.reachable == "probe":
        streams.hush_grpc()
    streams.write(workers_text(request, complete_tpus(request, wanted, interval)))
