"""The lines of a watch: bytes as they come, cut anywhere -> events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .messages import decode_event

if TYPE_CHECKING:
    from .messages import WatchEvent

__all__ = ["MAX_EVENT", "EventLines"]

MAX_EVENT = 8 << 20
"""Bytes of a line at most. etcd takes an object of 1.5 MiB, which JSON can make several times as long."""


class EventLines:
    """Events from the bytes of a watch, whose lines may be cut anywhere.

    After an error it is of no more use: the watch has to be begun again.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the line that has not ended yet
        self._length = 0

    @property
    def at_boundary(self) -> bool:
        """Whether no line has begun that has not ended."""
        return not self._length

    def feed(self, data: bytes) -> list[WatchEvent]:
        """Return the events of the lines that end in `data`, in order; empty lines are none.

        Raises:
            ValueError: a line is longer than MAX_EVENT, or holds no event; the message says where it differs.
        """
        first, *others = data.split(b"\n")
        self._add(first)
        if not others:
            return []
        *whole, rest = others
        lines = [b"".join(self._pieces), *whole]
        self._pieces, self._length = [], 0
        self._add(rest)
        return [decode_event(_bounded(line)) for line in lines if line and not line.isspace()]

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._length += len(piece)
        _check_length(self._length)
        self._pieces.append(piece)


def _bounded(line: bytes) -> bytes:
    _check_length(len(line))
    return line


def _check_length(length: int) -> None:
    if length > MAX_EVENT:
        raise ValueError(f"a line of more than {MAX_EVENT >> 20} MiB, longer than any event")
