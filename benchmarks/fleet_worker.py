"""The process that `fleet.py` measures one way in: it asks when it is told to, and says what that took."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fleet_peers import WAYS, Failed
from benchmarks.fleet_servers import Target, addresses_of
from benchmarks.watch_dialogue import answer_questions
from benchmarks.watch_server import allow_many_sockets
from benchmarks.worker import peak_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fleet_peers import Client, Way

__all__ = ["First", "Followed", "Round"]

KEPT = 15.0
"""Seconds that aiohttp keeps an idle connection."""

SAMPLES = 0.02
"""Seconds from one look at the ages to the next."""


@dataclass(frozen=True, slots=True)
class First:
    """What a fresh process's first round found and took.

    Attributes:
        right: how many targets were answered with just their pods' addresses.
        errors: what was wrong with the others, by name, in words.
        seconds: how long it took, connecting included.
        slowest: seconds from one answer to the next, at most.
        peak: the process's peak memory by then, in bytes.
    """

    right: int
    errors: dict[str, str]
    seconds: float
    slowest: float
    peak: int


@dataclass(frozen=True, slots=True)
class Round:
    """What it took to ask every target once.

    Attributes:
        wall: seconds until all was told.
        good: seconds until the last good answer was told.
        slowest: seconds from one answer to the next, at most: what a single target took, one after another.
        cpu: seconds of user and system time of the process.
    """

    wall: float
    good: float
    slowest: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Followed:
    """How fresh the good targets' answers were while all were asked again and again.

    Attributes:
        median: age of the newest good answer of a target, in seconds, over all moments and targets.
        p99: what 99 of 100 were younger than.
        oldest: the oldest.
        answers: good answers of a target within the time that was looked at, on average.
        fewest: of the target that had the fewest.
        cpu: seconds of user and system time of the process in that time.
        errors: what was said last of each target that has given no good answer, in words.
    """

    median: float
    p99: float
    oldest: float
    answers: float
    fewest: int
    cpu: float
    errors: dict[str, str]


class Work:
    """What the driver can ask for."""

    def __init__(self, way: Way, client: Client) -> None:
        self._way = way
        self._client = client

    async def first(self) -> dict[str, Any]:
        """Ask every target for the first time."""
        answers: dict[str, Any] = {}
        moments = [time.perf_counter()]

        def tell(name: str, answer: Any) -> None:
            answers[name] = answer
            moments.append(time.perf_counter())

        await self._client.ask(tell)
        seconds, peak = time.perf_counter() - moments[0], peak_memory()
        errors = {name: answer.words for name, answer in answers.items() if isinstance(answer, Failed)}
        right = sum(
            {address.partition(":")[0] for address in self._way.addresses(answer)} == addresses_of(name)
            for name, answer in answers.items()
            if name not in errors
        )
        return asdict(First(right, errors, seconds, _longest_gap(moments), peak))

    async def turn(self, seconds: float) -> list[dict[str, Any]]:
        """Ask again and again for about so many seconds, at least once."""
        # Clients drop idle connections, and the others' turns are long: kept ones are opened before. Where
        # a round takes so long that they are dropped all the same, it counts.
        warming = await self._round()
        rounds: list[Round] = [] if warming.wall < KEPT else [warming]
        while sum(each.wall for each in rounds) < seconds:
            rounds.append(await self._round())
        return [asdict(each) for each in rounds]

    async def follow(self, interval: float, settle: float, seconds: float) -> dict[str, Any]:
        """Ask every so many seconds; look at the ages for so many, after some that are left to settle."""
        came: dict[str, list[float]] = {}
        errors: dict[str, str] = {}

        def tell(name: str, answer: Any) -> None:
            if isinstance(answer, Failed):
                errors[name] = answer.words
            else:
                came.setdefault(name, []).append(time.perf_counter())

        following = asyncio.ensure_future(self._client.follow(tell, interval))
        await asyncio.wait([following], timeout=settle)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.wait([following], timeout=seconds)
        ended, cpu = time.perf_counter(), time.process_time() - used
        following.cancel()
        await asyncio.wait([following])
        if not following.cancelled():
            raise RuntimeError(f"{self._way.title} ended by itself") from following.exception()
        ages = sorted(age for times in came.values() for age in _ages(times, began, ended))
        counts = [sum(began < moment <= ended for moment in times) for times in came.values()]
        return asdict(
            Followed(
                median=ages[len(ages) // 2],
                p99=ages[len(ages) * 99 // 100],
                oldest=ages[-1],
                answers=sum(counts) / len(counts),
                fewest=min(counts),
                cpu=cpu,
                errors={name: words for name, words in errors.items() if name not in came},
            )
        )

    async def _round(self) -> Round:
        good: list[float] = []
        moments: list[float] = []

        def tell(name: str, answer: Any) -> None:
            moments.append(time.perf_counter())
            if not isinstance(answer, Failed):
                good.append(moments[-1])

        gc.collect()
        used, began = time.process_time(), time.perf_counter()
        await self._client.ask(tell)
        ended, cpu = time.perf_counter(), time.process_time() - used
        return Round(ended - began, good[-1] - began, _longest_gap([began, *moments]), cpu)


def _longest_gap(moments: Sequence[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(moments))


def _ages(came: Sequence[float], began: float, ended: float) -> list[float]:
    """Return the ages of the newest answer at moments from `began` to `ended`, by when answers came."""
    moments = [began + number * SAMPLES for number in range(int((ended - began) / SAMPLES))]
    newest = [bisect_right(came, moment) - 1 for moment in moments]
    return [moment - came[index] for moment, index in zip(moments, newest, strict=True) if index >= 0]


async def work(way: Way, targets: Sequence[Target], timeout: float) -> None:
    """Do what the driver asks for, until it asks no more."""
    async with way.opened(targets, timeout) as client:
        work = Work(way, client)
        await answer_questions({"first": work.first, "turn": work.turn, "follow": work.follow})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("targets", type=Path)
    parser.add_argument("timeout", type=float)
    options = parser.parse_args(arguments)
    allow_many_sockets()
    targets = [Target(**each) for each in json.loads(options.targets.read_text())]
    asyncio.run(work(WAYS[options.way], targets, options.timeout))


if __name__ == "__main__":
    main()
