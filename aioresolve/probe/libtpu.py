"""libtpu's `RuntimeMetricService`: what a TPU's own runtime tells, whatever framework uses it.

It listens while a program holds the TPU, on port 8431; several processes of one host listen on a port each,
as `TPU_RUNTIME_METRICS_PORTS` says. Format: tpu-info 0.14.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aioresolve.concurrency import gather
from aioresolve.errors import ProbeError

from .devices import Runtime, core_and_chip_counts, devices_of_metric, whole_runtime
from .wire.libtpu_pb2 import MetricRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .channels import ProbeChannels, WorkerChannel
    from .deadline import Deadline
    from .devices import Device

__all__ = ["GET_METRIC", "GET_RUNTIME_STATUS", "TOTAL_MEMORY", "libtpu_runtime"]

SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService"
GET_RUNTIME_STATUS = f"{SERVICE}/GetTpuRuntimeStatus"
GET_METRIC = f"{SERVICE}/GetRuntimeMetric"
TOTAL_MEMORY = "tpu.runtime.hbm.memory.total.bytes"

UNTOLD = frozenset({"failed", "unimplemented"})
"""What an older or idle libtpu says to one question and need not say to the other."""


async def libtpu_runtime(
    channels: ProbeChannels, host: str, ports: Sequence[int], deadline: Deadline
) -> Runtime:
    """Return what the libtpu processes of one host tell, taken together.

    Args:
        channels: how they are reached.
        host: the host, an IPv6 address in brackets.
        ports: the port of each process. All of them have to answer, or the numbers would not be the host's.
        deadline: when to give up.

    Raises:
        ProbeError: one of them does not answer, or what cannot be believed.
    """
    calls = [partial(_process_runtime, channels, f"{host}:{port}", port, deadline) for port in ports]
    return whole_runtime(await gather(calls, limit=len(calls)))


async def _process_runtime(channels: ProbeChannels, address: str, port: int, deadline: Deadline) -> Runtime:
    """Return what one process tells: cores and chips by its status, devices by a metric that each has."""
    cores = chips = None
    async with channels.to(address, deadline) as channel:
        try:
            cores, chips = core_and_chip_counts(await channel.ask(GET_RUNTIME_STATUS, b"", deadline), address)
        except ProbeError as error:
            if error.code not in UNTOLD:
                raise
        try:
            devices = await _devices(channel, port, deadline)
        except ProbeError as error:
            if cores is None or error.code not in UNTOLD | {"deadline"}:
                raise
            devices = ()
    return Runtime(devices, cores, chips)


async def _devices(channel: WorkerChannel, port: int, deadline: Deadline) -> tuple[Device, ...]:
    request = MetricRequest(metric_name=TOTAL_MEMORY).SerializeToString()
    return devices_of_metric(await channel.ask(GET_METRIC, request, deadline), channel.address, port)
