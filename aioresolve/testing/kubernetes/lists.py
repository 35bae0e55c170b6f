"""Continue tokens of chunked lists: `{"v":"meta.k8s.io/v1","rv":8470,"start":"/train-1\u0000"}` in base64.

Format: k8s.io/apiserver/pkg/storage/continue.go. `start` is the key after which the next page begins,
relative to the namespace listed; `rv` the version of the first page, or -1 for whatever there is now.

A list of pods as bytes: PodList, Table or PartialObjectMetadataList, whole or page by page.
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
from typing import TYPE_CHECKING, Any

from .statuses import bad_request, compact_json, expired_list, expired_page, too_large_version
from .store import Expired
from .table import COLUMN_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import IncludeObject, ListOptions, Representation, Selection
    from .store import Store, StoredPod

__all__ = [
    "COLUMNS",
    "ContinueToken",
    "InvalidTokenError",
    "Page",
    "list_body",
    "object_body",
    "page",
    "row_of",
]

_INVALID = "continue key is not valid"


class InvalidTokenError(ValueError):
    """The token was not made by an API server; the message is the server's own."""


@dataclass(frozen=True, slots=True)
class ContinueToken:
    """Where the next page starts.

    Attributes:
        version: the version listed; -1 is the current one.
        start: the key of the first pod that may follow, relative, without a leading slash.
    """

    version: int
    start: str

    def encoded(self, *, rooted: bool = True) -> str:
        """The token as a client gets it; `rooted` puts a slash before the key, which is left out on 410."""
        start = f"/{self.start}" if rooted else self.start
        body = compact_json({"v": "meta.k8s.io/v1", "rv": self.version, "start": start})
        return base64.urlsafe_b64encode(body).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> ContinueToken:
        """The token that a client sent back.

        Raises:
            InvalidTokenError: it is none.
        """
        document = _document(_decoded_base64(text))
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


def _decoded_base64(text: str) -> bytes:
    wrong = re.search(r"[^A-Za-z0-9_-]", text)
    if wrong is not None:
        raise InvalidTokenError(f"{_INVALID}: illegal base64 data at input byte {wrong.start()}")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise InvalidTokenError(f"{_INVALID}: illegal base64 data at input byte {len(text)}") from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except UnicodeDecodeError:
        raise InvalidTokenError(f"{_INVALID}: {_unexpected(body, 0)}") from None
    except json.JSONDecodeError as error:
        raise InvalidTokenError(f"{_INVALID}: {_unexpected(body, error.pos)}") from None
    if not isinstance(document, dict):
        raise InvalidTokenError(
            f"{_INVALID}: json: cannot unmarshal into Go value of type storage.continueToken"
        )
    return document


def _unexpected(body: bytes, position: int) -> str:
    if position >= len(body):
        return "unexpected end of JSON input"
    byte = body[position]
    shown = chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
    return f"invalid character '{shown}' looking for beginning of value"


COLUMNS = compact_json(COLUMN_DEFINITIONS)


@dataclass(frozen=True, slots=True)
class Page:
    """Pods listed, and what the list's metadata says."""

    pods: Sequence[StoredPod]
    metadata: dict[str, Any]


def page(store: Store, options: ListOptions) -> Page:
    """The pods that `options` ask for, at the version they ask for, up to their limit.

    Raises:
        Failure: 400 for a token that is none, 410 for a version that has expired, 504 for one yet to come.
    """
    with store.lock:
        version, start = _position(store, options)
        try:
            pods = store.pods_at(version)
        except Expired:
            if options.continue_token:
                raise expired_page(ContinueToken(-1, start).encoded(rooted=False)) from None
            raise expired_list() from None
    selection = options.selection
    prefix = "" if selection.namespace is None else f"{selection.namespace}/"
    first = bisect.bisect_left(pods, prefix + start, key=_key)
    # "0" is the character after "/": the end of everything in the namespace.
    last = bisect.bisect_left(pods, f"{selection.namespace}0", key=_key) if prefix else len(pods)
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if not options.limit:
        return Page(_matching(pods[first:last], selection), metadata)
    found = list(
        islice((pod for pod in islice(pods, first, last) if selection.matches(pod)), options.limit + 1)
    )
    if len(found) > options.limit:
        found.pop()
        following = found[-1].key.removeprefix(prefix) + "\0"
        metadata["continue"] = ContinueToken(version, following).encoded()
        if selection.unselective:
            metadata["remainingItemCount"] = last - first - len(found)
    return Page(found, metadata)


def list_body(listed: Page, representation: Representation, include: IncludeObject) -> bytes:
    """The list as compact JSON with the newline that ends it."""
    metadata = compact_json(listed.metadata)
    match representation.kind:
        case "table":
            rows = b",".join(row_of(pod, include) for pod in listed.pods)
            head = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":'
            return b"".join((head, metadata, b',"columnDefinitions":', COLUMNS, b',"rows":[', rows, b"]}\n"))
        case "metadata":
            head = b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":'
            items = b",".join(b'{"metadata":' + pod.metadata + b"}" for pod in listed.pods)
        case "object":
            head = b'{"kind":"PodList","apiVersion":"v1","metadata":'
            items = b",".join([pod.item for pod in listed.pods])
    return b"".join((head, metadata, b',"items":[', items, b"]}\n"))


def object_body(pod: StoredPod, representation: Representation, include: IncludeObject) -> bytes:
    """One pod as compact JSON, in the representation asked for, with the newline that ends it."""
    match representation.kind:
        case "table":
            return list_body(Page([pod], {"resourceVersion": str(pod.version)}), representation, include)
        case "metadata":
            return pod.partial + b"\n"
        case "object":
            return pod.whole + b"\n"


def row_of(pod: StoredPod, include: IncludeObject) -> bytes:
    """The Table row of `pod` with the object it is to carry along."""
    match include:
        case "None":
            return pod.row + b',"object":null}'
        case "Metadata":
            return pod.row + b',"object":' + pod.partial + b"}"
        case "Object":
            return pod.row + b',"object":' + pod.whole + b"}"


def _position(store: Store, options: ListOptions) -> tuple[int, str]:
    """The version to list and the key, relative to the namespace, to start at."""
    current = store.version
    if options.continue_token:
        try:
            token = ContinueToken.decoded(options.continue_token)
        except InvalidTokenError as error:
            raise bad_request(f"invalid continue token: {error}") from None
        if token.version > current:
            raise too_large_version(token.version, current)
        return (current if token.version < 0 else token.version), token.start
    # A real server gives such a version three seconds to come before it says so.
    if options.version is not None and options.version > current:
        raise too_large_version(options.version, current)
    if options.exact and options.version is not None:
        return options.version, ""
    return current, ""


def _matching(pods: Sequence[StoredPod], selection: Selection) -> Sequence[StoredPod]:
    return pods if selection.unselective else [pod for pod in pods if selection.matches(pod)]


def _key(pod: StoredPod) -> str:
    return pod.key
