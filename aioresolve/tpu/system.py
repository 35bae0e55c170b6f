"""`TPUSystemMetadata`: TensorFlow's tuple of facts, with what each worker said behind it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.probe import Device, WorkerProbe

    from .topology import TPUTopology

__all__ = ["TPUSystemMetadata"]


class _Fields(NamedTuple):
    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Any
    devices: tuple[Any, ...]


class TPUSystemMetadata(_Fields):
    """Some facts of a TPU system: the five fields of `tf.tpu.experimental.TPUSystemMetadata`, as that tuple.

    Attributes:
        num_cores: TPU cores in the system, as TensorFlow counts them: its TPU devices.
        num_hosts: TPU workers.
        num_of_cores_per_host: TPU cores of each worker.
        topology: how the slice is built, a `TPUTopology`; None where slices differ or
            nobody can tell.
        devices: every device of every worker, CPUs too, in task order.
        hosts: what each worker answered, in task order: a `WorkerProbe`.
    """

    hosts: tuple[WorkerProbe, ...]

    def __new__(
        cls,
        num_cores: int,
        num_hosts: int,
        num_of_cores_per_host: int,
        topology: TPUTopology | None,
        devices: Sequence[Device],
        hosts: Sequence[WorkerProbe] = (),
    ) -> Self:
        self = super().__new__(cls, num_cores, num_hosts, num_of_cores_per_host, topology, tuple(devices))
        self.hosts = tuple(hosts)
        return self
