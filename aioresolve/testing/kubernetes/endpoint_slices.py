"""Services and EndpointSlices as dicts: builders for tests, and the slices that follow from pods.

`EndpointSliceController` derives slices as the controller of Kubernetes does (k8s.io/endpointslice): which
pods have an endpoint, its conditions, the ports by name, and one set of slices for each address family.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from .kinds import ENDPOINT_SLICE, POD, SERVICE
from .pods import owned_fields
from .store import Expired, timestamp
from .writes import Writer, replace_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .store import Store, StoredObject

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
CONTROLLER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"

AddressType = Literal["IPv4", "IPv6", "FQDN"]
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_OWNED_METADATA = ("annotations", "labels", "ownerReferences")


def service(
    name: str,
    namespace: str = "default",
    *,
    selector: Mapping[str, str] | None = None,
    ports: Mapping[str, int | str] | None = None,
    publish_not_ready: bool = False,
    ip_families: Sequence[Literal["IPv4", "IPv6"]] = ("IPv4",),
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a headless Service, for `KubernetesServer.add`, which then derives its EndpointSlices from pods.

    Args:
        name: its name.
        namespace: its namespace.
        selector: the labels of its pods; None if its slices are written by the test.
        ports: the name of each port to the port of the pods, a number or the name of a container's port. One
            port may have no name (`""`).
        publish_not_ready: its `publishNotReadyAddresses`.
        ip_families: its address families in order.
        labels: its labels, which its slices have too.
    """
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "selector": None if selector is None else dict(selector),
        "ports": [
            {
                "name": port,
                "protocol": "TCP",
                "port": target if isinstance(target, int) else 80,
                "targetPort": target,
            }
            for port, target in (ports or {}).items()
        ],
        "publishNotReadyAddresses": publish_not_ready,
        "ipFamilies": list(ip_families),
    }
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": SERVICE.name, "metadata": metadata, "spec": spec}


def endpoint_slice(
    name: str,
    namespace: str = "default",
    *,
    service: str | None,
    endpoints: Iterable[Mapping[str, Any]] = (),
    ports: Mapping[str, int | None] | None = None,
    address_type: AddressType = "IPv4",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return an EndpointSlice as `kubectl get -o json` shows it, for `KubernetesServer.add`.

    Args:
        name: its name.
        namespace: its namespace.
        service: the Service that it belongs to; None for none.
        endpoints: its endpoints; `endpoint()` builds them.
        ports: the name of each port to its number, None for any number.
        address_type: the type of its addresses.
        labels: further labels.
    """
    of_service = {} if service is None else {SERVICE_NAME: service}
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.name,
        "metadata": {"name": name, "namespace": namespace, "labels": of_service | dict(labels or {})},
        "addressType": address_type,
        "endpoints": [dict(each) for each in endpoints],
        "ports": [
            {"name": port, "protocol": "TCP"} | ({} if number is None else {"port": number})
            for port, number in (ports or {}).items()
        ],
    }


def endpoint(
    *addresses: str,
    pod: str | None = None,
    namespace: str = "default",
    uid: str | None = None,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    hostname: str | None = None,
    node: str | None = "node-a",
) -> dict[str, Any]:
    """Return one endpoint of an EndpointSlice.

    Args:
        addresses: its addresses, of which only the first has a meaning.
        pod: the name of its pod; None if it is not a pod.
        namespace: the namespace of the pod.
        uid: the uid of the pod; None derives one from the names.
        ready: whether it is ready, None if unknown; so are the other conditions.
        serving: whether it serves, even while it is terminating.
        terminating: whether it is terminating.
        hostname: its host name, by which the Service's DNS has it.
        node: the node that it runs on.
    """
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    target = None
    if pod is not None:
        target = {"kind": "Pod", "namespace": namespace, "name": pod, "uid": uid or _uid(namespace, pod)}
    built = {
        "addresses": list(addresses),
        "conditions": {name: value for name, value in conditions.items() if value is not None},
        "hostname": hostname,
        "targetRef": target,
        "nodeName": node,
    }
    return {key: value for key, value in built.items() if value is not None}


class EndpointSliceWriter(Writer):
    """Applies the writes of clients to EndpointSlices."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, ENDPOINT_SLICE)

    def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not body.get("addressType"):
            raise self._invalid(body["metadata"]["name"], "addressType", "Required value")
        return _with_defaults(body)

    def _replaced(self, old: Mapping[str, Any], new: Mapping[str, Any], subresource: str) -> dict[str, Any]:
        metadata = replace_metadata(old, new)
        result = _with_defaults(new) | {"metadata": metadata}
        if any(result.get(field) != old.get(field) for field in ENDPOINT_SLICE.fields):
            metadata["generation"] = metadata.get("generation", 0) + 1
        return result

    def _managed(self, document: Mapping[str, Any], manager: str, time: str) -> dict[str, Any]:
        return with_managed_fields(document, manager, time)


def _with_defaults(written: Mapping[str, Any]) -> dict[str, Any]:
    ports = [{"name": "", "protocol": "TCP", **port} for port in written.get("ports") or ()]
    return {**written, "ports": ports or None, "endpoints": written.get("endpoints") or None}


def with_managed_fields(written: Mapping[str, Any], manager: str, time: str) -> dict[str, Any]:
    """Return an EndpointSlice with `metadata.managedFields`, as if `manager` had written it."""
    metadata = {key: written["metadata"][key] for key in _OWNED_METADATA if written["metadata"].get(key)}
    fields: dict[str, Any] = {"f:addressType": {}, "f:endpoints": {}}
    if metadata:
        fields["f:metadata"] = owned_fields(metadata)
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": ENDPOINT_SLICE.api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields | {"f:ports": {}},
    }
    return {**written, "metadata": {**written["metadata"], "managedFields": [entry]}}


