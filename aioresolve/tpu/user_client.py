"""The Cloud TPU API through a client that the user built with googleapiclient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve.errors import APIError, ConnectionFailedError, TPULookupError
from aioresolve.gcp.tpu_api import Node, QueuedResource, decode_node, decode_queued_resource
from aioresolve.gcp.user_service import UserService, decode_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.api_request import ETagCache
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName

T = TypeVar("T")


class UserClient:
    """Sends requests through what `googleapiclient.discovery.build("tpu", ...)` returns."""

    def __init__(self, service: Any) -> None:
        self._service = UserService(service, "projects", ("tpu", "v2"))

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return the node (see `NodeAPI`)."""
        return await self._get(
            lambda locations: locations.nodes().get(name=name.path), name.path, decode_node, progress
        )

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return the queued resource (see `NodeAPI`)."""
        return await self._get(
            lambda locations: locations.queuedResources().get(name=name.path),
            name.path,
            decode_queued_resource,
            progress,
        )

    def with_cache(self, cache: ETagCache) -> UserClient:
        """Return itself: googleapiclient does not expose entity tags."""
        return self

    async def _get(
        self, new_request: Callable[[Any], Any], path: str, decode: Callable[[bytes], T], progress: Progress
    ) -> T:
        scope = f"GET {path}"
        try:
            response = await self._service.execute(
                lambda service: new_request(service.projects().locations()), scope, progress
            )
        except (APIError, ConnectionFailedError) as error:
            status = error.status if isinstance(error, APIError) else None
            raise TPULookupError(
                error.summary,
                hint="Check the client that is passed as {service}, and the name of the TPU ({tpu}).",
                scope=scope,
                status=status,
                retryable=error.retryable,
            ) from error.__cause__
        if isinstance(response, dict) and not response.get("name"):
            response = {**response, "name": path}  # clients for tests may leave it out
        return decode_response(decode, response, scope)
