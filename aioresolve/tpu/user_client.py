"""A client of the Cloud TPU API that the user made with googleapiclient, asked in worker threads.

Its credentials, TLS, retries and version are its owner's, who also closes it.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from aioresolve._core.concurrency import Turn
from aioresolve._core.retry import PASSING
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, ProtocolError
from aioresolve.gcp.messages import Node, QueuedResource, decode_node, decode_queued_resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.retry import Progress
    from aioresolve.gcp.api_request import KnownAnswers
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName

__all__ = ["ServiceAPI"]

T = TypeVar("T")

SOURCE = "the service object"


class ServiceAPI:
    """Asks for nodes and queued resources through what `googleapiclient.discovery.build("tpu", ...)` returns.

    Calls are made one at a time: httplib2, which it stands on, is not made for several threads.

    Raises:
        ConfigurationError: the object has no `projects()`.
    """

    def __init__(self, service: Any) -> None:
        if not callable(getattr(service, "projects", None)):
            raise ConfigurationError(
                f"service is a {type(service).__name__}; give what"
                " googleapiclient.discovery.build('tpu', 'v2') returns"
            )
        self._service = service
        self._turn = Turn()
        # A call that was given up leaves its thread behind, which the next one then waits for.
        self._lock = threading.Lock()

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return the node."""
        return await self._asked(
            lambda: self._locations().nodes().get(name=name.path), name.path, decode_node, progress
        )

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return the queued resource."""
        return await self._asked(
            lambda: self._locations().queuedResources().get(name=name.path),
            name.path,
            decode_queued_resource,
            progress,
        )

    def remembering(self, known: KnownAnswers) -> ServiceAPI:
        """Return itself: googleapiclient shows no entity tags."""
        return self

    def _locations(self) -> Any:
        return self._service.projects().locations()

    async def _asked(
        self,
        request: Callable[[], Any],
        path: str,
        decoded: Callable[[bytes], T],
        progress: Progress,
    ) -> T:
        scope = f"GET {path}"
        progress.waiting(scope, f"{SOURCE} has not answered")
        is_given_up = threading.Event()
        try:
            async with self._turn:
                answer = await anyio.to_thread.run_sync(
                    self._executed,
                    request,
                    scope,
                    is_given_up,
                    abandon_on_cancel=True,
                    limiter=anyio.CapacityLimiter(1),
                )
        finally:
            is_given_up.set()
        progress.done(scope, "answered")
        try:
            return decoded(json.dumps(answer).encode())
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"{SOURCE} answered {scope} with what is none of the API's: {error}", scope=scope
            ) from error

    def _executed(self, request: Callable[[], Any], scope: str, is_given_up: threading.Event) -> Any:
        """Return what the request answers. It runs in a worker thread."""
        with self._lock:
            if is_given_up.is_set():
                return None
            try:
                return request().execute()
            except AttributeError as error:
                raise ConfigurationError(
                    f"{SOURCE} cannot be asked for {scope}: {error}; build it for the API 'tpu', version 'v2'"
                ) from error
            except Exception as error:  # every transport of httplib2's, and google-auth's own
                raise _service_error(error, scope) from error


def _service_error(error: Exception, scope: str) -> APIError | ConnectionFailedError:
    """Return our error for one of googleapiclient's; an HttpError knows its status, others are no answer."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "resp", None), "status", None)
    said = " ".join(str(error).split())[:500]
    if status is None:
        return ConnectionFailedError(
            f"{SOURCE} got no answer to {scope}: {type(error).__name__} {said}", scope=scope
        )
    status = int(status)
    return APIError(
        f"{SOURCE} was answered {status} for {scope}: {said}",
        scope=scope,
        status=status,
        retryable=status in PASSING,
    )
