"""The bytes of a watch, in any chunks, become the same events."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.kubernetes.objects import MAX_EVENT, Added, Bookmark, EventLines, WatchEvent

from .samples import pod, pod_json

NAMES = ["train-0", "train-é", "train-2", "☃" * 20]
LINES = [
    json.dumps({"type": "ADDED", "object": pod_json(name)}, ensure_ascii=False).encode() for name in NAMES
]
EVENTS: list[WatchEvent] = [Added(pod(name)) for name in NAMES]


def bookmark(version: int) -> bytes:
    return b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % version


@given(
    cuts=st.lists(st.integers(0, sum(map(len, LINES)) + 8)),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \r\n"]), min_size=4, max_size=4),
)
def test_any_split_of_the_bytes_gives_the_same_events(cuts: list[int], ends: list[bytes]) -> None:
    stream = b"".join(line + end for line, end in zip(LINES, ends, strict=True))
    places = [0, *sorted(cuts), len(stream)]
    lines, events = EventLines(), []
    for start, end in pairwise(places):
        events += lines.feed(stream[start:end])
    assert events == EVENTS
    assert lines.at_boundary


def test_an_event_is_returned_at_the_end_of_its_line() -> None:
    lines = EventLines()
    *inside, end = (bytes([byte]) for byte in bookmark(7))
    assert all(lines.feed(byte) == [] for byte in inside)
    assert not lines.at_boundary
    (event,) = lines.feed(end)
    assert isinstance(event, Bookmark)
    assert lines.at_boundary


def test_a_new_stream_is_at_a_boundary() -> None:
    lines = EventLines()
    assert lines.at_boundary
    assert lines.feed(b"") == []
    assert lines.at_boundary


def test_a_stream_that_ends_inside_a_line_is_not_at_a_boundary() -> None:
    lines = EventLines()
    assert len(lines.feed(bookmark(7) + b'{"type":')) == 1
    assert not lines.at_boundary


def test_a_line_that_is_not_an_event_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="malformed"):
        EventLines().feed(b"<html>\n")


def test_a_line_of_the_maximum_length_is_accepted_and_a_longer_one_is_not() -> None:
    head, tail = b'{"type":"BOOKMARK","object":{"padding":"', b'"}}'
    longest = head + b"x" * (MAX_EVENT - len(head) - len(tail)) + tail
    assert len(EventLines().feed(longest + b"\n")) == 1
    for before in (b"x", b"\nx"):
        with pytest.raises(ValueError, match="more than 8 MiB"):
            EventLines().feed(before + longest + b"\n")


def test_an_endless_line_is_an_error_before_it_fills_the_memory() -> None:
    lines = EventLines()
    for _ in range(8):
        assert lines.feed(bytes(1 << 20)) == []
    with pytest.raises(ValueError, match="more than 8 MiB"):
        lines.feed(b"x")


class CountedBytes(bytes):
    """Bytes that count in `work` how many bytes are concatenated, or split into lines."""

    work = 0

    def __add__(self, other: Any) -> CountedBytes:
        return self._counted(bytes(self) + bytes(other))

    def __radd__(self, other: Any) -> CountedBytes:
        return self._counted(bytes(other) + bytes(self))

    def split(self, *args: Any) -> list[CountedBytes]:  # type: ignore[override]
        return [CountedBytes(line) for line in bytes(self._counted(self)).split(*args)]

    @staticmethod
    def _counted(data: bytes) -> CountedBytes:
        CountedBytes.work += len(data)
        return CountedBytes(data)


def test_each_byte_of_a_line_in_many_pieces_is_handled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedBytes, "work", 0)
    lines = EventLines()
    line = b'{"type":"BOOKMARK","object":{"padding":"' + b"x" * 16_000 + b'"}}\n'
    for start in range(0, len(line), 16):
        lines.feed(CountedBytes(line[start : start + 16]))
    assert lines.at_boundary
    assert CountedBytes.work == len(line)
