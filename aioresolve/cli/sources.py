"""The sources of clusters at the terminal: options, what a command requests of which one, and resolvers."""

from __future__ import annotations

import shlex
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import msgspec
from msgspec.structs import replace

from . import options, streams
from .application import run_async
from .clusters import HOST_FILES, PROGRAM_OUTPUTS, TaskName
from .formats import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve.environment.detection import Evidence
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState

T = TypeVar("T")

LAUNCHERS = ("mpi", "deepspeed", "horovod", "mpich")
"""The programs that read a host file and start the tasks themselves (`aioresolve exec --for`)."""

PROGRAM_OPTIONS = {
    "port": ("jax", "megascale", "ray", "torch", "torchrun", "accelerate"),
    "processes_per_task": ("torchrun",),
    "rpc_layer": ("tensorflow", "tf-config"),
    "slices": ("megascale",),
    "slots": (*HOST_FILES, *LAUNCHERS),
}
"""Options of the functions of `aioresolve.launch`, and the values of `-o` and `--for` that have them."""


class Source(NamedTuple):
    """A source: what it has, the options that say which cluster, and a note for `--help`."""

    what: str
    options: Callable[[Any], Any]
    note: str = ""


SOURCES = {
    "kubernetes": Source("the pods of label selectors", options.pod_options),
    "tpu": Source("the workers of Cloud TPUs", options.tpu_options, "For NAME see `aioresolve tpu --help`."),
    "here": Source(
        "the cluster that this process is part of",
        options.combine_options(),
        "`aioresolve here` prints which cluster that is, and why.",
    ),
    "slurm": Source(
        "the tasks of the step of `srun`",
        options.slurm_options,
        "Slurm starts all tasks, and its variables describe them, so that there is nothing to wait for.",
    ),
}
"""The sources, by the names of the subcommands for them."""


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
    of sources that may be incomplete, which a step of Slurm is not. With `has_port` there is a `--port` for
    the coordinator of a program.
    """
    for name, example in examples.items():
        source = SOURCES[name]
        # The port of pods is that of the coordinator too.
        ports = [options.coordinator_port_option] if has_port and name != "kubernetes" else []
        command = click.command(
            name,
            cls=cls,
            short_help=f"{source.what[0].upper()}{source.what[1:]}.".replace("`", ""),
            help=f"{text.format(what=source.what)}\n\n{source.note}",
            epilog=f"\b\nExamples:\n{example}\n{epilog}",
        )
        waiting = [] if conditions is None or name == "slurm" else [conditions]
        common = (options.quiet_option, options.verbose_option)
        decorate = options.combine_options(source.options, *ports, *waiting, *added, *common)
        group.add_command(command(decorate(partial(run, name))))


class ClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that a command resolves, and what only some outputs have.

    `source` is one of `SOURCES`, and `arguments` are those of its resolver. `program` has the options of the
    functions of `aioresolve.launch` that were passed.
    """

    source: str
    arguments: dict[str, Any]
    selections: tuple[options.JobSelector, ...] = ()
    output: str = "table"
    has_headers: bool = True
    task: TaskName | None = None
    is_this_task: bool = False
    program: dict[str, Any] = {}
    timeout: float
    quiet: bool

    @property
    def jobs(self) -> list[str]:
        """The jobs that were named; empty if the source decides."""
        match self.source:
            case "kubernetes":
                return list(_selectors_by_job(self.selections))
            case "tpu":
                return [self.arguments["job_name"]]
            case "slurm":
                return list(self.arguments["jobs"] or ())
        return []

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        match self.source:
            case "kubernetes":
                return selector_options(self.selections)
            case "tpu":
                names = self.arguments["tpu"]
                return f"TPU {', '.join(names)}" if names else "the TPU of this environment"
            case "slurm":
                return "the job step of Slurm"
        return "the cluster of this process"

    def program_options(self, consumer: str) -> dict[str, Any]:
        """Return the options that were passed and that this kind of program has."""
        return {name: value for name, value in self.program.items() if consumer in PROGRAM_OPTIONS[name]}

    def note(self, text: str) -> None:
        """Write a line to stderr, unless the user wants errors only."""
        if not self.quiet:
            streams.write_stderr(f"{one_line(text)}\n")


def new_request(source: str, parameters: dict[str, Any]) -> ClusterRequest:
    """Return the request for a cluster of `source` by the parameters of a command.

    Raises:
        UsageError: no pods are selected, options exclude each other, or the task is not in a selected job.
    """
    program = {name: parameters.pop(name, None) for name in PROGRAM_OPTIONS}
    fields = {name: parameters.pop(name) for name in ClusterRequest.__struct_fields__ if name in parameters}
    if source == "kubernetes":
        fields["selections"] = _pop_selections(parameters)
    if source == "slurm":
        parameters["jobs"] = one_number_per_job(parameters["jobs"]) or None
    given = {name: value for name, value in program.items() if value is not None}
    request = ClusterRequest(source=source, arguments=parameters, program=given, **fields)
    if source == "kubernetes" and request.task and request.task.job not in (*request.jobs, "evaluator"):
        job, option = request.task.job, request.selections[0].option
        value = "SELECTOR" if option == "-l" else "NAME"
        raise click.UsageError(f"--task: no {option} selects the job {job!r}; add {option} {job}={value}")
    return request


