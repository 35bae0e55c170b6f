"""Objects as dicts, as `kubectl get -o json` shows them: pods, nodes, claims, Services and EndpointSlices."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal

from .endpoint_slices import SERVICE_NAME
from .store import ENDPOINT_SLICE, POD, SERVICE, compact_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOMENT = "2026-11-20T00:00:00Z"
"""The time of everything to which the builder gives a date."""
_DELETION = "2026-11-20T00:00:30Z"
_IMAGE = "trainer:v1"
_INDEX = "batch.kubernetes.io/job-completion-index"
_DRIVER = "gpu.nvidia.com"
"""The DRA driver of allocated devices, and the name of their DeviceClass."""
_VARIABLE = 115
"""The number of bytes of one environment variable that makes a pod bigger."""

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
AddressType = Literal["IPv4", "IPv6", "FQDN"]


def pod(
    name: str,
    namespace: str = "default",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    index: int | None = None,
    ip: str | Sequence[str] | None = "auto",
    host_ip: str = "192.168.0.1",
    node: str | None = "node-a",
    phase: Phase = "Running",
    ready: bool = True,
    reason: str | None = None,
    message: str | None = None,
    waiting: str | None = None,
    exit_code: int | None = None,
    restarts: int = 0,
    deleting: bool = False,
    finalizers: Sequence[str] = (),
    hostname: str | None = None,
    subdomain: str | None = None,
    containers: Sequence[str] = ("main",),
    resource_claims: Sequence[str] = (),
    created: str | None = None,
    size: int = 0,
) -> dict[str, Any]:
    """Return a pod as `kubectl get -o json` shows it, about 1 KB of JSON, for `KubernetesServer(pods)`.

    Args:
        name: the pod's name.
        namespace: its namespace.
        labels: its labels.
        annotations: its annotations.
        index: the completion index of an Indexed Job, set as label and annotation.
        ip: its address, or several (dual stack, the first is `podIP`), or None; `"auto"` derives one from the
            name unless the phase is Pending.
        host_ip: the address of its node.
        node: the node it is bound to; None if it is not scheduled.
        phase: its phase. The containers of a Succeeded pod have exit code 0, those of a Failed one 1, unless
            `reason` is set.
        ready: whether its containers are ready while it runs.
        reason: why it is in this phase, such as `Evicted` or `NodeLost`.
        message: the sentence that explains `reason`.
        waiting: the reason for which its containers wait: `ContainerCreating`, `CrashLoopBackOff`, ...
        exit_code: the code with which its containers ended.
        restarts: how often each container was restarted.
        deleting: whether its deletion was requested and has not finished.
        finalizers: the finalizers, which delay its deletion.
        hostname: its `spec.hostname`.
        subdomain: its `spec.subdomain`.
        containers: the names of its containers.
        resource_claims: the names of its ResourceClaims, which `resource_claim()` builds. Without any, each
            container has four chips (`google.com/tpu`).
        created: its creationTimestamp (RFC 3339); with None the server sets it.
        size: environment variables are added until the JSON has about this many bytes; 8192 is typical.
    """
    addresses = _addresses(ip, f"{namespace}/{name}", phase)
    state = _container_state(phase, reason, waiting, exit_code)
    is_ready = ready and state is not None and "running" in state
    claims = [{"name": f"claim-{n}", "resourceClaimName": claim} for n, claim in enumerate(resource_claims)]
    resources: dict[str, Any] = {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}
    if claims:
        resources = {"claims": [{"name": claim["name"]} for claim in claims]}
    in_job = {_INDEX: str(index)} if index is not None else {}
    metadata = {
        "name": name,
        "namespace": namespace,
        "creationTimestamp": created,
        "deletionTimestamp": _DELETION if deleting else None,
        "deletionGracePeriodSeconds": 30 if deleting else None,
        "labels": dict(labels or {}) | in_job,
        "annotations": dict(annotations or {}) | in_job,
        "finalizers": list(finalizers),
    }
    spec: dict[str, Any] = {
        "containers": [{"name": each, "image": _IMAGE, "resources": dict(resources)} for each in containers],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "nodeName": node,
        "hostname": hostname,
        "subdomain": subdomain,
        "resourceClaims": claims or None,
    }
    status = {
        "phase": phase,
        "conditions": _conditions(phase, is_ready, node, reason),
        "message": message,
        "reason": reason,
        "hostIP": host_ip if node and (addresses or state) else None,
        "podIP": addresses[0] if addresses else None,
        "podIPs": [{"ip": address} for address in addresses],
        "containerStatuses": [
            {
                "name": container,
                "state": dict(state or {}),
                "lastState": {},
                "ready": is_ready,
                "restartCount": restarts,
                "image": _IMAGE,
                "imageID": "sha256:abc",
                "containerID": "containerd://abc",
                "started": is_ready,
            }
            for container in (containers if state is not None else ())
        ],
        "qosClass": "BestEffort",
    }
    built = {
        "apiVersion": "v1",
        "kind": POD.name,
        "metadata": {key: value for key, value in metadata.items() if value not in (None, [], {})},
        "spec": {key: value for key, value in spec.items() if value is not None},
        "status": {key: value for key, value in status.items() if value not in (None, [], {})},
    }
    count = round((size - len(compact_json(built))) / _VARIABLE) if size else 0
    if count > 0:
        first = spec["containers"][0]
        first["env"] = [{"name": f"SETTING_{number:04}", "value": "x" * 80} for number in range(count)]
    return built


def node(name: str, *, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a node for `KubernetesServer`, with only a name and labels.

    Args:
        name: the node's name.
        labels: its labels, in addition to `kubernetes.io/hostname`.
    """
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def resource_claim(name: str, namespace: str = "default", *, devices: int = 1) -> dict[str, Any]:
    """Return a ResourceClaim of v1 for `KubernetesServer`, whose devices are allocated.

    Args:
        name: the name of the claim.
        namespace: its namespace.
        devices: their number.
    """
    wanted = {"deviceClassName": _DRIVER, "allocationMode": "ExactCount", "count": devices}
    results = [
        {"request": "devices", "driver": _DRIVER, "pool": "node-a", "device": f"{name}-{number}"}
        for number in range(devices)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "devices", "exactly": wanted}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def service(
    name: str,
    namespace: str = "default",
    *,
    selector: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    publish_not_ready: bool = False,
    ip_families: Sequence[Literal["IPv4", "IPv6"]] = ("IPv4",),
) -> dict[str, Any]:
    """Return a headless Service, for `KubernetesServer.add`, which then derives its EndpointSlices from pods.

    Args:
        name: its name.
        namespace: its namespace.
        selector: the labels of its pods; None if its slices are written by the test.
        ports: the name of each port to the port of the pods. One port may have no name (`""`).
        publish_not_ready: its `publishNotReadyAddresses`.
        ip_families: its address families in order.
    """
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "selector": None if selector is None else dict(selector),
        "ports": [
            {"name": port, "protocol": "TCP", "port": number, "targetPort": number}
            for port, number in (ports or {}).items()
        ],
        "publishNotReadyAddresses": publish_not_ready,
        "ipFamilies": list(ip_families),
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": SERVICE.name, "metadata": metadata, "spec": spec}


