"""What the workers of TPUs are asked themselves: their devices, and how many cores each host has."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve.retry import within_deadline

from . import tensorflow
from .discovery import Local
from .inspection import TPUInspection
from .slices import shared_topology

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.pooling import Sharing
    from aioresolve.probe import WorkerProbe
    from aioresolve.retry import Progress

    from .connections import Connections
    from .discovery import Source
    from .slices import TPUSlice
    from .system import TPUSystemMetadata

__all__ = ["TPUProbing"]

T = TypeVar("T")


class TPUProbing(TPUInspection):
    """A resolver of TPUs whose workers can be asked for their devices, all at once."""

    _sharing: Sharing[Connections]

    @abc.abstractmethod
    def _source(self) -> Source:
        """Return who names the workers."""

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return `{"TPU": cores per host}`, every worker having been asked at once; 0 where none has any.

        Cores are counted as TensorFlow counts them: they are its TPU devices.

        Args:
            task_type: not used, as in TensorFlow: all workers have to agree.
            task_id: not used.
            config_proto: a `tf.compat.v1.ConfigProto`, whose `operation_timeout_in_ms` bounds the call too.
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ProbeError: (a RuntimeError) hosts did not answer, or differ; it names each, with reason or count.
            DeadlineExceededError: hosts did not answer in time.
            MissingDependencyError: the TPU is local, and TensorFlow is not installed.
            ResolveError: the workers were not found.
        """
        metadata = await self._system(config_proto, timeout)
        return {"TPU": metadata.num_of_cores_per_host}

    async def get_tpu_system_metadata(self, *, timeout: float | None = None) -> TPUSystemMetadata:
        """Return numbers of cores and hosts, and the devices, every worker having been asked at once.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ResolveError: as `num_accelerators`.
        """
        return await self._system(None, timeout)

    async def probe(self, *, timeout: float | None = None) -> tuple[WorkerProbe, ...]:
        """Return what each worker says of its devices, or why it does not, in task order.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ResolveError: the workers were not found. No worker's fault is raised: each has its row.
        """
        _, probes, _ = await self._probed(self._deadline(timeout))
        return tuple(probes.values())

    async def _within(
        self, timeout: float | None, asked: str, operation: Callable[[Progress], Awaitable[T]]
    ) -> T:
        return await within_deadline(self._deadline(timeout), f"{asked} of {self!r}", operation)

    async def _system(self, config_proto: Any, timeout: float | None) -> TPUSystemMetadata:
        from .probing import local_system, operation_timeout, system_metadata  # which loads grpc

        within = min(self._deadline(timeout), operation_timeout(config_proto) or float("inf"))
        if isinstance(self._source(), Local):
            return local_system(
                await self._within(within, "the devices", lambda _: tensorflow.local_devices())
            )
        slices, probes, had = await self._probed(within)
        return system_metadata(probes, shared_topology(slices), had)

    async def _probed(self, within: float) -> tuple[tuple[TPUSlice, ...], dict[str, WorkerProbe], float]:
        """Return the slices, their workers' answers, and the seconds that the workers had."""
        from .probing import Deadline, probed_slices  # which loads grpc

        deadline = Deadline.after(within)
        slices = await self.slices(timeout=within)
        left = max(deadline.left, 0.001)
        async with self._sharing.opened() as connections:
            return slices, await probed_slices(slices, left, await connections.channels()), left
