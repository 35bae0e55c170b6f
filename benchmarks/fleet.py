"""Compares `Fleet` with other ways to request the pods of many clusters.

    python benchmarks/fleet.py [--quick]

Each way runs in a separate process, and they take turns. A cluster has 100 pods of 8 KB; its API server is a
loopback port that sends prepared bytes over TLS, so that the figures show the cost of the client. One
measurement is one poll: one request to every cluster. CPU is that of all threads of the client. Sockets are
the largest number that the servers saw open in the first poll, and the number that is open after it.

Then some clusters hang (they accept connections and never respond) or fail: the figures show how long the
responses of the others take, and how old they are when all clusters are polled repeatedly.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # The folder of a script comes first in sys.path, and this folder has a module `kubernetes`.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.child_process import running
from benchmarks.fleet_freshness import freshness, freshness_bars, freshness_table
from benchmarks.fleet_peers import WAYS
from benchmarks.fleet_servers import PODS, Place, running_servers
from benchmarks.fleet_worker import First, Round
from benchmarks.measure import Effort
from benchmarks.report import Bar, bar_table, duration, environment, format_table, ratio, size, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.child_process import Child
    from benchmarks.fleet_servers import Servers, Target

PACKAGES = ("aioresolve", "aiohttp", "msgspec", "kubernetes-asyncio")
FULL = Effort(rounds=8, budget=8.0)
QUICK = Effort(rounds=3, turn=0.1, budget=2.0, least=1)

GENEROUS = 60.0
"""The timeout of each target in seconds, if none is bad."""

DEADLINE = 3.0
"""The timeout of each target in seconds, if one is bad."""

MOST = 1000
TYPED_UP_TO = 100
"""The largest number of targets for kubernetes_asyncio, which takes minutes for more."""

BAD = "cluster-0050"
"""The name of the bad target."""

SLOW = 1.0
"""The response time of slow targets in seconds, so that CPU is not the limit."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The targets of a measurement.

    Attributes:
        targets: the number of targets.
        place: how they are distributed over API servers.
        delay: their response time in seconds, a quarter more or less.
        bad: whether one is `hanging` or `failing`.
    """

    targets: int
    place: Place = Place.OWN
    delay: float = 0.0
    bad: str = ""

    def __str__(self) -> str:
        words = [f"{self.targets:,} targets x {PODS} pods, {self.place}"]
        words += [f"with a delay of {duration(self.delay)}"] * bool(self.delay)
        words += [f"one {self.bad}, {DEADLINE:g} s each"] * bool(self.bad)
        return ", ".join(words)

    @property
    def ways(self) -> list[str]:
        """The ways to compare."""
        if self.bad:
            return ["poll", "resolve", "gather", "serial"]
        if self.delay:
            return ["resolve", "resolve-64", "gather", "serial"]
        ways = ["resolve", "fresh", "gather", "gather-spec", "serial"]
        typed = self.targets <= TYPED_UP_TO and self.place is Place.OWN
        return [*ways, "kubernetes_asyncio"] if typed else ways

    @property
    def timeout(self) -> float:
        """The timeout of each target in seconds."""
        return DEADLINE if self.bad else GENEROUS

    def arrange(self, servers: Servers) -> None:
        """Configure the servers."""
        servers.behave(
            delay=self.delay,
            hanging=[BAD] if self.bad == "hanging" else [],
            failing={BAD: 503} if self.bad == "failing" else {},
        )


@dataclass(slots=True)
class Measured:
    """The cost of one way.

    Attributes:
        name: its name in `WAYS`.
        first: the result and cost of the first round in a new process.
        sockets: the largest number of open sockets in that round.
        kept: the number of open sockets after that round.
        rounds: the later rounds.
    """

    name: str
    first: First
    sockets: int
    kept: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def title(self) -> str:
        return WAYS[self.name].title

    @property
    def seconds(self) -> float:
        """The median duration of a round, until all results were reported, in seconds."""
        return median(each.wall for each in self.rounds)

    @property
    def good_seconds(self) -> float:
        """The median time until the last good result of a round was reported, in seconds."""
        return median(each.good for each in self.rounds)

    @property
    def slowest(self) -> float:
        """The longest time between two results, median of the rounds, in seconds."""
        return median(each.slowest for each in self.rounds)

    @property
    def cpu_seconds(self) -> float:
        """The median CPU time of a round, in seconds."""
        return median(each.cpu for each in self.rounds)


class Client:
    """Controls the process of one way."""

    def __init__(self, name: str, process: Child, servers: Servers, scenario: Scenario) -> None:
        self._process = process
        self.turns = 0
        servers.traffic()
        first = First(**process.request("first"))
        seen = servers.traffic()
        bad = [BAD] if scenario.bad else []
        if first.right != scenario.targets - len(bad) or list(first.errors) != bad:
            raise RuntimeError(f"{name} found {first.right} targets, and {first.errors}")
        self.measured = Measured(name, first, seen.most, seen.connections)

    def take_turn(self, seconds: float) -> None:
        """Make the process run rounds for `seconds`, and record the cost."""
        self.turns += 1
        self.measured.rounds += [Round(**each) for each in self._process.request("turn", seconds=seconds)]


@contextmanager
def running_client(
    name: str, targets: Sequence[Target], servers: Servers, scenario: Scenario
) -> Iterator[Client]:
    """Run the process of a way inside the block; it has already run one round."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([asdict(target) for target in targets], file)
        file.flush()
        with running("benchmarks.fleet_worker", name, file.name, str(scenario.timeout)) as process:
            yield Client(name, process, servers, scenario)


