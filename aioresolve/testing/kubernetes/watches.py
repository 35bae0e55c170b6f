"""Watches: events, from the current state or from a version on, with bookmarks.

A watch has no queue. It remembers the version up to which it has sent events, and reads later events from the
store's bounded history. If it falls behind that history it ends like a real one, with an ERROR event of code
410.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from aioresolve.errors import ConfigurationError
from aioresolve.testing.faults import Fault, StreamFault

from .lists import COLUMNS, row_of
from .statuses import Failure, expired_watch, failure_of_status, too_large_version
from .store import Expired

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from .access import RequestRecord
    from .kinds import Kind
    from .options import Form, IncludeObject, ListOptions, Selection
    from .store import Event, Store, StoredObject

_EMPTY_ROW = b'{"cells":["","0/0","","0","\\u003cunknown\\u003e"' + b',"\\u003cnone\\u003e"' * 4 + b"]"
_BATCH = 256
_MAX_SECONDS = 1800.0
"""The API server ends a watch without a timeout of its own after 1800 to 3600 seconds."""


_WATCH_EXPIRED = "The resourceVersion for the provided watch is too old."


@dataclass(frozen=True, slots=True)
class WatchError(Fault):
    """A watch ends with an ERROR event, after its HTTP status was 200.

    Attributes:
        code: the code of the Status, such as 410, 429 or 500.
        reason: the reason of the Status, such as `Expired`; None for the usual one of that code.
        retry_after: seconds, sent in the Status as `details.retryAfterSeconds`.
    """

    code: int
    reason: str | None = None
    retry_after: int | None = None

    @property
    def failure(self) -> Failure:
        """The failure that the event contains."""
        failure = failure_of_status(self.code)
        if self.code == 410:
            failure.status["message"] = _WATCH_EXPIRED
        if self.reason is not None:
            failure.status["reason"] = self.reason
        if self.retry_after is not None:
            failure.status["details"] = {"retryAfterSeconds": self.retry_after}
        return failure


@dataclass(frozen=True, slots=True)
class WatchFault:
    """A fault of a connected watch, applied when every event up to `version` has been sent."""

    fault: StreamFault | WatchError
    version: int


def validate_watch_fault(fault: Fault) -> StreamFault | WatchError:
    """Return `fault` if it can apply to a connected watch; otherwise raise a ConfigurationError."""
    if isinstance(fault, StreamFault | WatchError):
        return fault
    raise ConfigurationError(
        f"{fault!r} cannot apply to a watch that is already connected",
        hint="inject() it, or use one of Cut, Delay, End, Reset, Stall and WatchError.",
    )


@dataclass(frozen=True, slots=True, eq=False)
class RunningWatch:
    """A connected watch and its pending faults, oldest first."""

    request: RequestRecord
    faults: deque[WatchFault] = field(default_factory=deque)


class Notifier:
    """Wakes the watches in the server's event loop.

    `notify` and `request_bookmark` may be called from any thread, and while the server is stopped.
    """

    def __init__(self) -> None:
        self.bookmarks_requested = 0
        """How often a bookmark was requested; a watch sends one whenever the number has grown."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change: anyio.Event | None = None

    def start(self) -> None:
        """Use the running loop until `stop`."""
        self._loop = asyncio.get_running_loop()
        self._change = anyio.Event()

    def stop(self) -> None:
        self._loop = self._change = None

    def next_change(self) -> anyio.Event:
        """Return the event that is set at the next write or bookmark request."""
        assert self._change is not None, "a watch runs only while the server does"
        return self._change

    def request_bookmark(self) -> None:
        self.bookmarks_requested += 1
        self.notify()

    def notify(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The server's thread closed the loop after the check above: nothing waits for this change.
            if not loop.is_closed():
                raise

    def _wake(self) -> None:
        if self._change is not None:
            self._change.set()
            # An event cannot be reset, so the next change gets a new one.
            self._change = anyio.Event()


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
        self._form: Form = form
        self._include: IncludeObject = include
        self._columns = COLUMNS

    def event(self, type_: str, stored: StoredObject) -> bytes:
        """Return an ADDED, MODIFIED or DELETED event."""
        match self._form:
            case "object":
                encoded = stored.whole
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
