"""A moment by which something has to be answered, on the clock that all event loops of a process share.

`host:port` of a worker, taken apart.

Many workers at once: a bounded fan-out, a deadline for each and one for all, rows as they arrive.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.telemetry import WorkerProbing
from aioresolve._core.validation import checked_count, checked_seconds
from aioresolve.errors import ConfigurationError, ProbeError

from .channels import Deadline, ProbeChannels, bare_address, split_address
from .devices import GET_METRIC, GET_STATUS, WorkerProbe, libtpu_runtime, tensorflow_devices
from .grpc_errors import given_up, never_asked, nobody_tells
from .grpc_loop import in_polled_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

__all__ = [
    "LIBTPU_PORTS",
    "Deadline",
    "bare_address",
    "probe_worker",
    "probe_workers",
    "split_address",
    "stream_workers",
]


logger = logging.getLogger("aioresolve.probe")

LIBTPU_PORTS = (8431,)

METHODS = {"tensorflow": GET_STATUS, "libtpu": GET_METRIC}
"""What a worker's devices are asked with, by who tells them."""


async def probe_worker(
    address: str,
    *,
    timeout: float = 5.0,
    libtpu_ports: Sequence[int] = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> WorkerProbe:
    """Return what one worker says of its devices.

    Its TensorFlow server is asked; where there is none at that port, the host's libtpu is.

    Args:
        address: the worker, `host:port`; `grpc://` before it is no matter.
        timeout: seconds until it is given up, connecting included.
        libtpu_ports: where the host's libtpu processes listen, as `TPU_RUNTIME_METRICS_PORTS` says; empty,
            and libtpu is not asked.
        channels: how it is reached; in plain, by a channel of its own, where None.

    Raises:
        ProbeError: the worker does not say; `code` tells why.
        ConfigurationError: an argument is wrong.
    """
    (probe,) = await probe_workers(
        [address], timeout=timeout, worker_timeout=timeout, libtpu_ports=libtpu_ports, channels=channels
    )
    if probe.error is not None:
        raise probe.error
    return probe


async def probe_workers(
    addresses: Iterable[str],
    *,
    timeout: float = 30.0,
    worker_timeout: float = 5.0,
    max_concurrency: int = 256,
    libtpu_ports: Sequence[int] = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> list[WorkerProbe]:
    """Return what each worker says of its devices, or why it does not, in the order of `addresses`.

    Args:
        addresses: the workers, `host:port`; `grpc://` before it is no matter.
        timeout: seconds until all are given up that have not answered.
        worker_timeout: seconds until one worker is given up, connecting included.
        max_concurrency: how many workers are asked at a time.
        libtpu_ports: where each host's libtpu processes listen, as `TPU_RUNTIME_METRICS_PORTS` says; they are
            asked where no TensorFlow server is at a worker's own port. Empty, and none is.
        channels: how they are reached; in plain, by a channel for each, where None.

    Raises:
        ConfigurationError: an argument is wrong. No worker's fault is raised: each has its row.
    """
    plan = _Plan.checked(addresses, timeout, worker_timeout, max_concurrency, libtpu_ports, channels)
    probes: dict[int, WorkerProbe] = {}
    await plan.probe_all(probes.__setitem__)
    return [probes[position] for position in range(len(plan.addresses))]


@asynccontextmanager
async def stream_workers(
    addresses: Iterable[str],
    *,
    timeout: float = 30.0,
    worker_timeout: float = 5.0,
    max_concurrency: int = 256,
    libtpu_ports: Sequence[int] = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> AsyncIterator[AsyncIterator[WorkerProbe]]:
    """Yield what `probe_workers` returns, each worker's row as soon as it is known.

    ```
    async with stream_workers(addresses) as probes:
        async for probe in probes:
            print(probe.address, probe.accelerators if probe.error is None else probe.error)
    ```

    Leaving the block ends the probing of the rest. The arguments are those of `probe_workers`.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    plan = _Plan.checked(addresses, timeout, worker_timeout, max_concurrency, libtpu_ports, channels)
    send, receive = anyio.create_memory_object_stream[WorkerProbe](math.inf)

    async def probe_all() -> None:
        with send:
            await plan.probe_all(lambda _, probe: send.send_nowait(probe))

    failure: BaseException | None = None
    with receive:
        async with anyio.create_task_group() as group:
            group.start_soon(probe_all)
            try:
                yield receive
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # the caller's own, which the task group would wrap
                failure = error
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True)
class _Plan:
    """Whom to ask, and how long; the arguments of `probe_workers`, checked."""

    addresses: tuple[str, ...]
    timeout: float
    worker_timeout: float
    max_concurrency: int
    libtpu_ports: tuple[int, ...]
    channels: ProbeChannels

    @classmethod
    def checked(
        cls,
        addresses: Iterable[str],
        timeout: float,
        worker_timeout: float,
        max_concurrency: int,
        libtpu_ports: Sequence[int],
        channels: ProbeChannels | None,
    ) -> _Plan:
        if isinstance(addresses, str):
            raise ConfigurationError(f"addresses are several; write [{addresses!r}], or call probe_worker")
        if not all(0 < port < 65536 for port in libtpu_ports):
            raise ConfigurationError(f"libtpu_ports={libtpu_ports!r} are ports, such as [8431, 8432]")
        return cls(
            tuple(map(bare_address, addresses)),
            checked_seconds("timeout", timeout),
            checked_seconds("worker_timeout", worker_timeout),
            checked_count("max_concurrency", max_concurrency),
            tuple(libtpu_ports),
            ProbeChannels() if channels is None else channels,
        )

    async def probe_all(self, report: Callable[[int, WorkerProbe], None]) -> None:
        """Probe every worker, and tell each row with its position as soon as it is known."""
        began: dict[int, float] = {}
        unknown = set(range(len(self.addresses)))
        pending = iter(enumerate(self.addresses))

        def tell(position: int, probe: WorkerProbe) -> None:
            unknown.discard(position)
            report(position, probe)

        async def work() -> None:
            for position, address in pending:
                began[position] = time.monotonic()
                tell(position, await in_polled_loop(partial(self._probe, address)))

        with anyio.move_on_after(self.timeout):
            async with anyio.create_task_group() as group:
                for _ in range(min(self.max_concurrency, len(self.addresses))):
                    group.start_soon(work)
        for position in sorted(unknown):
            tell(position, self._unanswered(self.addresses[position], began.get(position)))

    async def _probe(self, address: str) -> WorkerProbe:
        began = time.monotonic()
        try:
            with WorkerProbing(logger, address, GET_STATUS) as probing:
                probe = await self._answered(address, Deadline.after(self.worker_timeout))
                assert probe.source is not None
                probing.answered(probe.source, METHODS[probe.source])
        except ProbeError as error:
            probe = WorkerProbe(address, error=_without_frames(error))
        return replace(probe, latency=time.monotonic() - began)

    async def _answered(self, address: str, deadline: Deadline) -> WorkerProbe:
        try:
            async with self.channels.to(address, deadline) as channel:
                return WorkerProbe(address, "tensorflow", await tensorflow_devices(channel, deadline))
        except ProbeError as error:
            if error.code not in {"refused", "unimplemented"} or not self.libtpu_ports:
                raise
            no_tensorflow = _without_frames(error)
        host = address.rpartition(":")[0]
        try:
            runtime = await libtpu_runtime(self.channels, host, self.libtpu_ports, deadline)
        except ProbeError as error:
            raise nobody_tells(address, no_tensorflow, error) from error
        return WorkerProbe(address, "libtpu", runtime.devices, runtime.cores, runtime.chips)

    def _unanswered(self, address: str, began: float | None) -> WorkerProbe:
        if began is None:
            return WorkerProbe(address, error=never_asked(address, self.timeout))
        latency = time.monotonic() - began
        return WorkerProbe(address, latency=latency, error=given_up(address, self.timeout))


def _without_frames(error: ProbeError) -> ProbeError:
    """Return the error without tracebacks, which would keep channels and answers in memory along with it."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = link.__context__ = None
        link = link.__cause__
    return error
