"""Probes and TensorFlow's `list_devices` of the same servers: running, killed, stopped and restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve.probe import ProbeChannels, WorkerProbe, probe_workers
from tests.programs import free_ports

from .serving import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

CPUS = (2, 3, 4)
GENEROUS = 60.0


@pytest.fixture(scope="module")
def servers(tf: Any) -> Iterator[list[Server]]:
    """Three servers of one cluster, followed by a server of a cluster of its own."""
    *cluster, single = [f"127.0.0.1:{port}" for port in free_ports(4)]
    running = [Server({"worker": cluster}, "worker", index, cpus) for index, cpus in enumerate(CPUS)]
    running.append(Server({"worker": [single]}, "worker", 0, 8))
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
