"""The options that several commands share, and how their values are parsed."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from aioresolve._core.validation import parse_duration, suggestion

from .clusters import CUSTOM_COLUMNS, OUTPUTS, PROGRAM_OUTPUTS, TaskName, parse_columns
from .completion import complete_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALL_OUTPUTS = (*OUTPUTS, *PROGRAM_OUTPUTS)
"""The values of `-o` of the commands that print a cluster."""

_KEY, _VALUE = r"[\w./-]+", r"[\w.-]*"
_REQUIREMENT = (
    rf"\s*(?:!\s*{_KEY}|{_KEY}(?:\s*(?:=|==|!=|<|>)\s*{_VALUE}"
    rf"|\s+(?:in|notin)\s*\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))?)\s*"
)
_SELECTOR = re.compile(f"{_REQUIREMENT}(?:,{_REQUIREMENT})*", re.ASCII)
"""A label selector as kubectl accepts it:
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors"""
_JOB = re.compile(r"[^\s=!<>(),]+")
_NAME = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NUMBER = "[1-9][0-9]{0,8}"

C = TypeVar("C", bound="Callable[..., Any]")


class JobSelector(NamedTuple):
    """A label selector or Service of a job; `text` is the value of the `option` as it was typed."""

    job: str
    selector: str
    text: str
    option: str = "-l"


def parse_selector(text: str) -> JobSelector:
    """Return the job and the label selector of `SELECTOR` or `JOB=SELECTOR`; raises a ValueError for others.

    What kubectl accepts as a selector is one, of the job `worker`: a value has no `=`, so `app=trainer` is a
    label, and the first part of `worker=app=trainer` is a job.
    """
    if _SELECTOR.fullmatch(text):
        return JobSelector("worker", text, text)
    job, equals, selector = text.partition("=")
    if equals and _JOB.fullmatch(job) and _SELECTOR.fullmatch(selector):
        return JobSelector(job, selector, text)
    raise ValueError(
        f"{text!r} is not a label selector; write SELECTOR, such as -l app=trainer, or JOB=SELECTOR,"
        " such as -l worker=app=trainer"
    )


def matching(pattern: str, what: str, convert: Callable[..., Any]) -> Callable[[str], Any]:
    """Return a function that converts the groups of a text; it raises a ValueError if the text is not `what`.

    That is so if the pattern does not match, or `convert` returns None.
    """

    def parse(text: str) -> Any:
        found = re.fullmatch(pattern, text)
        value = None if found is None else convert(*found.groups())
        if value is None:
            raise ValueError(f"{text!r} is not {what}")
        return value

    return parse


def _size(least: str, colon: str, most: str) -> tuple[int, int | None] | None:
    if most and int(most) < int(least):
        return None
    return int(least), int(most) if most else None if colon else int(least)


_SIZE = f"({_NUMBER})(?:(:)({_NUMBER})?)?"

parse_service = matching(
    rf"(?:({_JOB.pattern})=)?({_NAME}(?::{_NUMBER})?)",
    "a Service; write NAME or NAME:PORT, such as --service trainer:8470, or JOB=NAME",
    lambda job, name: JobSelector(job or "worker", name, f"{job}={name}" if job else name, "--service"),
)
parse_size = matching(_SIZE, "a number of tasks; write N, such as 16, or a range, such as 4:8 or 4:", _size)
parse_job_size = matching(
    f"(.+)={_SIZE}",
    "a number of tasks of a job; write JOB=N, such as worker=16, or a range, such as worker=4:8",
    lambda job, *size: (job, found) if (found := _size(*size)) else None,
)
parse_count = matching(
    f"(.+)=({_NUMBER})",
    "a number of tasks of a job; write JOB=N, such as worker=16",
    lambda job, number: (job, int(number)),
)
parse_processes = matching(
    f"(auto|gpu|cpu|{_NUMBER})", "a number of processes; write one, such as 8, or auto, gpu or cpu", str
)
parse_task = matching(
    "(.+):([0-9]{1,9})",
    "a task; write JOB:INDEX, such as worker:0",
    lambda job, index: TaskName(job, int(index)),
)


OUTPUT = f"{__name__}.output"
"""The key of the value of `-o` in the `meta` of a context, for commands that print a cluster once."""


class CommandGroup(click.Group):
    """A group in which `k8s` is a short name of `kubernetes`, which `--help` does not list."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; a UsageError that says what was meant."""
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            similar = suggestion(name, self.list_commands(ctx))
            if "=" in name:
                similar = f"pass a selector with -l after the command, such as kubernetes -l {name}"
            ctx.fail(f"{name!r} is not a command of `{ctx.command_path}`; {similar}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name or short name."""
        return super().get_command(ctx, "kubernetes" if cmd_name == "k8s" else cmd_name)


# Kinds of options


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


SPELLINGS: dict[str, str] = {}
"""How the option of each parameter is typed; errors name it in place of the argument of the Python API."""


def _split(names: str) -> list[str]:
    found = names.split()
    SPELLINGS.setdefault(found[-1].lstrip("-").replace("-", "_"), found[0])
    return found


def text_option(
    names: str,
    metavar: str | None,
    help_text: str,
    *,
    parse: Callable[[str], Any] | None = None,
    default: Any = None,
    **attributes: Any,
) -> Callable[[C], C]:
    """Return an option with a value, which `parse` converts.

    `names` are separated by spaces; one without dashes is the parameter of the command.
    """
    return click.option(
        *_split(names),
        metavar=metavar,
        callback=None if parse is None else parse_with(parse),
        default=default,
        show_default=default is not None,
        help=help_text,
        **attributes,
    )


def choice_option(name: str, values: Sequence[str], help_text: str) -> Callable[[C], C]:
    """Return an option with one of these values, the first by default."""
    return text_option(name, None, help_text, type=click.Choice(values), default=values[0])


def flag_option(names: str, help_text: str, **attributes: Any) -> Callable[[C], C]:
    """Return an option without a value."""
    return click.option(*_split(names), is_flag=True, help=help_text, **attributes)


def number_option(name: str, help_text: str) -> Callable[[C], C]:
    """Return an option whose value is a number from 1."""
    return text_option(name, "N", help_text, type=click.IntRange(1))


def port_option(names: str, help_text: str, **attributes: Any) -> Callable[[C], C]:
    """Return an option whose value is a port."""
    return text_option(names, "PORT", help_text, type=click.IntRange(1, 65535), **attributes)


def duration_option(name: str, help_text: str, default: str | None = None) -> Callable[[C], C]:
    """Return an option whose value is a duration, such as 1m30s, in seconds."""
    return text_option(name, "DURATION", help_text, parse=parse_duration, default=default)


class OutputFormat(click.Choice):  # type: ignore[type-arg]  # generic in later versions of click
    """A choice of formats, or custom columns."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, and validate its columns."""
        if not str(value).startswith(CUSTOM_COLUMNS):
            return super().convert(value, param, ctx)
        try:
            parse_columns(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


def _note_output(output: str) -> str:
    click.get_current_context().meta[OUTPUT] = output
    return output


def output_option(formats: Sequence[str] = ALL_OUTPUTS) -> Callable[[C], C]:
    """Return `-o/--output`, one of `formats`, the first by default, and `--no-headers`.

    If they are, or end with, `ALL_OUTPUTS`, custom columns are possible too.
    """
    kind: click.Choice = click.Choice(formats)  # type: ignore[type-arg]
    metavar = None
    parse = None
    if set(formats) >= set(ALL_OUTPUTS):
        parse = _note_output
        kind = OutputFormat(formats)
        metavar = f"[{'|'.join([*formats, f'{CUSTOM_COLUMNS}SPEC'])}]"
    return combine_options(
        text_option("-o --output", metavar, "The output format.", type=kind, default=formats[0], parse=parse),
        flag_option("--no-headers has_headers", "Print no table headers.", flag_value=False, default=True),
    )


# Options of several commands


def timeout_option(default: str = "30s", effect: str = "Total deadline of the command") -> Callable[[C], C]:
    """Return `--timeout`; `effect` starts its help text."""
    return duration_option("--timeout", f"{effect}: 30s, 2m, 1m30s, 500ms, or a number of seconds.", default)


total_timeout_option = timeout_option()


def interval_option(default: str) -> Callable[[C], C]:
    """Return `--interval` for a source that does not report changes."""
    return duration_option("--interval", "Time between two requests to a source without a watch.", default)


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


quiet_option = flag_option("-q --quiet", "Write only errors to stderr, no progress and no notes.")

verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_log_to_stderr,
    help="Log each request with its duration, and the traceback of an error; -vv logs more.",
)

allow_empty_option = flag_option(
    "--allow-empty", "Succeed even if a job has no tasks.  [default: exit with 1]"
)

worker_timeout_option = duration_option("--worker-timeout", "Deadline of each worker.", "5s")

coordinator_port_option = port_option(
    "--port", "For programs with a coordinator or master: its port.  [default: that of its address]"
)

program_options = combine_options(
    text_option(
        "--processes-per-task",
        "N",
        "For torchrun: the number of processes of each task, or auto, gpu or cpu.  [default: 1]",
        parse=parse_processes,
    ),
    number_option("--slots", "For host files: the number of processes for each task.  [default: 1]"),
    number_option(
        "--slices",
        "For megascale: the number of TPU slices, of one size.  [default: those of the TPUs, else 1]",
    ),
)
"""Options of `aioresolve.launch`, of `aioresolve exec` and of the outputs for programs."""

task_options = combine_options(
    text_option(
        "--task",
        "JOB:INDEX",
        "With -o tf-config and outputs for programs: the task that will read it, such as worker:0.",
        parse=parse_task,
    ),
    flag_option(
        "--this-task is_this_task",
        "The same, for the task of this process: by its pod's uid or name, host name, or address.",
    ),
    program_options,
)


# Options of sources


def complete_orders(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the orders, and the prefixes of labels."""
    return [one for one in ("index", "label:", "name", "node-label:") if one.startswith(incomplete)]


connection_options = combine_options(
    text_option(
        "--context",
        "CONTEXT",
        "The kubeconfig context.  [default: the current context]",
        shell_complete=complete_contexts,
    ),
    text_option(
        "--kubeconfig",
        "FILE",
        "The kubeconfig file; several are merged.  [default: $KUBECONFIG, else the service account of"
        " the pod, else ~/.kube/config]",
        type=click.Path(),
        multiple=True,
    ),
    text_option("--server", "URL", "The API server, instead of that of the kubeconfig."),
    text_option(
        "--token-file",
        "FILE",
        "A bearer token, instead of the credentials of the kubeconfig.",
        type=click.Path(),
    ),
    text_option("--as impersonate", "USER", "The user to impersonate."),
    text_option(
        "--as-group impersonate_groups", "GROUP", "A group to impersonate; can be repeated.", multiple=True
    ),
)
"""The API server, and the credentials for it."""

rendezvous_options = combine_options(
    click.argument("job"),
    text_option(
        "-n --namespace",
        "NAMESPACE",
        "The namespace of the pods.  [default: that of the context, else 'default']",
    ),
    connection_options,
)
"""The rendezvous of a job of torchrun, by its `--rdzv-id`, or by a `/` and the name of its ConfigMap."""

pod_options = combine_options(
    text_option(
        "-l --selector selectors",
        "[JOB=]SELECTOR",
        "A label selector in kubectl's syntax, for the pods of the job 'worker', or of JOB; can be"
        " repeated, for several jobs and for several selectors of a job.",
        parse=parse_selector,
        multiple=True,
    ),
    text_option(
        "--service services",
        "[JOB=]NAME[:PORT]",
        "In place of -l: a Service, whose EndpointSlices are read instead of pods; PORT is a number."
        " Can be repeated.",
        parse=parse_service,
        multiple=True,
    ),
    text_option(
        "-n --namespace",
        "NAMESPACE",
        "The namespace of the pods.  [default: that of the context, else 'default']",
    ),
    flag_option("-A --all-namespaces", "Select pods of all namespaces."),
    connection_options,
    port_option(
        "--port",
        "The port of each task, and thus of a program's coordinator.  [default: that of the Service,"
        " else 8470]",
    ),
    choice_option(
        "--address",
        ("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname"),
        "Which address of a pod to use; hostname is HOSTNAME.SUBDOMAIN.NAMESPACE.svc.",
    ),
    text_option(
        "--order-by",
        "ORDER",
        "The order of the tasks of a selector: name (worker-2 before worker-10), index (that the Job,"
        " StatefulSet, JobSet, ... gave each pod), label:KEY (of the pod) or node-label:KEY (of its node)."
        " Repeat it for several labels.  [default: name]",
        shell_complete=complete_orders,
        multiple=True,
    ),
)

slurm_options = combine_options(
    text_option(
        "--jobs",
        "JOB=N",
        "The number of tasks of a job; repeat it for several, which take the ranks in the order of their"
        " names.  [default: all tasks are of the job worker]",
        parse=parse_count,
        multiple=True,
    ),
    port_option(
        "--port-base",
        "The port of the first task of each node; the others have the following ports.",
        default=8888,
    ),
)

tpu_options = combine_options(
    click.argument("tpu", metavar="[NAME]...", nargs=-1),
    text_option("--zone", "ZONE", "The zone of the TPUs.  [default: that of this VM]"),
    text_option("--project", "PROJECT", "The project of the TPUs.  [default: that of this VM]"),
    text_option("--job-name", "JOB", "The job of the workers.", default="worker"),
    choice_option(
        "--not-healthy", ("raise", "allow"), "What to do with TPUs that are READY but not healthy."
    ),
    choice_option("--address", ("internal_ip", "external_ip"), "Which address of a worker to use."),
)
