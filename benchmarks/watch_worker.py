"""The process in which `watch.py` measures one way."""

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

from benchmarks.child_process import serve_requests
from benchmarks.watch_changes import change_seen, digest, pod_changed
from benchmarks.watch_peers import WATCHERS
from benchmarks.watch_server import allow_many_sockets
from benchmarks.worker import peak_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from benchmarks.watch_peers import Follow, Watcher

__all__ = ["Idled", "Seen", "Start"]


@dataclass(frozen=True, slots=True)
class Start:
    """What the first watch showed first.

    Attributes:
        changes: the number of changes that it included.
        digest: a hash of all addresses.
    """

    changes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The changes that the first watch showed, and the cost.

    Attributes:
        at: the time at which each change was first shown, on the monotonic clock; fewer than were made if the
            way did not keep up.
        yields: the number of yielded values.
        cpu: the user and system time of the process, in seconds.
        peak: the peak memory of the process, with the first list, in bytes.
        digest: a hash of all addresses as they were last shown.
    """

    at: list[float]
    yields: int
    cpu: float
    peak: int
    digest: str


@dataclass(frozen=True, slots=True)
class Idled:
    """The cost of watches while nothing changes.

    Attributes:
        watches: the number of watches.
        cpu: the user and system time of the process, in seconds.
        resident: the memory of the process at the end, in bytes.
    """

    watches: int
    cpu: float
    resident: int


class Sightings:
    """Records the time at which each change is first shown by one watch."""

    def __init__(self, pods: int, address: Callable[[Any, int], str], shown: Any) -> None:
        self._pods = pods
        self._address = address
        self._shown = shown
        self._updated = asyncio.Event()
        self.first = 1 + max(change_seen(address(shown, pod)) for pod in range(pods))
        self.at: list[float] = []
        self.yields = 0

    @property
    def digest(self) -> str:
        """A hash of all addresses as they were last shown."""
        return digest(self._address(self._shown, pod) for pod in range(self._pods))

    def note(self, shown: Any) -> None:
        """Record a yielded value. A change is shown if its pod has its address, or that of a later change."""
        now = time.monotonic()
        self._shown = shown
        self.yields += 1
        for change in count(self.first + len(self.at)):
            if change_seen(self._address(shown, pod_changed(change, self._pods))) < change:
                break
            self.at.append(now)
        self._updated.set()

    async def seen(self, changes: int) -> None:
        """Return when `changes` changes were shown."""
        while len(self.at) < changes:
            self._updated.clear()
            await self._updated.wait()


class Work:
    """The requests of the benchmark."""

    def __init__(self, watcher: Watcher, follow: Follow, pods: int, group: asyncio.TaskGroup) -> None:
        self._watcher = watcher
        self._follow = follow
        self._pods = pods
        self._group = group
        self._watches: list[asyncio.Task[None]] = []
        self._sightings: Sightings | None = None
        self._cpu = 0.0

    async def open(self, watches: int) -> dict[str, Any]:
        """Start watches until there are `watches`; return what the first one showed."""
        while len(self._watches) < watches:
            following = self._follow()
            shown = await anext(following)
            if self._sightings is None:
                self._sightings = Sightings(self._pods, self._watcher.address, shown)
            del shown
            note = self._sightings.note if not self._watches else _ignore
            self._watches.append(self._group.create_task(_keep(following, note)))
        assert self._sightings is not None
        return asdict(Start(self._sightings.first, self._sightings.digest))

    async def idle(self, seconds: float) -> dict[str, Any]:
        """Return the cost of the watches in `seconds`."""
        gc.collect()
        began = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - began
        resident = psutil.Process().memory_info().rss
        return asdict(Idled(len(self._watches), cpu, resident))

    async def begin(self) -> None:
        """Start to count CPU, before changes are made."""
        gc.collect()
        self._cpu = time.process_time()

    async def end(self, changes: int, patience: float) -> dict[str, Any]:
        """Return what was shown, when all changes were shown or after `patience` seconds."""
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


def _ignore(shown: Any) -> None:
    pass


async def work(watcher: Watcher, kubeconfig: Path, pods: int) -> None:
    """Serve the requests of the benchmark until stdin is closed."""
    async with watcher.open_client(kubeconfig) as follow, asyncio.TaskGroup() as group:
        work = Work(watcher, follow, pods, group)
        await serve_requests({"open": work.open, "idle": work.idle, "begin": work.begin, "end": work.end})
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
