"""`aioresolve watch`: a cluster as it is, and then each change of it."""

from __future__ import annotations

from typing import Any

import click

from .answers import WATCHED
from .options import (
    interval_option,
    output_option,
    quiet_option,
    task_option,
    timeout_option,
    verbose_option,
)
from .pod_options import check_pods, pod_options, requests_at_once_option
from .request import PodRequest, TPURequest
from .tpu_options import check_tpus, tpu_options

__all__ = ["watch"]

EPILOG = """\
\b
Outputs:
  table      on a terminal the cluster, drawn in place; elsewhere a row for each task, and then
             for each change: its EVENT (JOINED, LEFT, MOVED), job, task and address, and of
             a task that moved where it WAS, as TASK@ADDRESS
  wide       and who each task is
  json       {"jobs", "version", "observed_at", "joined": [TASK, ...], "left": [TASK, ...],
             "moved": [{"from": TASK, "to": TASK}, ...]}, on a line for each change
  yaml       the same, a document for each change
  tf-config  TensorFlow's TF_CONFIG, on a line for each one that differs from the last

\b
Exit codes: 130 ended by Ctrl-C, 143 by SIGTERM, 141 by a reader who has gone; 1 an error that
does not pass; 2 wrong usage or configuration; 3 there was no first answer by the deadline.
"""

first_answer_option = timeout_option(what="Give up where there is no first answer by then")


@click.group(no_args_is_help=False, short_help="A cluster as it is, and then each change of it.")
def watch() -> None:
    """Print a cluster as it is, and then each change of it, until somebody ends that.

    A reader who is slow misses states in between, and never the newest. What is wrong with the source
    meanwhile is told on stderr, or below the table that a terminal shows.
    """


@watch.command(
    "kubernetes",
    short_help="The pods of label selectors.",
    epilog=f"""\
\b
Examples:
  # who joins and who leaves
  aioresolve watch kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # the workers' addresses after each change
  aioresolve watch kubernetes -l worker=app=trainer -o json | jq -c '.jobs.worker | map(.address)'

{EPILOG}""",
)
@pod_options
@output_option(WATCHED)
@task_option
@first_answer_option
@requests_at_once_option
@quiet_option
@verbose_option
def watch_kubernetes(**parameters: Any) -> None:
    """Watch the pods of label selectors as the tasks of a cluster.

    Pods that run and are not being deleted are its members. The API server tells each change as it happens.
    """
    request = PodRequest(**parameters)
    check_pods(request)
    # Here and not above: `--help` and completion are not to pay for it.
    from .watching import watch_pods

    watch_pods(request)


@watch.command(
    "tpu",
    short_help="The workers of Cloud TPUs.",
    epilog=f"""\
\b
Example:
  # whatever happens to two slices, asked about every ten seconds
  aioresolve watch tpu slice-0 slice-1 --interval 10s

{EPILOG}""",
)
@tpu_options
@output_option(WATCHED)
@task_option
@interval_option("30s", "the API, which has to be asked for changes")
@first_answer_option
@quiet_option
@verbose_option
def watch_tpu(interval: float, **parameters: Any) -> None:
    """Watch the workers of Cloud TPUs as the tasks of a cluster.

    NAME is as of `aioresolve tpu`. The workers of TPUs that are ready are its members.
    """
    request = TPURequest(**parameters)
    check_tpus(request)
    # Here and not above: `--help` and completion are not to pay for it.
    from .watching import watch_tpus

    watch_tpus(request, interval)
