"""The clients of TPU resolvers, each opened when it is first used.

Their libraries are imported then too: aiohttp takes a third of a second and grpc a fifth, and a resolver
whose worker addresses are given needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from contextlib import AsyncExitStack

    from aioresolve._core.connections import Connections
    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.api_request import ETagCache
    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.metadata_server import MetadataServer
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName
    from aioresolve.gcp.tpu_api import Node, QueuedResource, TPUVersion
    from aioresolve.probe import ProbeChannels


class NodeAPI(Protocol):
    """The Cloud TPU API: `TPUAPI`, or a user's client of it."""

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return the node; raises an APIError with status 404 if it does not exist."""
        ...

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return the queued resource; raises an APIError with status 404 if it does not exist."""
        ...

    def with_cache(self, cache: ETagCache) -> NodeAPI:
        """Return the same API with conditional requests, if the client supports them."""
        ...


class ClientConfiguration:
    """How to reach the Cloud TPU API.

    `service` is what `googleapiclient.discovery.build` returned, to use instead of an own client; or None.
    `endpoints` are base URLs by API, if they are not Google's.
    """

    def __init__(
        self, credentials: AnyCredentials, service: Any, endpoints: Mapping[str, str], version: TPUVersion
    ) -> None:
        from aioresolve.gcp.credentials import GoogleCredentials

        self.user_client: NodeAPI | None = None
        if service is not None:
            from .user_client import UserClient

            self.user_client = UserClient(service)
        self._service = service
        self._given_credentials = credentials
        # The user's client has its own credentials: ours are not even validated then, as in TensorFlow.
        self._credentials = GoogleCredentials(credentials if service is None else "default")
        self._endpoints = endpoints
        self._version: TPUVersion = version

    @property
    def _key(self) -> Hashable:
        # It contains ids of objects, so it is valid only while both configurations exist.
        is_default = self._service is not None or self._given_credentials in (None, "default")
        identity = "default" if is_default else id(self._given_credentials)
        return "tpu", self._version, tuple(sorted(self._endpoints.items())), id(self._service), identity

    async def _new_api(self, stack: AsyncExitStack) -> NodeAPI:
        from aioresolve.gcp.client import GoogleSession
        from aioresolve.gcp.tpu_api import TPUAPI

        session = GoogleSession(self._credentials, endpoints=self._endpoints)
        return TPUAPI(await stack.enter_async_context(session), self._version)


@dataclass(frozen=True, slots=True)
class TPUClients:
    """The clients of a resolver, which it shares with others of the same configuration."""

    resolver: object
    configuration: ClientConfiguration
    connections: Connections

    async def api(self) -> NodeAPI:
        """Return the Cloud TPU API."""
        configuration = self.configuration
        if configuration.user_client is not None:
            return configuration.user_client
        return await self.connections.get(self.resolver, configuration._key, configuration._new_api)

    async def metadata(self) -> MetadataServer:
        """Return the metadata server of this machine."""
        return await metadata_server(self.resolver, self.connections)

    async def channels(self) -> ProbeChannels:
        """Return the gRPC channels to workers."""
        from aioresolve.probe import ProbeChannels

        return await self.connections.get(
            self.resolver, "channels", lambda stack: stack.enter_async_context(ProbeChannels())
        )


async def metadata_server(resolver: object, connections: Connections) -> MetadataServer:
    """Return the metadata server of this machine, which all resolvers share."""
    from aioresolve.gcp.metadata_server import MetadataServer

    return await connections.get(
        resolver, "metadata", lambda stack: stack.enter_async_context(MetadataServer())
    )
