"""The devices of a TPU's workers, all probed at once. This module loads grpc: import it on first use."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from aioresolve.errors import ProbeError
from aioresolve.probe import LIBTPU_PORTS, Device, ProbeChannels, WorkerProbe, probe_workers
from aioresolve.probe.accelerators import common_accelerators

from .slices import libtpu_ports
from .tensorflow_runtime import TPUSystemMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aioresolve.probe.workers import LibtpuPorts

    from .slices import TPUSlice
    from .topology import TPUTopology

TPU = "TPU"

_LOCAL_NAME = re.compile(r"/device:[^/:]+:[0-9]+$")


async def probe_slices(
    slices: Sequence[TPUSlice], timeout: float, channels: ProbeChannels | None
) -> dict[str, WorkerProbe]:
    """Return the description of each worker to its devices or its error, in task order.

    Args:
        slices: the slices whose workers are probed, all at once.
        timeout: seconds after which workers that have not responded are given up.
        channels: how to reach the workers; if None, each through a channel of its own.
    """
    return await _probe(slices, timeout, channels, libtpu_ports(slices) or LIBTPU_PORTS)


async def verify_tensorflow_servers(slices: Sequence[TPUSlice], timeout: float) -> None:
    """Return when the TensorFlow server of every worker has reported its devices.

    Raises:
        ProbeDeadlineError: (a RuntimeError) no worker failed for a reason other than the timeout.
        ProbeError: (a RuntimeError) a worker failed, or the workers have different numbers of cores.
    """
    cores_per_host(await _probe(slices, timeout, None, ()), timeout)


async def _probe(
    slices: Sequence[TPUSlice], timeout: float, channels: ProbeChannels | None, ports: LibtpuPorts
) -> dict[str, WorkerProbe]:
    workers = {
        f"{endpoint.name} at {endpoint.address}" if endpoint.name else endpoint.address: endpoint.address
        for tpu_slice in slices
        for endpoint in tpu_slice.endpoints
    }
    probes = await probe_workers(
        workers.values(),
        timeout=timeout,
        worker_timeout=timeout,
        libtpu_ports=ports,
        channels=channels,
    )
    return dict(zip(workers, probes, strict=True))


def cores_per_host(probes: Mapping[str, WorkerProbe], timeout: float) -> int:
    """Return the number of TPU cores that each of these workers has; 0 if they have none.

    Args:
        probes: the description of each worker to its probe.
        timeout: the seconds that the workers had, for the error message.

    Raises:
        ProbeDeadlineError: (a RuntimeError) no worker failed for a reason other than the timeout.
        ProbeError: (a RuntimeError) a worker failed, or the workers have different numbers of cores.
    """
    try:
        return common_accelerators(probes, timeout).get(TPU, 0)
    except ProbeError as error:
        if error.code != "uneven":
            raise
    # The workers differ; for TensorFlow only their TPU cores have to be equal.
    counts = {worker: str(probe.accelerators.get(TPU, 0)) for worker, probe in probes.items()}
    if len(set(counts.values())) == 1:
        return int(next(iter(counts.values())))
    listed = ", ".join(f"{worker} has {count}" for worker, count in counts.items())
    raise ProbeError(
        f"the hosts have different numbers of TPU cores: {listed}",
        hint="Check that each host is up, and that no other program holds part of its TPU.",
        code="uneven",
        failures=counts,
    )


def system_metadata(
    probes: Mapping[str, WorkerProbe], topology: TPUTopology | None, job: str, timeout: float
) -> TPUSystemMetadata:
    """Return the facts about the system that these workers form, as tasks of `job`.

    Errors: see `cores_per_host`.
    """
    cores = cores_per_host(probes, timeout)
    hosts = tuple(probes.values())
    return TPUSystemMetadata(
        cores * len(hosts),
        len(hosts) if cores else 0,
        cores,
        topology,
        [device for task, probe in enumerate(hosts) for device in _task_devices(probe, job, task)],
        hosts,
    )


def _task_devices(probe: WorkerProbe, job: str, task: int) -> Iterator[Device]:
    """Yield the devices of a worker with the names that TensorFlow gives them in a cluster with that worker.

    The names that workers report are not unique: every server that was started alone is task 0 of its own
    cluster, and libtpu knows no tasks.
    """
    numbers: Counter[str] = Counter()
    for device in probe.devices:
        match = _LOCAL_NAME.search(device.name) if probe.source == "tensorflow" else None
        local_name = match[0] if match else f"/device:{device.type}:{numbers[device.type]}"
        numbers[device.type] += 1
        yield replace(device, name=f"/job:{job}/replica:0/task:{task}{local_name}")


def local_system(devices: Sequence[tuple[str, str]]) -> TPUSystemMetadata:
    """Return the facts about this host, whose devices are given by name and type."""
    cores = sum(kind == TPU for _, kind in devices)
    return TPUSystemMetadata(
        cores, 1 if cores else 0, cores, None, [Device(name, kind) for name, kind in devices]
    )
