"""Recorded responses of real workers, and functions that create others."""

from aioresolve.probe.libtpu_pb2 import MetricResponse, RuntimeStatus
from aioresolve.probe.worker_pb2 import GetStatusResponse

TWO_CPUS = (
    b"\nL\n)/job:worker/replica:0/task:0/device:CPU:0\x12\x03CPU \x80\x80\x80\x80\x01"
    b"*\x001I\x0c\xec\xf23M\x1d\x88@\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    b"\nL\n)/job:worker/replica:0/task:0/device:CPU:1\x12\x03CPU \x80\x80\x80\x80\x01"
    b"*\x001\x97\xdb\xfe\xfa\x07{\x97-@\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
)
"""The first two devices in the response of a TensorFlow 2.21 server with eight virtual CPUs."""

TENSOR_CORE, SPARSE_CORE = 1, 3


def status(*names: str) -> bytes:
    """Return the TensorFlow response of a worker with these devices, such as `TPU:0`."""
    message = GetStatusResponse()
    for name in names:
        message.device_attributes.add(
            name=f"/job:worker/replica:0/task:0/device:{name}", device_type=name.partition(":")[0]
        )
    return message.SerializeToString()


def runtime_status(*cores: tuple[int | None, int | None]) -> bytes:
    """Return the libtpu response of a host with these cores, each given as its chip and its type."""
    message = RuntimeStatus()
    for number, (chip, kind) in enumerate(cores):
        identifier = message.core_states[number].core_id
        if chip is not None:
            identifier.chip_id = chip
        if kind is not None:
            identifier.core_on_chip.type = kind
    return message.SerializeToString()


def memory_metric(*numbers: int, size: int = 1) -> bytes:
    """Return the libtpu response of a process with these devices."""
    message = MetricResponse()
    for number in numbers:
        metric = message.metric.metrics.add()
        metric.attribute.value.int_attr = number
        metric.gauge.as_int = size
    return message.SerializeToString()
