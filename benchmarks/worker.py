"""The process that one peer is measured in: it resolves when it is told to, and says what that took.

On stdout it writes one JSON object a line: a `First` when it has resolved for the first time, then a `Turn`
for each number of seconds that it reads, one a line, from stdin.
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
    """What a fresh process's first resolve found and took.

    Attributes:
        count: how many addresses were found.
        digest: a hash of the addresses, sorted.
        seconds: how long it took, the peer's imports and connecting included.
        peak: the process's peak memory by then, in bytes.
    """

    count: int
    digest: str
    seconds: float
    peak: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What the resolves of one turn took.

    Attributes:
        wall: seconds of each resolve.
        cpu: seconds of user and system time of the process, of each resolve.
    """

    wall: list[float]
    cpu: list[float]


def peak_memory() -> int:
    """Return this process's peak resident memory, in bytes.

    On Linux `ru_maxrss` survives exec, so it is never less than what the parent had: VmHWM is this program's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


async def turn(resolve: Resolve, seconds: float) -> Turn:
    """Resolve again and again for about `seconds`, at least once."""
    wall: list[float] = []
    cpu: list[float] = []
    gc.collect()
    while sum(wall) < seconds:
        used, began = time.process_time(), time.perf_counter()
        answer = await resolve()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        del answer
    return Turn(wall, cpu)


async def work(options: argparse.Namespace, output: TextIO) -> None:
    """Resolve once, and then as often as stdin says."""
    peer = PEERS[options.peer]

    def say(what: First | Turn) -> None:
        output.write(json.dumps(asdict(what)) + "\n")
        output.flush()

    async with AsyncExitStack() as stack:
        began = time.perf_counter()
        resolve = await stack.enter_async_context(peer.opened(options.kubeconfig, options.selectors))
        answer = await resolve()
        seconds, peak = time.perf_counter() - began, peak_memory()
        addresses = peer.addresses(answer)
        del answer
        digest = hashlib.sha256(" ".join(sorted(addresses)).encode()).hexdigest()
        say(First(len(addresses), digest, seconds, peak))

        async def resolve_with_new_client() -> Any:
            async with peer.opened(options.kubeconfig, options.selectors) as new:
                return await new()

        timed = resolve_with_new_client if options.cold else resolve
        while line := await asyncio.to_thread(sys.stdin.readline):
            # Clients drop idle connections, and the others' turns are long: where a handshake counts, it is
            # made before. Where a resolve takes longer than a turn, it does not count.
            if seconds < float(line):
                await timed()
            measured = await turn(timed, float(line))
            seconds = min(measured.wall)
            say(measured)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("selectors", nargs="+")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args(arguments)
    # Whatever a library prints goes to stderr: stdout is for what is measured.
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
