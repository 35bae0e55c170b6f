"""The Cloud TPU API through a client that the user built with googleapiclient, called in worker threads.

Credentials, TLS, retries and the API version are those of that client, which its owner closes.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve._core.concurrency import CrossLoopLock, run_in_thread
from aioresolve._core.retry import RETRYABLE_STATUSES
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, ProtocolError
from aioresolve.gcp.tpu_api import Node, QueuedResource, decode_node, decode_queued_resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.api_request import ETagCache
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName

T = TypeVar("T")

SOURCE = "the service object"


class UserClient:
    """Sends requests through what `googleapiclient.discovery.build("tpu", ...)` returns.

    Calls are made one at a time: httplib2, which that client uses, is not thread-safe.
    """

    def __init__(self, service: Any) -> None:
        if not callable(getattr(service, "projects", None)):
            raise ConfigurationError(
                f"{type(service).__name__} object is not a client of googleapiclient",
                argument="service",
                hint="Pass what googleapiclient.discovery.build('tpu', 'v2') returns.",
            )
        self._service = service
        self._lock = CrossLoopLock()
        # A cancelled call abandons its thread, which may still be running: the next call waits for it.
        self._thread_lock = threading.Lock()

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return the node (see `NodeAPI`)."""
        return await self._get(
            lambda: self._locations().nodes().get(name=name.path), name.path, decode_node, progress
        )

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return the queued resource (see `NodeAPI`)."""
        return await self._get(
            lambda: self._locations().queuedResources().get(name=name.path),
            name.path,
            decode_queued_resource,
            progress,
        )

    def with_cache(self, cache: ETagCache) -> UserClient:
        """Return itself: googleapiclient does not expose entity tags."""
        return self

    def _locations(self) -> Any:
        return self._service.projects().locations()

    async def _get(
        self, new_request: Callable[[], Any], path: str, decode: Callable[[bytes], T], progress: Progress
    ) -> T:
        scope = f"GET {path}"
        progress.waiting(scope, f"{SOURCE} has not responded")
        is_abandoned = threading.Event()
        try:
            async with self._lock:
                response = await run_in_thread(
                    f"request {path}", self._execute, new_request, scope, is_abandoned
                )
        finally:
            is_abandoned.set()
        progress.done(scope, "responded")
        if isinstance(response, dict) and not response.get("name"):
            response = {**response, "name": path}  # clients for tests may leave it out
        try:
            return decode(json.dumps(response).encode())
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"{SOURCE} returned an invalid response to {scope}: {error}", scope=scope
            ) from error

    def _execute(self, new_request: Callable[[], Any], scope: str, is_abandoned: threading.Event) -> Any:
        """Return the response. Runs in a worker thread."""
        with self._thread_lock:
            if is_abandoned.is_set():
                return None
            try:
                return new_request().execute()
            except AttributeError as error:
                raise ConfigurationError(
                    f"{SOURCE} does not support {scope}: {error}",
                    hint="Build it for the API 'tpu', version 'v2'.",
                ) from error
            except Exception as error:  # any transport of httplib2, and google-auth's errors
                raise _translate_error(error, scope) from error


def _translate_error(error: Exception, scope: str) -> APIError | ConnectionFailedError:
    """Return our error for one of googleapiclient. An HttpError has a status; others mean no response."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "resp", None), "status", None)
    message = " ".join(str(error).split())[:500]
    if status is None:
        return ConnectionFailedError(
            f"{SOURCE} received no response to {scope}: {type(error).__name__} {message}", scope=scope
        )
    status = int(status)
    return APIError(
        f"{SOURCE} received status {status} for {scope}: {message}",
        scope=scope,
        status=status,
        retryable=status in RETRYABLE_STATUSES,
    )
