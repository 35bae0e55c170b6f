"""Pods, lists and failures in protobuf, compared with responses of a Kubernetes 1.36 API server.

`recorded` contains the same four pods in JSON and as the body of a list in protobuf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from aioresolve.testing import Cut, KubernetesServer, Trickle, WatchError, pod
from aioresolve.testing.kubernetes.kinds import POD
from aioresolve.testing.kubernetes.options import Representation
from aioresolve.testing.kubernetes.protobuf import (
    MAGIC,
    PROTOBUF,
    encode_pod,
    encode_pod_list,
    encode_status,
    envelope,
)
from aioresolve.testing.kubernetes.watches import EventEncoder

from .client import NAMESPACE, TABLE, bearer, fetch, ml_server

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = Path(__file__).parent / "recorded"
ACCEPT = {"Accept": f"{PROTOBUF},application/json"}

NOT_FOUND = (
    b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status"
    b'\x12I\x0a\x06\x0a\x00\x12\x00\x1a\x00\x12\x07Failure\x1a\x15pods "none" not found"\x08NotFound'
    b"*\x12\x0a\x04none\x12\x00\x1a\x04pods(\x002\x000\x94\x03\x1a\x00\x22\x00"
)
"""The body of a 404, as recorded."""

BOOKMARK = (
    b"\0\0\0\x92\x0a\x08BOOKMARK\x12\x85\x01\x0a\x82\x01k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12m"
    b"\x0a8\x0a\0\x12\0\x1a\0\x22\0*\x002\x05109698\0B\0b!\x0a\x19k8s.io/initial-events-end\x12\x04true"
    b"\x12\x1c\x1a\x002\0B\0J\0R\0X\0`\0h\0\x82\x01\0\x8a\x01\0\x9a\x01\0\xc2\x01\0"
    b"\x1a\x13\x0a\0\x1a\0\x22\0*\x002\0J\0Z\0r\0\x88\x01\0\x1a\0\x22\0"
)
"""The bookmark after the existing pods of a watch, as recorded."""


def recorded_pods() -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = json.loads((RECORDED / "pods.json").read_text())
    return pods


def texts(value: Any) -> Iterator[str]:
    """Yield every text of a JSON value, including the keys of labels, except for times and managed fields."""
    match value:
        case dict():
            for key, inner in value.items():
                if key in {"labels", "annotations"}:
                    yield from inner
                if key != "managedFields" and not key.endswith(("Time", "Timestamp", "edAt")):
                    yield from texts(inner)
        case list():
            for inner in value:
                yield from texts(inner)
        case str():
            yield value


def test_list_equals_that_of_a_real_server() -> None:
    encoded = encode_pod_list({"resourceVersion": "10969"}, map(encode_pod, recorded_pods()))
    assert encoded == (RECORDED / "pods.pb").read_bytes()


def test_every_text_of_a_pod_is_in_its_message() -> None:
    built = pod(
        "train-0",
        "ml",
        labels={"app": "trainer"},
        annotations={"note": "für später"},
        index=3,
        ip=["10.0.0.1", "fd00::1"],
        phase="Failed",
        reason="Evicted",
        message="The node was low on resource: memory.",
        waiting="ImagePullBackOff",
        deleting=True,
        finalizers=["example.com/hold"],
        hostname="train-0",
        subdomain="train",
        containers=["main", "side"],
        size=4096,
    )
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1", "controller": True}]
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "killed"}
    status = {"name": "init", "state": {"terminated": ended}, "lastState": {"terminated": ended}}
    built["metadata"]["ownerReferences"] = owners
    built["status"]["initContainerStatuses"] = [status]
    shown = {key: built[key] for key in ("metadata", "spec", "status")}
    message = encode_pod(shown)
    assert [text for text in texts(shown) if text.encode() not in message] == []


async def test_client_that_prefers_protobuf_gets_the_pods_of_the_json_list_in_protobuf() -> None:
    async with ml_server() as server:
        listed = await fetch(server, NAMESPACE, limit="2")
        got = await fetch(server, NAMESPACE, headers=ACCEPT, limit="2")
        one = await fetch(server, f"{NAMESPACE}/train-1", headers=ACCEPT)
    assert got.headers["Content-Type"] == PROTOBUF
    assert got.body == encode_pod_list(listed.json["metadata"], map(encode_pod, listed.json["items"]))
    assert one.body.startswith(MAGIC + b"\x0a\x09\x0a\x02v1\x12\x03Pod")


async def test_failure_in_protobuf_equals_that_of_a_real_server() -> None:
    async with KubernetesServer() as server:
        got = await fetch(server, f"{NAMESPACE}/none", headers=ACCEPT)
    assert (got.status, got.headers["Content-Type"], got.body) == (404, PROTOBUF, NOT_FOUND)


async def test_denied_client_gets_the_denial_in_protobuf() -> None:
    async with KubernetesServer(tokens={"t": "eve"}, allow={}) as server:
        in_json = await fetch(server, headers=bearer("t"))
        got = await fetch(server, headers={**ACCEPT, **bearer("t")})
    assert (got.status, got.body) == (403, encode_status(in_json.json))


@pytest.mark.parametrize(
    "accept", [f"application/json,{PROTOBUF}", f"{TABLE},{PROTOBUF}", f"{PROTOBUF};as=Table,*/*"]
)
async def test_client_that_prefers_json_gets_json(accept: str) -> None:
    async with ml_server() as server:
        got = await fetch(server, NAMESPACE, headers={"Accept": accept})
    assert got.headers["Content-Type"] == "application/json"
    assert got.json["kind"] in {"PodList", "Table"}


@pytest.mark.parametrize("accept", [f"{PROTOBUF},application/json", f"{PROTOBUF};stream=watch"])
async def test_watch_in_protobuf_has_each_event_after_its_length(accept: str) -> None:
    initial = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with KubernetesServer([pod("a", "ml")]) as server:
        query = {**initial, "allowWatchBookmarks": "true", "timeoutSeconds": "1"}
        got = await fetch(server, NAMESPACE, headers={"Accept": accept}, query=query)
        listed = await fetch(server, NAMESPACE, headers=ACCEPT)
    assert got.headers["Content-Type"] == f"{PROTOBUF};stream=watch"
    first, second, *_ = frames(got.body)
    message = encode_pod(server.pod("a", "ml"))
    assert message in listed.body
    assert first == b"\x0a\x05ADDED" + delimited(2, delimited(1, envelope("Pod", message)))
    assert second.startswith(b"\x0a\x08BOOKMARK")


def frames(body: bytes) -> Iterator[bytes]:
    """Yield the events of a watch, without their lengths."""
    while body:
        end = 4 + int.from_bytes(body[:4], "big")
        yield body[4:end]
        body = body[end:]


def test_bookmark_equals_that_of_a_real_server() -> None:
    encoder = EventEncoder(POD, Representation("object", protobuf=True), "None")
    assert encoder.bookmark(10969, ends_initial_events=True) == BOOKMARK


async def test_error_ends_a_watch_in_protobuf() -> None:
    async with KubernetesServer() as server:
        server.inject(WatchError(410))
        got = await fetch(server, NAMESPACE, headers=ACCEPT, query={"watch": "true"})
        server.inject(WatchError(410))
        in_json = await fetch(server, NAMESPACE, query={"watch": "true"})
    (event,) = frames(got.body)
    status = encode_status(in_json.json["object"])
    assert event == b"\x0a\x05ERROR" + delimited(2, delimited(1, status))


def delimited(number: int, content: bytes) -> bytes:
    """Return a field of a message that has a length."""
    length, parts = len(content), bytearray([number << 3 | 2])
    while length > 0x7F:
        parts.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*parts, length]) + content


async def test_faults_apply_to_a_list_in_protobuf() -> None:
    async with ml_server() as server:
        whole = await fetch(server, headers=ACCEPT)
        server.inject(Trickle(size=500, seconds=0.0))
        assert (await fetch(server, headers=ACCEPT)).body == whole.body
        server.inject(Cut(after=1000))
        with pytest.raises(aiohttp.ClientPayloadError):
            await fetch(server, headers=ACCEPT)


async def test_pod_that_changes_changes_in_protobuf() -> None:
    async with KubernetesServer([pod("a")]) as server:
        before = await fetch(server, headers=ACCEPT)
        server.patch("a", patch={"status": {"phase": "Failed"}})
        after = await fetch(server, headers=ACCEPT)
    assert (b"Running" in before.body, b"Failed" in before.body) == (True, False)
    assert (b"Running" in after.body, b"Failed" in after.body) == (False, True)
