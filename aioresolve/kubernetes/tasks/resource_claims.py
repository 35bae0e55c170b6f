"""The devices that pods get by Dynamic Resource Allocation: those of their ResourceClaims.

`accelerators.claims_of` returns which claims a pod has. A claim has one entry in
`status.allocation.devices.results` for each device. Devices with `adminAccess` are for monitoring only and do
not count, and neither do those of unknown drivers, such as network cards.

Format: ResourceClaim of `resource.k8s.io/v1` (Kubernetes 1.34). Source:
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-v1/
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Deadline, within_deadline
from aioresolve.errors import ResolveError
from aioresolve.kubernetes.api.objects import ObjectMeta, Struct
from aioresolve.kubernetes.api.queries import Query, Resource

from .accelerators import DEVICE_CLASSES, shared_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI

    from .pods import MatchedPod

logger = logging.getLogger("aioresolve.kubernetes")

READ_TIMEOUT = 10.0
"""The total deadline for reading the claims of pods that were found at one time, in seconds."""

MAX_CONCURRENT_READS = 8

NAMED_SHARE = 20
"""Claims are requested by name if there are at least this many members for each of them."""


class DeviceClassRequest(Struct, kw_only=True, frozen=True):
    """The `exactly` of a request, or one of its alternatives."""

    name: str = ""
    device_class_name: str = ""


class DeviceRequest(Struct, kw_only=True, frozen=True):
    """One entry of `spec.devices.requests`."""

    name: str = ""
    exactly: DeviceClassRequest | None = None
    first_available: list[DeviceClassRequest] | None = None


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


class ClaimSpec(Struct, frozen=True):
    """The fields of `spec` that are read."""

    devices: DeviceRequests = DeviceRequests()


class ClaimStatus(Struct, frozen=True):
    """The fields of `status` that are read."""

    allocation: Allocation | None = None


class ResourceClaim(Struct, kw_only=True, frozen=True):
    """A ResourceClaim with the fields that are read."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


CLAIMS = Resource("resource.k8s.io", "resourceclaims", "ResourceClaim", ResourceClaim)


class ClaimQuery(Query[ResourceClaim], frozen=True, kw_only=True):
    """A request for the claims of one namespace, or for the one with a name."""

    resource = CLAIMS

    @property
    def scope(self) -> str:
        what = "the ResourceClaims" if self.name is None else f"ResourceClaim {self.name!r}"
        return f"{what} in {self.where}"


Devices: TypeAlias = "dict[str, dict[str, int] | None]"
"""The devices of claims by the name of the claim; None if it is not allocated."""


def claimed_devices(claim: ResourceClaim) -> dict[str, int] | None:
    """Return the number of accelerators of a claim by DeviceClass or driver; None if it is not allocated.

    The name is that of the DeviceClass if it is one of `DEVICE_CLASSES`, and that of the driver otherwise:
    administrators may define further classes of the same devices.
    """
    if claim.status.allocation is None:
        return None
    classes = {}
    for request in claim.spec.devices.requests or ():
        classes[request.name] = request.exactly.device_class_name if request.exactly else ""
        for each in request.first_available or ():
            classes[f"{request.name}/{each.name}"] = each.device_class_name
    results = [each for each in claim.status.allocation.devices.results or () if not each.admin_access]
    # A device with several shares is one device.
    devices = {(each.driver, each.pool, each.device): each for each in results}
    counts: Counter[str] = Counter()
    for result in devices.values():
        class_name = classes.get(result.request)
        name = class_name if class_name in DEVICE_CLASSES else result.driver
        if name in DEVICE_CLASSES:
            counts[name] += 1
    return dict(counts)


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
        names.setdefault(_namespace(pod), set()).update(pod.claims)
    left = anyio.current_effective_deadline() - anyio.current_time()
    deadline = Deadline.after(min(READ_TIMEOUT, left / 2))  # the rest of the call needs time too
    devices: dict[str, Devices] = {}
    faults: dict[str, str] = {}

    async def read(namespace: str) -> None:
        read_all = partial(_read, api, namespace, names[namespace], members)
        scope = f"the ResourceClaims in namespace {namespace!r}"
        try:
            devices[namespace] = await within_deadline(deadline.next_timeout, scope, read_all)
        except ResolveError as error:
            faults[namespace] = error.summary

    await gather([partial(read, each) for each in names], limit=MAX_CONCURRENT_READS)
    counted = []
    for pod in pods:
        new, fault = _count(pod, devices.get(_namespace(pod), {}))
        counted.append(new)
        if fault:
            faults.setdefault(_namespace(pod), fault)
    for namespace, fault in faults.items():
        logger.info("devices of ResourceClaims in namespace %r are not known: %s", namespace, fault)
    return counted, faults


def _namespace(pod: MatchedPod) -> str:
    return pod.full_name.partition("/")[0]


async def _read(api: ObjectAPI, namespace: str, names: set[str], members: int, progress: Progress) -> Devices:
    """Return the devices of the claims with these names, as far as the claims exist."""

    def convert(claims: Iterable[ResourceClaim]) -> list[tuple[str, dict[str, int] | None]]:
        return [(each.metadata.name, claimed_devices(each)) for each in claims if each.metadata.name in names]

    is_few = len(names) <= max(1, members // NAMED_SHARE)
    wanted: list[str | None] = [*sorted(names)] if is_few else [None]
    queries = [ClaimQuery("", namespace, name=name) for name in wanted]
    calls = [partial(api.objects, query, progress, convert=convert) for query in queries]
    listed = await gather(calls, limit=MAX_CONCURRENT_READS)
    return dict(pair for each in listed for pair in each.items)


def _count(pod: MatchedPod, read: Devices) -> tuple[MatchedPod, str]:
    """Return `pod` with the devices of its claims in addition to its limits, or why they are not known."""
    assert pod.endpoint is not None
    counts = Counter(pod.endpoint.accelerators or {})
    for name in pod.claims:
        devices = read.get(name)
        if devices is None:
            state = "is not allocated" if name in read else "does not exist"
            fault = f"ResourceClaim {_namespace(pod)}/{name} {state}"
            return msgspec.structs.replace(pod, claims=()), fault
        counts.update(devices)
    endpoint = replace(pod.endpoint, accelerators=shared_mapping(counts))
    return msgspec.structs.replace(pod, claims=(), endpoint=endpoint), ""
