"""The loopback worker."""

from __future__ import annotations

import asyncio

import pytest

from aioresolve.errors import ConfigurationError, ProbeError
from aioresolve.probe import probe_worker, probe_workers
from aioresolve.testing import Silence, TPUWorker, tpu_worker_process

pytestmark = pytest.mark.usefixtures("no_leak")

GENEROUS = 60.0


@pytest.mark.parametrize("faults", [[], [Silence()]])
async def test_port_is_kept_when_the_worker_is_entered_again(faults: list[Silence]) -> None:
    worker = TPUWorker(ports=2, faults=faults)
    async with worker:
        before = worker.addresses
    async with worker:
        assert worker.addresses == before
    assert len({*before, worker.address}) == 2


async def test_worker_in_a_second_loop_raises_an_error() -> None:
    async def enter() -> None:
        async with TPUWorker():
            pass

    async with TPUWorker():
        with pytest.raises(ConfigurationError, match="tpu_worker_process"):
            await asyncio.to_thread(asyncio.run, enter())


def test_process_serves_many_ports_and_ends_with_the_block() -> None:
    with tpu_worker_process(devices=2, ports=20) as addresses:
        probes = asyncio.run(probe_workers(addresses, worker_timeout=GENEROUS))
        assert [probe.accelerators for probe in probes] == [{"TPU": 2}] * 20
    with pytest.raises(ProbeError, match="connection refused"):
        asyncio.run(probe_worker(addresses[0], libtpu_ports=[], timeout=GENEROUS))
