"""The Compute Engine API: the instances of a group, and what the manager of the group does with them.

Formats: https://cloud.google.com/compute/docs/reference/rest/v1, as JSON; only the fields that are used are
requested and decoded. Enum values remain strings, so that values added later cause no error.

A group lists its instances by URL, without their addresses. The instances of a zone can be listed by a
filter, so that a few requests return those of a whole group, instead of one request for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve.errors import APIError

from .client import SERVICE, APIRequest, Page, UserService, status_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aioresolve._core.deadline import Progress

    from .client import GoogleSession
    from .resource_names import InstanceGroupName

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
    """The external address of a network interface: IPv4 or IPv6."""

    nat_ip: str = msgspec.field(default="", name="natIP")
    external_ipv6: str = ""


class NetworkInterface(_Struct, frozen=True):
    """The addresses of one network interface; those that it does not have are empty."""

    network_ip: str = msgspec.field(default="", name="networkIP")
    ipv6_address: str = ""
    access_configs: tuple[AccessConfig, ...] = ()
    ipv6_access_configs: tuple[AccessConfig, ...] = ()


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
        configs = [
            config
            for one in self.network_interfaces[:1]
            for config in (*one.access_configs, *one.ipv6_access_configs)
        ]
        return next(filter(None, (config.nat_ip or config.external_ipv6 for config in configs)), "")


class GroupMember(_Struct, frozen=True):
    """The URL of an instance of a group, and its status."""

    instance: str
    status: str = ""


class AttemptError(_Struct, frozen=True):
    """Why an attempt to create an instance failed, such as `ZONE_RESOURCE_POOL_EXHAUSTED`."""

    code: str = ""
    message: str = ""


class AttemptErrors(_Struct, frozen=True):
    """The errors of an attempt."""

    errors: tuple[AttemptError, ...] = ()


class LastAttempt(_Struct, frozen=True):
    """The last failed attempt to create or change an instance."""

    errors: AttemptErrors = AttemptErrors()


class ManagedInstance(_Struct, frozen=True):
    """An instance of a managed group, which need not exist yet.

    `current_action` is `NONE`, or what the manager does with it, such as `CREATING`; `instance_status` is
    empty if it does not exist.
    """

    instance: str
    instance_status: str = ""
    current_action: str = ""
    last_attempt: LastAttempt = LastAttempt()

    @property
    def errors(self) -> tuple[AttemptError, ...]:
        """The errors of the last attempt."""
        return self.last_attempt.errors.errors


@dataclass(frozen=True, slots=True, order=True)
class InstanceName:
    """The zone and the name of an instance."""

    zone: str
    name: str


def instance_name(url: str, default_zone: str) -> InstanceName:
    """Return zone and name of the instance with this URL; a ValueError if it is not such a URL.

    URLs are such as `https://www.googleapis.com/compute/v1/projects/P/zones/Z/instances/NAME`. Those of
    clients for tests may have no zone: `default_zone` is used then.
    """
    parts = url.split("/")
    zone = parts[-3] if len(parts) > 3 and parts[-4] == "zones" else default_zone
    if not zone or _NAME.fullmatch(parts[-1]) is None or _NAME.fullmatch(zone) is None:
        raise ValueError(f"{url[:200]!r} is not the URL of an instance")
    return InstanceName(zone, parts[-1])


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
        """Return the instances of a group; raises an APIError with status 404 if it does not exist."""
        permission = f"compute.instanceGroups.{'get' if group.is_regional else 'list'}"
        request = _group_request(group, "instanceGroups", "listInstances", permission)
        pages = await self._session.get_pages(request, Page[GroupMember], progress)
        return [member for page in pages for member in page.items]

    async def groups(self, near: InstanceGroupName, progress: Progress) -> list[str]:
        """Return the names of the groups in the zone or region of a group."""
        parent = near.path().rpartition("/")[0]
        permission = "compute.instanceGroups.list"
        request = APIRequest(
            "compute", f"/compute/v1/{parent}", f"groups of {parent}", permission, near.project
        )
        pages = await self._session.get_pages(request, Page[dict[str, Any]], progress)
        return [str(group["name"]) for page in pages for group in page.items]

    async def managed_instances(self, group: InstanceGroupName, progress: Progress) -> list[ManagedInstance]:
        """Return the instances of a managed group; an APIError with status 404 if it has no manager."""
        permission = "compute.instanceGroupManagers.get"
        request = _group_request(group, "instanceGroupManagers", "listManagedInstances", permission)
        pages = await self._session.get_pages(request, Page[ManagedInstance], progress)
        return [instance for page in pages for instance in page.managed_instances]

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return those instances of a zone that exist. `names` are one of `batches`."""
        request = APIRequest(
            "compute",
            f"/compute/v1/projects/{project}/zones/{zone}/instances",
            instances_scope(project, zone, names),
            "compute.instances.list",
            project,
            query={
                "filter": f'name eq "({"|".join(names)})"',  # they contain no special characters
                "fields": f"items({INSTANCE_FIELDS}),nextPageToken",
                "maxResults": str(PAGE_SIZE),
            },
        )
        pages = await self._session.get_pages(request, Page[Instance], progress)
        return [instance for page in pages for instance in page.items]


