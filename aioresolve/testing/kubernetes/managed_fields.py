"""`metadata.managedFields` as the API server derives it: which fields of a pod a writer has set.

Format: https://kubernetes.io/docs/reference/using-api/server-side-apply/ (FieldsV1).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["managed_fields", "owned_fields"]

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
"""Lists whose items are owned one by one, and what tells the items apart; others are owned as a whole."""
_SETS = frozenset({"finalizers"})
_REQUIRED_LISTS = frozenset({"containers"})
_OWNED_METADATA = ("annotations", "finalizers", "labels", "ownerReferences")
# Set by the server or by admission, not by the one who wrote the pod.
_NOT_WRITTEN = frozenset({"qosClass", "priority", "preemptionPolicy", "tolerations"})


def managed_fields(pod: Mapping[str, Any], manager: str, time: str) -> list[dict[str, Any]]:
    """The two entries of a pod written by `manager` at `time` (RFC 3339): metadata and spec, then status.

    What the server sets itself is left out; a pod without a written status has one entry.
    """
    metadata = {key: pod["metadata"][key] for key in _OWNED_METADATA if pod["metadata"].get(key)}
    written: dict[str, Any] = {}
    if metadata:
        written["f:metadata"] = owned_fields(metadata)
    if pod.get("spec"):
        written["f:spec"] = owned_fields(pod["spec"])
    entries = [_entry(manager, time, written)]
    # The server gives every new pod the phase Pending, so a writer owns only what it says beyond that.
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
    """The fields of `value` in the notation of FieldsV1, in order of their names."""
    return {f"f:{key}": _owned(key, value[key]) for key in sorted(value) if key not in _NOT_WRITTEN}


def _owned(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {".": {}, **owned_fields(value)}
    if key in _ITEM_KEYS:
        return _items(key, list(value))
    if key in _SETS:
        return {".": {}, **{f"v:{json.dumps(item)}": {} for item in value}}
    return {}


def _items(key: str, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    name = _ITEM_KEYS[key]
    owned: dict[str, Any] = {} if key in _REQUIRED_LISTS else {".": {}}
    for item in items:
        identity = json.dumps({name: item[name]}, separators=(",", ":"))
        owned[f"k:{identity}"] = {".": {}, **owned_fields(item)}
    return owned
