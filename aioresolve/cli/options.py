"""The options that several commands share, and how their values are parsed."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from aioresolve._core.validation import parse_duration

from .completion import complete_contexts, complete_namespaces, complete_selectors
from .formats import OUTPUTS, PROGRAM_OUTPUTS, TEMPLATES, TaskName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


ADDRESSES = ("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")

SHORT_NAMES = {"k8s": "kubernetes"}
"""Short names of commands."""

DEFAULT_JOB = "worker"
"""The job of a selector that names none."""

_KEY, _VALUE = r"[\w./-]+", r"[\w.-]*"
_REQUIREMENT = (
    rf"\s*(?:!\s*{_KEY}|{_KEY}(?:\s*(?:=|==|!=|<|>)\s*{_VALUE}"
    rf"|\s+(?:in|notin)\s*\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))?)\s*"
)
_SELECTOR = re.compile(f"{_REQUIREMENT}(?:,{_REQUIREMENT})*", re.ASCII)
"""A label selector as kubectl accepts it:
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors"""
_SERVICE = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)?")
_JOB = re.compile(r"[^\s=!<>(),]+")
_SHARD = re.compile(r"(?:([0-9]{1,9})/)?([1-9][0-9]{0,8})")
_SIZE = re.compile("([1-9][0-9]{0,8})(:([1-9][0-9]{0,8})?)?")

MAX_PORT = 65535

ALL_OUTPUTS = (*OUTPUTS, *PROGRAM_OUTPUTS)
"""The values of `-o` of the commands that print a cluster."""

C = TypeVar("C", bound="Callable[..., Any]")


class JobSelector(NamedTuple):
    """A label selector or Service of a job; `text` is the value of the `option` as it was typed."""

    job: str
    selector: str
    text: str
    option: str = "-l"


# Values


def parse_selector(text: str) -> JobSelector:
    """Return the job and the label selector of `SELECTOR` or `JOB=SELECTOR`; raises a ValueError for others.

    What kubectl accepts as a selector is one, of the job `worker`: a value has no `=`, so `app=trainer` is a
    label, and the first part of `worker=app=trainer` is a job.
    """
    if _SELECTOR.fullmatch(text):
        return JobSelector(DEFAULT_JOB, text, text)
    job, equals, selector = text.partition("=")
    if equals and _JOB.fullmatch(job) and _SELECTOR.fullmatch(selector):
        return JobSelector(job, selector, text)
    raise ValueError(
        f"{text!r} is not a label selector; write SELECTOR, such as -l app=trainer, or JOB=SELECTOR,"
        " such as -l worker=app=trainer"
    )


def parse_service(text: str) -> JobSelector:
    """Return the job and the Service of `[JOB=]NAME[:PORT]`; raises a ValueError for another format."""
    job, _, name = text.rpartition("=")
    if not _SERVICE.fullmatch(name) or (job and not _JOB.fullmatch(job)) or text.startswith("="):
        raise ValueError(
            f"{text!r} is not a Service; write NAME or NAME:PORT, such as --service trainer:grpc, or"
            " JOB=NAME, such as --service ps=ps"
        )
    return JobSelector(job or DEFAULT_JOB, name, text, "--service")


def parse_size(text: str) -> tuple[int, int | None]:
    """Return the least and the most number of `N`, `N:MAX` or `N:`; raises a ValueError for others."""
    parts = _SIZE.fullmatch(text)
    if parts is None or (parts[3] and int(parts[3]) < int(parts[1])):
        raise ValueError(
            f"{text!r} is not a number of tasks; write N, such as 16, or a range, such as 4:8 or 4:"
        )
    least = int(parts[1])
    return least, (int(parts[3]) if parts[3] else None) if parts[2] else least


def parse_job_size(text: str) -> tuple[str, tuple[int, int | None]]:
    """Return the job and the size of `JOB=SIZE`, for which see `parse_size`."""
    job, _, size = text.rpartition("=")
    if not job or not _SIZE.fullmatch(size):
        raise ValueError(f"{text!r} is not a number of tasks of a job; write JOB=N, such as worker=16")
    return job, parse_size(size)


def parse_count(text: str) -> tuple[str, int]:
    """Return the job and the number of tasks of `JOB=N`; raises a ValueError for another format."""
    job, (least, most) = parse_job_size(text)
    if least != most:
        raise ValueError(f"{text!r} is a range; write JOB=N, such as worker=16")
    return job, least


def parse_shard(text: str) -> int | tuple[int, int]:
    """Return the number of shards of `N`, or index and number of `INDEX/N`, or raise a ValueError."""
    parts = _SHARD.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"{text!r} is not a valid shard; write INDEX/N, such as 0/4, or only N in a pod of an Indexed Job"
        )
    index, number = parts.groups()
    if index is None:
        return int(number)
    if int(index) >= int(number):
        raise ValueError(f"{text!r} is not a valid shard: the index must be less than {number}")
    return int(index), int(number)


def parse_processes(text: str) -> str:
    """Return a number of processes, or `auto`, `gpu` or `cpu`; raises a ValueError for others."""
    if text in ("auto", "gpu", "cpu") or re.fullmatch("[1-9][0-9]{0,8}", text):
        return text
    raise ValueError(f"{text!r} is not a number of processes; write one, such as 8, or auto, gpu or cpu")


def parse_task(text: str) -> TaskName:
    """Return the task of `JOB:INDEX`; raises a ValueError for another format."""
    job, colon, index = text.rpartition(":")
    if not (colon and job and index.isascii() and index.isdigit() and len(index) < 10):
        raise ValueError(f"{text!r} is not a task; write JOB:INDEX, such as worker:0")
    return TaskName(job, int(index))


# Options


def complete_orders(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the orders, and the prefixes of labels."""
    return [one for one in ("index", "label:", "name", "node-label:") if one.startswith(incomplete)]


