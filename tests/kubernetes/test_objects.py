"""Decoding of pods, pod lists and watch events, with events that a Kubernetes 1.36 API server sent."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.kubernetes.api.objects import (
    Added,
    Bookmark,
    Deleted,
    Failed,
    Modified,
    PodList,
    Status,
    decode_event,
    decode_list,
    redact_status,
    status_from_json,
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


@pytest.mark.parametrize(("type_", "kind"), [("ADDED", Added), ("MODIFIED", Modified), ("DELETED", Deleted)])
def test_event_of_a_pod_contains_the_pod(
    type_: str, kind: type[Added[Any] | Modified[Any] | Deleted[Any]]
) -> None:
    line = json.dumps({"type": type_, "object": pod_json("train-0")}).encode()
    event = decode_event(line)
    assert type(event) is kind
    assert event.object == pod("train-0")


def test_order_of_the_fields_of_an_event_does_not_matter() -> None:
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


def test_status_has_a_code() -> None:
    assert status_from_json(b'{"kind":"Status","code":403,"message":"no"}').code == 403


@pytest.mark.parametrize(("reason", "redacted"), [(None, None), ("no secret-token", "no (secret)")])
def test_message_and_reason_of_a_status_are_redacted(reason: str | None, redacted: str | None) -> None:
    status = Status("unknown secret-token", reason, code=500)
    found = redact_status(status, lambda text: text.replace("secret-token", "(secret)"))
    assert found == Status("unknown (secret)", redacted, code=500)


@pytest.mark.parametrize(
    ("line", "message"),
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
def test_error_for_an_invalid_event_says_where_it_is_invalid(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_event(line)


@given(st.binary())
def test_random_bytes_are_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_event(line)


def test_pod_has_a_resource_version_and_owners() -> None:
    owner = {"kind": "Job", "name": "train", "controller": True, "apiVersion": "batch/v1", "uid": "u"}
    found = pod(metadata={"resourceVersion": "8438", "ownerReferences": [owner]})
    assert found.metadata.resource_version == "8438"
    assert found.metadata.owner_references is not None
    (decoded,) = found.metadata.owner_references
    assert (decoded.kind, decoded.name, decoded.controller) == ("Job", "train", True)


def test_container_has_its_last_termination() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    found = pod(status={"containerStatuses": [{"name": "main", "restartCount": 5, "lastState": last}]})
    assert found.status.container_statuses is not None
    (container,) = found.status.container_statuses
    assert container.restart_count == 5
    assert container.last_state is not None
    assert container.last_state.terminated is not None
    assert container.last_state.terminated.exit_code == 137


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
