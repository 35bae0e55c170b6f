"""A Kubernetes API server on a loopback port, for tests: see `KubernetesServer`."""

from __future__ import annotations

from .cluster import RequestRecord
from .faults import EndlessPages, WatchError
from .pods import pod
from .server import KubernetesServer, ThreadedKubernetesServer

__all__ = [
    "EndlessPages",
    "KubernetesServer",
    "RequestRecord",
    "ThreadedKubernetesServer",
    "WatchError",
    "pod",
]
