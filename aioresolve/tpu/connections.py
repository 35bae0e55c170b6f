"""What the calls of one resolver share, or of several: sessions and channels, each opened when first needed.

What they stand on is imported then too: aiohttp takes a third of a second and grpc a fifth, and workers whose
addresses are given need neither.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from contextlib import AbstractAsyncContextManager

    from aioresolve.gcp.client import GoogleSession
    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.metadata_server import MetadataServer
    from aioresolve.gcp.tpu_api import TPUAPI, TPUVersion
    from aioresolve.probe import ProbeChannels

    from .nodes import NodeAPI

__all__ = ["Connections", "Way"]

T = TypeVar("T")


class Way:
    """How the Cloud TPU API is asked: by ourselves, or through a service object that was handed in.

    Args:
        credentials: who we are.
        service: what `googleapiclient.discovery.build` returned, asked in place of any credentials, or None.
        endpoints: base URL by API, where it is not Google's own.
        version: `v2` or `v1`.

    Raises:
        ConfigurationError: the credentials are of another library, or the service object is none.
    """

    def __init__(
        self,
        credentials: AnyCredentials,
        service: Any,
        endpoints: Mapping[str, str],
        version: TPUVersion,
    ) -> None:
        from aioresolve.gcp.credentials import GoogleCredentials

        self.service = None if service is None else _service_api(service)
        self._given = service, credentials
        self._credentials = GoogleCredentials(credentials if service is None else "default")
        self._endpoints = endpoints
        self._version: TPUVersion = version

    @property
    def key(self) -> Hashable:
        """Equal for ways that may share connections, tokens included. Both have to be alive."""
        service, credentials = self._given
        who = "default" if service is not None or credentials in (None, "default") else id(credentials)
        return "tpu", self._version, tuple(sorted(self._endpoints.items())), id(service), who

    def session(self) -> GoogleSession:
        """Return a session, not yet entered."""
        from aioresolve.gcp.client import GoogleSession

        return GoogleSession(self._credentials, endpoints=self._endpoints)

    def api(self, session: GoogleSession) -> TPUAPI:
        """Return the API as that session asks it."""
        from aioresolve.gcp.tpu_api import TPUAPI

        return TPUAPI(session, self._version)


def _service_api(service: Any) -> NodeAPI:
    from .user_client import ServiceAPI

    return ServiceAPI(service)


class Connections:
    """Sessions and channels of one event loop, open until `aclose`."""

    def __init__(self, way: Way) -> None:
        self.loop = asyncio.get_running_loop()
        self._way = way
        self._stack = AsyncExitStack()
        self._opening = anyio.Lock()
        self._api: NodeAPI | None = way.service
        self._metadata: MetadataServer | None = None
        self._channels: ProbeChannels | None = None
        self._is_closed = False

    @property
    def key(self) -> Hashable:
        """Equal to the key of each way that may use them."""
        return self._way.key

    async def api(self) -> NodeAPI:
        """Return the Cloud TPU API."""
        async with self._opening:
            if self._api is None:
                self._api = self._way.api(await self._entered(self._way.session()))
            return self._api

    async def metadata(self) -> MetadataServer:
        """Return this machine's metadata server."""
        from aioresolve.gcp.metadata_server import MetadataServer

        async with self._opening:
            if self._metadata is None:
                self._metadata = await self._entered(MetadataServer())
            return self._metadata

    async def channels(self) -> ProbeChannels:
        """Return the channels to workers."""
        from aioresolve.probe import ProbeChannels

        async with self._opening:
            if self._channels is None:
                self._channels = await self._entered(ProbeChannels())
            return self._channels

    async def aclose(self) -> None:
        """Close what was opened."""
        self._is_closed = True
        await self._stack.aclose()

    async def _entered(self, opened: AbstractAsyncContextManager[T]) -> T:
        if self._is_closed:
            raise ConfigurationError("the resolver's `async with` ended while this call was being made")
        return await self._stack.enter_async_context(opened)
