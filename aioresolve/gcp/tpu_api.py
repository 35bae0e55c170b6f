"""The Cloud TPU API: nodes and queued resources, one of them or all of a zone.

Formats: `google/cloud/tpu/v2/cloud_tpu.proto`, as JSON; only the fields that are used are decoded.
Enum values remain strings, so that values added to the API later cause no error.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from aioresolve._core.deadline import RETRYABLE_STATUSES
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, ProtocolError, TPULookupError

from .client import APIRequest, Page
from .credentials import decode
from .resource_names import TPUName, tpu_name, validate_project

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

    from .client import GoogleSession

T = TypeVar("T")

PAGE_SIZE = 500
"""Requested items per page; the server may send fewer."""

MAX_SLICES = 10_000
"""Maximum number of nodes of one queued resource."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class AcceleratorConfig(_Struct, frozen=True):
    """The kind of chip (`V4`, ...) and the topology of the slice (`2x2x4`)."""

    type: str = ""
    topology: str = ""


class AccessConfig(_Struct, frozen=True):
    """The external address of a worker, if it has one."""

    external_ip: str = ""


class NetworkEndpoint(_Struct, frozen=True):
    """Internal address and port of one worker; the port is 0 if the API does not report it."""

    ip_address: str = ""
    port: int = 0
    access_config: AccessConfig | None = None


class Symptom(_Struct, frozen=True):
    """An event on a worker: `OUT_OF_MEMORY`, `MESH_BUILD_FAIL`, ...; the time is in RFC 3339 format."""

    create_time: str = ""
    symptom_type: str = ""
    details: str = ""
    worker_id: str = ""


class Node(_Struct, frozen=True):
    """A TPU node or TPU VM slice, as the API describes it; fields that it leaves out are empty.

    `state` is `READY` or another state, `health` is `HEALTHY` or another. The internal and external address
    of each worker are in `network_endpoints`. A node has `network_config`, or several `network_configs`.
    Objects of which nothing is used here, such as `upcoming_maintenance`, are dicts as in the response.
    """

    name: str
    state: str = ""
    health: str = ""
    health_description: str = ""
    description: str = ""
    accelerator_type: str = ""
    accelerator_config: AcceleratorConfig | None = None
    runtime_version: str = ""
    network_endpoints: tuple[NetworkEndpoint, ...] = ()
    network_config: dict[str, Any] | None = None
    network_configs: tuple[dict[str, Any], ...] = ()
    upcoming_maintenance: dict[str, Any] | None = None
    symptoms: tuple[Symptom, ...] = ()
    queued_resource: str = ""
    id: str | int = ""
    create_time: str = ""
    scheduling_config: dict[str, Any] | None = None
    labels: dict[str, str] = {}


class MultisliceParams(_Struct, frozen=True):
    """The number of nodes of one kind, and the prefix of their ids."""

    node_count: int = 0
    node_id_prefix: str = ""


class NodeSpec(_Struct, frozen=True):
    """Nodes that a queued resource requests; `parent` is `projects/P/locations/Z`."""

    parent: str = ""
    node_id: str = ""
    multislice_params: MultisliceParams | None = None


class TpuSpec(_Struct, frozen=True):
    """The nodes that a queued resource requests."""

    node_spec: tuple[NodeSpec, ...] = ()


class RpcStatus(_Struct, frozen=True):
    """The field of a google.rpc.Status that is used."""

    message: str = ""


class FailedData(_Struct, frozen=True):
    """Why a queued resource failed."""

    error: RpcStatus = RpcStatus()


class QueuedResourceState(_Struct, frozen=True):
    """`state` is `ACTIVE` or another state."""

    state: str = ""
    failed_data: FailedData = FailedData()


class QueuedResource(_Struct, frozen=True):
    """A queued request for TPU nodes, as the API describes it."""

    name: str
    state: QueuedResourceState = QueuedResourceState()
    tpu: TpuSpec = TpuSpec()

    @property
    def node_names(self) -> tuple[TPUName, ...]:
        """The nodes that it requests, in its order, whether or not they exist yet.

        A ValueError if the server returned an invalid name or number.
        """
        names: list[TPUName] = []
        for spec in self.tpu.node_spec:
            match (spec.parent or self.name).split("/"):
                case ["projects", project, "locations", zone, *_]:
                    names += [tpu_name(name, project, zone) for name in self._ids(spec)]
                case _:
                    raise ValueError(f"{spec.parent or self.name!r} is not the name of a location")
        return tuple(names)

    def _ids(self, spec: NodeSpec) -> list[str]:
        """Return the ids of nodes, derived from that of this queued resource as the API does it."""
        own, several = self.name.rpartition("/")[2], spec.multislice_params
        if several is None:
            return [spec.node_id or own]
        if several.node_count > MAX_SLICES:
            raise ValueError(f"node_count is {several.node_count}")
        return [f"{several.node_id_prefix or own}-{index}" for index in range(several.node_count)]