def measure(scenario: Scenario, effort: Effort) -> list[Measured]:
    """Measure each way."""
    names = [name for name in scenario.ways if not WAYS[name].missing]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        servers = stack.enter_context(running_servers(scenario.targets, scenario.place, folder))
        scenario.arrange(servers)
        clients = [
            stack.enter_context(running_client(name, servers.targets, servers, scenario)) for name in names
        ]
        for number in range(effort.rounds):
            for client in clients:
                if effort.is_due(number, client.turns, [each.wall for each in client.measured.rounds]):
                    client.take_turn(effort.turn)
        return [client.measured for client in clients]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two: fewer rounds, no 1,000 targets"
    )
    options = parser.parse_args(arguments)
    about = environment(PACKAGES)
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    found = {}
    for scenario in scenarios(quick=options.quick):
        effort = QUICK if options.quick else FULL
        found[scenario] = measure(scenario, replace(effort, least=1) if scenario.delay else effort)
        print(f"\n{scenario}\n{table(scenario, found[scenario])}", end="", flush=True)
    fresh = freshness(quick=options.quick)
    print(f"\n{freshness_table(fresh)}", end="", flush=True)
    print(f"\n{bar_table([*bars_of(found), *freshness_bars(fresh)])}", end="")
    figures = {str(scenario): [asdict(each) for each in those] for scenario, those in found.items()}
    about_freshness = [asdict(each) for each in fresh]
    file = write_json("fleet", {"environment": about, "figures": figures, "freshness": about_freshness})
    print(f"\nwritten: {file}")
    return 0


def scenarios(*, quick: bool) -> list[Scenario]:
    """Return the scenarios."""
    if quick:
        found = [Scenario(10), Scenario(100, Place.ONE), Scenario(30, delay=0.2)]
    else:
        found = [Scenario(size) for size in (10, 100, MOST)]
        found += [Scenario(100, Place.CONTEXTS), Scenario(MOST, Place.ONE)]
        found += [Scenario(100, delay=0.2), Scenario(100, delay=SLOW)]
    return found + [Scenario(100, bad=bad) for bad in ("hanging", "failing")]


def table(scenario: Scenario, those: Sequence[Measured]) -> str:
    """Return a table of the figures of one scenario; ratios are relative to the first way."""
    ours = those[0]
    if scenario.bad:
        return format_table(
            ("", "99 others", "ratio", "all", "CPU", "rounds"),
            [
                (
                    each.title,
                    duration(each.good_seconds),
                    ratio(each.good_seconds, ours.good_seconds),
                    duration(each.seconds),
                    duration(each.cpu_seconds),
                    str(len(each.rounds)),
                )
                for each in those
            ],
        )
    return format_table(
        ("", "first", "median", "ratio", "CPU", "ratio", "sockets", "kept", "peak memory", "rounds"),
        [
            (
                each.title,
                duration(each.first.seconds),
                duration(each.seconds),
                ratio(each.seconds, ours.seconds),
                duration(each.cpu_seconds),
                ratio(each.cpu_seconds, ours.cpu_seconds),
                f"{each.sockets:,}",
                f"{each.kept:,}",
                size(each.first.peak),
                str(len(each.rounds)),
            )
            for each in those
        ],
    ) + slowest_of(scenario, those)


def slowest_of(scenario: Scenario, those: Sequence[Measured]) -> str:
    """Return a line about the slowest target, if targets are slow."""
    if not scenario.delay:
        return ""
    (serial,) = [each for each in those if each.name == "serial"]
    times = [ratio(each.seconds, serial.slowest) for each in those if each is not serial]
    alone = duration(serial.slowest)
    return f"the slowest target alone: {alone}; ratios to it, from the top: {', '.join(times)}\n"


def bars_of(found: Mapping[Scenario, Sequence[Measured]]) -> list[Bar]:
    """Return the limits for one poll, for the figures that were measured."""
    bars = []
    if slow := {each.name: each for each in found.get(Scenario(100, delay=SLOW), ())}:
        times = slow["resolve"].seconds / slow["serial"].slowest
        what = f"100 targets of about {SLOW:g} s over the slowest one, {slow['resolve'].title}"
        bars.append(Bar(what=what, measured=times, most=1.5, unit="x"))
    if shared := found.get(Scenario(MOST, Place.ONE)):
        what = "1,000 targets on one API server, sockets"
        bars.append(Bar(what=what, measured=shared[0].sockets, most=64, unit=""))
    return bars


if __name__ == "__main__":
    sys.exit(main())
