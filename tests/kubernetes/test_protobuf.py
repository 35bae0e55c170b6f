"""Responses in protobuf become the same values as those in JSON, and invalid ones are errors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import APIError, ForbiddenError, ProtocolError
from aioresolve.kubernetes.api import protobuf
from aioresolve.kubernetes.api.client import AS_LIST, AS_PROTOBUF, PROTOBUF, AiohttpTransport
from aioresolve.kubernetes.api.errors import decode_status
from aioresolve.kubernetes.api.objects import (
    MAX_EVENT,
    EventLines,
    Pod,
    PodList,
    Status,
    WatchEvent,
    decode_event,
    decode_page,
    status_from_json,
)
from aioresolve.kubernetes.api.protobuf import LONG, EventFrames, MessageSplitter, decode_pod
from aioresolve.testing import Answer
from aioresolve.testing.kubernetes.protobuf import (
    encode_event,
    encode_pod,
    encode_pod_list,
    encode_status,
    envelope,
)

from .loopback import TOKEN, TRAIN, all_text, is_list, trusted_peer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .loopback import Loopback

RECORDED = Path(__file__).parents[1] / "testing" / "recorded"
"""Four pods of a Kubernetes 1.36 API server, in JSON and as the body of a list in protobuf."""

# Pods as an API server writes them in JSON: without empty fields, except for those that it always writes.

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
times = st.datetimes(datetime(1971, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda time: time.replace(microsecond=0).isoformat().replace("+00:00", "Z")
)
numbers = st.integers(-(2**31), 2**31 - 1)
mappings = st.dictionaries(texts, texts, min_size=1, max_size=3)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def several(each: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(each, min_size=1, max_size=3)


owners = st.fixed_dictionaries(
    {"apiVersion": texts, "kind": texts, "name": texts, "uid": texts}, optional={"controller": st.booleans()}
)
metadata = st.fixed_dictionaries(
    {"name": texts},
    optional={
        "namespace": texts,
        "uid": texts,
        "resourceVersion": texts,
        "labels": mappings,
        "annotations": mappings,
        "deletionTimestamp": times,
        "ownerReferences": several(owners),
    },
)
containers = st.fixed_dictionaries(
    {"name": texts, "resources": some(limits=mappings, requests=mappings)},
    optional={"restartPolicy": texts, "image": texts, "args": several(texts)},
)
states = some(
    waiting=some(reason=texts, message=texts),
    running=st.fixed_dictionaries({"startedAt": times}),
    terminated=st.fixed_dictionaries(
        {"exitCode": numbers}, optional={"reason": texts, "message": texts, "finishedAt": times}
    ),
)
container_statuses = st.fixed_dictionaries(
    {"name": texts, "state": states, "lastState": states, "restartCount": numbers, "ready": st.booleans()}
)
conditions = st.fixed_dictionaries(
    {"type": texts, "status": texts},
    optional={"reason": texts, "message": texts, "lastTransitionTime": times},
)
claims = st.fixed_dictionaries({"name": texts}, optional={"resourceClaimName": texts})
specs = some(
    containers=several(containers),
    initContainers=several(containers),
    nodeName=texts,
    hostname=texts,
    subdomain=texts,
    resourceClaims=several(claims),
    hostNetwork=st.booleans(),
)
ips = texts | st.sampled_from(["10.8.0.1", "fd00::1", "x" * 127, "x" * 128])


def with_consistent_addresses(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status that an API server accepts: `podIP` is the first of `podIPs`; none is there twice."""
    if "podIP" in status and "podIPs" in status:
        addresses = [status["podIP"], *(each["ip"] for each in status["podIPs"])]
        status["podIPs"] = [{"ip": address} for address in dict.fromkeys(addresses)]
    return status


