"""Google Cloud on loopback ports, for tests: see `GoogleServer`."""

from __future__ import annotations

from .cloud import GoogleRequest
from .resources import instance, queued_resource, tpu_node, tpu_vm
from .server import GoogleServer, ThreadedGoogleServer

__all__ = [
    "GoogleRequest",
    "GoogleServer",
    "ThreadedGoogleServer",
    "instance",
    "queued_resource",
    "tpu_node",
    "tpu_vm",
]
