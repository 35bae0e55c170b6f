"""Lists and watches in pieces: what can be decoded of the bytes that have arrived so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .objects import ObjectList, Resource, WatchEvent

T = TypeVar("T")

MAX_EVENT = 8 << 20
"""The maximum length of an event, in bytes. etcd limits objects to 1.5 MiB; their JSON may be longer."""


class ListSplitter(Generic[T]):
    """Decodes the items of a list from its bytes, which arrive in arbitrary chunks.

    An API server writes `{"kind":"PodList",...,"items":[{"metadata":{...},...},{"metadata":...` without
    spaces. In valid JSON the bytes between two such items never occur inside a string, where quotation marks
    are escaped. The item before them is complete, unless they are nested in it. If a server writes lists
    in another way, nothing is decoded before the end.

    Args:
        resource: the kind of the items.
    """

    _BEGIN = b'"items":['
    _BETWEEN = b'},{"metadata":'

    def __init__(self, resource: Resource[T]) -> None:
        self._decode = resource.decode_items
        self._decode_page = resource.decode_page
        self._head = b""  # up to the first item
        self._tail = bytearray()  # what was not decoded yet
        self._enough = 0  # do not try to decode less than this

    @property
    def pending(self) -> int:
        """The number of bytes that were not decoded yet."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[T]:
        """Return the items that are complete with `data`."""
        tail = self._tail
        tail += data
        if len(tail) < self._enough:
            return []
        try:
            if not self._head:
                begin = tail.index(self._BEGIN) + len(self._BEGIN)
                self._head = bytes(tail[:begin])
                del tail[:begin]
            end = tail.rindex(self._BETWEEN)
            items = self._decode(b"".join((b"[", memoryview(tail)[:end], b"}]")))
        except ValueError:
            # More bytes show whether it is invalid, or only not the end of an item. Do not try again before
            # the length has doubled: otherwise the time of many small chunks would grow with their square.
            self._enough = 2 * len(tail)
            return []
        del tail[: end + 2]
        self._enough = 0
        return items

    def finish(self) -> ObjectList[T]:
        """Return the list without the items that were returned before.

        Raises:
            ValueError: it is not a list of such items; the message says where it differs.
        """
        return self._decode_page(self._head + self._tail)


class EventLines(Generic[T]):
    """Splits the bytes of a watch, which arrive in arbitrary chunks, into events.

    After an error it cannot be used again: start a new watch.

    Args:
        decode: see `Resource.decode_event`.
    """

    def __init__(self, decode: Callable[[bytes], WatchEvent[T]]) -> None:
        self._decode = decode
        self._rest = bytearray()  # the incomplete line at the end

    @property
    def at_boundary(self) -> bool:
        """Whether the last line has arrived whole."""
        return not self._rest

    def feed(self, data: bytes) -> list[WatchEvent[T]]:
        """Return the events of the lines that end in `data`, in order. Empty lines are ignored.

        Raises:
            ValueError: a line is longer than MAX_EVENT, or is not an event; the message says where it
                differs.
        """
        complete, newline, rest = data.rpartition(b"\n")
        self._rest += complete
        lines = []
        if newline:
            lines = bytes(self._rest).split(b"\n")
            self._rest.clear()
        self._rest += rest
        if max(map(len, [*lines, self._rest])) > MAX_EVENT:
            raise ValueError(f"a line of more than {MAX_EVENT >> 20} MiB, longer than any event")
        return [self._decode(line) for line in lines if line.strip()]
