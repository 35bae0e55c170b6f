"""`aioresolve kubernetes`: the pods of label selectors, as the tasks of a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.options import (
    max_requests_option,
    output_option,
    pod_options,
    quiet_option,
    task_option,
    timeout_option,
    verbose_option,
    watch_option,
)
from aioresolve.cli.output.formats import OUTPUTS, WITH_IDENTITIES, format_cluster, printable
from aioresolve.cli.requests import (
    PodRequest,
    pod_resolver_factory,
    selector_options,
    validate_pod_request,
    validate_watch_output,
)
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress
    from aioresolve.cli.requests import Namespaces
    from aioresolve.spec import ClusterSpec, ClusterState

    _FoundPods = tuple[ClusterSpec, ClusterState | None, Namespaces]

EPILOG = """\
\b
Examples:
  # the workers and parameter servers of a job, in the namespace of the context
  aioresolve kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # two selectors for one job: the pods of the second follow those of the first
  aioresolve kubernetes -n ml -l worker=job-name=train-a -l worker=job-name=train-b

\b
  # TensorFlow's configuration of the first worker
  TF_CONFIG=$(aioresolve kubernetes -l worker=app=trainer -o tf-config --task worker:0) && export TF_CONFIG

\b
  # one document with names, nodes and uids
  aioresolve kubernetes -A -l 'worker=app in (trainer, evaluator)' -o json

\b
  # tasks as they join and leave, until interrupted
  aioresolve kubernetes -l worker=app=trainer -w

\b
Exit codes: 0 success, also if no pod matches, which stderr reports; 1 could not resolve;
2 invalid usage or configuration; 3 deadline passed.
"""


@click.command(epilog=EPILOG, short_help="The pods of label selectors, as the tasks of a cluster.")
@pod_options
@click.option(
    "--not-running",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="If pods match but are not running: fail and report why, or leave them out.",
)
@output_option(OUTPUTS)
@task_option
@watch_option("kubernetes")
@timeout_option()
@max_requests_option
@quiet_option
@verbose_option
def kubernetes(is_watched: bool, **parameters: Any) -> None:
    """Print the pods of label selectors as the tasks of a cluster.

    The pods of a job are those that its selectors match; all selectors are requested concurrently. The n-th
    pod of a job is its task n. Pods being deleted are left out.

    \b
    Outputs:
      table      job, task and address
      wide       in addition name, namespace, node, readiness and uid of each pod
      json yaml  {"jobs": {JOB: [{"task", "address", "name", "namespace", "uid", "node",
                 "ready", "index"}]}, "version", "observed_at"}
      tf-config  TensorFlow's TF_CONFIG, on one line
      name       only the addresses, one per line
    """
    request = PodRequest(**parameters)
    validate_pod_request(request)
    if is_watched:
        from .watch import watch_pods

        validate_watch_output(request.output)
        watch_pods(request)
        return
    from aioresolve.cli.application import run_async

    spec, state, namespaces = run_async(lambda _: _resolve(request))
    # Formatted before the note is written: if it fails, only its error should be reported.
    content = format_cluster(request.output, spec, state, request.task)
    if not request.quiet:
        streams.write_stderr(_note_about_empty_jobs(request, spec, namespaces))
    streams.write_stdout(content)


async def _resolve(request: PodRequest) -> _FoundPods:
    """Return the cluster, its state if the output shows identities, and the namespaces that were searched."""
    from aioresolve.cli.terminal.progress import run_with_progress

    new_resolver = pod_resolver_factory(request)

    async def operation(progress: Progress) -> _FoundPods:
        resolver, namespaces = await new_resolver(progress)
        if request.output in WITH_IDENTITIES:
            state = await resolver.fetch_state(progress)
            return state.spec, state, namespaces
        return await resolver.fetch_spec(progress), None, namespaces

    return await run_with_progress(request, operation)


_LABEL_KEY = re.compile(r"[\w./-]+")
"""A selector that requires a label with any value: often a mistake for kubectl's `-l KEY=VALUE`."""


def _note_about_empty_jobs(request: PodRequest, spec: ClusterSpec, namespaces: Namespaces) -> str:
    empty = [pair for pair in request.selectors if not spec.num_tasks(pair[0])]
    if not empty:
        return ""
    where = _describe_namespaces(namespaces)
    note = f"No resources found {where}: no running pod matches {selector_options(empty)}"
    if not (request.namespaces or request.all_namespaces):
        note += "; use -n or -A to select other namespaces"
    for job, selector in empty:
        if _LABEL_KEY.fullmatch(selector):
            note += (
                f"; -l {job}={selector} selects pods with any label {selector!r} for the job {job!r},"
                f" to select pods labelled {job}={selector} pass -l worker={job}={selector}"
            )
    return f"{printable(note)}.\n"


def _describe_namespaces(namespaces: Namespaces) -> str:
    if namespaces is None:
        return "in any namespace"
    plural = "s" if len(namespaces) > 1 else ""
    return f"in namespace{plural} {', '.join(namespaces)}"
