"""The process in which one peer is measured.

It writes one JSON object per line to stdout: a `First` after the first resolve, and then a `Turn` for each
line of stdin, which is the number of seconds to resolve for.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import resource
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from benchmarks.peers import PEERS, Resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["First", "Turn", "peak_memory"]


@dataclass(frozen=True, slots=True)
class First:
    """The result and the cost of the first resolve in a new process.

    Attributes:
        count: the number of addresses.
        digest: a hash of the sorted addresses.
        seconds: the duration, including imports of the peer and connecting.
        peak: the peak memory of the process until then, in bytes.
    """

    count: int
    digest: str
    seconds: float
    peak: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The cost of the resolves of one turn.

    Attributes:
        wall: the duration of each resolve, in seconds.
        cpu: the user and system time of the process for each resolve, in seconds.
    """

    wall: list[float]
    cpu: list[float]


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes.

    On Linux, `ru_maxrss` survives exec, so that it is never less than that of the parent. VmHWM does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


async def turn(resolve: Resolve, seconds: float) -> Turn:
    """Resolve repeatedly for about `seconds`, at least once."""
    wall: list[float] = []
    cpu: list[float] = []
    gc.collect()
    while sum(wall) < seconds:
        used, began = time.process_time(), time.perf_counter()
        result = await resolve()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        del result
    return Turn(wall, cpu)


async def work(options: argparse.Namespace, output: TextIO) -> None:
    """Resolve once, and then for one turn per line of stdin."""
    peer = PEERS[options.peer]

    def write(figures: First | Turn) -> None:
        output.write(json.dumps(asdict(figures)) + "\n")
        output.flush()

    async with AsyncExitStack() as stack:
        began = time.perf_counter()
        resolve = await stack.enter_async_context(peer.open_client(options.kubeconfig, options.selectors))
        result = await resolve()
        seconds, peak = time.perf_counter() - began, peak_memory()
        addresses = peer.addresses(result)
        del result
        digest = hashlib.sha256(" ".join(sorted(addresses)).encode()).hexdigest()
        write(First(len(addresses), digest, seconds, peak))

        async def resolve_with_new_client() -> Any:
            async with peer.open_client(options.kubeconfig, options.selectors) as new:
                return await new()

        timed = resolve_with_new_client if options.cold else resolve
        while line := await asyncio.to_thread(sys.stdin.readline):
            # Clients drop idle connections while other peers have their turns. Connect before the
            # measurement, unless a resolve takes longer than a turn: then the handshake makes no difference.
            if seconds < float(line):
                await timed()
            measured = await turn(timed, float(line))
            seconds = min(measured.wall)
            write(measured)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("selectors", nargs="+")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args(arguments)
    # stdout is for the figures, so that the output of libraries is redirected to stderr.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop_factory = None
    if options.uvloop:
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work(options, output))


if __name__ == "__main__":
    main()
