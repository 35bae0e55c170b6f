"""The objects of the Kubernetes API, decoded from JSON into the few fields that are read.

Formats: Pod, PodList and Status of `v1`, Table and WatchEvent of `meta.k8s.io/v1`, as Kubernetes 1.36 writes
them. `queries` has the requests for them, and `endpoint_slices` the EndpointSlices.
"""

from __future__ import annotations

from functools import lru_cache
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


class Table(Struct, kw_only=True, frozen=True):
    """Pods as rows, the way `kubectl get pods -o wide` prints them. The response may be of another kind.

    How rows are decoded depends on the columns, which come first.
    """

    kind: str = ""
    metadata: ListMeta = ListMeta()
    column_definitions: list[Column] | None = None
    rows: msgspec.Raw = msgspec.Raw(b"[]")


NO_VALUE = "<none>"
"""The content of a Table cell if the pod has no such value."""

_CELLS: dict[str, tuple[str, Any]] = {
    "Name": ("name", Annotated[str, msgspec.Meta(max_length=MAX_NAME)]),
    "Status": ("status", str),
    "IP": ("ip", str),
}
_MORE_CELLS = {**_CELLS, "Ready": ("ready", str), "Node": ("node", str), "Readiness Gates": ("gates", str)}
"""The name and the type of the cell in each column that is read."""


class Rows(NamedTuple):
    """The pods of a Table.

    Attributes:
        version: the resourceVersion of the list.
        names: the name of each pod.
        ips: its IP; `<none>` if it has none yet.
        proven: whether its row proves that it is a member, and with nodes also that it is ready.
        nodes: the node of each pod; empty without nodes.
    """

    version: str
    names: list[str]
    ips: list[str]
    proven: list[bool]
    nodes: list[str]

    @classmethod
    def from_table(cls, table: Table, *, with_nodes: bool) -> Self:
        """Return the rows of `table`. Columns are found by name, because their positions are not an API.

        Raises:
            ValueError: a column is missing, or a cell is missing or invalid; the message says where.
        """
        headers = tuple([column.name for column in table.column_definitions or ()])
        decode = _rows_decoder(headers, with_nodes)
        rows = [row.cells for row in decode(bytes(table.rows)) or ()]
        # The server writes `Running` only if the phase is Running and the pod is not being deleted.
        proven = [row.status == "Running" and row.ip != NO_VALUE for row in rows]
        nodes = []
        if with_nodes:
            nodes = [row.node for row in rows]
            proven = [
                is_member and row.gates == NO_VALUE and _all_are_ready(row.ready)
                for is_member, row in zip(proven, rows, strict=True)
            ]
        version = table.metadata.resource_version
        return cls(version, [row.name for row in rows], [row.ip for row in rows], proven, nodes)


def _all_are_ready(cell: str) -> bool:
    """Whether a cell such as `2/2` says that all containers are ready."""
    return cell.partition("/")[0] == cell.rpartition("/")[2]


@lru_cache(maxsize=16)
def _rows_decoder(headers: tuple[str, ...], with_nodes: bool) -> Callable[[bytes], Any]:
    """Return a function that decodes the rows of a Table with these columns.

    The cells of a row become the fields of an object, which takes less time and memory than a list of them.
    Those after the last one that is read are skipped.
    """
    read = _MORE_CELLS if with_nodes else _CELLS
    if not read.keys() <= set(headers):
        raise ValueError(f"the Table has only the columns {list(headers)}, not all of {list(read)}")
    positions = {headers.index(header): field for header, field in read.items()}
    fields = [positions.get(at, (f"column_{at}", Any)) for at in range(max(positions) + 1)]
    cells = msgspec.defstruct("Cells", fields, bases=(Record,), array_like=True)
    row = msgspec.defstruct("Row", [("cells", cells)], bases=(Record,))
    return json_decoder(list[row] | None)  # type: ignore[valid-type]


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
