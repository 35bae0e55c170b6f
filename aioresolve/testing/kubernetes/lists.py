"""Lists of objects as bytes: PodList, Table or PartialObjectMetadataList, complete or in pages.

The continue token of a page is `{"v":"meta.k8s.io/v1","rv":8470,"start":"/train-1\u0000"}` in base64. `start`
is the key with which the next page begins, relative to the listed namespace; `rv` is the version of the first
page, or -1 for the current one. Format: k8s.io/apiserver/pkg/storage/continue.go.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import json
import posixpath
import re
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from .kinds import POD
from .statuses import bad_request, compact_json, expired_list, expired_page, too_large_version
from .store import Expired
from .table import COLUMN_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .kinds import Kind
    from .options import Form, IncludeObject, ListOptions
    from .store import Store, StoredObject

_INVALID = "continue key is not valid"


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
        document = _json_object(_decode_base64(text))
        version = document.get("v", "")
        if version != "meta.k8s.io/v1":
            raise InvalidTokenError(f'{_INVALID}: server does not recognize this encoded version "{version}"')
        revision, start = document.get("rv", 0), document.get("start", "")
        if not isinstance(revision, int) or not isinstance(start, str):
            raise InvalidTokenError(f"{_INVALID}: json: cannot unmarshal")
        if revision == 0:
            raise InvalidTokenError(
                f"{_INVALID}: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
            )
        if not start:
            raise InvalidTokenError(f"{_INVALID}: encoded start key empty (version meta.k8s.io/v1)")
        key = start if start.startswith("/") else f"/{start}"
        if posixpath.normpath(key) != key:
            raise InvalidTokenError(f"{_INVALID}: {start}")
        return cls(revision, key[1:])


def _decode_base64(text: str) -> bytes:
    invalid = re.search(r"[^A-Za-z0-9_-]", text)
    if invalid is not None:
        raise InvalidTokenError(f"{_INVALID}: illegal base64 data at input byte {invalid.start()}")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise InvalidTokenError(f"{_INVALID}: illegal base64 data at input byte {len(text)}") from None


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except UnicodeDecodeError:
        raise InvalidTokenError(f"{_INVALID}: {_json_problem(body, 0)}") from None
    except json.JSONDecodeError as error:
        raise InvalidTokenError(f"{_INVALID}: {_json_problem(body, error.pos)}") from None
    if not isinstance(document, dict):
        raise InvalidTokenError(
            f"{_INVALID}: json: cannot unmarshal into Go value of type storage.continueToken"
        )
    return document


def _json_problem(body: bytes, position: int) -> str:
    """Describe invalid JSON in the words of Go's encoding/json."""
    if position >= len(body):
        return "unexpected end of JSON input"
    byte = body[position]
    shown = chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
    return f"invalid character '{shown}' looking for beginning of value"


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
        case "metadata":
            head = b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":'
            items = b",".join(b'{"metadata":' + each.metadata + b"}" for each in listed.objects)
        case "object":
            head = listed.kind.list_head + b'"metadata":'
            items = b",".join([each.item for each in listed.objects])
    return b"".join((head, metadata, b',"items":[', items, b"]}\n"))


def object_body(stored: StoredObject, form: Form, include: IncludeObject) -> bytes:
    """Return one object in the requested form, JSON with a final newline."""
    match form:
        case "table":
            return list_body(Page([stored], {"resourceVersion": str(stored.version)}), form, include)
        case "metadata":
            return stored.partial + b"\n"
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
