"""Slices: what a source says of one -> its workers -> the tasks of a cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aioresolve.errors import ProtocolError
from aioresolve.gcp.tpu_env import TpuEnvironment
from aioresolve.spec import ClusterState, Endpoint, host_port

from .discovery import TPU_PORT
from .topology import TPUTopology, bounds, slice_topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from aioresolve.gcp.messages import Node

    from .discovery import GivenWorkers

__all__ = ["TPUSlice", "cluster_of", "given_slice", "node_slice", "numbered", "own_slice", "shared_topology"]


@dataclass(frozen=True, slots=True)
class TPUSlice:
    """One slice: chips that are wired together, and the workers they are attached to.

    Attributes:
        endpoints: its workers, in worker order. Where the slice has a name, theirs are `slice/worker-0` and
            so on; their `index` is the number of the worker in its slice.
        name: the TPU node's id, `slice-N` of a multislice on GKE, or None where nobody told.
        index: which slice this is, from 0.
        num_slices: how many there are. On GKE a pod knows the workers of its own slice alone.
        tasks: the task indices of its workers in the cluster.
        node: what the Cloud TPU API says of it; None where it was not asked.
        environment: what environment variables or the VM's `tpu-env` say of it.
    """

    endpoints: tuple[Endpoint, ...]
    name: str | None = None
    index: int = 0
    num_slices: int = 1
    tasks: range = range(0)
    node: Node | None = field(default=None, repr=False)
    environment: TpuEnvironment = field(default_factory=TpuEnvironment, repr=False)

    @property
    def accelerator_type(self) -> str | None:
        """Such as `v4-16`; None where nobody told."""
        if self.node is not None and self.node.accelerator_type:
            return self.node.accelerator_type
        return self.environment.accelerator_type

    @property
    def topology(self) -> TPUTopology | None:
        """How it is built; None where too little was told.

        Raises:
            ProtocolError: what was told contradicts itself.
        """
        config = self.node.accelerator_config if self.node is not None else None
        return slice_topology(
            self.accelerator_type,
            kind=config.type if config is not None else None,
            chip_bounds=bounds(config.topology if config is not None else self.environment.topology),
            chips_per_host_bounds=self.environment.chips_per_host_bounds,
            host_bounds=self.environment.host_bounds,
            hosts=len(self.endpoints) or None,
        )


def node_slice(node: Node) -> TPUSlice:
    """Return the slice of a node that is ready."""
    name = node.name.rpartition("/")[2]
    addresses = [host_port(found.ip_address, found.port or TPU_PORT) for found in node.endpoints]
    return TPUSlice(_workers(addresses, name, str(node.id), ready=True), name, node=node)


def given_slice(given: GivenWorkers) -> TPUSlice:
    """Return the slice of workers whose addresses are given."""
    name = f"slice-{given.slice_index}" if given.num_slices > 1 else None
    return TPUSlice(
        _workers(given.addresses, name),
        name,
        given.slice_index,
        given.num_slices,
        environment=given.environment,
    )


def own_slice(hosts: Sequence[str], environment: TpuEnvironment, accelerator_type: str | None) -> TPUSlice:
    """Return the slice that a TPU VM says it is part of."""
    if environment.accelerator_type is None:
        environment = replace(environment, accelerator_type=accelerator_type)
    name = environment.node_id
    return TPUSlice(
        _workers([host_port(host, TPU_PORT) for host in hosts], name), name, environment=environment
    )


def numbered(slices: Iterable[TPUSlice]) -> tuple[TPUSlice, ...]:
    """Return slices that together are one cluster: each with its index and its range of tasks."""
    known = list(slices)
    result: list[TPUSlice] = []
    first = 0
    for index, one in enumerate(known):
        tasks = range(first, first + len(one.endpoints))
        if len(known) > 1:
            one = replace(one, index=index, num_slices=len(known))
        result.append(replace(one, tasks=tasks))
        first = tasks.stop
    return tuple(result)


def shared_topology(slices: Sequence[TPUSlice]) -> TPUTopology | None:
    """Return how every one of these slices is built; None where they differ, or nobody can tell."""
    try:
        shapes = {one.topology for one in slices}
    except ProtocolError:
        return None  # what the workers themselves say is what counts
    return shapes.pop() if len(shapes) == 1 else None


def cluster_of(
    slices: Iterable[TPUSlice], job: str, others: dict[str, str], observed_at: datetime
) -> ClusterState:
    """Return the cluster whose job `job` has the workers of these slices, one slice after the other.

    Args:
        slices: the slices; a cluster without any has no job.
        job: the job's name.
        others: further jobs of one task each, name to `host:port`.
        observed_at: when the source was asked.
    """
    workers = [endpoint for one in slices for endpoint in one.endpoints]
    jobs = {job: workers} if workers else {}
    jobs |= {name: [Endpoint(address)] for name, address in others.items()}
    return ClusterState.of(jobs, observed_at=observed_at)


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
