"""Loopback servers that speak the real protocols, for tests of clients of clusters.

`KubernetesServer` is an API server with pods, which `pod()` builds, and the EndpointSlices of a `service()`.
`GoogleServer` has Google's APIs for TPU nodes and VMs, and the metadata server. `TPUWorker` reports devices
over gRPC. All of them inject the faults of `aioresolve.testing.faults`. TLS needs the extra: `pip install
'aioresolve[testing]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .faults import Answer, Cut, Delay, End, Endless, Fault, Hang, Redirect, Reset, Stall, Trickle
    from .google.resources import GoogleRequest, instance, queued_resource, tpu_node, tpu_vm
    from .google.server import GoogleServer, ThreadedGoogleServer
    from .kubernetes.access import RequestRecord
    from .kubernetes.endpoint_slices import endpoint, endpoint_slice, service
    from .kubernetes.lists import EndlessPages
    from .kubernetes.pods import node, pod, resource_claim
    from .kubernetes.server import KubernetesServer, ThreadedKubernetesServer
    from .kubernetes.watches import WatchError
    from .tpu_worker import Silence, TPUWorker, tpu_worker_process

__all__ = [
    "Answer",
    "Cut",
    "Delay",
    "End",
    "Endless",
    "EndlessPages",
    "Fault",
    "GoogleRequest",
    "GoogleServer",
    "Hang",
    "KubernetesServer",
    "Redirect",
    "RequestRecord",
    "Reset",
    "Silence",
    "Stall",
    "TPUWorker",
    "ThreadedGoogleServer",
    "ThreadedKubernetesServer",
    "Trickle",
    "WatchError",
    "endpoint",
    "endpoint_slice",
    "instance",
    "node",
    "pod",
    "queued_resource",
    "resource_claim",
    "service",
    "tpu_node",
    "tpu_vm",
    "tpu_worker_process",
]

_MODULES = {
    "EndlessPages": "kubernetes.lists",
    "GoogleRequest": "google.resources",
    "GoogleServer": "google.server",
    "KubernetesServer": "kubernetes.server",
    "RequestRecord": "kubernetes.access",
    "Silence": "tpu_worker",
    "TPUWorker": "tpu_worker",
    "ThreadedGoogleServer": "google.server",
    "ThreadedKubernetesServer": "kubernetes.server",
    "WatchError": "kubernetes.watches",
    "endpoint": "kubernetes.endpoint_slices",
    "endpoint_slice": "kubernetes.endpoint_slices",
    "instance": "google.resources",
    "node": "kubernetes.pods",
    "pod": "kubernetes.pods",
    "queued_resource": "google.resources",
    "resource_claim": "kubernetes.pods",
    "service": "kubernetes.endpoint_slices",
    "tpu_node": "google.resources",
    "tpu_vm": "google.resources",
    "tpu_worker_process": "tpu_worker",
}
"""The module of each public name that is not in `faults`."""


def __getattr__(name: str) -> object:
    # aiohttp and grpc take a third of a second to import, so a module is loaded only when it is used.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'faults')}"), name)


def __dir__() -> list[str]:
    return list(__all__)
