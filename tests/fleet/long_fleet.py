"""A large fleet under random faults for minutes, with servers in their own processes.

    python -m tests.fleet.long_fleet --minutes 10 --targets 1000 --servers 4

Each server has the pods of its share of the targets, and changes them, fails, hangs, cuts connections and
restarts at random. One fleet watches and polls all targets at the same time. Every 30 seconds it prints a
line of figures. At the end the faults stop, and the status of every target must become correct. The exit code
is 1 if it does not, or if memory, sockets or tasks have grown.
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

REPORT_INTERVAL = 30.0
"""Seconds."""

POLL_INTERVAL = 20.0
"""Seconds."""

CONVERGENCE_TIMEOUT = 330.0
"""Seconds until every status must be correct after the faults stop: a backoff is at most five minutes."""

MAX_GROWTH = 1.1
"""Limit for the ratio of memory, and of tasks, in the last third of the time to those before."""

EXTRA_DESCRIPTORS = 150
"""Descriptors allowed in addition to one per target: polls share the connections of a pool."""

REQUEST_FAULTS = [
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
"""Faults of requests."""

WATCH_FAULTS = [Cut(after=20), Cut(after=0), End(after=0), Reset(after=0), Stall(after=0), Delay(1.0)]
"""Faults of running watches."""


# A server, in its own process


async def serve(index: int, targets: int, pods: int, kubeconfig: str) -> None:
    """Run one server with random faults until stdin has a line; then print the correct counts as JSON."""
    chance = random.Random(index)
    names = names_of(index, targets)
    pods_at_start = [
        pod(f"{name}-{number}", labels={"app": name}) for name in names for number in range(pods)
    ]
    async with KubernetesServer(pods_at_start, bookmark_interval=10.0) as server:
        server.write_kubeconfig(Path(kubeconfig))
        print("ready", flush=True)
        async with anyio.create_task_group() as group:
            group.start_soon(inject_faults, server, chance)
            group.start_soon(change_pods, server, chance, names)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            group.cancel_scope.cancel()
        server.clear_faults()
        await server.restart()
        members = Counter(one["metadata"]["labels"]["app"] for one in server.pods)
        print(json.dumps(members), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)


def names_of(index: int, targets: int) -> list[str]:
    """Return the names of the targets on the server `index`."""
    return [f"s{index}-t{number}" for number in range(targets)]


async def change_pods(server: KubernetesServer, chance: random.Random, names: Sequence[str]) -> None:
    """Add and delete pods, ten changes per second."""
    added: list[str] = []
    for number in range(sys.maxsize):
        await anyio.sleep(0.1)
        if added and chance.random() < 0.5:
            server.delete(added.pop(chance.randrange(len(added))))
        else:
            name = chance.choice(names)
            added.append(f"{name}-new-{number}")
            server.add(pod(added[-1], labels={"app": name}))


async def inject_faults(server: KubernetesServer, chance: random.Random) -> None:
    """Inject random faults, one or two per second."""
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
                server.disturb(chance.choice(WATCH_FAULTS), match=lambda _: chance.random() < 0.3)
            case _ if len(server.faults) < 50:
                server.inject(*chance.choice(REQUEST_FAULTS), times=chance.randrange(1, 5))


class ServerProcess:
    """A server process, and the communication with it."""

    def __init__(self, index: int, targets: int, pods: int, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        command = [
            sys.executable,
            "-m",
            "tests.fleet.long_fleet",
            "--serve",
            *map(str, (index, targets, pods)),
        ]
        self._process = subprocess.Popen(
            [*command, str(kubeconfig)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read_line()

    def stop_faults(self) -> dict[str, int]:
        """Stop the faults, and return the final number of pods of each target."""
        self._stdin.write("\n")
        self._stdin.flush()
        counts: dict[str, int] = json.loads(self._read_line())
        return counts

    def close(self) -> None:
        """Stop it."""
        with suppress(OSError):
            self._stdin.close()
        self._process.wait(30)

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


# The fleet, in this process


@dataclass
class Figures:
    """The figures that are printed at intervals, and compared at the end."""

    seconds: float
    rss: float
    descriptors: int
    tasks: int
    statuses: float
    failing: int
    errors: dict[str, int]

    def __str__(self) -> str:
        errors = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items())) or "none"
        return (
            f"{self.seconds:6.0f} s  rss {self.rss:7.1f} MB  descriptors {self.descriptors:5}"
            f"  tasks {self.tasks:5}  statuses/s {self.statuses:7.1f}  failing {self.failing:4}"
            f"  errors: {errors}"
        )


class Run:
    """A fleet that is watched and polled, and its figures."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.lines: list[Figures] = []
        self._started_at = time.monotonic()
        self._num_statuses = 0
        self._errors: Counter[str] = Counter()
        self._process = psutil.Process()

    async def count(self, statuses: AsyncGenerator[TargetStatus, None]) -> None:
        """Count the statuses."""
        async with aclosing(statuses):
            async for status in statuses:
                self._num_statuses += 1
                if status.error is not None:
                    self._errors[type(status.error).__name__] += 1

    async def report(self) -> None:
        """Print a line of figures at intervals."""
        while True:
            await anyio.sleep(REPORT_INTERVAL)
            gc.collect()
            failing = sum(status.error is not None for status in self.fleet.readings.values())
            self.lines.append(
                Figures(
                    seconds=time.monotonic() - self._started_at,
                    rss=self._process.memory_info().rss / 1e6,
                    descriptors=self._process.num_fds(),
                    tasks=len(asyncio.all_tasks()),
                    statuses=self._num_statuses / REPORT_INTERVAL,
                    failing=failing,
                    errors=dict(self._errors),
                )
            )
            self._num_statuses = 0
            self._errors.clear()
            print(self.lines[-1], flush=True)

    def growth(self) -> list[str]:
        """Return a text for each figure that has grown in the last third of the lines."""
        third = len(self.lines) // 3
        if not third:
            return []
        grown = []
        for name in ("rss", "tasks"):
            before = max(getattr(line, name) for line in self.lines[:-third])
            after = max(getattr(line, name) for line in self.lines[-third:])
            if after > MAX_GROWTH * before:
                grown.append(f"{name} grew from {before:.0f} to {after:.0f}")
        descriptors = max(line.descriptors for line in self.lines)
        if descriptors > len(self.fleet.targets) + EXTRA_DESCRIPTORS:
            grown.append(f"there were {descriptors} descriptors")
        return grown


