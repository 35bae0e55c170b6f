"""Probes of many workers at once: limited concurrency, a deadline for each and one for all of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from aioresolve._core.concurrency import first_error
from aioresolve._core.deadline import MIN_TIMEOUT, Deadline
from aioresolve._core.telemetry import ProbeCall
from aioresolve._core.validation import validate_count, validate_seconds
from aioresolve.errors import ConfigurationError, ProbeError

from .channels import ProbeChannels, validate_address
from .devices import GET_METRIC, GET_STATUS, WorkerProbe, fetch_libtpu_runtime, fetch_tensorflow_devices
from .grpc_errors import no_source_error
from .grpc_loop import loop_guard, run_in_grpc_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

logger = logging.getLogger("aioresolve.probe")

LIBTPU_PORTS = (8431,)
"""The ports of libtpu that are requested by default."""

LibtpuPorts: TypeAlias = Sequence[int] | Mapping[str, Sequence[int]]

OWN_SHARE = 0.95
"""The part of the deadline for all workers after which a worker fails with an error of its own."""

ERROR_GRACE = 0.5
"""Seconds to wait for the error of a single worker after its deadline, which takes milliseconds unless the
machine is busy."""

METHODS = {"tensorflow": GET_STATUS, "libtpu": GET_METRIC}
"""The gRPC method that returns the devices, by source."""


async def probe_worker(
    address: str,
    *,
    timeout: float = 5.0,
    libtpu_ports: LibtpuPorts = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> WorkerProbe:
    """Return the devices that one worker reports.

    The request goes to the TensorFlow server at `address`. If none listens there, it goes to libtpu on the
    same host.

    Args:
        address: the worker, `host:port` or `grpc://host:port`.
        timeout: the deadline in seconds, including the time to connect.
        libtpu_ports: the ports of the libtpu processes of the host, as in its `TPU_RUNTIME_METRICS_PORTS`;
            empty to not use libtpu.
        channels: how to connect to the worker; by default without TLS, over a channel of its own.

    Raises:
        ProbeError: the worker did not report its devices; see `code` for the reason.
        ConfigurationError: an argument is invalid.
    """
    timeout = validate_seconds("timeout", timeout)
    (probe,) = await probe_workers(
        [address],
        timeout=max(timeout / OWN_SHARE, timeout + ERROR_GRACE),
        worker_timeout=timeout,
        libtpu_ports=libtpu_ports,
        channels=channels,
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
    libtpu_ports: LibtpuPorts = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> list[WorkerProbe]:
    """Return the devices that each worker reports, or why it did not, in the order of `addresses`.

    Args:
        addresses: the workers, each `host:port` or `grpc://host:port`.
        timeout: the deadline for all workers, in seconds.
        worker_timeout: the deadline for each worker in seconds, including the time to connect; at most what
            is left of 95 % of `timeout`.
        max_concurrency: the maximum number of workers that are probed at the same time.
        libtpu_ports: the ports of the libtpu processes of each host, as in its `TPU_RUNTIME_METRICS_PORTS`;
            or, by address of the worker if several workers share a host, those of its own processes. They
            are used if no TensorFlow server listens at a worker's own port. Empty to not use libtpu.
        channels: how to connect to the workers; by default without TLS, over one channel per worker.

    Raises:
        ConfigurationError: an argument is invalid. Failures of workers are not raised, but returned.
    """
    batch = _Batch(addresses, timeout, worker_timeout, max_concurrency, libtpu_ports, channels)
    probes: dict[int, WorkerProbe] = {}
    await batch.probe_all(probes.__setitem__)
    return [probes[position] for position in range(len(batch.addresses))]


@asynccontextmanager
async def stream_workers(
    addresses: Iterable[str],
    *,
    timeout: float = 30.0,
    worker_timeout: float = 5.0,
    max_concurrency: int = 256,
    libtpu_ports: LibtpuPorts = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> AsyncIterator[AsyncIterator[WorkerProbe]]:
    """Yield an iterator of what `probe_workers` returns, in the order in which the workers respond.

    ```
    async with stream_workers(addresses) as probes:
        async for probe in probes:
            print(probe.address, probe.accelerators if probe.error is None else probe.error)
    ```

    Leaving the block cancels the other probes. The arguments are those of `probe_workers`.

    Raises:
        ConfigurationError: an argument is invalid.
    """
    batch = _Batch(addresses, timeout, worker_timeout, max_concurrency, libtpu_ports, channels)
    send, receive = anyio.create_memory_object_stream[WorkerProbe](math.inf)

    async def probe_all() -> None:
        with send:
            await batch.probe_all(lambda _, probe: send.send_nowait(probe))

    try:
        with receive:
            async with anyio.create_task_group() as group:
                group.start_soon(probe_all)
                yield receive
                group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:  # the task group wraps the error of the caller
        error = first_error(errors)
        raise error from error.__cause__


class _Batch:
    """One call of `probe_workers`, whose arguments it validates."""

    def __init__(
        self,
        addresses: Iterable[str],
        timeout: float,
        worker_timeout: float,
        max_concurrency: int,
        libtpu_ports: LibtpuPorts,
        channels: ProbeChannels | None,
    ) -> None:
        if isinstance(addresses, str):
            raise ConfigurationError(
                f"expected several addresses; got the string {addresses!r}",
                argument="addresses",
                hint="Put it into a list, or call probe_worker.",
            )
        per_worker = libtpu_ports if isinstance(libtpu_ports, Mapping) else {"": libtpu_ports}
        if not all(0 < port < 65536 for ports in per_worker.values() for port in ports):
            raise ConfigurationError(
                f"{libtpu_ports!r} are not port numbers",
                argument="libtpu_ports",
                hint="Pass ports such as [8431, 8432].",
            )
        self.addresses = tuple(map(validate_address, addresses))
        self._timeout = validate_seconds("timeout", timeout)
        self._worker_timeout = validate_seconds("worker_timeout", worker_timeout)
        self._max_concurrency = validate_count("max_concurrency", max_concurrency)
        self._libtpu_ports = libtpu_ports
        self._channels = ProbeChannels() if channels is None else channels

    async def probe_all(self, report: Callable[[int, WorkerProbe], None]) -> None:
        """Probe every worker, and call `report` with its position and result as soon as that is known."""
        unfinished = set(range(len(self.addresses)))
        pending = iter(enumerate(self.addresses))
        # Before the deadline for all workers, whose error cannot say what a worker was waiting for.
        last_end = Deadline.after(self._timeout * OWN_SHARE)

        async def work() -> None:
            for position, address in pending:
                timeout = min(self._worker_timeout, last_end.left)
                if timeout < MIN_TIMEOUT:
                    return
                probe = await run_in_grpc_loop(partial(self._probe, address, timeout))
                unfinished.discard(position)
                report(position, probe)

        loop_guard.validate_process()
        with anyio.move_on_after(self._timeout):
            async with anyio.create_task_group() as group:
                for _ in range(min(self._max_concurrency, len(self.addresses))):
                    group.start_soon(work)
        for position in sorted(unfinished):
            address = self.addresses[position]
            error = ProbeError(
                f"{address} was not probed before the deadline for all workers ({self._timeout:g} s) passed",
                hint="Raise {timeout} or {max_concurrency}.",
                address=address,
                code="deadline",
                retryable=True,
            )
            report(position, WorkerProbe(address, error=error))

    async def _probe(self, address: str, timeout: float) -> WorkerProbe:
        started_at = time.monotonic()
        try:
            with ProbeCall(logger, address, GET_STATUS) as probing:
                probe = await self._fetch(address, Deadline.after(timeout))
                assert probe.source is not None
                probing.set_response(probe.source, METHODS[probe.source])
        except ProbeError as error:
            probe = WorkerProbe(address, error=_without_frames(error))
        return replace(probe, latency=time.monotonic() - started_at)

    async def _fetch(self, address: str, deadline: Deadline) -> WorkerProbe:
        try:
            async with self._channels.acquire(address, deadline) as channel:
                return WorkerProbe(address, "tensorflow", await fetch_tensorflow_devices(channel, deadline))
        except ProbeError as error:
            given = self._libtpu_ports
            ports = given[address] if isinstance(given, Mapping) else given
            if error.code not in {"refused", "unimplemented"} or not ports:
                raise
            no_tensorflow = _without_frames(error)
        host = address.rpartition(":")[0]
        try:
            runtime = await fetch_libtpu_runtime(
                self._channels, host, ports, deadline, is_host_shared=isinstance(given, Mapping)
            )
        except ProbeError as error:
            raise no_source_error(address, no_tensorflow, error) from error
        return WorkerProbe(address, "libtpu", runtime.devices, runtime.cores, runtime.chips)


def _without_frames(error: ProbeError) -> ProbeError:
    """Return the error without tracebacks, whose frames keep channels and responses in memory."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = link.__context__ = None
        link = link.__cause__
    return error
