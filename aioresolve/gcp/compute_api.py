"""The Compute Engine API: the instances of a group, and what the manager of the group does with them.

Formats: https://cloud.google.com/compute/docs/reference/rest/v1, as JSON; only the fields that are used are
requested and decoded. Enum values remain strings, so that values added later cause no error.

A group lists its instances by URL, without their addresses. The instances of a zone can be listed by a
filter, so that a few requests return those of a whole group, instead of one request for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from aioresolve.errors import APIError

from .api_request import APIRequest, decoder
from .user_service import SOURCE, UserService, decode_response

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

    from .client import GoogleSession
    from .resource_names import InstanceGroupName

API = "Compute Engine API v1"

VIEWER = "roles/compute.viewer"
"""The smallest predefined role with every permission required here."""

PAGE_SIZE = 500
"""Requested items per page, the maximum of the API."""

MAX_NAMES_LENGTH = 1_000
"""Maximum length of the names in one filter: a URL with them is shorter than 2,048 characters, the limit of
Google's own client."""

INSTANCE_FIELDS = (
    "id,name,hostname,status,selfLink,networkInterfaces(networkIP,ipv6Address,"
    "accessConfigs/natIP,ipv6AccessConfigs/externalIpv6),guestAccelerators(acceleratorType,acceleratorCount)"
)
"""The fields of an instance that are requested, in the syntax of the parameter `fields`."""

