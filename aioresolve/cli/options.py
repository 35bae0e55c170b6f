"""What the command line's arguments say, and what is wrong with those that say nothing. Pure.

What the commands were asked for: their parameters by name.

The options that every resolving command has, and how their values are read.

The options that say which pods are meant, and whether what they say together makes sense.

The argument and options that say which TPUs are meant.
"""

from __future__ import annotations

import logging
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from aioresolve._core.validation import seconds

from .completion import contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "ADDRESSES",
    "WITH_IDENTITIES",
    "PodRequest",
    "PollRequest",
    "TPURequest",
    "Task",
    "check_pods",
    "check_task",
    "check_tpus",
    "interval_option",
    "job_and_count",
    "job_and_selector",
    "output_option",
    "pod_options",
    "quiet_option",
    "read_by",
    "requests_at_once_option",
    "selectors_by_job",
    "shard",
    "stacked",
    "task",
    "task_option",
    "timeout_option",
    "tpu_options",
    "typed",
    "verbose_option",
    "watch_option",
    "worker_timeout_option",
    "workers_at_once_option",
]

EXAMPLE = "such as -l worker=app=trainer"
_NO_JOB_NAME = re.compile(r"[\s!(),]")
"""Characters that selectors have and job names do not."""
_SHARDS = re.compile(r"(?:([0-9]{1,9})/)?([1-9][0-9]{0,8})")
_JOB_AND_COUNT = re.compile(r"(.+)=([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a cluster, by its job and its index there."""

    job: str
    index: int


def job_and_selector(text: str) -> tuple[str, str]:
    """Return the two halves of `JOB=SELECTOR`: what stands before the first `=`, and all that follows.

    Raises:
        ValueError: a half is missing, or the first begins a selector; the message has the mend.
    """
    job, _, selector = text.partition("=")
    if _NO_JOB_NAME.search(job) or selector.startswith("="):
        example = shlex.quote(f"worker={text}")
        raise ValueError(f"{text!r} names no job; write JOB=SELECTOR, such as -l {example}")
    if not job:
        raise ValueError(f"{text!r} has no job name before the '='; write JOB=SELECTOR, {EXAMPLE}")
    if not selector.strip():
        raise ValueError(
            f"{text!r} has no label selector after the job's name; write JOB=SELECTOR, {EXAMPLE}"
        )
    return job, selector


def job_and_count(text: str) -> tuple[str, int]:
    """Return the two halves of `JOB=N`: a job and a number of its tasks.

    Raises:
        ValueError: it is not that; the message has the mend.
    """
    halves = _JOB_AND_COUNT.fullmatch(text)
    if halves is None:
        raise ValueError(f"{text!r} is no number of a job's tasks; write JOB=N, such as worker=16")
    return halves[1], int(halves[2])


def shard(text: str) -> int | tuple[int, int]:
    """Return the number of shards that `N` says, or the index and the number that `I/N` says.

    Raises:
        ValueError: it is neither; the message has the mend.
    """
    parts = _SHARDS.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"{text!r} is no shard; write INDEX/N, such as 0/4, or in a pod of an Indexed Job N alone"
        )
    index, number = parts.groups()
    if index is not None and int(index) >= int(number):
        raise ValueError(
            f"{text!r} is not a valid shard: the index counts from 0 and must be less than {number}"
        )
    return int(number) if index is None else (int(index), int(number))


