"""Finds the TPUs that a source names, and turns those that are ready into the slices of a cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from aioresolve._core.concurrency import gather
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    Hint,
    ProtocolError,
    ResolveError,
)
from aioresolve.gcp.resource_names import is_full_name, tpu_name
from aioresolve.resolver.base import EXISTING_TIMEOUT
from aioresolve.spec.display import existing_names

from .discovery import (
    GivenWorkers,
    LocalTPU,
    MetadataSource,
    NamedTPUs,
    WorkersFile,
    read_workers,
    slice_position,
)
from .slices import (
    NOT_FOUND,
    FoundSlices,
    TPUSlice,
    Unready,
    from_variable,
    given_slice,
    node_slice,
    number_slices,
    unready_error,
    unready_node,
    unready_queued_resource,
)
from .vm import fetch_own_slice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from aioresolve._core.connections import Connections
    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.credentials import GoogleCredentials
    from aioresolve.gcp.metadata_server import MetadataServer
    from aioresolve.gcp.resource_names import TPUName
    from aioresolve.gcp.tpu_api import TPUAPI, Node, UserTPUClient
    from aioresolve.probe import ProbeChannels

    from .discovery import Source
    from .slices import WorkerAddress

MAX_CONCURRENT_REQUESTS = 16

NotHealthy: TypeAlias = Literal["raise", "allow"]
"""What to do with TPUs that are READY but not healthy."""


@dataclass(frozen=True, slots=True)
class TPUClients:
    """The clients of a resolver, which it shares with others that have the same server and credentials.

    Each is opened, and its library imported, when it is first used: aiohttp takes a third of a second and
    grpc a fifth, and a resolver whose worker addresses are given needs neither.

    Attributes:
        resolver: the resolver that uses them.
        connections: its connections.
        credentials: those for the API.
        base_url: the URL of the API; None for Google's own.
        user_client: the user's own client, which is used instead of one of ours; or None.
    """

    resolver: object
    connections: Connections
    credentials: GoogleCredentials
    base_url: str | None
    user_client: UserTPUClient | None

    async def api(self) -> TPUAPI | UserTPUClient:
        """Return the Cloud TPU API."""
        if self.user_client is not None:
            return self.user_client
        key = ("tpu", self.base_url, self.credentials.key)
        return await self.connections.get(self.resolver, key, self._new_api)

    async def _new_api(self, stack: AsyncExitStack) -> TPUAPI:
        from aioresolve.gcp.client import TPU, GoogleSession
        from aioresolve.gcp.tpu_api import TPUAPI

        session = GoogleSession(TPU, self.credentials, self.base_url)
        return TPUAPI(await stack.enter_async_context(session))

    async def metadata(self) -> MetadataServer:
        """Return the metadata server of this machine."""
        return await shared_metadata_server(self.resolver, self.connections)

    async def channels(self) -> ProbeChannels:
        """Return the gRPC channels to workers."""
        from aioresolve.probe import ProbeChannels

        return await self.connections.get(
            self.resolver, "channels", lambda stack: stack.enter_async_context(ProbeChannels())
        )


async def shared_metadata_server(resolver: object, connections: Connections) -> MetadataServer:
    """Return the metadata server of this machine, which all resolvers share."""
    from aioresolve.gcp.metadata_server import MetadataServer

    return await connections.get(
        resolver, "metadata", lambda stack: stack.enter_async_context(MetadataServer())
    )


@dataclass(frozen=True, slots=True)
class SliceFinder:
    """Finds the TPUs that a source names. Its attributes are arguments of `TPUClusterResolver`."""

    project: str | None
    zone: str | None
    not_healthy: NotHealthy = "raise"
    address: WorkerAddress = "internal_ip"

    async def find(self, source: Source, clients: TPUClients, progress: Progress) -> FoundSlices:
        """Return the slices that are ready, and the TPUs that are not."""
        if self.address != "internal_ip" and not isinstance(source, NamedTPUs):
            raise ConfigurationError(
                "external addresses are only known of TPUs that are named",
                argument="address",
                hint="Pass the name of the TPU as {tpu}, or leave out {address}.",
            )
        if isinstance(source, WorkersFile):
            source = await read_workers(source, progress)
        elif isinstance(source, MetadataSource):
            source = await fetch_own_slice(source, await clients.metadata(), progress)
        match source:
            case LocalTPU():
                return FoundSlices(())
            case GivenWorkers():
                return FoundSlices(number_slices([given_slice(source)]))
            case NamedTPUs():
                found = self._separate(tpus := await self._find_named(source, clients, progress))
                if len(tpus) > 1 or source.environment.num_slices is None:
                    return found
                # A variable names the only slice that it knows.
                index, number = slice_position(source.environment)
                slices = [
                    replace(one, index=index, num_slices=number, environment=source.environment)
                    for one in found.slices
                ]
                return replace(found, slices=tuple(slices))

    async def raise_if_unready(
        self, unready: Sequence[Unready], source: Source, clients: TPUClients, progress: Progress
    ) -> None:
        """Raise an error that lists these TPUs; if a name does not exist, with the names that do."""
        if unready and isinstance(source, NamedTPUs):
            is_unknown = any(tpu.not_found for tpu in unready)
            existing = await self.existing(source, clients, progress) if is_unknown else ""
            raise unready_error(unready, source.origin, existing)

    async def existing(self, source: NamedTPUs, clients: TPUClients, progress: Progress) -> str:
        """Return which TPUs there are, as text; empty if they are not listed in time."""
        from aioresolve.gcp.tpu_api import TPUAPI

        with anyio.move_on_after(EXISTING_TIMEOUT), suppress(ResolveError):
            project, zone = await self.find_location(source, clients, progress)
            if is_full_name(source.names[0]):
                _, project, _, zone, *_ = source.names[0].split("/")
            api = await clients.api()
            if project is None or not isinstance(api, TPUAPI):
                return ""
            paths = [node.name.split("/") for node in await api.nodes(project, progress)]
            typed = source.names[0].rpartition("/")[2]
            there = [path[-1] for path in paths if path[3:4] == [zone]]
            others = [f"{path[-1]} ({path[3]})" for path in paths if path[3:4] != [zone]]
            known = [f"TPUs in {zone}: {existing_names(there, typed) or 'none'}"]
            known += [f"in other zones: {existing_names(others, typed)}"] if others else []
            return "; ".join(known)
        return ""

    async def find_nodes(self, source: Source, clients: TPUClients, progress: Progress) -> tuple[Node, ...]:
        """Return the nodes that the source names, in any state; raises if a name has none."""
        if not isinstance(source, NamedTPUs):
            return ()
        found = await self._find_named(source, clients, progress)
        unready = [tpu for tpu in found if isinstance(tpu, Unready)]
        await self.raise_if_unready(unready, source, clients, progress)
        return tuple(tpu for tpu in found if not isinstance(tpu, Unready))

    async def find_location(
        self, source: NamedTPUs, clients: TPUClients, progress: Progress
    ) -> tuple[str | None, str | None]:
        """Return project and zone: those given, else those of this VM; None if full names need none."""
        if all(map(is_full_name, source.names)):
            return self.project, self.zone  # not needed, but must not contradict the full names
        project, zone = self.project or source.project, self.zone or source.zone
        unknown = [name for name, value in (("project", project), ("zone", zone)) if value is None]
        try:
            metadata = await clients.metadata() if unknown else None
            requests = {"project": metadata.project_id, "zone": metadata.zone} if metadata else {}
            found = await gather([partial(requests[name], progress) for name in unknown], limit=2)
        except ResolveError as error:
            if error.retryable:
                raise
            arguments = " and ".join(f"{{{name}}}" for name in unknown)
            unset = "" if source.origin == "tpu" else f", or unset {source.origin}"
            named = f"{', '.join(source.names)}{from_variable(source.origin)}"
            raise ConfigurationError(
                f"unknown {' and '.join(unknown)} of TPU {named}: this VM's metadata server did not report"
                f" it: {error.summary}",
                hint=Hint(
                    f"Pass {arguments}, or the full name projects/PROJECT/locations/ZONE/nodes/NAME{unset}."
                ),
            ) from error
        return project or found[0], zone or found[-1]

    async def _find_named(
        self, source: NamedTPUs, clients: TPUClients, progress: Progress
    ) -> list[Node | Unready]:
        """Return what each name stands for, in order; the nodes of a queued resource in its own order.

        What several names stand for, such as a node and the queued resource it belongs to, is returned once.
        """
        project, zone = await self.find_location(source, clients, progress)
        lookup = _Lookup(await clients.api(), project, zone, source.origin, progress)
        calls = [partial(lookup.find, name) for name in source.names]
        found = await gather(calls, limit=MAX_CONCURRENT_REQUESTS)
        distinct: dict[str, Node | Unready] = {}
        for tpu in (tpu for several in found for tpu in several):
            distinct.setdefault(tpu.path if isinstance(tpu, Unready) else tpu.name, tpu)
        return list(distinct.values())

    def _separate(self, tpus: Sequence[Node | Unready]) -> FoundSlices:
        """Return the nodes that are ready as slices, and everything that is not ready.

        A TPU that is running but not healthy remains a slice: a watch must not report that workers are gone
        which are running.
        """
        slices: list[TPUSlice] = []
        unready: list[Unready] = []
        for tpu in tpus:
            problem = tpu if isinstance(tpu, Unready) else unready_node(tpu)
            if problem is not None and problem.is_running and self.not_healthy == "allow":
                problem = None
            if not isinstance(tpu, Unready) and (problem is None or problem.is_running):
                slices.append(node_slice(tpu, self.address, is_ready=problem is None))
            if problem is not None:
                unready.append(problem)
        return FoundSlices(number_slices(slices), tuple(unready))


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Requests what names stand for; ids are those of `project` and `zone`."""

    api: TPUAPI | UserTPUClient
    project: str | None
    zone: str | None
    origin: str
    progress: Progress

    async def find(self, text: str) -> list[Node | Unready]:
        """Return the node with this name, or the nodes of the queued resource with this name."""
        if "/queuedResources/" in text:
            return await self._find_queued(tpu_name(text, self.project, self.zone, "queuedResources"))
        node = await self._find_node(tpu_name(text, self.project, self.zone))
        if not isinstance(node, Unready) or is_full_name(text):
            return [node]
        # A queued resource has a name of its own, which may be the only one that its user knows.
        name = tpu_name(text, self.project, self.zone, "queuedResources")
        try:
            queued = await self._find_queued(name)
        except (ForbiddenError, ConfigurationError):
            # A user without permission for queued resources, or whose client has none, meant a node.
            return [node]
        is_neither = any(
            isinstance(tpu, Unready) and tpu.path == str(name) and tpu.not_found for tpu in queued
        )
        return [node] if is_neither else queued

    async def _find_node(self, name: TPUName) -> Node | Unready:
        try:
            return await self.api.node(name, self.progress)
        except APIError as error:
            return self._absent(name, error)

    async def _find_queued(self, name: TPUName) -> list[Node | Unready]:
        """Return the nodes of a queued resource, or why it has none."""
        try:
            resource = await self.api.queued_resource(name, self.progress)
        except APIError as error:
            return [self._absent(name, error)]
        if unready := unready_queued_resource(resource):
            return [unready]
        try:
            names = resource.node_names
        except ValueError as error:
            reason = error.summary if isinstance(error, ConfigurationError) else error
            raise ProtocolError(
                f"queued resource {name} has invalid nodes: {reason}",
                hint="Check its description with `gcloud compute tpus queued-resources describe`.",
                scope=f"queued resource {name}",
            ) from error
        return await gather([partial(self._find_node, node) for node in names], limit=MAX_CONCURRENT_REQUESTS)

    def _absent(self, name: TPUName, error: APIError) -> Unready:
        if error.status != 404:
            raise error
        reason = f"{name}{from_variable(self.origin)} {NOT_FOUND}"
        return Unready(path=str(name), reason=reason, not_found=error)
