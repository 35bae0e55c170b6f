"""Decoding from protobuf: pod lists while they arrive, the events of watches, and failures.

The values are those that `objects` decodes from JSON. Format: an object is the four bytes `k8s\\0` and a
`runtime.Unknown`, which has the kind of the object and its bytes; an event of a watch is its length, 32 bits
in network byte order, and a WatchEvent, which contains such an object. Source:
https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding. The messages are in
`objects.proto`.

This module loads protobuf, which takes 10 ms: it is imported when the first response in protobuf arrives.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from . import objects_pb2 as messages
from .objects import (
    MAX_EVENT,
    MAX_NAME,
    PROTOBUF_MAGIC,
    Added,
    Bookmark,
    BookmarkMeta,
    BookmarkObject,
    Condition,
    Container,
    ContainerState,
    ContainerStatus,
    Deleted,
    Failed,
    ListMeta,
    Modified,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodIP,
    PodList,
    PodResourceClaim,
    PodSpec,
    PodStatus,
    Resources,
    Status,
    StatusDetails,
    Terminated,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .objects import WatchEvent

T = TypeVar("T")

TYPE_META, RAW, CONTENT_ENCODING = 1, 2, 3
"""The numbers of the fields of a `runtime.Unknown`."""

METADATA, ITEMS = 1, 2
"""The numbers of the fields of a PodList."""

DELIMITED = 2
"""The wire type of fields that begin with their length."""

RUNNING = 2 << 3 | DELIMITED
"""The first byte of a ContainerState that only says since when the container runs, which is not read."""

RUNS = ContainerState()
"""What remains of such a state."""

MAX_BITS = 32
"""The maximum number of bits of a field's number and of its length."""

CACHED = 512
"""How many parts of pods of each kind are kept decoded."""

LONG = 16 << 10
"""The length in bytes from which on a pod empties these caches, so that a server cannot fill the memory."""


class MessageSplitter:
    """Decodes the pods of a PodList from its bytes, which arrive in arbitrary chunks.

    After an error it cannot be used again.
    """

    def __init__(self) -> None:
        self._tail = bytearray()  # what was not decoded yet
        self._has_begun = False
        self._kind = ""
        self._metadata = ListMeta()
        self._left: int | None = None  # the bytes of the list that were not decoded yet; None before it

    @property
    def pending(self) -> int:
        """The number of bytes that were not decoded yet."""
        return len(self._tail)

    def feed(self, data: bytes | memoryview) -> list[Pod]:
        """Return the pods that are complete with `data`.

        Raises:
            ValueError: it is not a PodList, or a pod is longer than MAX_EVENT.
        """
        tail = self._tail
        tail += data
        pods: list[Pod] = []
        position = 0
        if not self._has_begun:
            if not tail.startswith(PROTOBUF_MAGIC[: len(tail)]):
                raise ValueError(f"it does not begin with {PROTOBUF_MAGIC!r}")
            if len(tail) < len(PROTOBUF_MAGIC):
                return pods
            self._has_begun, position = True, len(PROTOBUF_MAGIC)
        with memoryview(tail) as view:
            while (field := _next_field(view, position)) is not None:
                number, start, end = field
                if number == RAW and not self._left:
                    self._begin_list(end - start)
                    position = start
                    continue
                if end - start > MAX_EVENT:
                    raise ValueError(f"a field of more than {MAX_EVENT >> 20} MiB, longer than any pod")
                if self._left and end - position > self._left:
                    raise ValueError("a pod is longer than the list")
                if end > len(view):
                    break
                content = bytes(view[start:end])
                if not self._left:
                    self._set_type(number, content)
                else:
                    self._left -= end - position
                    if number == ITEMS:
                        pods.append(decode_pod(content))
                    elif number == METADATA:
                        self._metadata = _list_meta(content)
                position = end
        del tail[:position]
        return pods

    def finish(self) -> PodList:
        """Return the list without the pods that were returned before.

        Raises:
            ValueError: it is not complete.
        """
        if self._tail or self._left != 0:
            raise ValueError("it is truncated")
        return PodList(metadata=self._metadata)

    def _begin_list(self, length: int) -> None:
        if self._kind != "PodList" or self._left is not None:
            raise ValueError(f"it contains {self._kind or 'an object without a kind'!r}, not one PodList")
        self._left = length

    def _set_type(self, number: int, content: bytes) -> None:
        if number == TYPE_META:
            self._kind = _parse(messages.TypeMeta.FromString, content).kind
        elif number == CONTENT_ENCODING and content:
            raise ValueError("its content is encoded")


def _next_field(view: memoryview, position: int) -> tuple[int, int, int] | None:
    """Return the number of the next field, and where its content begins and ends; None if bytes are missing.

    Raises:
        ValueError: it is not a field that begins with its length.
    """
    tag = _varint(view, position)
    if tag is None:
        return None
    if tag[0] & 7 != DELIMITED:
        raise ValueError(f"a field has the wire type {tag[0] & 7}, not {DELIMITED}")
    length = _varint(view, tag[1])
    return None if length is None else (tag[0] >> 3, length[1], length[1] + length[0])


