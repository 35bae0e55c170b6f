"""The layout of a slice, from its accelerator type, its bounds and its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve import TPUTopology

    TopologyOf = Callable[[str, int, str], Awaitable[TPUTopology | None]]


@pytest.fixture
def topology_of(monkeypatch: pytest.MonkeyPatch) -> TopologyOf:
    """A function that returns the layout of a slice with one worker on each host."""

    async def topology(accelerator_type: str, hosts: int, bounds: str) -> TPUTopology | None:
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", ",".join(f"host-{number}" for number in range(hosts)))
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", accelerator_type)
        monkeypatch.setenv("TPU_TOPOLOGY", bounds)
        return await TPUClusterResolver().topology()

    return topology


@pytest.mark.parametrize(
    ("accelerator_type", "hosts", "generation", "cores", "chips", "devices_per_host"),
    [
        ("v2-512", 64, "v2", 512, 256, 8),
        ("v3-32", 4, "v3", 32, 16, 8),
        ("v4-16", 2, "v4", 16, 8, 4),
        ("v5litepod-1", 1, "v5e", 1, 1, 1),
        ("v5litepod-16", 4, "v5e", 16, 16, 4),
        ("v5p-128", 16, "v5p", 128, 64, 4),
        ("v6e-256", 64, "v6e", 256, 256, 4),
        ("tpu7x-128", 16, "7x", 128, 64, 8),
    ],
)
async def test_an_accelerator_type_determines_cores_chips_and_devices(
    accelerator_type: str,
    hosts: int,
    generation: str,
    cores: int,
    chips: int,
    devices_per_host: int,
    topology_of: TopologyOf,
) -> None:
    topology = await topology_of(accelerator_type, hosts, "")
    assert topology is not None
    assert (topology.generation, topology.cores, topology.chips) == (generation, cores, chips)
    assert topology.devices == devices_per_host * hosts
    assert (topology.hosts, topology.devices_per_host) == (hosts, devices_per_host)
    assert (topology.chips_per_host, topology.cores_per_host) == (chips // hosts, cores // hosts)


@pytest.mark.parametrize("accelerator_type", ["", "v9-8", "v4", "v4-0", "v4-8-x"])
async def test_an_unknown_type_has_no_topology(accelerator_type: str, topology_of: TopologyOf) -> None:
    assert await topology_of(accelerator_type, 1, "") is None


@pytest.mark.parametrize(
    ("accelerator_type", "hosts", "bounds", "problem"),
    [
        ("v4-16", 2, "2x2x4", "'v4-16' has 8 chips, but the topology 2x2x4 has 16"),
        ("v4-16", 3, "", "8 chips of v4-16 cannot be divided among 3 processes on 3 hosts"),
        ("v4-7", 1, "", "7 cores of v4-7 cannot be divided into chips with 2 cores"),
        ("v4-8", 1, "2x", "'2x' is not a topology such as '2x2x4'"),
        ("v4-8", 1, "2x0", "'2x0' is not a topology"),
        ("v4-8", 1, "1x1x1x1x1", "'1x1x1x1x1' is not a topology"),
    ],
)
async def test_a_contradiction_is_reported(
    accelerator_type: str, hosts: int, bounds: str, problem: str, topology_of: TopologyOf
) -> None:
    with pytest.raises(ProtocolError, match=problem):
        await topology_of(accelerator_type, hosts, bounds)
