"""A large fleet under random faults for minutes, in processes of their own: `python -m tests.long_fleet`.

    python -m tests.long_fleet --minutes 10 --targets 1000 --servers 4

Each server holds the pods of its share of the targets, and changes them, fails, hangs, cuts and restarts at
random. All targets are watched and polled at the same time, by one fleet. Every 30 seconds a line of figures
is printed. In the end the faults cease, and every target has to be read as it is. The exit code is 1 where it
is not, or where memory, sockets or tasks have grown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psutil

from aioresolve import Fleet, KubernetesClusterResolver
from aioresolve.testing import Answer, Cut, Delay, End, Hang, KubernetesServer, Reset, Stall, pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aioresolve import TargetStatus

ROOT = Path(__file__).resolve().parents[2]

LINE_EVERY = 30.0
"""Seconds."""

POLL_EVERY = 20.0
"""Seconds."""

CONVERGING = 330.0
"""Seconds that all have to be read as they are once the faults cease: a backoff is five minutes at most."""

GROWTH = 1.1
"""How much more memory and how many more tasks there may be in the last third of the time than before."""

BESIDE_WATCHES = 150
"""How many more descriptors there may be than targets: a poll shares the connections of a pool."""

FAULTS_BEFORE = [
    (Answer(500),),
    (Answer(503),),
    (Answer(429, headers={"Retry-After": "1"}),),
    (Answer(200, b"{"),),
    (Answer(403),),
    (Delay(0.5),),
    (Hang(),),
    (Reset(),),
    (Reset(after=100),),
    (Cut(after=100),),
]
"""What befalls a request."""

FAULTS_WITHIN = [Cut(after=20), Cut(after=0), End(after=0), Reset(after=0), Stall(after=0), Delay(1.0)]
"""What befalls watches under way."""


# A server, in a process of its own


async def serve(index: int, targets: int, pods: int, kubeconfig: str) -> None:
    """Run one server, at random unwell until a line is written to stdin; then write the truth as JSON."""
    chance = random.Random(index)
    names = names_of(index, targets)
    held = [pod(f"{name}-{number}", labels={"app": name}) for name in names for number in range(pods)]
    async with KubernetesServer(held, bookmark_interval=10.0) as server:
        server.write_kubeconfig(Path(kubeconfig))
        print("ready", flush=True)
        async with anyio.create_task_group() as group:
            group.start_soon(unwell, server, chance)
            group.start_soon(change, server, chance, names)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            group.cancel_scope.cancel()
        server.clear_faults()
        await server.restart()
        members = Counter(one["metadata"]["labels"]["app"] for one in server.pods)
        print(json.dumps(members), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)


def names_of(index: int, targets: int) -> list[str]:
    """Return the names of the targets whose pods the server `index` holds."""
    return [f"s{index}-t{number}" for number in range(targets)]


async def change(server: KubernetesServer, chance: random.Random, names: Sequence[str]) -> None:
    """Let pods come and go, ten changes a second."""
    born: list[str] = []
    for number in range(sys.maxsize):
        await anyio.sleep(0.1)
        if born and chance.random() < 0.5:
            server.delete(born.pop(chance.randrange(len(born))))
        else:
            name = chance.choice(names)
            born.append(f"{name}-new-{number}")
            server.add(pod(born[-1], labels={"app": name}))


async def unwell(server: KubernetesServer, chance: random.Random) -> None:
    """Let all kinds of things go wrong, one or two a second."""
    while True:
        await anyio.sleep(chance.uniform(0.0, 1.5))
        server.forget_requests()
        match chance.randrange(40):
            case 0:
                async with server.down():
                    await anyio.sleep(chance.uniform(0.0, 3.0))
            case 1:
                await server.restart()
            case 2:
                server.compact()
            case kind if kind < 8:
                server.disturb(chance.choice(FAULTS_WITHIN), match=lambda _: chance.random() < 0.3)
            case _ if len(server.faults) < 50:
                server.inject(*chance.choice(FAULTS_BEFORE), times=chance.randrange(1, 5))


class ServerProcess:
    """A server, and the talk with it."""

    def __init__(self, index: int, targets: int, pods: int, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        command = [sys.executable, "-m", "tests.long_fleet", "--serve", *map(str, (index, targets, pods))]
        self._process = subprocess.Popen(
            [*command, str(kubeconfig)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line()

    def truth(self) -> dict[str, int]:
        """Let the faults cease, and return how many pods each target has from now on."""
        self._stdin.write("\n")
        self._stdin.flush()
        counts: dict[str, int] = json.loads(self._line())
        return counts

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._stdin.close()
        self._process.wait(30)

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


# The fleet, in this process


@dataclass
class Figures:
    """What is printed every while, and compared in the end."""

    seconds: float
    rss: float
    descriptors: int
    tasks: int
    readings: float
    failing: int
    errors: dict[str, int]

    def __str__(self) -> str:
        errors = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items())) or "none"
        return (
            f"{self.seconds:6.0f} s  rss {self.rss:7.1f} MB  descriptors {self.descriptors:5}"
            f"  tasks {self.tasks:5}  readings/s {self.readings:7.1f}  failing {self.failing:4}"
            f"  errors: {errors}"
        )


class Run:
    """A fleet that is watched and polled, and the figures of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.lines: list[Figures] = []
        self._began = time.monotonic()
        self._readings = 0
        self._errors: Counter[str] = Counter()
        self._process = psutil.Process()

    async def follow(self, readings: AsyncGenerator[TargetStatus, None]) -> None:
        """Count the readings."""
        async with aclosing(readings):
            async for reading in readings:
                self._readings += 1
                if reading.error is not None:
                    self._errors[type(reading.error).__name__] += 1

    async def tell(self) -> None:
        """Print a line every while."""
        while True:
            await anyio.sleep(LINE_EVERY)
            gc.collect()
            failing = sum(reading.error is not None for reading in self.fleet.readings.values())
            self.lines.append(
                Figures(
                    seconds=time.monotonic() - self._began,
                    rss=self._process.memory_info().rss / 1e6,
                    descriptors=self._process.num_fds(),
                    tasks=len(asyncio.all_tasks()),
                    readings=self._readings / LINE_EVERY,
                    failing=failing,
                    errors=dict(self._errors),
                )
            )
            self._readings = 0
            self._errors.clear()
            print(self.lines[-1], flush=True)

    def growth(self) -> list[str]:
        """Return what has grown, in words: the last third of the lines against those before."""
        third = len(self.lines) // 3
        if not third:
            return []
        grown = []
        for what in ("rss", "tasks"):
            before = max(getattr(line, what) for line in self.lines[:-third])
            after = max(getattr(line, what) for line in self.lines[-third:])
            if after > GROWTH * before:
                grown.append(f"{what} grew from {before:.0f} to {after:.0f}")
        descriptors = max(line.descriptors for line in self.lines)
        if descriptors > len(self.fleet.targets) + BESIDE_WATCHES:
            grown.append(f"there were {descriptors} descriptors")
        return grown


