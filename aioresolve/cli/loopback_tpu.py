"""What `aioresolve demo` shows of Cloud TPUs: two slices on loopback, their workers probed for real."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ProbeError, ProtocolError
from aioresolve.testing import GoogleServer, TPUWorker, tpu_node
from aioresolve.tpu import TPUClusterResolver
from aioresolve.tpu.slices import cluster_of

from .failures import as_text
from .output import Section
from .tpu_lookup import FoundTPUs
from .tpu_output import workers_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.probe import WorkerProbe
    from aioresolve.tpu import TPUSlice

__all__ = ["tpu_sections"]

NAMES = ("trainer-0", "trainer-1")
ZONE = "us-central2-b"
PROJECT = "demo-project"
HOSTS = 2
"""Workers of each slice."""

DEVICES = 4
"""Of each worker: a v4 host has four chips, and each is one device."""


def tpu_sections() -> list[Section]:
    """Return what there is to show, from servers that have run and are gone.

    Raises:
        ResolveError: there was no answer, or it was not what the servers hold.
        OSError: no server could be made.
    """
    # One loop for workers and prober: grpc.aio polls a single one of a process.
    return asyncio.run(_sections())


async def _sections() -> list[Section]:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(TPUWorker(DEVICES, task=task))
            for task in range(HOSTS * len(NAMES))
        ]
        cloud = await stack.enter_async_context(GoogleServer(project=PROJECT, zone=ZONE))
        for number, name in enumerate(NAMES):
            cloud.add(_node(name, workers[number * HOSTS : (number + 1) * HOSTS]))
        resolver = await stack.enter_async_context(
            TPUClusterResolver(
                NAMES,
                ZONE,
                PROJECT,
                discovery_url=f"{cloud.url}/$discovery/rest?version={{apiVersion}}",
            )
        )
        slices = await resolver.slices()
        started = time.perf_counter()
        probes = await resolver.probe()
        seconds = time.perf_counter() - started
        _check(slices, probes, workers)
        last = workers[-1]
        await last.__aexit__(None, None, None)
        await stack.enter_async_context(TPUWorker(DEVICES - 1, task=len(workers) - 1, port=last.port))
        return [
            Section(
                "A Cloud TPU API on loopback",
                f"{cloud.url} knows {len(NAMES)} slices of {HOSTS} hosts; at each listens a gRPC server.\n",
            ),
            Section(f"aioresolve tpu {' '.join(NAMES)} -o wide", workers_table(_found(slices), is_wide=True)),
            Section(
                f"--probe: {len(probes)} workers in {seconds * 1000:.0f} ms",
                workers_table(_found(slices, probes), is_wide=False),
            ),
            Section("When a worker comes back with a chip less", as_text(await _failure(resolver))),
        ]


def _node(name: str, workers: Sequence[TPUWorker]) -> dict[str, Any]:
    node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2")
    endpoints = [{"ipAddress": "127.0.0.1", "port": worker.port, "accessConfig": {}} for worker in workers]
    return node | {"networkEndpoints": endpoints}


def _found(slices: tuple[TPUSlice, ...], probes: Sequence[WorkerProbe] | None = None) -> FoundTPUs:
    answers = None if probes is None else {probe.address: probe for probe in probes}
    return FoundTPUs(slices, cluster_of(slices, "worker", {}, datetime.now(UTC)), answers)


def _check(slices: Sequence[TPUSlice], probes: Sequence[WorkerProbe], workers: Sequence[TPUWorker]) -> None:
    held = [(worker.address, {"TPU": DEVICES}) for worker in workers]
    found = [(probe.address, probe.accelerators) for probe in probes]
    if found != held or [len(one.endpoints) for one in slices] != [HOSTS] * len(NAMES):
        raise ProtocolError(f"the workers are {held}, and found were {found} in {slices}")


async def _failure(resolver: TPUClusterResolver) -> ProbeError:
    try:
        cores = await resolver.num_accelerators()
    except ProbeError as error:
        return error
    raise ProtocolError(f"a worker has a chip less, and {cores} were counted all the same")
