"""The objects of a cluster, their versions and a bounded history; needs no event loop.

Each write has its own resourceVersion and event, as in etcd. The last `history` writes are kept, so that all
pages of a list show the same version and a watch can be resumed; older versions have expired.
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

from .kinds import KINDS, POD
from .statuses import compact_json
from .table import table_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .kinds import Kind

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
_INHERITED = frozenset({"uid", "creationTimestamp", "generation"})
_MAX_SNAPSHOTS = 8
_METADATA_START = len(b'{"metadata":')


class Expired(Exception):  # noqa: N818 - the API server's term
    """The requested version is older than `oldest`, the oldest one in the history."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"version {version} has been compacted, the oldest known is {oldest}")
        self.version = version
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object, encoded when it is written.

    `key` is `namespace/name`, by which lists are ordered, and `fields` are those that field selectors
    support. `item` is its JSON without kind and apiVersion, as in a list, of which the metadata end at
    `metadata_end`. `row` is the Table row of a pod without the closing `,"object":...}`; ages are those at
    the time of the write.
    """

    kind: Kind
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
        """Its JSON with kind and apiVersion."""
        return self.kind.head + self.item[1:]

    @property
    def metadata(self) -> bytes:
        """The JSON of its metadata."""
        return self.item[_METADATA_START : self.metadata_end]

    @property
    def partial(self) -> bytes:
        """Its PartialObjectMetadata, as JSON."""
        head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
        return head + self.metadata + b"}"

    def as_dict(self) -> dict[str, Any]:
        """Return the object as a new dict."""
        loaded: dict[str, Any] = json.loads(self.whole)
        return loaded

    def at(self, version: int) -> StoredObject:
        """Return the same object with another resourceVersion, as in a DELETED event."""
        old, new = (b'"resourceVersion":"%d"' % v for v in (self.version, version))
        # The first occurrence is the object's own: labels and annotations, which are free text, follow it.
        item = self.item.replace(old, new, 1)
        end = self.metadata_end + len(new) - len(old)
        return replace(self, version=version, item=item, metadata_end=end)


@dataclass(frozen=True, slots=True)
class Event:
    """One write: `object` is the new version (None for a removal), `previous` the one before, if any."""

    version: int
    object: StoredObject | None
    previous: StoredObject | None


class Store:
    """Objects by kind and `namespace/name`; every method may be called from any thread.

    Methods that need a version raise `Expired` if it is older than the history.
    """

    def __init__(self, *, clock: Callable[[], datetime], history: int, version: int = 1) -> None:
        self.clock = clock
        self.version = version
        """The resourceVersion of the latest write."""
        self.compacted = version
        """The oldest version that can be listed, or from which a watch can start."""
        self._objects: dict[Kind, dict[str, StoredObject]] = {kind: {} for kind in KINDS}
        self._keys: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
        self._events: deque[Event] = deque(maxlen=history)
        # Connected watches survive `compact`, so they have a limit of their own.
        self._oldest_change = version
        self._snapshots: dict[tuple[int, Kind], tuple[StoredObject, ...]] = {}
        self._listeners: list[Callable[[], None]] = []
        self.lock = threading.RLock()
        """To be held across a read and a write that depends on it."""

    def get(self, namespace: str, name: str, kind: Kind = POD) -> StoredObject | None:
        """Return the current version of an object, None if it does not exist."""
        return self._objects[kind].get(f"{namespace}/{name}")

    def put(self, document: Mapping[str, Any], kind: Kind = POD) -> StoredObject:
        """Write `document`, in place of the object of the same name if there is one, and return the object.

        It gets a new resourceVersion. A missing uid, creationTimestamp or generation is taken from the object
        that it replaces; a new one gets new ones.
        """
        with self.lock:
            version = self.version + 1
            metadata = document["metadata"]
            key = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
            previous = self._objects[kind].get(key)
            if previous is not None and not _INHERITED.issubset(metadata):
                old = previous.as_dict()["metadata"]
                inherited = {name: old[name] for name in _INHERITED}
                document = {**document, "metadata": {**inherited, **metadata}}
            stored = stored_object(document, version, self.clock(), kind)
            if previous is None:
                bisect.insort(self._keys[kind], key)
            self._objects[kind][key] = stored
            self._record(Event(version, stored, previous))
            return stored

    def remove(self, namespace: str, name: str, kind: Kind = POD) -> StoredObject | None:
        """Remove an object; return its last state with the version of the removal, None if it was absent."""
        with self.lock:
            key = f"{namespace}/{name}"
            previous = self._objects[kind].pop(key, None)
            if previous is None:
                return None
            keys = self._keys[kind]
            del keys[bisect.bisect_left(keys, key)]
            version = self.version + 1
            self._record(Event(version, None, previous))
            return previous.at(version)

    def compact(self) -> None:
        """Expire every earlier version, and with it the continue tokens issued so far.

        The version increases by one, as if another object had been written. Connected watches continue.
        """
        with self.lock:
            self.version += 1
            self.compacted = self.version
            self._snapshots.clear()
            self._notify()

    def objects_at(self, version: int, kind: Kind = POD) -> tuple[StoredObject, ...]:
        """Return every object of a kind as of `version`, ordered by key."""
        with self.lock:
            self.check_known(version)
            snapshot = self._snapshots.get((version, kind))
            if snapshot is None:
                snapshot = self._snapshot(version, kind)
                self._snapshots[version, kind] = snapshot
                while len(self._snapshots) > _MAX_SNAPSHOTS:
                    del self._snapshots[next(iter(self._snapshots))]
            return snapshot

    def check_known(self, version: int) -> None:
        """Return if `version` can be listed, and a new watch can start after it."""
        if version < self.compacted:
            raise Expired(version, self.compacted)

    def restore(self, version: int) -> None:
        """Undo every write after `version`."""
        with self.lock:
            for kind in KINDS:
                self._objects[kind] = {each.key: each for each in self.objects_at(version, kind)}
                self._keys[kind] = list(self._objects[kind])
            self._snapshots.clear()
            while self._events and self._events[-1].version > version:
                self._events.pop()
            self.version = version
            self._notify()

    def changes_after(self, version: int, *, until: int | None = None) -> tuple[int, list[Event]]:
        """Return the current version and the writes since `version`, oldest first.

        If `version` is newer than the current one, it is returned instead. With `until`, that version counts
        as the current one, and later writes are left out.
        """
        with self.lock:
            if version < self._oldest_change:
                raise Expired(version, self._oldest_change)
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
        """Call `listener` after every write, in the thread that writes."""
        self._listeners.append(listener)

    def _record(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self._oldest_change = self._events[0].version
            self.compacted = max(self.compacted, self._oldest_change)
        self._events.append(event)
        self.version = event.version
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def _snapshot(self, version: int, kind: Kind) -> tuple[StoredObject, ...]:
        objects = self._objects[kind]
        if version >= self.version:
            return tuple(objects[key] for key in self._keys[kind])
        objects = dict(objects)
        for event in reversed(self._events):
            if event.version <= version:
                break
            changed = event.object or event.previous
            assert changed is not None
            if changed.kind is not kind:
                continue
            if event.previous is None:
                del objects[changed.key]
            else:
                objects[changed.key] = event.previous
        return tuple(objects[key] for key in sorted(objects))


def stored_object(document: Mapping[str, Any], version: int, now: datetime, kind: Kind = POD) -> StoredObject:
    """Return `document` encoded with that version, and with the fields filled in that the server sets."""
    metadata = _complete_metadata(document["metadata"], version, now)
    content = {name: document.get(name) or default for name, default in kind.fields.items()}
    complete = {"metadata": metadata, **content}
    key, fields = f"{metadata['namespace']}/{metadata['name']}", _selectable_fields(complete, kind)
    if not kind.is_namespaced:
        del metadata["namespace"]
    encoded = compact_json(metadata)
    rest = compact_json(content)
    return StoredObject(
        kind=kind,
        key=key,
        version=version,
        labels=metadata.get("labels") or {},
        fields=fields,
        item=b'{"metadata":' + encoded + b"," + rest[1:],
        metadata_end=_METADATA_START + len(encoded),
        row=compact_json(table_row(complete, now))[:-1] if kind is POD else b"",
    )


def timestamp(moment: datetime) -> str:
    """Return `moment` in the API server's format: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _complete_metadata(metadata: Mapping[str, Any], version: int, now: datetime) -> dict[str, Any]:
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


def _selectable_fields(document: Mapping[str, Any], kind: Kind) -> dict[str, str]:
    metadata = document["metadata"]
    names = {"metadata.name": metadata["name"], "metadata.namespace": metadata["namespace"]}
    if kind is not POD:
        return names
    spec, status = document["spec"], document["status"]
    addresses: Sequence[Mapping[str, str]] = status.get("podIPs") or [{}]
    fields = names | {
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
