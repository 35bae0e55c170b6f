"""Measures how old the results of good targets are while other targets hang or fail, for `fleet.py`.

One fleet polls 94 good targets, another one the same 94 and six bad ones; likewise with `asyncio.gather`.
They take turns.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.child_process import running
from benchmarks.fleet_peers import WAYS
from benchmarks.fleet_servers import Place, running_servers
from benchmarks.fleet_worker import Followed
from benchmarks.report import Bar, duration, format_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.child_process import Child
    from benchmarks.fleet_servers import Servers

__all__ = ["Fresh", "freshness", "freshness_bars", "freshness_table"]

TARGETS = 100
HANGING = ("cluster-0010", "cluster-0040", "cluster-0070")
FAILING = {"cluster-0020": 500, "cluster-0050": 503, "cluster-0080": 403}
BAD = {*HANGING, *FAILING}

WORDS = 200
"""The number of characters to print of the error of a bad target."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long to measure.

    Attributes:
        interval: seconds between two requests to a target.
        deadline: the timeout of each target in seconds.
        seconds: the length of a turn.
        turns: the number of turns.
    """

    interval: float = 2.0
    deadline: float = 10.0
    seconds: float = 30.0
    turns: int = 3

    @property
    def settle(self) -> float:
        """Seconds before each turn that do not count, so that each deadline has passed once."""
        return self.deadline + 2 * self.interval


@dataclass(slots=True)
class Fresh:
    """The figures of one way.

    Attributes:
        name: its name in `WAYS`.
        is_clean: whether the bad targets were left out.
        times: how long it was measured.
        request_rates: of each turn, the requests per second to a good target, on average.
        turns: the figures of each turn.
    """

    name: str
    is_clean: bool
    times: Times
    request_rates: list[float] = field(default_factory=list)
    turns: list[Followed] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{WAYS[self.name].title}, {TARGETS - len(BAD)} good targets" + " and 6 bad" * (
            not self.is_clean
        )

    @property
    def median(self) -> float:
        return median(each.median for each in self.turns)

    @property
    def p99(self) -> float:
        return median(each.p99 for each in self.turns)

    @property
    def oldest(self) -> float:
        return max(each.oldest for each in self.turns)

    @property
    def period(self) -> float:
        """Seconds between two good results of a target."""
        return self.times.seconds / median(each.results for each in self.turns)

    @property
    def requests_per_minute(self) -> float:
        """Requests to a good target per minute."""
        return 60.0 * median(self.request_rates)

    @property
    def cpu(self) -> float:
        """CPU relative to one core."""
        return median(each.cpu for each in self.turns) / self.times.seconds

    def take_turn(self, process: Child, servers: Servers) -> None:
        """Make the process poll for a while, and record the figures."""
        times = self.times
        servers.traffic()
        seen = process.request("follow", interval=times.interval, settle=times.settle, seconds=times.seconds)
        requests = [count for name, count in servers.traffic().requests.items() if name not in BAD]
        self.request_rates.append(sum(requests) / len(requests) / (times.settle + times.seconds))
        self.turns.append(Followed(**seen))
        wrong = set(self.turns[-1].errors) ^ (set() if self.is_clean else BAD)
        if wrong:
            raise RuntimeError(f"{self.title}: unexpected success or failure of {wrong}")


def freshness(*, quick: bool) -> list[Fresh]:
    """Measure each way with the bad targets and without them."""
    times = Times(interval=1.0, deadline=2.0, seconds=6.0, turns=1) if quick else Times()
    found = [Fresh(name, is_clean, times) for name in ("poll", "gather") for is_clean in (True, False)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        servers = stack.enter_context(running_servers(TARGETS, Place.OWN, folder))
        servers.behave(hanging=HANGING, failing=FAILING)
        processes = []
        for each in found:
            targets = [target for target in servers.targets if not (each.is_clean and target.name in BAD)]
            file = folder / f"{each.name}-{each.is_clean}.json"
            file.write_text(json.dumps([asdict(target) for target in targets]))
            words = [each.name, str(file), str(times.deadline)]
            processes.append(stack.enter_context(running("benchmarks.fleet_worker", *words)))
        for _ in range(times.turns):
            for each, process in zip(found, processes, strict=True):
                each.take_turn(process, servers)
    return found


def freshness_table(found: Sequence[Fresh]) -> str:
    """Return a table of the figures, and the errors of the bad targets."""
    times = found[0].times
    errors = next(each for each in found if not each.is_clean).turns[-1].errors
    table = format_table(
        ("", "median age", "p99", "oldest", "period", "requests/min", "CPU"),
        [
            (
                each.title,
                duration(each.median),
                duration(each.p99),
                duration(each.oldest),
                duration(each.period),
                f"{each.requests_per_minute:.1f}",
                f"{each.cpu:.0%}",
            )
            for each in found
        ],
    )
    return (
        f"{TARGETS} targets polled every {times.interval:g} s with a timeout of {times.deadline:g} s:"
        f" age of the results of the good targets\n{table}"
        + "".join(f"{name}: {' '.join(words.split())[:WORDS]}\n" for name, words in sorted(errors.items()))
    )


def freshness_bars(found: Sequence[Fresh]) -> list[Bar]:
    """Return the limits: bad targets must not delay the good ones."""
    clean, mixed = (next(each for each in found if each.is_clean is is_clean) for is_clean in (True, False))
    what = "Fleet.poll(), 94 targets with 3 hanging and 3 failing over without"
    return [
        Bar(what=f"{what}: median age", measured=mixed.median / clean.median, most=1.1, unit="x"),
        Bar(what=f"{what}: p99 age", measured=mixed.p99 / clean.p99, most=1.1, unit="x"),
        Bar(
            what=f"{what}: requests",
            measured=mixed.requests_per_minute / clean.requests_per_minute,
            least=0.95,
            unit="x",
        ),
    ]
