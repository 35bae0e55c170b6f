"""The layout of a slice, from its accelerator type, its bounds and its workers."""

from __future__ import annotations

import pytest

from aioresolve import TPUSlice
from aioresolve.errors import ProtocolError
from aioresolve.spec import Endpoint
from aioresolve.tpu.vm import TPUEnvironment, parse_bounds


def slice_of(accelerator_type: str | None, workers: int, topology: str | None = None) -> TPUSlice:
    """Return a slice with one worker for each host."""
    endpoints = tuple(Endpoint(f"10.0.0.{number}:8470") for number in range(workers))
    return TPUSlice(
        endpoints, environment=TPUEnvironment(accelerator_type=accelerator_type, topology=topology)
    )


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
def test_an_accelerator_type_determines_cores_chips_and_devices(
    accelerator_type: str, hosts: int, generation: str, cores: int, chips: int, devices_per_host: int
) -> None:
    topology = slice_of(accelerator_type, hosts).topology
    assert topology is not None
    assert (topology.generation, topology.cores, topology.chips) == (generation, cores, chips)
    assert topology.devices == devices_per_host * hosts
    assert (topology.hosts, topology.devices_per_host) == (hosts, devices_per_host)
    assert (topology.chips_per_host, topology.cores_per_host) == (chips // hosts, cores // hosts)


@pytest.mark.parametrize("accelerator_type", [None, "v9-8", "v4", "v4-0", "v4-8-x"])
def test_an_unknown_type_has_no_topology(accelerator_type: str | None) -> None:
    assert slice_of(accelerator_type, 1).topology is None


def test_a_contradiction_is_reported() -> None:
    for accelerator_type, workers, bounds, problem in (
        ("v4-16", 2, "2x2x4", "'v4-16' has 8 chips, but the topology 2x2x4 has 16"),
        ("v4-16", 3, None, "8 chips of v4-16 cannot be divided among 3 processes on 3 hosts"),
        ("v4-7", 1, None, "7 cores of v4-7 cannot be divided into chips with 2 cores"),
    ):
        with pytest.raises(ProtocolError, match=problem):
            _ = slice_of(accelerator_type, workers, bounds).topology


def test_bounds_are_numbers_with_an_x_between_them() -> None:
    assert parse_bounds("2x12x4") == (2, 12, 4)
    assert parse_bounds("") is None
    for text in ("2x", "2x0", "ax2", "1x1x1x1x1"):
        with pytest.raises(ProtocolError, match=r"not a topology such as '2x2x4'"):
            parse_bounds(text)
