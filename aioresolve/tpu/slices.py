"""Slices: finds the TPUs that a source names, and turns those that are ready into the tasks of a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from aioresolve._core.concurrency import gather
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    Hint,
    PartialClusterError,
    ProtocolError,
    ResolveError,
)
from aioresolve.gcp.api_request import ETagCache
from aioresolve.gcp.resource_names import is_full_name, node_name, queued_resource_name
from aioresolve.gcp.tpu_env import TPUEnvironment
from aioresolve.spec import ClusterState, Endpoint, Missing, Observation, host_port, split_host_port

from .discovery import (
    COORDINATOR_VARIABLE,
    TPU_PORT,
    GivenWorkers,
    LocalTPU,
    MetadataSource,
    NamedTPUs,
    WorkersFile,
    read_workers,
    slice_position,
    validate_position,
    worker_host,
)
from .metadata_source import fetch_worker_hosts
from .readiness import (
    NodeNotFound,
    Unready,
    from_variable,
    missing_workers,
    not_found_error,
    not_ready_error,
    unready_node,
    unready_queued_resource,
    with_variable_hint,
)
from .topology import TPUTopology, parse_bounds, slice_topology

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName
    from aioresolve.gcp.tpu_api import NetworkEndpoint, Node

    from .connections import NodeAPI, TPUClients
    from .discovery import Source

MAX_CONCURRENT_REQUESTS = 16

DEFAULT_METRICS_PORTS = (8431,)
"""The ports of libtpu's metrics by default."""

NotHealthy: TypeAlias = Literal["raise", "skip", "allow"]
"""What to do with TPUs that are READY but not healthy."""

WorkerAddress: TypeAlias = Literal["internal_ip", "external_ip"]

FoundNode: TypeAlias = "Node | Unready | NodeNotFound"
"""A node in any state, a queued resource without usable nodes, or a name that does not exist."""

ABSENT = (Unready, NodeNotFound)


