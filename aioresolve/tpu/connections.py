"""The connections of one or several resolvers, each opened when it is first used.

Their libraries are imported then too: aiohttp takes a third of a second and grpc a fifth, and a resolver
whose worker addresses are given needs neither.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.api_request import ETagCache
    from aioresolve.gcp.client import GoogleSession
    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.metadata_server import MetadataServer
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName
    from aioresolve.gcp.tpu_api import TPUAPI, Node, QueuedResource, TPUVersion
    from aioresolve.probe import ProbeChannels

T = TypeVar("T")


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
    def key(self) -> Hashable:
        """Equal for configurations that may share connections and access tokens.

        It contains ids of objects, so it is valid only while both configurations exist.
        """
        is_default = self._service is not None or self._given_credentials in (None, "default")
        identity = "default" if is_default else id(self._given_credentials)
        return "tpu", self._version, tuple(sorted(self._endpoints.items())), id(self._service), identity

    def new_session(self) -> GoogleSession:
        """Return a session, not entered yet."""
        from aioresolve.gcp.client import GoogleSession

        return GoogleSession(self._credentials, endpoints=self._endpoints)

    def new_api(self, session: GoogleSession) -> TPUAPI:
        """Return the API that sends its requests through this session."""
        from aioresolve.gcp.tpu_api import TPUAPI

        return TPUAPI(session, self._version)


class Connections:
    """Sessions and channels of one event loop, open until `aclose`."""

    def __init__(self, configuration: ClientConfiguration) -> None:
        self.loop = asyncio.get_running_loop()
        self._configuration = configuration
        self._stack = AsyncExitStack()
        # Concurrent calls must share one session, not open one each.
        self._opening = anyio.Lock()
        self._api: NodeAPI | None = configuration.user_client
        self._metadata: MetadataServer | None = None
        self._channels: ProbeChannels | None = None
        self._is_closed = False

    @property
    def key(self) -> Hashable:
        """The `ClientConfiguration.key` of the resolvers that may use these connections."""
        return self._configuration.key

    async def api(self) -> NodeAPI:
        """Return the Cloud TPU API."""
        async with self._opening:
            if self._api is None:
                session = await self._enter(self._configuration.new_session())
                self._api = self._configuration.new_api(session)
            return self._api

    async def metadata(self) -> MetadataServer:
        """Return the metadata server of this machine."""
        from aioresolve.gcp.metadata_server import MetadataServer

        async with self._opening:
            if self._metadata is None:
                self._metadata = await self._enter(MetadataServer())
            return self._metadata

    async def channels(self) -> ProbeChannels:
        """Return the gRPC channels to workers."""
        from aioresolve.probe import ProbeChannels

        async with self._opening:
            if self._channels is None:
                self._channels = await self._enter(ProbeChannels())
            return self._channels

    async def aclose(self) -> None:
        """Close everything that was opened. Closing twice does nothing."""
        self._is_closed = True
        await self._stack.aclose()

    async def _enter(self, context: AbstractAsyncContextManager[T]) -> T:
        if self._is_closed:
            raise ConfigurationError("the resolver was closed while this call was running")
        return await self._stack.enter_async_context(context)
