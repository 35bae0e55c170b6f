"""The objects of the Kubernetes API that are used, decoded from JSON into the few fields that are read.

Formats: Pod, PodList and Status of `v1`, Table and WatchEvent of `meta.k8s.io/v1`, as Kubernetes 1.36 writes
them. Only this module imports msgspec.

Three more things belong to these objects: `PodQuery`, the request for pods; `EventLines`, which splits the
bytes of a watch into events; and the comparison of resourceVersions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class PodQuery:
    """A request for pods.

    Attributes:
        selector: a label selector in the grammar of the API; empty for any labels.
        namespace: the namespace to search; None for all namespaces.
        name: the name of the pods; None for any name.
        ip: the first IP address of the pods; None for any address.
        is_running: whether their phase is Running, or is not; None for any phase.
        version: the resourceVersion as of which to list them; empty for the most recent one.
        limit: the maximum number of pods in one page; None for all pods in one response.
        continue_: the token of the page to continue from.
    """

    selector: str
    namespace: str | None = None
    name: str | None = None
    ip: str | None = None
    is_running: bool | None = None
    version: str = ""
    limit: int | None = None
    continue_: str = ""

    @property
    def path(self) -> str:
        """The path of the URL."""
        return "/api/v1/pods" if self.namespace is None else f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def parameters(self) -> dict[str, str]:
        """The query of the URL."""
        parameters = {"labelSelector": self.selector}
        fields = [] if self.name is None else [f"metadata.name={self.name}"]
        if self.ip is not None:
            fields.append(f"status.podIP={self.ip}")
        if self.is_running is not None:
            fields.append("status.phase=Running" if self.is_running else "status.phase!=Running")
        if fields:
            parameters["fieldSelector"] = ",".join(fields)
        if self.version and not self.continue_:  # a token contains the version of its list
            parameters |= {"resourceVersion": self.version, "resourceVersionMatch": "Exact"}
        if self.limit is not None:
            parameters["limit"] = str(self.limit)
        if self.continue_:
            parameters["continue"] = self.continue_
        return parameters

    @property
    def where(self) -> str:
        """The namespaces as text for messages."""
        return "all namespaces" if self.namespace is None else f"namespace {self.namespace!r}"

    @property
    def scope(self) -> str:
        """The request as text for messages."""
        prefix = "" if self.name is None else f"pod {self.name!r} of "
        if self.ip is not None:
            prefix = f"pod with IP address {self.ip} of "
        suffix = ", phase other than Running" if self.is_running is False else ""
        selected = f"selector {self.selector!r} in " if self.selector else ""
        return f"{prefix}{selected}{self.where}{suffix}"

    def named(self, name: str) -> PodQuery:
        """Return the request for the pods of one name."""
        return replace(self, name=name)

    def in_phase_running(self, is_running: bool) -> PodQuery:
        """Return the request for the pods whose phase is Running, or for all others."""
        return replace(self, is_running=is_running)

    def at(self, version: str) -> PodQuery:
        """Return the request for the pods as they were at this resourceVersion."""
        return replace(self, version=version)

    def page(self, limit: int, continue_: str) -> PodQuery:
        """Return the request for one page."""
        return replace(self, limit=limit, continue_=continue_)


MAX_NAME = 253
"""The maximum length of the name of a pod, in characters: a DNS subdomain, RFC 1123."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A frozen value that the garbage collector does not track, because it is never part of a cycle."""


class _Struct(Record, frozen=True, rename="camel"):
    pass


class OwnerReference(_Struct, kw_only=True, frozen=True):
    """One entry of `metadata.ownerReferences`."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ObjectMeta(_Struct, kw_only=True, frozen=True):
    """The fields of `metadata` that are read."""

    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


class PodSpec(_Struct, kw_only=True, frozen=True):
    """The fields of `spec` that are read."""

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
    """The fields of a container's `state` or `lastState` that are read."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Struct, kw_only=True, frozen=True):
    """One entry of `status.containerStatuses` or `status.initContainerStatuses`."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodStatus(_Struct, kw_only=True, frozen=True):
    """The fields of `status` that are read."""

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
    """A pod with the fields that aioresolve reads, under the API's names in snake case.

    A callable that is passed as `address=` gets one of these.
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
        for condition in self.status.conditions or ():
            if condition.type == "Ready" and condition.status == "True":
                return True
        return False


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
    """One row of a Table. Most cells are strings; some columns have numbers."""

    cells: list[Any]


class Table(_Struct, kw_only=True, tag_field="kind", tag="Table", frozen=True):
    """Pods as rows, the way `kubectl get pods -o wide` prints them."""

    metadata: ListMeta = ListMeta()
    column_definitions: list[Column] | None = None
    rows: list[TableRow] | None = None


class StatusDetails(_Struct, frozen=True):
    """The fields of a Status's `details` that are read."""

    # Not decoded with the Status: a number that is out of range would make the whole Status invalid.
    retry_after_seconds: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def retry_after(self) -> float | None:
        """The seconds to wait before the next attempt, if the server requests a wait."""
        try:
            return float(bytes(self.retry_after_seconds))
        except ValueError:
            return None


