"""Loopback servers that speak the real protocols, for tests of whatever talks to a cluster.

`KubernetesServer` holds `pod()`s and answers as a Kubernetes API server does; `GoogleServer` holds TPU
nodes and VMs and answers as Google's APIs do; `TPUWorker` tells its devices over gRPC;
`aioresolve.testing.faults` is the vocabulary of what can go wrong on the way. TLS needs the extra:
`pip install 'aioresolve[testing]'`.
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

_FAULTS = frozenset(
    {
        "Answer",
        "Cut",
        "Delay",
        "End",
        "Endless",
        "Fault",
        "Hang",
        "Redirect",
        "Reset",
        "Stall",
        "Trickle",
    }
)
_GOOGLE = frozenset(
    {
        "GoogleRequest",
        "GoogleServer",
        "ThreadedGoogleServer",
        "instance",
        "queued_resource",
        "tpu_node",
        "tpu_vm",
    }
)
_TPU_WORKER = frozenset({"Silence", "TPUWorker", "tpu_worker_process"})


def __getattr__(name: str) -> object:
    # aiohttp and grpc take a third of a second to import: only who uses a server pays for it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    rooms = {"faults": _FAULTS, "google": _GOOGLE, "tpu_worker": _TPU_WORKER}
    room = next((room for room, names in rooms.items() if name in names), "kubernetes")
    return getattr(importlib.import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return list(__all__)
