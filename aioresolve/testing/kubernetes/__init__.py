"""A Kubernetes API server on loopback, for tests: see `KubernetesServer`."""

from __future__ import annotations

from aioresolve.testing.kubernetes.disturbances import WatchError
from aioresolve.testing.kubernetes.endless_pages import EndlessPages
from aioresolve.testing.kubernetes.pods import pod
from aioresolve.testing.kubernetes.requests import RequestRecord
from aioresolve.testing.kubernetes.server import KubernetesServer
from aioresolve.testing.kubernetes.threaded import ThreadedKubernetesServer

__all__ = [
    "EndlessPages",
    "KubernetesServer",
    "RequestRecord",
    "ThreadedKubernetesServer",
    "WatchError",
    "pod",
]
