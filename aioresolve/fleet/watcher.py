"""What goes on for every target of a fleet beside the consumer of its readings: a poll, or a watch."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from aioresolve._core import telemetry
from aioresolve._core.concurrency import first_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from anyio.abc import TaskGroup

    from aioresolve._core.concurrency import Newest

    from .target import Reading, Target

__all__ = ["Following", "Work"]

logger = logging.getLogger("aioresolve.fleet")

Work: TypeAlias = "Callable[[Target, Callable[[Reading], None]], Awaitable[None]]"
"""What is done for one target, without end; it tells its readings to what it is given."""


class Following:
    """A task for each target, and of each target the newest reading that nobody took yet."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._follow: Callable[[Target], Coroutine[None, None, None]]
        self._waiting: dict[Target, Reading] = {}

    async def run(
        self,
        targets: Iterable[Target],
        work: Work,
        newest: Newest[None],
    ) -> None:
        """Do `work` for each target, in a task of its own. Never ends.

        Args:
            targets: those that there are at first.
            work: what to do.
            newest: stirred whenever there is a reading to be taken.

        Raises:
            BaseException: what the work for one of them raised.
        """

        async def follow(target: Target) -> None:
            outage = telemetry.Outage(logger, f"target {target.name!r}", target=target.name)

            def tell(reading: Reading) -> None:
                self._waiting[target] = reading
                newest.put(None)
                outage.note(reading.error)
                telemetry.staleness(target.name, target.failing_since)
                if reading.state is not None:
                    telemetry.members(reading.state.endpoints, target=target.name)

            try:
                await target.unless_removed(partial(work, target, tell))
            finally:
                telemetry.forget(target.name)

        self._follow = follow
        try:
            async with anyio.create_task_group() as self._group:
                for target in targets:
                    self.add(target)
                await anyio.sleep_forever()
        except BaseExceptionGroup as errors:
            # That of the target at fault, as it is.
            error = first_error(errors)
            raise error from error.__cause__
        finally:
            self._group = None

    def add(self, target: Target) -> None:
        """Do the work for one more target, if it is being done at all."""
        if self._group is not None:
            self._group.start_soon(self._follow, target)

    def taken(self) -> Reading | None:
        """Return the newest reading of the target that waits longest; None where none waits."""
        while self._waiting:
            target = next(iter(self._waiting))
            reading = self._waiting.pop(target)
            if not target.is_removed:
                return reading
        return None