def _varint(view: memoryview, position: int) -> tuple[int, int] | None:
    """Return the number at `position`, and the position after it; None if bytes are missing."""
    number = shift = 0
    while position < len(view):
        byte = view[position]
        position += 1
        if byte < 0x80:
            return number | byte << shift, position
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > MAX_BITS:
            raise ValueError("a number is too long")
    return None


class EventFrames:
    """Splits the bytes of a watch of pods, which arrive in arbitrary chunks, into events.

    After an error it cannot be used again: start a new watch.
    """

    _PREFIX = 4
    """Bytes of the length before each event."""

    def __init__(self) -> None:
        self._tail = bytearray()

    @property
    def at_boundary(self) -> bool:
        """Whether the last event has arrived whole."""
        return not self._tail

    def feed(self, data: bytes) -> list[WatchEvent[Pod]]:
        """Return the events that end in `data`, in order.

        Raises:
            ValueError: an event is longer than MAX_EVENT, or is invalid.
        """
        tail = self._tail
        tail += data
        events: list[WatchEvent[Pod]] = []
        position = 0
        with memoryview(tail) as view:  # a slice of `tail` would be one more copy of the event
            while len(view) >= (start := position + self._PREFIX):
                length = int.from_bytes(view[position:start], "big")
                if length > MAX_EVENT:
                    raise ValueError(f"an event of {length} bytes, longer than any event")
                if len(view) < start + length:
                    break
                position = start + length
                events.append(decode_event(bytes(view[start:position])))
        del tail[:position]
        return events


def decode_event(content: bytes) -> WatchEvent[Pod]:
    """Return one event of a watch, without the length before it.

    Raises:
        ValueError: it is not an event.
    """
    event = _parse(messages.WatchEvent.FromString, content)
    type_, (kind, raw) = event.type, _unwrap(event.object.raw)
    if kind != ("Status" if type_ == "ERROR" else "Pod"):
        raise ValueError(f"an event of type {type_!r} contains an object of kind {kind!r}")
    match type_:
        case "ADDED":
            return Added(decode_pod(raw))
        case "MODIFIED":
            return Modified(decode_pod(raw))
        case "DELETED":
            return Deleted(decode_pod(raw))
        case "BOOKMARK":
            metadata = _parse(messages.Pod.FromString, raw).metadata
            annotations = dict(map(_entry, metadata.annotations))
            return Bookmark(
                BookmarkObject(
                    BookmarkMeta(resource_version=metadata.resource_version, annotations=annotations)
                )
            )
        case "ERROR":
            return Failed(_status(raw))
    raise ValueError(f"{type_!r} is not a type of event")


def status_from_protobuf(body: bytes) -> Status:
    """Return the body of a failure as a Status; an empty one if it is something else."""
    try:
        kind, raw = _unwrap(body)
        return _status(raw) if kind == "Status" else Status()
    except ValueError:
        return Status()


def decode_pod(content: bytes) -> Pod:
    """Return a pod.

    Raises:
        ValueError: it is not one.
    """
    message = _parse(messages.Pod.FromString, content)
    metadata, spec, status = message.metadata, message.spec, message.status
    name = metadata.name
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"a pod has a name of {len(name)} characters")
    ip = status.pod_ip
    pod_ips = [PodIP(ip)] if ip else None
    init_containers = claims = init_statuses = claim_statuses = None
    if (
        spec.init_containers
        or spec.resource_claims
        or status.init_container_statuses
        or status.resource_claim_statuses
        or not _is_only(status.pod_ips, ip)
    ):
        rare = _parse(messages.RarePod.FromString, content)
        pod_ips = [PodIP(each.ip) for each in rare.status.pod_ips] or None
        init_containers = list(map(_container, rare.spec.init_containers)) or None
        claims = list(map(_claim, rare.spec.resource_claims)) or None
        init_statuses = list(map(_container_status, rare.status.init_container_statuses)) or None
        claim_statuses = list(map(_claim, rare.status.resource_claim_statuses)) or None
    # A slice of a repeated field is a list, which takes less time to read than the field.
    pod = Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            labels=dict(map(_entry, metadata.labels[:])),
            annotations=dict(map(_entry, metadata.annotations[:])),
            deletion_timestamp=_timestamp(metadata.deletion_timestamp),
            owner_references=list(map(_owner, metadata.owner_references[:])) or None,
        ),
        spec=PodSpec(
            containers=list(map(_container, spec.containers[:])) or None,
            init_containers=init_containers,
            resource_claims=claims,
            node_name=spec.node_name or None,
            hostname=spec.hostname or None,
            subdomain=spec.subdomain or None,
        ),
        status=PodStatus(
            phase=status.phase,
            reason=_text(status.reason),
            message=_text(status.message),
            pod_ip=ip or None,
            pod_ips=pod_ips,
            host_ip=status.host_ip or None,
            conditions=list(map(_condition, map(_condition_fields, status.conditions))) or None,
            container_statuses=list(map(_container_status, status.container_statuses[:])) or None,
            init_container_statuses=init_statuses,
            resource_claim_statuses=claim_statuses,
        ),
    )
    if len(content) >= LONG:
        for part in (_entry, _owner, _resources, _condition, _other_state):
            part.cache_clear()
    return pod


