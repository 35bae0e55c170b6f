"""Clients that the user built with googleapiclient, called in worker threads.

Credentials, TLS, retries and the API version are those of that client, which its owner closes.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve._core.deadline import RETRYABLE_STATUSES
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    ProtocolError,
    TPULookupError,
)

from .client import Page
from .compute_api import RUNNING, GroupMember, Instance, instances_scope
from .credentials import decode
from .tpu_api import Node, QueuedResource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve._core.deadline import Progress

    from .compute_api import ManagedInstance
    from .resource_names import InstanceGroupName, TPUName

SOURCE = "the service object"

T = TypeVar("T")


class UserService:
    """Sends requests through what `googleapiclient.discovery.build` returns for an API, its name and version.

    Calls are made one at a time: httplib2, which that client uses, is not thread-safe. A client of that API
    has the method `collection`.
    """

    def __init__(self, service: Any, collection: str, name: str, version: str) -> None:
        if not callable(getattr(service, collection, None)):
            raise ConfigurationError(
                f"{type(service).__name__} object is not a client of googleapiclient for the API {name!r}",
                argument="service",
                hint=f"Pass what googleapiclient.discovery.build({name!r}, {version!r}) returns.",
            )
        self._api = f"the API {name!r}, version {version!r}"
        self._service = service
        # Not a lock of the event loop: a cancelled call abandons its thread, which may still be running.
        self._lock = threading.Lock()

    async def call(self, function: Callable[[Any], Any], kind: type[T], scope: str, progress: Progress) -> T:
        """Return what `function` returns for the service, in a worker thread, decoded as `kind`."""
        progress.waiting(scope, f"{SOURCE} has not responded")
        is_abandoned = threading.Event()

        def call() -> Any:
            with self._lock:
                return None if is_abandoned.is_set() else self._call(function, scope)

        try:
            response = await run_in_thread(scope, call)
        finally:
            is_abandoned.set()
        progress.done(scope, "responded")
        try:
            return decode(json.dumps(response).encode(), kind)
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"{SOURCE} returned an invalid response to {scope}: {error}", scope=scope
            ) from error

    def _call(self, function: Callable[[Any], Any], scope: str) -> Any:
        try:
            return function(self._service)
        except AttributeError as error:
            raise ConfigurationError(
                f"{SOURCE} does not support {scope}: {error}", hint=f"Build it for {self._api}."
            ) from error
        except Exception as error:  # any transport of httplib2, and google-auth's errors
            status, message = _status(error), " ".join(str(error).split())[:500]
            if status is None:
                reason = f"{type(error).__name__} {message}"
                raise ConnectionFailedError(
                    f"{SOURCE} received no response to {scope}: {reason}", scope=scope
                ) from error
            raise APIError(
                f"{SOURCE} received status {status} for {scope}: {message}",
                scope=scope,
                status=status,
                retryable=status in RETRYABLE_STATUSES,
            ) from error


def _status(error: Exception) -> int | None:
    """Return the status of an HttpError of googleapiclient; after other errors the server did not respond."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "resp", None), "status", None)
    return None if status is None else int(status)


class UserTPUClient:
    """The Cloud TPU API through what `googleapiclient.discovery.build("tpu", ...)` returns; see `TPUAPI`."""

    def __init__(self, service: Any) -> None:
        self._service = UserService(service, "projects", "tpu", "v2")

    async def node(self, name: TPUName, progress: Progress) -> Node:
        """Return a node."""
        return await self._get(name, Node, progress)

    async def queued_resource(self, name: TPUName, progress: Progress) -> QueuedResource:
        """Return a queued resource."""
        return await self._get(name, QueuedResource, progress)

    async def _get(self, name: TPUName, kind: type[T], progress: Progress) -> T:
        scope = f"GET {name}"

        def get(service: Any) -> Any:
            resources = getattr(service.projects().locations(), name.collection)()
            found = resources.get(name=str(name)).execute()
            # Clients for tests may leave the name out.
            return {"name": str(name), **found} if isinstance(found, dict) else found

        try:
            return await self._service.call(get, kind, scope, progress)
        except (APIError, ConnectionFailedError) as error:
            raise TPULookupError(
                error.summary,
                hint="Check the client that is passed as {service}, and the name of the TPU ({tpu}).",
                scope=scope,
                status=error.status if isinstance(error, APIError) else None,
                retryable=error.retryable,
            ) from error.__cause__


class UserComputeClient:
    """Compute Engine through what `googleapiclient.discovery.build("compute", "v1")` returns.

    It gets the requests of TensorFlow's resolver, and no others; see `ComputeAPI`.
    """

    def __init__(self, service: Any) -> None:
        self._service = UserService(service, "instanceGroups", "compute", "v1")

    async def group_members(self, group: InstanceGroupName, progress: Progress) -> list[GroupMember]:
        """Return the instances of a group."""
        location = {"region" if group.is_regional else "zone": group.location}

        def get_pages(service: Any) -> list[Any]:
            groups = service.regionInstanceGroups() if group.is_regional else service.instanceGroups()
            request = groups.listInstances(
                project=group.project, instanceGroup=group.name, body={"instanceState": "ALL"}, **location
            )
            pages: list[Any] = []
            while request is not None:
                pages.append(request.execute())
                request = groups.listInstances_next(previous_request=request, previous_response=pages[-1])
            return pages

        pages = await self._service.call(
            get_pages, list[Page[GroupMember]], f"instances of {group}", progress
        )
        return [member for page in pages for member in page.items]

    async def managed_instances(self, group: InstanceGroupName, progress: Progress) -> list[ManagedInstance]:
        """Raise an APIError."""
        scope = f"manager of {group}"
        raise APIError(f"{SOURCE} is not used for the {scope}", scope=scope, status=501)

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return these instances of a zone."""

        def get_each(service: Any) -> list[Any]:
            instances, found = service.instances(), []
            for name in names:
                try:
                    each = instances.get(project=project, zone=zone, instance=name).execute()
                except Exception as error:
                    if _status(error) == 404:  # it was deleted in the meantime
                        continue
                    raise
                # Clients for tests may leave the name and the status out.
                found.append({"name": name, "status": RUNNING, **each})
            return found

        scope = instances_scope(project, zone, names)
        return await self._service.call(get_each, list[Instance], scope, progress)
