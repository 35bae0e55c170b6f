"""Asking workers for their devices, with a bar that moves on a terminal meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.probe import LIBTPU_PORTS, ProbeChannels, stream_workers

from .counting import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve.probe import WorkerProbe

__all__ = ["Probing", "probed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """Whom to ask, and how; `timeout` is for all of them and `worker_timeout` for each, in seconds."""

    addresses: tuple[str, ...]
    timeout: float
    worker_timeout: float
    max_concurrency: int
    libtpu_ports: tuple[int, ...] = LIBTPU_PORTS
    is_tls: bool = False
    quiet: bool = False


async def probed(how: Probing, text: Callable[[WorkerProbe], str] = lambda _: "") -> list[WorkerProbe]:
    """Return what each worker says of its devices, or why it does not, in the order of the answers.

    Args:
        how: whom to ask.
        text: what is written to stdout as soon as a worker has answered.

    Raises:
        ConfigurationError: the addresses are none.
        SystemExit: whoever read stdout has gone.
    """
    answers: list[WorkerProbe] = []
    channels = ProbeChannels.over_tls() if how.is_tls else ProbeChannels()
    with counted(len(how.addresses), quiet=how.quiet) as count:
        async with stream_workers(
            how.addresses,
            timeout=how.timeout,
            worker_timeout=how.worker_timeout,
            max_concurrency=how.max_concurrency,
            libtpu_ports=how.libtpu_ports,
            channels=channels,
        ) as probes:
            async for probe in probes:
                answers.append(probe)
                count.add(is_failure=probe.error is not None)
                count.write(text(probe))
    return answers
