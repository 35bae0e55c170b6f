"""The sources of clusters at the terminal, one row each, and what a command requests of one."""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import msgspec
from msgspec.structs import replace

from aioresolve import launch
from aioresolve.errors import LaunchError
from aioresolve.sources import BY_KIND

from . import clusters, options, streams
from .application import run_async
from .formats import Table, one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve.environment.detection import Evidence
    from aioresolve.kubernetes.auth.connection import Connection
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState
    from aioresolve.tpu import TPUSlice

T = TypeVar("T")

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: each.function for name, each in (launch.VARIABLE_READERS | launch.HOST_FILE_READERS).items()},
    **launch.HOST_FILES,
    "tf-config": launch.tensorflow,
}
"""The functions of `aioresolve.launch`, by the values of `-o` and `--for`."""

PROGRAM_OPTIONS = frozenset(name for each in _FUNCTIONS.values() for name in launch.options_of(each))
"""The options of any of these functions."""


class TerminalSource(NamedTuple):
    """A source at the terminal. The functions take the parameters of a command that belong to the source.

    Attributes:
        name: its subcommand. The row of this name in `aioresolve.sources` has its resolver; `here` uses the
            resolver that is detected, and `torchrun` has none.
        what: what the source has, for `--help`.
        options: the options that say which cluster it is.
        scope: returns the request as text.
        jobs: returns the jobs that are named; none if the source decides.
        arguments: returns the arguments of the resolver, or raises a UsageError.
        job_remedy: how to request another `{job}`.
        note: further text for `--help`.
        has_conditions: whether the cluster may be incomplete.
        has_port: whether the port of its tasks is an option.
        has_slices: whether its tasks belong to slices.
    """

    name: str
    what: str
    options: Callable[[Any], Any]
    scope: Callable[[Mapping[str, Any]], str]
    jobs: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: ()
    arguments: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    job_remedy: str = ""
    note: str = ""
    has_conditions: bool = True
    has_port: bool = False
    has_slices: bool = False


def selections(parameters: Mapping[str, Any]) -> tuple[options.JobSelector, ...]:
    """Return what selects pods: the values of `-l`, or else of `--service`."""
    return parameters["selectors"] or parameters["services"]  # type: ignore[no-any-return]


def selector_options(selectors: Iterable[options.JobSelector]) -> str:
    """Return selectors or Services as options of the command line."""
    return " ".join(f"{each.option} {shlex.quote(each.text)}" for each in selectors)


def _pod_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(parameters)
    selectors, services = arguments.pop("selectors"), arguments.pop("services")
    port, namespace = arguments.pop("port"), arguments["namespace"]
    if not (selectors or services):
        raise click.UsageError(
            "no pods are selected: pass -l SELECTOR at least once, such as -l app=trainer, or --service NAME"
        )
    if selectors and services:
        raise click.UsageError("-l and --service exclude each other; pass one of them")
    if arguments.pop("all_namespaces"):
        if namespace:
            raise click.UsageError("-n and -A exclude each other; pass one of them")
        arguments["namespace"] = None
    elif not namespace:  # as with kubectl
        from aioresolve.kubernetes import CONTEXT_NAMESPACE

        arguments["namespace"] = CONTEXT_NAMESPACE
    jobs: dict[str, list[str]] = {}
    for each in selectors or services:
        # A port is in place of those of the Services.
        suffix = f":{port}" if services and port is not None and ":" not in each.selector else ""
        jobs.setdefault(each.job, []).append(f"{each.selector}{suffix}")
    if port is not None:
        arguments["tf_server_port"] = port
    arguments["service" if services else "job_to_label_mapping"] = jobs
    arguments["kubeconfig"] = arguments["kubeconfig"] or None
    arguments["order_by"] = arguments["order_by"] or "name"
    return arguments


