"""TPUs as the slices of a cluster: their workers and tasks, and why others cannot be used. No I/O.

States and health: `google/cloud/tpu/v2/cloud_tpu.proto`. A state that is not listed here is treated as not
`READY` but temporary; a health value that is not listed here is treated as healthy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from aioresolve.errors import (
    ConfigurationError,
    Hint,
    PartialClusterError,
    TPUNotFoundError,
    TPUNotReadyError,
)
from aioresolve.spec import ClusterState, Endpoint, Missing, Observation, host_port, split_host_port

from .discovery import (
    COORDINATOR_VARIABLE,
    TPU_PORT,
    GivenWorkers,
    LocalTPU,
    Source,
    TPUEnvironment,
    slice_position,
    worker_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.errors import APIError
    from aioresolve.gcp.tpu_api import Node, QueuedResource, Symptom

WorkerAddress: TypeAlias = Literal["internal_ip", "external_ip"]

METRICS_PORTS = (8431,)
"""The ports of libtpu's metrics by default."""

FINAL_STATES = frozenset({"DELETING", "HIDDEN", "HIDING", "PREEMPTED", "STOPPED", "STOPPING", "TERMINATED"})
"""States of a node that do not end without user action."""

FINAL_REQUEST_STATES = frozenset({"DELETING", "FAILED", "SUSPENDED", "SUSPENDING"})
"""States of a queued resource that do not end without user action."""

UNHEALTHY_PREFIXES = ("TIMEOUT", "UNHEALTHY")
"""Prefixes of the health of a TPU that is not healthy. A TPU whose health is not reported is healthy."""

NOT_HEALTHY = "Pass {not_healthy=allow} to use TPUs that are READY but not healthy."

REMEDIES = {
    "DELETING": "create it again when it is deleted",
    "PREEMPTED": "delete it and create it again",
    "TERMINATED": "delete it and create it again",
    "STOPPED": "start it with `gcloud compute tpus tpu-vm start`",
    "UNHEALTHY_MAINTENANCE": "wait until the maintenance is over",
    "UNHEALTHY_TENSORFLOW": "check the logs of its runtime, and restart it if this persists",
    "FAILED": "delete the queued resource and create it again",
    "SUSPENDING": "the queued resource gets no TPUs again: delete it and create it again",
    "SUSPENDED": "the queued resource gets no TPUs again: delete it and create it again",
}
"""By state of a node, health of a node, or state of a queued resource.

Life cycle of queued resources: https://cloud.google.com/tpu/docs/queued-resources."""


@dataclass(frozen=True, slots=True)
class TPUSlice:
    """One slice: interconnected chips, and the workers they are attached to.

    >>> await TPUClusterResolver("grpc://10.130.0.2:8470").slices()
    (TPUSlice(...),)

    Attributes:
        endpoints: its workers, in worker order. If the slice has a name, theirs are `slice/worker-0` and so
            on; their `index` is the number of the worker in its slice.
        name: the id of the TPU node, or `slice-N` for a multislice without such ids; None if it is unknown.
        index: the index of this slice, from 0.
        num_slices: the number of slices. A pod on GKE, and a TPU VM, knows only the workers of its own slice.
        tasks: the task indices of its workers in the cluster.
        node: the node as the Cloud TPU API describes it; None if the API was not used.
        environment: what environment variables or the VM's `tpu-env` report about the slice.

    A worker is a process. Usually each host has one; a host with several is in several endpoints, and each of
    its processes owns a part of its chips.
    """

    endpoints: tuple[Endpoint, ...]
    name: str | None = None
    index: int = 0
    num_slices: int = 1
    tasks: range = range(0)
    node: Node | None = field(default=None, repr=False)
    environment: TPUEnvironment = field(default_factory=TPUEnvironment, repr=False)

    @property
    def accelerator_type(self) -> str | None:
        """The type of the slice, such as `v4-16`; None if the source does not report it."""
        reported = self.node.accelerator_type if self.node is not None else ""
        reported = reported or self.environment.accelerator_type or ""
        # The API accepts, and then returns, projects/P/locations/Z/acceleratorTypes/v4-16.
        return reported.rpartition("/")[2] or None

    @property
    def hosts(self) -> list[str]:
        """The host of each worker, in worker order."""
        return [split_host_port(endpoint.address)[0] for endpoint in self.endpoints]