async def run_fleet(minutes: float, servers: Sequence[ServerProcess], targets: int) -> list[str]:
    """Watch and poll the fleet for that time, and return a text for each problem at the end."""
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
        group.start_soon(run.count, fleet.watch(interval=POLL_INTERVAL))
        group.start_soon(run.count, fleet.poll(interval=POLL_INTERVAL))
        group.start_soon(run.report)
        await anyio.sleep(60.0 * minutes)
        expected: dict[str, int] = {}
        for server in servers:
            expected |= await anyio.to_thread.run_sync(server.stop_faults)
        print("the faults stop", flush=True)
        stopped_at = time.monotonic()
        with anyio.move_on_after(CONVERGENCE_TIMEOUT):
            while wrong_statuses(fleet, expected):  # noqa: ASYNC110 - a thousand targets have no common event
                await anyio.sleep(0.5)
        wrong = wrong_statuses(fleet, expected)
        print(f"{len(wrong)} statuses are wrong after {time.monotonic() - stopped_at:.1f} s", flush=True)
        group.cancel_scope.cancel()
    left = len(asyncio.all_tasks()) - 1
    return [*wrong[:20], *run.growth(), *([f"{left} tasks are left"] if left else [])]


def wrong_statuses(fleet: Fleet, expected: dict[str, int]) -> list[str]:
    """Return a text for each status that is wrong."""
    wrong = []
    for name, number in expected.items():
        status = fleet.readings.get(name)
        if status is None or status.error is not None or status.num_tasks != number:
            wrong.append(f"{name} has {number} pods, but its status is {status}")
    return wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--pods", type=int, default=5, help="of each target at the start")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments: Any = parser.parse_args()
    logging.getLogger("aioresolve").addHandler(logging.NullHandler())  # the log has a line for each outage
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
            wrong = asyncio.run(run_fleet(arguments.minutes, servers, share))
        finally:
            for server in servers:
                server.close()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
