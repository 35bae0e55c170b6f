"""Pods as dicts: a builder for tests, the API server's defaults, and `metadata.managedFields`.

Format of managedFields: https://kubernetes.io/docs/reference/using-api/server-side-apply/ (FieldsV1).
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from .statuses import compact_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOMENT = "2026-11-20T00:00:00Z"
"""The time of everything to which the builder gives a date."""
_DELETION = "2026-11-20T00:00:30Z"
_IMAGE = "trainer:v1"
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_INDEX = "batch.kubernetes.io/job-completion-index"

_ITEM_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "hostIPs": "ip",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "volumes": "name",
}
"""Lists whose items are owned one by one, and the key that identifies an item; others are owned whole."""
_SETS = frozenset({"finalizers"})
_REQUIRED_LISTS = frozenset({"containers"})
_OWNED_METADATA = ("annotations", "finalizers", "labels", "ownerReferences")
# Set by the server or by an admission plugin, not by the client that wrote the pod.
_NOT_WRITTEN = frozenset({"qosClass", "priority", "preemptionPolicy", "tolerations"})

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


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
    """Return a pod as `kubectl get -o json` shows it, about 2.7 KB of JSON, for `KubernetesServer(pods)`.

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
    states = _container_statuses(containers, phase, ready, reason, waiting, exit_code, restarts)
    metadata = {
        "name": name,
        "namespace": namespace,
        "creationTimestamp": created,
        "deletionTimestamp": _DELETION if deleting else None,
        "deletionGracePeriodSeconds": 30 if deleting else None,
        "labels": dict(labels or {}) | ({_INDEX: str(index)} if index is not None else {}),
        "annotations": dict(annotations or {}) | ({_INDEX: str(index)} if index is not None else {}),
        "finalizers": list(finalizers),
    }
    status = {
        "phase": phase,
        "conditions": _conditions(phase, ready and waiting is None, node, reason),
        "message": message,
        "reason": reason,
        "hostIP": host_ip if node and (addresses or states) else None,
        "podIP": addresses[0] if addresses else None,
        "podIPs": [{"ip": address} for address in addresses],
        "containerStatuses": states,
        "qosClass": "BestEffort",
    }
    built = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _without_empty(metadata),
        "spec": _spec(containers, node, hostname, subdomain, resource_claims),
        "status": _without_empty(status),
    }
    return _pad(with_managed_fields(built, "aioresolve", created or _MOMENT), size)


def node(name: str, *, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a node for `KubernetesServer`, with only a name and labels.

    Args:
        name: the node's name.
        labels: its labels, in addition to `kubernetes.io/hostname`.
    """
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def resource_claim(
    name: str,
    namespace: str = "default",
    *,
    driver: str = "gpu.nvidia.com",
    devices: int = 1,
    device_class: str | None = None,
) -> dict[str, Any]:
    """Return a ResourceClaim of v1 for `KubernetesServer`, whose devices are allocated.

    Args:
        name: the name of the claim.
        namespace: its namespace.
        driver: the DRA driver of the devices.
        devices: their number.
        device_class: the DeviceClass that is requested; by default, the one with the name of the driver.
    """
    wanted = {"deviceClassName": device_class or driver, "allocationMode": "ExactCount", "count": devices}
    results = [
        {"request": "devices", "driver": driver, "pool": "node-a", "device": f"{name}-{number}"}
        for number in range(devices)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "devices", "exactly": wanted}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def with_defaults(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod that a client wrote as the API server stores it: defaults in `spec`, phase Pending."""
    spec = dict(written.get("spec") or {})
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_container_with_defaults(container) for container in spec[kind]]
    for key, value in _spec_defaults().items():
        spec.setdefault(key, value)
    status: dict[str, Any] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [_GATED]
    return {**written, "spec": spec, "status": status | {"qosClass": "BestEffort"}}


