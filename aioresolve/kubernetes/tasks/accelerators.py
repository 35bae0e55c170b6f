"""The accelerators that pods declare in the resource limits of their containers, and the types of devices.

For such resources the limit is the request, and what a pod needs follows from its containers as the scheduler
computes it: all containers and sidecars (init containers that restart always) run at the same time; any other
init container runs alone, with the sidecars before it. Source:
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers

A pod that uses Dynamic Resource Allocation only names its claims: see `resource_claims`.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from aioresolve.spec import ReadOnlyMapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def declared_accelerators(pod: Pod) -> Mapping[str, int] | None:
    """Return the number of accelerators that a pod declares by resource; None if it declares none."""
    spec = pod.spec
    if not spec.containers:
        return None
    if not spec.init_containers and len(spec.containers) == 1:  # nearly every pod of a program
        found = _limits(spec.containers[0])
    else:
        found = _sum(spec.containers, spec.init_containers or ())
    return shared_mapping(found)


def shared_mapping(counts: Mapping[str, int]) -> Mapping[str, int] | None:
    """Return `counts` by name, read-only, as one object that all pods with the same counts share.

    None if `counts` is empty.
    """
    return _mapping(tuple(counts.items() if len(counts) == 1 else sorted(counts.items()))) if counts else None


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


def device_counts(accelerators: Mapping[str, int]) -> dict[str, int]:
    """Return the number of devices by type; see `DEVICE_TYPES` and `DEVICE_CLASSES`."""
    counts: dict[str, int] = {}
    for resource, number in accelerators.items():
        kind = DEVICE_TYPES.get(resource) or DEVICE_CLASSES.get(resource.removeprefix(BY_CLASS), "GPU")  # MIG
        counts[kind] = counts.get(kind, 0) + number
    return counts


@lru_cache(maxsize=256)  # thousands of pods share a few values
def _mapping(items: tuple[tuple[str, int], ...]) -> ReadOnlyMapping[int]:
    return ReadOnlyMapping(dict(items))


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


def _sum(containers: Iterable[Container], init_containers: Iterable[Container]) -> Counter[str]:
    most: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for init in init_containers:
        limits = Counter(_limits(init))
        if init.restart_policy == "Always":
            sidecars += limits
            most |= sidecars
        else:
            most |= sidecars + limits
    for container in containers:
        sidecars += Counter(_limits(container))
    return most | sidecars
