"""Slices: their workers, their layout, and their tasks in a cluster. No I/O.

The number in an accelerator type counts TensorCores: `v4-16` has 8 chips with two cores each. Cores per chip
and devices per chip can differ: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm, tpu-info 0.14.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import Hint, PartialClusterError, ProtocolError
from aioresolve.spec import ClusterState, Endpoint, split_host_port

from .discovery import COORDINATOR_VARIABLE, worker_host
from .vm import TPUEnvironment, parse_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from aioresolve.gcp.tpu_api import Node

METRICS_PORTS = (8431,)
"""The ports of libtpu's metrics by default."""


class Generation(NamedTuple):
    """A generation of chips. TensorFlow and JAX count its devices in the same way."""

    name: str
    cores_per_chip: int
    devices_per_chip: int


_V5E = Generation("v5e", 1, 1)
_7X = Generation("7x", 2, 2)
GENERATIONS = {
    "v2": Generation("v2", 2, 2),
    "v3": Generation("v3", 2, 2),
    "v4": Generation("v4", 2, 1),
    "v5litepod": _V5E,
    "v5lite_pod": _V5E,
    "v5e": _V5E,
    "v5p": Generation("v5p", 2, 1),
    "v6e": Generation("v6e", 1, 1),
    "tpu7x": _7X,
    "v7x": _7X,
}
"""By the first part of an accelerator type and by the type names of the API, both in lower case."""

_ACCELERATOR_TYPE = re.compile(r"(?P<kind>[a-z0-9_]+)-(?P<cores>[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class TPUTopology:
    """The layout of one slice.

    >>> TPUTopology("v4-16", "v4", cores=16, chips=8, hosts=2, processes=2, devices=8).hosts
    2

    Attributes:
        accelerator_type: such as `v4-16`.
        generation: such as `v4`.
        cores: TensorCores of the slice.
        chips: chips of the slice.
        hosts: hosts of the slice.
        processes: processes of the slice, which are its workers: usually one for each host. The processes of
            a host share its chips equally.
        devices: devices of the slice, as TensorFlow and JAX count them.
        chip_bounds: chips in each dimension, such as `(2, 2, 2)`; None if the source does not report it.
        chips_per_host_bounds: chips of one host in each dimension; None if unknown.
        host_bounds: hosts in each dimension; None if unknown.
    """

    accelerator_type: str
    generation: str
    cores: int
    chips: int
    hosts: int
    processes: int
    devices: int
    chip_bounds: tuple[int, ...] | None = None
    chips_per_host_bounds: tuple[int, ...] | None = None
    host_bounds: tuple[int, ...] | None = None

    @property
    def chips_per_process(self) -> int:
        """Chips of each process."""
        return self.chips // self.processes

    @property
    def chips_per_host(self) -> int:
        """Chips of each host."""
        return self.chips // self.hosts

    @property
    def cores_per_host(self) -> int:
        """TensorCores of each host."""
        return self.cores // self.hosts

    @property
    def devices_per_host(self) -> int:
        """Devices of each host, as TensorFlow and JAX count them."""
        return self.devices // self.hosts


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

    @property
    def topology(self) -> TPUTopology | None:
        """The layout of the slice; None if the source reports too little.

        Raises:
            ProtocolError: the source's statements contradict each other.
        """
        config = self.node.accelerator_config if self.node is not None else None
        chip_bounds = parse_bounds(self.environment.topology if config is None else config.topology)
        name = self.accelerator_type or ""
        match = _ACCELERATOR_TYPE.fullmatch(name.lower())
        kind = "" if config is None else config.type
        generation = GENERATIONS.get(match["kind"] if match else kind.lower())
        hosts, processes = len({*self.hosts}), len(self.endpoints)
        if generation is None or not processes:
            return None
        per_chip = generation.cores_per_chip
        if match:
            cores = int(match["cores"])
        elif chip_bounds is not None:
            cores = math.prod(chip_bounds) * per_chip
            name = f"{kind} of {'x'.join(map(str, chip_bounds))}"
        else:
            return None
        chips = cores // per_chip
        problem = ""
        if cores % per_chip:
            problem = f"{cores} cores of {name} cannot be divided into chips with {per_chip} cores"
        elif chip_bounds is not None and math.prod(chip_bounds) != chips:
            other = f"{'x'.join(map(str, chip_bounds))} has {math.prod(chip_bounds)}"
            problem = f"accelerator type {name!r} has {chips} chips, but the topology {other}"
        elif chips % hosts or chips % processes:
            problem = (
                f"{chips} chips of {name} cannot be divided among {processes} processes on {hosts} hosts"
            )
        if problem:
            raise ProtocolError(problem)
        return TPUTopology(
            name,
            generation.name,
            cores,
            chips,
            hosts,
            processes,
            chips * generation.devices_per_chip,
            chip_bounds,
            self.environment.chips_per_host_bounds,
            self.environment.host_bounds,
        )


def shared_topology(slices: Sequence[TPUSlice]) -> TPUTopology | None:
    """Return the topology that all these slices have; None if they differ or it is unknown."""
    try:
        topologies = {tpu_slice.topology for tpu_slice in slices}
    except ProtocolError:
        return None  # what the workers themselves report takes precedence
    return topologies.pop() if len(topologies) == 1 else None


# Workers and tasks


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

    If hosts have several processes, each has the ports of its own: its share of those of the host, or one
    after another from the first.
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
