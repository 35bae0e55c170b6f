"""A client that the user built with googleapiclient, called in worker threads.

Credentials, TLS, retries and the API version are those of that client, which its owner closes.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve._core.retry import RETRYABLE_STATUSES
from aioresolve._core.threads import run_in_thread
from aioresolve._core.token_cache import CrossLoopLock
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.deadline import Progress

SOURCE = "the service object"

T = TypeVar("T")


class UserService:
    """Sends requests through what `googleapiclient.discovery.build` returns.

    Calls are made one at a time: httplib2, which that client uses, is not thread-safe.

    Args:
        service: that client.
        collection: a method that the client of the right API has, such as `projects`.
        api: the name and version of the API, as for `build`.

    Raises:
        ConfigurationError: `service` has no such method.
    """

    def __init__(self, service: Any, collection: str, api: tuple[str, str]) -> None:
        name, version = api
        if not callable(getattr(service, collection, None)):
            raise ConfigurationError(
                f"{type(service).__name__} object is not a client of googleapiclient for the API {name!r}",
                argument="service",
                hint=f"Pass what googleapiclient.discovery.build({name!r}, {version!r}) returns.",
            )
        self._api = api
        self._service = service
        self._lock = CrossLoopLock()
        # A cancelled call abandons its thread, which may still be running: the next call waits for it.
        self._thread_lock = threading.Lock()

    async def execute(self, new_request: Callable[[Any], Any], scope: str, progress: Progress) -> Any:
        """Return the response to a request of the service; both are made in a worker thread.

        A service that does not support the request is a ConfigurationError.
        """
        progress.waiting(scope, f"{SOURCE} has not responded")
        is_abandoned = threading.Event()
        try:
            async with self._lock:
                response = await run_in_thread(scope, self._execute, new_request, scope, is_abandoned)
        finally:
            is_abandoned.set()
        progress.done(scope, "responded")
        return response

    def _execute(self, new_request: Callable[[Any], Any], scope: str, is_abandoned: threading.Event) -> Any:
        """Return the response. Runs in a worker thread."""
        with self._thread_lock:
            if is_abandoned.is_set():
                return None
            try:
                return new_request(self._service).execute()
            except AttributeError as error:
                name, version = self._api
                raise ConfigurationError(
                    f"{SOURCE} does not support {scope}: {error}",
                    hint=f"Build it for the API {name!r}, version {version!r}.",
                ) from error
            except Exception as error:  # any transport of httplib2, and google-auth's errors
                raise _translate_error(error, scope) from error


def decode_response(decode: Callable[[bytes], T], response: Any, scope: str) -> T:
    """Return a decoded response of the service; a ProtocolError if it has another format."""
    try:
        return decode(json.dumps(response).encode())
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            f"{SOURCE} returned an invalid response to {scope}: {error}", scope=scope
        ) from error


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