statuses = some(
    phase=texts,
    reason=texts,
    message=texts,
    podIP=ips,
    podIPs=several(st.fixed_dictionaries({"ip": ips})),
    hostIP=texts,
    conditions=several(conditions),
    containerStatuses=several(container_statuses),
    initContainerStatuses=several(container_statuses),
    resourceClaimStatuses=several(claims),
).map(with_consistent_addresses)
pods = st.fixed_dictionaries({"metadata": metadata, "spec": specs, "status": statuses})
failures = some(
    message=texts,
    reason=texts,
    code=st.integers(400, 599),
    details=some(name=texts, retryAfterSeconds=st.integers(1, 2**31 - 1)),
)


def recorded_pods() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDED / "pods.json").read_text())
    return found


def split(data: bytes, places: list[int]) -> list[bytes]:
    """Return the pieces of `data` between these places."""
    return [data[start:end] for start, end in pairwise([0, *sorted(places), len(data)])]


def read_list(pieces: list[bytes]) -> tuple[list[Pod], PodList]:
    splitter, found = MessageSplitter(), list[Pod]()
    for piece in pieces:
        found += splitter.feed(piece)
    return found, splitter.finish()


def read_events(pieces: list[bytes]) -> list[WatchEvent[Pod]]:
    frames = EventFrames()
    found = [event for piece in pieces for event in frames.feed(piece)]
    assert frames.at_boundary
    return found


def places(data: bytes) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(data)), max_size=5)


# Both decoders


@given(listed=st.lists(pods, max_size=3), continue_=st.just("") | texts, data=st.data())
def test_list_in_protobuf_gives_the_same_pods_as_in_json(
    listed: list[Any], continue_: str, data: st.DataObject
) -> None:
    about = {"resourceVersion": "7", **({"continue": continue_} if continue_ else {})}
    whole = decode_page(json.dumps({"kind": "PodList", "metadata": about, "items": listed}).encode())
    body = encode_pod_list(about, map(encode_pod, listed))
    found, rest = read_list(split(body, data.draw(places(body))))
    assert found == whole.items
    assert rest == PodList(metadata=whole.metadata)


def test_recorded_list_in_protobuf_gives_the_same_pods_as_in_json() -> None:
    body = (RECORDED / "pods.pb").read_bytes()
    found, rest = read_list(split(body, list(range(0, len(body), 7))))
    document = {"kind": "PodList", "metadata": {"resourceVersion": "10969"}, "items": recorded_pods()}
    whole = decode_page(json.dumps(document).encode())
    assert (found, rest.metadata) == (whole.items, whole.metadata)


@given(
    changes=st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), pods), max_size=3),
    bookmark=metadata,
    failure=failures,
    data=st.data(),
)
def test_watch_in_protobuf_gives_the_same_events_as_in_json(
    changes: list[tuple[str, Any]], bookmark: Any, failure: Any, data: st.DataObject
) -> None:
    events = [*changes, ("BOOKMARK", {"metadata": bookmark, "spec": {"containers": None}, "status": {}})]
    lines = [json.dumps({"type": type_, "object": each}) + "\n" for type_, each in events]
    lines.append(json.dumps({"type": "ERROR", "object": failure}) + "\n")
    stream = b"".join(encode_event(type_, envelope("Pod", encode_pod(each))) for type_, each in events)
    stream += encode_event("ERROR", encode_status(failure))
    found = read_events(split(stream, data.draw(places(stream))))
    assert comparable(found) == comparable(EventLines(decode_event).feed("".join(lines).encode()))


def comparable(value: Any) -> Any:
    """Return events or a Status with the requested wait as a number, which is decoded when it is read."""
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if not isinstance(value, Status):
        return comparable(value.object) if isinstance(getattr(value, "object", None), Status) else value
    return value.message, value.reason, value.code, value.details and value.details.retry_after


@given(failure=failures)
def test_failure_in_protobuf_gives_the_same_status_as_in_json(failure: Any) -> None:
    in_json = status_from_json(json.dumps(failure).encode())
    assert comparable(decode_status(encode_status(failure))) == comparable(in_json)


def test_time_that_is_zero_is_none() -> None:
    """Go writes the zero time as an empty message, and as null in JSON."""
    message = bytes([0x0A, 5, 0x0A, 1, ord("a"), 0x4A, 0])
    assert decode_pod(message).metadata.deletion_timestamp is None