@dataclass(frozen=True, slots=True)
class TPUSlice:
    """One slice: interconnected chips, and the workers they are attached to.

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

    @property
    def topology(self) -> TPUTopology | None:
        """The layout of the slice; None if the source reports too little.

        Raises:
            ProtocolError: the source's statements contradict each other.
        """
        config = self.node.accelerator_config if self.node is not None else None
        return slice_topology(
            self.accelerator_type,
            kind=config.type if config is not None else None,
            chip_bounds=parse_bounds(config.topology if config is not None else self.environment.topology),
            chips_per_host_bounds=self.environment.chips_per_host_bounds,
            host_bounds=self.environment.host_bounds,
            hosts=len({*self.hosts}) or None,
            processes=len(self.endpoints) or None,
        )


@dataclass(frozen=True, slots=True)
class FoundSlices:
    """The TPUs that a source names: the slices of the cluster, numbered, and the TPUs that are absent.

    The TPU of this host has no slices. `absent` are the TPUs and queued resources that are not ready, and the
    names that do not exist. TPUs that are running but not healthy are in `unhealthy` if they are among the
    slices, in `skipped` if they are left out.
    """

    slices: tuple[TPUSlice, ...]
    absent: tuple[Unready | NodeNotFound, ...] = ()
    unhealthy: tuple[Unready, ...] = ()
    skipped: tuple[Unready, ...] = ()


@dataclass
class SliceFinder:
    """Finds the TPUs that a source names.

    Attributes:
        project: the project of ids; if None, that of the source or of this VM.
        zone: the zone of ids; if None, that of the source or of this VM.
        version: the version of the API; v1 has no queued resources.
        not_healthy: which TPUs that are running but not healthy are used; see `TPUClusterResolver`.
        address: which address of a worker is used.
        cache: responses of the API that it need not send again if they have not changed.
    """

    project: str | None
    zone: str | None
    version: str
    not_healthy: NotHealthy = "raise"
    address: WorkerAddress = "internal_ip"
    cache: ETagCache | None = None
    _location: tuple[str, str] | None = field(default=None, init=False)

    def for_watch(self) -> SliceFinder:
        """Return a finder for one watch: it requests project and zone of this VM once and keeps responses."""
        return replace(self, cache=ETagCache())

    async def find(self, source: Source, connections: TPUClients, progress: Progress) -> FoundSlices:
        """Return the slices that are ready, and the TPUs that are not.

        Raises:
            TPUNotFoundError: no TPU was named, and this VM does not belong to one.
        """
        if self.address != "internal_ip" and not isinstance(source, NamedTPUs):
            raise ConfigurationError(
                "external addresses are only known of TPUs that are named",
                argument="address",
                hint="Pass the name of the TPU as {tpu}, or leave out {address}.",
            )
        match source:
            case LocalTPU():
                return FoundSlices(())
            case GivenWorkers():
                return FoundSlices(_number_slices([_given_slice(source)]))
            case WorkersFile():
                workers = await read_workers(source, progress)
                return FoundSlices(_number_slices([_given_slice(workers)]))
            case MetadataSource():
                hosts, environment = await fetch_worker_hosts(source, await connections.metadata(), progress)
                return FoundSlices(_number_slices([_metadata_slice(hosts, environment)]))
            case NamedTPUs():
                nodes = await self._find_named(source, connections, progress)
                found = _separate(nodes, self.not_healthy, self.address)
                if len(nodes) > 1 or source.environment.num_slices is None:
                    return found
                # A variable names the only slice that it knows.
                index, number = slice_position(source.environment)
                own = [
                    replace(one, index=index, num_slices=number, environment=source.environment)
                    for one in found.slices
                ]
                return replace(found, slices=tuple(own))

    async def find_ready(
        self, source: Source, connections: TPUClients, progress: Progress
    ) -> tuple[TPUSlice, ...]:
        """Return the slices; empty for the TPU of this host.

        All are ready. They are healthy too, unless `not_healthy` allows others.

        Raises:
            TPUNotReadyError: some TPUs are not ready; it lists them all.
            TPUNotFoundError: a name does not exist, or no TPU was named.
        """
        found = await self.find(source, connections, progress)
        if isinstance(source, NamedTPUs):
            skipped = () if found.slices else found.skipped
            self._raise_if_absent(source, (*found.absent, *found.unhealthy, *skipped))
        return found.slices

    async def find_nodes(self, source: NamedTPUs, connections: TPUClients, progress: Progress) -> list[Node]:
        """Return the nodes that the source names, in any state.

        Raises:
            TPUNotFoundError: a name does not exist.
            TPUNotReadyError: a queued resource has no nodes yet.
        """
        found = await self._find_named(source, connections, progress)
        self._raise_if_absent(source, [tpu for tpu in found if isinstance(tpu, ABSENT)])
        return [tpu for tpu in found if not isinstance(tpu, ABSENT)]

    async def _find_named(
        self, source: NamedTPUs, connections: TPUClients, progress: Progress
    ) -> list[FoundNode]:
        """Return what each name stands for, in order; the nodes of a queued resource in its own order.

        What several names stand for, such as a node and the queued resource it belongs to, is returned once.
        """
        project, zone = await self.find_location(source, connections, progress)
        try:
            api = await connections.api()
            if self.cache is not None:
                api = api.with_cache(self.cache)
            calls = [partial(self._find_name, api, name, project, zone, progress) for name in source.names]
            found = await gather(calls, limit=MAX_CONCURRENT_REQUESTS)
        except ResolveError as error:
            if not error.retryable:
                error.hint = with_variable_hint(error.hint, source.origin)
            raise
        distinct: dict[Hashable, FoundNode] = {}
        for tpu in chain.from_iterable(found):
            distinct.setdefault(_identity(tpu), tpu)
        return list(distinct.values())

    async def _find_name(
        self, api: NodeAPI, text: str, project: str | None, zone: str | None, progress: Progress
    ) -> list[FoundNode]:
        if is_full_name(text) and "/queuedResources/" in text:
            return await _find_queued(api, queued_resource_name(text, project, zone), progress)
        node = await _find_node(api, node_name(text, project, zone), progress)
        if not isinstance(node, NodeNotFound) or is_full_name(text) or self.version != "v2":
            return [node]
        # A queued resource has a name of its own, which may be the only one that its user knows.
        name = queued_resource_name(text, project, zone)
        try:
            queued = await _find_queued(api, name, progress)
        except (ForbiddenError, ConfigurationError):
            # A user without permission for queued resources, or whose client has none, meant a node.
            return [node]
        is_neither = any(isinstance(tpu, NodeNotFound) and tpu.path == name.path for tpu in queued)
        return [node] if is_neither else queued

    async def find_location(
        self, source: NamedTPUs, connections: TPUClients, progress: Progress
    ) -> tuple[str | None, str | None]:
        """Return project and zone: those given, else those of this VM; None if full names need none."""
        if self._location is not None:
            return self._location
        project, zone = self.project or source.project, self.zone or source.zone
        if all(map(is_full_name, source.names)):
            return self.project, self.zone  # not needed, but must not contradict the full names
        if project is not None and zone is not None:
            return project, zone
        metadata = await connections.metadata()
        calls = [partial(metadata.project_id, progress)] if project is None else []
        calls += [partial(metadata.zone, progress)] if zone is None else []
        try:
            found = await gather(calls, limit=len(calls))
        except ResolveError as error:
            if error.retryable:
                raise
            raise _unknown_location(source, project, zone, error) from error
        location = project or found[0], zone or found[-1]
        # A watch keeps it, so that a later outage of the metadata server does not affect it.
        if self.cache is not None:
            self._location = location
        return location

    def _raise_if_absent(self, source: NamedTPUs, absent: Sequence[Unready | NodeNotFound]) -> None:
        missing = [tpu for tpu in absent if isinstance(tpu, NodeNotFound)]
        if missing:
            raise not_found_error(missing, self.version, source.origin) from missing[0].error
        unready = [tpu for tpu in absent if isinstance(tpu, Unready)]
        if unready:
            raise not_ready_error(unready)


def _identity(tpu: FoundNode) -> Hashable:
    """Return a key that is equal for the same TPU, whatever name it was found by."""
    if isinstance(tpu, Unready) and tpu.create_time:
        return tpu.create_time, *tpu.path.split("/")[2:]
    if isinstance(tpu, ABSENT):
        return tpu.path
    # The full name may contain the number of the project instead of its id.
    return (tpu.id, tpu.name.rpartition("/")[2]) if tpu.id else tpu.name


async def _find_node(api: NodeAPI, name: NodeName, progress: Progress) -> Node | NodeNotFound:
    try:
        return await api.node(name, progress)
    except APIError as error:
        if error.status != 404:
            raise
        return NodeNotFound(name.path, error)


async def _find_queued(api: NodeAPI, name: QueuedResourceName, progress: Progress) -> list[FoundNode]:
    """Return the nodes of a queued resource, or why it has none."""
    try:
        resource = await api.queued_resource(name, progress)
    except APIError as error:
        if error.status != 404:
            raise
        return [NodeNotFound(name.path, error)]
    unready = unready_queued_resource(resource)
    if unready is not None:
        return [unready]
    try:
        names = [node_name(node.name, node.project, node.zone) for node in resource.node_names]
    except ValueError as error:
        reason = error.summary if isinstance(error, ConfigurationError) else error
        raise ProtocolError(
            f"queued resource {name.path} has invalid nodes: {reason}",
            hint="Check its description with `gcloud compute tpus queued-resources describe`.",
            scope=f"queued resource {name.path}",
        ) from error
    calls = [partial(_find_node, api, node, progress) for node in names]
    return list(await gather(calls, limit=MAX_CONCURRENT_REQUESTS))


def _unknown_location(
    source: NamedTPUs, project: str | None, zone: str | None, error: ResolveError
) -> ConfigurationError:
    unknown = [name for name, value in (("project", project), ("zone", zone)) if value is None]
    hint = Hint(
        f"Pass {' and '.join(f'{{{name}}}' for name in unknown)}, or the full name"
        " projects/PROJECT/locations/ZONE/nodes/NAME."
    )
    return ConfigurationError(
        f"unknown {' and '.join(unknown)} of TPU {', '.join(source.names)}{from_variable(source.origin)}:"
        f" this VM's metadata server did not report it: {error.summary}",
        hint=with_variable_hint(hint, source.origin),
    )


def _separate(found: Sequence[FoundNode], not_healthy: NotHealthy, address: WorkerAddress) -> FoundSlices:
    """Return the nodes that are ready as slices, and everything else as absent.

    A TPU that is running but not healthy remains a slice, unless it is skipped: a watch must not report that
    workers are gone which are running.
    """
    slices: list[TPUSlice] = []
    absent: list[Unready | NodeNotFound] = []
    unhealthy: list[Unready] = []
    skipped: list[Unready] = []
    for tpu in found:
        if isinstance(tpu, ABSENT):
            absent.append(tpu)
            continue
        unready = unready_node(tpu)
        if unready is not None and not unready.is_running:
            absent.append(unready)
        elif unready is not None and not_healthy == "skip":
            skipped.append(unready)
        else:
            is_ready = unready is None or not_healthy == "allow"
            slices.append(_node_slice(tpu, address, is_ready=is_ready))
            if unready is not None and not is_ready:
                unhealthy.append(unready)
    return FoundSlices(_number_slices(slices), tuple(absent), tuple(unhealthy), tuple(skipped))


def _node_slice(node: Node, address: WorkerAddress, *, is_ready: bool) -> TPUSlice:
    name = node.name.rpartition("/")[2]
    addresses = [
        host_port(_worker_ip(endpoint, number, name, address), endpoint.port or TPU_PORT)
        for number, endpoint in enumerate(node.endpoints)
    ]
    return TPUSlice(_workers(addresses, name, str(node.id), ready=is_ready), name, node=node)


def _worker_ip(endpoint: NetworkEndpoint, number: int, name: str, address: WorkerAddress) -> str:
    if address == "internal_ip":
        return endpoint.ip_address
    external = endpoint.access_config.external_ip if endpoint.access_config is not None else ""
    if not external:
        raise ConfigurationError(
            f"worker {number} of TPU {name} has no external address",
            argument="address",
            hint="Leave it out, or create the TPU with external addresses.",
        )
    return external


def _given_slice(given: GivenWorkers) -> TPUSlice:
    index, num_slices = slice_position(given.environment)
    name = f"slice-{index}" if num_slices > 1 else None
    return TPUSlice(_workers(given.addresses, name), name, index, num_slices, environment=given.environment)


def _metadata_slice(hosts: Sequence[str], environment: TPUEnvironment) -> TPUSlice:
    addresses = [host_port(host, TPU_PORT) for host in hosts]
    validate_position(addresses, environment, "WORKER_ID", "worker-network-endpoints of the metadata server")
    index, num_slices = slice_position(environment)
    name = environment.node_id or (f"slice-{index}" if num_slices > 1 else None)
    return TPUSlice(_workers(addresses, name), name, index, num_slices, environment=environment)


def _workers(
    addresses: Iterable[str], name: str | None, uid: str = "", ready: bool | None = None
) -> tuple[Endpoint, ...]:
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


def _number_slices(slices: Sequence[TPUSlice]) -> tuple[TPUSlice, ...]:
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


def libtpu_ports(slices: Sequence[TPUSlice]) -> Sequence[int] | Mapping[str, Sequence[int]]:
    """Return the ports of libtpu's metrics as `probe_workers` takes them; empty if they are not reported.

    If hosts have several processes, each has the ports of its own: its share of those of the host, or one
    after another from the first.
    """
    reported = next(filter(None, (one.environment.runtime_metrics_ports for one in slices)), ())
    if all(len({*one.hosts}) == len(one.hosts) for one in slices):
        return reported
    first, ports = (reported or DEFAULT_METRICS_PORTS)[0], {}
    for one in slices:
        processes = Counter(one.hosts)
        seen: Counter[str] = Counter()
        for endpoint, host in zip(one.endpoints, one.hosts, strict=True):
            share, rest = divmod(len(reported), processes[host])
            own = reported[seen[host] * share :][:share] if share and not rest else (first + seen[host],)
            ports[endpoint.address] = own
            seen[host] += 1
    return ports


def shared_topology(slices: Sequence[TPUSlice]) -> TPUTopology | None:
    """Return the topology that all these slices have; None if they differ or it is unknown."""
    try:
        topologies = {tpu_slice.topology for tpu_slice in slices}
    except ProtocolError:
        return None  # what the workers themselves report takes precedence
    return topologies.pop() if len(topologies) == 1 else None


def cluster_of(
    slices: Sequence[TPUSlice], job: str, others: dict[str, str], observed_at: datetime
) -> ClusterState:
    """Return the cluster whose job `job` consists of the workers of these slices, in order.

    Without slices, the job is left out. `others` are additional jobs with one task each, name to `host:port`.

    Raises:
        PartialClusterError: the workers of other slices are not known.
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


