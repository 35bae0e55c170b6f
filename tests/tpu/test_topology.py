"""The layout of a slice, from its accelerator type and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ProtocolError
from aioresolve.tpu.slices import GENERATIONS, slice_topology
from aioresolve.tpu.vm import parse_bounds


@pytest.mark.parametrize(
    ("accelerator_type", "generation", "cores", "chips", "hosts", "devices_per_host"),
    [
        ("v2-512", "v2", 512, 256, 64, 8),
        ("v3-32", "v3", 32, 16, 4, 8),
        ("v4-16", "v4", 16, 8, 2, 4),
        ("v5litepod-1", "v5e", 1, 1, 1, 1),
        ("v5litepod-16", "v5e", 16, 16, 4, 4),
        ("v5litepod-8", "v5e", 8, 8, 1, 8),
        ("v5p-128", "v5p", 128, 64, 16, 4),
        ("v6e-256", "v6e", 256, 256, 64, 4),
        ("tpu7x-128", "7x", 128, 64, 16, 8),
    ],
)
def test_an_accelerator_type_determines_cores_chips_and_hosts(
    accelerator_type: str, generation: str, cores: int, chips: int, hosts: int, devices_per_host: int
) -> None:
    topology = slice_topology(accelerator_type)
    assert topology is not None
    assert (topology.generation, topology.cores, topology.chips, topology.hosts) == (
        generation,
        cores,
        chips,
        hosts,
    )
    assert topology.devices_per_host == devices_per_host
    assert topology.chips_per_host * hosts == chips
    assert topology.cores_per_host * hosts == cores


def test_bounds_are_kept_and_determine_the_hosts() -> None:
    topology = slice_topology(
        "v6e-8", chip_bounds=(2, 4), chips_per_host_bounds=(2, 2, 1), host_bounds=(1, 2, 1)
    )
    assert topology is not None
    assert (topology.hosts, topology.chips_per_host) == (2, 4)
    assert (topology.chip_bounds, topology.host_bounds) == ((2, 4), (1, 2, 1))


@pytest.mark.parametrize(
    "accelerator_type",
    [None, "v9-8", "v4", "v4-0", "v4-8-x"],
)
def test_an_unknown_type_has_no_topology(accelerator_type: str | None) -> None:
    assert slice_topology(accelerator_type) is None


def test_a_contradiction_is_reported() -> None:
    with pytest.raises(ProtocolError, match="8 chips, but the topology 2x2x4 has 16"):
        slice_topology("v4-16", chip_bounds=(2, 2, 4))
    with pytest.raises(ProtocolError, match="8 chips of v4-16 cannot be divided among 3 hosts"):
        slice_topology("v4-16", hosts=3)
    with pytest.raises(ProtocolError, match="7 cores of v4-7 cannot be divided into chips with 2 cores"):
        slice_topology("v4-7")


def test_bounds_are_numbers_with_an_x_between_them() -> None:
    assert parse_bounds("2x12x4") == (2, 12, 4)
    assert parse_bounds("") is None
    for text in ("2x", "2x0", "ax2", "1x1x1x1x1"):
        with pytest.raises(ProtocolError, match=r"not a topology such as '2x2x4'"):
            parse_bounds(text)


@given(st.sampled_from(sorted(GENERATIONS)), st.integers(0, 12))
def test_every_power_of_two_has_whole_hosts(kind: str, exponent: int) -> None:
    generation = GENERATIONS[kind]
    cores = generation.cores_per_chip * 2**exponent
    topology = slice_topology(f"{kind}-{cores}")
    assert topology is not None
    assert topology.chips == 2**exponent
    assert topology.chips_per_host * topology.hosts == topology.chips
    assert topology.devices == topology.chips * generation.devices_per_chip
