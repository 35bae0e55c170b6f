"""The EndpointSlices that follow from Services and pods."""

from __future__ import annotations

import ipaddress
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

    Which pods have an endpoint, its conditions, and one set of slices for each address family are those of
    the controller of Kubernetes (k8s.io/endpointslice). Unlike that, it acts at once, together with the write
    of the pod, and orders the endpoints by the names of the pods: beyond `max_endpoints`, a new pod may move
    others to the next slice. Ports of pods are numbers.

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
            stored = self._store.get(*key, ENDPOINT_SLICE)
            old = None if stored is None else stored.as_dict()
            if old is None or any((old[field] or []) != found[field] for field in ("endpoints", "ports")):
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
        ports = [
            {"name": each.get("name", ""), "protocol": "TCP", "port": each.get("targetPort") or each["port"]}
            for each in spec.get("ports") or ()
        ]
        for family in spec.get("ipFamilies") or ["IPv4"]:
            found = [built for pod in pods if (built := _endpoint(pod, service, family)) is not None]
            for number, start in enumerate(range(0, len(found) or 1, self.max_endpoints)):
                yield {
                    "metadata": {"name": f"{name}-{family.lower()}-{number}", **common},
                    "addressType": family,
                    "endpoints": found[start : start + self.max_endpoints],
                    "ports": ports if found else [],
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


def _selects(selector: Mapping[str, str], namespace: str, pod: StoredObject) -> bool:
    return pod.namespace == namespace and selector.items() <= pod.labels.items()
