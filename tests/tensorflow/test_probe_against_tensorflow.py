"""Probes and TensorFlow's `list_devices` of the same servers: running, killed and restarted."""

from contextlib import ExitStack
from typing import Any

import anyio

from aioresolve.probe import ProbeChannels, WorkerProbe, probe_workers
from tests.programs import free_ports

from .serving import Server

CPUS = (2, 3, 4)
GENEROUS = 60.0


def probed_devices(probes: list[WorkerProbe]) -> list[tuple[Any, ...]]:
    return sorted(
        (device.name, device.type, device.memory, device.incarnation)
        for probe in probes
        for device in probe.devices
    )


def session_devices(tf: Any, address: str) -> list[tuple[Any, ...]]:
    """Return the devices that a TensorFlow session with that server lists: all devices of its cluster."""
    with tf.compat.v1.Session(f"grpc://{address}") as session:
        devices = session.list_devices()
    # The session returns the unsigned incarnation of the message as a signed number.
    return sorted(
        (each.name, each.device_type, each.memory_limit_bytes, each.incarnation % 2**64) for each in devices
    )


def test_devices_of_a_cluster_are_those_of_tensorflow_and_a_killed_server_is_named(tf: Any) -> None:
    """TensorFlow 2.21 hangs if a server was killed.

    `Session(...).list_devices()` had not returned after 15 minutes, during which no other thread of its
    process could run.
    """
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with ExitStack() as stack:
        servers = [Server({"worker": addresses}, "worker", index, cpus) for index, cpus in enumerate(CPUS)]
        for server in servers:
            stack.callback(server.kill)
            server.wait()
        anyio.run(kill_and_restart, tf, servers)


async def kill_and_restart(tf: Any, servers: list[Server]) -> None:
    addresses = [server.address for server in servers]
    async with ProbeChannels() as channels:
        before = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
        assert [len(probe.devices) for probe in before] == list(CPUS)
        assert probed_devices(before) == session_devices(tf, addresses[0])
        servers[2].kill()
        gone = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS, libtpu_ports=[])
        servers[2].start()
        await anyio.to_thread.run_sync(servers[2].wait)
        after = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
    assert [probe.error and probe.error.code for probe in gone] == [None, None, "refused"]
    assert addresses[2] in str(gone[2].error)
    assert after[:2] == before[:2]
    assert {device.incarnation for device in after[2].devices}.isdisjoint(
        device.incarnation for device in before[2].devices
    )
    assert probed_devices(after) == session_devices(tf, addresses[0])
