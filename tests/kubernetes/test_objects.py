"""Decoding of pods, pod lists and watch events, with events that a Kubernetes 1.36 API server sent."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve.kubernetes.api.objects import (
    Added,
    Bookmark,
    Deleted,
    Failed,
    Modified,
    PodList,
    decode_event,
    decode_list,
)

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
        assert decode_event(line) == kind(pod("train-0"))
    line = json.dumps({"object": pod_json("train-0"), "type": "ADDED"}).encode()
    assert decode_event(line) == Added(pod("train-0"))


def test_bookmark_contains_only_a_resource_version() -> None:
    event = decode_event(INITIAL_EVENTS_END)
    assert isinstance(event, Bookmark)
    assert event.object.metadata.resource_version == "8472"


def test_error_event_contains_a_status_with_its_code() -> None:
    event = decode_event(EXPIRED)
    assert isinstance(event, Failed)
    assert (event.object.code, event.object.reason) == (410, "Expired")
    assert event.object.message == "too old resource version: 1 (8505)"


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
        decode_event(line)


@given(st.binary())
@example(b"[]")
@example(b'{"type":"ADDED","object":' + b"[" * 100_000)
@example(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}')
@example(b'{"type":"ADDED","object":{"metadata":{"name":"\\ud800"}}}')
def test_random_bytes_are_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_event(line)


def size(value: Any) -> int:
    """Return the memory of a decoded value in bytes."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(size(key) + size(item) for key, item in value.items())
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(size, value))
    fields = getattr(value, "__struct_fields__", ())
    return sys.getsizeof(value) + sum(size(getattr(value, field)) for field in fields)


def test_decoded_pod_does_not_keep_unused_fields() -> None:
    large = pod_json(
        spec={"containers": [{"name": "main", "env": [{"name": f"V{i}", "value": "x"} for i in range(500)]}]},
        metadata={"managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{i}": {} for i in range(500)}}]},
    )
    pods = decode_list(json.dumps({"kind": "PodList", "items": [large]}).encode())
    assert isinstance(pods, PodList)
    assert pods.items is not None
    (decoded,) = pods.items
    assert len(json.dumps(large)) > 20_000
    assert size(decoded) < 2_000
