"""TensorFlow's `WorkerService/GetStatus`: an empty question, answered with the worker's own devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .devices import devices_of_status

if TYPE_CHECKING:
    from .channels import WorkerChannel
    from .deadline import Deadline
    from .devices import Device

__all__ = ["GET_STATUS", "tensorflow_devices"]

GET_STATUS = "/tensorflow.WorkerService/GetStatus"


async def tensorflow_devices(channel: WorkerChannel, deadline: Deadline) -> tuple[Device, ...]:
    """Return the devices of the TensorFlow server at the other end.

    Raises:
        ProbeError: there is no answer, or none that can be believed.
    """
    return devices_of_status(await channel.ask(GET_STATUS, b"", deadline), channel.address)
