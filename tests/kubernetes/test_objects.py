"""Decoding of pods, lists and events of a watch, from any chunks, and the order of resourceVersions."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioresolve.kubernetes.api.client import ListSplitter
from aioresolve.kubernetes.api.objects import (
    MAX_EVENT,
    Added,
    Bookmark,
    Deleted,
    EventLines,
    Failed,
    Modified,
    Pod,
    WatchEvent,
    is_newer,
    is_older,
    oldest_version,
    version_number,
)
from aioresolve.kubernetes.api.queries import PODS

from .samples import pod, pod_json

INITIAL_EVENTS_END = (
    b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"8472",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}}'
)
EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (8505)","reason":"Expired","code":410}}'
)


def test_event_of_a_pod_contains_the_pod() -> None:
    for type_, kind in (("ADDED", Added), ("MODIFIED", Modified), ("DELETED", Deleted)):
        line = json.dumps({"type": type_, "object": pod_json("train-0")}).encode()
        assert PODS.decode_event(line) == kind(pod("train-0"))
    line = json.dumps({"object": pod_json("train-0"), "type": "ADDED"}).encode()
    assert PODS.decode_event(line) == Added(pod("train-0"))


def test_bookmark_has_a_resource_version_and_an_error_event_a_status() -> None:
    event = PODS.decode_event(INITIAL_EVENTS_END)
    assert isinstance(event, Bookmark)
    assert (event.object.metadata.resource_version, event.ends_initial_events) == ("8472", True)
    event = PODS.decode_event(EXPIRED)
    assert isinstance(event, Failed)
    assert (event.object.code, event.object.reason) == (410, "Expired")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"type":"ADDED","object":{"metadata":{"na', "truncated"),
        (b"<html>", "malformed"),
        (b'{"type":"SHRUNK","object":{}}', r"'SHRUNK' - at `\$.type`"),
        (b'{"type":"ADDED"}', "missing required field `object`"),
        (b'{"type":"ADDED","object":{"metadata":{"name":7}}}', r"at `\$.object.metadata.name`"),
    ],
)
def test_error_for_an_invalid_event_says_where_it_is_invalid(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PODS.decode_event(line)


@given(st.binary())
@example(b"[]")
@example(b'{"type":"ADDED","object":' + b"[" * 100_000)
@example(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}')
@example(b'{"type":"ADDED","object":{"metadata":{"name":"\\ud800"}}}')
def test_random_bytes_are_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        PODS.decode_event(line)


NAMES = ["train-0", "train-é", "train-2", "☃" * 20]
LINES = [
    json.dumps({"type": "ADDED", "object": pod_json(name)}, ensure_ascii=False).encode() for name in NAMES
]
EVENTS: list[WatchEvent[Pod]] = [Added(pod(name)) for name in NAMES]


@given(
    cuts=st.lists(st.integers(0, sum(map(len, LINES)) + 8)),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \r\n"]), min_size=4, max_size=4),
)
def test_any_split_of_the_bytes_gives_the_same_events(cuts: list[int], ends: list[bytes]) -> None:
    stream = b"".join(line + end for line, end in zip(LINES, ends, strict=True))
    places = [0, *sorted(cuts), len(stream)]
    lines, events = EventLines(PODS.decode_event), []
    for start, end in pairwise(places):
        events += lines.feed(stream[start:end])
        assert lines.at_boundary == (not end or stream[:end].endswith(b"\n"))
    assert events == EVENTS


def test_a_line_of_the_maximum_length_is_accepted_and_a_longer_one_is_not() -> None:
    head, tail = b'{"type":"BOOKMARK","object":{"padding":"', b'"}}'
    longest = head + b"x" * (MAX_EVENT - len(head) - len(tail)) + tail
    assert len(EventLines(PODS.decode_event).feed(longest + b"\n")) == 1
    for before in (b"x", b"\nx"):
        with pytest.raises(ValueError, match="more than 8 MiB"):
            EventLines(PODS.decode_event).feed(before + longest + b"\n")
    endless = EventLines(PODS.decode_event)
    assert endless.feed(bytes(MAX_EVENT)) == []
    with pytest.raises(ValueError, match="more than 8 MiB"):  # before it fills the memory
        endless.feed(b"x")


def as_go_writes(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def pod_list(*pods: Any) -> dict[str, Any]:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": list(pods)}


BETWEEN = '},{"metadata":'
NESTED = {"volumes": [{"metadata": {"items": [{"metadata": 1}, {"metadata": 2}]}}, {"metadata": {}}]}
LISTS = {
    "pods": as_go_writes(pod_list(*map(pod_json, NAMES))) + b"\n",
    "no pods": as_go_writes(pod_list()),
    "null": as_go_writes({**pod_list(), "items": None}),
    "no items": as_go_writes({"kind": "PodList", "metadata": {"continue": "t"}}),
    "texts that look like the end of a pod": as_go_writes(
        pod_list(
            *(pod_json(f"{BETWEEN}{name}", metadata={"labels": {BETWEEN: '"items":['}}) for name in NAMES)
        )
    ),
    "objects that look like pods": as_go_writes(
        pod_list(*({**pod_json(name), "more": NESTED} for name in NAMES))
    ),
    "keys in another order": as_go_writes(
        {"items": [{"kind": "Pod", **pod_json(name)} for name in NAMES], "kind": "PodList", "metadata": {}}
    ),
    "keys in order, and the metadata last": as_go_writes(
        {**pod_list(), "items": [pod_json(name) for name in NAMES], "metadata": {"continue": "t"}}
    ),
    "indented": json.dumps(pod_list(*map(pod_json, NAMES)), indent=2).encode(),
}


@given(body=st.sampled_from([*LISTS.values()]), data=st.data())
@settings(max_examples=3 * settings().max_examples)
def test_any_split_of_the_bytes_gives_the_same_list(body: bytes, data: st.DataObject) -> None:
    splitter, pods = ListSplitter(PODS), list[Pod]()
    places = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    for start, end in pairwise([0, *places, len(body)]):
        pods += splitter.feed(body[start:end])
    rest, whole = splitter.finish(), PODS.decode_page(body)
    assert [*pods, *(rest.items or ())] == [*(whole.items or ())]
    assert rest.metadata == whole.metadata


def test_pods_are_decoded_as_soon_as_the_next_one_begins() -> None:
    pods = [pod_json(f"train-{number}") for number in range(100)]
    body = as_go_writes(pod_list(*pods))
    splitter, most = ListSplitter(PODS), 0
    for start in range(0, len(body), 1000):
        splitter.feed(body[start : start + 1000])
        most = max(most, splitter.pending)
    assert most < 1000 + 2 * len(as_go_writes(pods[0]))


@given(st.integers(0, 2**128), st.integers(0, 2**128))
def test_versions_compare_as_numbers(one: int, other: int) -> None:
    assert is_newer(version_number(str(one)), version_number(str(other))) == (one > other)
    assert is_older(version_number(str(one)), version_number(str(other))) == (one < other)


def test_of_versions_that_do_not_compare_the_later_one_is_newer() -> None:
    assert version_number("9" * 40) == 10**40 - 1
    for version in ("", "abc", "-1", "²", "٣", "9" * 41):
        number = version_number(version)
        assert number is None
        assert is_newer(number, 7)
        assert is_newer(7, number)
        assert not is_older(number, 7)
        assert not is_older(7, number)


@pytest.mark.parametrize(
    ("versions", "oldest"),
    [(["9", "10"], "9"), (["abc", "abc"], "abc"), (["abc", "10"], None), ([""], None), ([], None)],
)
def test_the_version_of_a_state_is_the_oldest_of_its_lists(versions: list[str], oldest: str | None) -> None:
    assert oldest_version(versions) == oldest
