"""Loopback servers that speak the real protocols, for tests of whatever talks to a cluster.

`KubernetesServer` holds `pod()`s and answers as a Kubernetes API server does; `aioresolve.testing.faults` is
the vocabulary of what can go wrong on the way. TLS needs the extra: `pip install 'aioresolve[testing]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioresolve.testing.faults import Answer, Cut, Delay, Endless, Fault, Hang, Redirect, Reset, Trickle
    from aioresolve.testing.kubernetes import (
        EndlessPages,
        KubernetesServer,
        RequestRecord,
        ThreadedKubernetesServer,
        pod,
    )

__all__ = [
    "Answer",
    "Cut",
    "Delay",
    "Endless",
    "EndlessPages",
    "Fault",
    "Hang",
    "KubernetesServer",
    "Redirect",
    "RequestRecord",
    "Reset",
    "ThreadedKubernetesServer",
    "Trickle",
    "pod",
]

_FAULTS = frozenset({"Answer", "Cut", "Delay", "Endless", "Fault", "Hang", "Redirect", "Reset", "Trickle"})


def __getattr__(name: str) -> object:
    # aiohttp takes a third of a second to import: only who uses a server pays for it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "aioresolve.testing.faults" if name in _FAULTS else "aioresolve.testing.kubernetes"
    return getattr(importlib.import_module(room), name)


def __dir__() -> list[str]:
    return list(__all__)
