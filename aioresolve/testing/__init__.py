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
    from .faults import (
        Answer,
        Cut,
        Delay,
        End,
        Endless,
        Fault,
        Hang,
        Reset,
        Stall,
        Trickle,
        WatchError,
    )
    from .google.resources import instance, queued_resource, tpu_node, tpu_vm
    from .google.server import GoogleRequest, GoogleServer, ThreadedGoogleServer
    from .kubernetes.builders import endpoint, endpoint_slice, node, pod, resource_claim, service
    from .kubernetes.requests import RequestRecord
    from .kubernetes.server import KubernetesServer, ThreadedKubernetesServer
    from .tpu_worker import TPUWorker, tpu_worker_process

__all__ = [
    "Answer",
    "Cut",
    "Delay",
    "End",
    "Endless",
    "Fault",
    "GoogleRequest",
    "GoogleServer",
    "Hang",
    "KubernetesServer",
    "RequestRecord",
    "Reset",
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
    "google.resources": ("instance", "queued_resource", "tpu_node", "tpu_vm"),
    "google.server": ("GoogleRequest", "GoogleServer", "ThreadedGoogleServer"),
    "kubernetes.builders": ("endpoint", "endpoint_slice", "node", "pod", "resource_claim", "service"),
    "kubernetes.requests": ("RequestRecord",),
    "kubernetes.server": ("KubernetesServer", "ThreadedKubernetesServer"),
    "tpu_worker": ("TPUWorker", "tpu_worker_process"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each public name that is not in `faults`."""


def __getattr__(name: str) -> object:
    # aiohttp and grpc take a third of a second to import, so a module is loaded only when it is used.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'faults')}"), name)


def __dir__() -> list[str]:
    return list(__all__)
