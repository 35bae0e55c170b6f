"""The objects of the Kubernetes API, decoded from JSON into the few fields that are read.

Formats: Pod, PodList and Status of `v1`, Table and WatchEvent of `meta.k8s.io/v1`, as Kubernetes 1.36 writes
them. `queries` has the requests for them, and `endpoint_slices` the EndpointSlices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

MAX_NAME = 253
"""The maximum length of the name of a pod, in characters: a DNS subdomain, RFC 1123."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A frozen value that the garbage collector does not track, because it is never part of a cycle."""


class Struct(Record, frozen=True, rename="camel"):
    """A part of an object, with names in camel case in JSON."""


class OwnerReference(Struct, kw_only=True, frozen=True):
    """One entry of `metadata.ownerReferences`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Struct, kw_only=True, frozen=True):
    """The fields of `metadata` that are read."""

    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class Resources(Struct, frozen=True):
    """The `resources` of a container; a quantity is a string such as `4`."""

    limits: dict[str, Any] | None = None


class Container(Struct, kw_only=True, frozen=True):
    """One entry of `spec.containers` or `spec.initContainers`."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class PodResourceClaim(Struct, kw_only=True, frozen=True):
    """One entry of `spec.resourceClaims` or `status.resourceClaimStatuses`."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(Struct, kw_only=True, frozen=True):
    """The fields of `spec` that are read."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    node_name: str | None = None
    hostname: str | None = None
    subdomain: str | None = None


class PodIP(Struct, frozen=True):
    """One entry of `status.podIPs`."""

    ip: str = ""


class Condition(Struct, kw_only=True, frozen=True):
    """One entry of `status.conditions`."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class Waiting(Struct, kw_only=True, frozen=True):
    """Why a container waits."""

    reason: str | None = None
    message: str | None = None


class Terminated(Struct, kw_only=True, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str | None = None
    message: str | None = None


class ContainerState(Struct, kw_only=True, frozen=True):
    """The fields of a container's `state` or `lastState` that are read."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, kw_only=True, frozen=True):
    """One entry of `status.containerStatuses` or `status.initContainerStatuses`."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodStatus(Struct, kw_only=True, frozen=True):
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
    resource_claim_statuses: list[PodResourceClaim] | None = None


class Pod(Struct, kw_only=True, frozen=True):
    """A pod with the fields that aioresolve reads, under the API's names in snake case.

    A callable that is passed as `address=` gets one of these:

    >>> jobs, address = {"worker": ["job-name=train"]}, lambda pod: f"{pod.metadata.name}.train"
    >>> await KubernetesClusterResolver(jobs, namespace="ml", address=address).cluster_spec()
    ClusterSpec({'worker': ['train-0.train:8470', 'train-1.train:8470']})
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


class ListMeta(Struct, kw_only=True, frozen=True):
    """The `metadata` of a list or a Table."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectList(Struct, Generic[T], kw_only=True, frozen=True):
    """One page of a list."""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class PartialObject(Struct, frozen=True):
    """An object of which only the metadata are read."""

    metadata: ObjectMeta


class Column(Struct, frozen=True):
    """One entry of `columnDefinitions`."""

    name: str


class TableRow(Struct, frozen=True):
    """One row of a Table. Most cells are strings; some columns have numbers."""

    cells: list[Any]


class Table(Struct, kw_only=True, frozen=True):
    """Pods as rows, the way `kubectl get pods -o wide` prints them. The response may be of another kind."""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    column_definitions: list[Column] | None = None
    rows: list[TableRow] | None = None

    @property
    def headers(self) -> list[str]:
        """The name of each column."""
        return [column.name for column in self.column_definitions or ()]

    def column(self, name: str) -> list[Any]:
        """Return the cells of a column."""
        position = self.headers.index(name)
        return [row.cells[position] for row in self.rows or ()]


NO_VALUE = "<none>"
"""The content of a Table cell if the pod has no such value."""


class Rows(NamedTuple):
    """The pods of a Table.

    Attributes:
        table: the Table.
        names: the name of each pod.
        ips: its IP; `<none>` if it has none yet.
        proofs: whether its row proves that it is a member.
    """

    table: Table
    names: list[str]
    ips: list[str]
    proofs: list[bool]

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Return the rows of `table`. Columns are found by name, because their positions are not an API.

        Raises:
            ValueError: a column is missing, or a row is too short, has a cell that is not a string, or has a
                name that is too long.
        """
        if not {"Name", "Status", "IP"} <= set(table.headers):
            raise ValueError(f"the Table has no column Name, Status or IP, only {table.headers}")
        if {len(row.cells) for row in table.rows or ()} - {len(table.headers)}:
            raise ValueError(f"a row does not have one cell for each of the {len(table.headers)} columns")
        names, statuses, ips = map(table.column, ("Name", "Status", "IP"))
        if any(set(map(type, column)) - {str} for column in (names, statuses, ips)):
            raise ValueError("the Name, Status and IP of a row are not all strings")
        if max(map(len, names), default=0) > MAX_NAME:
            raise ValueError(f"a name is longer than {MAX_NAME} characters")
        # The server writes `Running` only if the phase is Running and the pod is not being deleted.
        rows = zip(statuses, ips, strict=True)
        return cls(table, names, ips, [status == "Running" and ip != NO_VALUE for status, ip in rows])

    @property
    def nodes(self) -> list[str]:
        """The node of each pod if its row proves that it is a member and ready; else empty."""
        names = ("Ready", "Node", "Readiness Gates")
        if not set(names) <= set(self.table.headers):
            return [""] * len(self.names)
        columns = (map(str, self.table.column(name)) for name in names)
        return [
            node
            if is_member and gates == NO_VALUE and ready.partition("/")[0] == ready.rpartition("/")[2]
            else ""
            for is_member, ready, node, gates in zip(self.proofs, *columns, strict=True)
        ]


