"""What Google's APIs say, as JSON, decoded into the fields that are read. The room of msgspec.

Formats: `google/cloud/tpu/v1` and `v2/cloud_tpu.proto`, `google/rpc/error_details.proto`, RFC 6749.
Enum values stay strings, so that one this version has never heard of is none the worse for it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .resource_names import NodeName

__all__ = [
    "AcceleratorConfig",
    "AccessConfig",
    "AccessToken",
    "FailedData",
    "Failure",
    "NetworkEndpoint",
    "Node",
    "NodePage",
    "NodeSpec",
    "QueuedResource",
    "QueuedResourcePage",
    "QueuedResourceState",
    "SchedulingConfig",
    "Symptom",
    "decode_failure",
    "decode_node",
    "decode_node_page",
    "decode_queued_resource",
    "decode_queued_resource_page",
    "decode_token",
]

T = TypeVar("T")

MAX_SLICES = 10_000
"""Nodes of one queued resource that are believed."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class AcceleratorConfig(_Struct, frozen=True):
    """The kind of chip (`V4`, ...) and the topology of the slice (`2x2x4`)."""

    type: str = ""
    topology: str = ""


class AccessConfig(_Struct, frozen=True):
    """A worker's external address, if it has one."""

    external_ip: str = ""


class NetworkEndpoint(_Struct, frozen=True):
    """Where one worker listens: internal address and port (0 where the API names none)."""

    ip_address: str = ""
    port: int = 0
    access_config: AccessConfig | None = None


class Symptom(_Struct, frozen=True):
    """Something that happened to a worker: `OUT_OF_MEMORY`, `MESH_BUILD_FAIL`, ...; the time is RFC 3339."""

    create_time: str = ""
    symptom_type: str = ""
    details: str = ""
    worker_id: str = ""


class SchedulingConfig(_Struct, frozen=True):
    """Whether the node can be taken away."""

    preemptible: bool = False
    reserved: bool = False
    spot: bool = False


class Node(_Struct, frozen=True):
    """A TPU node or TPU VM slice, in the API's own words; what the API left out is empty.

    `state` is `READY` and so on, `health` `HEALTHY` and so on. `ip_address`, `port` and `tensorflow_version`
    are v1's.
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
    symptoms: tuple[Symptom, ...] = ()
    multislice_node: bool = False
    queued_resource: str = ""
    api_version: str = ""
    id: str | int = ""
    create_time: str = ""
    scheduling_config: SchedulingConfig | None = None
    labels: dict[str, str] = {}
    ip_address: str = ""
    port: str | int = ""
    tensorflow_version: str = ""

    @property
    def node_name(self) -> NodeName:
        """Its name: project, zone and id.

        Raises:
            ValueError: the server named it otherwise.
        """
        match self.name.split("/"):
            case ["projects", project, "locations", zone, "nodes", name]:
                return NodeName(project, zone, name)
        raise ValueError(f"{self.name!r} is no name of a node")

    @property
    def endpoints(self) -> tuple[NetworkEndpoint, ...]:
        """Where its workers listen, in the API's order; v1's one address where that is all there is."""
        if self.network_endpoints or not self.ip_address:
            return self.network_endpoints
        port = int(self.port) if str(self.port).isdigit() else 0
        return (NetworkEndpoint(ip_address=self.ip_address, port=port),)


class NodePage(_Struct, frozen=True):
    """One page of nodes, and the locations that could not be asked."""

    nodes: tuple[Node, ...] = ()
    next_page_token: str = ""
    unreachable: tuple[str, ...] = ()


class MultisliceParams(_Struct, frozen=True):
    """How many nodes of one kind, and how their ids begin."""

    node_count: int = 0
    node_id_prefix: str = ""


class NodeSpec(_Struct, frozen=True):
    """Nodes that a queued resource is to have; `parent` is `projects/P/locations/Z`."""

    parent: str = ""
    node_id: str = ""
    multislice_params: MultisliceParams | None = None

    def ids(self, queued_resource: str) -> list[str]:
        """The nodes' ids, made as the API makes them of a queued resource's own id.

        Raises:
            ValueError: there are to be more than a queued resource may have.
        """
        several = self.multislice_params
        if several is None:
            return [self.node_id or queued_resource]
        if several.node_count > MAX_SLICES:
            raise ValueError(f"node_count is {several.node_count}")
        prefix = several.node_id_prefix or queued_resource
        return [f"{prefix}-{index}" for index in range(several.node_count)]


class TpuSpec(_Struct, frozen=True):
    """The nodes that a queued resource is to have."""

    node_spec: tuple[NodeSpec, ...] = ()


class RpcStatus(_Struct, frozen=True):
    """The part of a google.rpc.Status that is read."""

    code: int = 0
    message: str = ""


class FailedData(_Struct, frozen=True):
    """Why a queued resource failed."""

    error: RpcStatus | None = None


class QueuedResourceState(_Struct, frozen=True):
    """`state` is `ACTIVE` and so on; `state_initiator` is `USER` or `SERVICE`."""

    state: str = ""
    state_initiator: str = ""
    failed_data: FailedData | None = None


class QueuedResource(_Struct, frozen=True):
    """A request for TPU nodes that waits for them, in the API's own words."""

    name: str
    create_time: str = ""
    state: QueuedResourceState | None = None
    tpu: TpuSpec | None = None
    reservation_name: str = ""

    @property
    def status(self) -> str:
        """`ACTIVE`, `WAITING_FOR_RESOURCES`, ...; empty where the API does not say."""
        return "" if self.state is None else self.state.state

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """The nodes it is to have, in its order, whether or not they exist yet.

        Raises:
            ValueError: the server named the queued resource or a parent otherwise.
        """
        specs = self.tpu.node_spec if self.tpu is not None else ()
        return tuple(name for spec in specs for name in self._names(spec))

    def _names(self, spec: NodeSpec) -> list[NodeName]:
        match self.name.split("/"):
            case ["projects", _, "locations", _, "queuedResources", own]:
                pass
            case _:
                raise ValueError(f"{self.name!r} is no name of a queued resource")
        match (spec.parent or self.name).split("/"):
            case ["projects", project, "locations", zone, *_]:
                return [NodeName(project, zone, name) for name in spec.ids(own)]
        raise ValueError(f"{spec.parent!r} is no name of a location")


