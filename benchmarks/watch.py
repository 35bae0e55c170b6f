"""Compares `watch()` with other ways to follow the changes of pods.

    python benchmarks/watch.py [--quick]

First, 5,000 pods of 8 KB change 1, 100 and 1,000 times a second. The delay is the time from a change until a
yielded value shows it. The ways take turns, A B C A B C, each in a new process. At the end of a turn, each
way has to show every change. Then idle watches of 16 pods each are measured, one and 500 in a process, with
and without TLS.

The server is a separate process that sends prepared bytes. CPU is that of all threads of the client, relative
to one core, while changes are made: a client that needs more than 100 % does not keep up. Peak memory
includes the interpreter, the imports and the first list.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # The folder of a script comes first in sys.path, and this folder has a module `kubernetes`.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.child_process import NoReplyError, running
from benchmarks.report import Bar, bar_table, duration, environment, format_table, size, write_json
from benchmarks.watch_changes import addresses_after, digest
from benchmarks.watch_peers import WATCHERS, Watcher
from benchmarks.watch_server import running_watch_server
from benchmarks.watch_worker import Idled, Seen, Start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from benchmarks.child_process import Child

PACKAGES = ("aioresolve", "aiohttp", "msgspec", "lightkube", "kubernetes-asyncio")
CHANGING = ["watch", "msgspec", "lightkube", "kubernetes_asyncio", "poll"]
IDLING = ["watch", "alone", "msgspec", "lightkube", "kubernetes_asyncio"]
PODS = 5000
IDLE_PODS = 16
HELD_PODS = 20_000
SETTLING = 1.0
"""Seconds from opening the watches to the start of the measurement."""

PATIENCE = 60.0
"""Seconds after the last change within which a way may catch up."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: the number of turns of each way at each rate.
        seconds: how long changes are made in a turn.
        idle: how long idle watches are measured, in seconds.
        watches: the number of idle watches.
        schemes: the schemes of the idle watches, `https` or `http` or both.
    """

    rounds: int
    seconds: float
    idle: float
    watches: int
    schemes: tuple[str, ...] = ("https", "http")


FULL = Effort(rounds=3, seconds=8.0, idle=30.0, watches=500)
QUICK = Effort(rounds=1, seconds=2.0, idle=3.0, watches=100, schemes=("https",))


@dataclass(slots=True)
class Followed:
    """What one way showed at one rate, in all of its turns.

    Attributes:
        name: its name in `WATCHERS`.
        seconds: how long changes were made.
        made: the number of changes.
        delays: the delay of each change that was shown, in seconds.
        yields: the number of yielded values.
        cpu: the CPU time of the client, in seconds.
        peak: the peak memory of the process, in bytes.
    """

    name: str
    seconds: float = 0.0
    made: int = 0
    delays: list[float] = field(default_factory=list)
    yields: int = 0
    cpu: float = 0.0
    peak: int = 0

    @property
    def watcher(self) -> Watcher:
        return WATCHERS[self.name]

    @property
    def delay(self) -> float:
        """The median delay in seconds; a change that was not shown counts as the longest delay."""
        return self._delay_of(0.5)

    @property
    def long_delay(self) -> float:
        """The 99th percentile of the delay, in seconds."""
        return self._delay_of(0.99)

    @property
    def load(self) -> float:
        """The CPU of the client relative to one core while changes were made."""
        return self.cpu / self.seconds

    def add(self, made: Sequence[float], seen: Seen, seconds: float) -> None:
        """Add the figures of one turn."""
        self.seconds += seconds
        self.made += len(made)
        self.delays += [at - since for at, since in zip(seen.at, made, strict=False)]
        self.yields += seen.yields
        self.cpu += seen.cpu
        self.peak = max(self.peak, seen.peak)

    def _delay_of(self, part: float) -> float:
        ranked = sorted(self.delays)
        place = min(int(part * self.made), self.made - 1)
        return ranked[place] if place < len(ranked) else float("inf")


@dataclass(frozen=True, slots=True)
class Idle:
    """The cost of the idle watches of one way.

    Attributes:
        name: its name in `WATCHERS`.
        seconds: how long they were measured.
        one: the cost of one watch.
        many: the cost of many watches in the same process.
    """

    name: str
    seconds: float
    one: Idled
    many: Idled

    @property
    def watcher(self) -> Watcher:
        return WATCHERS[self.name]

    @property
    def memory(self) -> float:
        """The memory of each additional watch, in bytes."""
        return (self.many.resident - self.one.resident) / (self.many.watches - self.one.watches)


def running_way(name: str, kubeconfig: Path, pods: int) -> AbstractContextManager[Child]:
    """Run the process of one way inside the block."""
    return running("benchmarks.watch_worker", name, str(kubeconfig), str(pods))


class Stage:
    """A server with many pods, on which the ways are measured in turn."""

    def __init__(self, server: Child, kubeconfig: Path, pods: int) -> None:
        self._server = server
        self._kubeconfig = kubeconfig
        self._pods = pods
        self._changes = 0

    def take_turn(self, followed: Followed, rate: float, seconds: float) -> None:
        """Make changes while one way watches, and record what it shows.

        Raises:
            NoReplyError: the process failed.
            RuntimeError: the way shows wrong addresses.
        """
        with running_way(followed.name, self._kubeconfig, self._pods) as way:
            start = Start(**way.request("open", watches=1))
            self._check(followed.name, start.digest)
            if followed.watcher.is_watch:
                self._server.request("wait", watches=1)
            time.sleep(SETTLING)
            way.request("begin")
            made = self._server.request("change", rate=rate, seconds=seconds)
            self._changes += len(made)
            seen = Seen(**way.request("end", changes=len(made), patience=PATIENCE))
            if len(seen.at) == len(made):
                self._check(followed.name, seen.digest)
        followed.add(made, seen, seconds)
        self._server.request("wait", watches=0)

    def _check(self, name: str, shown: str) -> None:
        if shown != digest(addresses_after(self._changes, self._pods)):
            raise RuntimeError(f"{name} does not show the {self._changes} changes that were made")


def measure_changes(
    rates: Sequence[float], pods: int, names: Sequence[str], effort: Effort
) -> Iterator[tuple[float, list[Followed]]]:
    """Measure all ways at each rate; yield the rate and the figures."""
    names = list(names)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        with running_watch_server(pods, "https", kubeconfig) as server:
            stage = Stage(server, kubeconfig, pods)
            for rate in rates:
                those = {name: Followed(name) for name in names}
                for _ in range(effort.rounds):
                    for name in list(names):
                        try:
                            stage.take_turn(those[name], rate, effort.seconds)
                        except NoReplyError as error:
                            print(f"left out: {WATCHERS[name].title}: {error}", file=sys.stderr)
                            names.remove(name)
                            del those[name]
                            server.request("wait", watches=0)
                yield rate, list(those.values())


def measure_idle_watches(scheme: str, names: Sequence[str], effort: Effort) -> list[Idle]:
    """Measure the idle watches of all ways over `https` or `http`."""
    found = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        with running_watch_server(IDLE_PODS, scheme, kubeconfig) as server:
            for name in names:
                try:
                    found.append(measure_idle(name, server, kubeconfig, effort))
                except NoReplyError as error:
                    print(f"left out: {WATCHERS[name].title}: {error}", file=sys.stderr)
                server.request("wait", watches=0)
    return found


def measure_idle(name: str, server: Child, kubeconfig: Path, effort: Effort) -> Idle:
    """Measure the idle watches of one way: one, then many.

    Raises:
        NoReplyError: the process failed.
    """
    with running_way(name, kubeconfig, IDLE_PODS) as way:
        idled = []
        for watches in (1, effort.watches):
            way.request("open", watches=watches)
            server.request("wait", watches=watches)
            time.sleep(SETTLING)
            idled.append(Idled(**way.request("idle", seconds=effort.idle)))
    return Idle(name, effort.idle, *idled)


def measure_held_memory(name: str, pods: int) -> float:
    """Return how much more memory a watch of many pods holds than one of few pods, for each pod, in bytes.

    Each is in a new process.
    """
    resident = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        for count in (IDLE_PODS, pods):
            with (
                running_watch_server(count, "https", kubeconfig) as server,
                running_way(name, kubeconfig, count) as way,
            ):
                way.request("open", watches=1)
                server.request("wait", watches=1)
                time.sleep(SETTLING)
                resident.append(Idled(**way.request("idle", seconds=SETTLING)).resident)
    return (resident[1] - resident[0]) / (pods - IDLE_PODS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="two minutes: one short turn each, 100 watches")
    parser.add_argument("--rates", type=float, nargs="*", default=[1, 100, 1000], metavar="N",
                        help="changes a second (default: 1 100 1000)")  # fmt: skip
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WATCHERS),
                        metavar="A,B,...", help=f"the ways to measure, of {','.join(WATCHERS)}")  # fmt: skip
    parser.add_argument(
        "--pods", type=int, default=PODS, metavar="N", help="pods that change (default: 5000)"
    )
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    about = environment(PACKAGES)
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    for watcher in WATCHERS.values():
        if watcher.missing:
            print(f"left out: {watcher.title}: {' and '.join(watcher.missing)} not installed")
    changing, idling = (
        [name for name in each if name in options.ways and not WATCHERS[name].missing]
        for each in (CHANGING, IDLING)
    )
    followed = {}
    for rate, those in measure_changes(options.rates, options.pods, changing, effort):
        followed[rate] = those
        print(f"\n{changes_title(rate, options.pods)}\n{followed_table(those)}", end="", flush=True)
    idle = {}
    for scheme in effort.schemes:
        idle[scheme] = measure_idle_watches(scheme, idling, effort)
        print(f"\n{idle_title(scheme, effort)}\n{idle_table(idle[scheme])}", end="", flush=True)
    held = None
    if "watch" in changing:
        held = measure_held_memory("watch", HELD_PODS)
        print(f"\na watch of {HELD_PODS:,} pods holds {kilobytes(held)} for each", flush=True)
    if bars := bars_of(held, followed if options.pods == PODS else {}, idle["https"]):
        print(f"\n{bar_table(bars)}", end="")
    figures = {
        "changes": {f"{rate:g}": [asdict(each) for each in those] for rate, those in followed.items()},
        "idle": {scheme: [asdict(each) for each in those] for scheme, those in idle.items()},
        "held by a watch for each pod": held,
    }
    file = write_json("watch", {"environment": about, "figures": figures})
    print(f"\nwritten: {file}")
    return 0


def changes_title(rate: float, pods: int) -> str:
    return f"{rate:,g} change{'s'[: rate != 1]} a second, {pods:,} pods"


def idle_title(scheme: str, effort: Effort) -> str:
    over = "TLS" if scheme == "https" else "plain HTTP"
    return f"{effort.watches} idle watches over {over}, {IDLE_PODS} pods each, {effort.idle:g} s"


def followed_table(those: Sequence[Followed]) -> str:
    """Return a table of the figures at one rate."""
    return format_table(
        ("", "median delay", "99 of 100", "CPU", "peak memory", "seen", "yielded"),
        [
            (
                each.watcher.title,
                delay(each.delay),
                delay(each.long_delay),
                percent(each.load),
                size(each.peak),
                f"{len(each.delays):,} of {each.made:,}",
                f"{each.yields:,} {each.watcher.yields}",
            )
            for each in those
        ],
    )


def idle_table(those: Sequence[Idle]) -> str:
    """Return a table of the figures of idle watches."""
    return format_table(
        ("", "CPU of 1", "of many", "of a core", "memory of 1", "of many", "each"),
        [
            (
                each.watcher.title,
                duration(each.one.cpu),
                duration(each.many.cpu),
                percent(each.many.cpu / each.seconds),
                size(each.one.resident),
                size(each.many.resident),
                kilobytes(each.memory),
            )
            for each in those
        ],
    )


def delay(seconds: float) -> str:
    return duration(seconds) if seconds < float("inf") else "not seen"


def percent(part: float) -> str:
    return f"{part * 100:.2g} %" if part < 0.0995 else f"{part * 100:.0f} %"


def kilobytes(bytes_: float) -> str:
    return f"{bytes_ / 1e3:.0f} KB" if bytes_ >= 9.95e3 else f"{bytes_ / 1e3:.1f} KB"


def bars_of(
    held: float | None, followed: Mapping[float, Sequence[Followed]], idle: Sequence[Idle]
) -> list[Bar]:
    """Return the limits, for the figures that were measured."""
    bars = []
    if held is not None:
        bars.append(
            Bar(what="memory that a watch holds for each pod", measured=held / 1e3, most=2.5, unit=" KB")
        )
    for ours in (each for each in followed.get(100, ()) if each.name == "watch"):
        what = "a change reaches the consumer, median, 100 changes a second"
        bars.append(Bar(what=what, measured=ours.delay * 1e3, most=20, unit=" ms"))
    if every := [each for those in followed.values() for each in those if each.name == "watch"]:
        missed = sum(each.made - len(each.delays) for each in every)
        bars.append(Bar(what="changes that no state showed", measured=missed, most=0, unit=""))
    for each in idle:
        if each.name in ("watch", "alone") and each.many.watches == FULL.watches:
            what = f"{each.watcher.title}, {FULL.watches} idle over TLS"
            part = each.many.cpu / each.seconds * 100
            bars.append(Bar(what=f"{what}, CPU of a core", measured=part, most=0.3, unit=" %"))
            bars.append(Bar(what=f"{what}, each", measured=each.memory / 1e3, most=100, unit=" KB"))
    return bars


if __name__ == "__main__":
    sys.exit(main())