class UserComputeClient:
    """Compute Engine through what `googleapiclient.discovery.build("compute", "v1")` returns.

    It gets the requests of TensorFlow's resolver, and no others; see `ComputeAPI`.
    """

    def __init__(self, service: Any) -> None:
        self._service = UserService(service, "instanceGroups", "compute", "v1")

    async def group_members(self, group: InstanceGroupName, progress: Progress) -> list[GroupMember]:
        """Return the instances of a group."""
        location = {"region" if group.is_regional else "zone": group.location}

        def get_pages(service: Any) -> list[Any]:
            groups = service.regionInstanceGroups() if group.is_regional else service.instanceGroups()
            request = groups.listInstances(
                project=group.project, instanceGroup=group.name, body={"instanceState": "ALL"}, **location
            )
            pages: list[Any] = []
            while request is not None:
                pages.append(request.execute())
                request = groups.listInstances_next(previous_request=request, previous_response=pages[-1])
            return pages

        pages = await self._service.call(
            get_pages, list[Page[GroupMember]], f"instances of {group}", progress
        )
        return [member for page in pages for member in page.items]

    async def managed_instances(self, group: InstanceGroupName, progress: Progress) -> list[ManagedInstance]:
        """Raise an APIError."""
        scope = f"manager of {group}"
        raise APIError(f"{SERVICE} is not used for the {scope}", scope=scope, status=501)

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return these instances of a zone."""

        def get_each(service: Any) -> list[Any]:
            instances, found = service.instances(), []
            for name in names:
                try:
                    each = instances.get(project=project, zone=zone, instance=name).execute()
                except Exception as error:
                    if status_of(error) == 404:  # it was deleted in the meantime
                        continue
                    raise
                # Clients for tests may leave the name and the status out.
                found.append({"name": name, "status": RUNNING, **each})
            return found

        scope = instances_scope(project, zone, names)
        return await self._service.call(get_each, list[Instance], scope, progress)


def instances_scope(project: str, zone: str, names: Sequence[str]) -> str:
    """Return the name of a request for these instances in messages."""
    more = f" and {len(names) - 1} others" if len(names) > 1 else ""
    return f"instances {names[0]}{more} of projects/{project}/zones/{zone}"


def _group_request(group: InstanceGroupName, collection: str, verb: str, permission: str) -> APIRequest:
    manager = " (managed)" if collection == "instanceGroupManagers" else ""
    return APIRequest(
        "compute",
        f"/compute/v1/{group.path(collection)}/{verb}",
        f"instances of {group}{manager}",
        permission,
        group.project,
        query={"maxResults": str(PAGE_SIZE)},
        is_post=True,
    )