def endpoint_slice(
    name: str,
    namespace: str = "default",
    *,
    service: str | None,
    endpoints: Iterable[Mapping[str, Any]] = (),
    ports: Mapping[str, int | None] | None = None,
    address_type: AddressType = "IPv4",
) -> dict[str, Any]:
    """Return an EndpointSlice as `kubectl get -o json` shows it, for `KubernetesServer.add`.

    Args:
        name: its name.
        namespace: its namespace.
        service: the Service that it belongs to; None for none.
        endpoints: its endpoints; `endpoint()` builds them.
        ports: the name of each port to its number, None for any number.
        address_type: the type of its addresses.
    """
    of_service = {} if service is None else {SERVICE_NAME: service}
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.name,
        "metadata": {"name": name, "namespace": namespace, "labels": of_service},
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
        ready: whether it is ready; None leaves the condition out, as for the other conditions.
        serving: whether it serves, even while it is terminating.
        terminating: whether it is terminating.
        hostname: its name in the Service's DNS.
        node: the node that it runs on.
    """
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    target = None
    if pod is not None:
        target = {
            "kind": "Pod",
            "namespace": namespace,
            "name": pod,
            "uid": uid or f"00000000-0000-4000-8000-{zlib.crc32(f'{namespace}/{pod}'.encode()):012x}",
        }
    built = {
        "addresses": list(addresses),
        "conditions": {name: value for name, value in conditions.items() if value is not None},
        "hostname": hostname,
        "targetRef": target,
        "nodeName": node,
    }
    return {key: value for key, value in built.items() if value is not None}


def _addresses(ip: str | Sequence[str] | None, key: str, phase: str) -> tuple[str, ...]:
    if ip is None or (ip == "auto" and phase == "Pending"):
        return ()
    if ip == "auto":
        # Unlike hash(), a checksum is the same in every process.
        number = zlib.crc32(key.encode())
        return (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",)
    return (ip,) if isinstance(ip, str) else tuple(ip)


def _conditions(phase: Phase, is_ready: bool, node: str | None, reason: str | None) -> list[dict[str, Any]]:
    moment = {"lastProbeTime": None, "lastTransitionTime": _MOMENT}
    if phase == "Pending" and node is None:
        unschedulable = {"reason": reason or "Unschedulable", "message": "0/1 nodes are available"}
        return [{"type": "PodScheduled", "status": "False", **moment, **unschedulable}]
    if phase in {"Running", "Pending"}:
        return [{"type": "Ready", "status": str(is_ready), **moment}]
    return []


def _container_state(
    phase: Phase, reason: str | None, waiting: str | None, exit_code: int | None
) -> dict[str, Any] | None:
    if waiting is not None:
        text = {"message": "back-off 5m0s"} if waiting.endswith("BackOff") else {}
        return {"waiting": {"reason": waiting, **text}}
    if exit_code is None and phase == "Succeeded":
        exit_code = 0
    if exit_code is None and phase == "Failed" and reason is None:
        exit_code = 1
    if exit_code is not None:
        word = "Error" if exit_code else "Completed"
        return {"terminated": {"exitCode": exit_code, "reason": word, "startedAt": None, "finishedAt": None}}
    return {"running": {"startedAt": _MOMENT}} if phase == "Running" else None