def test_text_that_is_not_utf_8_is_shown_as_a_server_shows_it_in_json() -> None:
    document = {"metadata": {"name": "a"}, "status": {"message": "log: ?"}}
    message = encode_pod(document).replace(b"log: ?", b"log: \xff")
    assert decode_pod(message).status.message == "log: \N{REPLACEMENT CHARACTER}"


@given(size=st.integers(LONG - 64, LONG + 64))
def test_long_pod_is_decoded_like_any_other(size: int) -> None:
    document = {"metadata": {"name": "a", "annotations": {"note": "x" * size}}}
    assert decode_pod(encode_pod(document)).metadata.annotations == {"note": "x" * size}


@pytest.mark.parametrize(("length", "is_kept"), [(LONG - 1, True), (LONG, False)])
def test_parts_of_a_long_pod_are_not_kept_in_memory(length: int, is_kept: bool) -> None:
    document = {"metadata": {"name": "a", "annotations": {"note": "x" * (LONG - 100)}}}
    document["metadata"]["annotations"]["note"] += "x" * (length - len(encode_pod(document)))  # type: ignore[index]
    content = encode_pod(document)
    assert len(content) == length
    protobuf._entry.cache_clear()
    decode_pod(content)
    assert bool(protobuf._entry.cache_info().currsize) is is_kept


def ready_since(minute: int) -> dict[str, Any]:
    """Return a pod that became ready, and its container that started, at this minute."""
    time = f"2026-11-20T00:{minute:02}:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": time}
    container = {"name": "main", "state": {"running": {"startedAt": time}}, "lastState": {}}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [container]}
    return {"metadata": {"name": f"trainer-{minute}"}, "status": status}


def test_pods_that_differ_only_in_their_times_share_their_parts() -> None:
    first, second = (decode_pod(encode_pod(ready_since(minute))).status for minute in (1, 2))
    assert first.conditions
    assert second.conditions
    assert first.conditions[0] is second.conditions[0]
    assert first.container_statuses
    assert second.container_statuses
    assert first.container_statuses[0].state is second.container_statuses[0].state


@given(size=st.integers(0, 300), exit_code=st.none() | st.integers(1, 0x7F))
def test_state_is_read_to_its_end_after_the_start_of_the_container(size: int, exit_code: int | None) -> None:
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    running = b"\x12" + length + b"." * size
    terminated = b"" if exit_code is None else bytes([0x1A, 2, 0x08, exit_code])
    state = protobuf._state(running + terminated)
    assert (state.terminated and state.terminated.exit_code) == exit_code
    assert state.waiting is None


# Bytes that are not valid


@pytest.mark.parametrize("content", [b"\x12", b"\x12\x01", b"\x12\x02."])
def test_state_that_is_cut_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="parsing"):
        protobuf._state(content)


def outcome_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ValueError as error:
        return error


