"""How old the readings of good targets are while some hang and some fail, beside a run without those.

For `fleet.py`: a fleet polls 94 targets, and another one the same 94 and six bad ones; likewise rounds of
`asyncio.gather`. They take turns.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.fleet_peers import WAYS
from benchmarks.fleet_servers import Place, running_servers
from benchmarks.fleet_worker import Followed
from benchmarks.report import Bar, aligned, duration
from benchmarks.watch_dialogue import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fleet_servers import Servers
    from benchmarks.watch_dialogue import Child

__all__ = ["Fresh", "freshness", "freshness_bars", "freshness_table"]

TARGETS = 100
HANGING = ("cluster-0010", "cluster-0040", "cluster-0070")
FAILING = {"cluster-0020": 500, "cluster-0050": 503, "cluster-0080": 403}
BAD = {*HANGING, *FAILING}

WORDS = 200
"""How much of what is said of a bad target is printed, in characters."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long to look.

    Attributes:
        interval: seconds from one question to a target to the next.
        deadline: seconds that each target has.
        seconds: of a turn.
        turns: how many.
    """

    interval: float = 2.0
    deadline: float = 10.0
    seconds: float = 30.0
    turns: int = 3

    @property
    def settle(self) -> float:
        """Seconds before each turn in which nothing counts: whoever waits for a deadline has waited once."""
        return self.deadline + 2 * self.interval


@dataclass(slots=True)
class Fresh:
    """What one way did.

    Attributes:
        name: its name in `WAYS`.
        is_clean: whether the bad targets were left out.
        times: how long was looked.
        questions: that each good target was asked, on average, by turns: a second.
        turns: what was seen.
    """

    name: str
    is_clean: bool
    times: Times
    questions: list[float] = field(default_factory=list)
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
        """Seconds from one good answer of a target to the next."""
        return self.times.seconds / median(each.answers for each in self.turns)

    @property
    def asked(self) -> float:
        """Questions to a good target a minute."""
        return 60.0 * median(self.questions)

    @property
    def cpu(self) -> float:
        """CPU as a share of a core."""
        return median(each.cpu for each in self.turns) / self.times.seconds

    def take_turn(self, process: Child, servers: Servers) -> None:
        """Let its process follow for a while, and keep what was seen."""
        times = self.times
        servers.traffic()
        seen = process.asked("follow", interval=times.interval, settle=times.settle, seconds=times.seconds)
        asked = [count for name, count in servers.traffic().questions.items() if name not in BAD]
        self.questions.append(sum(asked) / len(asked) / (times.settle + times.seconds))
        self.turns.append(Followed(**seen))
        wrong = set(self.turns[-1].errors) ^ (set() if self.is_clean else BAD)
        if wrong:
            raise RuntimeError(f"{self.title}: of these either all answers failed, or none: {wrong}")


def freshness(*, quick: bool) -> list[Fresh]:
    """Return what each way did, with the bad targets and without them."""
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
    """Return the figures, and what is said of the bad targets."""
    times = found[0].times
    said = next(each for each in found if not each.is_clean).turns[-1].errors
    table = aligned(
        ("", "median age", "p99", "oldest", "period", "questions/min", "CPU"),
        [
            (
                each.title,
                duration(each.median),
                duration(each.p99),
                duration(each.oldest),
                duration(each.period),
                f"{each.asked:.1f}",
                f"{each.cpu:.0%}",
            )
            for each in found
        ],
    )
    return (
        f"{TARGETS} targets asked every {times.interval:g} s, {times.deadline:g} s each: how old the readings"
        f" of the good ones are\n{table}"
        + "".join(f"{name}: {' '.join(words.split())[:WORDS]}\n" for name, words in sorted(said.items()))
    )


def freshness_bars(found: Sequence[Fresh]) -> list[Bar]:
    """Return the promises: bad targets cost the good ones nothing."""
    clean, mixed = (next(each for each in found if each.is_clean is is_clean) for is_clean in (True, False))
    what = "Fleet.poll(), 94 targets with 3 hanging and 3 failing over without"
    return [
        Bar(what=f"{what}: median age", measured=mixed.median / clean.median, most=1.1, unit="x"),
        Bar(what=f"{what}: p99 age", measured=mixed.p99 / clean.p99, most=1.1, unit="x"),
        Bar(what=f"{what}: questions", measured=mixed.asked / clean.asked, least=0.95, unit="x"),
    ]
