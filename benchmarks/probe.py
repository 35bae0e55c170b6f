"""Compares aioresolve with other ways to request the devices of many workers.

    python benchmarks/probe.py [--quick]

Each way runs in a separate process, and they take turns. The workers are loopback gRPC servers in one process
that respond from memory; for the comparison with tensorflow they are its own servers, also in one process.
One measurement is one round: one request to every worker. CPU is that of all threads of the client. "Dead"
workers accept connections and never respond.
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
    # The folder of a script comes first in sys.path, and this folder has a module `kubernetes`.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.measure import Effort
from benchmarks.probe_peers import PROBERS
from benchmarks.probe_servers import dead_workers, loopback_workers, tensorflow_servers
from benchmarks.report import Bar, bar_table, duration, environment, format_table, ratio, size, write_json
from benchmarks.worker import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("aioresolve", "grpcio", "protobuf", "tensorflow-cpu")
FULL = Effort()
QUICK = Effort(rounds=5, turn=0.1, budget=3.0)
LIMIT = 300.0
"""Seconds to wait for the reply of a process."""

GENEROUS = 30.0
"""The timeout of each worker in seconds, if none is dead."""

DEADLINE = 1.0
"""The timeout of each worker in seconds, if some are dead."""

DEAD = 2
MOST = 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """The workers: how many, how many of them are dead, and whether they are TensorFlow servers."""

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
        """The ways to measure."""
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
    """The cost of one way.

    Attributes:
        name: its name in `PROBERS`.
        peak: the peak memory of its process after one round, in bytes, with interpreter and imports.
        wall: the duration of each round, in seconds.
        cpu: the CPU time of the client for each round, in seconds.
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
        """The median duration of a round, in seconds."""
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
        first = self._read_reply()
        responded = [devices for devices in first["devices"] if devices > 0]
        if len(responded) != scenario.workers - scenario.dead or len(set(responded)) != 1:
            raise RuntimeError(f"{name} found {first['devices']}")
        self.measured = Measured(name, first["peak"])

    def take_turn(self, seconds: float) -> None:
        """Make the process run rounds for `seconds`, and record the cost."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        turn = Turn(**self._read_reply())
        self.turns += 1
        self.measured.wall += turn.wall
        self.measured.cpu += turn.cpu

    def _read_reply(self) -> Any:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"no reply from {self._process.args!r}")
        return json.loads(line)


@contextmanager
def running_client(name: str, addresses: Sequence[str], scenario: Scenario) -> Iterator[Client]:
    """Run the process of a way inside the block; it has already run one round."""
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


def measure(scenario: Scenario, effort: Effort) -> list[Measured]:
    """Measure each way."""
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
                        help="the numbers of workers (default: 1 16 256 1024)")  # fmt: skip
    options = parser.parse_args(arguments)
    about = environment(PACKAGES)
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    found = {}
    for scenario in scenarios(options.workers):
        found[scenario] = measure(scenario, QUICK if options.quick else FULL)
        print(f"\n{scenario}\n{table(found[scenario])}", end="", flush=True)
    if bars := bars_of(found):
        print(f"\n{bar_table(bars)}", end="")
    figures = {str(scenario): [asdict(each) for each in those] for scenario, those in found.items()}
    file = write_json("probe", {"environment": about, "figures": figures})
    print(f"\nwritten: {file}")
    return 0


def scenarios(sizes: Sequence[int]) -> list[Scenario]:
    """Return the scenarios: loopback workers, also with dead ones, and a few TensorFlow servers."""
    found = [Scenario(workers) for workers in sizes]
    if max(sizes) > DEAD:
        found.append(Scenario(max(sizes), dead=DEAD))
    if importlib.util.find_spec("tensorflow") is None:
        print("left out: tensorflow, which is not installed")
        return found
    # A TensorFlow server takes about 60 MB and 80 threads, so that no more than these fit on one machine.
    return found + [Scenario(workers, of_tensorflow=True) for workers in sizes if workers <= 16]


def table(those: Sequence[Measured]) -> str:
    """Return a table of the figures of one scenario; ratios are relative to the first way."""
    ours = those[0]
    return format_table(
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
    """Return the limits, for the figures that were measured."""
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
        what = f"time added by 2 dead of 1,024 workers, with {DEADLINE:g} s each"
        bars.append(Bar(what=what, measured=more, most=DEADLINE, unit=" s"))
    return bars


if __name__ == "__main__":
    sys.exit(main())
