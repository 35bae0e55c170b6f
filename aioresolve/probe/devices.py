"""The devices, cores and chips of a worker: requests to it, and its responses as values.

TensorFlow reports devices. libtpu reports the cores and chips that it uses and, as a metric, its devices.
These are three different numbers: a TPU v4 chip has two cores and is one device; a v3 chip has two cores and
is two devices. None is computed from another.

- TensorFlow: `WorkerService/GetStatus`. The request is empty; the response lists the worker's devices.
- libtpu: `RuntimeMetricService`, independent of the framework. It listens on port 8431 while a program uses
  the TPU. With several processes per host, each listens on a port of its own (`TPU_RUNTIME_METRICS_PORTS`,
  which may also list ports on which no process listens). Source: tpu-info 0.14.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from google.protobuf.message import DecodeError, Message

from aioresolve._core.concurrency import gather
from aioresolve.errors import ProbeError
from aioresolve.spec.display import html_table, short_line

from .libtpu_pb2 import MetricRequest, MetricResponse, RuntimeStatus
from .worker_pb2 import GetStatusResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioresolve._core.deadline import Deadline

    from .channels import ProbeChannels, WorkerChannel

MessageT = TypeVar("MessageT", bound=Message)

GET_STATUS = "/tensorflow.WorkerService/GetStatus"

LIBTPU_SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService"
GET_RUNTIME_STATUS = f"{LIBTPU_SERVICE}/GetTpuRuntimeStatus"
GET_METRIC = f"{LIBTPU_SERVICE}/GetRuntimeMetric"
TOTAL_MEMORY = "tpu.runtime.hbm.memory.total.bytes"

UNSUPPORTED = frozenset({"failed", "unimplemented"})
"""Codes of errors with which an old or idle libtpu may respond to one request but not to the other."""

MAX_DEVICES = 4096
"""No host has more devices or cores; a response with more is rejected."""

MAX_NAME = 1024
"""The maximum length of the name or type of a device; those of TensorFlow are shorter than 100 characters."""

HOST_TYPES = frozenset({"CPU", "XLA_CPU", "TPU_SYSTEM"})
"""Device types that are not accelerators. TensorFlow excludes the first two, but counts TPU_SYSTEM, which is
the handle of a host on its TPUs. XLA_GPU, a second name of GPUs in old versions, counts as in TensorFlow."""

TENSOR_CORE = 1
UNKNOWN_CORE = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One device, as the worker reports it.

    >>> Device("/job:worker/replica:0/task:0/device:TPU:0", "TPU").type
    'TPU'

    Attributes:
        name: `/job:worker/replica:0/task:0/device:TPU:0` from TensorFlow; `libtpu:8431/device:TPU:0` from
            libtpu.
        type: `"CPU"`, `"GPU"`, `"TPU"`, ...
        memory: the memory of the device, or the part that may be used, in bytes; None if not reported.
        incarnation: a number from TensorFlow that changes when the worker is restarted.
    """

    name: str
    type: str
    memory: int | None = None
    incarnation: int | None = None

    @property
    def device_type(self) -> str:
        """The same as `type`: its name in TensorFlow's `LogicalDevice`."""
        return self.type


@dataclass(frozen=True, slots=True)
class WorkerProbe:
    """The result of probing one worker.

    >>> async with TPUWorker(devices=4) as worker:
    ...     probe = await probe_worker(worker.address)
    >>> probe.source, probe.accelerators
    ('tensorflow', {'TPU': 4})

    Attributes:
        address: the worker, `host:port`.
        source: what reported the devices, the TensorFlow server or libtpu; None after an error.
        devices: all reported devices, including CPUs, in the order of the worker.
        cores: the number of TensorCores, if libtpu reported it.
        chips: the number of TPU chips, if libtpu reported it.
        latency: seconds until the response or the failure, including the time to connect.
        error: why the probe failed; None if it succeeded.
    """

    address: str
    source: Literal["tensorflow", "libtpu"] | None = None
    devices: tuple[Device, ...] = ()
    cores: int | None = None
    chips: int | None = None
    latency: float = field(default=0.0, compare=False)
    error: ProbeError | None = None

    def __repr__(self) -> str:
        return short_line(f"<WorkerProbe {self.address}: {self._summary}>")

    def _repr_html_(self) -> str:
        columns = ("worker", "result", "latency")
        return html_table("probe", columns, [(self.address, self._summary, f"{self.latency:.3f} s")])

    @property
    def _summary(self) -> str:
        if self.error is not None:
            return self.error.summary
        counts = [f"{number} {kind}" for kind, number in self.accelerators.items()]
        return f"{', '.join(counts) or 'no accelerators'}, {len(self.devices)} devices, from {self.source}"

    @property
    def accelerators(self) -> dict[str, int]:
        """Device type to number of devices, without CPUs, as in TensorFlow's `num_accelerators`.

        If libtpu reported cores but no devices, the cores are counted.
        """
        if not self.devices and self.cores:
            return {"TPU": self.cores}
        return dict(Counter(device.type for device in self.devices if device.type not in HOST_TYPES))


async def probe_tensorflow(channel: WorkerChannel, deadline: Deadline) -> WorkerProbe:
    """Request the devices of the TensorFlow server at the other end of the channel."""
    body = await channel.call(GET_STATUS, b"", deadline)
    return WorkerProbe(channel.address, "tensorflow", parse_status(body, channel.address))


