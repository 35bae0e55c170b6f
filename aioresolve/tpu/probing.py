"""`TPUSystemMetadata`: TensorFlow's tuple of facts, with what each worker said behind it. Pure.

What the workers of a TPU say when they are all asked at once. Loads grpc: imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.errors import ProbeError
from aioresolve.probe import LIBTPU_PORTS, Device, ProbeChannels, WorkerProbe, probe_workers
from aioresolve.probe.accelerators import accelerators_shared, operation_timeout
from aioresolve.probe.channels import Deadline

from .tensorflow_runtime import TPUSystemMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .slices import TPUSlice
    from .topology import TPUTopology

__all__ = [
    "Deadline",
    "ProbeChannels",
    "cores_per_host",
    "local_system",
    "operation_timeout",
    "probed_slices",
    "system_metadata",
    "tensorflow_answers",
]


TPU = "TPU"


async def probed_slices(
    slices: Sequence[TPUSlice], timeout: float, channels: ProbeChannels | None
) -> dict[str, WorkerProbe]:
    """Return each worker, in words, to what it says of its devices or why it does not; in task order.

    Args:
        slices: whose workers are asked, all at once.
        timeout: seconds until those that have not answered are given up.
        channels: how they are reached; each by a channel of its own where None.
    """
    ports = next(
        (one.environment.runtime_metrics_ports for one in slices if one.environment.runtime_metrics_ports), ()
    )
    return await _probed(slices, timeout, channels, ports or LIBTPU_PORTS)


async def tensorflow_answers(slices: Sequence[TPUSlice], timeout: float) -> None:
    """Return once every worker's TensorFlow server has told its devices.

    Raises:
        DeadlineExceededError: all that did not answer ran out of time.
        ProbeError: (a RuntimeError) a worker did not answer, or one has another number of cores than another.
    """
    cores_per_host(await _probed(slices, timeout, None, ()), timeout)


async def _probed(
    slices: Sequence[TPUSlice], timeout: float, channels: ProbeChannels | None, libtpu_ports: Sequence[int]
) -> dict[str, WorkerProbe]:
    workers = {
        f"{endpoint.name} at {endpoint.address}" if endpoint.name else endpoint.address: endpoint.address
        for one in slices
        for endpoint in one.endpoints
    }
    probes = await probe_workers(
        workers.values(),
        timeout=timeout,
        worker_timeout=timeout,
        libtpu_ports=libtpu_ports,
        channels=channels,
    )
    return dict(zip(workers, probes, strict=True))


def cores_per_host(probes: Mapping[str, WorkerProbe], timeout: float) -> int:
    """Return how many TPU cores each of these workers has; 0 where none has any.

    Args:
        probes: each worker in words to its row.
        timeout: the seconds they had, for the error message.

    Raises:
        DeadlineExceededError: all that did not answer ran out of time.
        ProbeError: (a RuntimeError) a worker did not answer, or one has another number than another.
    """
    try:
        return accelerators_shared(probes, timeout).get(TPU, 0)
    except ProbeError as error:
        if error.code != "uneven":
            raise
    counts = {worker: str(probe.accelerators.get(TPU, 0)) for worker, probe in probes.items()}
    if len(set(counts.values())) == 1:
        return int(next(iter(counts.values())))
    listed = ", ".join(f"{worker} has {count}" for worker, count in counts.items())
    raise ProbeError(
        f"the hosts have different numbers of TPU cores: {listed}; see that each is up, and that no other"
        " program holds part of its TPU",
        code="uneven",
        failures=counts,
    )


def system_metadata(
    probes: Mapping[str, WorkerProbe], topology: TPUTopology | None, timeout: float
) -> TPUSystemMetadata:
    """Return the facts of the system that these workers are.

    Raises:
        DeadlineExceededError: all that did not answer ran out of time.
        ProbeError: (a RuntimeError) a worker did not answer, or one has another number of cores than another.
    """
    cores = cores_per_host(probes, timeout)
    hosts = tuple(probes.values())
    return TPUSystemMetadata(
        cores * len(hosts),
        len(hosts) if cores else 0,
        cores,
        topology,
        [device for probe in hosts for device in probe.devices],
        hosts,
    )


def local_system(devices: Sequence[tuple[str, str]]) -> TPUSystemMetadata:
    """Return the facts of this very host, whose devices are given by name and type."""
    cores = sum(kind == TPU for _, kind in devices)
    return TPUSystemMetadata(
        cores, 1 if cores else 0, cores, None, [Device(name, kind) for name, kind in devices]
    )
