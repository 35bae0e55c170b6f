"""Loopback servers that speak the real protocols, for tests of clients of clusters.

`KubernetesServer` is an API server with pods, which `pod()` builds. `GoogleServer` has Google's APIs for TPU
nodes and VMs, and the metadata server. `TPUWorker` reports devices over gRPC. All of them inject the faults
of `aioresolve.testing.faults`. TLS needs the extra: `pip install 'aioresolve[testing]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .faults import Answer, Cut, Delay, End, Endless, Fault, Hang, Redirect, Reset, Stall, Trickle
    from .google import (
        GoogleRequest,
        GoogleServer,
        ThreadedGoogleServer,
        instance,
        queued_resource,
        tpu_node,
        tpu_vm,
    )
    from .kubernetes import (
        EndlessPages,
        KubernetesServer,
        RequestRecord,
        ThreadedKubernetesServer,
        WatchError,
        pod,
    )
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
    "instance",
    "pod",
    "queued_resource",
    "tpu_node",
    "tpu_vm",
    "tpu_worker_process",
]

_KUBERNETES = (
    "EndlessPages",
    "KubernetesServer",
    "RequestRecord",
    "ThreadedKubernetesServer",
    "WatchError",
    "pod",
)
_GOOGLE = (
    "GoogleRequest",
    "GoogleServer",
    "ThreadedGoogleServer",
    "instance",
    "queued_resource",
    "tpu_node",
    "tpu_vm",
)
_TPU_WORKER = ("Silence", "TPUWorker", "tpu_worker_process")
_MODULES = (
    dict.fromkeys(__all__, "faults")
    | dict.fromkeys(_KUBERNETES, "kubernetes")
    | dict.fromkeys(_GOOGLE, "google")
    | dict.fromkeys(_TPU_WORKER, "tpu_worker")
)
"""Public name to the module that defines it."""


def __getattr__(name: str) -> object:
    # aiohttp and grpc take a third of a second to import, so a module is loaded only when it is used.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
