"""What the cluster holds: pods, their versions and a bounded past, without a socket or a loop.

One write is one resourceVersion and one event, as in etcd. The past is kept for `history` writes, so that a
list can be paged through as it was and a watch can be resumed; what is older has expired.
"""

from __future__ import annotations

import bisect
import json
import threading
import uuid
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .statuses import compact_json
from .table import table_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Event", "Expired", "Store", "StoredPod", "stored_pod", "timestamp"]

_METADATA_ORDER = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)
_KEPT = frozenset({"uid", "creationTimestamp", "generation"})
_SNAPSHOTS = 8


class Expired(Exception):  # noqa: N818 - the API server's own word for it
    """The version asked for is older than the past that is kept.

    Attributes:
        version: the version asked for.
        oldest: the oldest version still known.
    """

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"version {version} has been compacted, the oldest known is {oldest}")
        self.version = version
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class StoredPod:
    """One version of one pod, encoded once.

    Attributes:
        key: `namespace/name`, the order of every list.
        version: its resourceVersion.
        labels: its labels.
        fields: what field selectors see of it.
        item: its JSON without kind and apiVersion, as it stands in a PodList.
        metadata_end: `item[12:metadata_end]` is the JSON of its metadata.
        row: its Table row without the closing `,"object":...}`; ages are as of when it was stored.
    """

    key: str
    version: int
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    item: bytes
    metadata_end: int
    row: bytes

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]

    @property
    def whole(self) -> bytes:
        """Its JSON with kind and apiVersion, as it is answered by itself."""
        return b'{"kind":"Pod","apiVersion":"v1",' + self.item[1:]

    @property
    def metadata(self) -> bytes:
        """The JSON of its metadata alone."""
        return self.item[12 : self.metadata_end]

    @property
    def partial(self) -> bytes:
        """Its PartialObjectMetadata, as JSON."""
        head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
        return head + self.metadata + b"}"

    def as_dict(self) -> dict[str, Any]:
        """A new dict of the pod, the caller's own to change."""
        loaded: dict[str, Any] = json.loads(self.whole)
        return loaded

    def at(self, version: int) -> StoredPod:
        """The same pod under another resourceVersion: what a watch tells of a pod that has left."""
        old, new = (b'"resourceVersion":"%d"' % v for v in (self.version, version))
        item = self.item.replace(old, new, 1)
        end = self.metadata_end + len(new) - len(old)
        return replace(self, version=version, item=item, metadata_end=end)


@dataclass(frozen=True, slots=True)
class Event:
    """One write: `pod` is the version written and None for a removal, `previous` the one before, if any."""

    version: int
    pod: StoredPod | None
    previous: StoredPod | None


