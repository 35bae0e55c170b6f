"""What is asked of one TPU, each question being one field of what its source says."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, TypeVar

from aioresolve.errors import ConfigurationError
from aioresolve.resolver import ClusterResolver

from .readiness import is_recoverable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.gcp.messages import Node, Symptom

    from .slices import TPUSlice
    from .topology import TPUTopology

__all__ = ["TPUInspection"]

T = TypeVar("T")


class TPUInspection(ClusterResolver):
    """A resolver of TPUs that can be asked about the one that it has.

    Each method takes `timeout`, the call's total deadline in seconds (the resolver's own where None), and
    raises a ConfigurationError where there are several TPUs: ask `nodes()` or `slices()` then.
    """

    @abc.abstractmethod
    async def slices(self, *, timeout: float | None = None) -> tuple[TPUSlice, ...]:
        """Return the slices as they are now, in the order of their tasks."""

    @abc.abstractmethod
    async def nodes(self, *, timeout: float | None = None) -> tuple[Node, ...]:
        """Return what the Cloud TPU API says of each TPU, in whatever state; none where it is not asked."""

    async def node(self, *, timeout: float | None = None) -> Node | None:
        """Return what the Cloud TPU API says of the TPU, in whatever state; None where it is not asked.

        Raises:
            ConfigurationError: there are several; ask `nodes()`.
            ResolveError: the API could not be asked.
        """
        return self._only(await self.nodes(timeout=timeout), "nodes()")

    async def state(self, *, timeout: float | None = None) -> str | None:
        """Return the TPU's state, `READY` and so on; None where nobody tells. Errors are as of `node`."""
        node = await self.node(timeout=timeout)
        return None if node is None else node.state or None

    async def health(self, *, timeout: float | None = None) -> str | None:
        """Return the TPU's health, `HEALTHY` and so on; None where nobody tells. Errors are as of `node`."""
        node = await self.node(timeout=timeout)
        return None if node is None else node.health or None

    async def symptoms(self, *, timeout: float | None = None) -> tuple[Symptom, ...]:
        """Return what has happened to the TPU's workers, as the API lists it. Errors are as of `node`."""
        node = await self.node(timeout=timeout)
        return () if node is None else node.symptoms

    async def runtime_version(self, *, timeout: float | None = None) -> str | None:
        """Return the TPU's software, such as `tpu-ubuntu2204-base`, or with v1 its version of TensorFlow.

        It is None where nobody tells. Errors are as of `node`.
        """
        node = await self.node(timeout=timeout)
        return None if node is None else node.runtime_version or node.tensorflow_version or None

    async def recoverable(self, *, timeout: float | None = None) -> bool:
        """Return whether a job may go on: no TPU is preempted or terminated, or ran out of memory just now.

        Every TPU is looked at where there are several. One that the API is not asked for is taken to be well.

        Raises:
            ResolveError: the API could not be asked.
        """
        return is_recoverable(await self.nodes(timeout=timeout))

    async def accelerator_type(self, *, timeout: float | None = None) -> str | None:
        """Return the slice's type, such as `v4-16`; None where nobody tells.

        Raises:
            ConfigurationError: there are several; ask `slices()`.
            ResolveError: as `slices`.
        """
        one = self._only(await self.slices(timeout=timeout), "slices()")
        return None if one is None else one.accelerator_type

    async def topology(self, *, timeout: float | None = None) -> TPUTopology | None:
        """Return how the slice is built: chips, hosts and bounds; None where nobody tells.

        Raises:
            ConfigurationError: there are several; ask `slices()`.
            ProtocolError: what its source says contradicts itself.
            ResolveError: as `slices`.
        """
        one = self._only(await self.slices(timeout=timeout), "slices()")
        return None if one is None else one.topology

    def _only(self, found: Sequence[T], method: str) -> T | None:
        if len(found) > 1:
            raise ConfigurationError(f"{self!r} is {len(found)} TPUs; ask {method}, which tells of each")
        return found[0] if found else None
