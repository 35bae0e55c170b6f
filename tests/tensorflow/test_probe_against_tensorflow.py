"""Probes and TensorFlow's `list_devices` of the same servers: running, killed, stopped and restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve.errors import ProbeError
from aioresolve.probe import ProbeChannels, WorkerProbe, probe_worker, probe_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CPUS = (2, 3, 4)
GENEROUS = 60.0


class Server:
    """A TensorFlow server in a separate process."""

    def __init__(self, cluster: list[str], index: int, cpus: int) -> None:
        self.address = cluster[index]
        self._command = [sys.executable, "-m", "tests.tensorflow.serving"]
        self._command += [json.dumps({"worker": cluster}), str(index), str(cpus)]
        self.start()

    def start(self) -> None:
        """Start the process; TensorFlow takes seconds to import."""
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self) -> None:
        """Wait until it serves."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"grpc://{self.address}\n"

    def stop(self) -> None:
        """Stop it, and wait until each of its threads has stopped: they may respond until then."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let it continue after `stop`."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        with self._process:
            self._process.kill()


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


@pytest.fixture(scope="module")
def servers(tf: Any) -> Iterator[list[Server]]:
    """Three servers of one cluster, followed by a server of a cluster of its own."""
    *cluster, single = free_addresses(4)
    tasks = [(cluster, index, cpus) for index, cpus in enumerate(CPUS)]
    running = [Server(*task) for task in [*tasks, ([single], 0, 8)]]
    try:
        for server in running:
            server.wait()
        yield running
    finally:
        for server in running:
            server.kill()


def probed_devices(probes: list[WorkerProbe]) -> list[tuple[Any, ...]]:
    return [
        (device.name, device.type, device.memory, device.incarnation)
        for probe in probes
        for device in probe.devices
    ]


def session_devices(tf: Any, address: str) -> list[tuple[Any, ...]]:
    """Return the devices that a TensorFlow session with that server lists: all devices of its cluster."""
    with tf.compat.v1.Session(f"grpc://{address}") as session:
        devices = session.list_devices()
    # The session returns the unsigned incarnation of the message as a signed number.
    return [
        (each.name, each.device_type, each.memory_limit_bytes, each.incarnation % 2**64) for each in devices
    ]


async def test_devices_of_a_cluster_are_those_of_tensorflow(tf: Any, servers: list[Server]) -> None:
    addresses = [server.address for server in servers[:3]]
    probes = await probe_workers(addresses, worker_timeout=GENEROUS)
    assert [len(probe.devices) for probe in probes] == list(CPUS)
    assert sorted(probed_devices(probes)) == sorted(session_devices(tf, addresses[0]))


async def test_tensorflow_server_has_no_method_of_libtpu(servers: list[Server]) -> None:
    """The server responds on its port, but not to the methods of libtpu."""
    port = int(servers[3].address.rpartition(":")[2])
    with pytest.raises(ProbeError, match="gRPC server without GetRuntimeMetric"):
        await probe_worker(free_addresses(1)[0], libtpu_ports=[port], timeout=GENEROUS)


async def test_stopped_server_is_named_within_the_deadline(
    servers: list[Server],
) -> None:
    """TensorFlow 2.21 does not name the server in the same situation.

    `Session(...).list_devices()` had not returned after 3 minutes. With `operation_timeout_in_ms=3000` it
    raised "Deadline Exceeded" after 3 s, without further details.
    """
    addresses = [server.address for server in servers[:3]]
    stopped = servers[1]
    async with ProbeChannels() as channels:
        await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
        await asyncio.to_thread(stopped.stop)
        try:
            kept = await probe_workers(addresses, channels=channels, worker_timeout=3.0)
            fresh = await probe_workers(addresses, worker_timeout=3.0)
        finally:
            stopped.resume()
        after = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
    for probes in (kept, fresh):
        assert [probe.error and probe.error.code for probe in probes] == [None, "deadline", None]
    assert [probe.error for probe in after] == [None] * 3


def test_killed_server_is_named_and_responds_again_when_restarted(tf: Any, servers: list[Server]) -> None:
    """TensorFlow 2.21 hangs in the same situation.

    `Session(...).list_devices()` had not returned after 15 minutes, during which no other thread of its
    process could run.
    """
    anyio.run(kill_and_restart, tf, servers)


async def kill_and_restart(tf: Any, servers: list[Server]) -> None:
    addresses = [server.address for server in servers[:3]]
    async with ProbeChannels() as channels:
        before = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
        servers[2].kill()
        gone = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS, libtpu_ports=[])
        servers[2].start()
        await anyio.to_thread.run_sync(servers[2].wait)
        after = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
    assert [probe.error and probe.error.code for probe in gone] == [None, None, "refused"]
    assert addresses[2] in str(gone[2].error)
    assert [probe.error for probe in after] == [None] * 3
    assert after[:2] == before[:2]
    assert {device.incarnation for device in after[2].devices}.isdisjoint(
        device.incarnation for device in before[2].devices
    )
    assert sorted(probed_devices(after)) == sorted(session_devices(tf, addresses[0]))