class EndpointSliceController:
    """Keeps the EndpointSlices of Services up to date with the pods of a store.

    An endpoint remains in its slice. A new one goes to a slice that has space, or to a new slice. Unlike the
    real controller, it acts at once: together with the write of the pod.

    Attributes:
        max_endpoints: the maximum number of endpoints in a slice.
    """

    def __init__(self, store: Store) -> None:
        self.max_endpoints = 100
        self._store = store
        self._services: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._synced_at: int | None = None  # the version of the pods that the slices have
        self._is_paused = False
        self._created = 0

    def put(self, service: Mapping[str, Any]) -> None:
        """Add or replace a Service."""
        with self._store.lock:
            metadata = service["metadata"]
            self._services[metadata.get("namespace", "default"), metadata["name"]] = service
            self._synced_at = None
            self.sync()

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a Service as a new dict; None if it does not exist."""
        with self._store.lock:
            found = self._services.get((namespace, name))
            return None if found is None else copy.deepcopy(dict(found))

    def delete(self, namespace: str, name: str) -> bool:
        """Delete a Service and its slices; return whether it existed."""
        with self._store.lock:
            if self._services.pop((namespace, name), None) is None:
                return False
            for stored in self._slices(namespace, name):
                self._store.remove(namespace, stored["metadata"]["name"], ENDPOINT_SLICE)
            return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write slices once, at the end of the block, rather than after each write of a pod in it."""
        with self._store.lock:
            was_paused, self._is_paused = self._is_paused, True
            try:
                yield
            finally:
                self._is_paused = was_paused
        self.sync()

    def sync(self) -> None:
        """Write the slices that differ from those that the pods require."""
        if self._is_paused or not self._services:
            return
        with self._store.lock:
            changed = self._changed_pods()
            self._is_paused = True  # writes of slices call this method too
            try:
                for (namespace, name), service in self._services.items():
                    selector = service["spec"].get("selector")
                    if selector and any(_selects(selector, namespace, pod) for pod in changed):
                        self._reconcile(service, namespace, name)
            finally:
                self._is_paused = False
            self._synced_at = self._store.version

    def _changed_pods(self) -> Iterable[StoredObject | None]:
        """Return the pods that changed since the last sync, before and after; None stands for any pod."""
        if self._synced_at is None or self._synced_at > self._store.version:
            return [None]
        try:
            _, events = self._store.changes_after(self._synced_at)
        except Expired:
            return [None]
        both = (pod for event in events for pod in (event.previous, event.object))
        return [pod for pod in both if pod is not None and pod.kind is POD]

    def _reconcile(self, service: Mapping[str, Any], namespace: str, name: str) -> None:
        spec = service["spec"]
        pods = [
            stored.as_dict()
            for stored in self._store.objects_at(self._store.version)
            if _selects(spec["selector"], namespace, stored)
        ]
        existing = self._slices(namespace, name)
        for family in spec.get("ipFamilies") or ["IPv4"]:
            wanted: dict[str, dict[str, dict[str, Any]]] = {}  # the ports as JSON to pod name to endpoint
            for pod in pods:
                built = pod_endpoint(pod, service, family)
                if built is not None:
                    ports = json.dumps(pod_ports(pod, service))
                    wanted.setdefault(ports, {})[pod["metadata"]["name"]] = built
            # The placeholder of a Service without endpoints has no ports either.
            of_family = [each for each in existing if each["addressType"] == family]
            for ports, endpoints in (wanted or {"[]": {}}).items():
                of_ports = [each for each in of_family if json.dumps(each["ports"] or []) == ports]
                self._fill(service, family, ports, of_ports, endpoints)
                of_family = [each for each in of_family if each not in of_ports]
            for stale in of_family:
                self._store.remove(namespace, stale["metadata"]["name"], ENDPOINT_SLICE)

    def _fill(
        self,
        service: Mapping[str, Any],
        family: str,
        ports: str,
        slices: list[dict[str, Any]],
        endpoints: dict[str, dict[str, Any]],
    ) -> None:
        """Write the slices of one address family and one set of ports."""
        rest = dict(endpoints)
        kept: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        for each in slices:
            names = [endpoint["targetRef"]["name"] for endpoint in each["endpoints"] or ()]
            kept.append((each, [rest.pop(name) for name in names if name in rest]))
        for each, content in kept:
            while rest and len(content) < self.max_endpoints:
                content.append(rest.pop(next(iter(rest))))
            # Without any endpoint, one slice remains.
            if content or (not endpoints and each is slices[0]):
                self._update(each, content)
            else:
                self._store.remove(each["metadata"]["namespace"], each["metadata"]["name"], ENDPOINT_SLICE)
        while rest or not slices:
            names = list(rest)[: self.max_endpoints]
            new = self._new_slice(service, family, json.loads(ports), [rest.pop(name) for name in names])
            slices = [*slices, new]

    def _update(self, old: dict[str, Any], endpoints: list[dict[str, Any]]) -> None:
        if (old["endpoints"] or []) == endpoints:
            return
        metadata = old["metadata"] | {"generation": old["metadata"].get("generation", 0) + 1}
        self._store.put({**old, "metadata": metadata, "endpoints": endpoints}, ENDPOINT_SLICE)

    def _new_slice(
        self,
        service: Mapping[str, Any],
        family: str,
        ports: list[dict[str, Any]],
        endpoints: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """Write a new slice, and return it."""
        self._created += 1
        name, namespace = service["metadata"]["name"], service["metadata"].get("namespace", "default")
        number, suffix = zlib.crc32(f"{namespace}/{name}/{self._created}".encode()), ""
        while len(suffix) < 5:
            number, digit = divmod(number, len(_SUFFIX))
            suffix += _SUFFIX[digit]
        headless = {HEADLESS: ""} if service["spec"].get("clusterIP") == "None" else {}
        written = {
            "metadata": {
                "name": f"{name}-{suffix}",
                "generateName": f"{name}-",
                "namespace": namespace,
                "labels": {
                    **(service["metadata"].get("labels") or {}),
                    MANAGED_BY: CONTROLLER,
                    SERVICE_NAME: name,
                    **headless,
                },
                "ownerReferences": [_owner(service)],
            },
            "addressType": family,
            "endpoints": endpoints,
            "ports": ports,
        }
        time = timestamp(self._store.clock())
        return self._store.put(
            with_managed_fields(written, "kube-controller-manager", time), ENDPOINT_SLICE
        ).as_dict()

    def _slices(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """Return the slices of a Service that this controller manages."""
        return [
            stored.as_dict()
            for stored in self._store.objects_at(self._store.version, ENDPOINT_SLICE)
            if stored.namespace == namespace
            and (stored.labels.get(SERVICE_NAME), stored.labels.get(MANAGED_BY)) == (name, CONTROLLER)
        ]


def pod_endpoint(pod: Mapping[str, Any], service: Mapping[str, Any], family: str) -> dict[str, Any] | None:
    """Return the endpoint that the controller writes for a pod; None if it has none in this family."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    if status.get("phase") in {"Succeeded", "Failed"}:
        return None
    version = 6 if family == "IPv6" else 4
    addresses = [entry["ip"] for entry in status.get("podIPs") or ()]
    address = next((ip for ip in addresses if ipaddress.ip_address(ip).version == version), None)
    if address is None:
        return None
    conditions = status.get("conditions") or ()
    serving = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    terminating = "deletionTimestamp" in metadata
    publishes = service["spec"].get("publishNotReadyAddresses", False)
    is_named = spec.get("hostname") and spec.get("subdomain") == service["metadata"]["name"]
    built = {
        "addresses": [address],
        "conditions": {
            "ready": publishes or (serving and not terminating),
            "serving": serving,
            "terminating": terminating,
        },
        "hostname": spec["hostname"] if is_named else None,
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "nodeName": spec.get("nodeName"),
    }
    return {key: value for key, value in built.items() if value is not None}


def pod_ports(pod: Mapping[str, Any], service: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ports of a Service at a pod, without those whose name no container has."""
    named = {
        (port.get("name"), port.get("protocol", "TCP")): port["containerPort"]
        for container in pod["spec"].get("containers") or ()
        for port in container.get("ports") or ()
    }
    ports = []
    for port in service["spec"].get("ports") or ():
        protocol = port.get("protocol", "TCP")
        target = port.get("targetPort") or port["port"]
        number = named.get((target, protocol)) if isinstance(target, str) else target
        if number is not None:
            ports.append({"name": port.get("name", ""), "protocol": protocol, "port": number})
    return ports


def _selects(selector: Mapping[str, str], namespace: str, pod: StoredObject | None) -> bool:
    if pod is None:
        return True
    return pod.namespace == namespace and selector.items() <= pod.labels.items()


def _owner(service: Mapping[str, Any]) -> dict[str, Any]:
    metadata = service["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "name": metadata["name"],
        "uid": metadata.get("uid") or _uid(metadata.get("namespace", "default"), metadata["name"]),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _uid(namespace: str, name: str) -> str:
    return f"00000000-0000-4000-8000-{zlib.crc32(f'{namespace}/{name}'.encode()):012x}"
