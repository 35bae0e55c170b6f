"""The EndpointSlices that follow from Services and pods."""

from __future__ import annotations

import ipaddress
import json
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from .store import ENDPOINT_SLICE, POD, SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .store import Event, Store, StoredObject

SERVICE_NAME = "kubernetes.io/service-name"
_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_CONTROLLER = "endpointslice-controller.k8s.io"
_HEADLESS = "service.kubernetes.io/headless"

_Group = tuple[str, str]
"""The address family of a slice, and its ports as JSON."""


class EndpointSliceController:
    """Keeps the EndpointSlices of Services up to date with the pods of a store.

    It derives slices as the controller of Kubernetes does (k8s.io/endpointslice): which pods have an
    endpoint, its conditions, the ports by name, and one set of slices for each address family. An endpoint
    remains in its slice; a new one goes to a slice that has space, or to a new slice. Unlike the real
    controller, it acts at once: together with the write of the pod.

    Attributes:
        max_endpoints: the maximum number of endpoints in a slice.
    """

    def __init__(self, store: Store) -> None:
        self.max_endpoints = 100
        self._store = store
        self._stale: set[str] = set()  # the keys of the Services whose slices have to be checked
        self._is_paused = False
        self._created = 0
        store.listen(self._on_write)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write slices once, at the end of the block, rather than after each write of a pod in it."""
        with self._store.lock:
            was_paused, self._is_paused = self._is_paused, True
            try:
                yield
            finally:
                self._is_paused = was_paused
                self._sync()

    def _on_write(self, event: Event | None) -> None:
        if event is None:
            self._stale |= {service.key for service in self._store.objects(SERVICE)}
        elif event.either.kind is SERVICE:
            self._stale.add(event.either.key)
        elif event.either.kind is POD:
            pods = [pod for pod in (event.previous, event.object) if pod is not None]
            for service in self._store.objects(SERVICE):
                selector = service.as_dict()["spec"].get("selector")
                if any(_selects(selector, service.namespace, pod) for pod in pods):
                    self._stale.add(service.key)
        self._sync()

    def _sync(self) -> None:
        if self._is_paused:
            return
        self._is_paused = True  # writes of slices call this method too
        try:
            for key in sorted(self._stale):
                self._reconcile(*key.split("/"))
            self._stale.clear()
        finally:
            self._is_paused = False

    def _reconcile(self, namespace: str, name: str) -> None:
        """Write the slices of a Service that differ from those that its pods require."""
        found = self._store.get(namespace, name, SERVICE)
        service = None if found is None else found.as_dict()
        wanted = {} if service is None else self._wanted(service)
        rest = {group: dict(endpoints) for group, endpoints in wanted.items()}
        slices: list[tuple[dict[str, Any], _Group, list[dict[str, Any]]]] = []
        for old in self._slices(namespace, name):
            group = old["addressType"], json.dumps(old["ports"] or [])
            names = [endpoint["targetRef"]["name"] for endpoint in old["endpoints"] or ()]
            left = rest.get(group, {})
            slices.append((old, group, [left.pop(each) for each in names if each in left]))
        placed = set[_Group]()
        for old, group, endpoints in slices:
            endpoints += _take(rest.get(group, {}), self.max_endpoints - len(endpoints))
            # A Service without endpoints keeps one empty slice.
            if endpoints or (group in rest and not wanted[group] and group not in placed):
                placed.add(group)
                if (old["endpoints"] or []) != endpoints:
                    self._store.put({**old, "endpoints": endpoints}, ENDPOINT_SLICE)
            else:
                self._store.remove(namespace, old["metadata"]["name"], ENDPOINT_SLICE)
        for group, left in rest.items():
            while service is not None and (left or group not in placed):
                placed.add(group)
                self._create(service, group, _take(left, self.max_endpoints))

    def _wanted(self, service: Mapping[str, Any]) -> dict[_Group, dict[str, dict[str, Any]]]:
        """Return the endpoints of a Service by the name of their pod, for each family and set of ports."""
        spec, namespace = service["spec"], service["metadata"]["namespace"]
        wanted: dict[_Group, dict[str, dict[str, Any]]] = {}
        if not spec.get("selector"):
            return wanted
        pods = [pod.as_dict() for pod in self._store.objects() if _selects(spec["selector"], namespace, pod)]
        for family in spec.get("ipFamilies") or ["IPv4"]:
            for pod in pods:
                built = _endpoint(pod, service, family)
                if built is not None:
                    group = family, json.dumps(_ports(pod, service))
                    wanted.setdefault(group, {})[pod["metadata"]["name"]] = built
            if not any(each == family for each, _ in wanted):
                wanted[family, "[]"] = {}
        return wanted

    def _create(self, service: Mapping[str, Any], group: _Group, endpoints: list[dict[str, Any]]) -> None:
        self._created += 1
        metadata = service["metadata"]
        family, ports = group
        name = metadata["name"]
        owner = {"apiVersion": "v1", "kind": SERVICE.name, "name": name, "uid": metadata["uid"]}
        labels = {**metadata.get("labels", {}), _MANAGED_BY: _CONTROLLER, SERVICE_NAME: name, _HEADLESS: ""}
        written = {
            "metadata": {
                "name": f"{name}-{self._created:05}",
                "namespace": metadata["namespace"],
                "labels": labels,
                "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
            },
            "addressType": family,
            "endpoints": endpoints,
            "ports": json.loads(ports),
        }
        self._store.put(written, ENDPOINT_SLICE)

    def _slices(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """Return the slices of a Service that this controller manages."""
        return [
            stored.as_dict()
            for stored in self._store.objects(ENDPOINT_SLICE)
            if stored.namespace == namespace
            and (stored.labels.get(SERVICE_NAME), stored.labels.get(_MANAGED_BY)) == (name, _CONTROLLER)
        ]


def _take(endpoints: dict[str, dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Remove the first `number` endpoints and return them."""
    return [endpoints.pop(name) for name in list(islice(endpoints, max(number, 0)))]


def _endpoint(pod: Mapping[str, Any], service: Mapping[str, Any], family: str) -> dict[str, Any] | None:
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
        "targetRef": {"kind": POD.name, **{key: metadata[key] for key in ("namespace", "name", "uid")}},
        "nodeName": spec.get("nodeName"),
    }
    return {key: value for key, value in built.items() if value is not None}


def _ports(pod: Mapping[str, Any], service: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ports of a Service at a pod, without those whose name no container has."""
    named = {
        port.get("name"): port["containerPort"]
        for container in pod["spec"].get("containers") or ()
        for port in container.get("ports") or ()
    }
    ports = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort") or port["port"]
        number = named.get(target) if isinstance(target, str) else target
        if number is not None:
            name, protocol = port.get("name", ""), port.get("protocol", "TCP")
            ports.append({"name": name, "protocol": protocol, "port": number})
    return ports


def _selects(selector: Mapping[str, str] | None, namespace: str, pod: StoredObject) -> bool:
    return bool(selector) and pod.namespace == namespace and (selector or {}).items() <= pod.labels.items()
