"""Pods, lists, events of watches and failures in protobuf, field by field as the API server writes them.

The numbers of the fields are those of Kubernetes' generated.proto files (k8s.io/api/core/v1, and
apis/meta/v1 and runtime of k8s.io/apimachinery). As in the API server, fields that are not pointers in Go are
written even if they are empty. Fields of a pod that are not in the tables below, such as volumes and probes,
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from .statuses import compact_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROTOBUF = "application/vnd.kubernetes.protobuf"
"""The media type."""

MAGIC = b"k8s\0"
"""The first bytes of a body: a `runtime.Unknown` follows, which has the type and the bytes of the object."""

Encoder: TypeAlias = Callable[[int, Any], bytes]
"""Returns the field of a number with a value of JSON."""

Field: TypeAlias = tuple[int, str, Encoder, Any]
"""Number, name in JSON, encoder, and the value to write if the object has none (None: nothing is written)."""


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # negative numbers are in two's complement
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _delimited(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _text(number: int, value: str) -> bytes:
    return _delimited(number, value.encode())


def _texts(number: int, values: Iterable[str]) -> bytes:
    return b"".join(_text(number, value) for value in values)


def _time(number: int, value: str) -> bytes:
    if not value:
        return _delimited(number, b"")
    return _delimited(number, _number(1, int(datetime.fromisoformat(value).timestamp())) + _number(2, 0))


def _raw_json(number: int, value: Any) -> bytes:
    return _delimited(number, _delimited(1, compact_json(value)))


def _entries(number: int, value: Mapping[str, str]) -> bytes:
    return b"".join(_delimited(number, _text(1, key) + _text(2, value[key])) for key in sorted(value))


def _quantities(number: int, value: Mapping[str, str]) -> bytes:
    return b"".join(
        _delimited(number, _text(1, key) + _delimited(2, _text(1, str(value[key])))) for key in sorted(value)
    )


def _message(fields: tuple[Field, ...], number: int, value: Mapping[str, Any]) -> bytes:
    return _delimited(number, _content(fields, value))


def _messages(fields: tuple[Field, ...], number: int, values: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(_delimited(number, _content(fields, value)) for value in values)


def _content(fields: tuple[Field, ...], value: Mapping[str, Any]) -> bytes:
    parts = []
    for number, name, encode, default in fields:
        found = value.get(name)
        if found is None:
            found = default
        if found is not None:
            parts.append(encode(number, found))
    return b"".join(parts)


_TEXT: tuple[Encoder, str] = _text, ""
_NUMBER: tuple[Encoder, int] = _number, 0
_TIME: tuple[Encoder, str] = _time, ""
# Pointers in Go:
_TEXT_IF_SET = _text, None
_NUMBER_IF_SET = _number, None
_TIME_IF_SET = _time, None


def _one(*fields: Field) -> tuple[Encoder, Any]:
    return partial(_message, fields), {}


def _one_if_set(*fields: Field) -> tuple[Encoder, Any]:
    return partial(_message, fields), None


def _several(*fields: Field) -> tuple[Encoder, Any]:
    return partial(_messages, fields), None


_LIST_META: tuple[Field, ...] = (
    (1, "selfLink", *_TEXT),
    (2, "resourceVersion", *_TEXT),
    (3, "continue", *_TEXT),
    (4, "remainingItemCount", *_NUMBER_IF_SET),
)
_OBJECT_META: tuple[Field, ...] = (
    (1, "name", *_TEXT),
    (2, "generateName", *_TEXT),
    (3, "namespace", *_TEXT),
    (4, "selfLink", *_TEXT),
    (5, "uid", *_TEXT),
    (6, "resourceVersion", *_TEXT),
    (7, "generation", *_NUMBER),
    (8, "creationTimestamp", *_TIME),
    (9, "deletionTimestamp", *_TIME_IF_SET),
    (10, "deletionGracePeriodSeconds", *_NUMBER_IF_SET),
    (11, "labels", _entries, None),
    (12, "annotations", _entries, None),
    (
        13,
        "ownerReferences",
        *_several(
            (1, "kind", *_TEXT),
            (3, "name", *_TEXT),
            (4, "uid", *_TEXT),
            (5, "apiVersion", *_TEXT),
            (6, "controller", *_NUMBER_IF_SET),
            (7, "blockOwnerDeletion", *_NUMBER_IF_SET),
        ),
    ),
    (14, "finalizers", _texts, None),
    (
        17,
        "managedFields",
        *_several(
            (1, "manager", *_TEXT),
            (2, "operation", *_TEXT),
            (3, "apiVersion", *_TEXT),
            (4, "time", *_TIME_IF_SET),
            (6, "fieldsType", *_TEXT),
            (7, "fieldsV1", _raw_json, None),
            (8, "subresource", *_TEXT),
        ),
    ),
)
_CONTAINER: tuple[Field, ...] = (
    (1, "name", *_TEXT),
    (2, "image", *_TEXT),
    (3, "command", _texts, None),
    (4, "args", _texts, None),
    (5, "workingDir", *_TEXT),
    (7, "env", *_several((1, "name", *_TEXT), (2, "value", *_TEXT))),
    (
        8,
        "resources",
        *_one(
            (1, "limits", _quantities, None),
            (2, "requests", _quantities, None),
            (3, "claims", *_several((1, "name", *_TEXT), (2, "request", *_TEXT))),
        ),
    ),
    (13, "terminationMessagePath", *_TEXT),
    (14, "imagePullPolicy", *_TEXT),
    (16, "stdin", *_NUMBER),
    (17, "stdinOnce", *_NUMBER),
    (18, "tty", *_NUMBER),
    (20, "terminationMessagePolicy", *_TEXT),
    (24, "restartPolicy", *_TEXT_IF_SET),
)
_POD_SPEC: tuple[Field, ...] = (
    (2, "containers", *_several(*_CONTAINER)),
    (3, "restartPolicy", *_TEXT),
    (4, "terminationGracePeriodSeconds", *_NUMBER_IF_SET),
    (5, "activeDeadlineSeconds", *_NUMBER_IF_SET),
    (6, "dnsPolicy", *_TEXT),
    (7, "nodeSelector", _entries, None),
    (8, "serviceAccountName", *_TEXT),
    (9, "serviceAccount", *_TEXT),
    (10, "nodeName", *_TEXT),
    (11, "hostNetwork", *_NUMBER),
    (12, "hostPID", *_NUMBER),
    (13, "hostIPC", *_NUMBER),
    (14, "securityContext", *_one_if_set()),
    (16, "hostname", *_TEXT),
    (17, "subdomain", *_TEXT),
    (19, "schedulerName", *_TEXT),
    (20, "initContainers", *_several(*_CONTAINER)),
    (
        22,
        "tolerations",
        *_several(
            (1, "key", *_TEXT),
            (2, "operator", *_TEXT),
            (3, "value", *_TEXT),
            (4, "effect", *_TEXT),
            (5, "tolerationSeconds", *_NUMBER_IF_SET),
        ),
    ),
    (24, "priorityClassName", *_TEXT),
    (25, "priority", *_NUMBER_IF_SET),
    (30, "enableServiceLinks", *_NUMBER_IF_SET),
    (31, "preemptionPolicy", *_TEXT_IF_SET),
    (38, "schedulingGates", *_several((1, "name", *_TEXT))),
    (
        39,
        "resourceClaims",
        *_several(
            (1, "name", *_TEXT),
            (3, "resourceClaimName", *_TEXT_IF_SET),
            (4, "resourceClaimTemplateName", *_TEXT_IF_SET),
        ),
    ),
)
_CONTAINER_STATE: tuple[Field, ...] = (
    (1, "waiting", *_one_if_set((1, "reason", *_TEXT), (2, "message", *_TEXT))),
    (2, "running", *_one_if_set((1, "startedAt", *_TIME))),
    (
        3,
        "terminated",
        *_one_if_set(
            (1, "exitCode", *_NUMBER),
            (2, "signal", *_NUMBER),
            (3, "reason", *_TEXT),
            (4, "message", *_TEXT),
            (5, "startedAt", *_TIME),
            (6, "finishedAt", *_TIME),
            (7, "containerID", *_TEXT),
        ),
    ),
)
_CONTAINER_STATUS: tuple[Field, ...] = (
    (1, "name", *_TEXT),
    (2, "state", *_one(*_CONTAINER_STATE)),
    (3, "lastState", *_one(*_CONTAINER_STATE)),
    (4, "ready", *_NUMBER),
    (5, "restartCount", *_NUMBER),
    (6, "image", *_TEXT),
    (7, "imageID", *_TEXT),
    (8, "containerID", *_TEXT),
    (9, "started", *_NUMBER_IF_SET),
)
_POD_STATUS: tuple[Field, ...] = (
    (1, "phase", *_TEXT),
    (
        2,
        "conditions",
        *_several(
            (1, "type", *_TEXT),
            (2, "status", *_TEXT),
            (3, "lastProbeTime", *_TIME),
            (4, "lastTransitionTime", *_TIME),
            (5, "reason", *_TEXT),
            (6, "message", *_TEXT),
            (7, "observedGeneration", *_NUMBER),
        ),
    ),
    (3, "message", *_TEXT),
    (4, "reason", *_TEXT),
    (5, "hostIP", *_TEXT),
    (6, "podIP", *_TEXT),
    (7, "startTime", *_TIME_IF_SET),
    (8, "containerStatuses", *_several(*_CONTAINER_STATUS)),
    (9, "qosClass", *_TEXT),
    (10, "initContainerStatuses", *_several(*_CONTAINER_STATUS)),
    (11, "nominatedNodeName", *_TEXT),
    (12, "podIPs", *_several((1, "ip", *_TEXT))),
    (14, "resize", *_TEXT),
    (
        15,
        "resourceClaimStatuses",
        *_several((1, "name", *_TEXT), (2, "resourceClaimName", *_TEXT_IF_SET)),
    ),
    (16, "hostIPs", *_several((1, "ip", *_TEXT))),
    (17, "observedGeneration", *_NUMBER),
)
_POD: tuple[Field, ...] = (
    (1, "metadata", *_one(*_OBJECT_META)),
    (2, "spec", *_one(*_POD_SPEC)),
    (3, "status", *_one(*_POD_STATUS)),
)
_CAUSE: tuple[Field, ...] = ((1, "reason", *_TEXT), (2, "message", *_TEXT), (3, "field", *_TEXT))
_STATUS: tuple[Field, ...] = (
    (1, "metadata", *_one(*_LIST_META)),
    (2, "status", *_TEXT),
    (3, "message", *_TEXT),
    (4, "reason", *_TEXT),
    (
        5,
        "details",
        *_one_if_set(
            (1, "name", *_TEXT),
            (2, "group", *_TEXT),
            (3, "kind", *_TEXT),
            (4, "causes", *_several(*_CAUSE)),
            (5, "retryAfterSeconds", *_NUMBER),
            (6, "uid", *_TEXT),
        ),
    ),
    (6, "code", *_NUMBER),
)


def encode_pod(pod: Mapping[str, Any]) -> bytes:
    """Return a pod as the content of a message, without the envelope of a body."""
    return _content(_POD, pod)


def encode_pod_list(metadata: Mapping[str, Any], pods: Iterable[bytes]) -> bytes:
    """Return the body of a PodList; `pods` are as from `encode_pod`."""
    items = (_delimited(2, pod) for pod in pods)
    return envelope("PodList", b"".join((_message(_LIST_META, 1, metadata), *items)))


def encode_status(status: Mapping[str, Any]) -> bytes:
    """Return the body of a failure."""
    return envelope("Status", _content(_STATUS, status))


def encode_event(type_: str, object_: bytes) -> bytes:
    """Return an event of a watch, with its length before it; `object_` is as from `envelope`."""
    event = _text(1, type_) + _delimited(2, _delimited(1, object_))
    return len(event).to_bytes(4, "big") + event


def envelope(kind: str, content: bytes) -> bytes:
    """Return the body for an object of `v1`."""
    type_meta = _text(1, "v1") + _text(2, kind)
    return b"".join((MAGIC, _delimited(1, type_meta), _delimited(2, content), _text(3, ""), _text(4, "")))
