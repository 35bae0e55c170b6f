"""A project of Google Cloud: TPU nodes, queued resources and VMs, in the formats of the APIs."""

from __future__ import annotations

import copy
import re
import threading
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, Hint
from aioresolve.testing.lifecycle import merge_patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .tokens import Tokens

_FULL_NAME = re.compile(r"projects/([^/]+)/(?:locations|zones)/([^/]+)/([A-Za-z]+)/([^/]+)")
_CREATED = "2026-11-20T15:39:21.123456789Z"


def tpu_node(
    name: str,
    *,
    workers: int = 1,
    ips: Sequence[str] | None = None,
    external_ips: Sequence[str] = (),
    port: int = 8470,
    accelerator_type: str = "v4-8",
    accelerator: str = "V4",
    topology: str = "2x2x1",
    state: str = "READY",
    health: str | None = "HEALTHY",
    health_description: str = "",
    symptoms: Sequence[Mapping[str, str]] = (),
    queued_resource: str = "",
    api_version: str = "V2",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a TPU node in the format of v2 of the API, for `GoogleServer(nodes)` and `server.add`.

    Args:
        name: its id, which means the server's own project and zone, or `projects/P/locations/Z/nodes/N`.
        workers: the number of workers, each with its own address.
        ips: their internal addresses; the default derives them from the name.
        external_ips: the external addresses of the first workers.
        port: the port of every worker.
        accelerator_type: such as `v4-8`.
        accelerator: such as `V4`.
        topology: such as `2x2x1`.
        state: such as `READY`.
        health: such as `HEALTHY`; None leaves the field out, as the API does for some nodes.
        health_description: why it is unhealthy.
        symptoms: values of `symptom()`.
        queued_resource: the full name of the queued resource to which it belongs.
        api_version: `V1` for an old TPU node, which both versions of the API have; `V2` for a TPU VM, which
            v1 does not have.
        labels: its labels.
    """
    found = _addresses(name, workers) if ips is None else list(ips)
    node: dict[str, Any] = {
        "name": name,
        "acceleratorType": accelerator_type,
        "state": state,
        "runtimeVersion": "tpu-vm-tf-2.16.1-pjrt" if api_version == "V2" else "2.16.1",
        "networkConfig": {"network": "default", "subnetwork": "default"},
        "createTime": _CREATED,
        "schedulingConfig": {},
        "networkEndpoints": [
            {
                "ipAddress": ip,
                "port": port,
                "accessConfig": {"externalIp": external_ips[index]} if index < len(external_ips) else {},
            }
            for index, ip in enumerate(found)
        ],
        "id": str(zlib.crc32(name.encode()) + (1 << 60)),
        "apiVersion": api_version,
        "acceleratorConfig": {"type": accelerator, "topology": topology},
    }
    optional = {
        "health": health,
        "healthDescription": health_description,
        "symptoms": [dict(each) for each in symptoms],
        "queuedResource": queued_resource,
        "multisliceNode": bool(queued_resource),
        "labels": dict(labels or {}),
    }
    # protojson leaves out fields with default values.
    return node | {field: value for field, value in optional.items() if value}


def symptom(kind: str, details: str = "", *, worker: str = "0") -> dict[str, str]:
    """Return a symptom of a worker, such as `OUT_OF_MEMORY`."""
    return {"createTime": _CREATED, "symptomType": kind, "details": details, "workerId": worker}


def queued_resource(
    name: str,
    *,
    nodes: int = 1,
    node_id: str | None = None,
    state: str = "ACTIVE",
    initiator: str = "USER",
    error: str = "",
) -> dict[str, Any]:
    """Return a queued resource in the format of v2 of the API, for `GoogleServer(nodes)` and `server.add`.

    Args:
        name: its id, which means the server's own project and zone, or its full name.
        nodes: the number of slices; more than one are named `NODE_ID-0`, `NODE_ID-1`, ...
        node_id: the id of its node, or the prefix of their ids; the default is its own id.
        state: such as `ACTIVE`.
        initiator: the cause of the state, `USER` or `SERVICE`.
        error: why it failed.
    """
    own = node_id or name.rpartition("/")[2]
    strategy: dict[str, Any] = (
        {"nodeId": own} if nodes == 1 else {"multisliceParams": {"nodeCount": nodes, "nodeIdPrefix": own}}
    )
    node = tpu_node("", workers=0)
    spec = {field: node[field] for field in ("acceleratorType", "runtimeVersion", "networkConfig")}
    reached: dict[str, Any] = {"state": state, "stateInitiator": initiator}
    if error:
        reached["failedData"] = {"error": {"code": 8, "message": error}}
    return {
        "name": name,
        "createTime": _CREATED,
        "tpu": {"nodeSpec": [{**strategy, "node": spec}]},
        "state": reached,
    }


def instance(
    name: str,
    *,
    ip: str | None = None,
    external_ip: str | None = None,
    ipv6: str | None = None,
    status: str = "RUNNING",
    labels: Mapping[str, str] | None = None,
    accelerators: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return a VM in the format of v1 of the Compute Engine API, for `GoogleServer(nodes)` and `server.add`.

    Args:
        name: its name, which means the server's own project and zone, or `projects/P/zones/Z/instances/NAME`.
        ip: its internal address; the default derives it from the name.
        external_ip: its external address.
        ipv6: its IPv6 address.
        status: such as `RUNNING`.
        labels: its labels.
        accelerators: the number of its accelerators by type, such as `{"nvidia-h100-80gb": 8}`.
    """
    interface: dict[str, Any] = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "networkIP": ip or _addresses(name, 1)[0],
        "stackType": "IPV4_IPV6" if ipv6 else "IPV4_ONLY",
    }
    if ipv6:
        interface["ipv6Address"] = ipv6
    if external_ip:
        interface["accessConfigs"] = [
            {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "natIP": external_ip}
        ]
    kinds = "https://www.googleapis.com/compute/v1/projects/p/zones/z/acceleratorTypes"
    attached = [
        {"acceleratorType": f"{kinds}/{kind}", "acceleratorCount": number}
        for kind, number in (accelerators or {}).items()
    ]
    return ({"guestAccelerators": attached} if attached else {}) | {
        "kind": "compute#instance",
        "id": str(zlib.crc32(name.encode()) + (1 << 60)),
        "creationTimestamp": "2026-11-20T07:39:21.123-08:00",
        "name": name,
        "status": status,
        "networkInterfaces": [interface],
        "labels": dict(labels or {}),
    }


