"""Which source describes the cluster of this process: variables, the API server of its pod, or its VM.

`collect_evidence` examines each source, `choose` decides, and `detect` does both. What was set for this
process precedes what describes its machine. A source that is found but invalid is an error, because another
one could describe another cluster.

All processes of a workload must choose the same source. The TPU variables of one pod cannot decide that:
another pod of the workload, such as the leader of a LeaderWorkerSet, may have none. So in a pod, the workload
is requested first, and its pods are the cluster. The TPU variables are used if there is no workload or it may
not be read, provided that they can be the whole cluster; and if they list several processes for each host,
which the API server does not know.

A source that needs a request is requested only if no variable decides. In a pod, the metadata server of
Google Cloud is that of the node, and is not used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import anyio

from aioresolve._core.deadline import within_deadline
from aioresolve._core.service_account import SERVICE_HOST, is_in_pod
from aioresolve._core.threads import run_in_thread
from aioresolve._core.validation import validate_port, validate_seconds
from aioresolve.errors import (
    ConfigurationError,
    CredentialsError,
    EnvironmentVariableError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
)
from aioresolve.resolver.launchers import launched_process
from aioresolve.resolver.static import SimpleClusterResolver
from aioresolve.sources import SOURCES
from aioresolve.spec import ClusterSpec, split_host_port

from .base import addresses_by_rank, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.metadata_server import MetadataServer
    from aioresolve.kubernetes import Pod
    from aioresolve.resolver.base import ClusterResolver

    NewResolver: TypeAlias = Callable[..., ClusterResolver]

ResolverT_co = TypeVar("ResolverT_co", covariant=True)

TPU_VARIABLES, TPU_VM, KUBERNETES = "TPU variables", "TPU VM", "Kubernetes"
COMPUTE_ENGINE, LAUNCHER = "Compute Engine", "Launcher"

ABSENT_TIMEOUT = 1.0
"""Seconds that the metadata server has to respond, unless this machine is known to have one."""

PRODUCT_FILE = Path("/sys/class/dmi/id/product_name")
"""Contains the name of the machine's product, `Google Compute Engine` on a VM of Google Cloud."""