def observation_of(
    source: Source, found: FoundSlices, job: str, others: dict[str, str], observed_at: datetime
) -> Observation:
    """Return the state of the slices that are ready, and the workers that are missing.

    Without slices, the state has the job without tasks. For the other arguments see `cluster_of`.
    """
    if isinstance(source, LocalTPU):
        reason = "the TPU of this host has no workers to wait for: name a TPU, or addresses of workers"
        local = Missing(job, "local", reason, is_final=True, tasks=0)
        return Observation(cluster_of((), job, {}, observed_at), (local,))
    origin = source.origin if isinstance(source, NamedTPUs) else ""
    missing = tuple(missing_workers(tpu, job, origin) for tpu in (*found.absent, *found.skipped))
    if not found.slices:
        return Observation(ClusterState.of({job: []}, observed_at=observed_at), missing)
    unhealthy = {tpu.path: tpu for tpu in found.unhealthy}
    unready = tuple(
        Missing(job, endpoint.name or endpoint.address, unhealthy[tpu_slice.node.name].reason)
        for tpu_slice in found.slices
        if tpu_slice.node is not None and tpu_slice.node.name in unhealthy
        for endpoint in tpu_slice.endpoints
    )
    return Observation(cluster_of(found.slices, job, others, observed_at), missing, unready)