def _container(message: messages.Container) -> Container:
    return Container(resources=_resources(message.resources), restart_policy=message.restart_policy or None)


def _claim(message: messages.PodResourceClaim | messages.PodResourceClaimStatus) -> PodResourceClaim:
    return PodResourceClaim(name=message.name, resource_claim_name=message.resource_claim_name or None)


def _container_status(message: messages.ContainerStatus) -> ContainerStatus:
    return ContainerStatus(
        name=message.name,
        restart_count=message.restart_count,
        state=_state(message.state),
        last_state=_state(message.last_state),
    )


# Parts that are the same in many pods


@lru_cache(CACHED)
def _entry(content: bytes) -> tuple[str, str]:
    entry = _parse(messages.Entry.FromString, content)
    return entry.key, _text(entry.value) or ""


@lru_cache(CACHED)
def _owner(content: bytes) -> OwnerReference:
    owner = _parse(messages.OwnerReference.FromString, content)
    return OwnerReference(
        api_version=owner.api_version,
        kind=owner.kind,
        name=owner.name,
        controller=owner.controller if owner.HasField("controller") else None,
    )


@lru_cache(CACHED)
def _resources(content: bytes) -> Resources:
    limits = _parse(messages.ResourceRequirements.FromString, content).limits
    return Resources({name: quantity.string for name, quantity in limits.items()} or None)


# The bytes of a condition would not be found in a cache: they have its times, which differ from pod to pod.
_condition_fields = attrgetter("type", "status", "reason", "message")


@lru_cache(CACHED)
def _condition(fields: tuple[str, str, bytes, bytes]) -> Condition:
    type_, status, reason, message = fields
    return Condition(type=type_, status=status, reason=_text(reason), message=_text(message))


def _state(content: bytes) -> ContainerState:
    # Nor would most of these: nearly all containers run, each since another time.
    is_running = 2 <= len(content) < 2 + 0x80 and content[0] == RUNNING and content[1] == len(content) - 2
    return RUNS if is_running else _other_state(content)


@lru_cache(CACHED)
def _other_state(content: bytes) -> ContainerState:
    state = _parse(messages.ContainerState.FromString, content)
    waiting = terminated = None
    if state.HasField("waiting"):
        waiting = Waiting(reason=_text(state.waiting.reason), message=_text(state.waiting.message))
    if state.HasField("terminated"):
        ended = state.terminated
        terminated = Terminated(
            exit_code=ended.exit_code, reason=_text(ended.reason), message=_text(ended.message)
        )
    return ContainerState(waiting=waiting, terminated=terminated)


# Small parts


def _unwrap(content: bytes) -> tuple[str, bytes]:
    """Return the kind and the bytes of an object."""
    if not content.startswith(PROTOBUF_MAGIC):
        raise ValueError(f"an object does not begin with {PROTOBUF_MAGIC!r}")
    unknown = _parse(messages.Unknown.FromString, content[len(PROTOBUF_MAGIC) :])
    if unknown.content_encoding:
        raise ValueError("the content of an object is encoded")
    return unknown.type_meta.kind, unknown.raw


def _status(content: bytes) -> Status:
    status = _parse(messages.Status.FromString, content)
    details = None
    if status.HasField("details"):
        seconds = status.details.retry_after_seconds
        details = StatusDetails(msgspec.Raw(b"%d" % seconds)) if seconds else StatusDetails()
    return Status(_text(status.message) or "", status.reason or None, status.code or None, details)


def _list_meta(content: bytes) -> ListMeta:
    metadata = _parse(messages.ListMeta.FromString, content)
    return ListMeta(resource_version=metadata.resource_version, continue_=metadata.continue_token)


def _timestamp(content: bytes) -> str | None:
    """Return a time as it is in JSON, without fractions of seconds; None if it is not set."""
    if not content:  # or the zero time of Go, which is null in JSON
        return None
    seconds = _parse(messages.Time.FromString, content).seconds
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"a time is out of range: {error}") from error
    return at.isoformat().replace("+00:00", "Z")


def _is_only(content: bytes, ip: str) -> bool:
    """Whether a list, of which `content` is the last PodIP, has `ip` only, which comes first in it."""
    if not ip or not content:
        return not ip and not content
    encoded = ip.encode()
    return content[2:] == encoded and content[:2] == b"\n%c" % min(len(encoded), 0x7F)


def _text(content: bytes) -> str | None:
    """Return free text as the API server writes it in JSON; None if it is empty."""
    return content.decode("utf-8", "replace") if content else None


def _parse(parse: Callable[[bytes], T], content: bytes) -> T:
    """Return a parsed message.

    Raises:
        ValueError: it is not one.
    """
    try:
        return parse(content)
    except DecodeError as error:
        raise ValueError(str(error)) from error