@given(data=st.data())
def test_list_with_changed_bytes_is_decoded_or_is_a_value_error(data: st.DataObject) -> None:
    body = bytearray((RECORDED / "pods.pb").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cuts = data.draw(places(bytes(body)))
    whole = outcome_of(lambda: read_list([bytes(body)]))
    in_pieces = outcome_of(lambda: read_list(split(bytes(body), cuts)))
    if isinstance(whole, ValueError):
        assert isinstance(in_pieces, ValueError)
        assert str(whole)
    else:
        assert in_pieces == whole


@given(end=st.integers(0, (RECORDED / "pods.pb").stat().st_size - 5))
def test_list_that_is_cut_is_a_value_error(end: int) -> None:
    body = (RECORDED / "pods.pb").read_bytes()
    with pytest.raises(ValueError, match=r"truncated|does not begin"):
        read_list([body[:end]])


@given(st.binary())
def test_random_bytes_are_a_value_error(content: bytes) -> None:
    for data in (content, b"k8s\0" + content):
        assert isinstance(outcome_of(lambda data=data: read_list([data])), ValueError)  # type: ignore[misc]
    frame = len(content).to_bytes(4, "big") + content
    assert isinstance(outcome_of(lambda: EventFrames().feed(frame)), ValueError)
    assert decode_status(b"k8s\0" + content) == Status()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "does not begin with"),
        (envelope("Status", b""), "'Status', not one PodList"),
        (envelope("PodList", b"\x12\x00"), "a name of 0 characters"),
        (envelope("PodList", b"\x12\x7f"), "longer than the list"),
        (envelope("PodList", b"\x10\x01"), "wire type 0"),
        (b"k8s\0" + b"\xff" * 6, "a number is too long"),
        (b"k8s\0\x0a\xff\xff\xff\x7f", "more than 8 MiB"),
        (encode_pod_list({}, []) + b"\x12\x00", "not one PodList"),
        (encode_pod_list({}, [])[:-2] + b"\x1a\x04gzip", "is encoded"),
        (encode_pod_list({}, [encode_pod({"metadata": {"name": "x" * 254}})]), "a name of 254 characters"),
    ],
)
def test_list_that_is_not_valid_is_a_value_error(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_list([body])


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (encode_event("SHRUNK", envelope("Pod", b"")), "'SHRUNK' is not a type of event"),
        (encode_event("ADDED", envelope("Pod", b"")), "a name of 0 characters"),
        (encode_event("ADDED", encode_status({})), "of kind 'Status'"),
        (encode_event("ERROR", envelope("Pod", b"")), "of kind 'Pod'"),
        (encode_event("ADDED", b"{}"), "does not begin with"),
        ((MAX_EVENT + 1).to_bytes(4, "big"), "longer than any event"),
        (b"<htm", "longer than any event"),
        (bytes(4), "does not begin with"),
        (encode_event("ADDED", envelope("Pod", b"") + b"\x1a\x04gzip"), "is encoded"),
    ],
)
def test_event_that_is_not_valid_is_a_value_error(event: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EventFrames().feed(event)


def test_longest_event_and_longest_field_of_a_list_are_read() -> None:
    assert MAX_EVENT == 1 << 23
    assert EventFrames().feed(MAX_EVENT.to_bytes(4, "big")) == []
    assert MessageSplitter().feed(b"k8s\0\x0a\x80\x80\x80\x04") == []
    with pytest.raises(ValueError, match="more than 8 MiB"):
        MessageSplitter().feed(b"k8s\0\x0a\x81\x80\x80\x04")


def test_time_that_no_calendar_has_is_a_value_error() -> None:
    time = b"\x08" + b"\xff" * 8 + b"\x7f"  # 2**63 - 1 seconds
    with pytest.raises(ValueError, match="out of range"):
        decode_pod(b"\x0a" + bytes([3 + 2 + len(time)]) + b"\x0a\x01a\x4a" + bytes([len(time)]) + time)


def test_pods_are_decoded_as_soon_as_they_are_complete() -> None:
    pod = encode_pod(recorded_pods()[0])
    body = encode_pod_list({"resourceVersion": "7"}, [pod] * 100)
    splitter, most = MessageSplitter(), 0
    for start in range(0, len(body), 1000):
        splitter.feed(body[start : start + 1000])
        most = max(most, splitter.pending)
    assert most < 1000 + len(pod)


# Requests


async def test_state_is_the_same_in_protobuf_and_in_json(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    loopback.train("train-0", "train-1", index=None)
    loopback.train("train-2", phase="Pending", waiting="ImagePullBackOff")
    resolver = loopback.resolver(not_running="skip")
    in_protobuf = await resolver.cluster_state()
    monkeypatch.setattr(AiohttpTransport, "reads_protobuf", False)
    in_json = await resolver.cluster_state()
    assert in_protobuf == in_json
    assert list(in_protobuf.members) == list(in_json.members)
    assert [request.accept for request in loopback.requests] == [AS_PROTOBUF, AS_LIST]


@pytest.mark.parametrize(("reads_protobuf", "accept"), [(True, AS_PROTOBUF), (False, AS_LIST)])
async def test_watch_requests_events_as_it_requests_lists(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, reads_protobuf: bool, accept: str
) -> None:
    monkeypatch.setattr(AiohttpTransport, "reads_protobuf", reads_protobuf)
    loopback.train("train-0")
    async with aclosing(loopback.resolver().watch()) as states:
        assert (await anext(states)).spec.num_tasks("worker") == 1
        loopback.train("train-1")
        assert (await anext(states)).spec.num_tasks("worker") == 2
    assert [request.accept for request in loopback.requests] == [accept]


async def test_denial_in_protobuf_has_the_manifest(loopback: Loopback) -> None:
    loopback.server.allow = {}
    with pytest.raises(ForbiddenError) as failure:
        await loopback.resolver().cluster_state()
    assert failure.value.manifest is not None
    assert "verbs: [list]" in failure.value.manifest
    assert loopback.requests[-1].accept == AS_PROTOBUF


async def test_wait_that_a_failure_in_protobuf_requests_is_read(loopback: Loopback) -> None:
    busy = {"code": 503, "message": "busy", "details": {"retryAfterSeconds": 3600}}
    loopback.server.inject(Answer(503, encode_status(busy), {"Content-Type": PROTOBUF}), times=None)
    with pytest.raises(APIError, match="busy") as failure:
        await asyncio.wait_for(loopback.resolver(timeout=30).cluster_state(), 20)
    assert failure.value.retry_after == 3600.0


async def test_token_that_a_failure_in_protobuf_quotes_is_not_shown(loopback: Loopback) -> None:
    status = {
        "code": 500,
        "message": f"unknown token {TOKEN}, see the log",
        "reason": "InternalError",
    }
    loopback.server.inject(Answer(422, encode_status(status), {"Content-Type": PROTOBUF}), times=None)
    with pytest.raises(APIError) as failure:
        await loopback.resolver().cluster_state()
    assert TOKEN not in all_text(failure.value)
    assert failure.value.reason == "InternalError"
    assert "see the log" in str(failure.value)


@pytest.mark.parametrize("body", [b"<html>", b"k8s\0\x0a\xff\xff\xff\x7f", b"k8s\0", b""])
async def test_list_that_is_not_valid_is_a_protocol_error(loopback: Loopback, body: bytes) -> None:
    loopback.server.inject(Answer(200, body, {"Content-Type": PROTOBUF}), match=is_list, times=None)
    with pytest.raises(
        ProtocolError, match=r"returned an invalid pod list for selector 'app=train'.*login page"
    ):
        await loopback.resolver().cluster_state()


async def test_token_that_an_invalid_list_quotes_is_not_shown(loopback: Loopback) -> None:
    loopback.server.inject(
        Answer(200, b"k8s\0" + envelope(TOKEN, b"")[4:], {"Content-Type": PROTOBUF}), times=None
    )
    with pytest.raises(ProtocolError, match=r"\(secret\)") as failure:
        await loopback.resolver().cluster_state()
    assert TOKEN not in all_text(failure.value)


async def test_server_that_returns_json_is_read(loopback: Loopback) -> None:
    def respond(connection: socket.socket) -> None:
        while b"\r\n\r\n" not in connection.recv(65536):
            pass
        item = {"metadata": {"name": "a"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [item]}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)

    with trusted_peer(loopback, respond):
        state = await loopback.resolver().cluster_state()
    assert state.spec.as_dict() == {"worker": ["10.0.0.1:8470"]}


def test_rows_do_not_load_protobuf(loopback: Loopback) -> None:
    """It takes longer to load than a short list takes."""
    loopback.train("train-0", "train-1")
    script = (
        "import sys, asyncio; from aioresolve import KubernetesClusterResolver as R;"
        f"r = R({{'worker': 'app={TRAIN['app']}'}}, kubeconfig=sys.argv[1]);"
        "spec = asyncio.run(r.cluster_spec()); print(spec.num_tasks('worker'), 'google' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(loopback.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
