"""Lists of objects as bytes: PodList or Table, complete or in pages.

The continue token of a page is `{"v":"meta.k8s.io/v1","rv":8470,"start":"/train-1\u0000"}` in base64. `start`
is the key with which the next page begins, relative to the listed namespace; `rv` is the version of the first
page, or -1 for the current one. Format: k8s.io/apiserver/pkg/storage/continue.go.
"""

from __future__ import annotations

import base64
import bisect
import json
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aioresolve.testing.faults import Fault

from .kinds import POD
from .pods import pod
from .statuses import bad_request, compact_json, expired_list, expired_page, too_large_version
from .store import Expired, stored_object
from .table import COLUMN_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from .kinds import Kind
    from .options import Form, IncludeObject, ListOptions
    from .store import Store, StoredObject

_INVALID = "continue key is not valid"
_ENDLESS_VERSION = 1_000_000
_MAX_CACHED_BYTES = 512 * 1024 * 1024


class InvalidTokenError(ValueError):
    """The token does not come from an API server; the message is the real server's."""


@dataclass(frozen=True, slots=True)
class ContinueToken:
    """The start of the next page.

    `version` is the one to list, -1 for the current one. `start` is the smallest key that may follow,
    relative to the namespace, without a leading slash.
    """

    version: int
    start: str

    def encode(self, *, rooted: bool = True) -> str:
        """Return the token that a client gets; in the body of a 410 its key has no leading slash."""
        start = f"/{self.start}" if rooted else self.start
        body = compact_json({"v": "meta.k8s.io/v1", "rv": self.version, "start": start})
        return base64.urlsafe_b64encode(body).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> ContinueToken:
        """Parse the token that a client sent; raises an InvalidTokenError."""
        body = b""
        try:
            body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            document = json.loads(body)
            token = cls(int(document["rv"]), document["start"].removeprefix("/"))
        except (ValueError, KeyError, TypeError, AttributeError):
            shown = repr(body[:1])[2:-1] if body else ""
            raise InvalidTokenError(
                f"{_INVALID}: invalid character '{shown}' looking for beginning of value"
            ) from None
        if not token.version or not token.start:
            raise InvalidTokenError(f"{_INVALID}: incorrect encoded start (version meta.k8s.io/v1)")
        return token


