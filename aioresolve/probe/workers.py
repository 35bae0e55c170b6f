"""Probes of many workers at once, and the accelerators that each worker of a cluster has.

Concurrency is limited, and each worker has a deadline of its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio

from aioresolve._core.concurrency import first_error
from aioresolve._core.deadline import MIN_TIMEOUT, Deadline
from aioresolve._core.telemetry import ProbeCall
from aioresolve._core.validation import validate_count, validate_port, validate_seconds
from aioresolve.errors import ConfigurationError, ProbeDeadlineError, ProbeError, UnknownTaskError
from aioresolve.spec import ClusterSpec

from .channels import ProbeChannels, loop_guard, run_in_grpc_loop, validate_address
from .devices import GET_METRIC, GET_STATUS, WorkerProbe, probe_libtpu, probe_tensorflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from aioresolve.spec import ClusterState

logger = logging.getLogger("aioresolve.probe")

LIBTPU_PORTS = (8431,)
"""The ports of libtpu that are requested by default."""

MAX_LISTED = 8
"""How many workers an error lists."""

LibtpuPorts: TypeAlias = Sequence[int] | Mapping[str, Sequence[int]]

ERROR_GRACE = 0.5
"""Seconds to wait for the errors of workers after the deadline, which takes milliseconds unless the machine
is busy. Only these errors say what a worker was waiting for."""


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
    libtpu_ports: LibtpuPorts = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> list[WorkerProbe]:
    """Return the devices that each worker reports, or why it did not, in the order of `addresses`.

    Args:
        addresses: the workers, each `host:port` or `grpc://host:port`.
        timeout: the deadline for all workers, in seconds.
        worker_timeout: the deadline for each worker in seconds, including the time to connect; at most what
            is left of `timeout`.
        max_concurrency: the maximum number of workers that are probed at the same time.
        libtpu_ports: the ports of the libtpu processes of each host, as in its `TPU_RUNTIME_METRICS_PORTS`;
            or, by address of the worker if several workers share a host, those of its own processes. They
            are used if no TensorFlow server listens at a worker's own port. Empty, or without a worker in the
            mapping, to not use libtpu.
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


