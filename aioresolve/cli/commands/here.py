"""`aioresolve here`: which source describes the cluster of this process, and that cluster."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from aioresolve.cli import clusters, formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import WRONG_USAGE

if TYPE_CHECKING:
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState

EVIDENCE = "evidence"
"""The output that is the default: it does not need the cluster."""

NOTHING_FOUND = (
    "error: nothing describes the cluster of this process; resolve it by its source, such as `aioresolve"
    " kubernetes -l SELECTOR`\n"
)

FOUND = {True: "yes", False: "no", None: "unknown"}

EPILOG = """\
\b
Examples:
  # which cluster is this process part of, and why?
  aioresolve here

\b
  # its tasks, and the variables that JAX reads in this one
  aioresolve here -o wide
  aioresolve here -o jax --this-task

\b
Sources, in the order of precedence:
  TF_CONFIG       $TF_CONFIG has tasks
  Slurm           a job step, a batch script or a shell of salloc
  SageMaker       $SM_HOSTS has hosts
  TPU variables   those of TPU pods on GKE, $TPU_NAME or $TPU_CONFIG
  TPU VM          the metadata server reports a TPU slice
  Kubernetes      the pod belongs to a Job, JobSet, LeaderWorkerSet, StatefulSet, Kubeflow job,
                  Volcano Job or Kueue pod group, or $AIORESOLVE_SELECTOR is set
  Compute Engine  the VM belongs to a managed instance group
  Launcher        mpirun, torchrun or another launcher started all its processes on this host

In a pod of a workload, Kubernetes precedes the TPU variables of that pod.

The exit code is 2 if no source is found.
"""


@click.command(epilog=EPILOG, short_help="The cluster that this process is part of, and why.")
@options.output_option((EVIDENCE, *options.ALL_OUTPUTS))
@options.coordinator_port_option
@options.task_options
@options.watch_option
@options.total_timeout_option
@options.quiet_option
@options.verbose_option
@click.pass_context
def here(context: click.Context, /, is_watched: bool, **parameters: Any) -> None:
    """Print which source describes the cluster of this process, or that cluster.

    The variables of the process, the metadata server of Google Cloud, and the API server of its pod are
    checked. Sources that need a request are requested only if no variable decides.

    \b
    Outputs:
      evidence   for each source whether it was FOUND (unknown if it was not requested), whether it
                 is USED, and the REASON; the cluster is not requested
      json yaml  {"source", "evidence": [{"source", "found", "reason"}], "jobs": {JOB: [{"task",
                 "address", "name", ...}]}, "done", "version", "observed_at"}
      All others are those of `aioresolve kubernetes`.
    """
    request = sources.new_request("here", parameters)
    sources.validate_output(request)
    if is_watched:
        from .watch import run_watch

        request = replace(request, output="table") if request.output == EVIDENCE else request
        run_watch(request)
        return
    from aioresolve.environment.detection import choose, decisive

    ends = time.monotonic() + request.timeout
    evidence = sources.examine_sources(request)
    if request.output == EVIDENCE:
        used = decisive(evidence)
        rows = [
            (one.source, FOUND[one.found], "yes" if one is used else "no", one.reason) for one in evidence
        ]
        table = formats.Table(("SOURCE", "FOUND", "USED", "REASON"), rows)
        streams.write_stdout(table, has_headers=request.has_headers)
        if used is None:
            # The table has what the error would list.
            streams.write_stderr(NOTHING_FOUND)
            context.exit(WRONG_USAGE)
        choose(evidence)  # raises if the source cannot be used
        return
    chosen, new_resolver = choose(evidence)
    state, task = run_async(lambda _: _resolve(sources.with_time_left(request, ends), new_resolver()))
    if clusters.is_document(request.output):
        listed = [{"source": one.source, "found": one.found, "reason": one.reason} for one in evidence]
        document = {"source": chosen.source, "evidence": listed, **state.as_dict()}
        content = clusters.format_document(request.output, document, clusters.tasks_of(document))
    else:
        given = request.program_options(request.output)
        content = clusters.format_cluster(request.output, state, task, given)
    streams.write_stdout(content, has_headers=request.has_headers)


async def _resolve(
    request: sources.ClusterRequest, resolver: ClusterResolver
) -> tuple[ClusterState, clusters.TaskName | None]:
    from aioresolve.spec.observation import MEMBERS

    async with resolver:
        found = await sources.run_with_progress(request, partial(resolver._call_observe, MEMBERS))
        state = found.state
        assert state is not None
        return state, await sources.find_task_name(resolver, request, state)