_ROWS = (
    TerminalSource(
        "kubernetes",
        "the pods of label selectors",
        options.pod_options,
        scope=lambda given: selector_options(selections(given)),
        jobs=lambda given: dict.fromkeys(each.job for each in selections(given)),
        arguments=_pod_arguments,
        job_remedy="add -l {job}=SELECTOR, or --service {job}=NAME",
        has_port=True,
    ),
    TerminalSource(
        "tpu",
        "the workers of Cloud TPUs",
        options.tpu_options,
        scope=lambda given: (
            f"TPU {', '.join(given['tpu'])}" if given["tpu"] else "the TPU of this environment"
        ),
        jobs=lambda given: [given["job_name"]],
        arguments=lambda given: {**given, "tpu": given["tpu"] or None},
        job_remedy="pass --job-name {job}",
        note="For NAME see `aioresolve tpu --help`.",
        has_slices=True,
    ),
    TerminalSource(
        "here",
        "the cluster that this process is part of",
        options.combine_options(),
        scope=lambda _: "the cluster of this process",
        note="`aioresolve here` prints which cluster that is, and why.",
    ),
    TerminalSource(
        "slurm",
        "the tasks of the step of `srun`",
        options.slurm_options,
        scope=lambda _: "the job step of Slurm",
        jobs=lambda given: [job for job, _ in given["jobs"]],
        arguments=lambda given: {
            **given,
            "jobs": one_number_per_job(given["jobs"]) or None,
            "auto_set_gpu": False,
        },
        job_remedy="add --jobs {job}=N",
        note="Slurm starts all tasks, and its variables describe them, so that there is nothing to wait for.",
        has_conditions=False,
    ),
    TerminalSource(
        "torchrun",
        "the nodes of an elastic job of torchrun",
        options.rendezvous_options,
        scope=lambda _: "the rendezvous of torchrun",
    ),
)

TERMINAL_SOURCES = {row.name: row for row in _ROWS}
"""The sources, by the names of the subcommands for them."""

CONNECTION = ("kubeconfig", "context", "server", "token_file", "impersonate", "impersonate_groups")
"""The parameters of `options.connection_options`, which are arguments of the Python API too."""


async def find_connection(parameters: Mapping[str, Any]) -> Connection:
    """Return the API server that the options of a command select."""
    from aioresolve.kubernetes.auth import find_connection, search_for

    return await find_connection(search_for(**{name: parameters[name] or None for name in CONNECTION}))


def add_sources(
    group: click.Group,
    run: Callable[..., None],
    text: str,
    examples: Mapping[str, str],
    *added: Callable[[Any], Any],
    conditions: Callable[[Any], Any] | None = None,
    epilog: str,
    has_port: bool = False,
    cls: type[click.Command] = click.Command,
) -> None:
    """Add a subcommand for each source of `examples` to a group: it calls `run` with the source.

    In `text`, `{what}` is what the source has. `added` are the options of all sources, and `conditions` those
    of sources that may be incomplete. With `has_port` there is a `--port` for the coordinator of a program.
    """
    for name, example in examples.items():
        source = TERMINAL_SOURCES[name]
        ports = [options.coordinator_port_option] if has_port and not source.has_port else []
        command = click.command(
            name,
            cls=cls,
            short_help=f"{source.what[0].upper()}{source.what[1:]}.".replace("`", ""),
            help=f"{text.format(what=source.what)}\n\n{source.note}",
            epilog=f"\b\nExamples:\n{example}\n{epilog}",
        )
        waiting = [conditions] if conditions is not None and source.has_conditions else []
        common = (options.quiet_option, options.verbose_option)
        decorate = options.combine_options(source.options, *ports, *waiting, *added, *common)
        group.add_command(command(decorate(partial(run, name))))


class ClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that a command resolves, and what only some outputs have.

    `arguments`, `jobs` and `scope` are what `source` returns for the parameters of the command. `program` has
    the options of the functions of `aioresolve.launch` that were passed.
    """

    source: TerminalSource
    arguments: dict[str, Any]
    jobs: tuple[str, ...]
    scope: str
    output: str = "table"
    has_headers: bool = True
    task: clusters.TaskName | None = None
    is_this_task: bool = False
    program: dict[str, Any] = {}
    timeout: float
    quiet: bool

    def program_options(self, consumer: str) -> dict[str, Any]:
        """Return the options that were passed and that this kind of program has."""
        return {name: value for name, value in self.program.items() if name in _options_of(consumer)}

    def note(self, text: str) -> None:
        """Write a line to stderr, unless the user wants errors only."""
        if not self.quiet:
            streams.write_stderr(f"{one_line(text)}\n")


COMMON = ("output", "has_headers", "task", "is_this_task", "timeout", "quiet")
"""The parameters of commands that are fields of a ClusterRequest."""


def new_request(source: str, parameters: dict[str, Any]) -> ClusterRequest:
    """Return the request for a cluster of `source` by the parameters of a command.

    Raises:
        UsageError: no pods are selected, options exclude each other or do not fit the output, or the task is
            not in a requested job.
    """
    row = TERMINAL_SOURCES[source]
    program = {name: value for name in sorted(PROGRAM_OPTIONS) if (value := parameters.get(name)) is not None}
    others = {*COMMON, *PROGRAM_OPTIONS} - ({"port"} if row.has_port else set())
    own = {name: value for name, value in parameters.items() if name not in others}
    request = ClusterRequest(
        source=row,
        arguments=row.arguments(own),
        jobs=tuple(row.jobs(own)),
        scope=row.scope(own),
        program=program,
        **{name: parameters[name] for name in COMMON if name in parameters},
    )
    if request.task and request.task.job != "evaluator":
        validate_job(request, request.task.job, "--task")
    if "output" in parameters:
        _validate_output(request)
    return request


def validate_job(request: ClusterRequest, job: str, option: str) -> None:
    """Raise a UsageError if jobs are requested, but not `job`, which `option` names."""
    if request.jobs and job not in request.jobs:
        remedy = request.source.job_remedy.format(job=job)
        raise click.UsageError(f"{option}: no job {job!r} is requested; {remedy}")


def one_number_per_job(jobs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return the number of each job of `--jobs`; a UsageError if a job has two."""
    if len(dict(jobs)) < len(jobs):
        raise click.UsageError("--jobs names a job twice; pass one number for each job")
    return dict(jobs)


def _validate_output(request: ClusterRequest) -> None:
    """Raise a UsageError if the output needs a task that is missing, or does not have an option."""
    output = request.output
    needs_task = output in launch.VARIABLE_READERS
    option = "--this-task" if request.is_this_task else "--task" if request.task is not None else None
    if request.task is not None and request.is_this_task:
        raise click.UsageError("--task and --this-task exclude each other; pass one of them")
    if needs_task and option is None:
        raise click.UsageError(
            f"-o {output} requires a task; pass --this-task, or --task JOB:INDEX, such as --task worker:0"
        )
    if option is not None and not (needs_task or output == "tf-config"):
        raise click.UsageError(
            f"{option} requires -o tf-config, or another output that has a task, such as env; add it, or"
            f" leave out {option}"
        )
    validate_program_options(request, output, "-o")


def validate_program_options(request: ClusterRequest, consumer: str, option: str) -> None:
    """Raise a UsageError if `consumer`, the value of `option`, cannot have an option that was passed."""
    own = _options_of(consumer)
    others = launch.HOST_FILE_READERS if option == "-o" else (*launch.HOST_FILES, "tf-config")
    for name in request.program:
        # The port is that of the pods too, and thus possible with every output.
        if name in own or (name == "port" and request.source.has_port):
            continue
        known = (each for each in _FUNCTIONS if each not in others and name in _options_of(each))
        passed = f"--{name.replace('_', '-')}"
        raise click.UsageError(
            f"{passed} requires {option} {' or '.join(known)}; add it, or leave out {passed}"
        )
    if request.arguments.get("address") == "pod_ipv6" and "slots" in own:
        raise click.UsageError(
            f"{option} {consumer} cannot express IPv6 addresses; pass --address pod_ipv4, or hostname"
        )