@dataclass
class _Batch:
    """One call of `probe_workers`, whose arguments it validates."""

    given: Iterable[str]
    timeout: float
    worker_timeout: float
    max_concurrency: int
    libtpu_ports: LibtpuPorts
    channels: ProbeChannels | None

    def __post_init__(self) -> None:
        if isinstance(self.given, str):
            raise ConfigurationError(
                f"expected several addresses; got the string {self.given!r}",
                argument="addresses",
                hint="Put it into a list, or call probe_worker.",
            )
        self.addresses = tuple(map(validate_address, self.given))
        ports = self.libtpu_ports
        if isinstance(ports, Mapping):
            self.libtpu_ports = ports = {validate_address(one): each for one, each in ports.items()}
        given: Any
        for given in ports.values() if isinstance(ports, Mapping) else [ports]:
            if not isinstance(given, Sequence) or isinstance(given, str):
                problem = f"{given!r} is not a list of ports"
                raise ConfigurationError(problem, argument="libtpu_ports", hint="Pass one such as [8431].")
            for port in given:
                validate_port("libtpu_ports", port)
        validate_seconds("timeout", self.timeout)
        validate_seconds("worker_timeout", self.worker_timeout)
        validate_count("max_concurrency", self.max_concurrency)
        self._channels = self.channels or ProbeChannels()

    async def probe_all(self, report: Callable[[int, WorkerProbe], None]) -> None:
        """Probe every worker, and call `report` with its position and result as soon as that is known."""
        unfinished = set(range(len(self.addresses)))
        pending = iter(enumerate(self.addresses))
        deadline = Deadline.after(self.timeout)

        async def work() -> None:
            for position, address in pending:
                timeout = min(self.worker_timeout, deadline.left)
                if timeout < MIN_TIMEOUT:
                    return
                probe = await run_in_grpc_loop(partial(self._probe, address, timeout))
                unfinished.discard(position)
                report(position, probe)

        loop_guard.validate_process()
        with anyio.move_on_after(self.timeout + ERROR_GRACE):
            async with anyio.create_task_group() as group:
                for _ in range(min(self.max_concurrency, len(self.addresses))):
                    group.start_soon(work)
        for position in sorted(unfinished):
            address = self.addresses[position]
            error = ProbeError(
                f"{address} was not probed before the deadline for all workers ({self.timeout:g} s) passed",
                hint="Raise {timeout}, or probe fewer workers in one call.",
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
                probing.set_response(probe.source, GET_STATUS if probe.source == "tensorflow" else GET_METRIC)
        except ProbeError as error:
            probe = WorkerProbe(address, error=_without_frames(error))
        return replace(probe, latency=time.monotonic() - started_at)

    async def _fetch(self, address: str, deadline: Deadline) -> WorkerProbe:
        try:
            async with self._channels.acquire(address, deadline) as channel:
                return await probe_tensorflow(channel, deadline)
        except ProbeError as error:
            given = self.libtpu_ports
            is_host_shared = isinstance(given, Mapping)
            ports = given.get(address, ()) if isinstance(given, Mapping) else given
            if error.code not in {"refused", "unimplemented"} or not ports:
                raise
            no_tensorflow = _without_frames(error)
        try:
            return await probe_libtpu(self._channels, address, ports, deadline, is_host_shared=is_host_shared)
        except ProbeError as error:
            # A libtpu that did not respond in time may do so later.
            cause = error if error.code == "deadline" else no_tensorflow
            raise ProbeError(
                f"{no_tensorflow.summary}; libtpu did not report devices either: {error.summary}",
                hint="The worker may still be running. Start a tf.distribute.Server or a program that uses"
                " the TPU there, and pass its TPU_RUNTIME_METRICS_PORTS as {libtpu_ports}.",
                address=address,
                code=cause.code,
                status=cause.status,
                retryable=no_tensorflow.retryable or error.retryable,
            ) from error


def _without_frames(error: ProbeError) -> ProbeError:
    """Return the error without tracebacks, whose frames keep channels and responses in memory."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = link.__context__ = None
        link = link.__cause__
    return error


# The accelerators of a cluster, by the rules of `num_accelerators` in TensorFlow


async def probed_or_declared(
    source: str,
    spec: ClusterSpec,
    task_type: str | None,
    task_id: int | None,
    deadline: Deadline,
    declared: Callable[[float], Awaitable[Declared]],
) -> dict[str, int]:
    """Return the number of accelerators per worker, by accelerator type, without CPUs.

    All workers are probed concurrently, and must report the same accelerators. If none of them runs a server
    that reports devices, it is what `declared` returns, which is called with its timeout. `source` is what
    the log calls the resolver.
    """
    tasks = tasks_to_probe(spec, task_type, task_id)
    timeout = deadline.next_timeout
    probes = await probe_workers(tasks.values(), timeout=timeout, worker_timeout=timeout)
    try:
        return common_accelerators(dict(zip(tasks, probes, strict=True)), timeout)
    except ProbeError as error:
        if error.code not in {"refused", "unimplemented"}:
            raise
        found = await declared(deadline.next_timeout)
        if found.counts is None:
            if found.reason:
                error.summary = f"{error.summary}; {found.reason}"
            raise
        text = "num_accelerators() of %s is what its tasks declare, because no worker can be probed: %s"
        logger.info(text, source, found.counts)
        return found.counts


def tasks_to_probe(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> dict[str, str]:
    """Return the selected tasks: `/job:worker/task:0` to `host:port`. Arguments: see above."""
    spec = ClusterSpec(spec)  # a copy has str only; names and addresses may have been given as bytes
    jobs = [task_type] if task_type is not None else ["worker"] if "worker" in spec.jobs else spec.jobs
    if task_id is not None and len(jobs) > 1:
        raise ConfigurationError(
            f"task_id={task_id} is ambiguous, because the cluster has the jobs {', '.join(jobs)}",
            hint="Pass {task_type} too.",
        )
    tasks = {
        f"/job:{job}/task:{index}": spec.task_address(job, index)
        for job in jobs
        for index in (spec.task_indices(job) if task_id is None else [task_id])
    }
    if not tasks:
        raise UnknownTaskError(f"{spec!r} has no task to probe for accelerators")
    return tasks


class Declared(NamedTuple):
    """The number of accelerators that the source declares for each worker, by type, or why it is unknown."""

    counts: dict[str, int] | None = None
    reason: str = ""


def declared_by_all(
    state: ClusterState,
    task_type: str | None,
    task_id: int | None,
    count: Callable[[Mapping[str, int]], dict[str, int] | None],
) -> Declared:
    """Return the number of accelerators that each of the selected tasks declares, by accelerator type.

    It is unknown if a task declares none, or they differ. `count` returns the number by type for
    `Endpoint.accelerators`, None if a name there is not known.
    """
    probed = tasks_to_probe(state.spec, task_type, task_id)
    declared = {
        task: None if member.endpoint.accelerators is None else count(member.endpoint.accelerators)
        for member in state.members
        if (task := f"/job:{member.job}/task:{member.task_index}") in probed
    }
    counts = next(iter(declared.values()), None)
    for task, other in declared.items():
        if other is None:
            return Declared(reason=f"{task} declares none")
        if other != counts:
            return Declared(reason="the tasks declare different ones")
    return Declared(counts)


def common_accelerators(
    probes: Mapping[str, WorkerProbe], timeout: float, only: str | None = None
) -> dict[str, int]:
    """Return the number of accelerators that each of these workers has, by type.

    `probes` are the results by worker, as the error names it; `timeout` is the seconds that the workers had,
    for the message; `only` is the type to count, all types if None. If a worker failed, or they differ, it
    raises a ProbeError: a ProbeDeadlineError if none failed for a reason other than the timeout.
    """
    failures = {task: probe.error for task, probe in probes.items() if probe.error is not None}
    counts = {
        task: {kind: count for kind, count in probe.accelerators.items() if only in (None, kind)}
        for task, probe in probes.items()
        if task not in failures
    }
    texts = {
        task: ", ".join(f"{number} {kind}" for kind, number in each.items()) or "none"
        for task, each in counts.items()
    }
    if failures:
        raise _failure_error(failures, texts, timeout)
    first = next(iter(counts.values()))
    if all(each == first for each in counts.values()):
        return first
    raise ProbeError(
        f"the workers have different accelerators: {_format_tasks(texts)}",
        hint="Select one worker with {task_type} and {task_id}."
        if only is None
        else "Check that each host is up, and that no other program holds part of its TPU.",
        code="uneven",
        failures=texts,
    )


def operation_timeout(config_proto: Any) -> float | None:
    """Return the `operation_timeout_in_ms` of a TensorFlow ConfigProto in seconds; None if it is not set."""
    if config_proto is None:
        return None
    milliseconds = getattr(config_proto, "operation_timeout_in_ms", None)
    if not isinstance(milliseconds, int):
        raise ConfigurationError(
            f"expected a tf.compat.v1.ConfigProto or None; got {type(config_proto).__name__}",
            argument="config_proto",
        )
    if milliseconds < 0:
        raise ConfigurationError(
            f"operation_timeout_in_ms must not be negative; got {milliseconds}", argument="config_proto"
        )
    return milliseconds / 1000 or None


def _failure_error(
    failures: Mapping[str, ProbeError], reached: Mapping[str, str], timeout: float
) -> ProbeError:
    reasons = {task: error.summary for task, error in failures.items()}
    number = f"{len(failures)} of {len(failures) + len(reached)} workers"
    summary = f"{number} did not report their accelerators: {_format_tasks(reasons)}"
    first = next(iter(failures.values()))
    codes = {error.code for error in failures.values()}
    hint = first.hint if len(codes) == 1 else None
    address = first.address if len(failures) == 1 else None
    if codes == {"deadline"}:
        return ProbeDeadlineError(
            summary,
            hint=hint,
            timeout=timeout,
            reached=reached,
            missing=reasons,
            address=address,
            failures=reasons,
        )
    return ProbeError(
        summary,
        hint=hint,
        address=address,
        code=first.code if len(codes) == 1 else "failed",
        failures=reasons,
        retryable=all(error.retryable for error in failures.values()),
    )


def _format_tasks(texts: Mapping[str, str]) -> str:
    """Return the texts of the first tasks, and the number of the others."""
    shown = [f"{task}: {text}" for task, text in list(texts.items())[:MAX_LISTED]]
    more = [f"and {len(texts) - MAX_LISTED} more"] if len(texts) > MAX_LISTED else []
    return "; ".join(shown + more)
