"""The options that say which pods are meant, and whether what they say together makes sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .arguments import job_and_selector
from .completion import contexts
from .options import check_task, read_by, stacked

if TYPE_CHECKING:
    from .request import PodRequest

__all__ = ["ADDRESSES", "check_pods", "pod_options", "requests_at_once_option"]

ADDRESSES = ("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")

pod_options = stacked(
    click.option(
        "-l",
        "--selector",
        "selectors",
        metavar="JOB=SELECTOR",
        callback=read_by(job_and_selector),
        multiple=True,
        help="The pods of a job: its name, '=', and a label selector as kubectl takes it. Repeat it for more"
        " selectors and more jobs.",
    ),
    click.option(
        "-n",
        "--namespace",
        "namespaces",
        metavar="NAMESPACE",
        multiple=True,
        help="Look in this namespace; repeat it for several.  [default: the context's own, else 'default']",
    ),
    click.option("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces."),
    click.option(
        "--context",
        metavar="CONTEXT",
        shell_complete=contexts,
        help="The kubeconfig's context.  [default: its current one]",
    ),
    click.option(
        "--kubeconfig",
        "kubeconfigs",
        metavar="FILE",
        type=click.Path(),
        multiple=True,
        help="The kubeconfig; several are merged.  [default: $KUBECONFIG, else the pod's service account,"
        " else ~/.kube/config]",
    ),
    click.option(
        "--port",
        metavar="PORT",
        type=click.IntRange(1, 65535),
        default=8470,
        show_default=True,
        help="The port to put behind each host.",
    ),
    click.option(
        "--address",
        type=click.Choice(ADDRESSES),
        default="pod_ip",
        show_default=True,
        help="Which address of a pod; hostname is HOSTNAME.SUBDOMAIN.NAMESPACE.svc.",
    ),
    click.option(
        "--order-by",
        type=click.Choice(["name", "index"]),
        default="name",
        show_default=True,
        help="How a selector's pods become tasks: by name (worker-2 before worker-10), or each at the index"
        " its Job, StatefulSet, JobSet, LeaderWorkerSet or Kubeflow job gave it.",
    ),
)

requests_at_once_option = click.option(
    "--max-concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="How many requests are made at a time.",
)


def check_pods(request: PodRequest) -> None:
    """Raise what is wrong with the request as a whole."""
    if not request.selectors:
        raise click.UsageError(
            "nothing to look for: give -l JOB=SELECTOR at least once, such as -l worker=app=trainer"
        )
    if request.namespaces and request.all_namespaces:
        raise click.UsageError("-n narrows what -A widens; give one of the two")
    check_task(request.task, request.output)
    if request.task is not None and request.task.job not in {*request.jobs, "evaluator"}:
        job = request.task.job
        raise click.UsageError(
            f"--task {job}:{request.task.index} is of a job that no -l names; add -l {job}=SELECTOR, or"
            f" give a task of {' or '.join(request.jobs)}"
        )
