"""Asking many workers for their devices: aioresolve beside other ways, as ratios within one run.

    python benchmarks/probe.py [--quick]

Each way runs in a process of its own and they take turns. The workers are loopback gRPC servers that answer
from memory, in one process for all; for the comparison with tensorflow they are its own servers, in one
process as well. What is timed is one round: every worker asked once. CPU is that of the client, all threads.
"Dead" workers take connections and never speak.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import select
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Of a file that is run, its folder is searched first, and there `kubernetes` is a benchmark.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.measure import Effort
from benchmarks.plot import Panel, plot_bars
from benchmarks.probe_peers import PROBERS
from benchmarks.probe_servers import dead_workers, loopback_workers, tensorflow_servers
from benchmarks.report import Bar, aligned, bar_table, duration, environment, ratio, size, write_json
from benchmarks.worker import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("aioresolve", "grpcio", "protobuf", "tensorflow-cpu")
FULL = Effort()
QUICK = Effort(rounds=5, turn=0.1, budget=3.0)
LIMIT = 300.0
"""Seconds after which a way that says nothing is given up."""

GENEROUS = 30.0
"""Seconds that each worker has, where none is dead."""

DEADLINE = 1.0
"""Seconds that each worker has, where some are dead."""

DEAD = 2
MOST = 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """Whom to ask: so many workers, some of them dead, or TensorFlow's own servers."""

    workers: int
    dead: int = 0
    of_tensorflow: bool = False

    def __str__(self) -> str:
        servers = "tf.distribute.Server" if self.of_tensorflow else "worker"
        return f"{self.workers:,} {servers}{'s'[: self.workers != 1]}" + f", {self.dead} dead" * bool(
            self.dead
        )

    @property
    def probers(self) -> list[str]:
        """The ways that can ask them. One after another, many or dead workers only take long."""
        if self.of_tensorflow:
            return ["fresh", "pooled", "tensorflow"]
        return ["fresh", "pooled", "bare-fresh", "bare-pooled", "serial"]

    @contextmanager
    def running(self) -> Iterator[list[str]]:
        """Run the workers inside the block; yield their addresses."""
        with ExitStack() as stack:
            servers = tensorflow_servers if self.of_tensorflow else loopback_workers
            addresses = stack.enter_context(servers(self.workers - self.dead))
            yield [*stack.enter_context(dead_workers(self.dead)), *addresses]


@dataclass(slots=True)
class Measured:
    """What one way took.

    Attributes:
        name: its name in `PROBERS`.
        peak: its process's peak memory in bytes after one round, the interpreter and imports included.
        wall: seconds of each round.
        cpu: seconds of the client's CPU of each.
    """

    name: str
    peak: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        return PROBERS[self.name].title

    @property
    def seconds(self) -> float:
        """The median round."""
        return median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The CPU of the median round."""
        return median(self.cpu)


class Client:
    """The driver's end of one way's process."""

    def __init__(self, name: str, process: subprocess.Popen[str], scenario: Scenario) -> None:
        self._process = process
        self.turns = 0
        first = self._said()
        answered = [devices for devices in first["devices"] if devices > 0]
        if len(answered) != scenario.workers - scenario.dead or len(set(answered)) != 1:
            raise RuntimeError(f"{name} found {first['devices']}")
        self.measured = Measured(name, first["peak"])

    def take_turn(self, seconds: float) -> None:
        """Let it ask for so many seconds, and keep what that took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        turn = Turn(**self._said())
        self.turns += 1
        self.measured.wall += turn.wall
        self.measured.cpu += turn.cpu

    def _said(self) -> Any:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"no answer from {self._process.args!r}")
        return json.loads(line)


