"""Lists, Tables and watches of objects as bytes.

The continue token of a page is `{"v":"meta.k8s.io/v1","rv":8470,"start":"/train-1\\u0000"}` in base64.
`start` is the key with which the next page begins, relative to the listed namespace; `rv` is the version of
the first page, or -1 for the current one. Format: k8s.io/apiserver/pkg/storage/continue.go.

A watch has no queue. It remembers the version up to which it has sent events, and reads later events from the
store's bounded history. If it falls behind that history it ends like a real one, with an ERROR event of code
410.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from aioresolve.testing.faults import StreamFault, WatchError

from .statuses import Failure, failure_of_status, too_large_version
from .store import Expired, compact_json
from .table import COLUMN_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from .requests import Form, IncludeObject, ListOptions, RequestRecord, Selection
    from .store import Event, Kind, Store, StoredObject

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an inconsistent "
    "list - objects that were created, modified, or deleted between the time the first chunk was returned "
    "and now may show up in the list."
)
_BATCH = 256
_MAX_SECONDS = 1800.0
"""The API server ends a watch without a timeout of its own after 1800 to 3600 seconds."""

_COLUMNS = compact_json(COLUMN_DEFINITIONS)
_TABLE = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":%s,"columnDefinitions":%s,"rows":[%s]}'
_EMPTY_ROW = b'{"cells":["","0/0","","0","\\u003cunknown\\u003e"' + b',"\\u003cnone\\u003e"' * 4 + b"]"


# Lists


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of a page, and the metadata of the list."""

    kind: Kind
    objects: Sequence[StoredObject]
    metadata: dict[str, Any]


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
                rest = {"continue": continue_token(-1, start)}
                raise Failure("Expired", _CONTINUE_EXPIRED, metadata=rest) from None
            raise Failure("Expired") from None
    prefix = "" if selection.namespace is None else f"{selection.namespace}/"
    listed = [each for each in objects if each.key >= prefix + start and selection.matches(each)]
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    remaining = len(listed) - options.limit
    if options.limit and remaining > 0:
        listed = listed[: options.limit]
        # The smallest key after the last one listed, so that an object created in between is not skipped.
        following = listed[-1].key.removeprefix(prefix) + "\0"
        metadata["continue"] = continue_token(version, f"/{following}")
        metadata |= {"remainingItemCount": remaining} if selection.is_everything else {}
    return Page(selection.kind, listed, metadata)


def _position(store: Store, options: ListOptions) -> tuple[int, str]:
    """Return the version to list, and the key to start with, relative to the namespace."""
    current = store.version
    if options.continue_token:
        version, start = _read_token(options.continue_token)
        if version > current:
            raise too_large_version(version, current)
        return (current if version < 0 else version), start
    # A real server first waits three seconds for that version.
    if options.version is not None and options.version > current:
        raise too_large_version(options.version, current)
    if options.exact and options.version is not None:
        return options.version, ""
    return current, ""


def continue_token(version: int, start: str) -> str:
    """Return the token that a client gets; in the body of a 410 its key has no leading slash."""
    body = compact_json({"v": "meta.k8s.io/v1", "rv": version, "start": start})
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _read_token(text: str) -> tuple[int, str]:
    body = b""
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        document = json.loads(body)
        return int(document["rv"]), document["start"].removeprefix("/")
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = repr(body[:1])[2:-1]
        problem = f"invalid character '{shown}' looking for beginning of value"
        raise Failure("BadRequest", f"invalid continue token: continue key is not valid: {problem}") from None


def list_body(listed: Page, form: Form, include: IncludeObject) -> bytes:
    """Return the list as compact JSON with a final newline."""
    metadata = compact_json(listed.metadata)
    if form == "table":
        rows = b",".join([_row(each, include) for each in listed.objects])
        return _TABLE % (metadata, _COLUMNS, rows) + b"\n"
    items = b",".join([each.item for each in listed.objects])
    return b"".join((listed.kind.head("List"), b'"metadata":', metadata, b',"items":[', items, b"]}\n"))


def object_body(stored: StoredObject, form: Form, include: IncludeObject) -> bytes:
    if form == "table":
        return list_body(Page(stored.kind, [stored], {"resourceVersion": str(stored.version)}), form, include)
    return stored.whole + b"\n"


def _row(pod: StoredObject, include: IncludeObject) -> bytes:
    match include:
        case "None":
            carried = b"null"
        case "Metadata":
            carried = pod.partial
        case "Object":
            carried = pod.whole
    return pod.row + b',"object":' + carried + b"}"


# Watches


