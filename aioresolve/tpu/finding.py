"""A source -> its slices. What is not known, Google is asked for, all at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aioresolve.concurrency import gather
from aioresolve.errors import ConfigurationError, ResolveError, TPUNotFoundError
from aioresolve.gcp.names import is_full_name
from aioresolve.gcp.tpu_env import TpuEnvironment

from .discovery import GivenWorkers, Local, NamedTPUs, OwnVM
from .nodes import nodes_named
from .readiness import not_ready_error, unready_node
from .slices import given_slice, node_slice, numbered, own_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.gcp.messages import Node
    from aioresolve.gcp.metadata import MetadataServer
    from aioresolve.retry import Progress

    from .connections import Connections
    from .discovery import Source
    from .slices import TPUSlice

__all__ = ["Finder"]


class Finder:
    """Finds what a source names.

    Args:
        project: the project of TPUs that are named without one; that of this VM where None.
        zone: the zone of TPUs that are named without one; that of this VM where None.
        version: the API's.
    """

    def __init__(self, project: str | None, zone: str | None, version: str) -> None:
        self._project = project
        self._zone = zone
        self._version = version

    async def slices(
        self, source: Source, connections: Connections, progress: Progress
    ) -> tuple[TPUSlice, ...]:
        """Return the slices, all ready; none where the TPU is this host's own.

        Raises:
            TPUNotReadyError: a TPU is not ready; it lists every such one.
            TPUNotFoundError: there is none of a name, or no name was found.
            ResolveError: the source could not be asked.
        """
        match source:
            case Local():
                return ()
            case GivenWorkers():
                return numbered([given_slice(source)])
            case NamedTPUs():
                return ready_slices(await self.nodes(source, connections, progress))
            case OwnVM():
                return numbered([await _own_slice(source, await connections.metadata(), progress)])

    async def nodes(self, source: NamedTPUs, connections: Connections, progress: Progress) -> list[Node]:
        """Return the nodes that the API is asked for, in whatever state.

        Raises:
            TPUNotFoundError: there is none of a name.
            TPUNotReadyError: a queued resource has none yet.
            ResolveError: the API could not be asked.
        """
        project, zone = await self._place(source, connections, progress)
        api = await connections.api()
        return await nodes_named(api, source.names, project, zone, progress, version=self._version)

    async def _place(
        self, source: NamedTPUs, connections: Connections, progress: Progress
    ) -> tuple[str | None, str | None]:
        """Return project and zone: those given, else those of this VM."""
        project, zone = self._project or source.project, self._zone or source.zone
        if all(map(is_full_name, source.names)):
            return self._project, self._zone
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
            unknown = [name for name, value in (("project", project), ("zone", zone)) if value is None]
            raise ConfigurationError(
                f"{' and '.join(unknown)} of TPU {', '.join(source.names)} (from {source.origin}) are not"
                f" known: give {' and '.join(f'{name}=' for name in unknown)}, or the full name"
                f" projects/P/locations/Z/nodes/N; this VM's metadata server did not tell: {error}"
            ) from error
        return project or found[0], zone or found[-1]


def ready_slices(nodes: Sequence[Node]) -> tuple[TPUSlice, ...]:
    """Return the slices of nodes that are ready, in their order.

    Raises:
        TPUNotReadyError: some are not; it lists every one of them.
    """
    unready = [found for node in nodes if (found := unready_node(node)) is not None]
    if unready:
        raise not_ready_error(unready)
    return numbered(map(node_slice, nodes))


async def _own_slice(source: OwnVM, metadata: MetadataServer, progress: Progress) -> TPUSlice:
    """Return the slice that this VM is part of."""
    try:
        slice_ = await _told_slice(metadata, progress)
    except ResolveError as error:
        if error.retryable:
            raise
        raise _nothing_named(source, f"this VM's metadata server did not tell: {error}") from error
    if slice_ is None:
        raise _nothing_named(source, "this VM's metadata server says that it is no TPU VM")
    return slice_


async def _told_slice(metadata: MetadataServer, progress: Progress) -> TPUSlice | None:
    hosts, environment, accelerator_type = await _attributes(metadata, progress)
    if hosts is None:
        # Where nothing else is said, a slice of one host is this very host.
        if environment is None or environment.host_bounds not in ((1, 1, 1), (1, 1)):
            return None
        hosts = (await metadata.internal_ip(progress),)
    return own_slice(hosts, environment or TpuEnvironment(), accelerator_type)


async def _attributes(
    metadata: MetadataServer, progress: Progress
) -> tuple[tuple[str, ...] | None, TpuEnvironment | None, str | None]:
    hosts: tuple[str, ...] | None = None
    environment: TpuEnvironment | None = None
    accelerator_type: str | None = None

    async def ask_hosts() -> None:
        nonlocal hosts
        hosts = await metadata.worker_network_endpoints(progress)

    async def ask_environment() -> None:
        nonlocal environment
        environment = await metadata.tpu_env(progress)

    async def ask_type() -> None:
        nonlocal accelerator_type
        accelerator_type = await metadata.accelerator_type(progress)

    await gather([ask_hosts, ask_environment, ask_type], limit=3)
    return hosts, environment, accelerator_type


def _nothing_named(source: OwnVM, last: str) -> TPUNotFoundError:
    tried = (*source.tried, last)
    return TPUNotFoundError(
        f"no TPU was named and none was found: {'; '.join(tried)}. Give tpu= a name or an address such as"
        " 'grpc://10.0.0.7:8470', or set TPU_NAME",
        tried=tried,
    )