RUNNING = "RUNNING"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class _Struct(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class AccessConfig(_Struct, frozen=True):
    """The external IPv4 address of a network interface."""

    nat_ip: str = msgspec.field(default="", name="natIP")


class IPv6AccessConfig(_Struct, frozen=True):
    """The external IPv6 address of a network interface."""

    external_ipv6: str = ""


class NetworkInterface(_Struct, frozen=True):
    """The addresses of one network interface; those that it does not have are empty."""

    network_ip: str = msgspec.field(default="", name="networkIP")
    ipv6_address: str = ""
    access_configs: tuple[AccessConfig, ...] = ()
    ipv6_access_configs: tuple[IPv6AccessConfig, ...] = ()


class AttachedAccelerator(_Struct, frozen=True):
    """The URL of a type of accelerator, such as that of `nvidia-h100-80gb`, and their number."""

    accelerator_type: str = ""
    accelerator_count: int = 0


class Instance(_Struct, frozen=True):
    """A VM, as the API describes it; fields that it leaves out are empty.

    `status` is `RUNNING` or another state. `hostname` is set only if the user chose one.
    """

    name: str = ""
    id: str | int = ""
    hostname: str = ""
    status: str = ""
    self_link: str = ""
    network_interfaces: tuple[NetworkInterface, ...] = ()
    attached_accelerators: tuple[AttachedAccelerator, ...] = msgspec.field(
        default=(), name="guestAccelerators"
    )

    @property
    def accelerators(self) -> dict[str, int]:
        """The number of its accelerators by type, such as `{"nvidia-h100-80gb": 8}`."""
        counts: dict[str, int] = {}
        for one in self.attached_accelerators:
            kind = one.accelerator_type.rpartition("/")[2]
            if kind and one.accelerator_count > 0:
                counts[kind] = counts.get(kind, 0) + one.accelerator_count
        return counts

    @property
    def internal_ip(self) -> str:
        """The internal address of the first network interface; empty without one."""
        return next((one.network_ip or one.ipv6_address for one in self.network_interfaces), "")

    @property
    def external_ip(self) -> str:
        """The external address of the first network interface; empty without one."""
        for one in self.network_interfaces[:1]:
            addresses = [each.nat_ip for each in one.access_configs]
            addresses += [each.external_ipv6 for each in one.ipv6_access_configs]
            return next(filter(None, addresses), "")
        return ""


class InstancePage(_Struct, frozen=True):
    """One page of the instances of a zone."""

    items: tuple[Instance, ...] = ()
    next_page_token: str = ""


class GroupMember(_Struct, frozen=True):
    """The URL of an instance of a group, and its status."""

    instance: str
    status: str = ""


class GroupPage(_Struct, frozen=True):
    """One page of the instances of a group."""

    items: tuple[GroupMember, ...] = ()
    next_page_token: str = ""


class AttemptError(_Struct, frozen=True):
    """Why an attempt to create an instance failed, such as `ZONE_RESOURCE_POOL_EXHAUSTED`."""

    code: str = ""
    message: str = ""


class AttemptErrors(_Struct, frozen=True):
    """The errors of an attempt."""

    errors: tuple[AttemptError, ...] = ()


class LastAttempt(_Struct, frozen=True):
    """The last failed attempt to create or change an instance."""

    errors: AttemptErrors | None = None


class ManagedInstance(_Struct, frozen=True):
    """An instance of a managed group, which need not exist yet.

    `current_action` is `NONE`, or what the manager does with it, such as `CREATING`; `instance_status` is
    empty if it does not exist.
    """

    instance: str
    instance_status: str = ""
    current_action: str = ""
    last_attempt: LastAttempt | None = None

    @property
    def errors(self) -> tuple[AttemptError, ...]:
        """The errors of the last attempt."""
        attempt = self.last_attempt
        return () if attempt is None or attempt.errors is None else attempt.errors.errors


class ManagedPage(_Struct, frozen=True):
    """One page of the instances of a managed group."""

    managed_instances: tuple[ManagedInstance, ...] = ()
    next_page_token: str = ""


@dataclass(frozen=True, slots=True, order=True)
class InstanceName:
    """The zone and the name of an instance."""

    zone: str
    name: str


def instance_name(url: str, default_zone: str) -> InstanceName:
    """Return zone and name of the instance with this URL.

    Args:
        url: such as `https://www.googleapis.com/compute/v1/projects/P/zones/Z/instances/NAME`.
        default_zone: the zone if the URL has none, as those of clients for tests.

    Raises:
        ValueError: it is not the URL of an instance.
    """
    parts = url.split("/")
    zone = parts[-3] if len(parts) > 3 and parts[-4] == "zones" else default_zone
    if not zone or _NAME.fullmatch(parts[-1]) is None or _NAME.fullmatch(zone) is None:
        raise ValueError(f"{url[:200]!r} is not the URL of an instance")
    return InstanceName(zone, parts[-1])


class InstanceAPI(Protocol):
    """The Compute Engine API: `ComputeAPI`, or a user's client of it."""

    async def group_members(self, group: InstanceGroupName, progress: Progress) -> list[GroupMember]:
        """Return the instances of a group; raises an APIError with status 404 if it does not exist."""
        ...

    async def managed_instances(self, group: InstanceGroupName, progress: Progress) -> list[ManagedInstance]:
        """Return the instances of a managed group; an APIError with status 404 if it has no manager."""
        ...

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return those instances of a zone that exist. `names` are one of `batches`."""
        ...


def batches(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names of instances in groups that fit into the filter of one request."""
    batch: list[str] = []
    length = 0
    for name in names:
        length += len(name) + 3  # the separator is quoted in a URL: %7C
        if batch and length > MAX_NAMES_LENGTH:
            yield batch
            batch, length = [], len(name) + 3
        batch.append(name)
    if batch:
        yield batch


class ComputeAPI:
    """Version 1 of the Compute Engine API."""

    def __init__(self, session: GoogleSession) -> None:
        self._session = session

    async def group_members(self, group: InstanceGroupName, progress: Progress) -> list[GroupMember]:
        """Return the instances of a group (see `InstanceAPI`)."""
        permission = f"compute.instanceGroups.{'get' if group.is_regional else 'list'}"
        request = _group_request(group, "instanceGroups", "listInstances", permission)
        pages = await self._session.send_pages(request, decode_group_page, API, progress)
        return [member for page in pages for member in page.items]

    async def managed_instances(self, group: InstanceGroupName, progress: Progress) -> list[ManagedInstance]:
        """Return the instances of a managed group (see `InstanceAPI`)."""
        permission = "compute.instanceGroupManagers.get"
        request = _group_request(group, "instanceGroupManagers", "listManagedInstances", permission)
        pages = await self._session.send_pages(request, decode_managed_page, API, progress)
        return [instance for page in pages for instance in page.managed_instances]

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return those instances that exist (see `InstanceAPI`)."""
        request = APIRequest(
            service="compute",
            path=f"/compute/v1/projects/{project}/zones/{zone}/instances",
            scope=_instances_scope(project, zone, names),
            permission="compute.instances.list",
            role=VIEWER,
            project=project,
            query={
                "filter": name_filter(names),
                "fields": f"items({INSTANCE_FIELDS}),nextPageToken",
                "maxResults": str(PAGE_SIZE),
            },
        )
        pages = await self._session.send_pages(request, decode_instance_page, API, progress)
        return [instance for page in pages for instance in page.items]


class UserComputeClient:
    """The API through what `googleapiclient.discovery.build("compute", "v1")` returns."""

    def __init__(self, service: Any) -> None:
        self._service = UserService(service, "instanceGroups", ("compute", "v1"))

    async def group_members(self, group: InstanceGroupName, progress: Progress) -> list[GroupMember]:
        """Return the instances of a group (see `InstanceAPI`)."""
        collection = "regionInstanceGroups" if group.is_regional else "instanceGroups"
        location = {"region" if group.is_regional else "zone": group.location}
        members: list[GroupMember] = []

        def new_request(service: Any) -> Any:
            groups = getattr(service, collection)()
            return _AllPages(
                groups.listInstances(
                    project=group.project, instanceGroup=group.name, body={"instanceState": "ALL"}, **location
                ),
                groups.listInstances_next,
            )

        scope = f"instances of {group}"
        for response in await self._service.execute(new_request, scope, progress) or ():
            members += decode_response(decode_group_page, response, scope).items
        return members

    async def managed_instances(self, group: InstanceGroupName, progress: Progress) -> list[ManagedInstance]:
        """Raise an APIError: only the requests that TensorFlow sends are sent to a user's client."""
        scope = f"manager of {group}"
        raise APIError(f"{SOURCE} is not used for the {scope}", scope=scope, status=501)

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return those instances that exist (see `InstanceAPI`)."""
        scope = _instances_scope(project, zone, names)

        def new_request(service: Any) -> Any:
            return _UserInstances(service.instances(), project, zone, names)

        responses = await self._service.execute(new_request, scope, progress) or ()
        found: list[Instance] = []
        for response in responses:
            found += decode_response(decode_instance_page, response, scope).items
        return found


@dataclass(frozen=True, slots=True)
class _AllPages:
    """A request of googleapiclient for a list, as one that returns all pages."""

    first: Any
    next_request: Callable[..., Any]

    def execute(self) -> list[Any]:
        pages: list[Any] = []
        request = self.first
        while request is not None:
            response = request.execute()
            pages.append(response)
            request = self.next_request(previous_request=request, previous_response=response)
        return pages


@dataclass(frozen=True, slots=True)
class _UserInstances:
    """The request for some instances of a zone.

    It is one for each if the client has no list, as those for tests of programs that use TensorFlow.
    """

    collection: Any
    project: str
    zone: str
    names: Sequence[str]

    def execute(self) -> list[Any]:
        if hasattr(self.collection, "list"):
            request = self.collection.list(
                project=self.project, zone=self.zone, filter=name_filter(self.names)
            )
            page, next_request = request.execute(), self.collection.list_next
            if isinstance(page, Mapping):
                rest = next_request(previous_request=request, previous_response=page)
                return [page, *_AllPages(rest, next_request).execute()]
        return [{"items": [self._get(name) for name in self.names]}]

    def _get(self, name: str) -> Any:
        response = self.collection.get(project=self.project, zone=self.zone, instance=name).execute()
        return {"name": name, "status": RUNNING, **response} if isinstance(response, Mapping) else response


def name_filter(names: Iterable[str]) -> str:
    """Return the filter for instances with one of these names, which contain no special characters."""
    return f'name eq "({"|".join(names)})"'


def _instances_scope(project: str, zone: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} others" if len(names) > 1 else ""
    return f"instances {names[0]}{more} of projects/{project}/zones/{zone}"


def _group_request(group: InstanceGroupName, collection: str, verb: str, permission: str) -> APIRequest:
    manager = " (managed)" if collection == "instanceGroupManagers" else ""
    return APIRequest(
        service="compute",
        path=f"/compute/v1/{group.path(collection)}/{verb}",
        scope=f"instances of {group}{manager}",
        permission=permission,
        role=VIEWER,
        project=group.project,
        query={"maxResults": str(PAGE_SIZE)},
        method="POST",
        body=b"{}",
    )


decode_group_page = decoder(GroupPage)
decode_managed_page = decoder(ManagedPage)
decode_instance_page = decoder(InstancePage)
