"""The events of a watch, one line each, as a Kubernetes 1.36 API server wrote them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.kubernetes.objects import (
    Added,
    Bookmark,
    Deleted,
    Failed,
    Modified,
    PodList,
    decode_event,
    decode_list,
    decode_status,
)

from .samples import pod, pod_json

ENDS_INITIAL_EVENTS = (
    b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"8472",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}}'
)
EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (8505)","reason":"Expired","code":410}}'
)


@pytest.mark.parametrize(("type_", "kind"), [("ADDED", Added), ("MODIFIED", Modified), ("DELETED", Deleted)])
def test_an_event_of_a_pod_holds_the_pod(type_: str, kind: type[Added | Modified | Deleted]) -> None:
    line = json.dumps({"type": type_, "object": pod_json("train-0")}).encode()
    event = decode_event(line)
    assert type(event) is kind
    assert event.object == pod("train-0")


def test_what_comes_first_on_the_line_makes_no_difference() -> None:
    line = json.dumps({"object": pod_json("train-0"), "type": "ADDED"}).encode()
    assert decode_event(line) == Added(pod("train-0"))


def test_a_bookmark_holds_a_version_and_no_pod() -> None:
    event = decode_event(ENDS_INITIAL_EVENTS)
    assert isinstance(event, Bookmark)
    assert event.object.metadata.resource_version == "8472"


def test_an_error_holds_a_status_with_its_code() -> None:
    event = decode_event(EXPIRED)
    assert isinstance(event, Failed)
    assert (event.object.code, event.object.reason) == (410, "Expired")
    assert event.object.message == "too old resource version: 1 (8505)"


def test_a_status_has_a_code() -> None:
    assert decode_status(b'{"kind":"Status","code":403,"message":"no"}').code == 403


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "truncated"),
        (b'{"type":"ADDED","object":{"metadata":{"na', "truncated"),
        (b"<html>", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"object":{}}', "missing required field `type`"),
        (b'{"type":"SHRUNK","object":{}}', r"'SHRUNK' - at `\$.type`"),
        (b'{"type":"ADDED"}', "missing required field `object`"),
        (b'{"type":"ADDED","object":{}}', r"`metadata` - at `\$.object`"),
        (b'{"type":"ADDED","object":{"metadata":{"name":7}}}', r"at `\$.object.metadata.name`"),
        (b'{"type":"ADDED","object":' + b"[" * 100_000, "."),
        (b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}', "utf-8"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"\\ud800"}}}', "."),
        (b'{"type":"ADDED","object":{"metadata":{"name":"\\udc00"}}}', "."),
    ],
)
def test_a_line_that_holds_no_event_says_where_it_differs(line: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        decode_event(line)


@given(st.binary())
def test_garbage_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_event(line)


def test_a_pod_knows_its_version_and_its_owners() -> None:
    owner = {"kind": "Job", "name": "train", "controller": True, "apiVersion": "batch/v1", "uid": "u"}
    found = pod(metadata={"resourceVersion": "8438", "ownerReferences": [owner]})
    assert found.metadata.resource_version == "8438"
    assert found.metadata.owner_references is not None
    (decoded,) = found.metadata.owner_references
    assert (decoded.kind, decoded.name, decoded.controller) == ("Job", "train", True)


def test_a_container_knows_how_it_ended_last() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    found = pod(status={"containerStatuses": [{"name": "main", "restartCount": 5, "lastState": last}]})
    assert found.status.container_statuses is not None
    (container,) = found.status.container_statuses
    assert container.restart_count == 5
    assert container.last_state is not None
    assert container.last_state.terminated is not None
    assert container.last_state.terminated.exit_code == 137


def size(value: Any) -> int:
    """Return the bytes that a decoded value takes."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(size(key) + size(item) for key, item in value.items())
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(size, value))
    fields = getattr(value, "__struct_fields__", ())
    return sys.getsizeof(value) + sum(size(getattr(value, field)) for field in fields)


def test_a_large_pod_is_small_once_decoded() -> None:
    large = pod_json(
        spec={"containers": [{"name": "main", "env": [{"name": f"V{i}", "value": "x"} for i in range(500)]}]},
        metadata={"managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{i}": {} for i in range(500)}}]},
    )
    answer = decode_list(json.dumps({"kind": "PodList", "items": [large]}).encode())
    assert isinstance(answer, PodList)
    assert answer.items is not None
    (decoded,) = answer.items
    assert len(json.dumps(large)) > 20_000
    assert size(decoded) < 2_000
