"""How create, update, patch and delete requests change a pod, with the API server's rules and errors."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aioresolve.testing.lifecycle import merge_patch

from .pods import with_defaults, with_managed_fields
from .statuses import already_exists, bad_request, conflict, not_found, unprocessable
from .store import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .store import Store, StoredPod

_SET_ON_CREATE = ("uid", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_SERVER_OWNED = ("name", "namespace", *_SET_ON_CREATE)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def replace_pod(old: Mapping[str, Any], new: Mapping[str, Any], subresource: str) -> dict[str, Any]:
    """Return the pod that results from an update of `old` with the object `new`.

    An update of the subresource `status` keeps the old spec; any other update keeps the old status.
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


def mark_for_deletion(pod: Mapping[str, Any], grace: int | None, now: datetime) -> dict[str, Any] | None:
    """Return `pod` with a deletion due in `grace` seconds; None if the request changes nothing.

    As in the API server, the default is the pod's own grace period, a pod that does not run anywhere has no
    grace period, and a second request can only shorten it.
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
    """Applies the writes of clients to a store, each atomically.

    Every method raises `Failure` with the API server's errors: 400, 404, 409, 422.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, namespace: str, body: Mapping[str, Any], manager: str) -> StoredPod:
        """Create a pod with defaults filled in and phase Pending, whatever status `body` has; return it."""
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
        for key in _SET_ON_CREATE:
            metadata.pop(key, None)
        with self._store.lock:
            if self._store.get(namespace, metadata["name"]) is not None:
                raise already_exists(metadata["name"])
            pod = with_defaults({**body, "metadata": metadata})
            return self._put(pod, manager)

    def replace(
        self, namespace: str, name: str, body: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredPod:
        """Replace a pod with `body` and return it."""
        with self._store.lock:
            return self._write(self._existing(namespace, name), body, subresource, manager)

    def patch(
        self, namespace: str, name: str, patch: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredPod:
        """Apply a merge patch to a pod and return it."""
        with self._store.lock:
            existing = self._existing(namespace, name)
            return self._write(existing, merge_patch(existing.as_dict(), patch), subresource, manager)

    def delete(self, namespace: str, name: str, grace: int | None) -> StoredPod:
        """Request the deletion of a pod and return it; it is removed immediately if nothing delays that."""
        with self._store.lock:
            existing = self._existing(namespace, name)
            pod = existing.as_dict()
            marked = mark_for_deletion(pod, grace, self._store.clock())
            if marked is not None:
                existing = self._store.put(marked)
                pod = marked
            return self._remove_if_done(pod) or existing

    def finish_deletion(self, namespace: str, name: str) -> StoredPod | None:
        """Remove a pod that is being deleted and return its last state; None if it is not being deleted."""
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
        expected = (body.get("metadata") or {}).get("resourceVersion")
        if expected and expected != str(existing.version):
            raise conflict(existing.name)
        old = existing.as_dict()
        new = replace_pod(old, body, subresource)
        new["metadata"]["resourceVersion"] = str(existing.version)
        if new == old:
            return existing
        return self._remove_if_done(new) or self._put(new, manager)

    def _remove_if_done(self, pod: Mapping[str, Any]) -> StoredPod | None:
        """Remove a pod whose deletion neither a finalizer nor a grace period delays any longer."""
        metadata = pod["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return None
        if metadata.get("deletionGracePeriodSeconds", 0) > 0:
            return None
        return self._store.remove(metadata["namespace"], metadata["name"])

    def _put(self, pod: Mapping[str, Any], manager: str) -> StoredPod:
        return self._store.put(with_managed_fields(pod, manager, timestamp(self._store.clock())))
