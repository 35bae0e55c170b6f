"""The ways to request the devices of many workers that `probe.py` compares.

Run as a module, it is the process of one way. It writes one JSON object per line to stdout: the number of
devices of each worker after the first round, and then a `Turn` for each line of stdin, which is the number of
seconds to measure for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.worker import peak_memory, turn

__all__ = ["PROBERS", "Probe", "Prober"]

Probe: TypeAlias = Callable[[], Awaitable[list[int]]]
"""Sends a request to every worker; returns the number of devices of each, or -1 if it failed."""

GET_STATUS = "/tensorflow.WorkerService/GetStatus"
CONCURRENCY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """One way to request devices.

    Attributes:
        title: its name in tables.
        open_client: opens a client for the addresses and the timeout of each worker, and yields a `Probe`.
    """

    title: str
    open_client: Callable[[Sequence[str], float], AbstractAsyncContextManager[Probe]]


@asynccontextmanager
async def ours_fresh(addresses: Sequence[str], timeout: float) -> AsyncIterator[Probe]:
    from aioresolve.probe import probe_workers

    async def probe() -> list[int]:
        rows = await probe_workers(addresses, worker_timeout=timeout, libtpu_ports=())
        return [len(row.devices) if row.error is None else -1 for row in rows]

    yield probe


@asynccontextmanager
async def ours_pooled(addresses: Sequence[str], timeout: float) -> AsyncIterator[Probe]:
    from aioresolve.probe import ProbeChannels, probe_workers

    async with ProbeChannels() as channels:

        async def probe() -> list[int]:
            rows = await probe_workers(addresses, worker_timeout=timeout, libtpu_ports=(), channels=channels)
            return [len(row.devices) if row.error is None else -1 for row in rows]

        yield probe


async def bare_call(channel: Any, timeout: float) -> int:
    """Return the number of devices of the worker behind a grpc.aio channel, with a plain call."""
    import grpc.aio

    from aioresolve.probe.worker_pb2 import GetStatusResponse

    try:
        body = await channel.unary_unary(GET_STATUS)(b"", timeout=timeout)
    except grpc.aio.AioRpcError:
        return -1
    return len(GetStatusResponse.FromString(body).device_attributes)


@asynccontextmanager
async def bare_fresh(addresses: Sequence[str], timeout: float) -> AsyncIterator[Probe]:
    import grpc.aio

    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(address: str) -> int:
        async with slots, grpc.aio.insecure_channel(address) as channel:
            return await bare_call(channel, timeout)

    async def probe() -> list[int]:
        return await asyncio.gather(*map(one, addresses))

    yield probe


@asynccontextmanager
async def bare_pooled(addresses: Sequence[str], timeout: float) -> AsyncIterator[Probe]:
    import grpc.aio

    slots = asyncio.Semaphore(CONCURRENCY)

    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address)) for address in addresses
        ]

        async def one(channel: Any) -> int:
            async with slots:
                return await bare_call(channel, timeout)

        async def probe() -> list[int]:
            return await asyncio.gather(*map(one, channels))

        yield probe


@asynccontextmanager
async def serial(addresses: Sequence[str], timeout: float) -> AsyncIterator[Probe]:
    import grpc

    from aioresolve.probe.worker_pb2 import GetStatusResponse

    def one(address: str) -> int:
        with grpc.insecure_channel(address) as channel:
            get_status: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GET_STATUS)
            try:
                body = get_status(b"", timeout=timeout)
            except grpc.RpcError:
                return -1
        return len(GetStatusResponse.FromString(body).device_attributes)

    async def probe() -> list[int]:
        return [one(address) for address in addresses]

    yield probe


@asynccontextmanager
async def by_tensorflow(addresses: Sequence[str], timeout: float) -> AsyncIterator[Probe]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=int(timeout * 1e3))

    async def probe() -> list[int]:
        with tf.compat.v1.Session(f"grpc://{addresses[0]}", config=config) as session:
            names = [device.name for device in session.list_devices()]
        tasks = [name.partition("/task:")[2].partition("/")[0] for name in names]
        return [tasks.count(str(task)) for task in range(len(addresses))]

    yield probe


PROBERS = {
    "fresh": Prober(title="aioresolve, fresh channels", open_client=ours_fresh),
    "pooled": Prober(title="aioresolve, pooled channels", open_client=ours_pooled),
    "bare-fresh": Prober(title="grpc.aio by hand, fresh channels", open_client=bare_fresh),
    "bare-pooled": Prober(title="grpc.aio by hand, pooled channels", open_client=bare_pooled),
    "serial": Prober(title="grpc, one worker after another", open_client=serial),
    "tensorflow": Prober(title="tensorflow Session.list_devices()", open_client=by_tensorflow),
}


async def work(options: argparse.Namespace) -> None:
    """Run one round, and then one turn per line of stdin."""
    addresses = options.addresses.read_text().split()
    async with PROBERS[options.prober].open_client(addresses, options.timeout) as probe:
        devices = await probe()
        print(json.dumps({"devices": devices, "peak": peak_memory()}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(asdict(await turn(probe, float(line)))), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prober", choices=PROBERS)
    parser.add_argument("addresses", type=Path)
    parser.add_argument("timeout", type=float)
    asyncio.run(work(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