def slice_workers(
    addresses: Iterable[str], name: str | None, uid: str = "", ready: bool | None = None
) -> tuple[Endpoint, ...]:
    """Return the workers of a slice with this name, in order."""
    return tuple(
        Endpoint(
            address,
            name=f"{name}/worker-{number}" if name else None,
            uid=f"{uid}/{number}" if uid else None,
            ready=ready,
            index=number,
        )
        for number, address in enumerate(addresses)
    )


def number_slices(slices: Sequence[TPUSlice]) -> tuple[TPUSlice, ...]:
    """Return the slices of one cluster, each with its index and its range of tasks."""
    numbered: list[TPUSlice] = []
    first = 0
    for index, tpu_slice in enumerate(slices):
        tasks = range(first, first + len(tpu_slice.endpoints))
        # A single slice keeps the index that GKE or the VM reports: the others are not in this cluster.
        if len(slices) > 1:
            tpu_slice = replace(tpu_slice, index=index, num_slices=len(slices))
        numbered.append(replace(tpu_slice, tasks=tasks))
        first = tasks.stop
    return tuple(numbered)


def cluster_of(
    slices: Sequence[TPUSlice], job: str, others: Mapping[str, str], observed_at: datetime
) -> ClusterState:
    """Return the cluster whose job `job` consists of the workers of these slices, in order.

    Without slices, the job is left out. `others` are additional jobs with one task each, name to `host:port`.
    It raises a PartialClusterError if the workers of other slices are not known.
    """
    if slices and slices[0].num_slices > len(slices):
        raise _partial_cluster(slices[0])
    workers = [endpoint for tpu_slice in slices for endpoint in tpu_slice.endpoints]
    jobs = {job: workers} if workers else {}
    jobs |= {name: [Endpoint(address)] for name, address in others.items()}
    return ClusterState.of(jobs, observed_at=observed_at)


def _partial_cluster(one: TPUSlice) -> PartialClusterError:
    """Return the error for one slice of several, with what JAX computes from it (`BaseTpuCluster`)."""
    environment, workers = one.environment, len(one.endpoints)
    coordinator = None
    if environment.coordinator is not None:
        coordinator = worker_host(environment.coordinator, COORDINATOR_VARIABLE)
    unset = {COORDINATOR_VARIABLE: coordinator is None, "TPU_WORKER_ID": environment.worker_id is None}
    unknown = "".join(f", and {name} is not set" for name, is_unset in unset.items() if is_unset)
    return PartialClusterError(
        f"this is slice {one.index} of {one.num_slices} (MEGASCALE_SLICE_ID, MEGASCALE_NUM_SLICES), and the"
        f" workers of the others are not known here{unknown}",
        hint=Hint(
            "Pass the names of all TPUs, or that of their queued resource, as {tpu}; in a pod, resolve the"
            " pods of all slices: `aioresolve kubernetes`. JAX does not need them: `aioresolve exec tpu"
            " --for jax`."
        ),
        coordinator=coordinator,
        num_processes=one.num_slices * workers,
        process_id=None if environment.worker_id is None else one.index * workers + environment.worker_id,
    )


def libtpu_ports(slices: Sequence[TPUSlice]) -> Sequence[int] | Mapping[str, Sequence[int]]:
    """Return the ports of libtpu's metrics as `probe_workers` takes them.

    If hosts have several processes, each process has a share of the ports of its host, or else one port, the
    n-th after the first.
    """
    reported = next(filter(None, (one.environment.runtime_metrics_ports for one in slices)), METRICS_PORTS)
    if all(len({*one.hosts}) == len(one.hosts) for one in slices):
        return reported
    ports = {}
    for one in slices:
        processes = Counter(one.hosts)
        seen: Counter[str] = Counter()
        for endpoint, host in zip(one.endpoints, one.hosts, strict=True):
            share, rest = divmod(len(reported), processes[host])
            own = reported[seen[host] * share :][:share]
            ports[endpoint.address] = own if share and not rest else (reported[0] + seen[host],)
            seen[host] += 1
    return ports


