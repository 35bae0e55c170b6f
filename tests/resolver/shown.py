"""A resolver whose watch yields what a test shows."""

from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel

from aioresolve import ClusterResolver, Observation, Progress, Want
from aioresolve._core.concurrency import LatestValue

PATIENCE = 60.0
"""A timeout in seconds that does not pass, even on a busy machine."""


class Shown(ClusterResolver):
    """Yields the latest observation that a test passes to `show`, and raises the error passed to `fail`."""

    def __init__(self, *first: Observation) -> None:
        super().__init__()
        self._latest: LatestValue[Observation] = LatestValue()
        self.last = Observation(None)
        self.taken = 0
        self.intervals: list[float] = []
        self.is_closed = False
        for observation in first:
            self.show(observation)

    def __repr__(self) -> str:
        return "<Shown>"

    def show(self, observation: Observation) -> None:
        self.last = observation
        self._latest.put(observation)

    def fail(self, error: BaseException) -> None:
        self._latest.close(error)

    async def seen(self, number: int) -> None:
        """Wait until `number` observations have been taken and processed."""
        with anyio.fail_after(PATIENCE):
            while self.taken < number:  # noqa: ASYNC110 - nothing sets an event when it changes
                await anyio.sleep(0.001)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return self.last

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        self.intervals.append(interval)
        try:
            while True:
                observation = await self._latest.get()
                self.taken += 1
                yield observation
        finally:
            self.is_closed = True