def tpu_vm(
    *,
    hosts: Sequence[str],
    worker: int = 0,
    accelerator_type: str = "v4-8",
    topology: str = "2x2x1",
    node: str = "my-tpu",
    zone: str = "us-central2-b",
    triples: bool = True,
) -> dict[str, str]:
    """Return the values, by path, that the metadata server of a TPU VM has in addition to those of every VM.

    Args:
        hosts: the address of each worker of its slice.
        worker: the index of this VM among them.
        accelerator_type: such as `v4-8`.
        topology: such as `2x2x1`.
        node: the id of the TPU node.
        zone: the node's zone.
        triples: whether `worker-network-endpoints` has entries `name:id:address` rather than addresses.
    """
    environment = {
        "ACCELERATOR_TYPE": accelerator_type,
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "HOST_BOUNDS": f"1,1,{len(hosts)}",
        "NODE_ID": node,
        "TOPOLOGY": topology,
        "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434",
        "WORKER_ID": str(worker),
        "ZONE": zone,
    }
    endpoints = [f"unknown:unknown:{host}" for host in hosts] if triples else list(hosts)
    attributes = {
        "accelerator-type": accelerator_type,
        "agent-worker-number": str(worker),
        "instance-id": node,
        "tpu-env": "".join(f"{name}: '{value}'\n" for name, value in environment.items()),
        "worker-network-endpoints": ",".join(endpoints),
    }
    paths = {f"instance/attributes/{name}": value for name, value in attributes.items()}
    return paths | {"instance/network-interfaces/0/ip": hosts[worker]}


def _addresses(name: str, count: int) -> list[str]:
    """Return internal addresses for the workers of `name`, the same at every call."""
    start = zlib.crc32(name.encode()) & 0xFF
    return [f"10.{start}.{index // 250}.{index % 250 + 2}" for index in range(count)]