class Status(_Struct, frozen=True):
    """The body of a failure response."""

    message: str = ""
    reason: str | None = None
    code: int | None = None
    details: StatusDetails | None = None


class _Event(_Struct, tag_field="type", frozen=True):
    pass


class Added(_Event, tag="ADDED", frozen=True):
    """A pod now matches: it was created, or its labels changed."""

    object: Pod


class Modified(_Event, tag="MODIFIED", frozen=True):
    """A pod that already matched has changed."""

    object: Pod


class Deleted(_Event, tag="DELETED", frozen=True):
    """A pod no longer matches: it was deleted, or its labels changed.

    The object is the pod before the change, with the resourceVersion of the change.
    """

    object: Pod


class BookmarkObject(_Struct, frozen=True):
    """The object of a bookmark; only its resourceVersion has a meaning."""

    metadata: ListMeta = ListMeta()


class Bookmark(_Event, tag="BOOKMARK", frozen=True):
    """Every change up to this resourceVersion has been reported."""

    object: BookmarkObject


class Failed(_Event, tag="ERROR", frozen=True):
    """The watch cannot continue. Code 410 means that its resourceVersion is too old: list again."""

    object: Status


WatchEvent: TypeAlias = Added | Modified | Deleted | Bookmark | Failed

_list_decoder = msgspec.json.Decoder(Table | PodList)
_event_decoder = msgspec.json.Decoder(WatchEvent)
_status_decoder = msgspec.json.Decoder(Status)


def decode_list(body: bytes | bytearray) -> Table | PodList:
    """Return `body` as a Table or a PodList.

    Raises:
        ValueError: it is neither; the message says where it differs.
    """
    try:
        pods: Table | PodList = _list_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return pods


def redact_status(status: Status, redact: Callable[[str], str]) -> Status:
    """Return `status` with `redact` applied to its texts."""
    reason = None if status.reason is None else redact(status.reason)
    return msgspec.structs.replace(status, message=redact(status.message), reason=reason)


def decode_event(line: bytes | bytearray) -> WatchEvent:
    """Return one line of a watch as an event.

    Raises:
        ValueError: it is not an event; the message says where it differs.
    """
    try:
        event: WatchEvent = _event_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return event


def decode_status(body: bytes | bytearray) -> Status:
    """Return `body` as a Status; an empty one if it is something else, such as the error page of a proxy."""
    try:
        status: Status = _status_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Status()
    return status


MAX_EVENT = 8 << 20
"""The maximum length of a line, in bytes. etcd limits objects to 1.5 MiB; their JSON may be longer."""


class EventLines:
    """Splits the bytes of a watch, which arrive in arbitrary chunks, into events.

    After an error it cannot be used again: start a new watch.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the incomplete line at the end
        self._length = 0

    @property
    def at_boundary(self) -> bool:
        """Whether there is no incomplete line."""
        return not self._length

    def feed(self, data: bytes) -> list[WatchEvent]:
        """Return the events of the lines that end in `data`, in order. Empty lines are ignored.

        Raises:
            ValueError: a line is longer than MAX_EVENT, or is not an event; the message says where it
                differs.
        """
        first, *others = data.split(b"\n")
        self._add(first)
        if not others:
            return []
        *complete, rest = others
        lines = [b"".join(self._pieces), *complete]
        self._pieces, self._length = [], 0
        self._add(rest)
        events = []
        for line in lines:
            if line and not line.isspace():
                _check_length(len(line))
                events.append(decode_event(line))
        return events

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._length += len(piece)
        _check_length(self._length)
        self._pieces.append(piece)


def _check_length(length: int) -> None:
    if length > MAX_EVENT:
        raise ValueError(f"a line of more than {MAX_EVENT >> 20} MiB, longer than any event")


# resourceVersions of one resource type compare as whole numbers (KEP-5504, "Comparable Resource Version").
# Those of a server that does not use numbers do not compare.

MAX_DIGITS = 40
"""More digits than a version of 128 bits has."""


def version_number(version: str) -> int | None:
    """Return a resourceVersion as a number; None if it is not one."""
    if version.isascii() and version.isdigit() and len(version) <= MAX_DIGITS:
        return int(version)
    return None


def is_newer(number: int | None, than: int | None) -> bool:
    """Whether one version is newer than a previous one, or does not compare with it: the later one counts."""
    return number is None or than is None or number > than


def is_older(number: int | None, than: int | None) -> bool:
    """Whether one version is known to be older than another."""
    return number is not None and than is not None and number < than


def oldest_version(versions: Iterable[str]) -> str | None:
    """Return the oldest resourceVersion of several lists, None if they do not compare.

    A state that is made of these lists is at least as new as that.
    """
    numbers = {version: version_number(version) for version in versions}
    if len(numbers) == 1:
        return next(iter(numbers)) or None
    known = {version: number for version, number in numbers.items() if number is not None}
    return min(known, key=known.__getitem__) if known and len(known) == len(numbers) else None