def selectors_by_job(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return each job's selectors, both in the order given."""
    jobs: dict[str, list[str]] = {}
    for job, selector in pairs:
        jobs.setdefault(job, []).append(selector)
    return jobs


def task(text: str) -> Task:
    """Return the task that `JOB:INDEX` names.

    Raises:
        ValueError: it names none; the message has the mend.
    """
    job, colon, index = text.rpartition(":")
    if not (colon and job and index.isascii() and index.isdigit() and len(index) < 10):
        raise ValueError(f"{text!r} is no task; write JOB:INDEX, such as worker:0")
    return Task(job, int(index))


def typed(selectors: Iterable[tuple[str, str]]) -> str:
    """Return jobs' selectors as they are given at the command line."""
    return " ".join(f"-l {job}={selector}" for job, selector in selectors)


WITH_IDENTITIES = frozenset({"wide", "json", "yaml"})
"""The outputs that tell who a pod is; the others tell addresses, for which the server is asked for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """Pods, to be resolved, watched or waited for."""

    selectors: tuple[tuple[str, str], ...]
    namespaces: tuple[str, ...]
    all_namespaces: bool
    context: str | None
    kubeconfigs: tuple[str, ...]
    port: int
    address: str
    order_by: Literal["name", "index"]
    not_running: Literal["raise", "skip"] = "raise"
    output: str
    task: Task | None
    timeout: float
    max_concurrency: int
    quiet: bool

    @property
    def jobs(self) -> dict[str, list[str]]:
        """Each job's selectors."""
        return selectors_by_job(self.selectors)

    @property
    def asked(self) -> str:
        """What is looked for, as it was typed."""
        return typed(self.selectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class TPURequest:
    """Cloud TPUs, to be resolved, listed, watched or waited for."""

    names: tuple[str, ...]
    zone: str | None
    project: str | None
    api_version: Literal["v2", "v1"]
    job_name: str
    is_list: bool = False
    is_probed: bool = False
    output: str
    task: Task | None
    timeout: float
    worker_timeout: float = 5.0
    max_concurrency: int = 256
    quiet: bool

    @property
    def asked(self) -> str:
        """What is looked for, in words."""
        return f"TPU {', '.join(self.names)}" if self.names else "the TPU of this environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """A fleet, to be polled or watched; what is None is left to its file."""

    file: str
    is_once: bool
    is_watched: bool
    interval: float | None
    timeout: float | None
    max_concurrency: int | None
    shard: int | tuple[int, int] | None
    output: str
    quiet: bool


C = TypeVar("C", bound="Callable[..., Any]")


def read_by(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of an option whose text a pure function reads; its ValueError is wrong usage."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(map(read, value))
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=context, param=parameter) from error

    return callback


def stacked(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    """Return the decorator that adds all these options, which `--help` shows in this order."""

    def decorate(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(formats: Sequence[str]) -> Callable[[C], C]:
    """Return `-o/--output`, one of `formats`; the first is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="What to print on stdout.",
    )


def timeout_option(default: str = "30s", what: str = "Give up after this long in all") -> Callable[[C], C]:
    """Return `--timeout`; `what` is said in its help, and followed by the forms of a span."""
    return click.option(
        "--timeout",
        metavar="DURATION",
        callback=read_by(seconds),
        default=default,
        show_default=True,
        help=f"{what}: 30s, 2m, 1m30s, 500ms, or a number of seconds.",
    )


def interval_option(default: str, of: str) -> Callable[[C], C]:
    """Return `--interval`; `of` says in its help what is asked at intervals."""
    return click.option(
        "--interval",
        metavar="DURATION",
        callback=read_by(seconds),
        default=default,
        show_default=True,
        help=f"How long to wait between two questions to {of}.",
    )


def watch_option(source: str) -> Callable[[C], C]:
    """Return `-w/--watch` of the command that resolves `source`."""
    return click.option(
        "-w",
        "--watch",
        "is_watched",
        is_flag=True,
        help=f"Go on with a row for each change, as `aioresolve watch {source}` does.",
    )


def check_task(task: Task | None, output: str) -> None:
    """Raise that `--task` was given to an output which does not name it."""
    if task is not None and output != "tf-config":
        raise click.UsageError("--task goes with -o tf-config; leave it out, or add that")


task_option = click.option(
    "--task",
    metavar="JOB:INDEX",
    callback=read_by(task),
    help="With -o tf-config: the task that will read it, such as worker:0.",
)

worker_timeout_option = click.option(
    "--worker-timeout",
    metavar="DURATION",
    callback=read_by(seconds),
    default="5s",
    show_default=True,
    help="Give one worker up after this long, connecting included.",
)

workers_at_once_option = click.option(
    "--max-concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="How many workers are asked at a time.",
)

quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="No progress and no notes on stderr; errors only."
)


def _log_to_stderr(context: click.Context, _: click.Parameter, verbosity: int) -> None:
    """Send our log lines to stderr until the command ends: at -v every request, at -vv everything.

    Without it they go nowhere: a command says by itself what is wrong, in its own words.
    """
    logger = logging.getLogger("aioresolve")
    handler: logging.Handler = logging.NullHandler()
    if verbosity:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
        logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    logger.addHandler(handler)

    @context.find_root().call_on_close
    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_log_to_stderr,
    help="Log each request with its duration, and where an error came from; -vv logs more.",
)


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


tpu_options = stacked(
    click.argument("names", metavar="[NAME]...", nargs=-1),
    click.option("--zone", metavar="ZONE", help="The TPUs' zone.  [default: this VM's own]"),
    click.option("--project", metavar="PROJECT", help="The TPUs' project.  [default: this VM's own]"),
    click.option(
        "--api-version",
        type=click.Choice(["v2", "v1"]),
        default="v2",
        show_default=True,
        help="The version of the Cloud TPU API; v1 knows TPU nodes of old and no TPU VMs.",
    ),
    click.option(
        "--job-name", metavar="JOB", default="worker", show_default=True, help="The job that the workers are."
    ),
)


def check_tpus(request: TPURequest) -> None:
    """Raise what is wrong with the request as a whole."""
    check_task(request.task, request.output)
