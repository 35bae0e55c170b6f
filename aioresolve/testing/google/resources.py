"""A project of Google Cloud: TPU nodes, queued resources and VMs, in the formats of the APIs."""

from __future__ import annotations

import copy
import re
import threading
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, Hint
from aioresolve.testing.lifecycle import merge_patch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FULL_NAME = re.compile(r"projects/[^/]+/(?:locations|zones|regions)/[^/]+/([A-Za-z]+)/[^/]+")
_COLLECTIONS = ("nodes", "queuedResources", "instances")
_CREATED = "2026-11-20T15:39:21.123456789Z"


def tpu_node(
    name: str,
    *,
    workers: int = 1,
    ips: Sequence[str] | None = None,
    external_ips: Sequence[str] = (),
    port: int = 8470,
    accelerator_type: str = "v4-8",
    topology: str = "2x2x1",
    state: str = "READY",
    health: str | None = "HEALTHY",
    health_description: str = "",
    symptoms: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return a TPU node in the format of v2 of the API, for `GoogleServer(nodes)` and `server.add`.

    Args:
        name: its id, which means the server's own project and zone, or `projects/P/locations/Z/nodes/N`.
        workers: the number of workers, each with its own address.
        ips: their internal addresses; the default derives them from the name.
        external_ips: the external addresses of the first workers.
        port: the port of every worker.
        accelerator_type: such as `v4-8`.
        topology: such as `2x2x1`.
        state: such as `READY`.
        health: such as `HEALTHY`; None leaves the field out, as the API does for some nodes.
        health_description: why it is unhealthy.
        symptoms: symptoms of its workers, as the API has them: `symptomType`, `details`, `workerId`.
    """
    found = _addresses(name, workers) if ips is None else list(ips)
    node: dict[str, Any] = {
        "name": name,
        "acceleratorType": accelerator_type,
        "state": state,
        "runtimeVersion": "tpu-vm-tf-2.16.1-pjrt",
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
        "apiVersion": "V2",
        "acceleratorConfig": {"type": "V4", "topology": topology},
    }
    optional = {
        "health": health,
        "healthDescription": health_description,
        "symptoms": [dict(each) for each in symptoms],
    }
    # protojson leaves out fields with default values.
    return node | {field: value for field, value in optional.items() if value}


def queued_resource(
    name: str,
    *,
    nodes: int = 1,
    node_id: str | None = None,
    state: str = "ACTIVE",
    error: str = "",
) -> dict[str, Any]:
    """Return a queued resource in the format of v2 of the API, for `GoogleServer(nodes)` and `server.add`.

    Args:
        name: its id, which means the server's own project and zone, or its full name.
        nodes: the number of slices; more than one are named `NODE_ID-0`, `NODE_ID-1`, ...
        node_id: the id of its node, or the prefix of their ids; the default is its own id.
        state: such as `ACTIVE`.
        error: why it failed.
    """
    own = node_id or name.rpartition("/")[2]
    strategy: dict[str, Any] = (
        {"nodeId": own} if nodes == 1 else {"multisliceParams": {"nodeCount": nodes, "nodeIdPrefix": own}}
    )
    node = tpu_node("", workers=0)
    spec = {field: node[field] for field in ("acceleratorType", "runtimeVersion", "networkConfig")}
    reached: dict[str, Any] = {"state": state, "stateInitiator": "USER"}
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
    status: str = "RUNNING",
    accelerators: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return a VM in the format of v1 of the Compute Engine API, for `GoogleServer(nodes)` and `server.add`.

    Args:
        name: its name, which means the server's own project and zone, or `projects/P/zones/Z/instances/NAME`.
        ip: its internal address; the default derives it from the name.
        external_ip: its external address.
        status: such as `RUNNING`.
        accelerators: the number of its accelerators by type, such as `{"nvidia-h100-80gb": 8}`.
    """
    interface: dict[str, Any] = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "networkIP": ip or _addresses(name, 1)[0],
        "stackType": "IPV4_ONLY",
    }
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