class Store:
    """Pods by `namespace/name`; every method may be called from any thread."""

    def __init__(self, *, clock: Callable[[], datetime], history: int, version: int = 1) -> None:
        self.clock = clock
        self.version = version
        """The resourceVersion of the newest write."""
        self.compacted = version
        """The oldest version that can be listed, and watched from."""
        self._pods: dict[str, StoredPod] = {}
        self._keys: list[str] = []
        self._events: deque[Event] = deque(maxlen=history)
        self._lost = version
        self._snapshots: dict[int, tuple[StoredPod, ...]] = {}
        self._listeners: list[Callable[[], None]] = []
        self.lock = threading.RLock()
        """Held across a read and the write that depends on it."""

    def get(self, namespace: str, name: str) -> StoredPod | None:
        """The pod as it is now, None when there is none of that name."""
        return self._pods.get(f"{namespace}/{name}")

    def put(self, pod: Mapping[str, Any]) -> StoredPod:
        """`pod` as it is stored from now on, a new one or in the place of the one of its name.

        Its resourceVersion is new. Where uid, creationTimestamp and generation are missing, they are those of
        the pod before, or new too.
        """
        with self.lock:
            version = self.version + 1
            key = f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"
            previous = self._pods.get(key)
            if previous is not None and not _KEPT.issubset(pod["metadata"]):
                old = previous.as_dict()["metadata"]
                kept = {name: old[name] for name in _KEPT}
                pod = {**pod, "metadata": {**kept, **pod["metadata"]}}
            stored = stored_pod(pod, version, self.clock())
            if previous is None:
                bisect.insort(self._keys, key)
            self._pods[key] = stored
            self._record(Event(version, stored, previous))
            return stored

    def remove(self, namespace: str, name: str) -> StoredPod | None:
        """Remove the pod; its last state under the version of the removal, or None when there was none."""
        with self.lock:
            key = f"{namespace}/{name}"
            previous = self._pods.pop(key, None)
            if previous is None:
                return None
            del self._keys[bisect.bisect_left(self._keys, key)]
            version = self.version + 1
            self._record(Event(version, None, previous))
            return previous.at(version)

    def compact(self) -> None:
        """Forget every version before now: continue tokens and versions handed out so far have expired.

        Something else is written to the cluster as well, as in a real one: the version moves on by one.
        Watches that are connected go on.
        """
        with self.lock:
            self.version += 1
            self.compacted = self.version
            self._snapshots.clear()
            self._notify()

    def pods_at(self, version: int) -> tuple[StoredPod, ...]:
        """Every pod as of `version`, in key order.

        Raises:
            Expired: that version is no longer known.
        """
        with self.lock:
            if version < self.compacted:
                raise Expired(version, self.compacted)
            snapshot = self._snapshots.get(version)
            if snapshot is None:
                snapshot = self._snapshot(version)
                self._snapshots[version] = snapshot
                while len(self._snapshots) > _SNAPSHOTS:
                    del self._snapshots[next(iter(self._snapshots))]
            return snapshot

    def check_watchable(self, version: int) -> None:
        """Return when a new watch can start after `version`.

        Raises:
            Expired: writes since then are no longer known.
        """
        if version < self.compacted:
            raise Expired(version, self.compacted)

    def restore(self, version: int) -> None:
        """Let everything be as of `version` again, and whatever was written since not have been.

        Raises:
            Expired: that version is no longer known.
        """
        with self.lock:
            self._pods = {pod.key: pod for pod in self.pods_at(version)}
            self._keys = list(self._pods)
            self._snapshots.clear()
            while self._events and self._events[-1].version > version:
                self._events.pop()
            self.version = version
            self._notify()

    def changes_after(self, version: int, *, until: int | None = None) -> tuple[int, list[Event]]:
        """The version now, or `version` when that is newer, and the writes since `version`, oldest first.

        With `until`, the version now is that one, and what was written since has not been yet.

        Raises:
            Expired: some of them are no longer known.
        """
        with self.lock:
            if version < self._lost:
                raise Expired(version, self._lost)
            events: list[Event] = []
            for event in reversed(self._events):
                if event.version <= version:
                    break
                events.append(event)
            events.reverse()
            if until is None:
                return max(version, self.version), events
            return max(version, until), [event for event in events if event.version <= until]

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every write, in the thread of the writer."""
        self._listeners.append(listener)

    def _record(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self._lost = self._events[0].version
            self.compacted = max(self.compacted, self._lost)
        self._events.append(event)
        self.version = event.version
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def _snapshot(self, version: int) -> tuple[StoredPod, ...]:
        if version >= self.version:
            return tuple(self._pods[key] for key in self._keys)
        pods = dict(self._pods)
        for event in reversed(self._events):
            if event.version <= version:
                break
            changed = event.pod or event.previous
            assert changed is not None
            if event.previous is None:
                del pods[changed.key]
            else:
                pods[changed.key] = event.previous
        return tuple(pods[key] for key in sorted(pods))


def stored_pod(pod: Mapping[str, Any], version: int, now: datetime) -> StoredPod:
    """`pod` encoded as that version of it; what the server fills in is filled in where it is missing."""
    metadata = _completed(pod["metadata"], version, now)
    pod = {"metadata": metadata, "spec": pod.get("spec") or {}, "status": pod.get("status") or {}}
    encoded = compact_json(metadata)
    rest = compact_json({"spec": pod["spec"], "status": pod["status"]})
    return StoredPod(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=version,
        labels=metadata.get("labels") or {},
        fields=_selectable_fields(pod),
        item=b'{"metadata":' + encoded + b"," + rest[1:],
        metadata_end=12 + len(encoded),
        row=compact_json(table_row(pod, now))[:-1],
    )


def timestamp(moment: datetime) -> str:
    """`moment` as the API server writes it: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _completed(metadata: Mapping[str, Any], version: int, now: datetime) -> dict[str, Any]:
    filled = {
        "namespace": "default",
        "uid": str(uuid.uuid4()),
        "generation": 1,
        "creationTimestamp": timestamp(now),
        **{key: value for key, value in metadata.items() if value not in (None, [], {})},
        "resourceVersion": str(version),
    }
    for key in ("labels", "annotations"):
        if key in filled:
            filled[key] = dict(sorted(filled[key].items()))
    ordered = {key: filled.pop(key) for key in _METADATA_ORDER if key in filled}
    return ordered | filled


def _selectable_fields(pod: Mapping[str, Any]) -> dict[str, str]:
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    addresses: Sequence[Mapping[str, str]] = status.get("podIPs") or [{}]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
        "spec.nodeName": spec.get("nodeName"),
        "spec.restartPolicy": spec.get("restartPolicy"),
        "spec.schedulerName": spec.get("schedulerName"),
        "spec.serviceAccountName": spec.get("serviceAccountName"),
        "status.nominatedNodeName": status.get("nominatedNodeName"),
        "status.phase": status.get("phase"),
        "status.podIP": addresses[0].get("ip"),
    }
    return {name: value for name, value in fields.items() if value}