@dataclass(frozen=True, slots=True)
class GoogleRequest:
    """A request that the server received, without its token, key or assertion.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        service: `metadata`, `oauth2`, `sts`, `iamcredentials`, `tpu`, `compute`; empty for anything else.
        scheme: how the client authenticated: `Bearer` or empty.
        user: the authenticated IAM member; None without a token, or if it was rejected.
        certificate: the common name of the client certificate, if there was one.
        quota_project: the header `X-Goog-User-Project`.
        user_agent: the `User-Agent` header.
        time: when it arrived, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    service: str = ""
    scheme: str = ""
    user: str | None = None
    certificate: str = ""
    quota_project: str = ""
    user_agent: str = ""
    time: float = 0.0


class ResourceStore:
    """The resources of one collection by full name, with the states that later requests will see.

    Methods that need an existing resource raise a KeyError.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._resources: dict[str, dict[str, Any]] = {}
        self._scripts: dict[str, deque[Mapping[str, Any]]] = {}

    def put(self, name: str, resource: Mapping[str, Any]) -> None:
        """Write `resource`, in place of the resource of the same name if there is one."""
        with self._lock:
            self._resources[name] = copy.deepcopy(dict(resource))
            self._scripts.pop(name, None)

    def patch(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `patch` into a resource (RFC 7386: None removes) and return a copy of it."""
        with self._lock:
            # A copy of the patch: the caller keeps the original and may change it.
            self._resources[name] = merge_patch(self._resources[name], copy.deepcopy(dict(patch)))
            return copy.deepcopy(self._resources[name])

    def script(self, name: str, patches: Iterable[Mapping[str, Any]]) -> None:
        """Merge the next patch into the resource at each of the next requests that read it."""
        with self._lock:
            if name not in self._resources:
                raise KeyError(name)
            self._scripts[name] = deque(patches)

    def delete(self, name: str) -> None:
        """Delete a resource."""
        with self._lock:
            del self._resources[name]
            self._scripts.pop(name, None)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a copy of a resource, None if it does not exist."""
        with self._lock:
            return copy.deepcopy(self._resources.get(name))

    def read_next(self, name: str) -> dict[str, Any] | None:
        """Apply the next step of the resource's script, if any, and return a copy of the resource."""
        with self._lock:
            script = self._scripts.get(name)
            if script:
                self.patch(name, script.popleft())
            return self.get(name)

    @property
    def names(self) -> list[str]:
        """Every full name, in order."""
        with self._lock:
            return sorted(self._resources)


@dataclass(slots=True)
class Cloud:
    """One project, its resources, and the settings of its APIs; resources with a short name are in `zone`."""

    project: str
    zone: str
    tokens: Tokens
    page_size: int
    etags: bool
    lock: threading.RLock = field(default_factory=threading.RLock)
    metadata: dict[str, str] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    instance_groups: dict[str, list[str]] = field(default_factory=dict)
    unmanaged_groups: set[str] = field(default_factory=set)
    managed_instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: ResourceStore = field(init=False)
    queued_resources: ResourceStore = field(init=False)
    instances: ResourceStore = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = ResourceStore(self.lock)
        self.queued_resources = ResourceStore(self.lock)
        self.instances = ResourceStore(self.lock)

    def add(self, resource: Mapping[str, Any]) -> str:
        """Write a resource from `tpu_node`, `queued_resource` or `instance`, and return its full name."""
        if "networkInterfaces" in resource:
            name = self.full_name(resource["name"], "instances")
            self.instances.put(name, {**resource, "name": name.rpartition("/")[2]})
        elif "tpu" in resource:
            name = self.full_name(resource["name"], "queuedResources")
            parent = name.partition("/queuedResources/")[0]
            specs = [{"parent": parent, **spec} for spec in resource["tpu"].get("nodeSpec", ())]
            self.queued_resources.put(name, {**resource, "name": name, "tpu": {"nodeSpec": specs}})
        elif "networkEndpoints" in resource or "acceleratorType" in resource:
            name = self.full_name(resource["name"], "nodes")
            self.nodes.put(name, {**resource, "name": name})
        else:
            raise ConfigurationError(
                "the value is not a TPU node, queued resource or instance",
                hint="Make it with tpu_node(), queued_resource() or instance().",
            )
        return name

    def full_name(self, name: str, collection: str) -> str:
        """Return `projects/P/locations/Z/COLLECTION/NAME` for a short or full name."""
        if "/" not in name:
            place = "zones" if collection == "instances" else "locations"
            return f"projects/{self.project}/{place}/{self.zone}/{collection}/{name}"
        found = _FULL_NAME.fullmatch(name)
        if found is None or found[3] != collection:
            example = f"projects/{self.project}/locations/{self.zone}/{collection}/ID"
            raise ConfigurationError(
                f"{name!r} is not the full name of one of {collection}",
                hint=Hint("Write it as {example}.", {"example": example}),
            )
        return name

    def group_name(self, name: str) -> str:
        """Return `projects/P/zones/Z/instanceGroups/NAME` for a short or full name of an instance group."""
        if "/" in name:
            return name
        return f"projects/{self.project}/zones/{self.zone}/instanceGroups/{name}"

    def find_group(self, full_name: str) -> list[str] | None:
        """Return the names of the instances of a group; None if it does not exist."""
        with self.lock:
            groups = {self.group_name(name): names for name, names in self.instance_groups.items()}
        return groups.get(full_name)

    def find(self, name: str) -> tuple[ResourceStore, str]:
        """Return the store that contains `name`, short or full, and its full name; or raise a KeyError."""
        for store, collection in (
            (self.nodes, "nodes"),
            (self.queued_resources, "queuedResources"),
            (self.instances, "instances"),
        ):
            if "/" in name and f"/{collection}/" not in name:
                continue
            full = self.full_name(name, collection)
            if store.get(full) is not None:
                return store, full
        raise KeyError(name)

    @property
    def projects(self) -> set[str]:
        """The projects that have a resource, and the server's own."""
        names = [*self.nodes.names, *self.queued_resources.names, *self.instances.names]
        return {self.project, *(name.split("/")[1] for name in names)}