class QueuedResourcePage(_Struct, frozen=True):
    """One page of queued resources, and the locations that could not be asked."""

    queued_resources: tuple[QueuedResource, ...] = ()
    next_page_token: str = ""
    unreachable: tuple[str, ...] = ()


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata server hands out; `expires_in` is in seconds."""

    access_token: str
    expires_in: float = 0.0

    def __repr__(self) -> str:
        return f"AccessToken(expires_in={self.expires_in})"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an API refused, as far as it said.

    `status` is the gRPC code's name (`PERMISSION_DENIED`), `reason` the finer word (`SERVICE_DISABLED`),
    `metadata` what comes with that, `retry_delay` the seconds to wait.
    """

    message: str = ""
    status: str = ""
    reason: str = ""
    metadata: dict[str, str] = {}
    retry_delay: float | None = None


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    reason: Any = None
    metadata: Any = None
    retry_delay: Any = None


class _OldDetail(msgspec.Struct, frozen=True):
    reason: str = ""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    status: str = ""
    details: tuple[_Detail, ...] = ()
    errors: tuple[_OldDetail, ...] = ()


class _Failed(msgspec.Struct, frozen=True):
    error: _Error | str
    error_description: str = ""


# protojson writes 64-bit numbers as strings, and older servers 32-bit ones too.
_nodes = msgspec.json.Decoder(Node, strict=False)
_node_pages = msgspec.json.Decoder(NodePage, strict=False)
_queued_resources = msgspec.json.Decoder(QueuedResource, strict=False)
_queued_resource_pages = msgspec.json.Decoder(QueuedResourcePage, strict=False)
_tokens = msgspec.json.Decoder(AccessToken, strict=False)
_failures = msgspec.json.Decoder(_Failed)


def decode_node(body: bytes) -> Node:
    """Return the Node that `body` holds; raises a ValueError that says where it differs."""
    return _decoded(_nodes, body)


def decode_node_page(body: bytes) -> NodePage:
    """Return the page of nodes that `body` holds; raises a ValueError that says where it differs."""
    return _decoded(_node_pages, body)


def decode_queued_resource(body: bytes) -> QueuedResource:
    """Return the QueuedResource that `body` holds; raises a ValueError that says where it differs."""
    return _decoded(_queued_resources, body)


def decode_queued_resource_page(body: bytes) -> QueuedResourcePage:
    """Return the queued resources that `body` holds; raises a ValueError that says where it differs."""
    return _decoded(_queued_resource_pages, body)


def decode_token(body: bytes) -> AccessToken:
    """Return the access token that `body` holds; raises a ValueError that shows nothing of it."""
    return _decoded(_tokens, body)


def decode_failure(body: bytes) -> Failure:
    """Return why an API refused; an empty Failure where `body` does not say, being a proxy's page, say."""
    try:
        error = _decoded(_failures, body)
    except ValueError:
        return Failure()
    if isinstance(error.error, str):
        return Failure(message=error.error_description or error.error, status=error.error)
    reason, metadata, delay = "", {}, None
    for detail in error.error.details:
        if isinstance(detail.reason, str) and not reason:
            reason = detail.reason
            pairs = detail.metadata.items() if isinstance(detail.metadata, dict) else ()
            metadata = {str(name): str(value) for name, value in pairs}
        delay = _seconds(detail.retry_delay) if delay is None else delay
    reason = reason or next((old.reason for old in error.error.errors), "")
    return Failure(
        message=error.error.message,
        status=error.error.status,
        reason=reason,
        metadata=metadata,
        retry_delay=delay,
    )


def _seconds(duration: object) -> float | None:
    """Return a google.protobuf.Duration, such as `1.5s`, in seconds."""
    if not isinstance(duration, str) or not duration.endswith("s"):
        return None
    try:
        return max(0.0, float(duration[:-1]))
    except ValueError:
        return None


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