SELECTOR = "AIORESOLVE_SELECTOR"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found out about one source.

    Attributes:
        source: its name, one of those in the documentation of `aioresolve.detect`.
        found: whether it describes a cluster of this process; None if it was not requested.
        reason: why, as text. It contains no secret.
        new_resolver: makes the resolver, if the source was found.
        error: why the source cannot be used although it was found.
        is_partial: whether it is used only if no other source is found.
    """

    source: str
    found: bool | None
    reason: str
    new_resolver: NewResolver | None = field(default=None, repr=False)
    error: ResolveError | None = field(default=None, repr=False)
    is_partial: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class Detection(Generic[ResolverT_co]):
    """The source that describes the cluster of this process, and its resolver.

    >>> os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["10.0.0.1:2222"]}}'
    >>> detection = await aioresolve.detect()
    >>> await detection.resolver.cluster_spec()
    ClusterSpec({'worker': ['10.0.0.1:2222']})

    Attributes:
        source: its name, as in the evidence.
        resolver: its resolver.
        evidence: the evidence for and against each source, in the order of precedence.
    """

    source: str
    resolver: ResolverT_co
    evidence: tuple[Evidence, ...]


async def detect(*, port: int | None = None, timeout: float = 30.0) -> Detection[ClusterResolver]:
    """Return the resolver of the cluster that this process is part of, and why it is that one.

    >>> cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
    >>> os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    >>> detection = await aioresolve.detect()
    >>> detection.source, detection.evidence[0].reason
    ('TF_CONFIG', '$TF_CONFIG has 2 tasks of worker')
    >>> await detection.resolver.this_task()
    Task(job='worker', index=1, address='10.0.0.2:2222', rank=1, num_tasks=2)

    The sources, in the order of precedence:

    1. `TF_CONFIG`: `$TF_CONFIG` describes tasks.
    2. `Slurm`: a job step, a batch script or a shell of `salloc`.
    3. `SageMaker`: `$SM_HOSTS`.
    4. `TPU variables`: those of the pods of a TPU slice on GKE, `$TPU_NAME` or `$TPU_CONFIG`.
    5. `TPU VM`: the metadata server of this VM reports a slice.
    6. `Kubernetes`: in a pod, the pods of the same workload (Job, JobSet, LeaderWorkerSet, StatefulSet,
       Kubeflow job or Volcano Job), or those of `$AIORESOLVE_SELECTOR`.
    7. `Compute Engine`: the managed instance group that this VM belongs to.
    8. `Launcher`: `mpirun`, `mpiexec`, `torchrun` or another launcher started this process, and all of its
       processes on this host.

    If such a launcher runs inside a step of Slurm or a training job of SageMaker, the cluster is that of its
    processes. Another source that counts one task where the launcher started several processes is
    contradicted: `this_task()` is then an error.

    The first that is found is used. In a pod, `Kubernetes` precedes the TPU variables, unless they list
    several processes for each host. Sources that need a request are requested only if no variable decides.
    Outside Google Cloud, the metadata server costs at most a second.

    Args:
        port: the port of each task, for the sources that do not have it: Slurm and a launcher (of the first
            task of each node), SageMaker, Kubernetes and Compute Engine; by default, that of their resolvers.
        timeout: the total deadline of the call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) no source was found; it lists all of them. Or an argument is
            invalid.
        EnvironmentVariableError: (a RuntimeError) a variable that decides is malformed.
        ResolveError: the source that decides could not be requested, such as the API server of the pod.
    """
    if port is not None:
        validate_port("port", port)
    collect = partial(collect_evidence, port=port)
    evidence = await within_deadline(validate_seconds("timeout", timeout), "detect()", collect)
    chosen, new_resolver = choose(evidence)
    return Detection(chosen.source, new_resolver(), evidence)


async def collect_evidence(progress: Progress, *, port: int | None = None) -> tuple[Evidence, ...]:
    """Return what was found out about each source, in the order of precedence."""
    is_pod = is_in_pod()
    variables = [source.load_examine()(port) for source in SOURCES if source.has_variables]
    tpu, tpu_slice = await _examine_tpu_variables(progress, is_pod)
    decided = next((each for each in (*variables, tpu) if each.found and not each.is_partial), None)
    # In a pod, the workload decides whether the TPU variables are used, unless they are invalid.
    if decided is not None and not (is_pod and decided is tpu and decided.error is None):
        reason = f"not requested, because of {decided.source}"
        requested = [Evidence(source, None, reason) for source in (TPU_VM, KUBERNETES, COMPUTE_ENGINE)]
    elif is_pod:
        pod, kubernetes = await examine_pod(progress, port)
        if tpu.new_resolver is not None:
            tpu = _tpu_variables_of_pod(tpu, tpu_slice, pod, kubernetes)
        reason = "this is a pod: the metadata server would be that of its node"
        requested = [absent(TPU_VM, reason), kubernetes, absent(COMPUTE_ENGINE, reason)]
    else:
        tpu_vm, compute_engine = await _examine_vm(progress, port, tpu)
        requested = [tpu_vm, absent(KUBERNETES, f"${SERVICE_HOST} is not set"), compute_engine]
    return (*variables, tpu, *requested, _examine_launcher(port))


def decisive(evidence: Sequence[Evidence]) -> Evidence | None:
    """Return the evidence about the source that is used; None if no source was found."""
    found = [each for each in evidence if each.found]
    return next((each for each in found if not each.is_partial), found[0] if found else None)


def choose(evidence: Sequence[Evidence]) -> tuple[Evidence, NewResolver]:
    """Return the evidence of the source that is used, and a function that makes its resolver.

    Raises:
        ConfigurationError: no source was found; it lists all of them.
        ResolveError: the source that is used is invalid, or could not be requested.
    """
    chosen = decisive(evidence)
    if chosen is None:
        listed = "; ".join(f"{each.source}: {each.reason}" for each in evidence)
        raise ConfigurationError(
            f"nothing describes the cluster of this process: {listed}",
            hint="Name the source of your cluster, such as `KubernetesClusterResolver`, or `aioresolve"
            " kubernetes` at a terminal.",
        )
    if chosen.error is not None:
        raise chosen.error
    assert chosen.new_resolver is not None
    return chosen, chosen.new_resolver


class _TPUSlice(NamedTuple):
    """The number of hosts of a slice, the number of slices, and whether hosts have several processes."""

    hosts: int
    slices: int
    has_shared_hosts: bool


def absent(source: str, reason: str) -> Evidence:
    """Return the evidence that a source does not describe the cluster of this process."""
    return Evidence(source, False, reason)


def invalid(source: str, error: ResolveError) -> Evidence:
    """Return the evidence that a source describes the cluster, but cannot be used."""
    return Evidence(source, True, error.summary, error=error)


def given(name: str, port: int | None) -> dict[str, Any]:
    """Return the argument of that name; without a port no argument, so that the resolver has its default."""
    return {} if port is None else {name: port}


# Variables


def _examine_launcher(port: int | None) -> Evidence:
    """Return what the launcher of this process says; it is partial, as any other source knows more hosts."""
    try:
        process = launched_process(os.environ)
        if process is not None and not process.all_on_this_host:
            raise process.contradicts("no other source describes the cluster")
    except EnvironmentVariableError as error:
        return replace(invalid(LAUNCHER, error), is_partial=True)
    if process is None:
        return absent(
            LAUNCHER, "$OMPI_COMM_WORLD_RANK, $TORCHELASTIC_RUN_ID and similar variables are not set"
        )
    addresses = addresses_by_rank(["localhost"] * (process.size or 1), port or 8888)
    new_resolver = partial(
        SimpleClusterResolver, ClusterSpec({"worker": addresses}), "", "worker", process.rank
    )
    return Evidence(LAUNCHER, True, f"this is {process}, all on this host", new_resolver, is_partial=True)


async def _examine_tpu_variables(progress: Progress, is_pod: bool) -> tuple[Evidence, _TPUSlice | None]:
    """Return whether variables describe TPU workers, and their slice if the variables list its hosts."""
    from aioresolve.tpu import discovery

    try:
        source = discovery.tpu_source((), os.environ)
        if isinstance(source, discovery.WorkersFile):
            source = await discovery.read_workers(source, progress)
    except ConfigurationError as error:
        return invalid(TPU_VARIABLES, error), None
    if isinstance(source, discovery.NamedTPUs):
        # KubeRay sets $TPU_NAME to another name, and operators may do the same.
        doubt = ", which in a pod need not be the name of a Cloud TPU" if is_pod else ""
        reason = f"{source.origin} names {', '.join(source.names)}{doubt}"
        return Evidence(TPU_VARIABLES, True, reason, _new_tpu_resolver, is_partial=is_pod), None
    if not isinstance(source, discovery.GivenWorkers):
        reason = "$TPU_WORKER_HOSTNAMES, $TPU_NAME and similar variables are not set"
        if isinstance(source, discovery.LocalTPU):
            reason = f"{source.origin} names the TPU of this host only"
        return absent(TPU_VARIABLES, reason), None
    processes = [split_host_port(address)[0] for address in source.addresses]
    hosts = list(dict.fromkeys(processes))
    index, slices = discovery.slice_position(source.environment)
    position = f", of slice {index} of {slices} only" if slices > 1 else ""
    limit = _limit(hosts, slices)
    reason = f"{source.origin} has {counted(len(processes), 'worker')}{position}{limit}"
    evidence = Evidence(TPU_VARIABLES, True, reason, _new_tpu_resolver, is_partial=bool(limit))
    return evidence, _TPUSlice(len(hosts), slices, len(processes) > len(hosts))


def _limit(hosts: Sequence[str], slices: int) -> str:
    """Return why these hosts may not be those of the whole cluster of this process, as text; else "".

    The pods of a slice may be a part of their workload: of a group of a LeaderWorkerSet whose leader has no
    TPU or which has subgroups.
    """
    from aioresolve.tpu.discovery import LOCAL_HOSTS

    number = len(hosts)
    if slices == 1 and LOCAL_HOSTS.issuperset(hosts):
        return ", this host only"
    if os.environ.get("TPU_WORKER_ID", "").strip().startswith("-"):
        return f", without this process: $TPU_WORKER_ID={os.environ['TPU_WORKER_ID']}"
    size = os.environ.get("LWS_GROUP_SIZE", "")
    # A group is one slice or all of them.
    if size not in ("", str(number), str(number * slices)):
        return f", on {counted(number, 'host')}, but $LWS_GROUP_SIZE={size}"
    return ""


def _new_tpu_resolver() -> ClusterResolver:
    from aioresolve.tpu import TPUClusterResolver

    return TPUClusterResolver()


# Kubernetes


async def examine_pod(progress: Progress, port: int | None) -> tuple[Pod | None, Evidence]:
    """Return the pod of this process, and whether it belongs to a workload; requests the pod."""
    from aioresolve.kubernetes.own_pod import fetch_own_pod, workload_of
    from aioresolve.kubernetes.tasks.controller_kinds import index_label

    try:
        pod = await fetch_own_pod(progress)
    except CredentialsError as error:
        return None, absent(KUBERNETES, f"this is a pod, but {error.summary}")
    except ResolveError as error:
        return None, invalid(KUBERNETES, error)
    workload, selector = workload_of(pod), os.environ.get(SELECTOR)
    if selector:
        reason = f"pod {pod.full_name}, and ${SELECTOR} is {selector!r}"
    elif workload is not None:
        reason = f"pod {pod.full_name} belongs to {workload}"
        selector = workload.selector
    else:
        return pod, absent(
            KUBERNETES,
            f"pod {pod.full_name} does not belong to a workload such as a Job, JobSet or LeaderWorkerSet, and"
            f" ${SELECTOR} is not set",
        )
    order_by = "name" if index_label(pod).in_role is None else "index"
    arguments = {"order_by": order_by, **given("tf_server_port", port)}
    new_resolver = partial(_new_pod_resolver, selector, **arguments)
    return pod, Evidence(KUBERNETES, True, reason, new_resolver)


def _tpu_variables_of_pod(
    tpu: Evidence, tpu_slice: _TPUSlice | None, pod: Pod | None, kubernetes: Evidence
) -> Evidence:
    """Return the evidence about the TPU variables of a pod, so that all pods of its workload choose alike."""
    if isinstance(kubernetes.error, ForbiddenError):
        return tpu
    if kubernetes.error is not None:
        return replace(tpu, is_partial=True)
    if kubernetes.new_resolver is None:
        is_alone = pod is not None and not any(
            each.controller for each in pod.metadata.owner_references or ()
        )
        return tpu if is_alone or not tpu.is_partial else _refused(tpu, f"{tpu.reason}; {kubernetes.reason}")
    if pod is None or tpu_slice is None:
        return replace(tpu, is_partial=True)
    is_whole, has_shared_hosts = _covers(tpu_slice, pod), tpu_slice.has_shared_hosts
    if tpu_slice.slices > 1 and (has_shared_hosts or not (is_whole or os.environ.get(SELECTOR))):
        return replace(tpu, is_partial=False)  # the resolver refuses one slice of several
    if not has_shared_hosts:
        return replace(tpu, is_partial=True)
    if is_whole and not tpu.is_partial:
        return tpu
    return _refused(tpu, f"{kubernetes.reason}, whose pods run several processes each, but {tpu.reason}")


def _covers(tpu_slice: _TPUSlice, pod: Pod) -> bool:
    """Return whether the hosts of all slices are the pods of the workload, as far as the pod says."""
    from aioresolve.kubernetes.tasks.controller_kinds import JOBSET_NAME, JOBSET_REPLICAS, LWS_NAME, LWS_SIZE

    labels, slices = pod.metadata.labels, str(tpu_slice.slices)
    total = str(tpu_slice.hosts * tpu_slice.slices)
    if LWS_NAME in labels:
        return pod.metadata.annotations.get(LWS_SIZE, total) == total
    if JOBSET_NAME in labels:
        return labels.get(JOBSET_REPLICAS, slices) == slices
    return tpu_slice.slices == 1


def _refused(tpu: Evidence, reason: str) -> Evidence:
    error = ConfigurationError(
        f"the TPU variables may describe only a part of the cluster of this process: {reason}",
        hint="Let the service account of the pod list pods (docs/permissions.md), or name the source:"
        " `TPUClusterResolver`, or `aioresolve exec tpu` at a terminal.",
    )
    return replace(tpu, error=error, is_partial=False)


def _new_pod_resolver(selector: str, **arguments: Any) -> ClusterResolver:
    from aioresolve.kubernetes import CONTEXT_NAMESPACE, ExecutableLocation, KubernetesClusterResolver

    location = ExecutableLocation.WITHIN_CLUSTER
    return KubernetesClusterResolver(
        {"worker": selector}, executable_location=location, namespace=CONTEXT_NAMESPACE, **arguments
    )


# Google Cloud


async def _examine_vm(
    progress: Progress, port: int | None, tpu_variables: Evidence
) -> tuple[Evidence, Evidence]:
    """Return whether this is a TPU VM, and whether it belongs to a managed instance group."""
    from aioresolve.gcp.metadata_server import HOST_VARIABLES, MetadataServer

    from .gce import CREATED_BY

    is_known = any(os.environ.get(name) for name in HOST_VARIABLES)
    is_known = is_known or await run_in_thread("read the product name of this machine", _is_google_vm)
    reason = f"no metadata server responded within {ABSENT_TIMEOUT:g} s: this machine is not on Google Cloud"
    try:
        with anyio.move_on_after(None if is_known else ABSENT_TIMEOUT):
            async with MetadataServer() as metadata:
                group = _managed_vm(await metadata.attribute(CREATED_BY, progress), port)
                return await _tpu_vm(metadata, progress, tpu_variables), group
    except ResolveError as error:
        if is_known and error.retryable:
            raise
        reason = error.summary
    return absent(TPU_VM, reason), absent(COMPUTE_ENGINE, reason)


def _is_google_vm() -> bool:
    try:
        return PRODUCT_FILE.read_text().startswith("Google")
    except (OSError, UnicodeError):
        return False


async def _tpu_vm(metadata: MetadataServer, progress: Progress, tpu_variables: Evidence) -> Evidence:
    from aioresolve.tpu import vm

    try:
        environment = await vm.fetch_tpu_env(metadata, progress)
        hosts = await vm.fetch_worker_hosts(metadata, progress)
    except ProtocolError as error:
        return invalid(TPU_VM, error)
    if environment is None and hosts is None:
        return absent(TPU_VM, "the metadata server reports that this VM is not a TPU VM")
    name = environment.node_id if environment is not None else None
    slices = (environment.num_slices if environment is not None else None) or 1
    number = 1 if hosts is None else len(hosts)
    reason = f"the metadata server reports TPU {name or 'without a name'} with {counted(number, 'worker')}"
    if slices > 1:
        reason += f", one slice of {slices} only"  # the resolver refuses it
    if tpu_variables.is_partial and number > 1:
        # The resolver would read the variables.
        summary = f"{tpu_variables.reason}, but {reason}"
        return invalid(TPU_VM, ConfigurationError(summary, hint="Unset the variable."))
    return Evidence(TPU_VM, True, reason, _new_tpu_resolver)


def _managed_vm(created_by: str | None, port: int | None) -> Evidence:
    from aioresolve.gcp.resource_names import instance_group_name

    from .gce import GCEClusterResolver

    if created_by is None:
        return absent(COMPUTE_ENGINE, "this VM does not belong to a managed instance group")
    try:
        group = instance_group_name(created_by)
    except ConfigurationError:
        return absent(COMPUTE_ENGINE, "this VM was not created by a managed instance group")
    new_resolver = partial(GCEClusterResolver, instance_group=created_by, **given("port", port))
    return Evidence(COMPUTE_ENGINE, True, f"this VM belongs to the instance group {group}", new_resolver)
