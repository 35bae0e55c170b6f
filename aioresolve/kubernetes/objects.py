"""What an API server says, as JSON, decoded into the few fields that are read. The room of msgspec.

Formats: Pod, PodList and Status of `v1`, Table and WatchEvent of `meta.k8s.io/v1`, as Kubernetes 1.36 writes
them.

The lines of a watch: bytes as they come, cut anywhere -> events.

resourceVersions: which of two is newer, which of several is the oldest.

Those of one resource type compare as whole numbers (KEP-5504, "Comparable Resource Version"). A server whose
versions are no numbers has versions that compare with none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MAX_EVENT",
    "Added",
    "Bookmark",
    "Deleted",
    "EventLines",
    "Failed",
    "Modified",
    "Pod",
    "PodList",
    "Record",
    "Status",
    "Table",
    "WatchEvent",
    "decode_answer",
    "decode_event",
    "decode_status",
    "is_newer",
    "is_older",
    "oldest_version",
    "version_number",
    "with_message",
]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A frozen value that the garbage collector passes over: thousands live at once, none refers back."""


class _Struct(Record, frozen=True, rename="camel"):
    pass


class OwnerReference(_Struct, kw_only=True, frozen=True):
    """One entry of `metadata.ownerReferences`."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ObjectMeta(_Struct, kw_only=True, frozen=True):
    """The part of `metadata` that is read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


class PodSpec(_Struct, kw_only=True, frozen=True):
    """The part of `spec` that is read."""

    node_name: str | None = None
    hostname: str | None = None
    subdomain: str | None = None


class PodIP(_Struct, frozen=True):
    """One entry of `status.podIPs`."""

    ip: str = ""


class Condition(_Struct, kw_only=True, frozen=True):
    """One entry of `status.conditions`."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class Waiting(_Struct, kw_only=True, frozen=True):
    """Why a container waits."""

    reason: str | None = None
    message: str | None = None


class Terminated(_Struct, kw_only=True, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str | None = None
    message: str | None = None


class ContainerState(_Struct, kw_only=True, frozen=True):
    """The part of a container's `state` or `lastState` that is read."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Struct, kw_only=True, frozen=True):
    """One entry of `status.containerStatuses` or `status.initContainerStatuses`."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodStatus(_Struct, kw_only=True, frozen=True):
    """The part of `status` that is read."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: list[PodIP] | None = msgspec.field(default=None, name="podIPs")
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(_Struct, kw_only=True, frozen=True):
    """A pod, in the API's own words (snake case), with the fields aioresolve reads.

    An `address=` callable is given one of these.
    """

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ready(self) -> bool:
        """Whether the pod's `Ready` condition is true."""
        return any(
            condition.type == "Ready" and condition.status == "True"
            for condition in self.status.conditions or ()
        )


class ListMeta(_Struct, kw_only=True, frozen=True):
    """The `metadata` of a list or a Table."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class PodList(_Struct, kw_only=True, tag_field="kind", tag="PodList", frozen=True):
    """One page of pods."""

    metadata: ListMeta = ListMeta()
    items: list[Pod] | None = None


class Column(_Struct, frozen=True):
    """One entry of `columnDefinitions`."""

    name: str


class TableRow(_Struct, frozen=True):
    """One row of a Table; its cells are strings but for the odd number."""

    cells: list[Any]


class Table(_Struct, kw_only=True, tag_field="kind", tag="Table", frozen=True):
    """Pods as the rows that `kubectl get pods -o wide` prints."""

    metadata: ListMeta = ListMeta()
    column_definitions: list[Column] | None = None
    rows: list[TableRow] | None = None


class StatusDetails(_Struct, frozen=True):
    """The part of a Status's `details` that is read."""

    retry_after_seconds: float | None = None


class Status(_Struct, frozen=True):
    """What the API server fails with."""

    message: str = ""
    reason: str | None = None
    code: int | None = None
    details: StatusDetails | None = None


class _Event(_Struct, tag_field="type", frozen=True):
    pass


class Added(_Event, tag="ADDED", frozen=True):
    """A pod came to match: it was created, or its labels were changed."""

    object: Pod


class Modified(_Event, tag="MODIFIED", frozen=True):
    """A pod that matched before changed."""

    object: Pod


class Deleted(_Event, tag="DELETED", frozen=True):
    """A pod matches no longer: it was deleted, or its labels were changed.

    The object is the pod as it was before, with the resourceVersion of the change.
    """

    object: Pod


class Marked(_Struct, frozen=True):
    """The object of a bookmark, of which its `metadata` alone means anything."""

    metadata: ListMeta = ListMeta()


class Bookmark(_Event, tag="BOOKMARK", frozen=True):
    """Everything up to this resourceVersion has been told."""

    object: Marked


class Failed(_Event, tag="ERROR", frozen=True):
    """The watch cannot go on; with code 410 its resourceVersion is too old, and only a new list helps."""

    object: Status


WatchEvent: TypeAlias = Added | Modified | Deleted | Bookmark | Failed

_answers = msgspec.json.Decoder(Table | PodList)
_events = msgspec.json.Decoder(WatchEvent)
_statuses = msgspec.json.Decoder(Status)


def decode_answer(body: bytes | bytearray) -> Table | PodList:
    """Return the Table or PodList that `body` holds.

    Raises:
        ValueError: it holds neither; the message says where it differs.
    """
    try:
        answer: Table | PodList = _answers.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return answer


def with_message(status: Status, message: str) -> Status:
    """Return `status` with another message."""
    return msgspec.structs.replace(status, message=message)


def decode_event(line: bytes | bytearray) -> WatchEvent:
    """Return the event that one line of a watch holds.

    Raises:
        ValueError: it holds none; the message says where it differs.
    """
    try:
        event: WatchEvent = _events.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return event


def decode_status(body: bytes | bytearray) -> Status:
    """Return the Status that `body` holds; an empty one where it holds none, but a proxy's page, say."""
    try:
        status: Status = _statuses.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Status()
    return status


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


MAX_DIGITS = 40
"""More digits than a version of 128 bits has."""


def version_number(version: str) -> int | None:
    """Return what a resourceVersion counts; None where it is no number."""
    if version.isascii() and version.isdigit() and len(version) <= MAX_DIGITS:
        return int(version)
    return None


def is_newer(number: int | None, than: int | None) -> bool:
    """Whether one version is newer than another; of two that do not compare, the one that came last is."""
    return number is None or than is None or number > than


def is_older(number: int | None, than: int | None) -> bool:
    """Whether one version is known to be older than another."""
    return number is not None and than is not None and number < than


def oldest_version(versions: Iterable[str]) -> str | None:
    """Return the resourceVersion that a state made of several lists is at least as new as, if any."""
    numbers = {version: version_number(version) for version in versions}
    if len(numbers) == 1:
        return next(iter(numbers)) or None
    known = {version: number for version, number in numbers.items() if number is not None}
    return min(known, key=known.__getitem__) if known and len(known) == len(numbers) else None
