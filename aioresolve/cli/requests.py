"""What the parameters of a command request, and the resolver for it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec

from .output.formats import HOST_FILES, PROGRAM_OUTPUTS, WATCH_OUTPUTS, TaskName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState
    from aioresolve.tpu import TPUClusterResolver

DEFAULT_PORT = 8470
"""The port of each pod, unless `--port` is passed."""

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


class JobSelector(NamedTuple):
    """A label selector or Service of a job; `text` is the value of the `option` as it was typed."""

    job: str
    selector: str
    text: str
    option: str = "-l"


class ClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests for clusters have in common: the output, and what only some outputs have.

    `port` to `slots` are options of the functions of `aioresolve.launch`, None if they were not passed.
    """

    output: str = "table"
    has_headers: bool = True
    task: TaskName | None = None
    is_this_task: bool = False
    port: int | None = None
    processes_per_task: str | None = None
    rpc_layer: str | None = None
    slices: int | None = None
    slots: int | None = None
    timeout: float
    quiet: bool

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        raise NotImplementedError

    def program_options(self, consumer: str) -> dict[str, Any]:
        """Return the options that were passed and that this kind of program has."""
        values = {name: getattr(self, name) for name, known in PROGRAM_OPTIONS.items() if consumer in known}
        return {name: value for name, value in values.items() if value is not None}


class PodRequest(ClusterRequest, frozen=True, kw_only=True):
    """The pods, or endpoints of Services, to resolve, watch or wait for."""

    selectors: tuple[JobSelector, ...]
    services: tuple[JobSelector, ...] = ()
    namespaces: tuple[str, ...]
    all_namespaces: bool
    context: str | None
    kubeconfigs: tuple[str, ...]
    server: str | None = None
    token_file: str | None = None
    impersonate: str | None = None
    impersonate_groups: tuple[str, ...] = ()
    address: str
    order_by: tuple[str, ...]
    not_running: Literal["raise", "skip"] = "raise"
    max_concurrency: int

    @property
    def selections(self) -> tuple[JobSelector, ...]:
        """The selectors, or else the Services."""
        return self.selectors or self.services

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The selectors or Services of each job."""
        return selectors_by_job(self.selections)

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        return selector_options(self.selections)


class TPURequest(ClusterRequest, frozen=True, kw_only=True):
    """The Cloud TPUs to resolve, watch or wait for."""

    names: tuple[str, ...]
    zone: str | None
    project: str | None
    api_version: Literal["v2", "v1"]
    not_healthy: Literal["raise", "skip", "allow"] = "raise"
    address: Literal["internal_ip", "external_ip"] = "internal_ip"
    job_name: str

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        return f"TPU {', '.join(self.names)}" if self.names else "the TPU of this environment"


class HereRequest(ClusterRequest, frozen=True, kw_only=True):
    """The cluster that this process is part of."""

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        return "the cluster of this process"


class PollRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet to poll or watch. A value of None is taken from the file of the fleet."""

    file: str
    is_once: bool
    is_watched: bool
    interval: float | None
    timeout: float | None
    max_concurrency: int | None
    shard: int | tuple[int, int] | None
    output: str
    has_headers: bool
    quiet: bool


def validate_pod_request(request: PodRequest) -> None:
    """Raise a UsageError if options are missing or contradict each other."""
    validate_selection(request)
    validate_output(request, has_port=True)


def validate_selection(request: PodRequest) -> None:
    """Raise a UsageError if no pods are selected, or the task is not one of the selected jobs."""
    if not request.selections:
        raise click.UsageError(
            "no pods are selected: pass -l SELECTOR at least once, such as -l app=trainer, or --service NAME"
        )
    if request.selectors and request.services:
        raise click.UsageError("-l and --service exclude each other; pass one of them")
    if request.namespaces and request.all_namespaces:
        raise click.UsageError("-n and -A exclude each other; pass one of them")
    if request.task is not None and request.task.job not in {*request.jobs, "evaluator"}:
        job, option = request.task.job, request.selections[0].option
        value = "NAME" if request.services else "SELECTOR"
        raise click.UsageError(
            f"--task {job}:{request.task.index}: no {option} selects the job {job!r}; add {option}"
            f" {job}={value}, or pass a task of {' or '.join(request.jobs)}"
        )