class CommandGroup(click.Group):
    """A group whose commands also have short names, which `--help` does not list."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name or short name."""
        return super().get_command(ctx, SHORT_NAMES.get(cmd_name, cmd_name))


def parse_with(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return an option callback that parses each value; a ValueError becomes a usage error."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(map(parse, value))
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=context, param=parameter) from error

    return callback


def combine_options(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    """Return a decorator that adds all of these options, in the order of `--help`."""

    def decorate(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class OutputFormat(click.Choice):  # type: ignore[type-arg]  # generic in later versions of click
    """A choice of formats, or one of `TEMPLATES` with a template."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, and validate its template."""
        if not str(value).startswith(tuple(f"{name}=" for name in TEMPLATES)):
            return super().convert(value, param, ctx)
        # Imported now because few commands have a template.
        from .templates import validate_template

        try:
            validate_template(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


def output_option(formats: Sequence[str] = ALL_OUTPUTS) -> Callable[[C], C]:
    """Return `-o/--output`, one of `formats`, the first by default, and `--no-headers`.

    If they are, or end with, `ALL_OUTPUTS`, templates are possible too.
    """
    has_templates = set(formats) >= set(ALL_OUTPUTS)
    names = [*formats, "jsonpath=TEMPLATE", "custom-columns=SPEC"]
    return combine_options(
        click.option(
            "-o",
            "--output",
            type=OutputFormat(formats) if has_templates else click.Choice(formats),
            metavar=f"[{'|'.join(names)}]" if has_templates else None,
            default=formats[0],
            show_default=True,
            help="The output format.",
        ),
        click.option(
            "--no-headers",
            "has_headers",
            is_flag=True,
            flag_value=False,
            default=True,
            help="Print no table headers.",
        ),
    )


def number_option(
    name: str, help_text: str, *, least: int = 1, most: int | None = None, **attributes: Any
) -> Callable[[C], C]:
    """Return an option whose value is a number, `N`, or a port if `most` is that of a port."""
    metavar = "N" if most is None else "PORT"
    return click.option(name, metavar=metavar, type=click.IntRange(least, most), help=help_text, **attributes)


def duration_option(name: str, help_text: str, default: str | None = None) -> Callable[[C], C]:
    """Return an option whose value is a duration, such as 1m30s, in seconds."""
    return click.option(
        name,
        metavar="DURATION",
        callback=parse_with(parse_duration),
        default=default,
        show_default=default is not None,
        help=help_text,
    )


def timeout_option(default: str = "30s", effect: str = "Total deadline of the command") -> Callable[[C], C]:
    """Return `--timeout`; `effect` starts its help text."""
    return duration_option("--timeout", f"{effect}: 30s, 2m, 1m30s, 500ms, or a number of seconds.", default)


def interval_option(default: str) -> Callable[[C], C]:
    """Return `--interval` for a source that does not report changes."""
    return duration_option("--interval", "Time between two requests to a source that has no watch.", default)


def watch_option(source: str) -> Callable[[C], C]:
    """Return `-w/--watch` of the command that resolves `source`."""
    return click.option(
        "-w",
        "--watch",
        "is_watched",
        is_flag=True,
        help=f"Then print a row for each change, as `aioresolve watch {source}` does; --timeout is that of"
        " the first response.",
    )


program_options = combine_options(
    click.option(
        "--processes-per-task",
        metavar="N",
        callback=parse_with(parse_processes),
        help="For torchrun: the number of processes of each task, or auto, gpu or cpu.  [default: 1]",
    ),
    number_option("--slots", "For host files: the number of processes for each task.  [default: 1]"),
    number_option(
        "--slices",
        "For megascale: the number of TPU slices, of one size.  [default: those of the TPUs, else 1]",
    ),
    click.option(
        "--rpc-layer",
        metavar="PROTOCOL",
        help="For TensorFlow: the protocol of the cluster, such as grpc.",
    ),
)
"""Options of `aioresolve.launch`, of `aioresolve exec` and of the outputs for programs."""

coordinator_port_option = number_option(
    "--port",
    "For programs with a coordinator or master: its port.  [default: that of its address]",
    most=MAX_PORT,
)

task_options = combine_options(
    click.option(
        "--task",
        metavar="JOB:INDEX",
        callback=parse_with(parse_task),
        help="With -o tf-config and outputs for programs: the task that will read it, such as worker:0.",
    ),
    click.option(
        "--this-task",
        "is_this_task",
        is_flag=True,
        help="The same, for the task of this process: by its pod's uid or name, host name, or address.",
    ),
    program_options,
)

worker_timeout_option = duration_option("--worker-timeout", "Deadline of each worker.", "5s")


def max_concurrency_option(default: int, things: str) -> Callable[[C], C]:
    """Return `--max-concurrency`, the maximum number of `things` at a time."""
    return number_option(
        "--max-concurrency", f"Maximum number of {things} at a time.", default=default, show_default=True
    )


quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Write only errors to stderr, no progress and no notes."
)


def _log_to_stderr(context: click.Context, _: click.Parameter, verbosity: int) -> None:
    """Write log records to stderr until the command ends: with -v requests, with -vv everything.

    Without -v they are discarded: commands report errors themselves.
    """
    logger = logging.getLogger("aioresolve")
    handler: logging.Handler = logging.NullHandler()
    if verbosity:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
        logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    logger.addHandler(handler)

    @context.find_root().call_on_close
    def reset_logging() -> None:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_log_to_stderr,
    help="Log each request with its duration, and the traceback of an error; -vv logs more.",
)


pod_options = combine_options(
    click.option(
        "-l",
        "--selector",
        "selectors",
        metavar="[JOB=]SELECTOR",
        callback=parse_with(parse_selector),
        shell_complete=complete_selectors,
        multiple=True,
        help="A label selector in kubectl's syntax, for the pods of the job 'worker', or of JOB; can be"
        " repeated, for several jobs and for several selectors of a job.",
    ),
    click.option(
        "--service",
        "services",
        metavar="[JOB=]NAME[:PORT]",
        callback=parse_with(parse_service),
        multiple=True,
        help="In place of -l: a Service, whose EndpointSlices are read instead of pods; PORT is the name of"
        " one of its ports, or a number. Can be repeated.",
    ),
    click.option(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        shell_complete=complete_namespaces,
        multiple=True,
        help="The namespace of the pods; can be repeated.  [default: that of the context, else 'default']",
    ),
    click.option("-A", "--all-namespaces", is_flag=True, help="Select pods of all namespaces."),
    click.option(
        "--context",
        metavar="CONTEXT",
        shell_complete=complete_contexts,
        help="The kubeconfig context.  [default: the current context]",
    ),
    click.option(
        "--kubeconfig",
        metavar="FILE",
        type=click.Path(),
        multiple=True,
        help="The kubeconfig file; several are merged.  [default: $KUBECONFIG, else the service account of"
        " the pod, else ~/.kube/config]",
    ),
    click.option("--server", metavar="URL", help="The API server, instead of that of the kubeconfig."),
    click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(),
        help="A file with a bearer token, used instead of the credentials of the kubeconfig.",
    ),
    click.option("--as", "impersonate", metavar="USER", help="The user to impersonate."),
    click.option(
        "--as-group",
        "impersonate_groups",
        metavar="GROUP",
        multiple=True,
        help="A group to impersonate; can be repeated.",
    ),
    number_option(
        "--port",
        "The port of each task, and thus of a program's coordinator.  [default: that of the Service,"
        " else 8470]",
        most=MAX_PORT,
    ),
    click.option(
        "--address",
        type=click.Choice(ADDRESSES),
        default="pod_ip",
        show_default=True,
        help="Which address of a pod to use; hostname is HOSTNAME.SUBDOMAIN.NAMESPACE.svc.",
    ),
    click.option(
        "--order-by",
        metavar="ORDER",
        shell_complete=complete_orders,
        multiple=True,
        help="The order of the tasks of a selector: name (worker-2 before worker-10), index (that the Job,"
        " StatefulSet, JobSet, ... gave each pod), label:KEY (of the pod) or node-label:KEY (of its node)."
        " Repeat it for several labels.  [default: name]",
    ),
    max_concurrency_option(16, "requests"),
)

