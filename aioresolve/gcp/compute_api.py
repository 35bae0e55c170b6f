"""The Compute Engine API: the instances of a group, and what the manager of the group does with them.

Formats: https://cloud.google.com/compute/docs/reference/rest/v1, as JSON; only the fields that are used are
requested and decoded. Enum values remain strings, so that values added later cause no error.

A group lists its instances by URL, without their addresses. The instances of a zone can be listed by a
filter, so that a few requests return those of a whole group, instead of one request for each.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from aioresolve.errors import ProtocolError

from .client import APIRequest, Page

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
    "id,name,status,networkInterfaces(networkIP,ipv6Address),"
    "guestAccelerators(acceleratorType,acceleratorCount)"
)
"""The fields of an instance that are requested, in the syntax of the parameter `fields`."""

_INSTANCE = re.compile(r".*/zones/([A-Za-z0-9][A-Za-z0-9_-]*)/instances/([A-Za-z0-9][A-Za-z0-9_-]*)")


class _Struct(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class NetworkInterface(_Struct, frozen=True):
    """The internal addresses of one network interface; those that it does not have are empty."""

    network_ip: str = msgspec.field(default="", name="networkIP")
    ipv6_address: str = ""


class AttachedAccelerator(_Struct, frozen=True):
    """The URL of a type of accelerator, such as that of `nvidia-h100-80gb`, and their number."""

    accelerator_type: str = ""
    accelerator_count: int = 0


class Instance(_Struct, frozen=True):
    """A VM, as the API describes it; `status` is `RUNNING` or another state."""

    name: str = ""
    id: str | int = ""
    status: str = ""
    network_interfaces: tuple[NetworkInterface, ...] = ()
    attached_accelerators: tuple[AttachedAccelerator, ...] = msgspec.field(
        default=(), name="guestAccelerators"
    )

    @property
    def accelerators(self) -> dict[str, int]:
        """The number of its accelerators by type, such as `{"nvidia-h100-80gb": 8}`."""
        counts = Counter[str]()
        for one in self.attached_accelerators:
            if kind := one.accelerator_type.rpartition("/")[2]:
                counts[kind] += one.accelerator_count
        return dict(+counts)  # without those whose number is 0

    @property
    def internal_ip(self) -> str:
        """The internal address of the first network interface; empty without one."""
        return next((one.network_ip or one.ipv6_address for one in self.network_interfaces), "")


class GroupMember(_Struct, frozen=True):
    """The URL of an instance of a group, and its status."""

    instance: str
    status: str = ""


class AttemptError(_Struct, frozen=True):
    """Why an attempt to create an instance failed, such as `ZONE_RESOURCE_POOL_EXHAUSTED`."""

    code: str = ""
    message: str = ""


class _AttemptErrors(_Struct, frozen=True):
    errors: tuple[AttemptError, ...] = ()


class _LastAttempt(_Struct, frozen=True):
    errors: _AttemptErrors = _AttemptErrors()


class ManagedInstance(_Struct, frozen=True):
    """An instance of a managed group, which need not exist yet.

    `current_action` is `NONE`, or what the manager does with it, such as `CREATING`; `instance_status` is
    empty if it does not exist. `last_attempt` is the last failed attempt to create or change it.
    """

    instance: str
    instance_status: str = ""
    current_action: str = ""
    last_attempt: _LastAttempt = _LastAttempt()


@dataclass(frozen=True, slots=True, order=True)
class InstanceName:
    """The zone and the name of an instance."""

    zone: str
    name: str


def batches(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names of instances in groups that fit into the filter of one request."""
    batch: list[str] = []
    length = 0
    for name in names:
        added = len(name) + 3  # the separator is quoted in a URL: %7C
        if batch and length + added > MAX_NAMES_LENGTH:
            yield batch
            batch, length = [], 0
        batch.append(name)
        length += added
    if batch:
        yield batch


class ComputeAPI:
    """Version 1 of the Compute Engine API."""

    def __init__(self, session: GoogleSession) -> None:
        self._session = session

    async def group_members(self, group: InstanceGroupName, progress: Progress) -> dict[InstanceName, str]:
        """Return the status of each instance of a group; an APIError with status 404 if it does not exist."""
        permission = f"compute.instanceGroups.{'get' if group.is_regional else 'list'}"
        request = _group_request(group, "instanceGroups", "listInstances", permission)
        pages = await self._session.get_pages(request, Page[GroupMember], progress)
        return {_parse_url(one.instance, group): one.status for page in pages for one in page.items}

    async def managed_instances(
        self, group: InstanceGroupName, progress: Progress
    ) -> dict[InstanceName, ManagedInstance]:
        """Return the instances of a managed group; an APIError with status 404 if it has no manager."""
        request = _group_request(
            group, "instanceGroupManagers", "listManagedInstances", "compute.instanceGroupManagers.get"
        )
        pages = await self._session.get_pages(request, Page[ManagedInstance], progress)
        return {_parse_url(one.instance, group): one for page in pages for one in page.managed_instances}

    async def groups(self, near: InstanceGroupName, progress: Progress) -> list[str]:
        """Return the names of the groups in the zone or region of a group."""
        parent = near.path().rpartition("/")[0]
        permission = "compute.instanceGroups.list"
        request = APIRequest(f"/compute/v1/{parent}", f"groups of {parent}", permission, near.project)
        pages = await self._session.get_pages(request, Page[dict[str, object]], progress)
        return [str(group["name"]) for page in pages for group in page.items]

    async def instances(
        self, project: str, zone: str, names: Sequence[str], progress: Progress
    ) -> list[Instance]:
        """Return those instances of a zone that exist. `names` are one of `batches`."""
        more = f" and {len(names) - 1} other{'s' if len(names) > 2 else ''}" if len(names) > 1 else ""
        request = APIRequest(
            f"/compute/v1/projects/{project}/zones/{zone}/instances",
            f"instances {names[0]}{more} of projects/{project}/zones/{zone}",
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


def _group_request(group: InstanceGroupName, collection: str, verb: str, permission: str) -> APIRequest:
    manager = " (managed)" if collection == "instanceGroupManagers" else ""
    return APIRequest(
        f"/compute/v1/{group.path(collection)}/{verb}",
        f"instances of {group}{manager}",
        permission,
        group.project,
        query={"maxResults": str(PAGE_SIZE)},
        body=b"{}",
    )


def _parse_url(url: str, group: InstanceGroupName) -> InstanceName:
    """Return the instance with a URL such as `https://.../projects/P/zones/Z/instances/NAME`."""
    match = _INSTANCE.fullmatch(url)
    if match is None:
        raise ProtocolError(
            f"the list of {group} is invalid: {url[:200]!r} is not the URL of an instance", scope=str(group)
        )
    return InstanceName(*match.groups())