def validate_output(request: ClusterRequest, *, has_port: bool = False) -> None:
    """Raise a UsageError if the output needs a task that is missing, or does not have an option.

    With `has_port`, `--port` is an option of the source as well, and thus possible with every output.
    """
    output = request.output
    needs_task = output in PROGRAM_OUTPUTS and output not in HOST_FILES
    if request.task is not None and request.is_this_task:
        raise click.UsageError("--task and --this-task exclude each other; pass one of them")
    if needs_task and request.task is None and not request.is_this_task:
        raise click.UsageError(
            f"-o {output} requires a task; pass --this-task, or --task JOB:INDEX, such as --task worker:0"
        )
    if (request.task is not None or request.is_this_task) and not (needs_task or output == "tf-config"):
        option = "--this-task" if request.is_this_task else "--task"
        raise click.UsageError(
            f"{option} requires -o tf-config, or another output that has a task, such as env; add it, or"
            f" leave out {option}"
        )
    validate_program_options(request, output, "-o", has_port=has_port)


def validate_program_options(
    request: ClusterRequest, consumer: str, option: str, *, has_port: bool = False
) -> None:
    """Raise a UsageError if `consumer`, the value of `option`, cannot have an option that was passed."""
    for name, known in PROGRAM_OPTIONS.items():
        if getattr(request, name) is None or consumer in known or (has_port and name == "port"):
            continue
        passed = f"--{name.replace('_', '-')}"
        possible = [each for each in known if option == "--for" or each not in LAUNCHERS]
        if option == "--for":
            possible = [each for each in possible if each not in (*HOST_FILES, "tf-config")]
        raise click.UsageError(
            f"{passed} requires {option} {' or '.join(possible)}; add it, or leave out {passed}"
        )
    if getattr(request, "address", None) == "pod_ipv6" and consumer in PROGRAM_OPTIONS["slots"]:
        raise click.UsageError(
            f"{option} {consumer} cannot express IPv6 addresses; pass --address pod_ipv4, or hostname"
        )


def validate_watch_output(output: str) -> None:
    """Raise a UsageError if the output cannot show changes."""
    if output not in WATCH_OUTPUTS:
        raise click.UsageError(f"-o {output} cannot show changes; pass -o {' or -o '.join(WATCH_OUTPUTS)}")


def selectors_by_job(selectors: Iterable[JobSelector]) -> dict[str, list[str]]:
    """Return the selectors of each job; jobs and selectors keep their order."""
    jobs: dict[str, list[str]] = {}
    for each in selectors:
        jobs.setdefault(each.job, []).append(each.selector)
    return jobs


def selector_options(selectors: Iterable[JobSelector]) -> str:
    """Return selectors or Services as options of the command line."""
    return " ".join(f"{each.option} {shlex.quote(each.text)}" for each in selectors)


async def find_task_name(
    resolver: ClusterResolver, request: ClusterRequest, state: ClusterState | None
) -> TaskName | None:
    """Return the task of `--task`, or with `--this-task` that of this process in `state`."""
    if not request.is_this_task:
        return request.task
    task = await resolver.this_task(state)
    return TaskName(task.job, task.index)


def new_pod_resolver(request: PodRequest) -> KubernetesClusterResolver:
    """Return the resolver for `request`. Like kubectl, it selects the namespace of the context by default."""
    from aioresolve.kubernetes import CONTEXT_NAMESPACE, KubernetesClusterResolver

    services: dict[str, list[str]] | None = None
    if request.services:
        port = "" if request.port is None else f":{request.port}"  # in place of the ports of the Services
        services = {
            job: [name if ":" in name else f"{name}{port}" for name in names]
            for job, names in request.jobs.items()
        }
    return KubernetesClusterResolver(
        None if request.services else request.jobs,
        DEFAULT_PORT if request.port is None else request.port,
        service=services,
        namespace=None if request.all_namespaces else request.namespaces or CONTEXT_NAMESPACE,
        context=request.context,
        kubeconfig=request.kubeconfigs or None,
        server=request.server,
        token_file=request.token_file,
        impersonate=request.impersonate,
        impersonate_groups=request.impersonate_groups,
        address=request.address,
        order_by=request.order_by or "name",
        not_running=request.not_running,
        timeout=request.timeout,
        max_concurrency=request.max_concurrency,
    )


def new_tpu_resolver(request: TPURequest) -> TPUClusterResolver:
    """Return the resolver for `request`."""
    from aioresolve.tpu import TPUClusterResolver

    return TPUClusterResolver(
        request.names or None,
        request.zone,
        request.project,
        request.job_name,
        api_version=request.api_version,
        not_healthy=request.not_healthy,
        address=request.address,
        timeout=request.timeout,
    )
