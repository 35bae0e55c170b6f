"""The objects of a cluster, their versions, and a bounded history of writes; needs no event loop.

Each write has its own resourceVersion and event, as in etcd. The last `history` writes are kept, so that all
pages of a list show the same version and a watch can be resumed; older versions have expired.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .table import table_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_INHERITED = frozenset({"uid", "creationTimestamp", "generation"})
_METADATA_START = len(b'{"metadata":')


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of object.

    Attributes:
        name: the kind, such as `Pod`.
        group: its API group; empty for the core group.
        resource: its plural in URLs and RBAC rules.
        fields: the fields that every object has after `metadata`, in the order of the server, with the value
            for an object that does not set the field.
        selectable: the fields, besides name and namespace, that field selectors support.
        is_namespaced: whether its objects belong to namespaces.
    """

    name: str
    group: str
    resource: str
    fields: Mapping[str, object]
    selectable: tuple[str, ...] = ()
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified_resource(self) -> str:
        """The resource with its group, as in messages: `endpointslices.discovery.k8s.io`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def head(self, suffix: str = "") -> bytes:
        """Return the beginning of the JSON of an object: kind (with a suffix, such as `List`), apiVersion."""
        return f'{{"kind":"{self.name}{suffix}","apiVersion":"{self.api_version}",'.encode()


_SPEC_AND_STATUS: dict[str, object] = {"spec": {}, "status": {}}
POD = Kind(
    "Pod",
    "",
    "pods",
    {"spec": {"containers": None}, "status": {}},
    ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"),
)
ENDPOINT_SLICE = Kind(
    "EndpointSlice",
    "discovery.k8s.io",
    "endpointslices",
    {"addressType": "", "endpoints": None, "ports": None},
)
SERVICE = Kind("Service", "", "services", _SPEC_AND_STATUS)
NODE = Kind("Node", "", "nodes", _SPEC_AND_STATUS, is_namespaced=False)
RESOURCE_CLAIM = Kind("ResourceClaim", "resource.k8s.io", "resourceclaims", _SPEC_AND_STATUS)
CONFIG_MAP = Kind("ConfigMap", "", "configmaps", {})
LEASE = Kind("Lease", "coordination.k8s.io", "leases", {"spec": {}})
KINDS = (POD, ENDPOINT_SLICE, SERVICE, NODE, RESOURCE_CLAIM, CONFIG_MAP, LEASE)


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
        return self.kind.head() + self.item[1:]

    @property
    def partial(self) -> bytes:
        """Its PartialObjectMetadata, as JSON."""
        head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
        return head + self.item[_METADATA_START : self.metadata_end] + b"}"

    def as_dict(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.whole)
        return loaded

    def at(self, version: int) -> StoredObject:
        """Return the same object with another resourceVersion, as in a DELETED event."""
        old, new = (b'"resourceVersion":"%d"' % v for v in (self.version, version))
        # In annotations, which may contain whole objects, the quotation marks are escaped.
        item = self.item.replace(old, new, 1)
        end = self.metadata_end + len(new) - len(old)
        return replace(self, version=version, item=item, metadata_end=end)


@dataclass(frozen=True, slots=True)
class Event:
    """One write: `object` is the new version (None for a removal), `previous` the one before, if any."""

    version: int
    object: StoredObject | None
    previous: StoredObject | None

    @property
    def either(self) -> StoredObject:
        """The new version, or the last one of an object that was removed."""
        found = self.object or self.previous
        assert found is not None, "a write has at least one of both"
        return found


class Store:
    """Objects by kind and `namespace/name`; every method may be called from any thread.

    Methods that need a version raise `Expired` if it is older than the history.
    """

    def __init__(self, *, clock: Callable[[], datetime], history: int) -> None:
        self.clock = clock
        self.version = 1
        """The resourceVersion of the latest write."""
        self.lock = threading.RLock()
        """To be held across a read and a write that depends on it."""
        self._compacted = 1
        """The oldest version that can be listed, or from which a watch can start."""
        self._oldest_change = 1
        """The version from which a connected watch can continue: it survives `compact`."""
        self._objects: dict[Kind, dict[str, StoredObject]] = {kind: {} for kind in KINDS}
        self._events: deque[Event] = deque(maxlen=history)
        self._listeners: list[Callable[[Event | None], None]] = []

    def get(self, namespace: str, name: str, kind: Kind = POD) -> StoredObject | None:
        return self._objects[kind].get(f"{namespace}/{name}")

    def put(self, document: Mapping[str, Any], kind: Kind = POD) -> StoredObject:
        """Write `document`, in place of the object of the same name if there is one, and return the object.

        It gets a new resourceVersion. A missing uid, creationTimestamp or generation is taken from the object
        that it replaces; a new one gets new ones.
        """
        with self.lock:
            metadata = document["metadata"]
            previous = self.get(_namespace(metadata, kind), metadata["name"], kind)
            if previous is not None and not _INHERITED.issubset(metadata):
                old = previous.as_dict()["metadata"]
                inherited = {name: old[name] for name in _INHERITED}
                document = {**document, "metadata": {**inherited, **metadata}}
            stored = stored_object(document, self.version + 1, self.clock(), kind)
            self._objects[kind][stored.key] = stored
            self._record(Event(stored.version, stored, previous))
            return stored

    def remove(self, namespace: str, name: str, kind: Kind = POD) -> StoredObject | None:
        """Remove an object; return its last state with the version of the removal, None if it was absent."""
        with self.lock:
            previous = self._objects[kind].pop(f"{namespace}/{name}", None)
            if previous is None:
                return None
            version = self.version + 1
            self._record(Event(version, None, previous))
            return previous.at(version)

    def compact(self) -> None:
        """Expire every earlier version, and with it the continue tokens issued so far.

        The version increases by one, as if another object had been written. Connected watches continue.
        """
        with self.lock:
            self.version += 1
            self._compacted = self.version
            self._notify(None)

    def objects(self, kind: Kind = POD) -> tuple[StoredObject, ...]:
        """Return every object of a kind as it is now, ordered by key."""
        with self.lock:
            return self.objects_at(self.version, kind)

    def objects_at(self, version: int, kind: Kind = POD) -> tuple[StoredObject, ...]:
        """Return every object of a kind as of `version`, ordered by key."""
        with self.lock:
            self.check_known(version)
            objects = dict(self._objects[kind])
            for event in reversed(self._events):
                if event.version <= version:
                    break
                if event.either.kind is kind and event.previous is None:
                    del objects[event.either.key]
                elif event.either.kind is kind and event.previous is not None:
                    objects[event.either.key] = event.previous
            return tuple(objects[key] for key in sorted(objects))

    def check_known(self, version: int) -> None:
        """Return if `version` can be listed, and a new watch can start after it."""
        if version < self._compacted:
            raise Expired(version, self._compacted)

    def changes_after(self, version: int, *, until: int | None = None) -> tuple[int, list[Event]]:
        """Return the current version and the writes since `version`, oldest first.

        If `version` is newer than the current one, it is returned instead. With `until`, that version counts
        as the current one, and later writes are left out.
        """
        with self.lock:
            if version < self._oldest_change:
                raise Expired(version, self._oldest_change)
            current = self.version if until is None else until
            events: list[Event] = []
            for event in reversed(self._events):
                if event.version <= version:
                    break
                if event.version <= current:
                    events.append(event)
            return max(version, current), events[::-1]

    def listen(self, listener: Callable[[Event | None], None]) -> None:
        """Call `listener` with every write, in the thread that writes; with None if any object may differ."""
        self._listeners.append(listener)

    def _record(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self._oldest_change = self._events[0].version
            self._compacted = max(self._compacted, self._oldest_change)
        self._events.append(event)
        self.version = event.version
        self._notify(event)

    def _notify(self, event: Event | None) -> None:
        for listener in self._listeners:
            listener(event)


def stored_object(document: Mapping[str, Any], version: int, now: datetime, kind: Kind = POD) -> StoredObject:
    """Return `document` encoded with that version, and with the fields filled in that the server sets."""
    namespace = _namespace(document["metadata"], kind)
    metadata = _complete_metadata(document["metadata"], namespace, version, now)
    rest = {name: value for name, value in document.items() if name not in {"kind", "apiVersion", "metadata"}}
    content: dict[str, Any] = {
        **{name: rest.pop(name, None) or default for name, default in kind.fields.items()},
        **rest,
    }
    fields = {"metadata.name": metadata["name"], "metadata.namespace": namespace}
    for path in kind.selectable:
        part, _, name = path.partition(".")
        fields[path] = content[part].get(name) or ""
    encoded = compact_json(metadata)
    return StoredObject(
        kind=kind,
        key=f"{namespace}/{metadata['name']}",
        version=version,
        labels=metadata.get("labels") or {},
        fields=fields,
        item=b'{"metadata":' + encoded + (b"," + compact_json(content)[1:] if content else b"}"),
        metadata_end=_METADATA_START + len(encoded),
        row=compact_json(table_row({"metadata": metadata, **content}, now))[:-1] if kind is POD else b"",
    )


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _namespace(metadata: Mapping[str, Any], kind: Kind) -> str:
    return str(metadata.get("namespace", "default")) if kind.is_namespaced else ""


def _complete_metadata(
    metadata: Mapping[str, Any], namespace: str, version: int, now: datetime
) -> dict[str, Any]:
    filled = {key: value for key, value in metadata.items() if value not in (None, [], {})}
    filled |= {"namespace": namespace} if namespace else {}
    filled["resourceVersion"] = str(version)
    for key in filled.keys() & {"labels", "annotations"}:
        filled[key] = dict(sorted(filled[key].items()))
    own = {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": timestamp(now)}
    return filled | {key: value for key, value in own.items() if key not in filled}


def compact_json(value: Any) -> bytes:
    """Return `value` as one line of UTF-8 JSON without spaces; `<`, `>` and `&` are escaped as in Go."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _html_safe(text).encode()


def indented_json(body: bytes) -> bytes:
    """Return the JSON document `body` indented by two spaces, as curl and browsers get it."""
    return _html_safe(json.dumps(json.loads(body), ensure_ascii=False, indent=2)).encode()


def _html_safe(text: str) -> str:
    # JSON contains these characters only in strings, so replacing them everywhere is correct.
    return (
        text.replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
