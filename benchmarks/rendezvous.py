"""Compares the rendezvous of torchrun on the API server with torch's own back ends, in rounds of many agents.

    python benchmarks/rendezvous.py [--agents 64 256] [--rounds 3] [--backends kubernetes c10d etcd-v2]

In each turn a new server process and new agent processes start, and the back ends take turns. All agents
join one round, either at once or spread over some seconds, as the pods of a job start. The time is that
from the start of the last agent until every agent has the world; it includes connecting to the server. A
request is an HTTP request, or an operation of the store of torch's back ends; a write is one that changes
the state, or tries to. The agents share the cores of this machine, which costs a back end the more, the
more its agents compute.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The folder of a script comes first in sys.path, and this folder has a module `kubernetes`.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.child_process import NoReplyError, running
from benchmarks.report import Bar, bar_table, duration, environment, format_table, ratio, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES = ("aioresolve", "torch", "python-etcd")
BACKENDS = ("kubernetes", "c10d", "etcd-v2")
WORKER = "benchmarks.rendezvous_worker"

LEAD = 1.0
"""Seconds from the order to join until the first agent does."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of all agents.

    Attributes:
        seconds: from the start of the last agent until every agent had the world.
        requests: the requests of an agent.
        writes: those that write.
        cpu: the CPU of all agents together, in seconds.
        server_cpu: the CPU of the server, in seconds.
    """

    seconds: float
    requests: float
    writes: float
    cpu: float
    server_cpu: float


def take_turn(backend: str, agents: int, processes: int, spread: float) -> Turn:
    """Return the figures of one round.

    Raises:
        NoReplyError: a process failed.
    """
    bounds = [agents * number // processes for number in range(processes + 1)]
    with running(WORKER, "server", backend, str(agents)) as server, ExitStack() as stack:
        endpoint: Any = server.request("start")
        children = [
            stack.enter_context(running(WORKER, "agents", backend, str(agents))) for _ in range(processes)
        ]
        with ThreadPoolExecutor(processes) as threads:
            list(threads.map(lambda child: child.request("prepare", endpoint=endpoint), children))
            before = server.request("count")
            at = time.monotonic() + LEAD
            done = list(
                threads.map(
                    lambda child, first, last: child.request(
                        "join", first=first, last=last, at=at, spread=spread
                    ),
                    children,
                    bounds,
                    bounds[1:],
                )
            )
        after = server.request("count")
    counted = [after] if "requests" in after else done
    return Turn(
        seconds=max(each["ended"] for each in done) - max(each["started"] for each in done),
        requests=sum(each["requests"] for each in counted) / agents,
        writes=sum(each["writes"] for each in counted) / agents,
        cpu=sum(each["cpu"] for each in done),
        server_cpu=after["cpu"] - before["cpu"],
    )


def measure(options: argparse.Namespace, agents: int, spread: float) -> dict[str, list[Turn]]:
    """Measure the back ends in turn; one that fails is left out, with a line on stderr."""
    found: dict[str, list[Turn]] = {backend: [] for backend in options.backends}
    for _ in range(options.rounds):
        for backend in list(found):
            try:
                turn = take_turn(backend, agents, options.processes, spread)
            except NoReplyError as error:
                print(f"left out: {error}", file=sys.stderr, flush=True)
                del found[backend]
            else:
                print(f"{backend}: {turn}", file=sys.stderr, flush=True)
                found[backend].append(turn)
    return found


def table(found: dict[str, list[Turn]]) -> str:
    """Return the medians of each back end."""
    first = next(iter(found.values()))
    columns = (
        "back end",
        "time",
        "relative",
        "slowest",
        "requests",
        "writes",
        "CPU of the agents",
        "of the server",
    )
    return format_table(columns, rows(found, median(turn.seconds for turn in first)))


def rows(found: dict[str, list[Turn]], reference: float) -> Iterator[tuple[str, ...]]:
    for backend, turns in found.items():
        seconds = median(turn.seconds for turn in turns)
        yield (
            backend,
            duration(seconds),
            ratio(seconds, reference),
            duration(max(turn.seconds for turn in turns)),
            *(f"{median(getattr(turn, name) for turn in turns):.1f}" for name in ("requests", "writes")),
            duration(median(turn.cpu for turn in turns)),
            duration(median(turn.server_cpu for turn in turns)),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="a minute: one round of 64 agents")
    parser.add_argument("--agents", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="processes of agents")
    parser.add_argument("--spread", type=float, nargs="+", default=[0.0, 10.0], metavar="SECONDS",
                        help="seconds within which the agents start (default: 0 10)")  # fmt: skip
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.agents, options.rounds, options.spread = [64], 1, [0.0]
    about = environment(PACKAGES)
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for agents, spread in product(options.agents, options.spread):
        how = f"{agents} agents, " + (f"within {spread:g} s" if spread else "all at once")
        found = measure(options, agents, spread)
        print(f"\n{how}\n{table(found)}", end="", flush=True)
        figures[how] = {backend: [asdict(turn) for turn in turns] for backend, turns in found.items()}
        if turns := found.get("kubernetes"):
            slowest, requests = max(turn.seconds for turn in turns), max(turn.requests for turn in turns)
            bars.append(Bar(what=f"{how}: the slowest round", measured=slowest, most=10, unit=" s"))
            bars.append(Bar(what=f"{how}: requests of an agent", measured=requests, most=6, unit=""))
    print(f"\n{bar_table(bars)}\nwritten:", write_json("rendezvous", {"environment": about, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
