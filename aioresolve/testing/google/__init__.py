"""Google Cloud on loopback, for tests: see `GoogleServer`."""

from __future__ import annotations

from aioresolve.testing.google.requests import GoogleRequest
from aioresolve.testing.google.resources import instance, queued_resource, tpu_node, tpu_vm
from aioresolve.testing.google.server import GoogleServer
from aioresolve.testing.google.threaded import ThreadedGoogleServer

__all__ = [
    "GoogleRequest",
    "GoogleServer",
    "ThreadedGoogleServer",
    "instance",
    "queued_resource",
    "tpu_node",
    "tpu_vm",
]
