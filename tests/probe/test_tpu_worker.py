"""The loopback worker."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from aioresolve.errors import ConfigurationError, ProbeError
from aioresolve.probe import probe_worker, probe_workers
from aioresolve.testing.tpu_worker import Silence, TPUWorker, tpu_worker_process

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


async def test_port_in_use_raises_an_os_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as bound,
        pytest.raises(OSError, match="in use"),
    ):
        async with TPUWorker(port=bound.getsockname()[1]):
            pass


async def test_entering_twice_raises_an_error() -> None:
    async with TPUWorker() as worker:
        with pytest.raises(ConfigurationError, match="already running"):
            await worker.__aenter__()


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


@pytest.mark.slow
def test_process_that_does_not_start_raises_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="did not start"), tpu_worker_process(colour="red"):
        pass
    assert "colour" in capfd.readouterr().err


@pytest.mark.slow
def test_process_ends_with_its_parent() -> None:
    script = (
        "import os\n"
        "from aioresolve.testing.tpu_worker import tpu_worker_process\n"
        "with tpu_worker_process() as addresses:\n"
        "    print(addresses[0], flush=True)\n"
        "    os._exit(1)\n"
    )
    parent = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    port = int(parent.stdout.rpartition(":")[2])
    refused = threading.Event()

    def connect() -> None:
        while not refused.is_set():
            try:
                socket.create_connection(("127.0.0.1", port), timeout=GENEROUS).close()
            except ConnectionRefusedError:
                refused.set()

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        assert refused.wait(GENEROUS)
    finally:
        refused.set()
        thread.join()