def _options_of(program: str) -> Collection[str]:
    return launch.options_of(_FUNCTIONS[program]) if program in _FUNCTIONS else ()


async def run_with_progress(
    request: ClusterRequest, operation: Callable[[Progress], Awaitable[T]], scope: str = ""
) -> T:
    """Run `operation` within the deadline of `request`, and show on stderr what it is waiting for."""
    from aioresolve._core.deadline import within_deadline

    from .live import show_progress

    async def run(progress: Progress) -> T:
        with show_progress(progress, quiet=request.quiet):
            return await operation(progress)

    return await within_deadline(request.timeout, scope or request.scope, run)


async def fetch_slices(request: ClusterRequest, resolver: Any) -> tuple[tuple[TPUSlice, ...], ClusterState]:
    """Return the slices of a TPUClusterResolver, which its states do not have, and their cluster."""
    from aioresolve.tpu.slices import cluster_of

    slices = await run_with_progress(request, resolver.fetch_slices)
    return slices, cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC))


async def consumer_options(
    request: ClusterRequest, resolver: ClusterResolver, state: ClusterState, consumer: str
) -> tuple[ClusterState, dict[str, Any]]:
    """Return the options of the function of `aioresolve.launch` for a kind of program.

    The slices of TPUs are requested if `consumer` needs them; then the state is theirs.
    """
    given = request.program_options(consumer)
    if consumer == "megascale" and "slices" not in given and request.source.has_slices:
        slices, state = await fetch_slices(request, resolver)
        if len({len(one.tasks) for one in slices}) > 1:
            raise LaunchError("the slices differ in size", hint="Name TPUs of one size.")
        given["slices"] = len(slices)
    return state, given


async def format_for_task(
    request: ClusterRequest, resolver: ClusterResolver, state: ClusterState
) -> str | Table:
    """Return the cluster in the format of the output, for the task of `--task` or `--this-task`.

    For `--this-task`, `state` must have identities.
    """
    state, given = await consumer_options(request, resolver, state, request.output)
    name = request.task
    if request.is_this_task:
        task = await resolver.this_task(state, timeout=request.timeout)
        name = clusters.TaskName(task.job, task.index)
    return clusters.format_cluster(request.output, state, name, given)


def new_resolver(request: ClusterRequest) -> Any:
    """Return the resolver for a request, whose source is not `here`."""
    return BY_KIND[request.source.name].load()(**request.arguments, timeout=request.timeout)


def open_source(request: ClusterRequest) -> tuple[ClusterRequest, ClusterResolver]:
    """Return the resolver for a request, and the request with the time that is left.

    Raises:
        ConfigurationError: no source was found for `here`.
        ResolveError: the source that is used is invalid, or could not be requested.
    """
    if request.source.name != "here":
        return request, new_resolver(request)
    from aioresolve.environment.detection import choose

    ends = time.monotonic() + request.timeout
    evidence, new_detected = choose(examine_sources(request))
    request.note(f"the cluster is that of {evidence.source}: {evidence.reason}")
    return with_time_left(request, ends), new_detected()


def examine_sources(request: ClusterRequest) -> tuple[Evidence, ...]:
    """Return what was found out about each source, and show progress on stderr."""
    from aioresolve.environment.detection import collect_evidence

    return run_async(lambda _: run_with_progress(request, collect_evidence))


def with_time_left(request: ClusterRequest, ends: float, *, least: float = 0.001) -> ClusterRequest:
    """Return the request with the rest of its total deadline, and with at least so many seconds."""
    return replace(request, timeout=max(ends - time.monotonic(), least))
