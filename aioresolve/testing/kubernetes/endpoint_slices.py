"""The EndpointSlices that follow from Services and pods."""

from __future__ import annotations

import ipaddress
import json
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .store import ENDPOINT_SLICE, POD, SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .store import Event, Store, StoredObject

SERVICE_NAME = "kubernetes.io/service-name"
_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_CONTROLLER = "endpointslice-controller.k8s.io"
_HEADLESS = "service.kubernetes.io/headless"


class EndpointSliceController:
    """Keeps the EndpointSlices of Services up to date with the pods of a store.

    Which pods have an endpoint, its conditions, the ports by name, and one set of slices for each address
    family are those of the controller of Kubernetes (k8s.io/endpointslice). Unlike that, it acts at once,
    together with the write of the pod, and orders the endpoints by the names of the pods: beyond
    `max_endpoints`, a new pod may move others to the next slice.

    Attributes:
        max_endpoints: the maximum number of endpoints in a slice.
    """

    def __init__(self, store: Store) -> None:
        self.max_endpoints = 100
        self._store = store
        self._written = set[tuple[str, str]]()  # its slices, by namespace and name
        self._is_paused = False
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
        if event is None or event.either.kind in (SERVICE, POD):
            self._sync()

    def _sync(self) -> None:
        """Write the slices that differ from those that the Services and pods require."""
        if self._is_paused:
            return
        wanted = {
            (found["metadata"]["namespace"], found["metadata"]["name"]): found
            for each in self._store.objects(SERVICE)
            for found in self._slices(each.as_dict())
        }
        for key in self._written - wanted.keys():
            self._store.remove(*key, ENDPOINT_SLICE)
        for key, found in wanted.items():
            old = self._store.get(*key, ENDPOINT_SLICE)
            if old is None or (old.as_dict()["endpoints"] or []) != found["endpoints"]:
                self._store.put(found, ENDPOINT_SLICE)
        self._written = set(wanted)

    def _slices(self, service: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the slices of a Service; one without endpoints has an empty slice for each family."""
        metadata, spec = service["metadata"], service["spec"]
        if not spec.get("selector"):
            return
        namespace, name = metadata["namespace"], metadata["name"]
        pods = [pod.as_dict() for pod in self._store.objects() if _selects(spec["selector"], namespace, pod)]
        owner = {"apiVersion": "v1", "kind": SERVICE.name, "name": name, "uid": metadata["uid"]}
        common = {
            "namespace": namespace,
            "labels": metadata.get("labels", {})
            | {_MANAGED_BY: _CONTROLLER, SERVICE_NAME: name, _HEADLESS: ""},
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        }
        for family in spec.get("ipFamilies") or ["IPv4"]:
            by_ports: dict[str, list[dict[str, Any]]] = {}
            for pod in pods:
                if (built := _endpoint(pod, service, family)) is not None:
                    by_ports.setdefault(json.dumps(_ports(pod, service)), []).append(built)
            for ports, endpoints in (by_ports or {"[]": []}).items():
                group = zlib.crc32(f"{family}{ports}".encode())  # the same after each write
                for start in range(0, len(endpoints) or 1, self.max_endpoints):
                    own = {"name": f"{name}-{group:08x}-{start // self.max_endpoints}"}
                    yield {
                        "metadata": own | common,
                        "addressType": family,
                        "endpoints": endpoints[start : start + self.max_endpoints],
                        "ports": json.loads(ports),
                    }


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


def _selects(selector: Mapping[str, str], namespace: str, pod: StoredObject) -> bool:
    return pod.namespace == namespace and selector.items() <= pod.labels.items()
