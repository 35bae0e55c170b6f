"""What a worker says of itself, as values: devices, cores and chips, which are three numbers.

TensorFlow tells devices. libtpu tells the cores and chips it runs on and, by a metric, its devices. A TPU v4
chip has two cores and is one device; a v3 chip has two cores and is two. None is reckoned from another.

TensorFlow's `WorkerService/GetStatus`: an empty question, answered with the worker's own devices.

libtpu's `RuntimeMetricService`: what a TPU's own runtime tells, whatever framework uses it.

It listens while a program holds the TPU, on port 8431; several processes of one host listen on a port each,
as `TPU_RUNTIME_METRICS_PORTS` says. Format: tpu-info 0.14.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from google.protobuf.message import DecodeError

from aioresolve._core.concurrency import gather
from aioresolve.errors import ProbeError

from .libtpu_pb2 import MetricRequest, MetricResponse, RuntimeStatus
from .worker_pb2 import GetStatusResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .channels import Deadline, ProbeChannels, WorkerChannel

__all__ = [
    "GET_METRIC",
    "GET_RUNTIME_STATUS",
    "GET_STATUS",
    "MOST_DEVICES",
    "TOTAL_MEMORY",
    "Device",
    "Runtime",
    "WorkerProbe",
    "accelerators_by_type",
    "core_and_chip_counts",
    "devices_of_metric",
    "devices_of_status",
    "libtpu_runtime",
    "tensorflow_devices",
    "whole_runtime",
]

MOST_DEVICES = 4096
"""No host has more devices or cores; who says so is not believed."""

LONGEST_NAME = 1024
"""Characters of a device's name or type; TensorFlow's own are shorter than 100."""

HOST_TYPES = frozenset({"CPU", "XLA_CPU", "TPU_SYSTEM"})
"""Device types that are no accelerators. TensorFlow leaves out the first two and counts the third, which is a
host's handle on its TPUs. XLA_GPU, a GPU's second name in old TensorFlows, is a type of its own as there."""

TENSOR_CORE = 1
UNKNOWN_CORE = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One device, as the worker describes it.

    Attributes:
        name: TensorFlow's `/job:worker/replica:0/task:0/device:TPU:0`, libtpu's `libtpu:8431/device:TPU:0`.
        type: `"CPU"`, `"GPU"`, `"TPU"`, ...
        memory: bytes the device may use, or has; None where the worker does not say.
        incarnation: TensorFlow's number for this run of the worker: another one after a restart.
    """

    name: str
    type: str
    memory: int | None = None
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one libtpu process tells of the chips it holds; None where it does not tell."""

    devices: tuple[Device, ...] = ()
    cores: int | None = None
    chips: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerProbe:
    """What one worker answered, or why it did not.

    Attributes:
        address: the worker asked, `host:port`.
        source: who answered: the worker's TensorFlow server or its libtpu; None where nobody did.
        devices: every device told, CPUs too, in the worker's own order.
        cores: TensorCores, where libtpu told them.
        chips: TPU chips, where libtpu told them.
        latency: seconds until the answer, or until it was clear that there is none; connecting is included.
        error: why there is no answer; None where there is one.
    """

    address: str
    source: Literal["tensorflow", "libtpu"] | None = None
    devices: tuple[Device, ...] = ()
    cores: int | None = None
    chips: int | None = None
    latency: float = field(default=0.0, compare=False)
    error: ProbeError | None = None

    @property
    def accelerators(self) -> dict[str, int]:
        """Device type to number of devices, CPUs left out, as TensorFlow's `num_accelerators` has it.

        Where libtpu told cores and no devices, it is the cores.
        """
        if not self.devices and self.cores:
            return {"TPU": self.cores}
        return accelerators_by_type(self.devices)


def accelerators_by_type(devices: Iterable[Device]) -> dict[str, int]:
    """Return device type to number of devices, without the types that are no accelerators."""
    return dict(Counter(device.type for device in devices if device.type not in HOST_TYPES))


def devices_of_status(body: bytes, address: str) -> tuple[Device, ...]:
    """Return the devices in the answer of TensorFlow's `WorkerService/GetStatus`.

    Raises:
        ProbeError: (`"malformed"`) it is no such answer, or cannot be true.
    """
    try:
        told = GetStatusResponse.FromString(body).device_attributes
    except DecodeError as error:
        raise _malformed(address, f"{len(body)} bytes that are no GetStatusResponse: {error}") from error
    if not told:
        raise _malformed(address, "no device at all, where a TensorFlow worker has at least a CPU")
    _check_number(address, "devices", len(told))
    devices = tuple(
        Device(device.name, device.device_type, device.memory_limit, device.incarnation) for device in told
    )
    _check_names(address, devices)
    return devices


def core_and_chip_counts(body: bytes, address: str) -> tuple[int, int | None]:
    """Return how many TensorCores and chips are in the answer of libtpu's `GetTpuRuntimeStatus`.

    SparseCores do not count as cores, as in the names of TPUs. Chips are None where no core names its own.

    Raises:
        ProbeError: (`"malformed"`) it is no such answer, or cannot be true.
    """
    try:
        states = RuntimeStatus.FromString(body).core_states
    except DecodeError as error:
        raise _malformed(address, f"{len(body)} bytes that are no runtime status: {error}") from error
    _check_number(address, "cores", len(states))
    identifiers = [state.core_id for state in states.values()]
    cores = sum(core.core_on_chip.type in (TENSOR_CORE, UNKNOWN_CORE) for core in identifiers)
    if identifiers and not any(core.HasField("chip_id") for core in identifiers):
        return cores, None
    return cores, len({core.chip_id for core in identifiers})


def devices_of_metric(body: bytes, address: str, port: int) -> tuple[Device, ...]:
    """Return the devices in libtpu's answer to `GetRuntimeMetric` of the total memory: one metric each.

    Raises:
        ProbeError: (`"malformed"`) it is no such answer, or cannot be true.
    """
    try:
        metrics = MetricResponse.FromString(body).metric.metrics
    except DecodeError as error:
        raise _malformed(address, f"{len(body)} bytes that are no runtime metric: {error}") from error
    _check_number(address, "devices", len(metrics))
    memory = {metric.attribute.value.int_attr: metric.gauge.as_int for metric in metrics}
    if len(memory) < len(metrics):
        raise _malformed(address, f"{len(metrics)} metrics of {len(memory)} devices, where each has one")
    return tuple(
        Device(f"libtpu:{port}/device:TPU:{number}", "TPU", size) for number, size in sorted(memory.items())
    )


def whole_runtime(parts: Iterable[Runtime]) -> Runtime:
    """Return one host's runtime from those of its processes: each holds chips of its own, so numbers add up.

    Where one of them does not tell a number, there is no sum.
    """
    whole = Runtime(cores=0, chips=0)
    for part in parts:
        cores = None if whole.cores is None or part.cores is None else whole.cores + part.cores
        chips = None if whole.chips is None or part.chips is None else whole.chips + part.chips
        whole = Runtime(whole.devices + part.devices, cores, chips)
    return whole


def _check_number(address: str, what: str, number: int) -> None:
    if number > MOST_DEVICES:
        raise _malformed(address, f"{number:,} {what}, where no host has more than {MOST_DEVICES:,}")


def _check_names(address: str, devices: tuple[Device, ...]) -> None:
    if any(max(len(device.name), len(device.type)) > LONGEST_NAME for device in devices):
        raise _malformed(address, f"a device with a name or type of more than {LONGEST_NAME:,} characters")
    if not all(device.name and device.type for device in devices):
        raise _malformed(address, "a device without a name or a type")
    if len({device.name for device in devices}) < len(devices):
        raise _malformed(address, "the same device twice")


def _malformed(address: str, what: str) -> ProbeError:
    return ProbeError(
        f"{address} answered {what}; see which program listens there", address=address, code="malformed"
    )


GET_STATUS = "/tensorflow.WorkerService/GetStatus"


async def tensorflow_devices(channel: WorkerChannel, deadline: Deadline) -> tuple[Device, ...]:
    """Return the devices of the TensorFlow server at the other end.

    Raises:
        ProbeError: there is no answer, or none that can be believed.
    """
    return devices_of_status(await channel.ask(GET_STATUS, b"", deadline), channel.address)


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