class Cloud:
    """The resources of a project, and what its APIs report; every method may be called from any thread.

    A method that gets the name of a resource, short (in the server's own project and zone) or full, raises a
    KeyError if it does not exist. The attributes may be changed at any time.

    Attributes:
        metadata: the values of the metadata server by path (`instance/zone`).
        denied: permissions that no user has (403), such as `tpu.nodes.get`.
        instance_groups: instance group to the names of its instances. Both may be full names, of groups such
            as `projects/P/regions/R/instanceGroups/NAME`. An instance that does not exist is one that the
            manager of the group is creating.
        managed_instances: name of an instance to what the manager of its group reports about it, with the
            fields of the API, such as `{"currentAction": "DELETING"}`.
        page_size: the maximum number of items per page.
    """

    def __init__(self, project: str, zone: str, page_size: int) -> None:
        self.page_size = page_size
        self.metadata: dict[str, str] = {}
        self.denied: set[str] = set()
        self.instance_groups: dict[str, list[str]] = {}
        self.managed_instances: dict[str, dict[str, Any]] = {}
        self._project = project
        self._zone = zone
        self._lock = threading.RLock()
        self._resources: dict[str, dict[str, Any]] = {}
        self._scripts: dict[str, deque[Mapping[str, Any]]] = {}

    def add(self, *resources: Mapping[str, Any]) -> None:
        """Write resources that `tpu_node`, `queued_resource` or `instance` made; the same name is replaced.

        Raises:
            ConfigurationError: a value is not such a resource, or its name is invalid.
        """
        for resource in resources:
            self._put(copy.deepcopy(dict(resource)))

    def _put(self, resource: dict[str, Any]) -> None:
        if "networkInterfaces" in resource:
            name = self._full_name(resource["name"], "instances")
            resource["name"] = name.rpartition("/")[2]
        elif "tpu" in resource:
            name = resource["name"] = self._full_name(resource["name"], "queuedResources")
            for spec in resource["tpu"].get("nodeSpec", ()):
                spec.setdefault("parent", name.partition("/queuedResources/")[0])
        elif "networkEndpoints" in resource or "acceleratorType" in resource:
            name = resource["name"] = self._full_name(resource["name"], "nodes")
        else:
            raise ConfigurationError(
                "the value is not a TPU node, queued resource or instance",
                hint="Make it with tpu_node(), queued_resource() or instance().",
            )
        with self._lock:
            self._resources[name] = resource
            self._scripts.pop(name, None)

    def get(self, name: str) -> dict[str, Any]:
        """Return the current state of a resource as a new dict."""
        with self._lock:
            return copy.deepcopy(self._resources[self._find(name)])

    def patch(self, name: str, **fields: Any) -> dict[str, Any]:
        """Merge `fields` (as the API spells them; None removes) into a resource, and return it."""
        with self._lock:
            full = self._find(name)
            # A copy of the fields: the caller keeps the original and may change it.
            self._resources[full] = merge_patch(self._resources[full], copy.deepcopy(fields))
            return self.get(full)

    def script(self, name: str, *steps: str | Mapping[str, Any]) -> None:
        """Set the states that the next requests for a resource see, one step per request.

        After `script("my-tpu", "CREATING", "CREATING", "READY")` the third request sees it READY, and so do
        all later ones.

        Args:
            name: the resource, by its short or full name.
            steps: states (for an instance, its status), or fields to merge, such as
                `{"state": "READY", "health": None}`.
        """
        with self._lock:
            full = self._find(name)
            self._scripts[full] = deque(_fields(step, full.split("/")[4]) for step in steps)

    def delete(self, name: str) -> None:
        """Delete a resource."""
        with self._lock:
            full = self._find(name)
            del self._resources[full]
            self._scripts.pop(full, None)

    def read(self, full_name: str) -> dict[str, Any]:
        """Take the next step of the resource's script, if any, and return a copy of the resource."""
        with self._lock:
            script = self._scripts.get(full_name)
            return self.patch(full_name, **(script.popleft() if script else {}))

    def names(self, project: str, collection: str) -> list[str]:
        """Return the full names of the resources of a collection in every zone, in order."""
        with self._lock:
            names = [(name, name.split("/")) for name in self._resources]
        return sorted(name for name, parts in names if (parts[1], parts[4]) == (project, collection))

    def may(self, permission: str, project: str) -> bool:
        """Return whether a permission is not denied, and the project is our own or has a resource."""
        with self._lock:
            projects = {self._project, *(name.split("/")[1] for name in self._resources)}
        return permission not in self.denied and project in projects

    def groups(self, parent: str) -> list[str]:
        """Return the names of the groups of a zone or region."""
        with self._lock:
            names = [self._full_name(name, "instanceGroups") for name in self.instance_groups]
        return [name.rpartition("/")[2] for name in names if name.startswith(f"{parent}/")]

    def group(self, full_name: str) -> list[str] | None:
        """Return the full names of a group's instances, in order; None if the group is unknown."""
        with self._lock:
            for name, members in self.instance_groups.items():
                if self._full_name(name, "instanceGroups") == full_name:
                    return sorted(self._full_name(each, "instances") for each in members)
        return None

    def _full_name(self, name: str, collection: str) -> str:
        """Return `projects/P/locations/Z/COLLECTION/NAME` for a short or full name."""
        if "/" not in name:
            place = "zones" if collection in ("instances", "instanceGroups") else "locations"
            return f"projects/{self._project}/{place}/{self._zone}/{collection}/{name}"
        found = _FULL_NAME.fullmatch(name)
        if found is None or found[1] != collection:
            example = f"projects/{self._project}/locations/{self._zone}/{collection}/ID"
            raise ConfigurationError(
                f"{name!r} is not the full name of one of {collection}",
                hint=Hint("Write it as {example}.", {"example": example}),
            )
        return name

    def _find(self, name: str) -> str:
        candidates = [name] if "/" in name else [self._full_name(name, each) for each in _COLLECTIONS]
        for full in candidates:
            if full in self._resources:
                return full
        raise KeyError(name)


def _fields(step: str | Mapping[str, Any], collection: str) -> Mapping[str, Any]:
    """Return the fields that one step of a script changes."""
    if not isinstance(step, str):
        return step
    match collection:
        case "queuedResources":
            return {"state": {"state": step}}
        case "instances":
            return {"status": step}
    return {"state": step}
