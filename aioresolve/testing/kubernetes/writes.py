"""What a create, update, patch or delete makes of a pod.

The functions on dicts are pure; `Writer` applies them to a store, each as one step.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .managed_fields import managed_fields
from .pods import with_defaults
from .statuses import already_exists, bad_request, conflict, not_found, unprocessable
from .store import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .store import Store, StoredPod

__all__ = ["Writer", "deleted", "merged", "updated"]

_SERVER_OWNED = (
    "name",
    "namespace",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def merged(target: Any, patch: Any) -> Any:
    """`target` with the JSON merge patch applied (RFC 7386); neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def updated(old: Mapping[str, Any], new: Mapping[str, Any], subresource: str) -> dict[str, Any]:
    """`new` in the place of `old`.

    A write to the subresource `status` leaves the spec as it is, any other the status.
    """
    metadata = dict(new.get("metadata") or {})
    for key in _SERVER_OWNED:
        metadata.pop(key, None)
        if key in old["metadata"]:
            metadata[key] = old["metadata"][key]
    result = dict(new) | {"metadata": metadata}
    if subresource == "status":
        return result | {"spec": old["spec"]}
    if result.get("spec") != old["spec"]:
        metadata["generation"] = metadata.get("generation", 0) + 1
    return result | {"status": old["status"]}


def deleted(pod: Mapping[str, Any], grace: int | None, now: datetime) -> dict[str, Any] | None:
    """`pod` once it has been asked to go within `grace` seconds; None where that changes nothing.

    As the API server: its own grace period where none is given, none for a pod that runs nowhere, and a
    second request can only shorten the time.
    """
    metadata = dict(pod["metadata"])
    if "deletionTimestamp" in metadata:
        current = metadata.get("deletionGracePeriodSeconds", 0)
        if grace is None or grace >= current:
            return None
    else:
        own: int = pod["spec"].get("terminationGracePeriodSeconds", 0)
        grace = own if grace is None else grace
        if not pod["spec"].get("nodeName") or pod["status"].get("phase") in {"Succeeded", "Failed"}:
            grace = 0
        metadata["generation"] = metadata.get("generation", 0) + 1
    metadata["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace
    return dict(pod) | {"metadata": metadata}


class Writer:
    """Writes to a store as clients make them.

    Every method raises `Failure` as the API server does: 400, 404, 409, 422.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, namespace: str, body: Mapping[str, Any], manager: str) -> StoredPod:
        """The new pod: defaults filled in, its status Pending whatever `body` says."""
        metadata = dict(body.get("metadata") or {})
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                problem = "Required value: name or generateName is required"
                raise unprocessable("", "Pod", "", [("metadata.name", "FieldValueRequired", problem)])
            suffix = "".join(secrets.choice(_SUFFIX) for _ in range(5))
            metadata["name"] = f"{metadata['generateName']}{suffix}"
        metadata["namespace"] = namespace
        if not (body.get("spec") or {}).get("containers"):
            missing = ("spec.containers", "FieldValueRequired", "Required value")
            raise unprocessable("", "Pod", metadata["name"], [missing])
        for key in (
            "uid",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        ):
            metadata.pop(key, None)
        with self._store.lock:
            if self._store.get(namespace, metadata["name"]) is not None:
                raise already_exists(metadata["name"])
            pod = with_defaults({**body, "metadata": metadata})
            return self._store.put(self._managed(pod, manager))

    def replace(
        self, namespace: str, name: str, body: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredPod:
        """The pod with `body` in its place."""
        with self._store.lock:
            return self._write(self._existing(namespace, name), body, subresource, manager)

    def patch(
        self, namespace: str, name: str, patch: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredPod:
        """The pod with the merge patch applied."""
        with self._store.lock:
            existing = self._existing(namespace, name)
            return self._write(existing, merged(existing.as_dict(), patch), subresource, manager)

    def delete(self, namespace: str, name: str, grace: int | None) -> StoredPod:
        """The pod as it is after it was asked to go; it is gone at once when nothing holds it."""
        with self._store.lock:
            existing = self._existing(namespace, name)
            pod = existing.as_dict()
            leaving = deleted(pod, grace, self._store.clock())
            if leaving is not None:
                existing = self._store.put(leaving)
                pod = leaving
            return self._removed_if_done(pod) or existing

    def finish_deletion(self, namespace: str, name: str) -> StoredPod | None:
        """The last state of a pod being deleted, now gone; None when it is not being deleted."""
        with self._store.lock:
            if "deletionTimestamp" not in self._existing(namespace, name).as_dict()["metadata"]:
                return None
            return self._store.remove(namespace, name)

    def _existing(self, namespace: str, name: str) -> StoredPod:
        existing = self._store.get(namespace, name)
        if existing is None:
            raise not_found(name)
        return existing

    def _write(
        self, existing: StoredPod, body: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredPod:
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted and wanted != str(existing.version):
            raise conflict(existing.name)
        old = existing.as_dict()
        new = updated(old, body, subresource)
        new["metadata"]["resourceVersion"] = str(existing.version)
        if new == old:
            return existing
        return self._removed_if_done(new) or self._store.put(self._managed(new, manager))

    def _removed_if_done(self, pod: Mapping[str, Any]) -> StoredPod | None:
        metadata = pod["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return None
        if metadata.get("deletionGracePeriodSeconds", 0) > 0:
            return None
        return self._store.remove(metadata["namespace"], metadata["name"])

    def _managed(self, pod: Mapping[str, Any], manager: str) -> dict[str, Any]:
        fields = managed_fields(pod, manager, timestamp(self._store.clock()))
        return {**pod, "metadata": {**pod["metadata"], "managedFields": fields}}
