"""The accelerators of pods: those in the resource limits of containers, and those of ResourceClaims.

For extended resources the limit is the request. Containers and sidecars (init containers that restart always)
run at the same time, and their limits add up; other init containers have ended before.

A pod that uses Dynamic Resource Allocation only names its claims. A claim has one entry in
`status.allocation.devices.results` for each device. Devices with `adminAccess` are for monitoring only and do
not count, and neither do those of unknown drivers, such as network cards. Format: ResourceClaim of
`resource.k8s.io/v1` (Kubernetes 1.34). Source:
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-v1/
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Deadline, within_deadline
from aioresolve.errors import ResolveError
from aioresolve.kubernetes.api.objects import ObjectMeta, Struct
from aioresolve.kubernetes.api.queries import Query, Resource
from aioresolve.spec import ReadOnlyMapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.objects import Container, Pod

DEVICE_TYPES = {
    "google.com/tpu": "TPU",
    "nvidia.com/gpu": "GPU",
    "nvidia.com/gpu.shared": "GPU",
    "amd.com/gpu": "GPU",
    "gpu.intel.com/i915": "GPU",
    "gpu.intel.com/xe": "GPU",
    "habana.ai/gaudi": "HPU",
    "aws.amazon.com/neuron": "NEURON",
    "aws.amazon.com/neuroncore": "NEURON",
    "aws.amazon.com/neurondevice": "NEURON",
    "huawei.com/Ascend310": "NPU",
    "huawei.com/Ascend310P": "NPU",
    "huawei.com/Ascend910": "NPU",
}
"""The resources that device plugins offer, to the types of devices as `num_accelerators` names them."""

DEVICE_CLASSES = {
    "gpu.nvidia.com": "GPU",
    "mig.nvidia.com": "GPU",
    "tpu.google.com": "TPU",
    "gpu.amd.com": "GPU",
    "gpu.intel.com": "GPU",
    "gaudi.intel.com": "HPU",
    "neuron.aws.com": "NEURON",
}
"""The DRA drivers and their DeviceClasses, to the types of devices.

Other drivers have no accelerators, such as `compute-domain.nvidia.com` (IMEX channels) and `dra.net`.
"""

BY_CLASS = "deviceclass.resource.kubernetes.io/"
"""The beginning of the extended resources for the devices of a DeviceClass (KEP-5004)."""

MIG = "nvidia.com/mig-"
"""The beginning of the resources for parts of a GPU, such as `nvidia.com/mig-1g.10gb`."""


READ_TIMEOUT = 10.0
"""The total deadline for reading the claims of pods that were found at one time, in seconds."""

MAX_CONCURRENT_READS = 8

NAMED_SHARE = 20
"""Claims are requested by name if there are at least this many members for each of them."""


def device_counts(accelerators: Mapping[str, int]) -> dict[str, int]:
    """Return the number of devices by type; see `DEVICE_TYPES` and `DEVICE_CLASSES`."""
    counts: Counter[str] = Counter()
    for resource, number in accelerators.items():
        kind = DEVICE_TYPES.get(resource) or DEVICE_CLASSES.get(resource.removeprefix(BY_CLASS), "GPU")  # MIG
        counts[kind] += number
    return dict(counts)


def _shared_mapping(counts: Mapping[str, int]) -> Mapping[str, int] | None:
    """Return `counts` by name, read-only, as one object that all pods with the same counts share.

    None if `counts` is empty.
    """
    return _mapping(tuple(sorted(counts.items()))) if counts else None


@lru_cache(maxsize=256)  # thousands of pods share a few values
def _mapping(items: tuple[tuple[str, int], ...]) -> ReadOnlyMapping[int]:
    return ReadOnlyMapping(dict(items))


# Limits


def declared_accelerators(pod: Pod) -> Mapping[str, int] | None:
    """Return the number of accelerators that a pod declares by resource; None if it declares none."""
    containers, init = pod.spec.containers or [], pod.spec.init_containers or []
    if len(containers) == 1 and not init:  # nearly every pod of a program
        return _shared_mapping(_limits(containers[0]))
    total: Counter[str] = Counter()
    for container in (*(each for each in init if each.restart_policy == "Always"), *containers):
        total.update(_limits(container))
    return _shared_mapping(total)


def _limits(container: Container) -> dict[str, int]:
    limits = (container.resources and container.resources.limits) or {}
    # A quantity of whole devices is a string or a number.
    return {
        name: int(text)
        for name, quantity in limits.items()
        if _is_accelerator(name) and (text := str(quantity)).isdecimal() and int(text)
    }


def _is_accelerator(name: str) -> bool:
    if name in DEVICE_TYPES or name.startswith(MIG):
        return True
    return name.startswith(BY_CLASS) and name.removeprefix(BY_CLASS) in DEVICE_CLASSES


# ResourceClaims


class ResourceClaim(Struct, kw_only=True, frozen=True):
    """A ResourceClaim with the fields that are read."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class ClaimQuery(Query[ResourceClaim], frozen=True, kw_only=True):
    """A request for the claims of one namespace, or for the one with a name."""

    resource = Resource("resource.k8s.io", "resourceclaims", "ResourceClaim", ResourceClaim)

    @property
    def scope(self) -> str:
        what = "the ResourceClaims" if self.name is None else f"ResourceClaim {self.name!r}"
        return f"{what} in {self.where}"


