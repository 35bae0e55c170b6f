"""The process that `watch.py` measures one way in: it watches, and says what it saw and what that took."""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.watch_changes import change_seen, digest, pod_changed
from benchmarks.watch_dialogue import answer_questions
from benchmarks.watch_peers import WATCHERS
from benchmarks.watch_server import allow_many_sockets
from benchmarks.worker import peak_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from benchmarks.watch_peers import Follow, Watcher

__all__ = ["Idled", "Seen", "Start"]


@dataclass(frozen=True, slots=True)
class Start:
    """What the first watch showed at first.

    Attributes:
        changes: how many had been made by then.
        digest: of all addresses.
    """

    changes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What the first watch showed of changes, and what that took.

    Attributes:
        at: when each change was seen first, in seconds of the system's monotonic clock; less than were made
            where it did not keep up.
        yields: how often something was yielded meanwhile.
        cpu: seconds of user and system time of the process, all threads.
        peak: the process's peak memory in bytes, the first list included.
        digest: of all addresses as they were shown last.
    """

    at: list[float]
    yields: int
    cpu: float
    peak: int
    digest: str


@dataclass(frozen=True, slots=True)
class Idled:
    """What watches took while nothing changed.

    Attributes:
        watches: how many.
        cpu: seconds of user and system time of the process, all threads.
        resident: the process's memory at the end, in bytes.
    """

    watches: int
    cpu: float
    resident: int


class Sightings:
    """When each change was seen first, in what one watch yields."""

    def __init__(self, pods: int, address: Callable[[Any, int], str], shown: Any) -> None:
        self._pods = pods
        self._address = address
        self._shown = shown
        self._stirred = asyncio.Event()
        self.first = 1 + max(change_seen(address(shown, pod)) for pod in range(pods))
        self.at: list[float] = []
        self.yields = 0

    @property
    def digest(self) -> str:
        """Of all addresses as they are shown now."""
        return digest(self._address(self._shown, pod) for pod in range(self._pods))

    def note(self, shown: Any) -> None:
        """Take in what was yielded just now. A change is seen where its pod shows it, or a later one."""
        now = time.monotonic()
        self._shown = shown
        self.yields += 1
        for change in count(self.first + len(self.at)):
            if change_seen(self._address(shown, pod_changed(change, self._pods))) < change:
                break
            self.at.append(now)
        self._stirred.set()

    async def seen(self, changes: int) -> None:
        """Return once so many changes were seen."""
        while len(self.at) < changes:
            self._stirred.clear()
            await self._stirred.wait()


class Work:
    """What the driver can ask for."""

    def __init__(self, watcher: Watcher, follow: Follow, pods: int, group: asyncio.TaskGroup) -> None:
        self._watcher = watcher
        self._follow = follow
        self._pods = pods
        self._group = group
        self._watches: list[asyncio.Task[None]] = []
        self._sightings: Sightings | None = None
        self._cpu = 0.0

    async def open(self, watches: int) -> dict[str, Any]:
        """Begin watches until there are so many; return what the first one showed."""
        while len(self._watches) < watches:
            following = self._follow()
            shown = await anext(following)
            if self._sightings is None:
                self._sightings = Sightings(self._pods, self._watcher.address, shown)
            del shown
            note = self._sightings.note if not self._watches else _ignored
            self._watches.append(self._group.create_task(_keep(following, note)))
        assert self._sightings is not None
        return asdict(Start(self._sightings.first, self._sightings.digest))

    async def idle(self, seconds: float) -> dict[str, Any]:
        """Return what the watches take in so many seconds."""
        gc.collect()
        began = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - began
        resident = psutil.Process().memory_info().rss
        return asdict(Idled(len(self._watches), cpu, resident))

    async def begin(self) -> None:
        """Count CPU from now on: changes are about to come."""
        gc.collect()
        self._cpu = time.process_time()

    async def end(self, changes: int, patience: float) -> dict[str, Any]:
        """Return what was seen, once all changes were or so many seconds have passed."""
        sightings = self._sightings
        assert sightings is not None
        await asyncio.wait([asyncio.ensure_future(sightings.seen(changes))], timeout=patience)
        cpu = time.process_time() - self._cpu
        return asdict(Seen(sightings.at, sightings.yields, cpu, peak_memory(), sightings.digest))

    def stop(self) -> None:
        """End every watch."""
        for watch in self._watches:
            watch.cancel()


async def _keep(following: AsyncGenerator[Any, None], note: Callable[[Any], None]) -> None:
    async for shown in following:
        note(shown)


def _ignored(shown: Any) -> None:
    pass


async def work(watcher: Watcher, kubeconfig: Path, pods: int) -> None:
    """Do what the driver asks for, until it asks no more."""
    async with watcher.opened(kubeconfig) as follow, asyncio.TaskGroup() as group:
        work = Work(watcher, follow, pods, group)
        await answer_questions({"open": work.open, "idle": work.idle, "begin": work.begin, "end": work.end})
        work.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("watcher", choices=WATCHERS)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("pods", type=int)
    options = parser.parse_args(arguments)
    allow_many_sockets()
    asyncio.run(work(WATCHERS[options.watcher], options.kubeconfig, options.pods))


if __name__ == "__main__":
    main()