COLUMNS = compact_json(COLUMN_DEFINITIONS)


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of a page, and the metadata of the list."""

    objects: Sequence[StoredObject]
    metadata: dict[str, Any]
    kind: Kind = POD


def page(store: Store, options: ListOptions) -> Page:
    """Return the objects that `options` request, at the requested version and up to the limit.

    Failures: 400 for an invalid token, 410 for an expired version, 504 for one that does not exist yet.
    """
    selection = options.selection
    with store.lock:
        version, start = _position(store, options)
        try:
            objects = store.objects_at(version, selection.kind)
        except Expired:
            if options.continue_token:
                raise expired_page(ContinueToken(-1, start).encode(rooted=False)) from None
            raise expired_list() from None
    prefix = "" if selection.namespace is None else f"{selection.namespace}/"
    first = bisect.bisect_left(objects, prefix + start, key=attrgetter("key"))
    # "0" is the character after "/", so this is the end of the namespace.
    end = f"{selection.namespace}0"
    last = bisect.bisect_left(objects, end, key=attrgetter("key")) if prefix else len(objects)
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if not options.limit:
        listed: Sequence[StoredObject] = objects[first:last]
        if not selection.is_everything:
            listed = [each for each in listed if selection.matches(each)]
        return Page(listed, metadata, selection.kind)
    # One object more than the limit shows whether there is a next page.
    found = list(
        islice((each for each in islice(objects, first, last) if selection.matches(each)), options.limit + 1)
    )
    if len(found) > options.limit:
        found.pop()
        # The smallest key after the last one listed, so that an object created in between is not skipped.
        following = found[-1].key.removeprefix(prefix) + "\0"
        metadata["continue"] = ContinueToken(version, following).encode()
        if selection.is_everything:
            metadata["remainingItemCount"] = last - first - len(found)
    return Page(found, metadata, selection.kind)


def list_body(listed: Page, form: Form, include: IncludeObject) -> bytes:
    """Return the list as compact JSON with a final newline."""
    metadata = compact_json(listed.metadata)
    match form:
        case "table":
            rows = b",".join(row_of(pod, include) for pod in listed.objects)
            head = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":'
            return b"".join((head, metadata, b',"columnDefinitions":', COLUMNS, b',"rows":[', rows, b"]}\n"))
        case "object":
            head = listed.kind.list_head + b'"metadata":'
            items = b",".join([each.item for each in listed.objects])
    return b"".join((head, metadata, b',"items":[', items, b"]}\n"))


def object_body(stored: StoredObject, form: Form, include: IncludeObject) -> bytes:
    """Return one object in the requested form, JSON with a final newline."""
    match form:
        case "table":
            return list_body(Page([stored], {"resourceVersion": str(stored.version)}), form, include)
        case "object":
            return stored.whole + b"\n"


def row_of(pod: StoredObject, include: IncludeObject) -> bytes:
    """Return the Table row of `pod` with the object that the client requested."""
    match include:
        case "None":
            return pod.row + b',"object":null}'
        case "Metadata":
            return pod.row + b',"object":' + pod.partial + b"}"
        case "Object":
            return pod.row + b',"object":' + pod.whole + b"}"


def _position(store: Store, options: ListOptions) -> tuple[int, str]:
    """Return the version to list, and the key to start with, relative to the namespace."""
    current = store.version
    if options.continue_token:
        try:
            token = ContinueToken.decode(options.continue_token)
        except InvalidTokenError as error:
            raise bad_request(f"invalid continue token: {error}") from None
        if token.version > current:
            raise too_large_version(token.version, current)
        return (current if token.version < 0 else token.version), token.start
    # A real server first waits three seconds for that version.
    if options.version is not None and options.version > current:
        raise too_large_version(options.version, current)
    if options.exact and options.version is not None:
        return options.version, ""
    return current, ""


@dataclass(frozen=True, slots=True)
class EndlessPages(Fault):
    """Every list is a page of running pods that do not exist, and there is always a next page.

    Inject it with `times=None`. The length of a page is the client's `limit`, or without one `page_size`
    pods; the pods have the labels that the selector requires.
    """

    page_size: int = 500


def endless_page(fault: EndlessPages, options: ListOptions, now: datetime) -> Page:
    """Return the page after the continue token of `options`, or the first."""
    first = 0
    if options.continue_token:
        try:
            start = ContinueToken.decode(options.continue_token).start
            first = int(start.rpartition("-")[2].rstrip("\0")) + 1
        except (InvalidTokenError, ValueError) as error:
            raise bad_request(f"invalid continue token: {error}") from None
    size = options.limit or fault.page_size
    namespace = options.selection.namespace or "default"
    requirements = options.selection.labels.requirements
    labels = {r.key: min(r.values) for r in requirements if r.operator in {"=", "in"}}
    names = [f"endless-{number:09}" for number in range(first, first + size)]
    pods = [stored_object(pod(name, namespace, labels=labels), _ENDLESS_VERSION, now) for name in names]
    prefix = "" if options.selection.namespace else f"{namespace}/"
    token = ContinueToken(_ENDLESS_VERSION, f"{prefix}{names[-1]}\0").encode()
    metadata = {"resourceVersion": str(_ENDLESS_VERSION), "continue": token, "remainingItemCount": 1_000_000}
    return Page(pods, metadata)


class ResponseCache:
    """Whole response bodies by request, until the next write; limited by their size in bytes."""

    def __init__(self) -> None:
        self._version = -1
        self._size = 0
        self._bodies: dict[tuple[object, ...], bytes] = {}

    def get(self, version: int, key: tuple[object, ...]) -> bytes | None:
        return self._bodies.get(key) if version == self._version else None

    def clear(self) -> None:
        """Remove every body, because a version number may be used again for other content."""
        self._bodies.clear()
        self._version, self._size = -1, 0

    def put(self, version: int, key: tuple[object, ...], body: bytes) -> None:
        if version != self._version or self._size + len(body) > _MAX_CACHED_BYTES:
            self._bodies.clear()
            self._version, self._size = version, 0
        self._bodies[key] = body
        self._size += len(body)
