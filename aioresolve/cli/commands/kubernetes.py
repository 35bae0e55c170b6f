"""`aioresolve kubernetes`: the pods of label selectors, as the tasks of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import clusters, formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress
    from aioresolve.spec import Observation

EPILOG = """\
\b
Examples:
  # the workers of a job, in the namespace of the context
  aioresolve kubernetes -l app=trainer

\b
  # workers and parameter servers
  aioresolve kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # TensorFlow's configuration of the first worker
  TF_CONFIG=$(aioresolve kubernetes -l app=trainer -o tf-config --task worker:0) && export TF_CONFIG

\b
  # the variables for torchrun in this pod (`aioresolve exec` also waits, and starts the program)
  set -a; eval "$(aioresolve kubernetes -l app=trainer -o torchrun --this-task)"; set +a

\b
  # the endpoints of a Service, for users that may not list pods
  aioresolve kubernetes --service trainer

\b
  # tasks as they join and leave, until interrupted
  aioresolve kubernetes -l app=trainer -w

\b
Selectors:
  What kubectl accepts as a label selector is one, of the job 'worker'. Otherwise the text before
  the first '=' is the job:
    -l app=trainer          the job worker: pods with the label app=trainer
    -l worker=app=trainer   the same
    -l ps=app=ps,tier!=x    the job ps: pods with the label app=ps, but not tier=x
    -l ps=app               the job worker: pods with the label ps=app
"""


@click.command(epilog=EPILOG, short_help="The pods of label selectors, as the tasks of a cluster.")
@options.pod_options
@options.choice_option(
    "--not-running",
    ("raise", "skip"),
    "If pods match but are not running: fail and report why, or leave them out.",
)
@options.allow_empty_option
@options.output_option()
@options.task_options
@options.watch_option
@options.total_timeout_option
@options.quiet_option
@options.verbose_option
@click.pass_context
def kubernetes(context: click.Context, /, is_watched: bool, allow_empty: bool, **parameters: Any) -> None:
    """Print the pods of label selectors as the tasks of a cluster.

    The pods of a job are those that its selectors match; all selectors are requested concurrently. The n-th
    pod of a job is its task n. Pods being deleted are left out.

    \b
    Outputs:
      table      job, task, and of each pod the name, address, node and status; a narrow terminal
                 shows fewer columns, and none shows a column without values
      wide       in addition namespace, readiness, restarts and accelerators of each pod
      json yaml  {"jobs": {JOB: [{"task", "address", "name", "namespace", "uid", "node",
                 "ready", "status", "index", "restarts", "accelerators"}]},
                 "done": [{"job", "task", "name", "uid"}], "version", "observed_at"}
      tf-config  TensorFlow's TF_CONFIG, on one line
      name       only the addresses, one per line
      env jax ... sglang
                 the variables that such a program reads in the task of --task or --this-task,
                 as lines NAME=VALUE, quoted for a shell; `aioresolve exec --help` lists them
      hostfile host:slots
                 the hosts as Open MPI and DeepSpeed, or as Horovod and MPICH read them
      jsonpath=TEMPLATE, custom-columns=NAME:PATH,...
                 as in kubectl: a template for the object of json, or a table with a row for
                 each of its tasks, which here have a "job" too
    """
    request = sources.new_request("kubernetes", parameters)
    sources.validate_output(request)
    if is_watched:
        from .watch import run_watch

        run_watch(request)
        return

    selections = sources.selections(parameters)
    content, found, empty = run_async(lambda _: _resolve(request, selections, allow_empty))
    if found.absent:
        reasons = formats.by_reason({one.name: one.reason for one in found.absent})
        left_out = "; ".join(f"{names}: {reason}" for names, reason in reasons)
        request.note(f"{len(found.absent)} not running, left out: {left_out}")
    if not empty or allow_empty or (found.state and found.state.members):
        streams.write_stdout(content, has_headers=request.has_headers)
    if empty and allow_empty:
        request.note(empty)
    elif empty:
        report = formats.one_line(f"error: {empty}; pass --allow-empty if this is expected")
        streams.write_stderr(f"{report}\n")
        context.exit(COULD_NOT_RESOLVE)


async def _resolve(
    request: sources.ClusterRequest, selections: tuple[options.JobSelector, ...], allow_empty: bool
) -> tuple[str | formats.Table, Observation, str]:
    """Return the cluster in the output's format, what was found, and why a job has no pods, if that is so."""
    from aioresolve.spec.observation import ADDRESSES, MEMBERS, NAMES

    resolver = sources.new_resolver(request)
    skips = request.arguments["not_running"] == "skip"  # which pods were skipped, only whole pods show
    needs_pods = clusters.has_identities(request.output) or request.is_this_task or skips
    want = MEMBERS if needs_pods else NAMES if request.output == "table" else ADDRESSES

    async def operation(progress: Progress) -> tuple[str | formats.Table, Observation, str]:
        found = await resolver._call_observe(want, progress)
        task = await sources.find_task_name(resolver, request, found.state if needs_pods else None)
        given = request.program_options(request.output)
        content = clusters.format_cluster(request.output, found.state, task, given)
        empty = [each for each in selections if not found.state.spec.num_tasks(each.job)]
        if not empty:
            return content, found, ""
        if not allow_empty:
            found = await resolver._explain(found)
        reasons = "; ".join(one.reason for one in found.unmatched)
        return content, found, reasons or f"no running pod matches {sources.selector_options(empty)}"

    return await sources.run_with_progress(request, operation)
