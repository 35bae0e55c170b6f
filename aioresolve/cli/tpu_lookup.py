"""From a request to the TPUs that were found: what `aioresolve tpu` does while it waits."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.retry import within_deadline
from aioresolve.tpu import TPUClusterResolver
from aioresolve.tpu.arguments import api_base
from aioresolve.tpu.slices import cluster_of

from .progress import shown
from .running import run

if TYPE_CHECKING:
    from aioresolve.gcp.tpu_api import NodeList
    from aioresolve.probe import WorkerProbe
    from aioresolve.retry import Progress
    from aioresolve.spec import ClusterState
    from aioresolve.tpu import TPUSlice

    from .request import TPURequest

__all__ = ["FoundTPUs", "found_tpus", "listed_nodes", "tpu_resolver"]

ALL_ZONES = "-"


@dataclass(frozen=True, slots=True)
class FoundTPUs:
    """What was found.

    Attributes:
        slices: in the order of their tasks; none where the TPU is this host's own.
        state: the cluster that they are.
        probes: what each worker says of itself, by address; None where they were not asked.
    """

    slices: tuple[TPUSlice, ...]
    state: ClusterState
    probes: dict[str, WorkerProbe] | None = None


def found_tpus(request: TPURequest) -> FoundTPUs:
    """Return the TPUs that were asked for, or that the environment names.

    Raises:
        ResolveError: they were not found, are not ready, or not before the deadline.
    """
    return run(lambda _: _found(request))


def listed_nodes(request: TPURequest) -> NodeList:
    """Return every TPU node of a zone, or of all zones, in whatever state.

    Raises:
        ResolveError: the API could not be asked, or not before the deadline.
    """
    return run(lambda _: _listed(request))


def tpu_resolver(request: TPURequest) -> TPUClusterResolver:
    """Return the resolver of what was asked for."""
    return TPUClusterResolver(
        request.names or None,
        request.zone,
        request.project,
        request.job_name,
        api_version=request.api_version,
        timeout=request.timeout,
    )


async def _found(request: TPURequest) -> FoundTPUs:
    ends = time.monotonic() + request.timeout

    async def operation(progress: Progress) -> tuple[TPUSlice, ...]:
        with shown(progress, quiet=request.quiet):
            return await resolver.fetch_slices(progress)

    resolver = tpu_resolver(request)
    async with resolver:
        slices = await within_deadline(request.timeout, request.asked, operation)
    state = cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC))
    probes = await _probes(request, slices, ends) if request.is_probed else None
    return FoundTPUs(slices, state, probes)


async def _probes(request: TPURequest, slices: tuple[TPUSlice, ...], ends: float) -> dict[str, WorkerProbe]:
    # Here and not above: grpc takes a fifth of a second to load.
    from aioresolve.probe import LIBTPU_PORTS

    from .probing import Probing, probed

    told = [one.environment.runtime_metrics_ports for one in slices]
    how = Probing(
        addresses=tuple(endpoint.address for one in slices for endpoint in one.endpoints),
        timeout=max(ends - time.monotonic(), 0.001),
        worker_timeout=request.worker_timeout,
        max_concurrency=request.max_concurrency,
        libtpu_ports=next(filter(None, told), LIBTPU_PORTS),
        quiet=request.quiet,
    )
    return {probe.address: probe for probe in await probed(how)}


async def _listed(request: TPURequest) -> NodeList:
    from aioresolve.gcp.session import GoogleSession
    from aioresolve.gcp.tpu_api import TPUAPI

    base = api_base(None, os.environ, request.api_version)
    zone = request.zone or ALL_ZONES

    async def operation(progress: Progress) -> NodeList:
        with shown(progress, quiet=request.quiet):
            project = request.project or await _own_project(progress)
            async with GoogleSession(endpoints={} if base is None else {"tpu": base}) as session:
                return await TPUAPI(session, request.api_version).nodes(project, zone, progress)

    where = "all zones" if zone == ALL_ZONES else f"zone {zone}"
    return await within_deadline(request.timeout, f"the list of TPUs in {where}", operation)


async def _own_project(progress: Progress) -> str:
    """Return the project of this VM."""
    from aioresolve.gcp.metadata import MetadataServer

    try:
        return await MetadataServer().project_id(progress)
    except ResolveError as error:
        if error.retryable:
            raise
        raise ConfigurationError(
            "the project whose TPUs are to be listed is not known: give --project; this VM's metadata"
            f" server did not tell: {error}"
        ) from error
