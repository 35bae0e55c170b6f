"""What the parameters of a command request, and the resolver for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from .output.formats import WATCH_OUTPUTS, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.tpu import TPUClusterResolver


class JobSelector(NamedTuple):
    """A label selector of a job; `text` is the value of `-l` as it was typed."""

    job: str
    selector: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """The pods to resolve, watch or wait for."""

    selectors: tuple[JobSelector, ...]
    namespaces: tuple[str, ...]
    all_namespaces: bool
    context: str | None
    kubeconfigs: tuple[str, ...]
    server: str | None = None
    token_file: str | None = None
    impersonate: str | None = None
    impersonate_groups: tuple[str, ...] = ()
    port: int
    address: str
    order_by: Literal["name", "index"]
    not_running: Literal["raise", "skip"] = "raise"
    allow_empty: bool = False
    output: str
    has_headers: bool
    task: Task | None
    timeout: float
    max_concurrency: int
    quiet: bool

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The selectors of each job."""
        return selectors_by_job(self.selectors)

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        return selector_options(self.selectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class TPURequest:
    """The Cloud TPUs to resolve, list, watch or wait for."""

    names: tuple[str, ...]
    zone: str | None
    project: str | None
    api_version: Literal["v2", "v1"]
    not_healthy: Literal["raise", "skip", "allow"] = "raise"
    address: Literal["internal_ip", "external_ip"] = "internal_ip"
    job_name: str
    is_list: bool = False
    is_probed: bool = False
    allow_empty: bool = False
    output: str
    has_headers: bool
    task: Task | None
    timeout: float
    worker_timeout: float = 5.0
    max_concurrency: int = 256
    quiet: bool

    @property
    def scope(self) -> str:
        """The request as text, for messages."""
        return f"TPU {', '.join(self.names)}" if self.names else "the TPU of this environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
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
    if not request.selectors:
        raise click.UsageError("no pods are selected: pass -l SELECTOR at least once, such as -l app=trainer")
    if request.namespaces and request.all_namespaces:
        raise click.UsageError("-n and -A exclude each other; pass one of them")
    validate_task(request.task, request.output)
    if request.task is not None and request.task.job not in {*request.jobs, "evaluator"}:
        job = request.task.job
        raise click.UsageError(
            f"--task {job}:{request.task.index}: no -l selects the job {job!r}; add -l {job}=SELECTOR, or"
            f" pass a task of {' or '.join(request.jobs)}"
        )


def validate_task(task: Task | None, output: str) -> None:
    """Raise a UsageError if `--task` was passed for an output that has no task."""
    if task is not None and output != "tf-config":
        raise click.UsageError("--task requires -o tf-config; add it, or leave out --task")


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
    """Return selectors as options of the command line."""
    return " ".join(f"-l {shlex.quote(each.text)}" for each in selectors)


def new_pod_resolver(request: PodRequest) -> KubernetesClusterResolver:
    """Return the resolver for `request`. Like kubectl, it selects the namespace of the context by default."""
    from aioresolve.kubernetes import CONTEXT_NAMESPACE, KubernetesClusterResolver

    return KubernetesClusterResolver(
        request.jobs,
        request.port,
        namespace=None if request.all_namespaces else request.namespaces or CONTEXT_NAMESPACE,
        context=request.context,
        kubeconfig=request.kubeconfigs or None,
        server=request.server,
        token_file=request.token_file,
        impersonate=request.impersonate,
        impersonate_groups=request.impersonate_groups,
        address=request.address,
        order_by=request.order_by,
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
