"""`aioresolve wait`: a cluster, once it is complete."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from aioresolve.durations import seconds

from . import streams
from .answers import OUTPUTS, cluster_text, workers_text
from .arguments import job_and_count
from .options import (
    interval_option,
    output_option,
    quiet_option,
    read_by,
    stacked,
    task_option,
    timeout_option,
    verbose_option,
)
from .pod_options import check_pods, pod_options, requests_at_once_option
from .request import PodRequest, TPURequest
from .tpu_options import check_tpus, tpu_options

if TYPE_CHECKING:
    from aioresolve.waiting import Wanted

__all__ = ["wait"]

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

    def wanted(self) -> Wanted:
        """Return what is to be waited for; raises where that makes no sense."""
        if self.count is not None and self.jobs:
            raise click.UsageError("--count is for all jobs and --jobs for each of them; give one of the two")
        if len(dict(self.jobs)) < len(self.jobs):
            raise click.UsageError("--jobs names a job twice; give one number for each")
        # Here and not above: `--help` and completion are not to pay for it.
        from aioresolve.waiting import checked_wanted

        jobs = dict(self.jobs) or None
        ready = not self.allow_unready
        return checked_wanted(self.count, jobs, ready, self.reachable, self.stable_for or 0.0)


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
    # Here and not above: `--help` and completion are not to pay for it.
    from .waiting import complete_pods

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
    # Here and not above: `--help` and completion are not to pay for it.
    from .waiting import complete_tpus

    streams.write(workers_text(request, complete_tpus(request, wanted, interval)))
