"""The questions of a fleet: whose turn it is, what each costs at most, and when a target is asked again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.concurrency import gather
from aioresolve._core.retry import within_deadline
from aioresolve.errors import ConfigurationError, DeadlineExceededError, ResolveError
from aioresolve.resolver.polling import PollSchedule

from .connections import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aioresolve._core.retry import Progress
    from aioresolve.spec import Observation

    from .target import Reading, Target

__all__ = ["Asking"]


class Asking:
    """Asks targets, in the event loop that is running.

    Args:
        timeout: seconds that a question may take, from its turn on.
        max_concurrency: questions at a time.

    Attributes:
        loop: that event loop.
        connections: what they are asked through.
    """

    def __init__(self, *, timeout: float, max_concurrency: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections = Connections()
        self._timeout = timeout
        self._turns = _Turns(max_concurrency)

    async def once(self, target: Target) -> Reading:
        """Return the reading of one question to `target`."""
        async with self._turns.of(target):
            asked_at = anyio.current_time()

            async def question(progress: Progress) -> Observation:
                async with self.connections.visit(target.resolver) as resolver:
                    return await resolver.fetch_observation(progress)

            try:
                observation = await within_deadline(self._timeout, _question_to(target), question)
            except ResolveError as error:
                return target.failed(error, anyio.current_time() - asked_at)
            return target.told(observation, anyio.current_time() - asked_at)

    async def poll(self, target: Target, tell: Callable[[Reading], None], interval: float) -> None:
        """Tell a reading of `target` every `interval` seconds, more rarely while it fails. Never ends."""
        schedule = PollSchedule(interval)
        while True:
            due = anyio.current_time()
            reading = await self.once(target)
            tell(reading)
            # A question that hung until its deadline would be made again at once, were that time to count.
            asked_at = due if reading.error is None else anyio.current_time()
            await anyio.sleep_until(schedule.next_poll(asked_at, reading.error))

    async def watch(self, target: Target, tell: Callable[[Reading], None], interval: float) -> None:
        """Tell a reading of `target`, and one for each change of its members or error. Never ends."""
        schedule = PollSchedule(interval)
        last: Reading | None = None

        def tell_change(reading: Reading) -> None:
            nonlocal last
            is_change = reading.differs_from(last)
            last = reading
            if is_change:
                tell(reading)

        while True:
            try:
                await self._follow(target, tell_change, interval)
            except ResolveError as error:
                if last is not None and last.error is None:
                    schedule = PollSchedule(interval)
                tell_change(target.failed(error, None, datetime.now(UTC)))
                await anyio.sleep_until(schedule.next_poll(anyio.current_time(), error))

    async def _follow(self, target: Target, tell: Callable[[Reading], None], interval: float) -> None:
        """Tell what one watch of `target` shows, from its first answer on, for which it needs a turn.

        Raises:
            ResolveError: one that does not pass.
        """
        began, answered = anyio.Event(), anyio.Event()

        async def wait_for_the_first_answer() -> None:
            async with self._turns.of(target):
                began.set()
                with anyio.move_on_after(self._timeout):
                    await answered.wait()
                    return
            late = DeadlineExceededError(
                f"no complete answer to {_question_to(target)} within {self._timeout:g} s; its watch has"
                " not started yet",
                hint="Raise {timeout}, or check its server.",
                timeout=self._timeout,
                missing={target.name: "its watch has not begun"},
            )
            tell(target.failed(late, self._timeout))

        async def observe() -> None:
            await began.wait()
            asked_at = anyio.current_time()
            async with AsyncExitStack() as stack:
                resolver = await stack.enter_async_context(self.connections.visit(target.resolver))
                observations = resolver.observations(interval=interval)
                async for observation in await stack.enter_async_context(aclosing(observations)):
                    if observation.state is None and observation.error is None:
                        continue
                    latency = None if answered.is_set() else anyio.current_time() - asked_at
                    answered.set()
                    tell(target.told(observation, latency))
            raise ConfigurationError(f"the observations of {target.resolver!r} ended: they have to go on")

        await gather([wait_for_the_first_answer, observe], limit=2)


class _Turns:
    """Who may ask: so many targets at a time, half of them at most such as failed the last time.

    Whoever hangs keeps a turn until its deadline: many of them shall not make all others wait.
    """

    def __init__(self, number: int) -> None:
        self._all = anyio.CapacityLimiter(number)
        self._failing = anyio.CapacityLimiter(max(1, number // 2))

    @asynccontextmanager
    async def of(self, target: Target) -> AsyncIterator[None]:
        """Wait for the turn of `target`, and keep it inside the block."""
        async with AsyncExitStack() as stack:
            if target.failing_since is not None:
                await stack.enter_async_context(self._failing)
            await stack.enter_async_context(self._all)
            yield


def _question_to(target: Target) -> str:
    return f"a question to target {target.name!r}, {target.resolver!r},"