async def followed(minutes: float, servers: Sequence[ServerProcess], targets: int) -> list[str]:
    """Follow the fleet for so long, and return what was wrong with it in the end, in words."""
    fleet = Fleet(timeout=10.0)
    for index, server in enumerate(servers):
        for name in names_of(index, targets):
            jobs = {"worker": [f"app={name}"]}
            fleet.add(
                name, KubernetesClusterResolver(jobs, kubeconfig=server.kubeconfig, namespace="default")
            )
    run = Run(fleet)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fleet)
        group = await stack.enter_async_context(anyio.create_task_group())
        group.start_soon(run.follow, fleet.watch(interval=POLL_EVERY))
        group.start_soon(run.follow, fleet.poll(interval=POLL_EVERY))
        group.start_soon(run.tell)
        await anyio.sleep(60.0 * minutes)
        truth: dict[str, int] = {}
        for server in servers:
            truth |= await anyio.to_thread.run_sync(server.truth)
        print("the faults cease", flush=True)
        began = time.monotonic()
        with anyio.move_on_after(CONVERGING):
            while wrong_readings(fleet, truth):  # noqa: ASYNC110 - of a thousand targets
                await anyio.sleep(0.5)
        wrong = wrong_readings(fleet, truth)
        print(f"{len(wrong)} targets are not as they are after {time.monotonic() - began:.1f} s", flush=True)
        group.cancel_scope.cancel()
    left = len(asyncio.all_tasks()) - 1
    return [*wrong[:20], *run.growth(), *([f"{left} tasks are left"] if left else [])]


def wrong_readings(fleet: Fleet, truth: dict[str, int]) -> list[str]:
    """Return which readings do not tell the truth, in words."""
    wrong = []
    for name, number in truth.items():
        reading = fleet.readings.get(name)
        if reading is None or reading.error is not None or reading.num_tasks != number:
            wrong.append(f"{name} has {number} pods, and is read as {reading}")
    return wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--pods", type=int, default=5, help="of each target at first")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments: Any = parser.parse_args()
    logging.getLogger("aioresolve").addHandler(logging.NullHandler())  # a line for each outage
    if arguments.serve:
        index, targets, pods, kubeconfig = arguments.serve
        asyncio.run(serve(int(index), int(targets), int(pods), kubeconfig))
        return 0
    share = arguments.targets // arguments.servers
    with tempfile.TemporaryDirectory() as folder:
        servers = [
            ServerProcess(index, share, arguments.pods, Path(folder) / f"kubeconfig-{index}")
            for index in range(arguments.servers)
        ]
        try:
            wrong = asyncio.run(followed(arguments.minutes, servers, share))
        finally:
            for server in servers:
                server.close()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
