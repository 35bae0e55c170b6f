"""What `probe.py` measures: ours and other ways to ask many workers for their devices.

Run as a module it is the process of one of them. On stdout it writes one JSON object a line: how many devices
each worker has, when it has asked for the first time, then a `Turn` for each number of seconds that it reads
from stdin.
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

__all__ = ["PROBERS", "Ask", "Prober"]

Ask: TypeAlias = Callable[[], Awaitable[list[int]]]
"""Asks every worker once; returns how many devices each has, -1 for one that did not answer."""

GET_STATUS = "/tensorflow.WorkerService/GetStatus"
CONCURRENCY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """One way to ask.

    Attributes:
        title: what it is called in tables.
        opened: opens a client for the addresses and the seconds each worker has, and yields its `Ask`.
    """

    title: str
    opened: Callable[[Sequence[str], float], AbstractAsyncContextManager[Ask]]


@asynccontextmanager
async def ours_fresh(addresses: Sequence[str], timeout: float) -> AsyncIterator[Ask]:
    from aioresolve.probe import probe_workers

    async def ask() -> list[int]:
        rows = await probe_workers(addresses, worker_timeout=timeout, libtpu_ports=())
        return [len(row.devices) if row.error is None else -1 for row in rows]

    yield ask


@asynccontextmanager
async def ours_pooled(addresses: Sequence[str], timeout: float) -> AsyncIterator[Ask]:
    from aioresolve.probe import ProbeChannels, probe_workers

    async with ProbeChannels(max_channels=max(len(addresses), 1)) as channels:

        async def ask() -> list[int]:
            rows = await probe_workers(addresses, worker_timeout=timeout, libtpu_ports=(), channels=channels)
            return [len(row.devices) if row.error is None else -1 for row in rows]

        yield ask


async def bare_call(channel: Any, timeout: float) -> int:
    """Return the number of devices at the other end of a grpc.aio channel, by the call and nothing else."""
    import grpc.aio

    from aioresolve.probe.worker_pb2 import GetStatusResponse

    try:
        body = await channel.unary_unary(GET_STATUS)(b"", timeout=timeout)
    except grpc.aio.AioRpcError:
        return -1
    return len(GetStatusResponse.FromString(body).device_attributes)


@asynccontextmanager
async def bare_fresh(addresses: Sequence[str], timeout: float) -> AsyncIterator[Ask]:
    import grpc.aio

    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(address: str) -> int:
        async with slots, grpc.aio.insecure_channel(address) as channel:
            return await bare_call(channel, timeout)

    async def ask() -> list[int]:
        return await asyncio.gather(*map(one, addresses))

    yield ask


@asynccontextmanager
async def bare_pooled(addresses: Sequence[str], timeout: float) -> AsyncIterator[Ask]:
    import grpc.aio

    slots = asyncio.Semaphore(CONCURRENCY)

    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address)) for address in addresses
        ]

        async def one(channel: Any) -> int:
            async with slots:
                return await bare_call(channel, timeout)

        async def ask() -> list[int]:
            return await asyncio.gather(*map(one, channels))

        yield ask


@asynccontextmanager
async def serial(addresses: Sequence[str], timeout: float) -> AsyncIterator[Ask]:
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

    async def ask() -> list[int]:
        return [one(address) for address in addresses]

    yield ask


@asynccontextmanager
async def by_tensorflow(addresses: Sequence[str], timeout: float) -> AsyncIterator[Ask]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=int(timeout * 1e3))

    async def ask() -> list[int]:
        with tf.compat.v1.Session(f"grpc://{addresses[0]}", config=config) as session:
            names = [device.name for device in session.list_devices()]
        tasks = [name.partition("/task:")[2].partition("/")[0] for name in names]
        return [tasks.count(str(task)) for task in range(len(addresses))]

    yield ask


PROBERS = {
    "fresh": Prober(title="aioresolve, fresh channels", opened=ours_fresh),
    "pooled": Prober(title="aioresolve, pooled channels", opened=ours_pooled),
    "bare-fresh": Prober(title="grpc.aio by hand, fresh channels", opened=bare_fresh),
    "bare-pooled": Prober(title="grpc.aio by hand, pooled channels", opened=bare_pooled),
    "serial": Prober(title="grpc, one worker after another", opened=serial),
    "tensorflow": Prober(title="tensorflow Session.list_devices()", opened=by_tensorflow),
}


async def work(options: argparse.Namespace) -> None:
    """Ask once, and then as often as stdin says."""
    addresses = options.addresses.read_text().split()
    async with PROBERS[options.prober].opened(addresses, options.timeout) as ask:
        devices = await ask()
        print(json.dumps({"devices": devices, "peak": peak_memory()}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(asdict(await turn(ask, float(line)))), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prober", choices=PROBERS)
    parser.add_argument("addresses", type=Path)
    parser.add_argument("timeout", type=float)
    asyncio.run(work(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
