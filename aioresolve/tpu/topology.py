"""The layout of a slice: generation, cores, chips and hosts, from its accelerator type and bounds. No I/O.

The number in an accelerator type counts TensorCores: `v4-16` has 8 chips with two cores each. Cores per chip
and devices per chip can differ: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm, tpu-info 0.14.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from aioresolve.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Generation:
    """What all chips of one generation have in common.

    Attributes:
        name: `v2`, `v3`, `v4`, `v5e`, `v5p`, `v6e` or `7x`.
        cores_per_chip: TensorCores of a chip.
        devices_per_chip: devices of a chip, as TensorFlow and JAX count them.
        largest_host: the maximum number of chips of a slice with a single host.
    """

    name: str
    cores_per_chip: int
    devices_per_chip: int
    largest_host: int = 4


_V5E = Generation("v5e", 1, 1, 8)
_7X = Generation("7x", 2, 2)
GENERATIONS = {
    "v2": Generation("v2", 2, 2),
    "v3": Generation("v3", 2, 2),
    "v4": Generation("v4", 2, 1),
    "v5litepod": _V5E,
    "v5lite_pod": _V5E,
    "v5e": _V5E,
    "v5p": Generation("v5p", 2, 1),
    "v6e": Generation("v6e", 1, 1, 8),
    "tpu7x": _7X,
    "v7x": _7X,
}
"""By the first part of an accelerator type and by the type names of the API, both in lower case."""

CHIPS_PER_HOST = 4
"""In every slice with several hosts."""

_ACCELERATOR_TYPE = re.compile(r"(?P<kind>[a-z0-9_]+)-(?P<cores>[1-9][0-9]{0,5})")
_BOUNDS = re.compile(r"[1-9][0-9]{0,4}(?:x[1-9][0-9]{0,4}){0,3}")


@dataclass(frozen=True, slots=True)
class TPUTopology:
    """The layout of one slice.

    Attributes:
        accelerator_type: such as `v4-16`.
        generation: such as `v4`.
        cores: TensorCores of the slice.
        chips: chips of the slice.
        hosts: hosts of the slice.
        processes: processes of the slice, which are its workers: usually one for each host. The processes of
            a host share its chips equally.
        devices: devices of the slice, as TensorFlow and JAX count them.
        chip_bounds: chips in each dimension, such as `(2, 2, 2)`; None if the source does not report it.
        chips_per_host_bounds: chips of one host in each dimension; None if unknown.
        host_bounds: hosts in each dimension; None if unknown.
    """

    accelerator_type: str
    generation: str
    cores: int
    chips: int
    hosts: int
    processes: int
    devices: int
    chip_bounds: tuple[int, ...] | None = None
    chips_per_host_bounds: tuple[int, ...] | None = None
    host_bounds: tuple[int, ...] | None = None

    @property
    def chips_per_process(self) -> int:
        """Chips of each process."""
        return self.chips // self.processes

    @property
    def chips_per_host(self) -> int:
        """Chips of each host."""
        return self.chips // self.hosts

    @property
    def cores_per_host(self) -> int:
        """TensorCores of each host."""
        return self.cores // self.hosts

    @property
    def devices_per_host(self) -> int:
        """Devices of each host, as TensorFlow and JAX count them."""
        return self.devices // self.hosts


def slice_topology(
    accelerator_type: str | None = None,
    *,
    kind: str | None = None,
    chip_bounds: tuple[int, ...] | None = None,
    chips_per_host_bounds: tuple[int, ...] | None = None,
    host_bounds: tuple[int, ...] | None = None,
    hosts: int | None = None,
    processes: int | None = None,
) -> TPUTopology | None:
    """Return the layout of a slice; None if its generation is unknown or too little is given.

    `kind` is the API's `acceleratorConfig.type`, such as `V4`, if there is no accelerator type. For the other
    arguments see `TPUTopology`.

    Raises:
        ProtocolError: the numbers contradict each other.
    """
    match = _ACCELERATOR_TYPE.fullmatch((accelerator_type or "").lower())
    generation = GENERATIONS.get(match["kind"] if match else (kind or "").lower())
    if generation is None or (match is None and chip_bounds is None):
        return None
    if match is not None:
        cores = int(match["cores"])
        per_chip = generation.cores_per_chip
        chips = _divide(
            cores, per_chip, f"{cores} cores of {accelerator_type}", f"into chips with {per_chip} cores"
        )
    else:
        chips = math.prod(chip_bounds or ())
        cores = chips * generation.cores_per_chip
    if chip_bounds is not None and math.prod(chip_bounds) != chips:
        raise ProtocolError(
            f"accelerator type {accelerator_type!r} has {chips} chips, but the topology"
            f" {'x'.join(map(str, chip_bounds))} has {math.prod(chip_bounds)}"
        )
    if hosts is None:
        # Only a slice with a single host may have more chips per host than usual.
        by_rule = 1 if chips <= generation.largest_host else chips // CHIPS_PER_HOST
        hosts = by_rule if host_bounds is None else math.prod(host_bounds)
    _divide(chips, hosts, f"{chips} chips of {accelerator_type or kind}", f"among {hosts} hosts")
    processes = processes or hosts
    _divide(chips, processes, f"{chips} chips of {accelerator_type or kind}", f"among {processes} processes")
    return TPUTopology(
        accelerator_type or f"{kind} of {'x'.join(map(str, chip_bounds or ()))}",
        generation.name,
        cores,
        chips,
        hosts,
        processes,
        chips * generation.devices_per_chip,
        chip_bounds,
        chips_per_host_bounds,
        host_bounds,
    )


def parse_bounds(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in a topology such as `2x2x4`; None if it is not given.

    Raises:
        ProtocolError: the text has another form.
    """
    if not text:
        return None
    if _BOUNDS.fullmatch(text) is None:
        raise ProtocolError(
            f"{text!r} is not a topology such as '2x2x4'", hint="Check the description of the TPU."
        )
    return tuple(map(int, text.split("x")))


def _divide(total: int, by: int, what: str, how: str) -> int:
    if by < 1 or total % by:
        raise ProtocolError(f"{what} cannot be divided {how}")
    return total // by
