"""Compares aioresolve with other clients that find the same pods: time, CPU and memory.

    python benchmarks/kubernetes.py [--quick]
    python benchmarks/kubernetes.py --kubeconfig ~/.kube/config --selector app=trainer --selector app=ps

Each peer runs in a separate process, with an open client and pooled connections, and they take turns. One
measurement resolves all selectors: concurrently if the peer is async; tensorflow's resolver requests one
after another. Before the measurement, all peers must have found the same addresses.

By default, the peers use a loopback API server with TLS and a bearer token that responds from memory, so that
the figures show the cost of the client. With --kubeconfig they use your cluster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    # The folder of a script comes first in sys.path, and there `import kubernetes` would import this file.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from typing import TYPE_CHECKING, Any

from benchmarks.measure import Effort, Measured, PeerError, measure
from benchmarks.peers import PEERS
from benchmarks.report import Bar, bar_table, duration, environment, format_table, ratio, size, write_json
from benchmarks.server import running_server, selectors_of
from benchmarks.watch_server import SELECTOR, running_watch_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGES = (
    "aioresolve",
    "aiohttp",
    "msgspec",
    "tensorflow-cpu",
    "kubernetes",
    "kubernetes-asyncio",
    "lightkube",
    "kr8s",
    "uvloop",
)
FULL = Effort()
QUICK = Effort(rounds=5, turn=0.1, budget=3.0)
ONLY_ONCE = Effort(rounds=0)
WAYS = ("state", "pages", "watch", "bare_json")
"""The ways to get whole pods, which are compared on prepared bytes."""

PREPARED = [4000, 20_000]
MANY = 10_000
"""Pods of the one selector with which peak memory is shown to be bounded."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The number of selectors, of pods of each, and whether the server only sends prepared bytes."""

    selectors: int
    pods: int
    is_prepared: bool = False

    def __str__(self) -> str:
        suffix = ", prepared bytes" if self.is_prepared else ""
        return f"{self.selectors} selector{'s'[: self.selectors != 1]} x {self.pods:,} pods{suffix}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    names = [name for name in PEERS if name in options.peers]
    for name in names:
        if missing := PEERS[name].missing:
            print(f"left out: {PEERS[name].title}: {' and '.join(missing)} not installed")
    names = [name for name in names if not PEERS[name].missing]
    about = environment(PACKAGES)
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    try:
        found = on_a_cluster(options, names) if options.kubeconfig else on_loopback(options, names)
    except PeerError as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 1
    timed = {scenario: each for scenario, each in found.items() if each[0].wall}
    if bars := bars_of(found, is_real=options.kubeconfig is not None):
        print(f"\n{bar_table(bars)}", end="")
    figures = {str(scenario): [asdict(each) for each in those] for scenario, those in found.items()}
    written: dict[str, Any] = {"environment": about, "figures": figures}
    if timed:
        scenario, those = next(reversed(timed.items()))
        written["published"] = {"title": str(scenario), "columns": columns_of(those)}
    file = write_json("kubernetes", written)
    print(f"\nwritten: {file}; for docs/benchmarks.md: python benchmarks/publish.py {file}")
    return 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse and validate the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS), metavar="A,B,...",
                        help=f"the peers to measure, of {','.join(PEERS)}")  # fmt: skip
    parser.add_argument("--selectors", type=int, nargs="+", default=[1, 4], metavar="N",
                        help="the numbers of selectors (default: 1 4)")  # fmt: skip
    parser.add_argument("--pods", type=int, nargs="*", default=None, metavar="N",
                        help="the numbers of pods of each selector (default: 100 1000 5000)")  # fmt: skip
    parser.add_argument("--prepared", type=int, nargs="*", default=None, metavar="N",
                        help="the numbers of pods in prepared bytes (default: 4000 20000)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=None, metavar="N",
                        help="turns of a fast peer; a slow one has fewer (default: 12)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer rounds, no 5,000 pods")
    parser.add_argument("--cold", action="store_true", help="a new client for each resolve")
    parser.add_argument("--uvloop", action="store_true", help="run the async peers on uvloop")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS",
                        help="delay the responses of the loopback server")  # fmt: skip
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster")
    parser.add_argument(
        "--selector", action="append", metavar="KEY=VALUE", help="with --kubeconfig: repeatable"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; known peers: {', '.join(PEERS)}")
    if bool(options.kubeconfig) != bool(options.selector):
        parser.error("--kubeconfig requires --selector, and the reverse")
    return options


def on_loopback(options: argparse.Namespace, names: Sequence[str]) -> dict[Scenario, list[Measured]]:
    """Measure on loopback servers; return the figures of each scenario."""
    sizes = ([100, 1000] if options.quick else [100, 1000, 5000]) if options.pods is None else options.pods
    scenarios = [[Scenario(selectors, pods) for selectors in sorted(options.selectors)] for pods in sizes]
    found: dict[Scenario, list[Measured]] = {}
    for of_one_server in scenarios:
        found |= on_one_server(of_one_server, names, effort(options), flags(options), options.delay)
    lean = [name for name in names if name in ("spec", "state", "watch", "bare")]
    if lean and options.pods is None and not options.quick:
        found |= on_one_server([Scenario(1, MANY)], lean, ONLY_ONCE, flags(options), options.delay)
    ways = [name for name in names if name in WAYS]
    prepared = (PREPARED[:1] if options.quick else PREPARED) if options.prepared is None else options.prepared
    for pods in prepared if ways else ():
        found |= on_prepared_bytes(pods, ways, effort(options), flags(options))
    return found


def on_prepared_bytes(
    pods: int, names: Sequence[str], effort: Effort, flags: Sequence[str]
) -> dict[Scenario, list[Measured]]:
    """Measure ways to get the same pods on a server that computes nothing."""
    scenario = Scenario(1, pods, is_prepared=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        with running_watch_server(pods, "https", kubeconfig):
            those = measure(names, kubeconfig, [SELECTOR], effort, flags)
    print(f"\n{scenario}\n{table(those)}", end="", flush=True)
    return {scenario: those}


def on_one_server(
    scenarios: Sequence[Scenario], names: Sequence[str], effort: Effort, flags: Sequence[str], delay: float
) -> dict[Scenario, list[Measured]]:
    """Measure scenarios that have the same number of pods per selector."""
    found = {}
    largest = scenarios[-1]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        with running_server(largest.selectors, largest.pods, kubeconfig, delay=delay):
            for scenario in scenarios:
                selectors = selectors_of(scenario.selectors)
                found[scenario] = measure(names, kubeconfig, selectors, effort, flags)
                print(f"\n{scenario}\n{table(found[scenario])}", end="", flush=True)
    return found


def on_a_cluster(options: argparse.Namespace, names: Sequence[str]) -> dict[Scenario, list[Measured]]:
    """Measure on the cluster of `--kubeconfig`."""
    those = measure(names, options.kubeconfig, options.selector, effort(options), flags(options))
    scenario = Scenario(len(options.selector), those[0].first.count // len(options.selector))
    print(f"\n{scenario}, on average\n{table(those)}", end="")
    return {scenario: those}


def effort(options: argparse.Namespace) -> Effort:
    base = QUICK if options.quick else FULL
    return base if options.rounds is None else Effort(options.rounds, base.turn, base.budget, base.least)


def flags(options: argparse.Namespace) -> list[str]:
    """Return the options of the worker processes."""
    return ["--cold"] * options.cold + ["--uvloop"] * options.uvloop


def table(those: Sequence[Measured]) -> str:
    """Return a table of the figures of one scenario; ratios are relative to the first peer."""
    ours = those[0]
    if not ours.wall:
        return format_table(("", "peak memory"), [(each.peer.title, size(each.first.peak)) for each in those])
    return format_table(
        ("", "median", "ratio", "CPU", "ratio", "peak memory", "resolves"),
        [
            (
                each.peer.title,
                duration(each.seconds),
                ratio(each.seconds, ours.seconds),
                duration(each.cpu_seconds),
                ratio(each.cpu_seconds, ours.cpu_seconds),
                size(each.first.peak),
                str(len(each.wall)),
            )
            for each in those
        ],
    )


def bars_of(found: Mapping[Scenario, Sequence[Measured]], *, is_real: bool) -> list[Bar]:
    """Return the limits for 4 selectors of 1,000 pods, for the figures that were measured.

    A loopback server computes nothing, so that only a real one gives a meaning to ratios to a bare GET.
    """
    those = {each.name: each for each in found.get(Scenario(4, 1000), ())}
    bars = []
    for reference, other, least in (
        ("spec", "tensorflow", 100),
        ("spec", "kubernetes_asyncio", 100),
        ("state", "kubernetes_asyncio", 12),
    ):
        if reference in those and other in those:
            what = f"{PEERS[reference].title} faster than {PEERS[other].title}"
            times = those[other].seconds / those[reference].seconds
            bars.append(Bar(what=what, measured=times, least=least, unit="x"))
    for name, other, than, most in (
        ("spec", "bare", "the bare GET of the same bytes", 1.5),
        ("state", "bare_json", "the bare GET of the same bytes", 1.3),
        ("watch", "state", "cluster_state()", 1.4),
    ):
        if is_real and name in those and other in those:
            what = f"{PEERS[name].title} over {than}"
            times = those[name].seconds / those[other].seconds
            bars.append(Bar(what=what, measured=times, most=most, unit="x"))
    for name in ("spec", "state"):
        if name in those:
            what = f"{PEERS[name].title}, peak memory, 4,000 pods"
            bars.append(Bar(what=what, measured=those[name].first.peak / 1e6, most=60, unit=" MB"))
    return [*bars, *prepared_bars(found)]


def prepared_bars(found: Mapping[Scenario, Sequence[Measured]]) -> list[Bar]:
    """Return the limits for pods in prepared bytes, for the figures that were measured."""
    bars = []
    for pods, memory in zip(PREPARED, (55, 80), strict=True):
        those = {each.name: each for each in found.get(Scenario(1, pods, is_prepared=True), ())}
        if "watch" in those and "state" in those:
            times = those["watch"].seconds / those["state"].seconds
            what = f"{PEERS['watch'].title} over cluster_state(), {pods:,} pods"
            bars.append(Bar(what=what, measured=times, most=1.3, unit="x"))
        if "state" in those:
            what = f"cluster_state(), peak memory, {pods:,} pods"
            bars.append(Bar(what=what, measured=those["state"].first.peak / 1e6, most=memory, unit=" MB"))
    return bars


def columns_of(those: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Return the figures of one scenario that docs/benchmarks.md has."""
    return {
        "time": {each.peer.title: each.seconds for each in those},
        "CPU": {each.peer.title: each.cpu_seconds for each in those},
        "peak memory": {each.peer.title: each.first.peak for each in those},
    }


if __name__ == "__main__":
    sys.exit(main())
