"""Watches: events, from the current state or from a version on, with bookmarks.

A watch has no queue. It remembers the version up to which it has sent events, and reads later events from the
store's bounded history. If it falls behind that history it ends like a real one, with an ERROR event of code
410.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from .faults import WatchError
from .lists import COLUMNS, row_of
from .statuses import expired_watch, too_large_version
from .store import Expired

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncGenerator, Iterator

    from aioresolve.testing.faults import StreamFault

    from .cluster import Notifier
    from .faults import WatchFault
    from .kinds import Kind
    from .options import Form, IncludeObject, ListOptions, Selection
    from .store import Event, Store, StoredObject

_EMPTY_ROW = b'{"cells":["","0/0","","0","\\u003cunknown\\u003e"' + b',"\\u003cnone\\u003e"' * 4 + b"]"
_BATCH = 256
_MAX_SECONDS = 1800.0
"""The API server ends a watch without a timeout of its own after 1800 to 3600 seconds."""


def selected_change(event: Event, selection: Selection) -> tuple[str, StoredObject] | None:
    """Return the event type and the object that a watch of `selection` sends for a write, if any.

    An object that no longer matches is DELETED; one that begins to match is ADDED.
    """
    before = event.previous if event.previous is not None and selection.matches(event.previous) else None
    after = event.object if event.object is not None and selection.matches(event.object) else None
    if after is not None:
        return ("ADDED" if before is None else "MODIFIED"), after
    return None if before is None else ("DELETED", before.at(event.version))


class EventEncoder:
    """Encodes events as lines of JSON. In a Table watch only the first line has the column definitions."""

    def __init__(self, kind: Kind, form: Form, include: IncludeObject) -> None:
        self._kind = kind
        self._form = form
        self._include = include
        self._columns = COLUMNS

    def event(self, type_: str, stored: StoredObject) -> bytes:
        """Return an ADDED, MODIFIED or DELETED event."""
        match self._form:
            case "object":
                encoded = stored.whole
            case "metadata":
                encoded = stored.partial
            case "table":
                encoded = self._table(stored.version, row_of(stored, self._include))
        return b'{"type":"%s","object":%s}\n' % (type_.encode(), encoded)

    def bookmark(self, version: int, *, ends_initial_events: bool = False) -> bytes:
        """Return a BOOKMARK: every event up to `version` has been sent."""
        annotations = b',"annotations":{"k8s.io/initial-events-end":"true"}' if ends_initial_events else b""
        metadata = b'{"resourceVersion":"%d"%s}' % (version, annotations)
        bare = self._kind.head + b'"metadata":%s,%s}' % (metadata, self._kind.bare)
        partial = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}' % metadata
        match self._form:
            case "object":
                encoded = bare
            case "metadata":
                encoded = partial
            case "table":
                # The bookmark that ends the initial events has its annotation even if rows have no object.
                other = b"null" if self._include == "None" and not ends_initial_events else partial
                carried = bare if self._include == "Object" else other
                encoded = self._table(version, _EMPTY_ROW + b',"object":' + carried + b"}")
        return b'{"type":"BOOKMARK","object":%s}\n' % encoded

    def _table(self, version: int, row: bytes) -> bytes:
        columns, self._columns = self._columns, b"null"
        head = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"%d"}' % version
        return head + b',"columnDefinitions":' + columns + b',"rows":[' + row + b"]}"


def check_watch(store: Store, options: ListOptions) -> None:
    """Return if a watch can start; 504 if it starts from a version that does not exist yet."""
    if options.initial_events and (options.version or 0) > store.version:
        raise too_large_version(options.version or 0, store.version)


async def watch_pieces(
    store: Store,
    options: ListOptions,
    encoder: EventEncoder,
    notifier: Notifier,
    faults: deque[WatchFault],
    bookmark_interval: float,
) -> AsyncGenerator[bytes | StreamFault, None]:
    """Yield the lines of a watch, several together if there are several, until its timeout.

    `notifier` wakes the watch. Each of `faults`, to which the caller adds, is yielded or applied when the
    events before it have been yielded. Bookmarks are sent every `bookmark_interval` seconds, and just before
    the end.
    """
    started = anyio.current_time()
    ends = started + (options.timeout or _MAX_SECONDS)
    bookmark_at = started + bookmark_interval
    bookmarks_sent = notifier.bookmarks_requested
    try:
        cursor, pods = _start(store, options)
        for piece in _initial_lines(pods, options, encoder, cursor):
            yield piece
        while (now := anyio.current_time()) < ends:
            # Taken before the events are read, so that a write in between sets it.
            change = notifier.next_change()
            fault, until = None, None
            # Writes after the fault was requested must not be sent before it.
            if faults:
                watch_fault = faults.popleft()
                fault, until = watch_fault.fault, watch_fault.version
            cursor, events = store.changes_after(cursor, until=until)
            changes = (selected_change(event, options.selection) for event in events)
            lines = [encoder.event(*selected) for selected in changes if selected is not None]
            # After a restore the client's version may not exist yet; a bookmark must not confirm it.
            sends_bookmarks = options.bookmarks and cursor <= store.version
            if fault is None:
                requested = notifier.bookmarks_requested
                due = max(requested - bookmarks_sent, int(now >= bookmark_at))
                bookmarks_sent = requested
                if due and sends_bookmarks:
                    lines += [encoder.bookmark(cursor) for _ in range(due)]
                    bookmark_at = now + bookmark_interval
            if lines:
                yield b"".join(lines)
            if isinstance(fault, WatchError):
                yield fault.failure.event
                return
            if fault is not None:
                yield fault
            elif not lines:
                wake_at = min(ends, bookmark_at) if sends_bookmarks else ends
                with anyio.move_on_after(wake_at - now):
                    await change.wait()
        if options.bookmarks and cursor <= store.version:
            yield encoder.bookmark(cursor)
    except Expired as error:
        yield expired_watch(error.version, error.oldest).event


def _start(store: Store, options: ListOptions) -> tuple[int, list[StoredObject]]:
    """Return the version after which a watch starts, and the objects that it sends first."""
    with store.lock:
        if options.initial_events:
            version = store.version
            objects = store.objects_at(version, options.selection.kind)
            return version, [each for each in objects if options.selection.matches(each)]
        if not options.version:
            return store.version, []
        store.check_known(options.version)
        return options.version, []


def _initial_lines(
    pods: list[StoredObject], options: ListOptions, encoder: EventEncoder, version: int
) -> Iterator[bytes]:
    for start in range(0, len(pods), _BATCH):
        yield b"".join(encoder.event("ADDED", pod) for pod in pods[start : start + _BATCH])
    if options.initial_events and options.bookmarks:
        yield encoder.bookmark(version, ends_initial_events=True)