class StatusDetails(Struct, frozen=True):
    """The fields of a Status's `details` that are read."""

    retry_after_seconds: float | None = None


class Status(Struct, frozen=True):
    """The body of a failure response."""

    message: str = ""
    reason: str | None = None
    code: int | None = None
    details: StatusDetails | None = None


class _Event(Struct, tag_field="type", frozen=True):
    pass


class Added(_Event, Generic[T], tag="ADDED", frozen=True):
    """An object now matches: it was created, or its labels changed."""

    object: T


class Modified(_Event, Generic[T], tag="MODIFIED", frozen=True):
    """An object that already matched has changed."""

    object: T


class Deleted(_Event, Generic[T], tag="DELETED", frozen=True):
    """An object no longer matches: it was deleted, or its labels changed.

    The object is the one before the change, with the resourceVersion of the change.
    """

    object: T


class BookmarkMeta(Struct, kw_only=True, frozen=True):
    """The `metadata` of the object of a bookmark."""

    resource_version: str = ""
    annotations: dict[str, str] = {}


class BookmarkObject(Struct, frozen=True):
    """The object of a bookmark; only its resourceVersion has a meaning."""

    metadata: BookmarkMeta = BookmarkMeta()


class Bookmark(_Event, tag="BOOKMARK", frozen=True):
    """Every change up to this resourceVersion has been reported."""

    object: BookmarkObject

    @property
    def ends_initial_events(self) -> bool:
        """Whether every object that existed when the watch began has been reported (KEP-3157)."""
        return self.object.metadata.annotations.get("k8s.io/initial-events-end") == "true"


class Failed(_Event, tag="ERROR", frozen=True):
    """The watch cannot continue. Code 410 means that its resourceVersion is too old: list again."""

    object: Status


WatchEvent: TypeAlias = Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed


def json_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON as this type, or raises a ValueError that says where it differs."""
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def decode(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    return decode


decode_table: Callable[[bytes], Table] = json_decoder(Table)
_decode_status: Callable[[bytes], Status] = json_decoder(Status)
_decode_partial: Callable[[bytes], ObjectList[PartialObject]] = json_decoder(ObjectList[PartialObject])


def metadata_from_json(body: bytes) -> list[ObjectMeta]:
    """Return the metadata of the items of a list of any kind; a ValueError if it is not a list."""
    return [each.metadata for each in _decode_partial(body).items or ()]


def status_from_json(body: bytes) -> Status:
    """Return `body` as a Status; an empty one if it is something else, such as the error page of a proxy."""
    try:
        return _decode_status(body)
    except ValueError:
        return Status()


MAX_EVENT = 8 << 20
"""The maximum length of an event, in bytes. etcd limits objects to 1.5 MiB; their JSON may be longer."""


class EventLines(Generic[T]):
    """Splits the bytes of a watch, which arrive in arbitrary chunks, into events.

    After an error it cannot be used again: start a new watch.

    Args:
        decode: see `Resource.decode_event`.
    """

    def __init__(self, decode: Callable[[bytes], WatchEvent[T]]) -> None:
        self._decode = decode
        self._rest = bytearray()  # the incomplete line at the end

    @property
    def at_boundary(self) -> bool:
        """Whether the last line has arrived whole."""
        return not self._rest

    def feed(self, data: bytes) -> list[WatchEvent[T]]:
        """Return the events of the lines that end in `data`, in order. Empty lines are ignored.

        Raises:
            ValueError: a line is longer than MAX_EVENT, or is not an event; the message says where it
                differs.
        """
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if max(map(len, [*lines, self._rest])) > MAX_EVENT:
            raise ValueError(f"a line of more than {MAX_EVENT >> 20} MiB, longer than any event")
        return [self._decode(line) for line in lines if line.strip()]


# resourceVersions of one resource type compare as whole numbers (KEP-5504, "Comparable Resource Version").
# The versions of a server that does not use numbers cannot be compared.

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
