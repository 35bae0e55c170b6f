"""The devices that pods get by Dynamic Resource Allocation: those of their ResourceClaims.

`accelerators.claims_of` returns which claims a pod has. A claim has one entry in
`status.allocation.devices.results` for each device. Devices with `adminAccess` are for monitoring only and do
not count, and neither do those of unknown drivers, such as network cards.

Format: ResourceClaim of `resource.k8s.io`, `v1` (Kubernetes 1.34), `v1beta2` and `v1beta1`, which has the
fields of `exactly` in the request itself. Source:
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-v1/
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Deadline, within_deadline
from aioresolve.errors import APIError, ResolveError
from aioresolve.kubernetes.api.objects import ObjectList, Query, Resource, Struct, decode_json

from .accelerators import DEVICE_CLASSES, add_counts, shared_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI

    from .task_order import MatchedPod

logger = logging.getLogger("aioresolve.kubernetes")

READ_TIMEOUT = 10.0
"""The total deadline for reading the claims of pods that were found at one time, in seconds."""

MAX_NAMESPACES = 64
"""In how many namespaces claims are read at one time. The devices of pods in others are unknown."""

MAX_CONCURRENT_READS = 8

NAMED_SHARE = 20
"""Claims are requested by name if there are at least this many members for each of them."""

MAX_DEVICES = 999_999
"""The maximum number of devices in one request."""


class DeviceRequest(Struct, kw_only=True, frozen=True):
    """One entry of `spec.devices.requests`, the fields of its `exactly`, or one of its alternatives."""

    name: str = ""
    device_class_name: str | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    exactly: DeviceRequest | None = None
    first_available: list[DeviceRequest] | None = None


class DeviceResult(Struct, kw_only=True, frozen=True):
    """One entry of `status.allocation.devices.results`: a device."""

    request: str
    driver: str
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class DeviceRequests(Struct, frozen=True):
    """`spec.devices`."""

    requests: list[DeviceRequest] | None = None


class DeviceResults(Struct, frozen=True):
    """`status.allocation.devices`."""

    results: list[DeviceResult] | None = None


class Allocation(Struct, frozen=True):
    """`status.allocation`."""

    devices: DeviceResults = DeviceResults()


class ClaimMeta(Struct, frozen=True):
    """The fields of `metadata` that are read."""

    name: str


class ClaimSpec(Struct, frozen=True):
    """The fields of `spec` that are read."""

    devices: DeviceRequests = DeviceRequests()


class ClaimStatus(Struct, frozen=True):
    """The fields of `status` that are read."""

    allocation: Allocation | None = None


class ResourceClaim(Struct, kw_only=True, frozen=True):
    """A ResourceClaim with the fields that are read."""

    metadata: ClaimMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class ClaimList(
    ObjectList[ResourceClaim], kw_only=True, tag_field="kind", tag="ResourceClaimList", frozen=True
):
    """One page of claims."""


_page_decoder = msgspec.json.Decoder(ClaimList)
_items_decoder = msgspec.json.Decoder(list[ResourceClaim])


def decode_page(body: bytes | bytearray) -> ClaimList:
    """Return `body` as a ResourceClaimList; raises a ValueError if it is not one."""
    page: ClaimList = decode_json(_page_decoder, body)
    return page


def decode_items(body: bytes | bytearray) -> list[ResourceClaim]:
    """Return `body`, a JSON array, as claims; raises a ValueError if it is something else."""
    claims: list[ResourceClaim] = decode_json(_items_decoder, body)
    return claims


def decode_event(_: bytes | bytearray) -> NoReturn:
    """Raise a ValueError: claims are not watched."""
    raise ValueError("ResourceClaims are not watched")


VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The versions of the API, the newest first. Kubernetes 1.32 has the last one only, 1.34 the first."""

_RESOURCES: dict[str, Resource[ResourceClaim]] = {
    version: Resource(
        "resource.k8s.io",
        "resourceclaims",
        "ResourceClaim",
        decode_page,
        decode_event,
        decode_items,
        version=version,
    )
    for version in VERSIONS
}


class ClaimQuery(Query[ResourceClaim], frozen=True, kw_only=True):
    """A request for the claims of one namespace.

    Attributes:
        api_version: the version of the API.
        name: the name of one claim; None for all.
    """

    api_version: str = VERSIONS[0]
    name: str | None = None

    @property
    def resource(self) -> Resource[ResourceClaim]:
        return _RESOURCES[self.api_version]

    @property
    def fields(self) -> list[str]:
        return [] if self.name is None else [f"metadata.name={self.name}"]

    @property
    def selection(self) -> str:
        return (
            f"{'the ResourceClaims' if self.name is None else f'ResourceClaim {self.name!r}'} in {self.where}"
        )


def claimed_devices(claim: ResourceClaim) -> dict[str, int] | None:
    """Return the number of accelerators of a claim by DeviceClass or driver; None if it is not known yet.

    The name is that of the DeviceClass if it is one of `DEVICE_CLASSES`, and that of the driver otherwise:
    administrators may define further classes of the same devices.
    """
    if claim.status.allocation is None:
        return _requested_devices(claim)
    requests = {}
    for request in claim.spec.devices.requests or ():
        requests[request.name] = request.exactly or request
        requests |= {f"{request.name}/{each.name}": each for each in request.first_available or ()}
    counts: Counter[str] = Counter()
    # A device with several shares is one device.
    results = {(each.driver, each.pool, each.device): each for each in _results(claim.status.allocation)}
    for result in results.values():
        of_request = requests.get(result.request)
        class_name = of_request and of_request.device_class_name
        name = class_name if class_name in DEVICE_CLASSES else result.driver
        if name in DEVICE_CLASSES:
            counts[name] += 1
    return dict(counts)


