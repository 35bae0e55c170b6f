"""The cluster behind a server: its store, its users, the script of faults and the record of requests."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from aioresolve.testing.faults import FaultScript

from .writes import Writer

if TYPE_CHECKING:
    from .access import Access
    from .disturbances import RunningWatch
    from .requests import RequestRecord
    from .store import Store

__all__ = ["AnswerCache", "Cluster", "Pulse"]

_RECORDS = 100_000
_CACHED_BYTES = 512 * 1024 * 1024


class Pulse:
    """Wakes the watches of the server's loop; `beat` may be called from any thread, and without a loop."""

    def __init__(self) -> None:
        self.bookmarks_asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change: anyio.Event | None = None

    def start(self) -> None:
        """Belong to the running loop until `stop`."""
        self._loop = asyncio.get_running_loop()
        self._change = anyio.Event()

    def stop(self) -> None:
        self._loop = self._change = None

    def next_change(self) -> anyio.Event:
        assert self._change is not None, "a watch runs only while the server does"
        return self._change

    def ask_bookmarks(self) -> None:
        self.bookmarks_asked += 1
        self.beat()

    def beat(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop was closed by another thread meanwhile: nobody waits there any more.
            if not loop.is_closed():
                raise

    def _wake(self) -> None:
        if self._change is not None:
            self._change.set()
            self._change = anyio.Event()


class AnswerCache:
    """Whole bodies by what was asked, for as long as nothing is written; bounded by their size in bytes."""

    def __init__(self) -> None:
        self._version = -1
        self._size = 0
        self._bodies: dict[tuple[object, ...], bytes] = {}

    def get(self, version: int, key: tuple[object, ...]) -> bytes | None:
        return self._bodies.get(key) if version == self._version else None

    def clear(self) -> None:
        """Forget every body: what a version was may not be what it is."""
        self._bodies.clear()
        self._version, self._size = -1, 0

    def put(self, version: int, key: tuple[object, ...], body: bytes) -> None:
        if version != self._version or self._size + len(body) > _CACHED_BYTES:
            self._bodies.clear()
            self._version, self._size = version, 0
        self._bodies[key] = body
        self._size += len(body)


@dataclass(slots=True)
class Cluster:
    """Everything that outlives a restart of the server."""

    store: Store
    access: Access
    bookmark_interval: float
    faults: FaultScript[RequestRecord] = field(default_factory=FaultScript)
    records: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=_RECORDS))
    pulse: Pulse = field(default_factory=Pulse)
    answers: AnswerCache = field(default_factory=AnswerCache)
    writer: Writer = field(init=False)
    watches: list[RunningWatch] = field(default_factory=list)
    """The watches that are connected."""

    def __post_init__(self) -> None:
        self.writer = Writer(self.store)
        self.store.listen(self.pulse.beat)
