"""`aioresolve kubernetes`, `tpu` and `here`: a cluster as it is now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import clusters, formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, WRONG_USAGE

from . import probe as probes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve.probe import WorkerProbe
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState, Observation

EVIDENCE = "evidence"
"""The default output of `here`: it does not need the cluster."""

FOUND = {True: "yes", False: "no", None: "unknown"}


@click.command(
    short_help="The pods of label selectors, as the tasks of a cluster.",
    epilog="""\
\b
Examples:
  # the workers of a job, in the namespace of the context; then workers and parameter servers
  aioresolve kubernetes -l app=trainer
  aioresolve kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # the endpoints of a Service, for users that may not list pods
  aioresolve kubernetes --service trainer

\b
  # the variables for torchrun in this pod (`aioresolve exec` also waits, and starts the program)
  set -a; eval "$(aioresolve kubernetes -l app=trainer -o torchrun --this-task)"; set +a
""",
)
@options.pod_options
@options.choice_option(
    "--not-running",
    ("raise", "skip"),
    "If pods match but are not running: fail and report why, or leave them out.",
)
@options.allow_empty_option
@options.output_option()
@options.task_options
@options.flag_option(
    "-w --watch is_watched", "The same as `aioresolve watch`; --timeout is that of the first response."
)
@options.total_timeout_option
@options.quiet_option
@options.verbose_option
@click.pass_context
def kubernetes(context: click.Context, /, is_watched: bool, allow_empty: bool, **parameters: Any) -> None:
    """Print the pods of label selectors as the tasks of a cluster.

    The pods of a job are those that its selectors match; the n-th pod of a job is its task n. Pods being
    deleted are left out.

    \b
    Outputs:
      table      job, task, and of each pod the name, address, node and status; a narrow terminal
                 shows fewer columns, and none shows a column without values
      wide       in addition namespace, readiness, restarts and accelerators of each pod
      json yaml  the cluster as one object, with the tasks of each job
      custom-columns=NAME:PATH,...
                 a column for each key of a task in json, such as NODE:.node, and its JOB:.job
      tf-config  TensorFlow's TF_CONFIG, on one line
      name       only the addresses, one per line
      env jax torch ...
                 the variables that such a program reads in the task of --task or --this-task,
                 as lines NAME=VALUE, quoted for a shell; `aioresolve exec here --help` lists them
      hostfile host:slots
                 the hosts as Open MPI and DeepSpeed, or as Horovod and MPICH read them
    """
    request = sources.new_request("kubernetes", parameters)
    if is_watched:
        from .watch import run_watch

        run_watch(request)
        return
    _print_cluster(context, request, sources.new_resolver(request), allow_empty=allow_empty)


@click.command(
    short_help="The workers of Cloud TPUs, as the tasks of a cluster.",
    epilog="""\
\b
Examples:
  # the workers of two TPUs: those of the second follow those of the first
  aioresolve tpu slice-0 slice-1 --zone us-central2-b --project my-project

\b
  # whether each worker responds, and with how many devices
  aioresolve tpu my-tpu --probe

\b
  # on a TPU VM, or in a pod of a TPU slice on GKE: its own slice, for TensorFlow
  export TF_CONFIG=$(aioresolve tpu -o tf-config --task worker:0)
""",
)
@options.tpu_options
@options.flag_option("--probe is_probed", "Request the devices of each worker, and add them.")
@options.allow_empty_option
@options.output_option()
@options.coordinator_port_option
@options.task_options
@options.total_timeout_option
@options.worker_timeout_option
@options.quiet_option
@options.verbose_option
@click.pass_context
def tpu(
    context: click.Context,
    /,
    is_probed: bool,
    allow_empty: bool,
    worker_timeout: float,
    **parameters: Any,
) -> None:
    """Print the workers of Cloud TPUs as the tasks of a cluster.

    NAME is the id or full name of a TPU, that of a queued resource, which stands for its nodes, or the
    address of a worker. Each TPU is a slice. All are requested concurrently, and all must be ready. Without
    NAME, the environment determines the TPU: the variables of GKE, $TPU_NAME, $TPU_CONFIG, or the metadata
    server of a TPU VM. The outputs are those of `aioresolve kubernetes`.
    """
    request = sources.new_request("tpu", parameters)
    if not is_probed:
        _print_cluster(context, request, sources.new_resolver(request), allow_empty=allow_empty)
    elif request.output in ("name", "tf-config", *clusters.PROGRAM_OUTPUTS):
        raise click.UsageError(
            f"-o {request.output} cannot show the result of --probe; leave out one of them"
        )
    else:
        _print_probed(context, request, worker_timeout, allow_empty=allow_empty)


@click.command(
    short_help="The cluster that this process is part of, and why.",
    epilog="""\
\b
Examples:
  # which cluster is this process part of, and why?
  aioresolve here

\b
  # its tasks, and the variables that JAX reads in this one
  aioresolve here -o wide
  aioresolve here -o jax --this-task