def _results(allocation: Allocation) -> list[DeviceResult]:
    return [each for each in allocation.devices.results or () if not each.admin_access]


def _requested_devices(claim: ResourceClaim) -> dict[str, int] | None:
    counts: Counter[str] = Counter()
    for each in claim.spec.devices.requests or ():
        request = each.exactly or each
        if request.device_class_name is None or request.allocation_mode != "ExactCount":
            return None  # alternatives, or all devices of a node
        if request.device_class_name not in DEVICE_CLASSES or request.admin_access:
            continue
        if not 0 < request.count <= MAX_DEVICES:
            return None
        counts[request.device_class_name] += request.count
    return dict(counts)


@dataclass(slots=True)
class _Read:
    """The devices of claims that were read in one namespace, and why others are not known."""

    devices: dict[str, dict[str, int] | None] = field(default_factory=dict)
    fault: str = ""


async def read_devices(
    api: ObjectAPI, pods: Sequence[MatchedPod], *, members: int
) -> tuple[list[MatchedPod], dict[str, str]]:
    """Return `pods` with the devices of their claims, and why those of some are not known, by namespace.

    One request lists the claims of a namespace; only a claim that many members do not need is requested by
    its name. A failure is not an error, because the devices are not needed to find the pods.

    Args:
        api: the API server.
        pods: pods with claims that were not read.
        members: the number of members of the cluster.
    """
    names: dict[str, set[str]] = {}
    for pod in pods:
        names.setdefault(pod.full_name.partition("/")[0], set()).update(pod.claims)
    left = anyio.current_effective_deadline() - anyio.current_time()
    deadline = Deadline.after(min(READ_TIMEOUT, left / 2))  # the rest of the call needs time too
    found = {namespace: _Read() for namespace in names}

    async def read(namespace: str) -> None:
        read_all = partial(_read, api, namespace, names[namespace], members)
        try:
            found[namespace].devices = await within_deadline(
                deadline.next_timeout, f"the ResourceClaims in namespace {namespace!r}", read_all
            )
        except ResolveError as error:
            found[namespace].fault = error.summary

    namespaces = list(names)
    await gather([partial(read, each) for each in namespaces[:MAX_NAMESPACES]], limit=MAX_CONCURRENT_READS)
    for namespace in namespaces[MAX_NAMESPACES:]:
        found[namespace].fault = f"ResourceClaims are read in at most {MAX_NAMESPACES} namespaces"
    counted = [_count(pod, found[pod.full_name.partition("/")[0]]) for pod in pods]
    faults = {namespace: each.fault for namespace, each in found.items() if each.fault}
    for namespace, fault in faults.items():
        logger.info("devices of ResourceClaims in namespace %r are not known: %s", namespace, fault)
    return counted, faults


async def _read(
    api: ObjectAPI, namespace: str, names: set[str], members: int, progress: Progress
) -> dict[str, dict[str, int] | None]:
    """Return the devices of the claims with these names, as far as the claims exist."""

    def convert(claims: Iterable[ResourceClaim]) -> list[tuple[str, dict[str, int] | None]]:
        return [(each.metadata.name, claimed_devices(each)) for each in claims if each.metadata.name in names]

    queries = [ClaimQuery("", namespace)]
    if len(names) <= max(1, members // NAMED_SHARE):
        queries = [ClaimQuery("", namespace, name=name) for name in sorted(names)]
    while True:
        version = api.claim_version
        calls = [
            partial(
                api.objects, msgspec.structs.replace(query, api_version=version), progress, convert=convert
            )
            for query in queries
        ]
        try:
            listed = await gather(calls, limit=MAX_CONCURRENT_READS)
        except APIError as error:
            if error.status != 404:
                raise
        else:
            return dict(pair for each in listed for pair in each.items)
        if version == VERSIONS[-1]:
            api.claim_version = VERSIONS[0]
            raise APIError(f"{api.host} has none of the versions {', '.join(VERSIONS)} of resource.k8s.io")
        if version == api.claim_version:  # a concurrent call may have changed it
            api.claim_version = VERSIONS[VERSIONS.index(version) + 1]


def _count(pod: MatchedPod, read: _Read) -> MatchedPod:
    """Return `pod` with the devices of its claims in addition to its limits, if all of them are known."""
    assert pod.endpoint is not None
    limits: Mapping[str, int] = pod.endpoint.accelerators or {}
    devices = [read.devices.get(name) for name in pod.claims]
    unknown = [name for name, each in zip(pod.claims, devices, strict=True) if each is None]
    if unknown:
        state = "is not allocated" if unknown[0] in read.devices else "does not exist"
        namespace = pod.full_name.partition("/")[0]
        read.fault = read.fault or f"ResourceClaim {namespace}/{unknown[0]} {state}"
        return msgspec.structs.replace(pod, claims=())
    for each in devices:
        limits = add_counts(limits, each or {})
    endpoint = replace(pod.endpoint, accelerators=shared_mapping(limits))
    return msgspec.structs.replace(pod, claims=(), endpoint=endpoint)