def _spec_defaults() -> dict[str, Any]:
    return {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [_toleration("not-ready"), _toleration("unreachable")],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _toleration(taint: str) -> dict[str, Any]:
    key = f"node.kubernetes.io/{taint}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}


def _container_with_defaults(container: Mapping[str, Any]) -> dict[str, Any]:
    image = container.get("image", "")
    _, _, tag = image.rpartition("/")[2].partition(":")
    defaults = {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if tag in {"", "latest"} else "IfNotPresent",
    }
    return {**container, **{key: value for key, value in defaults.items() if key not in container}}


def _spec(
    containers: Sequence[str],
    node: str | None,
    hostname: str | None,
    subdomain: str | None,
    resource_claims: Sequence[str],
) -> dict[str, Any]:
    claims = [
        {"name": f"claim-{number}", "resourceClaimName": name} for number, name in enumerate(resource_claims)
    ]
    written = {
        "containers": [_container(container, claims) for container in containers],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "nodeName": node,
        "securityContext": {},
        "hostname": hostname,
        "subdomain": subdomain,
        "resourceClaims": claims or None,
    }
    defaults = {key: value for key, value in _spec_defaults().items() if key not in written}
    return {key: value for key, value in written.items() if value is not None} | defaults


def _container(name: str, claims: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    resources: dict[str, Any] = {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}
    if claims:
        resources = {"claims": [{"name": claim["name"]} for claim in claims]}
    return _container_with_defaults({"name": name, "image": _IMAGE, "resources": resources})


def _addresses(ip: str | Sequence[str] | None, key: str, phase: str) -> tuple[str, ...]:
    if ip is None or (ip == "auto" and phase == "Pending"):
        return ()
    if ip == "auto":
        # Unlike hash(), a checksum is the same in every process.
        number = zlib.crc32(key.encode())
        return (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",)
    return (ip,) if isinstance(ip, str) else tuple(ip)


def _conditions(phase: Phase, ready: bool, node: str | None, reason: str | None) -> list[dict[str, Any]]:
    moment = {"lastProbeTime": None, "lastTransitionTime": _MOMENT}
    if phase == "Pending" and node is None:
        unschedulable = {"reason": reason or "Unschedulable", "message": "0/1 nodes are available"}
        return [{"type": "PodScheduled", "status": "False", **moment, **unschedulable}]
    if phase in {"Running", "Pending"}:
        ready = ready and phase == "Running"
        return [{"type": "Ready", "status": str(ready), **moment}]
    return []


def _container_statuses(
    containers: Sequence[str],
    phase: Phase,
    ready: bool,
    reason: str | None,
    waiting: str | None,
    exit_code: int | None,
    restarts: int,
) -> list[dict[str, Any]]:
    if _container_state(phase, reason, waiting, exit_code) is None:
        return []
    runs_ready = ready and phase == "Running" and waiting is None and exit_code is None
    return [
        {
            "name": container,
            "state": _container_state(phase, reason, waiting, exit_code),
            "lastState": {},
            "ready": runs_ready,
            "restartCount": restarts,
            "image": _IMAGE,
            "imageID": "sha256:abc",
            "containerID": "containerd://abc",
            "started": runs_ready,
        }
        for container in containers
    ]


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


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value not in ([], {})}


def _pad(built: dict[str, Any], size: int) -> dict[str, Any]:
    """Add environment variables to the first container until the pod has about `size` bytes."""
    count = round((size - len(compact_json(built))) / (len(_variables(2)) - len(_variables(1))))
    if count < 1:
        return built
    # Loading both from JSON is ten times as fast as deriving the managed fields, and no pods share a dict.
    env, owned = json.loads(_variables(count))
    first, *others = built["spec"]["containers"]
    built["spec"]["containers"] = [_with_env(first, "env", env), *others]
    written = built["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:containers"]
    key = next(iter(written))
    written[key] = _with_env(written[key], "f:env", owned)
    return built


def _with_env(container: Mapping[str, Any], key: str, env: Any) -> dict[str, Any]:
    head = {name: container[name] for name in (".", "name", "image") if name in container}
    return {**head, key: env} | {name: value for name, value in container.items() if name not in head}


@lru_cache
def _variables(count: int) -> bytes:
    """Return JSON of `count` environment variables and of their managed fields."""
    env = [{"name": f"SETTING_{number:04}", "value": "x" * 80} for number in range(count)]
    return compact_json([env, owned_fields({"env": env})["f:env"]])


def with_managed_fields(pod: Mapping[str, Any], manager: str, time: str) -> dict[str, Any]:
    """Return `pod` with `metadata.managedFields`, as if `manager` had written it at `time` (RFC 3339)."""
    fields = managed_fields(pod, manager, time)
    return {**pod, "metadata": {**pod["metadata"], "managedFields": fields}}


def managed_fields(pod: Mapping[str, Any], manager: str, time: str) -> list[dict[str, Any]]:
    """Return the entries of a pod written by `manager` at `time` (RFC 3339): metadata and spec, then status.

    Fields that the server sets are left out. If the client set no status, there is one entry.
    """
    metadata = {key: pod["metadata"][key] for key in _OWNED_METADATA if pod["metadata"].get(key)}
    written: dict[str, Any] = {}
    if metadata:
        written["f:metadata"] = owned_fields(metadata)
    if pod.get("spec"):
        written["f:spec"] = owned_fields(pod["spec"])
    entries = [_entry(manager, time, written)]
    # The server gives every new pod the phase Pending, so the writer owns only other status fields.
    status = {k: v for k, v in pod.get("status", {}).items() if (k, v) != ("phase", "Pending")}
    owned = owned_fields(status)
    if owned:
        entries.append({**_entry(manager, time, {"f:status": owned}), "subresource": "status"})
    return entries


def _entry(manager: str, time: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


def owned_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `value` in the notation of FieldsV1, ordered by name."""
    return {f"f:{key}": _owned_value(key, value[key]) for key in sorted(value) if key not in _NOT_WRITTEN}


def _owned_value(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {".": {}, **owned_fields(value)}
    if key in _ITEM_KEYS:
        return _owned_items(key, list(value))
    if key in _SETS:
        return {".": {}, **{f"v:{json.dumps(item)}": {} for item in value}}
    return {}


def _owned_items(key: str, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    name = _ITEM_KEYS[key]
    owned: dict[str, Any] = {} if key in _REQUIRED_LISTS else {".": {}}
    for item in items:
        identity = json.dumps({name: item[name]}, separators=(",", ":"))
        owned[f"k:{identity}"] = {".": {}, **owned_fields(item)}
    return owned