slurm_options = combine_options(
    click.option(
        "--jobs",
        metavar="JOB=N",
        callback=parse_with(parse_count),
        multiple=True,
        help="The number of tasks of a job; repeat it for several, which take the ranks in the order of their"
        " names.  [default: all tasks are of the job worker]",
    ),
    number_option(
        "--port-base",
        "The port of the first task of each node; the others have the following ports.",
        most=MAX_PORT,
        default=8888,
        show_default=True,
    ),
    number_option(
        "--tasks-per-node", "The number of tasks of each node.  [default: as Slurm reports]", least=0
    ),
    number_option(
        "--gpus-per-node",
        "With --gpus-per-task: the GPUs of each node.  [default: as Slurm reports]",
        least=0,
    ),
    number_option(
        "--gpus-per-task",
        "Set CUDA_VISIBLE_DEVICES to this number of the node's GPUs, others for each task.  [default:"
        " leave it as it is]",
        least=0,
    ),
)

allow_empty_option = click.option(
    "--allow-empty", is_flag=True, help="Succeed even if a job has no tasks.  [default: exit with 1]"
)

tpu_options = combine_options(
    click.argument("tpu", metavar="[NAME]...", nargs=-1),
    click.option("--zone", metavar="ZONE", help="The zone of the TPUs.  [default: that of this VM]"),
    click.option("--project", metavar="PROJECT", help="The project of the TPUs.  [default: that of this VM]"),
    click.option(
        "--api-version",
        type=click.Choice(["v2", "v1"]),
        default="v2",
        show_default=True,
        help="The version of the Cloud TPU API; v1 lists only legacy TPU nodes, not TPU VMs.",
    ),
    click.option(
        "--job-name", metavar="JOB", default="worker", show_default=True, help="The job of the workers."
    ),
    click.option(
        "--not-healthy",
        type=click.Choice(["raise", "skip", "allow"]),
        default="raise",
        show_default=True,
        help="What to do with TPUs that are READY but not healthy.",
    ),
    click.option(
        "--address",
        type=click.Choice(["internal_ip", "external_ip"]),
        default="internal_ip",
        show_default=True,
        help="Which address of a worker to use.",
    ),
)