def node_slice(node: Node, address: WorkerAddress, *, is_ready: bool) -> TPUSlice:
    name = node.name.rpartition("/")[2]
    addresses: list[str] = []
    for number, endpoint in enumerate(node.network_endpoints):
        host = endpoint.ip_address
        if address == "external_ip":
            host = endpoint.access_config.external_ip if endpoint.access_config is not None else ""
        if not host:
            raise ConfigurationError(
                f"worker {number} of TPU {name} has no external address",
                argument="address",
                hint="Leave it out, or create the TPU with external addresses.",
            )
        addresses.append(host_port(host, endpoint.port or TPU_PORT))
    return TPUSlice(slice_workers(addresses, name, str(node.id), ready=is_ready), name, node=node)


def given_slice(given: GivenWorkers) -> TPUSlice:
    index, num_slices = slice_position(given.environment)
    name = given.environment.node_id or (f"slice-{index}" if num_slices > 1 else None)
    workers = slice_workers(given.addresses, name)
    return TPUSlice(workers, name, index, num_slices, environment=given.environment)


# TPUs that cannot be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Unready:
    """A TPU or queued resource that cannot be used, or a name that does not exist.

    Attributes:
        path: its full name.
        reason: why it cannot be used, and what to do.
        retryable: whether it may become ready without user action.
        state: its state, as the API reports it; empty for a name that does not exist.
        health: its health, as the API reports it; may be empty.
        symptoms: its symptoms, one line each.
        workers: the number of its workers; None if the API does not report it yet.
        is_running: whether it is READY and its workers have addresses: it is only not healthy, as during
            maintenance, and jobs may continue on it. Its workers remain members of the cluster.
        not_found: the API's error with status 404, if the name does not exist.
    """

    path: str
    reason: str
    retryable: bool = True
    state: str = ""
    health: str = ""
    symptoms: tuple[str, ...] = ()
    workers: int | None = None
    is_running: bool = False
    not_found: APIError | None = None

    @property
    def name(self) -> str:
        """Its id."""
        return self.path.rpartition("/")[2]

    def missing(self, job: str) -> Missing:
        """Return the workers that a watch or `wait` misses.

        A TPU that is being deleted is not final, and neither is a name that does not exist: a TPU may be
        created under that name.
        """
        is_deleted = self.state == "DELETING"
        return Missing(
            job,
            self.name,
            self.reason,
            is_final=not (self.retryable or is_deleted),
            tasks=None if is_deleted else self.workers,
        )


def unready_node(node: Node) -> Unready | None:
    """Return why a node cannot be used, or None if it can."""
    without = [number for number, endpoint in enumerate(node.network_endpoints) if not endpoint.ip_address]
    has_addresses = bool(node.network_endpoints) and not without
    is_unhealthy = node.state == "READY" and node.health.startswith(UNHEALTHY_PREFIXES)
    if node.state != "READY":
        cause = f"state {node.state or 'unknown'}"
    elif is_unhealthy:
        cause = f"state READY, health {node.health}"
    elif not has_addresses:
        subject = f"worker {', '.join(map(str, without))} has" if without else "it has"
        cause = f"state READY, but {subject} no network endpoint"
    else:
        return None
    # Texts of the server are truncated: the reason becomes part of an error message.
    symptoms = tuple(map(_symptom_line, node.symptoms))
    remedy = REMEDIES.get(node.state) or REMEDIES.get(node.health) or ""
    if node.queued_resource and node.state in ("PREEMPTED", "TERMINATED"):
        # The queued resource becomes SUSPENDED, and does not replace its nodes.
        remedy = f"delete its queued resource {node.queued_resource.rpartition('/')[2]} and create it again"
    reasons = [
        cause,
        repr(node.health_description[:300]) if node.health_description else "",
        f"symptoms: {', '.join(symptoms[-5:])}" if symptoms else "",
        remedy,
    ]
    return Unready(
        path=node.name,
        reason="; ".join(filter(None, reasons)),
        retryable=node.state not in FINAL_STATES,
        state=node.state,
        health=node.health,
        symptoms=symptoms,
        workers=len(node.network_endpoints) or None,
        is_running=is_unhealthy and has_addresses,
    )


def unready_queued_resource(resource: QueuedResource) -> Unready | None:
    """Return why a queued resource has no usable nodes, or None if it may have some."""
    state, message = resource.state, resource.state.failed_data.error.message
    if state.state == "ACTIVE":
        return None
    reasons = [
        f"queued resource in state {state.state or 'unknown'}",
        repr(message[:300]) if message else "",
        REMEDIES.get(state.state, ""),
    ]
    return Unready(
        path=resource.name,
        reason="; ".join(filter(None, reasons)),
        retryable=state.state not in FINAL_REQUEST_STATES,
        state=state.state,
    )


