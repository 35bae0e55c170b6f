"""How create, update, patch and delete requests change an object, with the API server's rules and errors."""

from __future__ import annotations

import abc
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aioresolve.testing.lifecycle import merge_patch

from .kinds import POD
from .pods import with_defaults, with_managed_fields
from .statuses import already_exists, bad_request, conflict, not_found, unprocessable
from .store import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .kinds import Kind
    from .statuses import Failure
    from .store import Store, StoredObject

_SET_ON_CREATE = ("uid", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_SERVER_OWNED = ("name", "namespace", *_SET_ON_CREATE)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def replace_metadata(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that result from an update of `old` with the object `new`."""
    metadata = dict(new.get("metadata") or {})
    for key in _SERVER_OWNED:
        metadata.pop(key, None)
        if key in old["metadata"]:
            metadata[key] = old["metadata"][key]
    return metadata


def replace_pod(old: Mapping[str, Any], new: Mapping[str, Any], subresource: str) -> dict[str, Any]:
    """Return the pod that results from an update of `old` with the object `new`.

    An update of the subresource `status` keeps the old spec; any other update keeps the old status.
    """
    metadata = replace_metadata(old, new)
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


class Writer(abc.ABC):
    """Applies the writes of clients to the objects of one kind in a store, each atomically.

    Every method raises `Failure` with the API server's errors: 400, 404, 409, 422.
    """

    def __init__(self, store: Store, kind: Kind) -> None:
        self._store = store
        self._kind = kind

    def create(self, namespace: str, body: Mapping[str, Any], manager: str) -> StoredObject:
        """Create an object and return it."""
        metadata = dict(body.get("metadata") or {})
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                problem = "Required value: name or generateName is required"
                raise self._invalid("", "metadata.name", problem)
            suffix = "".join(secrets.choice(_SUFFIX) for _ in range(5))
            metadata["name"] = f"{metadata['generateName']}{suffix}"
        metadata["namespace"] = namespace
        for key in _SET_ON_CREATE:
            metadata.pop(key, None)
        complete = self._complete({**body, "metadata": metadata})
        with self._store.lock:
            if self._store.get(namespace, metadata["name"], self._kind) is not None:
                raise already_exists(metadata["name"], self._kind)
            return self._put(complete, manager)

    def replace(
        self, namespace: str, name: str, body: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredObject:
        """Replace an object with `body` and return it."""
        with self._store.lock:
            return self._write(self._existing(namespace, name), body, subresource, manager)

    def patch(
        self, namespace: str, name: str, patch: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredObject:
        """Apply a merge patch to an object and return it."""
        with self._store.lock:
            existing = self._existing(namespace, name)
            return self._write(existing, merge_patch(existing.as_dict(), patch), subresource, manager)

    def delete(self, namespace: str, name: str, grace: int | None) -> StoredObject:
        """Request the deletion of an object and return it; it is removed at once if nothing delays that."""
        with self._store.lock:
            existing = self._existing(namespace, name)
            return self._store.remove(namespace, name, self._kind) or existing

    def finish_deletion(self, namespace: str, name: str) -> StoredObject | None:
        """Remove an object that is being deleted and return its last state; None if it is not."""
        with self._store.lock:
            if "deletionTimestamp" not in self._existing(namespace, name).as_dict()["metadata"]:
                return None
            return self._store.remove(namespace, name, self._kind)

    @abc.abstractmethod
    def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new object with the defaults of the server; raise a 422 if it is invalid."""

    @abc.abstractmethod
    def _replaced(self, old: Mapping[str, Any], new: Mapping[str, Any], subresource: str) -> dict[str, Any]:
        """Return the object that results from an update of `old` with the object `new`."""

    @abc.abstractmethod
    def _managed(self, document: Mapping[str, Any], manager: str, time: str) -> dict[str, Any]:
        """Return the object with `metadata.managedFields`, as if `manager` had written it at `time`."""

    def _invalid(self, name: str, field: str, problem: str) -> Failure:
        return unprocessable(
            self._kind.group, self._kind.name, name, [(field, "FieldValueRequired", problem)]
        )

    def _existing(self, namespace: str, name: str) -> StoredObject:
        existing = self._store.get(namespace, name, self._kind)
        if existing is None:
            raise not_found(name, self._kind)
        return existing

    def _write(
        self, existing: StoredObject, body: Mapping[str, Any], subresource: str, manager: str
    ) -> StoredObject:
        expected = (body.get("metadata") or {}).get("resourceVersion")
        if expected and expected != str(existing.version):
            raise conflict(existing.name, self._kind)
        old = existing.as_dict()
        new = self._replaced(old, body, subresource)
        new["metadata"]["resourceVersion"] = str(existing.version)
        if new == old:
            return existing
        return self._remove_if_done(new) or self._put(new, manager)

    def _remove_if_done(self, document: Mapping[str, Any]) -> StoredObject | None:
        """Remove an object whose deletion neither a finalizer nor a grace period delays any longer."""
        metadata = document["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return None
        if metadata.get("deletionGracePeriodSeconds", 0) > 0:
            return None
        return self._store.remove(metadata["namespace"], metadata["name"], self._kind)

    def _put(self, document: Mapping[str, Any], manager: str) -> StoredObject:
        managed = self._managed(document, manager, timestamp(self._store.clock()))
        return self._store.put(managed, self._kind)


class PodWriter(Writer):
    """Applies the writes of clients to pods."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, POD)

    def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a pod with defaults and phase Pending, whatever status `body` has."""
        if not (body.get("spec") or {}).get("containers"):
            raise self._invalid(body["metadata"]["name"], "spec.containers", "Required value")
        return with_defaults(body)

    def _replaced(self, old: Mapping[str, Any], new: Mapping[str, Any], subresource: str) -> dict[str, Any]:
        return replace_pod(old, new, subresource)

    def delete(self, namespace: str, name: str, grace: int | None) -> StoredObject:
        with self._store.lock:
            existing = self._existing(namespace, name)
            marked = mark_for_deletion(existing.as_dict(), grace, self._store.clock())
            if marked is not None:
                existing = self._store.put(marked, self._kind)
            return self._remove_if_done(existing.as_dict()) or existing

    def _managed(self, document: Mapping[str, Any], manager: str, time: str) -> dict[str, Any]:
        return with_managed_fields(document, manager, time)
