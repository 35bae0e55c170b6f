"""From a request to the cluster that was found: what `aioresolve kubernetes` does while it waits.

`aioresolve kubernetes`: the pods of label selectors, as the tasks of a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.options import (
    WITH_IDENTITIES,
    PodRequest,
    check_pods,
    output_option,
    pod_options,
    quiet_option,
    requests_at_once_option,
    task_option,
    timeout_option,
    typed,
    verbose_option,
    watch_option,
)
from aioresolve.cli.output.cluster_text import OUTPUTS, check_watched_output, cluster_text
from aioresolve.cli.output.formats import printable
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from aioresolve._core.retry import Progress
    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.spec import ClusterSpec, ClusterState

__all__ = ["Found", "found_cluster", "kubernetes", "kubernetes_resolver"]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, and in which namespaces it was looked for: all of them where None."""

    spec: ClusterSpec
    state: ClusterState | None
    namespaces: tuple[str, ...] | None


def found_cluster(request: PodRequest) -> Found:
    """Return the cluster that was asked for.

    Raises:
        ResolveError: it was not found, or not before the deadline.
    """
    # Imported here, so that `--help` and completion load click only.
    from aioresolve.cli.running import run

    return run(lambda _: _found(request))


async def kubernetes_resolver(request: PodRequest, progress: Progress) -> KubernetesClusterResolver:
    """Return the resolver of what was asked for.

    Raises:
        ResolveError: the kubeconfig, which names the namespace to look in, cannot be read.
    """
    return _resolver(request, await _namespaces(request, progress))


async def _found(request: PodRequest) -> Found:
    # Loaded before the deadline starts.
    import aioresolve.kubernetes.auth  # noqa: F401
    from aioresolve._core.retry import within_deadline
    from aioresolve.cli.terminal.progress import shown

    async def operation(progress: Progress) -> Found:
        with shown(progress, quiet=request.quiet):
            namespaces = await _namespaces(request, progress)
            resolver = _resolver(request, namespaces)
            if request.output in WITH_IDENTITIES:
                state = await resolver.fetch_state(progress)
                return Found(state.spec, state, namespaces)
            return Found(await resolver.fetch_spec(progress), None, namespaces)

    return await within_deadline(request.timeout, request.asked, operation)


async def _namespaces(request: PodRequest, progress: Progress) -> tuple[str, ...] | None:
    """Return the namespaces to look in, as kubectl chooses them: the context's own where none is given."""
    if request.all_namespaces:
        return None
    if request.namespaces:
        return request.namespaces
    from aioresolve.kubernetes.auth import CredentialCache, find_connection

    scope = "the context's namespace"
    progress.waiting(scope, "the kubeconfig has not been read")
    connection = await find_connection(
        kubeconfig=request.kubeconfigs or None, context=request.context, cache=CredentialCache()
    )
    progress.ready(scope)
    return (connection.namespace or "default",)


def _resolver(request: PodRequest, namespaces: tuple[str, ...] | None) -> KubernetesClusterResolver:
    from aioresolve.kubernetes import KubernetesClusterResolver

    return KubernetesClusterResolver(
        request.jobs,
        request.port,
        namespace=namespaces,
        context=request.context,
        kubeconfig=request.kubeconfigs or None,
        address=request.address,
        order_by=request.order_by,
        not_running=request.not_running,
        timeout=request.timeout,
        max_concurrency=request.max_concurrency,
    )


_LABEL_KEY = re.compile(r"[\w./-]+")
"""A selector that asks for a label and not for its value: often kubectl's `-l KEY=VALUE`, typed here."""

EPILOG = """\
\b
Examples:
  # the workers and parameter servers of a job, in the context's namespace
  aioresolve kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # two selectors, one job: the second's pods follow the first's
  aioresolve kubernetes -n ml -l worker=job-name=train-a -l worker=job-name=train-b

\b
  # what TensorFlow reads, for the first worker
  TF_CONFIG=$(aioresolve kubernetes -l worker=app=trainer -o tf-config --task worker:0) && export TF_CONFIG

\b
  # one document with names, nodes and uids
  aioresolve kubernetes -A -l 'worker=app in (trainer, evaluator)' -o json

\b
  # who joins and who leaves, for as long as it is wanted
  aioresolve kubernetes -l worker=app=trainer -w

\b
Exit codes: 0 answered, and if nothing was found stderr says so; 1 could not resolve;
2 wrong usage or configuration; 3 the deadline passed.
"""


@click.command(epilog=EPILOG, short_help="The pods of label selectors, as the tasks of a cluster.")
@pod_options
@click.option(
    "--not-running",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do about pods that match and do not run: fail and say why, or leave them out.",
)
@output_option(OUTPUTS)
@task_option
@watch_option("kubernetes")
@timeout_option()
@requests_at_once_option
@quiet_option
@verbose_option
def kubernetes(is_watched: bool, **parameters: Any) -> None:
    """Print the pods of label selectors as the tasks of a cluster.

    Each job's pods are found by the selectors given for it; all selectors are asked for at once. The n-th
    pod of a job is its task n. Pods being deleted are left out.

    \b
    Outputs:
      table      job, task and address
      wide       and each pod's name, namespace, node, readiness and uid
      json yaml  {"jobs": {JOB: [{"task", "address", "name", "namespace", "uid", "node",
                 "ready", "index"}]}, "version", "observed_at"}
      tf-config  TensorFlow's TF_CONFIG, on one line
      name       the addresses alone, one a line
    """
    request = PodRequest(**parameters)
    check_pods(request)
    # Here and not above: `--help` and completion are not to pay for it.
    if is_watched:
        from .watch import watch_pods

        check_watched_output(request.output)
        watch_pods(request)
        return

    found = found_cluster(request)
    # The text first: where it cannot be made, nothing else is to be said.
    text = cluster_text(request.output, found.spec, found.state, request.task)
    if not request.quiet:
        streams.complain(_note(request, found))
    streams.write(text)


def _note(request: PodRequest, found: Found) -> str:
    """Return what is to be said of the jobs that have no tasks: nothing where each has some."""
    empty = [pair for pair in request.selectors if not found.spec.num_tasks(pair[0])]
    if not empty:
        return ""
    note = f"No resources found {_where(found.namespaces)}: no running pod matches {typed(empty)}"
    if not (request.namespaces or request.all_namespaces):
        note += "; -n and -A look elsewhere"
    for job, selector in empty:
        if _LABEL_KEY.fullmatch(selector):
            note += (
                f"; -l {job}={selector} is job {job!r} and any pod that has a label {selector!r},"
                f" for pods labelled {job}={selector} give -l worker={job}={selector}"
            )
    return f"{printable(note)}.\n"


def _where(namespaces: tuple[str, ...] | None) -> str:
    if namespaces is None:
        return "in any namespace"
    plural = "s" if len(namespaces) > 1 else ""
    return f"in namespace{plural} {', '.join(namespaces)}"