@contextmanager
def running_client(name: str, addresses: Sequence[str], scenario: Scenario) -> Iterator[Client]:
    """Yield a way that has asked once; its process ends with the block."""
    timeout = DEADLINE if scenario.dead else GENEROUS
    with tempfile.NamedTemporaryFile("w", suffix=".addresses") as file:
        file.write(" ".join(addresses))
        file.flush()
        command = [sys.executable, "-m", "benchmarks.probe_peers", name, file.name, str(timeout)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                yield Client(name, process, scenario)
            finally:
                process.kill()


def measured(scenario: Scenario, effort: Effort) -> list[Measured]:
    """Return what each way took."""
    with scenario.running() as addresses, ExitStack() as stack:
        clients = [
            stack.enter_context(running_client(name, addresses, scenario)) for name in scenario.probers
        ]
        for number in range(effort.rounds):
            for client in clients:
                if effort.is_due(number, client.turns, client.measured.wall):
                    client.take_turn(effort.turn)
        return [client.measured for client in clients]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="a minute or two: fewer rounds")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 16, 256, MOST], metavar="N",
                        help="how many workers are asked at once (default: 1 16 256 1024)")  # fmt: skip
    options = parser.parse_args(arguments)
    about = environment(PACKAGES)
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    found = {}
    for scenario in scenarios(options.workers):
        found[scenario] = measured(scenario, QUICK if options.quick else FULL)
        print(f"\n{scenario}\n{table(found[scenario])}", end="", flush=True)
    if bars := bars_of(found):
        print(f"\n{bar_table(bars)}", end="")
    figures = {str(scenario): [asdict(each) for each in those] for scenario, those in found.items()}
    files = [write_json("probe", {"environment": about, "figures": figures})]
    files += plot_bars("probe", "Asking workers for their devices", [panels(*each) for each in found.items()])
    print("\nwritten:", *files, sep="\n  ")
    return 0


def scenarios(sizes: Sequence[int]) -> list[Scenario]:
    """Return whom to ask: loopback workers of each size, the most with dead ones, a few of TensorFlow's."""
    found = [Scenario(workers) for workers in sizes]
    if max(sizes) > DEAD:
        found.append(Scenario(max(sizes), dead=DEAD))
    if importlib.util.find_spec("tensorflow") is None:
        print("left out: tensorflow, which is not installed")
        return found
    # A server of TensorFlow's has some 60 MB and 80 threads: more than these do not fit beside one another.
    return found + [Scenario(workers, of_tensorflow=True) for workers in sizes if workers <= 16]


def table(those: Sequence[Measured]) -> str:
    """Return one scenario's figures; ratios are to the first way."""
    ours = those[0]
    return aligned(
        ("", "median", "ratio", "CPU", "ratio", "peak memory", "rounds"),
        [
            (
                each.title,
                duration(each.seconds),
                ratio(each.seconds, ours.seconds),
                duration(each.cpu_seconds),
                ratio(each.cpu_seconds, ours.cpu_seconds),
                size(each.peak),
                str(len(each.wall)),
            )
            for each in those
        ],
    )


def bars_of(found: Mapping[Scenario, Sequence[Measured]]) -> list[Bar]:
    """Return the promises, as far as they were measured."""
    alive = {each.name: each for each in found.get(Scenario(MOST), ())}
    dying = {each.name: each for each in found.get(Scenario(MOST, dead=DEAD), ())}
    bars = []
    if alive:
        cpu = alive["fresh"].cpu_seconds
        bars.append(
            Bar(what="1,024 workers, fresh channels, CPU of the client", measured=cpu, most=1, unit=" s")
        )
    if alive and dying:
        more = dying["fresh"].seconds - alive["fresh"].seconds
        what = f"what 2 dead of 1,024 workers add, with {DEADLINE:g} s each"
        bars.append(Bar(what=what, measured=more, most=DEADLINE, unit=" s"))
    return bars


def panels(scenario: Scenario, those: Sequence[Measured]) -> list[Panel]:
    """Return the panels of one scenario: time, CPU and memory."""
    return [
        Panel(f"{scenario}: median time", {each.title: each.seconds for each in those}, duration),
        Panel("CPU of the client", {each.title: each.cpu_seconds for each in those}, duration),
        Panel("peak memory of the process", {each.title: float(each.peak) for each in those}, size),
    ]


if __name__ == "__main__":
    sys.exit(main())