def claims_of(pod: Pod) -> tuple[str, ...]:
    """Return the names of the ResourceClaims of a pod, each once: those it names, and those made for it.

    The claim for extended resources (`status.extendedResourceClaimStatus`) is not one of them: its devices
    are declared in the limits of the containers.
    """
    entries = pod.spec.resource_claims
    if not entries:
        return ()
    created = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    # A template may need no claim: then the status has no name.
    names = (each.resource_claim_name or created.get(each.name) for each in entries)
    return tuple(dict.fromkeys(name for name in names if name))


def claimed_devices(claim: ResourceClaim) -> dict[str, int] | None:
    """Return the number of accelerators of a claim by DeviceClass or driver; None if it is not allocated.

    The name is that of the DeviceClass if it is one of `DEVICE_CLASSES`, and that of the driver otherwise:
    administrators may define further classes of the same devices.
    """
    allocation = claim.status.get("allocation")
    if not allocation:
        return None
    classes = {}
    for request in claim.spec.get("devices", {}).get("requests") or ():
        classes[request["name"]] = request.get("exactly", {}).get("deviceClassName")
        for each in request.get("firstAvailable") or ():
            classes[f"{request['name']}/{each['name']}"] = each["deviceClassName"]
    # A device with several shares is one device.
    devices = {
        (each["driver"], each.get("pool"), each.get("device")): each
        for each in allocation.get("devices", {}).get("results") or ()
        if not each.get("adminAccess")
    }
    counts: Counter[str] = Counter()
    for result in devices.values():
        class_name = classes.get(result["request"])
        name = class_name if class_name in DEVICE_CLASSES else result["driver"]
        if name in DEVICE_CLASSES:
            counts[name] += 1
    return dict(counts)


class ClaimedDevices(NamedTuple):
    """The devices of claims.

    Attributes:
        counts: the number of accelerators by the namespace and name of a claim; see `claimed_devices`.
        faults: why those of some claims are not known, by namespace.
    """

    counts: dict[tuple[str, str], dict[str, int] | None]
    faults: dict[str, str]

    def added_to(
        self, declared: Mapping[str, int] | None, namespace: str, claims: Sequence[str]
    ) -> Mapping[str, int] | None:
        """Return `declared` with the devices of these claims; unchanged if those of one are not known."""
        total = Counter(declared or {})
        for name in claims:
            devices = self.counts.get((namespace, name))
            if devices is None:
                state = "is not allocated" if (namespace, name) in self.counts else "does not exist"
                self.faults.setdefault(namespace, f"ResourceClaim {namespace}/{name} {state}")
                return declared
            total.update(devices)
        return _shared_mapping(total)


async def read_devices(
    api: ObjectAPI, claims: Iterable[tuple[str, Sequence[str]]], *, members: int
) -> ClaimedDevices:
    """Return the devices of claims.

    One request lists the claims of a namespace; only a claim that many members do not need is requested by
    its name. A failure is not an error, because the devices are not needed to find the pods.

    Args:
        api: the API server.
        claims: the namespace and the claims of each pod.
        members: the number of members of the cluster.
    """
    names: dict[str, set[str]] = {}
    for namespace, of_pod in claims:
        names.setdefault(namespace, set()).update(of_pod)
    left = anyio.current_effective_deadline() - anyio.current_time()
    deadline = Deadline.after(min(READ_TIMEOUT, left / 2))  # the rest of the call needs time too
    found = ClaimedDevices({}, {})

    async def read(namespace: str) -> None:
        read_all = partial(_read, api, namespace, names[namespace], members)
        scope = f"the ResourceClaims in namespace {namespace!r}"
        try:
            found.counts.update(await within_deadline(deadline.next_timeout, scope, read_all))
        except ResolveError as error:
            found.faults[namespace] = error.summary
        except (AttributeError, KeyError, TypeError) as error:
            found.faults[namespace] = f"{scope} are malformed: {error!r}"

    await gather([partial(read, each) for each in names], limit=MAX_CONCURRENT_READS)
    return found


async def _read(
    api: ObjectAPI, namespace: str, names: set[str], members: int, progress: Progress
) -> dict[tuple[str, str], dict[str, int] | None]:
    """Return the devices of the claims with these names, as far as the claims exist."""

    def convert(
        claims: Iterable[ResourceClaim],
    ) -> list[tuple[tuple[str, str], dict[str, int] | None]]:
        return [
            ((namespace, each.metadata.name), claimed_devices(each))
            for each in claims
            if each.metadata.name in names
        ]

    is_few = len(names) <= max(1, members // NAMED_SHARE)
    wanted: list[str | None] = [*sorted(names)] if is_few else [None]
    queries = [ClaimQuery("", namespace, name=name) for name in wanted]
    calls = [partial(api.objects, query, progress, convert=convert) for query in queries]
    listed = await gather(calls, limit=MAX_CONCURRENT_READS)
    return dict(pair for each in listed for pair in each.items)
