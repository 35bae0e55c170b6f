"""A Kubernetes API server on loopback, for tests: see `KubernetesServer`."""

from __future__ import annotations

from .disturbances import WatchError
from .endless_pages import EndlessPages
from .pods import pod
from .requests import RequestRecord
from .server import KubernetesServer, ThreadedKubernetesServer

__all__ = [
    "EndlessPages",
    "KubernetesServer",
    "RequestRecord",
    "ThreadedKubernetesServer",
    "WatchError",
    "pod",
]
