"""`aioresolve kubernetes`: the pods of label selectors, as the tasks of a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from . import streams
from .arguments import job_and_selector, task, typed
from .completion import contexts
from .options import output_option, quiet_option, read_by, timeout_option, verbose_option
from .output import (
    address_lines,
    cluster_json,
    cluster_yaml,
    printable,
    spec_table,
    state_table,
    tf_config,
)
from .request import Request

if TYPE_CHECKING:
    from .lookup import Found

__all__ = ["kubernetes"]

ADDRESSES = ("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")
OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")

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
Exit codes: 0 answered, and if nothing was found stderr says so; 1 could not resolve;
2 wrong usage or configuration; 3 the deadline passed.
"""


@click.command(epilog=EPILOG, short_help="The pods of label selectors, as the tasks of a cluster.")
@click.option(
    "-l",
    "--selector",
    "selectors",
    metavar="JOB=SELECTOR",
    callback=read_by(job_and_selector),
    multiple=True,
    help="The pods of a job: its name, '=', and a label selector as kubectl takes it. Repeat it for more"
    " selectors and more jobs.",
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    metavar="NAMESPACE",
    multiple=True,
    help="Look in this namespace; repeat it for several.  [default: the context's own, else 'default']",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces.")
@click.option(
    "--context",
    metavar="CONTEXT",
    shell_complete=contexts,
    help="The kubeconfig's context.  [default: its current one]",
)
@click.option(
    "--kubeconfig",
    "kubeconfigs",
    metavar="FILE",
    type=click.Path(),
    multiple=True,
    help="The kubeconfig; several are merged.  [default: $KUBECONFIG, else the pod's service account, else"
    " ~/.kube/config]",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    default=8470,
    show_default=True,
    help="The port to put behind each host.",
)
@click.option(
    "--address",
    type=click.Choice(ADDRESSES),
    default="pod_ip",
    show_default=True,
    help="Which address of a pod; hostname is HOSTNAME.SUBDOMAIN.NAMESPACE.svc.",
)
@click.option(
    "--order-by",
    type=click.Choice(["name", "index"]),
    default="name",
    show_default=True,
    help="How a selector's pods become tasks: by name (worker-2 before worker-10), or each at the index its"
    " Job, StatefulSet, JobSet, LeaderWorkerSet or Kubeflow job gave it.",
)
@click.option(
    "--not-running",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do about pods that match and do not run: fail and say why, or leave them out.",
)
@output_option(OUTPUTS)
@click.option(
    "--task",
    metavar="JOB:INDEX",
    callback=read_by(task),
    help="With -o tf-config: the task that will read it, such as worker:0.",
)
@timeout_option
@click.option(
    "--max-concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="How many requests are made at a time.",
)
@quiet_option
@verbose_option
def kubernetes(**parameters: Any) -> None:
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
    request = Request(**parameters)
    _check(request)
    # Here and not above: `--help` and completion are not to pay for it.
    from .lookup import found_cluster

    found = found_cluster(request)
    # The text first: where it cannot be made, nothing else is to be said.
    text = _text(request, found)
    if not request.quiet:
        streams.complain(_note(request, found))
    streams.write(text)


def _check(request: Request) -> None:
    """Raise what is wrong with the request as a whole."""
    if not request.selectors:
        raise click.UsageError(
            "nothing to look for: give -l JOB=SELECTOR at least once, such as -l worker=app=trainer"
        )
    if request.namespaces and request.all_namespaces:
        raise click.UsageError("-n narrows what -A widens; give one of the two")
    if request.task is None:
        return
    if request.output != "tf-config":
        raise click.UsageError("--task goes with -o tf-config; leave it out, or add that")
    if request.task.job not in {*request.jobs, "evaluator"}:
        job = request.task.job
        raise click.UsageError(
            f"--task {job}:{request.task.index} is of a job that no -l names; add -l {job}=SELECTOR, or"
            f" give a task of {' or '.join(request.jobs)}"
        )


def _text(request: Request, found: Found) -> str:
    """Return what is printed on stdout."""
    if found.state is not None:
        match request.output:
            case "wide":
                return streams.table_text(state_table(found.state))
            case "json":
                return cluster_json(found.state)
            case _:
                return cluster_yaml(found.state)
    match request.output:
        case "tf-config":
            return tf_config(found.spec, request.task)
        case "name":
            return address_lines(found.spec)
        case _:
            return streams.table_text(spec_table(found.spec))


def _note(request: Request, found: Found) -> str:
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
