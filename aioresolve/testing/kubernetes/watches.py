"""A watch: lines of events, from what is there or from a version on, with bookmarks.

A watch keeps no queue. It holds the version it has come to and reads what follows from the store's bounded
past; one that falls behind that past ends as a real one does, with an ERROR event of code 410.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from .disturbances import WatchError
from .lists import COLUMNS, row_of
from .statuses import Failure, compact_json, expired_watch, too_large_version
from .store import Expired

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncGenerator, Iterator

    from aioresolve.testing.faults import Interruption

    from .disturbances import Disturbance
    from .options import IncludeObject, Kind, ListOptions, Representation, Selection
    from .store import Event, Store, StoredPod

__all__ = ["EventEncoder", "Signals", "check_watch", "error_line", "seen", "watch_pieces"]

_EMPTY_ROW = b'{"cells":["","0/0","","0","\\u003cunknown\\u003e"' + b',"\\u003cnone\\u003e"' * 4 + b"]"
_BATCH = 256
_LONGEST = 1800.0
"""Seconds after which the API server ends a watch that set no time itself (it takes 1800 to 3600)."""


class Signals(Protocol):
    """What a waiting watch is woken by."""

    @property
    def bookmarks_asked(self) -> int:
        """How often a bookmark was asked for at once; a watch sends one whenever the number has grown."""
        ...

    def next_change(self) -> anyio.Event:
        """Set at the next write, or the next time a bookmark is asked for."""
        ...


def seen(event: Event, selection: Selection) -> tuple[str, StoredPod] | None:
    """What a watch of `selection` sees of a write, and the type of the event.

    A pod that no longer matches is DELETED, one that matches from now on is ADDED.
    """
    before = event.previous if event.previous is not None and selection.matches(event.previous) else None
    after = event.pod if event.pod is not None and selection.matches(event.pod) else None
    if after is not None:
        return ("ADDED" if before is None else "MODIFIED"), after
    return None if before is None else ("DELETED", before.at(event.version))


class EventEncoder:
    """Events as lines of JSON; in a Table watch the first line alone describes the columns."""

    def __init__(self, representation: Representation, include: IncludeObject) -> None:
        self._kind: Kind = representation.kind
        self._include: IncludeObject = include
        self._columns = COLUMNS

    def event(self, kind: str, pod: StoredPod) -> bytes:
        """The line of an ADDED, MODIFIED or DELETED event."""
        match self._kind:
            case "object":
                shown = pod.whole
            case "metadata":
                shown = pod.partial
            case "table":
                shown = self._table(pod.version, row_of(pod, self._include))
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), shown)

    def bookmark(self, version: int, *, ends_initial_events: bool = False) -> bytes:
        """The line of a BOOKMARK: everything up to `version` has been sent."""
        annotations = b',"annotations":{"k8s.io/initial-events-end":"true"}' if ends_initial_events else b""
        metadata = b'{"resourceVersion":"%d"%s}' % (version, annotations)
        pod = (
            b'{"kind":"Pod","apiVersion":"v1","metadata":%s,"spec":{"containers":null},"status":{}}'
            % metadata
        )
        partial = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}' % metadata
        match self._kind:
            case "object":
                shown = pod
            case "metadata":
                shown = partial
            case "table":
                # The bookmark that ends the initial events carries its annotation whatever the rows include.
                bare = b"null" if self._include == "None" and not ends_initial_events else partial
                carried = pod if self._include == "Object" else bare
                shown = self._table(version, _EMPTY_ROW + b',"object":' + carried + b"}")
        return b'{"type":"BOOKMARK","object":%s}\n' % shown

    def _table(self, version: int, row: bytes) -> bytes:
        columns, self._columns = self._columns, b"null"
        head = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"%d"}' % version
        return head + b',"columnDefinitions":' + columns + b',"rows":[' + row + b"]}"


def error_line(failure: Failure) -> bytes:
    """The line that ends a watch which cannot go on."""
    return b'{"type":"ERROR","object":%s}\n' % compact_json(failure.status)


def check_watch(store: Store, options: ListOptions) -> None:
    """Return when a watch with `options` can be answered at all.

    Raises:
        Failure: 504, it starts from a version yet to come.
    """
    if options.initial_events and (options.version or 0) > store.version:
        raise too_large_version(options.version or 0, store.version)


async def watch_pieces(
    store: Store,
    options: ListOptions,
    encoder: EventEncoder,
    signals: Signals,
    disturbances: deque[Disturbance],
    bookmark_interval: float,
) -> AsyncGenerator[bytes | Interruption, None]:
    """The lines of a watch, several at once where there are several, until its time is over.

    Among them is what befalls the connection, where it does. `bookmark_interval` is in seconds; one more
    bookmark comes just before the end.
    """
    started = anyio.current_time()
    ends = started + (options.timeout or _LONGEST)
    bookmark_at = started + bookmark_interval
    told_of = signals.bookmarks_asked
    try:
        cursor, pods = _start(store, options)
        for piece in _initial_lines(pods, options, encoder, cursor):
            yield piece
        while (now := anyio.current_time()) < ends:
            change = signals.next_change()
            disturbance = disturbances.popleft() if disturbances else None
            fault, until = (disturbance.fault, disturbance.version) if disturbance else (None, None)
            cursor, events = store.changes_after(cursor, until=until)
            lines = [encoder.event(*told) for event in events if (told := seen(event, options.selection))]
            is_marked = options.bookmarks and cursor <= store.version  # not of a version yet to come
            if fault is None:
                asked = signals.bookmarks_asked
                due, told_of = max(asked - told_of, int(now >= bookmark_at)), asked
                if due and is_marked:
                    lines += [encoder.bookmark(cursor) for _ in range(due)]
                    bookmark_at = now + bookmark_interval
            if lines:
                yield b"".join(lines)
            if isinstance(fault, WatchError):
                yield error_line(fault.failure)
                return
            if fault is not None:
                yield fault
            elif not lines:
                wake_at = min(ends, bookmark_at) if is_marked else ends
                with anyio.move_on_after(wake_at - now):
                    await change.wait()
        if options.bookmarks and cursor <= store.version:
            yield encoder.bookmark(cursor)
    except Expired as error:
        yield error_line(expired_watch(error.version, error.oldest))


def _start(store: Store, options: ListOptions) -> tuple[int, list[StoredPod]]:
    """The version a watch starts after, and the pods it tells of first."""
    with store.lock:
        if options.initial_events:
            version = store.version
            return version, [pod for pod in store.pods_at(version) if options.selection.matches(pod)]
        if not options.version:
            return store.version, []
        store.check_watchable(options.version)
        return options.version, []


def _initial_lines(
    pods: list[StoredPod], options: ListOptions, encoder: EventEncoder, version: int
) -> Iterator[bytes]:
    for start in range(0, len(pods), _BATCH):
        yield b"".join(encoder.event("ADDED", pod) for pod in pods[start : start + _BATCH])
    if options.initial_events and options.bookmarks:
        yield encoder.bookmark(version, ends_initial_events=True)