def _pop_selections(arguments: dict[str, Any]) -> tuple[options.JobSelector, ...]:
    """Replace the options that select pods by the arguments of the resolver, and return the selectors."""
    selectors, services = arguments.pop("selectors"), arguments.pop("services")
    if not (selectors or services):
        raise click.UsageError(
            "no pods are selected: pass -l SELECTOR at least once, such as -l app=trainer, or --service NAME"
        )
    if selectors and services:
        raise click.UsageError("-l and --service exclude each other; pass one of them")
    if arguments.pop("all_namespaces"):
        if arguments["namespace"]:
            raise click.UsageError("-n and -A exclude each other; pass one of them")
        arguments["namespace"] = None
    selections: tuple[options.JobSelector, ...] = selectors or services
    return selections


def one_number_per_job(jobs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return the number of each job of `--jobs`; a UsageError if a job has two."""
    if len(dict(jobs)) < len(jobs):
        raise click.UsageError("--jobs names a job twice; pass one number for each job")
    return dict(jobs)


def validate_output(request: ClusterRequest) -> None:
    """Raise a UsageError if the output needs a task that is missing, or does not have an option."""
    output = request.output
    needs_task = output in PROGRAM_OUTPUTS and output not in HOST_FILES
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
    for name in request.program:
        known = PROGRAM_OPTIONS[name]
        # The port is that of the pods too, and thus possible with every output.
        if consumer in known or (name == "port" and request.source == "kubernetes"):
            continue
        others = LAUNCHERS if option == "-o" else (*HOST_FILES, "tf-config")
        possible = " or ".join(each for each in known if each not in others)
        passed = f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{passed} requires {option} {possible}; add it, or leave out {passed}")
    if request.arguments.get("address") == "pod_ipv6" and consumer in PROGRAM_OPTIONS["slots"]:
        raise click.UsageError(
            f"{option} {consumer} cannot express IPv6 addresses; pass --address pod_ipv4, or hostname"
        )


def _selectors_by_job(selectors: Iterable[options.JobSelector]) -> dict[str, list[str]]:
    jobs: dict[str, list[str]] = {}
    for each in selectors:
        jobs.setdefault(each.job, []).append(each.selector)
    return jobs


def selector_options(selectors: Iterable[options.JobSelector]) -> str:
    """Return selectors or Services as options of the command line."""
    return " ".join(f"{each.option} {shlex.quote(each.text)}" for each in selectors)


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


async def find_task_name(
    resolver: ClusterResolver, request: ClusterRequest, state: ClusterState | None
) -> TaskName | None:
    """Return the task of `--task`, or with `--this-task` that of this process in `state`."""
    if not request.is_this_task:
        return request.task
    task = await resolver.this_task(state)
    return TaskName(task.job, task.index)


def new_resolver(request: ClusterRequest) -> Any:
    """Return the resolver for a request, whose source is not `here`."""
    arguments = {**request.arguments, "timeout": request.timeout}
    match request.source:
        case "kubernetes":
            return _new_pod_resolver(request, arguments)
        case "tpu":
            from aioresolve.tpu import TPUClusterResolver

            return TPUClusterResolver(**{**arguments, "tpu": arguments["tpu"] or None})
    from aioresolve.environment.slurm import SlurmClusterResolver

    return SlurmClusterResolver(auto_set_gpu=arguments["gpus_per_task"] is not None, **arguments)


def _new_pod_resolver(request: ClusterRequest, arguments: dict[str, Any]) -> ClusterResolver:
    from aioresolve.kubernetes import CONTEXT_NAMESPACE, KubernetesClusterResolver

    jobs: Any = _selectors_by_job(request.selections)
    port = request.program.get("port")
    if port is not None:
        arguments["tf_server_port"] = port
    if request.selections[0].option == "--service":
        suffix = "" if port is None else f":{port}"  # in place of the ports of the Services
        arguments["service"] = {
            job: [name if ":" in name else f"{name}{suffix}" for name in names] for job, names in jobs.items()
        }
        jobs = None
    if arguments["namespace"] == ():  # as with kubectl
        arguments["namespace"] = CONTEXT_NAMESPACE
    arguments["kubeconfig"] = arguments["kubeconfig"] or None
    arguments["order_by"] = arguments["order_by"] or "name"
    return KubernetesClusterResolver(jobs, **arguments)


def open_source(request: ClusterRequest) -> tuple[ClusterRequest, ClusterResolver]:
    """Return the resolver for a request, and the request with the time that is left.

    Raises:
        ConfigurationError: no source was found for `here`.
        ResolveError: the source that is used is invalid, or could not be requested.
    """
    if request.source != "here":
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


def with_time_left(request: ClusterRequest, ends: float) -> ClusterRequest:
    """Return the request with the rest of its total deadline, which is never zero."""
    return replace(request, timeout=max(ends - time.monotonic(), 0.001))