class Bookmark:
    """An order to a watch: send a bookmark."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningWatch:
    """A connected watch, with the orders that it has to carry out, oldest first: faults and bookmarks.

    Each order comes with the version up to which events are sent before it.
    """

    request: RequestRecord
    orders: deque[tuple[StreamFault | WatchError | Bookmark, int]] = field(default_factory=deque)


class Notifier:
    """Wakes the watches in the server's event loop; `notify` may be called from any thread."""

    _loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Use the running loop from now on."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self.change = anyio.Event()
            """Is set at the next write or order."""

    def notify(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The server has ended, and its loop is closed: nothing waits for this change.
            if not loop.is_closed():
                raise

    def _wake(self) -> None:
        self.change.set()
        # An event cannot be reset, so the next change gets a new one.
        self.change = anyio.Event()


def failure_of_watch(fault: WatchError) -> Failure:
    """Return the failure that the ERROR event of a watch contains."""
    failure = failure_of_status(fault.code)
    if fault.code == 410:
        failure.status["message"] = "The resourceVersion for the provided watch is too old."
    if fault.reason is not None:
        failure.status["reason"] = fault.reason
    if fault.retry_after is not None:
        failure.status["details"] = {"retryAfterSeconds": fault.retry_after}
    return failure


class EventEncoder:
    """Encodes events as lines of JSON. In a Table watch only the first line has the column definitions."""

    def __init__(self, kind: Kind, form: Form, include: IncludeObject) -> None:
        self._kind = kind
        self._form: Form = form
        self._include: IncludeObject = include
        self._columns = _COLUMNS

    def event(self, type_: str, stored: StoredObject) -> bytes:
        encoded = stored.whole
        if self._form == "table":
            encoded = self._table(stored.version, _row(stored, self._include))
        return b'{"type":"%s","object":%s}\n' % (type_.encode(), encoded)

    def change(self, event: Event, selection: Selection) -> bytes:
        """Return the event that a watch of `selection` sends for a write, empty if it sends none.

        An object that no longer matches is DELETED; one that begins to match is ADDED.
        """
        before = event.previous is not None and selection.matches(event.previous)
        if event.object is not None and selection.matches(event.object):
            return self.event("MODIFIED" if before else "ADDED", event.object)
        if before and event.previous is not None:
            return self.event("DELETED", event.previous.at(event.version))
        return b""

    def bookmark(self, version: int, *, ends_initial_events: bool = False) -> bytes:
        """Return a BOOKMARK: every event up to `version` has been sent."""
        annotations = b',"annotations":{"k8s.io/initial-events-end":"true"}' if ends_initial_events else b""
        metadata = b'{"resourceVersion":"%d"%s}' % (version, annotations)
        fields = compact_json({**self._kind.fields})[1:-1]
        encoded = self._kind.head() + b'"metadata":' + metadata + (b"," + fields if fields else b"") + b"}"
        if self._form == "table":
            # The bookmark that ends the initial events has its annotation even if rows have no object.
            if self._include == "None" and not ends_initial_events:
                encoded = b"null"
            elif self._include != "Object":
                head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
                encoded = head + metadata + b"}"
            encoded = self._table(version, _EMPTY_ROW + b',"object":' + encoded + b"}")
        return b'{"type":"BOOKMARK","object":%s}\n' % encoded

    def _table(self, version: int, row: bytes) -> bytes:
        columns, self._columns = self._columns, b"null"
        return _TABLE % (b'{"resourceVersion":"%d"}' % version, columns, row)


async def watch_pieces(
    store: Store,
    options: ListOptions,
    encoder: EventEncoder,
    notifier: Notifier,
    watch: RunningWatch,
    bookmark_interval: float,
) -> AsyncGenerator[bytes | StreamFault, None]:
    """Yield the lines of a watch, several together if there are several, until its timeout.

    `notifier` wakes the watch. Each of its orders, to which the caller adds, is carried out when the events
    before it have been yielded. Bookmarks are sent every `bookmark_interval` seconds, and before the end.
    """
    started = anyio.current_time()
    ends = started + (options.timeout or _MAX_SECONDS)
    bookmark_at = started + bookmark_interval
    try:
        cursor, existing = _start(store, options)
        for piece in _initial_lines(existing, options, encoder, cursor):
            yield piece
        while (now := anyio.current_time()) < ends:
            # Taken before the events are read, so that a write in between sets it.
            change = notifier.change
            # Writes after the order must not be sent before it.
            order, until = watch.orders.popleft() if watch.orders else (None, None)
            cursor, events = store.changes_after(cursor, until=until)
            body = b"".join([encoder.change(event, options.selection) for event in events])
            # After a restore the client's version may not exist yet; a bookmark must not confirm it.
            sends_bookmarks = options.bookmarks and cursor <= (store.version if until is None else until)
            if sends_bookmarks and (isinstance(order, Bookmark) or (order is None and now >= bookmark_at)):
                body += encoder.bookmark(cursor)
                bookmark_at = now + bookmark_interval
            if body:
                yield body
            if isinstance(order, WatchError):
                yield failure_of_watch(order).event
                return
            if order is not None and not isinstance(order, Bookmark):
                yield order
            elif order is None and not body:
                with anyio.move_on_after((min(ends, bookmark_at) if sends_bookmarks else ends) - now):
                    await change.wait()
        if options.bookmarks and cursor <= store.version:
            yield encoder.bookmark(cursor)
    except Expired as error:
        yield Failure("Expired", f"too old resource version: {error.version} ({error.oldest})").event


def _start(store: Store, options: ListOptions) -> tuple[int, list[StoredObject]]:
    """Return the version after which a watch starts, and the objects that it sends first."""
    with store.lock:
        if options.initial_events:
            objects = store.objects(options.selection.kind)
            return store.version, [each for each in objects if options.selection.matches(each)]
        if not options.version:
            return store.version, []
        store.check_known(options.version)
        return options.version, []


def _initial_lines(
    objects: list[StoredObject], options: ListOptions, encoder: EventEncoder, version: int
) -> Iterator[bytes]:
    for start in range(0, len(objects), _BATCH):
        yield b"".join(encoder.event("ADDED", each) for each in objects[start : start + _BATCH])
    if options.initial_events and options.bookmarks:
        yield encoder.bookmark(version, ends_initial_events=True)
