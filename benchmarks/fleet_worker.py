"""The process in which `fleet.py` measures one way."""

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

from benchmarks.child_process import serve_requests
from benchmarks.fleet_peers import WAYS, Failed
from benchmarks.fleet_servers import Target, addresses_of
from benchmarks.watch_server import allow_many_sockets
from benchmarks.worker import peak_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fleet_peers import Client, Way

__all__ = ["First", "Followed", "Round"]

KEPT = 15.0
"""Seconds for which aiohttp keeps an idle connection."""

SAMPLES = 0.02
"""Seconds between two samples of the ages."""


@dataclass(frozen=True, slots=True)
class First:
    """The result and cost of the first round in a new process.

    Attributes:
        right: the number of targets with exactly the expected addresses.
        errors: the name of each other target to its error, as text.
        seconds: the duration, with connecting.
        slowest: the longest time between two results, in seconds.
        peak: the peak memory of the process until then, in bytes.
    """

    right: int
    errors: dict[str, str]
    seconds: float
    slowest: float
    peak: int


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of one request to every target.

    Attributes:
        wall: seconds until all results were reported.
        good: seconds until the last good result was reported.
        slowest: the longest time between two results, which is the slowest target if requests are sequential.
        cpu: the user and system time of the process, in seconds.
    """

    wall: float
    good: float
    slowest: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Followed:
    """The age of the results of good targets while all targets were polled.

    Attributes:
        median: the median age of the latest good result, over all samples and targets, in seconds.
        p99: the 99th percentile of the age.
        oldest: the highest age.
        results: the number of good results per target, on average.
        fewest: the number of good results of the target that had the fewest.
        cpu: the user and system time of the process, in seconds.
        errors: the last error, as text, of each target without a good result.
    """

    median: float
    p99: float
    oldest: float
    results: float
    fewest: int
    cpu: float
    errors: dict[str, str]


class Work:
    """The requests of the benchmark."""

    def __init__(self, way: Way, client: Client) -> None:
        self._way = way
        self._client = client

    async def first(self) -> dict[str, Any]:
        """Run the first round."""
        results: dict[str, Any] = {}
        moments = [time.perf_counter()]

        def report(name: str, result: Any) -> None:
            results[name] = result
            moments.append(time.perf_counter())

        await self._client.request_all(report)
        seconds, peak = time.perf_counter() - moments[0], peak_memory()
        errors = {name: result.text for name, result in results.items() if isinstance(result, Failed)}
        right = sum(
            {address.partition(":")[0] for address in self._way.addresses(result)} == addresses_of(name)
            for name, result in results.items()
            if name not in errors
        )
        return asdict(First(right, errors, seconds, _longest_gap(moments), peak))

    async def turn(self, seconds: float) -> list[dict[str, Any]]:
        """Run rounds for about `seconds`, at least one."""
        # Clients drop idle connections while other ways have their turns. One round before the measurement
        # opens them, unless a round takes so long that they would be dropped again: then it counts.
        warming = await self._round()
        rounds: list[Round] = [] if warming.wall < KEPT else [warming]
        while sum(each.wall for each in rounds) < seconds:
            rounds.append(await self._round())
        return [asdict(each) for each in rounds]

    async def follow(self, interval: float, settle: float, seconds: float) -> dict[str, Any]:
        """Poll every `interval` seconds; sample the ages for `seconds`, after `settle` seconds."""
        came: dict[str, list[float]] = {}
        errors: dict[str, str] = {}

        def report(name: str, result: Any) -> None:
            if isinstance(result, Failed):
                errors[name] = result.text
            else:
                came.setdefault(name, []).append(time.perf_counter())

        following = asyncio.ensure_future(self._client.follow(report, interval))
        await asyncio.wait([following], timeout=settle)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.wait([following], timeout=seconds)
        ended, cpu = time.perf_counter(), time.process_time() - used
        following.cancel()
        await asyncio.wait([following])
        if not following.cancelled():
            raise RuntimeError(f"{self._way.title} ended unexpectedly") from following.exception()
        ages = sorted(age for times in came.values() for age in _ages(times, began, ended))
        counts = [sum(began < moment <= ended for moment in times) for times in came.values()]
        return asdict(
            Followed(
                median=ages[len(ages) // 2],
                p99=ages[len(ages) * 99 // 100],
                oldest=ages[-1],
                results=sum(counts) / len(counts),
                fewest=min(counts),
                cpu=cpu,
                errors={name: text for name, text in errors.items() if name not in came},
            )
        )

    async def _round(self) -> Round:
        good: list[float] = []
        moments: list[float] = []

        def report(name: str, result: Any) -> None:
            moments.append(time.perf_counter())
            if not isinstance(result, Failed):
                good.append(moments[-1])

        gc.collect()
        used, began = time.process_time(), time.perf_counter()
        await self._client.request_all(report)
        ended, cpu = time.perf_counter(), time.process_time() - used
        return Round(ended - began, good[-1] - began, _longest_gap([began, *moments]), cpu)


def _longest_gap(moments: Sequence[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(moments))


def _ages(came: Sequence[float], began: float, ended: float) -> list[float]:
    """Return the age of the latest result at each sample from `began` to `ended`."""
    moments = [began + number * SAMPLES for number in range(int((ended - began) / SAMPLES))]
    newest = [bisect_right(came, moment) - 1 for moment in moments]
    return [moment - came[index] for moment, index in zip(moments, newest, strict=True) if index >= 0]


async def work(way: Way, targets: Sequence[Target], timeout: float) -> None:
    """Serve the requests of the benchmark until stdin is closed."""
    async with way.open_client(targets, timeout) as client:
        work = Work(way, client)
        await serve_requests({"first": work.first, "turn": work.turn, "follow": work.follow})


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