class Source(NamedTuple):
    """Where clusters come from: the options that say which one, and what `--help` lists."""

    options: Callable[[Any], Any]
    short_help: str


SOURCES = {
    "kubernetes": Source(pod_options, "The pods of label selectors."),
    "tpu": Source(tpu_options, "The workers of Cloud TPUs."),
    "here": Source(combine_options(), "The cluster that this process is part of."),
    "slurm": Source(slurm_options, "The tasks of the step of srun."),
}
"""The sources, by the names of the subcommands for them."""


def add_sources(
    group: click.Group,
    run: Callable[..., None],
    *options: Callable[[Any], Any],
    texts: Mapping[str, tuple[str, str]],
    epilog: str,
    interval: str | None = None,
    has_port: bool = False,
    cls: type[click.Command] = click.Command,
) -> None:
    """Add a subcommand for each source to a group: it calls `run` with the source and the parameters.

    Args:
        group: the group.
        run: called with the source and the parameters.
        options: those of all sources.
        texts: the description and the examples for each source.
        epilog: follows the examples.
        interval: the default of `--interval`, for sources that may have no watch.
        has_port: whether there is a `--port` for the coordinator of a program.
        cls: the class of the commands.
    """
    for source, (text, examples) in texts.items():
        added = [SOURCES[source].options, *options]
        if has_port and source != "kubernetes":  # whose own `--port` is that of the coordinator
            added.append(coordinator_port_option)
        if interval is not None and source in ("tpu", "here"):
            added.append(interval_option(interval))
        command = click.command(
            source,
            cls=cls,
            short_help=SOURCES[source].short_help,
            help=text,
            epilog=f"\b\nExamples:\n{examples}\n{epilog}",
        )
        group.add_command(
            command(combine_options(*added, quiet_option, verbose_option)(partial(run, source)))
        )
