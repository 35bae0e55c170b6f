"""Which of the tasks at these addresses can be talked to: they accept TCP, or answer the probe."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from .concurrency import gather

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Reach", "unreachable"]

Reach: TypeAlias = Literal["tcp", "probe"]

AT_ONCE = 128
"""How many tasks are asked at a time."""

PATIENCE = 5.0
"""Seconds that each of them has."""


async def unreachable(addresses: Sequence[str], reach: Reach) -> dict[str, str]:
    """Return whoever of `addresses` (`host:port`) cannot be reached, and why, in words.

    Args:
        addresses: the tasks.
        reach: `"tcp"`: the port accepts a connection; `"probe"`: the worker tells its devices over gRPC.
    """
    if reach == "probe":
        from .probe import probe_workers  # which loads grpc

        probes = zip(addresses, await probe_workers(addresses, worker_timeout=PATIENCE), strict=True)
        return {address: str(probe.error) for address, probe in probes if probe.error is not None}
    reasons = await gather([partial(_refusal, address) for address in addresses], limit=AT_ONCE)
    return {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason is not None}


async def _refusal(address: str) -> str | None:
    """Return why no TCP connection is accepted at `address`; None where one is."""
    host, _, port = address.rpartition(":")
    with anyio.move_on_after(PATIENCE):
        try:
            connection = await anyio.connect_tcp(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            return f"no TCP connection to {address}: {_words(error)}"
        await connection.aclose()
        return None
    return f"no TCP connection to {address} within {PATIENCE:g} s"


def _words(error: OSError | ValueError) -> str:
    """Return what happened in the system's own words; event loops and anyio have other ones each."""
    # anyio tells what happened in the cause.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and not isinstance(cause, socket.gaierror) and cause.errno:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause)