def unready_error(tpus: Sequence[Unready], origin: str, existing: str) -> TPUNotReadyError | TPUNotFoundError:
    """Return the error that lists all these TPUs; names that do not exist are reported first.

    `origin` is where the TPUs are named: `tpu` (the argument) or `$VARIABLE`. `existing` lists
    the TPUs that exist, as text; empty if they are not known.
    """
    absent = {tpu.path: tpu.not_found for tpu in tpus if tpu.not_found is not None}
    if not absent:
        retryable = all(tpu.retryable for tpu in tpus)
        outlook = "try again later" if retryable else "retrying alone will not help"
        listed = ". ".join(f"{tpu.name}: {tpu.reason}" for tpu in tpus)
        return TPUNotReadyError(
            f"{len(tpus)} TPU{'s are' if len(tpus) > 1 else ' is'} not ready; {outlook}. {listed}",
            tpus={tpu.name: tpu.reason for tpu in tpus},
            state=tpus[0].state,
            health=tpus[0].health,
            symptoms=tpus[0].symptoms,
            retryable=retryable,
            hint=NOT_HEALTHY if any(tpu.is_running for tpu in tpus) else None,
        )
    names = list(absent)
    cause = absent[names[0]]
    argument = "{tpu}" if origin == "tpu" else f"{origin} (or unset it)"
    hint = f"Correct {argument}, {{project}} or {{zone}}."
    if not existing:
        listing = "gcloud compute tpus tpu-vm list --project={project_id} --zone=-"
        hint = f"List the existing TPUs with `{listing}`. {hint}"
    error = TPUNotFoundError(
        f"there is no TPU {', '.join(names)}{from_variable(origin)}:"
        f" {cause.host or 'the service'} returned status 404" + (f"; {existing}" if existing else ""),
        names=names,
        hint=Hint(hint, values={"project_id": names[0].split("/")[1]}),
    )
    error.__cause__ = cause
    return error


NOT_FOUND = "does not exist (yet)"
"""The reason for a name that the API does not know."""


def from_variable(origin: str) -> str:
    """Return ` (from $VARIABLE)`, because its user may not know that it is set; nothing for an argument."""
    return f" (from {origin})" if origin.startswith("$") else ""


def _symptom_line(symptom: Symptom) -> str:
    parts = [
        symptom.symptom_type or "unnamed",
        f"on worker {symptom.worker_id}" if symptom.worker_id else "",
        f"at {symptom.create_time}" if symptom.create_time else "",
        f"({symptom.details[:200]})" if symptom.details else "",
    ]
    return " ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class FoundSlices:
    """The TPUs that a source names: the slices of the cluster, numbered, and the TPUs that cannot be used.

    The TPU of this host has no slices. TPUs that are running but not healthy are slices too.
    """

    slices: tuple[TPUSlice, ...]
    unready: tuple[Unready, ...] = ()

    def observation(
        self, source: Source, job: str, others: Mapping[str, str], observed_at: datetime
    ) -> Observation:
        """Return the state of the slices that are ready, and the workers that are missing.

        Without slices, the state has the job without tasks. For the arguments see `cluster_of`.
        """
        if isinstance(source, LocalTPU):
            reason = "the TPU of this host has no workers to wait for: name a TPU, or addresses of workers"
            local = Missing(job, "local", reason, is_final=True, tasks=0)
            return Observation(cluster_of((), job, {}, observed_at), (local,))
        missing = tuple(tpu.missing(job) for tpu in self.unready if not tpu.is_running)
        if not self.slices:
            return Observation(ClusterState.of({job: []}, observed_at=observed_at), missing)
        unhealthy = {tpu.path: tpu.reason for tpu in self.unready if tpu.is_running}
        unready = tuple(
            Missing(job, endpoint.name or endpoint.address, unhealthy[tpu_slice.node.name])
            for tpu_slice in self.slices
            if tpu_slice.node is not None and tpu_slice.node.name in unhealthy
            for endpoint in tpu_slice.endpoints
        )
        return Observation(cluster_of(self.slices, job, others, observed_at), missing, unready)