""",
)
@options.output_option((EVIDENCE, *options.ALL_OUTPUTS))
@options.coordinator_port_option
@options.task_options
@options.total_timeout_option
@options.quiet_option
@options.verbose_option
@click.pass_context
def here(context: click.Context, /, **parameters: Any) -> None:
    """Print which source describes the cluster of this process, or that cluster.

    The variables of the process, the metadata server of Google Cloud, and the API server of its pod are
    checked. Sources that need a request are requested only if no variable decides. The exit code is 2 if no
    source is found.

    \b
    Outputs:
      evidence   for each source whether it was FOUND (unknown if it was not requested), whether it
                 is USED, and the REASON, in the order of precedence; the cluster is not requested
      json yaml  the evidence and the cluster as one object
      All others are those of `aioresolve kubernetes`.
    """
    request = sources.new_request("here", parameters)
    from aioresolve.environment.detection import choose, decisive

    ends = time.monotonic() + request.timeout
    evidence = sources.examine_sources(request)
    if request.output != EVIDENCE:
        chosen, new_detected = choose(evidence)
        listed = [{"source": one.source, "found": one.found, "reason": one.reason} for one in evidence]
        left = sources.with_time_left(request, ends)
        _print_cluster(context, left, new_detected(), added={"source": chosen.source, "evidence": listed})
        return
    used = decisive(evidence)
    rows = [(one.source, FOUND[one.found], "yes" if one is used else "no", one.reason) for one in evidence]
    table = formats.Table(("SOURCE", "FOUND", "USED", "REASON"), rows)
    streams.write_stdout(table, has_headers=request.has_headers)
    if used is None:  # the table has what the error of `choose` would list
        streams.write_stderr(
            "error: nothing describes the cluster of this process; resolve it by its source, such as"
            " `aioresolve kubernetes -l SELECTOR`\n"
        )
        context.exit(WRONG_USAGE)
    choose(evidence)  # raises if the source cannot be used


def _print_cluster(
    context: click.Context,
    request: sources.ClusterRequest,
    resolver: ClusterResolver,
    *,
    allow_empty: bool = False,
    added: Mapping[str, Any] | None = None,
) -> None:
    """Print a cluster, whose object begins with `added`; exit with 1 if a job that was requested is empty."""
    content, found, empty = run_async(lambda _: _resolve(request, resolver, allow_empty, added or {}))
    if found.absent:
        reasons = formats.by_reason({one.name: one.reason for one in found.absent})
        request.note("left out: " + "; ".join(f"{names}: {reason}" for names, reason in reasons))
    streams.write_stdout(content, has_headers=request.has_headers)
    if empty and allow_empty:
        request.note(empty)
    elif empty:
        report = formats.one_line(f"error: {empty}; pass --allow-empty if this is expected")
        streams.write_stderr(f"{report}\n")
        context.exit(COULD_NOT_RESOLVE)


async def _resolve(
    request: sources.ClusterRequest, resolver: ClusterResolver, allow_empty: bool, added: Mapping[str, Any]
) -> tuple[str | formats.Table, Observation, str]:
    """Return the cluster in the output's format, what was found, and why a job is empty, if that is so."""
    from aioresolve.spec.observation import ADDRESSES, MEMBERS, NAMES

    ends = time.monotonic() + request.timeout
    skips = request.arguments.get("not_running") == "skip"  # which pods were skipped, only whole pods show
    needs_pods = clusters.has_identities(request.output) or request.is_this_task or skips
    want = MEMBERS if needs_pods else NAMES if request.output == "table" else ADDRESSES

    def empty_jobs(found: Observation) -> list[str]:
        tasks = found.state.spec.as_dict() if found.state else {}
        return [job for job in request.jobs if not tasks.get(job)]

    async def observe(progress: Progress) -> Observation:
        found = await resolver._call_observe(want, progress)
        return await resolver._explain(found) if empty_jobs(found) and not allow_empty else found

    async with resolver:
        found = await sources.run_with_progress(request, observe)
        state = found.state
        assert state is not None
        content: str | formats.Table
        if empty_jobs(found) and not (allow_empty or state.members):
            content = ""  # the error says what exists
        elif clusters.is_document(request.output):
            content = clusters.format_document(request.output, {**added, **state.as_dict()})
        else:
            left = sources.with_time_left(request, ends)
            content = await sources.format_for_task(left, resolver, state)
    empty = ", ".join(map(repr, empty_jobs(found)))
    reasons = "; ".join(one.reason for one in found.unmatched)
    return content, found, empty and (reasons or f"job {empty} has no tasks: {request.scope}")


def _print_probed(
    context: click.Context, request: sources.ClusterRequest, worker_timeout: float, *, allow_empty: bool
) -> None:
    async def probe() -> tuple[ClusterState, list[WorkerProbe]]:
        from aioresolve.tpu.slices import libtpu_ports

        ends = time.monotonic() + request.timeout
        async with sources.new_resolver(request) as resolver:
            slices, state = await sources.fetch_slices(request, resolver)
        return state, await probes.probe_workers(
            [member.endpoint.address for member in state.members],
            quiet=request.quiet,
            timeout=sources.with_time_left(request, ends).timeout,
            worker_timeout=worker_timeout,
            libtpu_ports=libtpu_ports(slices),
        )

    state, probed = run_async(lambda _: probe())
    if not state.members:
        _print_cluster(context, request, sources.new_resolver(request), allow_empty=allow_empty)
        return
    content: str | formats.Table
    if request.output in ("table", "wide"):
        more = formats.Table(probes.COLUMNS, [*map(probes.probe_cells, probed)])
        content = clusters.members_table(state, is_wide=request.output == "wide", more=more)
    else:
        document = state.as_dict()
        tasks = (task for of_job in document["jobs"].values() for task in of_job)
        for task, one in zip(tasks, probed, strict=True):
            task["probe"] = probes.probe_document(one)
        content = clusters.format_document(request.output, document)
    streams.write_stdout(content, has_headers=request.has_headers)
    probes.report_failed_probes(context, probed)