class TPUAPI:
    """The Cloud TPU API. Its version v1 has only legacy TPU nodes, and is not used."""

    def __init__(self, session: GoogleSession) -> None:
        self.session = session

    async def node(self, name: TPUName, progress: Progress) -> Node:
        """Return a node; an APIError with status 404 if it does not exist."""
        request = APIRequest(f"/v2/{name}", f"TPU node {name}", "tpu.nodes.get", name.project)
        return await self.session.get(request, Node, progress)

    async def nodes(self, project: str, progress: Progress) -> list[Node]:
        """Return the nodes of all zones that can be reached."""
        path = f"/v2/projects/{validate_project(project)}/locations/-/nodes"
        query = {"pageSize": str(PAGE_SIZE)}
        request = APIRequest(path, f"TPU nodes of project {project}", "tpu.nodes.list", project, query)
        pages = await self.session.get_pages(request, Page[Node], progress)
        return [node for page in pages for node in page.nodes]

    async def queued_resource(self, name: TPUName, progress: Progress) -> QueuedResource:
        """Return a queued resource; an APIError with status 404 if it does not exist."""
        scope, permission = f"queued resource {name}", "tpu.queuedResources.get"
        request = APIRequest(f"/v2/{name}", scope, permission, name.project)
        return await self.session.get(request, QueuedResource, progress)


class UserTPUClient:
    """The Cloud TPU API through what `googleapiclient.discovery.build("tpu", "v2")` returns; see `TPUAPI`.

    Calls are made one at a time: httplib2, which that client uses, is not thread-safe.
    """

    def __init__(self, service: Any) -> None:
        if not callable(getattr(service, "projects", None)):
            raise ConfigurationError(
                f"{type(service).__name__} object is not a client of googleapiclient for the API 'tpu'",
                argument="service",
                hint="Pass what googleapiclient.discovery.build('tpu', 'v2') returns.",
            )
        self._service = service
        # Not a lock of the event loop: a cancelled call abandons its thread, which may still be running.
        self._lock = threading.Lock()

    async def node(self, name: TPUName, progress: Progress) -> Node:
        """Return a node; a TPULookupError after any failure."""
        return await self._get(name, Node, progress)

    async def queued_resource(self, name: TPUName, progress: Progress) -> QueuedResource:
        """Return a queued resource; a TPULookupError after any failure."""
        return await self._get(name, QueuedResource, progress)

    async def _get(self, name: TPUName, kind: type[T], progress: Progress) -> T:
        scope, is_abandoned = f"GET {name}", threading.Event()
        progress.waiting(scope, "the service object has not responded")

        def get() -> Any:
            with self._lock:
                return None if is_abandoned.is_set() else self._call(name, scope)

        try:
            found = await run_in_thread(scope, get)
        finally:
            is_abandoned.set()
        progress.done(scope, "responded")
        if isinstance(found, dict):  # clients for tests may leave the name out
            found = {"name": str(name), **found}
        try:
            return decode(json.dumps(found).encode(), kind)
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"the service object returned an invalid response to {scope}: {error}", scope=scope
            ) from error

    def _call(self, name: TPUName, scope: str) -> Any:
        try:
            locations = self._service.projects().locations()
            if not hasattr(locations, name.collection):
                raise ConfigurationError(
                    f"the service object does not support {scope}",
                    argument="service",
                    hint="Build it for version 2 of the API: v1 has no queued resources.",
                )
            return getattr(locations, name.collection)().get(name=str(name)).execute()
        except ConfigurationError:
            raise
        except Exception as error:  # any transport of httplib2, and google-auth's errors
            # An HttpError of googleapiclient has a status; after other errors the server did not respond.
            response = getattr(error, "resp", None)
            status = getattr(error, "status_code", None) or getattr(response, "status", None)
            failed = f"received no response to {scope}: {type(error).__name__}"
            if status is not None:
                failed = f"received status {status} for {scope}:"
            raise TPULookupError(
                f"the service object {failed} {' '.join(str(error).split())[:500]}",
                hint="Check the client that is passed as {service}, and the name of the TPU ({tpu}).",
                scope=scope,
                status=None if status is None else int(status),
                retryable=status is None or int(status) in RETRYABLE_STATUSES,
            ) from error
