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
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from aioresolve._core.concurrency import gather
from aioresolve.errors import ResolveError
from aioresolve.kubernetes.api.objects import ObjectMeta, Struct
from aioresolve.kubernetes.api.queries import Query, Resource
from aioresolve.spec import ReadOnlyMapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.objects import Container, Pod
    from aioresolve.spec import Endpoint

DEVICE_TYPES = {
    # Resources of device plugins
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
    # DRA drivers; others have no accelerators, such as `dra.net` or `compute-domain.nvidia.com`
    "tpu.google.com": "TPU",
    "gpu.nvidia.com": "GPU",
    "gpu.amd.com": "GPU",
    "gpu.intel.com": "GPU",
    "gaudi.intel.com": "HPU",
    "neuron.aws.com": "NEURON",
}
"""Resources and drivers, to the types of their devices as `num_accelerators` names them."""

MIG = "nvidia.com/mig-"
"""The beginning of the resources for parts of a GPU, such as `nvidia.com/mig-1g.10gb`."""

MAX_CONCURRENT_READS = 8


def device_counts(accelerators: Mapping[str, int]) -> dict[str, int]:
    """Return the number of devices by type; see `DEVICE_TYPES`."""
    counts: Counter[str] = Counter()
    for resource, number in accelerators.items():
        counts[DEVICE_TYPES.get(resource, "GPU")] += number  # MIG
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
        if (name in DEVICE_TYPES or name.startswith(MIG))
        and (text := str(quantity)).isdecimal()
        and int(text)
    }


# ResourceClaims


class ResourceClaim(Struct, kw_only=True, frozen=True):
    """A ResourceClaim with the fields that are read."""

    metadata: ObjectMeta
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class ClaimQuery(Query[ResourceClaim], frozen=True, kw_only=True):
    """A request for the claims of one namespace."""

    resource = Resource("resource.k8s.io", "resourceclaims", "ResourceClaim", ResourceClaim)

    @property
    def scope(self) -> str:
        return f"the ResourceClaims in {self.where}"


def claims_of(pod: Pod) -> tuple[Claim, ...]:
    """Return the ResourceClaims of a pod, each once: those it names, and those made for it.

    The claim for extended resources (`status.extendedResourceClaimStatus`) is not one of them: its devices
    are declared in the limits of the containers.
    """
    entries = pod.spec.resource_claims
    if not entries:
        return ()
    created = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    # A template may need no claim: then the status has no name.
    names = (each.resource_claim_name or created.get(each.name) for each in entries)
    return tuple(dict.fromkeys((pod.metadata.namespace, name) for name in names if name))


def claimed_devices(claim: ResourceClaim) -> Mapping[str, int] | None:
    """Return the number of accelerators of a claim by driver; None if it is not allocated."""
    try:
        # A device with several shares is one device.
        devices = {
            (each["driver"], each["pool"], each["device"])
            for each in claim.status["allocation"]["devices"]["results"]
            if not each.get("adminAccess")
        }
        return Counter(driver for driver, *_ in devices if driver in DEVICE_TYPES)
    except (AttributeError, KeyError, TypeError):
        return None


Claim: TypeAlias = tuple[str, str]
"""The namespace and the name of a ResourceClaim."""


class Devices:
    """The devices of ResourceClaims, as far as they were read.

    Attributes:
        faults: why the devices of pods are not known, by namespace.
    """

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self._counts: dict[Claim, Mapping[str, int] | None] = {}

    def unread(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return those of the claims that were not read yet."""
        return [each for each in claims if each not in self._counts]

    def added_to(self, endpoint: Endpoint, claims: Iterable[Claim]) -> Endpoint:
        """Return the endpoint of a pod, with the devices of its claims if all of them have some."""
        found = [self._counts.get(each) for each in claims]
        if None in found:
            return endpoint
        total = Counter(endpoint.accelerators or {})
        for each in found:
            total.update(each or {})
        return replace(endpoint, accelerators=_shared_mapping(total))

    async def read(self, api: ObjectAPI, claims: Iterable[Claim], progress: Progress) -> None:
        """Read these claims by one list of each namespace.

        That a user may not list them is not an error, because the devices are not needed to find the pods.
        """
        names: dict[str, set[str]] = {}
        for namespace, name in claims:
            names.setdefault(namespace, set()).add(name)

        async def read(namespace: str) -> None:
            found: dict[str, Mapping[str, int] | None] = {}
            self.faults.pop(namespace, None)
            try:
                listed = await api.objects(ClaimQuery("", namespace), progress, convert=_counts_by_name)
                found = dict(listed.items)
            except ResolveError as error:
                if error.retryable:
                    raise
                self.faults[namespace] = error.summary
            found = dict.fromkeys(names[namespace]) | found
            others = {key: count for key, count in self._counts.items() if key[0] != namespace}
            self._counts = {**others, **{(namespace, name): count for name, count in found.items()}}

        await gather([partial(read, each) for each in names], limit=MAX_CONCURRENT_READS)


def _counts_by_name(claims: Iterable[ResourceClaim]) -> list[tuple[str, Mapping[str, int] | None]]:
    return [(each.metadata.name, claimed_devices(each)) for each in claims]
