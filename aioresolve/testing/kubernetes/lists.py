"""A list of pods as bytes: PodList, Table or PartialObjectMetadataList, whole or page by page."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from aioresolve.testing.kubernetes.continue_token import ContinueToken, InvalidTokenError
from aioresolve.testing.kubernetes.encoding import compact_json
from aioresolve.testing.kubernetes.statuses import bad_request, expired_list, expired_page, too_large_version
from aioresolve.testing.kubernetes.store import Expired
from aioresolve.testing.kubernetes.table import COLUMN_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.testing.kubernetes.negotiation import Representation
    from aioresolve.testing.kubernetes.options import IncludeObject, ListOptions, Selection
    from aioresolve.testing.kubernetes.store import Store, StoredPod

__all__ = ["COLUMNS", "Page", "list_body", "object_body", "page", "row_of"]

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
