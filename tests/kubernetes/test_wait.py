"""Waiting for pods over real sockets: neither too early nor too late, and with a report at the deadline."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve import FailedClusterError
from aioresolve.testing import pod

from .loopback import TRAIN
from .samples import watch_policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve import ClusterState, KubernetesClusterResolver
    from aioresolve.testing import RequestRecord

    from .loopback import Loopback

UNSCHEDULABLE = "0/5 nodes are available: 5 Insufficient google.com/tpu."


def resolver_of(loopback: Loopback, jobs: Any = None, **arguments: Any) -> KubernetesClusterResolver:
    resolver = loopback.resolver(jobs, **arguments)
    resolver.watch_policy = watch_policy()
    return resolver


async def waiting(call: Awaitable[ClusterState]) -> asyncio.Task[ClusterState]:
    """Return the task of a wait that has started."""
    return asyncio.ensure_future(call)


async def until(loopback: Loopback, condition: Callable[[], bool]) -> None:
    await anyio.to_thread.run_sync(loopback.server.until, condition)


async def watching(loopback: Loopback) -> None:
    """Return once a watch is connected."""
    await until(loopback, lambda: loopback.server.watches > 0)


def is_watch(request: RequestRecord) -> bool:
    return request.verb == "watch"


def owned(one: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as one of a Job, which replaces it when it fails."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
    one["metadata"]["ownerReferences"] = [owner]
    return one


async def test_the_cluster_is_complete_when_the_last_pod_becomes_ready(loopback: Loopback) -> None:
    loopback.train("train-0")
    loopback.train("train-1", ready=False)
    loopback.train("train-2", phase="Pending")
    task = await waiting(resolver_of(loopback).wait(3, timeout=10))
    await watching(loopback)
    loopback.train("train-2")
    loopback.train("train-1", ready=False, restarts=1)
    assert not task.done()
    loopback.train("train-1")
    assert (await task).spec.num_tasks("worker") == 3
    assert [request.verb for request in loopback.requests] == ["watch"]


async def test_failed_pods_without_a_controller_end_the_wait_immediately(loopback: Loopback) -> None:
    loopback.train("train-0")
    loopback.train("train-1", phase="Failed", reason="Evicted", message="The node was low on memory.")
    started = time.monotonic()
    with pytest.raises(FailedClusterError, match=r"ml/train-1: Failed \(Evicted"):
        await resolver_of(loopback).wait(2, timeout=60)
    assert time.monotonic() - started < 60


async def test_the_wait_continues_until_a_controller_replaces_a_failed_pod(loopback: Loopback) -> None:
    loopback.train("train-0")
    loopback.server.add(owned(pod("train-1", "ml", labels=TRAIN, phase="Failed")))
    task = await waiting(resolver_of(loopback).wait(2, timeout=10))
    await watching(loopback)
    loopback.server.add(owned(pod("train-1-again", "ml", labels=TRAIN)))
    assert (await task).spec.num_tasks("worker") == 2