async def probe_libtpu(
    channels: ProbeChannels, address: str, ports: Sequence[int], deadline: Deadline, *, is_host_shared: bool
) -> WorkerProbe:
    """Return the sum of what the libtpu processes of a worker report, each at a port of its own.

    A host may list more ports than it has processes, so those that refuse connections are left out if
    another one responds. Every process that accepts its connection must respond: a sum without it would be
    wrong. `is_host_shared` says that the host of the worker has other workers too.
    """
    host = address.rpartition(":")[0]
    ports = tuple(dict.fromkeys(ports))
    # By default every process reports the devices of the whole host, which a sum would count repeatedly.
    is_one_of_several = is_host_shared or len(ports) > 1

    async def fetch_if_listening(port: int) -> WorkerProbe | ProbeError:
        try:
            async with channels.acquire(f"{host}:{port}", deadline) as channel:
                return await _probe_process(channel, port, is_one_of_several, deadline)
        except ProbeError as error:
            if error.code != "refused":
                raise
            return error

    results = await gather([partial(fetch_if_listening, port) for port in ports], limit=len(ports))
    processes = [result for result in results if isinstance(result, WorkerProbe)]
    if not processes:
        raise next(result for result in results if isinstance(result, ProbeError))
    return WorkerProbe(
        address,
        "libtpu",
        tuple(device for process in processes for device in process.devices),
        _total(process.cores for process in processes),
        _total(process.chips for process in processes),
    )


async def _probe_process(
    channel: WorkerChannel, port: int, is_one_of_several: bool, deadline: Deadline
) -> WorkerProbe:
    """Return the cores and chips from the status of one process, and the devices from its metrics."""
    cores = chips = None
    try:
        body = await channel.call(GET_RUNTIME_STATUS, b"", deadline)
        cores, chips = parse_runtime_status(body, channel.address)
    except ProbeError as error:
        if error.code not in UNSUPPORTED:
            raise
    try:
        request = MetricRequest(metric_name=TOTAL_MEMORY, skip_node_aggregation=is_one_of_several)
        body = await channel.call(GET_METRIC, request.SerializeToString(), deadline)
        devices = parse_memory_metric(body, channel.address, port)
    except ProbeError as error:
        if cores is None or error.code not in UNSUPPORTED | {"deadline"}:
            raise
        devices = ()
    return WorkerProbe(channel.address, "libtpu", devices, cores, chips)


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if a process does not report its number."""
    found = list(numbers)
    return None if None in found else sum(filter(None, found))


def parse_status(body: bytes, address: str) -> tuple[Device, ...]:
    """Return the devices in a response of TensorFlow's `WorkerService/GetStatus`."""
    attributes = _decode(GetStatusResponse, body, address).device_attributes
    if not attributes:
        raise _malformed(address, "no devices, but a TensorFlow worker has at least a CPU")
    _check_number(address, "devices", len(attributes))
    devices = tuple(
        Device(device.name, device.device_type, device.memory_limit, device.incarnation)
        for device in attributes
    )
    if any(max(len(device.name), len(device.type)) > MAX_NAME for device in devices):
        raise _malformed(address, f"a device with a name or type of more than {MAX_NAME:,} characters")
    if not all(device.name and device.type for device in devices):
        raise _malformed(address, "a device without a name or a type")
    if len({device.name for device in devices}) < len(devices):
        raise _malformed(address, "the same device twice")
    return devices


def parse_runtime_status(body: bytes, address: str) -> tuple[int, int | None]:
    """Return the numbers of TensorCores and chips in a response of libtpu's `GetTpuRuntimeStatus`.

    SparseCores are not counted, as in the names of TPU types. The number of chips is None if no core names
    its chip.
    """
    states = _decode(RuntimeStatus, body, address).core_states
    _check_number(address, "cores", len(states))
    identifiers = [state.core_id for state in states.values()]
    cores = sum(core.core_on_chip.type in (TENSOR_CORE, UNKNOWN_CORE) for core in identifiers)
    if identifiers and not any(core.HasField("chip_id") for core in identifiers):
        return cores, None
    return cores, len({core.chip_id for core in identifiers})


def parse_memory_metric(body: bytes, address: str, port: int) -> tuple[Device, ...]:
    """Return the devices in libtpu's response to `GetRuntimeMetric` of the total memory: one metric each."""
    metrics = _decode(MetricResponse, body, address).metric.metrics
    _check_number(address, "devices", len(metrics))
    memory = {metric.attribute.value.int_attr: metric.gauge.as_int for metric in metrics}
    if len(memory) < len(metrics):
        raise _malformed(address, f"{len(metrics)} metrics of {len(memory)} devices instead of one for each")
    return tuple(
        Device(f"libtpu:{port}/device:TPU:{number}", "TPU", size) for number, size in sorted(memory.items())
    )


def _decode(kind: type[MessageT], body: bytes, address: str) -> MessageT:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise _malformed(address, f"{len(body)} bytes that are not a {kind.__name__}: {error}") from error


def _check_number(address: str, what: str, number: int) -> None:
    if number > MAX_DEVICES:
        raise _malformed(address, f"{number:,} {what}, but no host has more than {MAX_DEVICES:,}")


def _malformed(address: str, what: str) -> ProbeError:
    return ProbeError(
        f"{address} returned {what}",
        hint="Check which program listens there.",
        address=address,
        code="malformed",
    )
