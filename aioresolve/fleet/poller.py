"""When a fleet sends the next request to which target, and how its results reach the consumer.

`Poller` resolves, polls or watches one target; all targets share its limit of concurrent requests.
`StatusStream` runs one task per target, and keeps the latest status of each target until the consumer takes
it. `OpenResolvers` enters the resolvers, so that those of one API server share its connections.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.lowlevel

from aioresolve._core.concurrency import first_error, reject_stray_cancellation, wait_until_done
from aioresolve._core.connections import Connections, KeptOpen
from aioresolve._core.deadline import within_deadline
from aioresolve._core.telemetry import Outage
from aioresolve.errors import DeadlineExceededError, ResolveError
from aioresolve.resolver.polling import PollSchedule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    from anyio.abc import TaskGroup

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import Observation

    from .status import Target, TargetStatus

logger = logging.getLogger("aioresolve.fleet")

GRACE = 1.0
"""Seconds after which a request without a response no longer occupies a slot that others wait for."""

TargetWork: TypeAlias = "Callable[[Target, Callable[[TargetStatus], None]], Awaitable[None]]"
"""Endless work for one target, which passes each status to a callback."""


class Poller:
    """Sends the requests of a fleet, in the running event loop.

    A request may take `timeout` seconds, without the wait for its turn.
    """

    def __init__(self, *, timeout: float, max_concurrency: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections = OpenResolvers()
        self._timeout = timeout
        self._limiter = _RequestLimiter(max_concurrency)

    async def resolve(self, target: Target) -> TargetStatus:
        """Resolve `target` once and return its status. A failure is part of the status."""
        async with self._limiter.slot(target):
            started_at = anyio.current_time()
            target.num_requests += 1

            async def request(progress: Progress) -> Observation:
                async with self.connections.lease(target.resolver) as resolver:
                    return await target.explained(await resolver._call_observe(target.want, progress))

            try:
                with reject_stray_cancellation():
                    observation = await within_deadline(self._timeout, _describe(target), request)
            except Exception as error:
                return target.fail(_status_error(target, error), anyio.current_time() - started_at)
            return target.update(observation, anyio.current_time() - started_at)

    async def poll(self, target: Target, report: Callable[[TargetStatus], None], interval: float) -> None:
        """Report the status of `target` every `interval` seconds, less often while it fails; endless."""
        schedule = PollSchedule(interval)
        while True:
            started_at = anyio.current_time()
            status = await self.resolve(target)
            report(status)
            # After a failure the interval counts from now: a request that hung until its deadline would
            # otherwise be repeated at once.
            if status.error is not None:
                started_at = anyio.current_time()
            await anyio.sleep_until(schedule.next_poll(started_at, status.error))

    async def watch(self, target: Target, report: Callable[[TargetStatus], None], interval: float) -> None:
        """Report the status of `target`, and again when anything but its times changes; endless."""
        schedule = PollSchedule(interval)
        last: TargetStatus | None = None

        def report_change(status: TargetStatus) -> None:
            nonlocal last
            is_change = status.differs_from(last)
            last = status
            if is_change:
                report(status)

        while True:
            try:
                await self._watch_once(target, report_change, interval)
            except Exception as exception:
                error = _status_error(target, exception)
                if last is not None and last.error is None:
                    schedule = PollSchedule(interval)  # it was healthy in between: start the backoff again
                report_change(target.fail(error, None, datetime.now(UTC)))
                await anyio.sleep_until(schedule.next_poll(anyio.current_time(), error))

    async def _watch_once(
        self, target: Target, report: Callable[[TargetStatus], None], interval: float
    ) -> None:
        """Report the observations of one watch. It occupies a slot until its first observation only."""

        def report_late() -> None:
            release_slot()
            # The watch itself continues: a slow server may still respond.
            late = DeadlineExceededError(
                f"no complete response within {self._timeout:g} s to {_describe(target)}",
                hint="Its watch continues; raise {timeout}, or check its server.",
                timeout=self._timeout,
                missing={target.name: "its watch has not started"},
            )
            report(target.fail(late, self._timeout))

        async with AsyncExitStack() as stack:
            release_slot = await stack.enter_async_context(self._limiter.slot(target))
            timer = self.loop.call_later(self._timeout, report_late)
            stack.callback(timer.cancel)
            started_at, polled_at = anyio.current_time(), None
            target.num_requests += 1
            resolver = await stack.enter_async_context(self.connections.lease(target.resolver))
            observations = resolver._call_changes(target.want, interval)
            has_responded = False
            async for observation in await stack.enter_async_context(aclosing(observations)):
                if observation.state is None and observation.error is None:
                    continue
                now = anyio.current_time()
                latency = None if has_responded else now - started_at
                if observation.polled_at is not None and observation.polled_at != polled_at:
                    polled_at = observation.polled_at
                    latency = now - polled_at
                has_responded = True
                timer.cancel()
                release_slot()
                explained = await target.explained(observation)
                report(target.update(explained, latency, is_watched=polled_at is None))


class _RequestLimiter:
    """Limits the concurrent requests, and prevents those that hang from blocking the others.

    A request that takes longer than `GRACE` gives its slot to another one, and continues in one of as many
    slots for slow requests; if all of those are taken, it keeps its slot. Targets that failed last time use
    at most half of the slots.
    """

    def __init__(self, limit: int) -> None:
        self._all = anyio.CapacityLimiter(limit)
        self._failing = anyio.CapacityLimiter(max(1, limit // 2))
        self._slow = anyio.CapacityLimiter(limit)

    @asynccontextmanager
    async def slot(self, target: Target) -> AsyncIterator[Callable[[], None]]:
        """Wait for a slot for `target`, and hold it inside the block, or until what it yields is called."""
        loop = asyncio.get_running_loop()
        borrower = object()
        held: list[anyio.CapacityLimiter] = []
        timer: asyncio.TimerHandle | None = None

        def release() -> None:
            if timer is not None:
                timer.cancel()
            while held:
                held.pop().release_on_behalf_of(borrower)

        def continue_as_slow() -> None:
            nonlocal timer
            try:
                self._slow.acquire_on_behalf_of_nowait(borrower)
            except anyio.WouldBlock:
                timer = loop.call_later(GRACE, continue_as_slow)
                return
            release()
            held.append(self._slow)

        try:
            # In this order, so that a failing target holds no slot while it waits for the other ones.
            for limiter in (self._failing, self._all) if target.failing_since is not None else (self._all,):
                await limiter.acquire_on_behalf_of(borrower)
                held.append(limiter)
            timer = loop.call_later(GRACE, continue_as_slow)
            yield release
        finally:
            release()


class StatusStream:
    """Runs one task per target, and keeps the latest status of each target until it is taken."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._run_target: Callable[[Target], Coroutine[None, None, None]]
        self._pending: dict[Target, TargetStatus] = {}

    async def run(self, targets: Iterable[Target], work: TargetWork, wakeup: LatestValue[None]) -> None:
        """Run `work` for each target, in its own task; endless. `wakeup` announces each status to take."""

        async def run_target(target: Target) -> None:
            outage = Outage(logger, f"target {target.name!r}", target=target.name)

            def report(status: TargetStatus) -> None:
                # A key that is set again keeps its position, so that the longest waiting target is first.
                self._pending[target] = status
                wakeup.put(None)
                outage.update(status.error)

            await target.run_unless_removed(partial(work, target, report))

        self._run_target = run_target
        try:
            async with anyio.create_task_group() as self._group:
                for target in targets:
                    self.add(target)
                await anyio.sleep_forever()
        except BaseExceptionGroup as errors:
            error = first_error(errors)
            raise error from error.__cause__
        finally:
            self._group = None

    def add(self, target: Target) -> None:
        if self._group is not None:
            self._group.start_soon(self._run_target, target)

    def take(self) -> TargetStatus | None:
        """Return the latest status of the target that has waited longest; None without one."""
        while self._pending:
            target = next(iter(self._pending))
            status = self._pending.pop(target)
            if not target.is_removed:
                return status
        return None


def _status_error(target: Target, error: Exception) -> ResolveError:
    """Return the error for the status of `target`, and log one that only a bug can cause."""
    if isinstance(error, ResolveError) and type(error) is not ResolveError:
        return error
    logger.error("target %r raised an exception", target.name, exc_info=error, extra={"target": target.name})
    if isinstance(error, ResolveError):
        return error
    unexpected = ResolveError(f"target {target.name!r} raised {error!r}", hint="The log has the traceback.")
    unexpected.__cause__ = error
    return unexpected


def _describe(target: Target) -> str:
    return f"the request to target {target.name!r} ({target.resolver!r})"


class OpenResolvers:
    """Enters resolvers on first use, and closes them after the last `keep_open` block. For one event loop."""

    def __init__(self) -> None:
        self._connections = Connections()
        # By identity: one resolver may have several names in a fleet, and be part of unions.
        self._contexts: dict[int, KeptOpen[ClusterResolver]] = {}
        self._tasks: dict[KeptOpen[ClusterResolver], asyncio.Task[None]] = {}
        self._num_keepers = 0

    @asynccontextmanager
    async def keep_open(self) -> AsyncIterator[None]:
        """Keep resolvers open inside the block; the last such block closes all of them."""
        self._num_keepers += 1
        try:
            yield
        finally:
            self._num_keepers -= 1
            if not self._num_keepers:
                await self._close()

    @asynccontextmanager
    async def lease(self, resolver: ClusterResolver) -> AsyncIterator[ClusterResolver]:
        """Yield `resolver`, whose components are entered, each of them once for all leases."""
        # A target that was removed while it waited for a slot is cancelled here at the latest: it must not
        # open its resolver again after `release`.
        await anyio.lowlevel.checkpoint_if_cancelled()
        contexts = [self._context(component) for component in resolver._parts]
        async with AsyncExitStack() as stack:
            for context in contexts:
                await stack.enter_async_context(context.acquire())
            yield resolver

    def release(self, resolver: ClusterResolver, *, used: Iterable[ClusterResolver]) -> None:
        """Close the components of `resolver` that none of `used` has, as soon as no lease of them is held."""
        kept = {id(component) for one in used for component in one._parts}
        for component in resolver._parts:
            context = self._contexts.get(id(component))
            if context is not None and id(component) not in kept:
                context.close()

    def _context(self, resolver: ClusterResolver) -> KeptOpen[ClusterResolver]:
        context = self._contexts.get(id(resolver))
        if context is None or context.is_closed:
            context = self._contexts[id(resolver)] = self._enter(resolver, after=context)
        return context

    def _enter(
        self, resolver: ClusterResolver, *, after: KeptOpen[ClusterResolver] | None
    ) -> KeptOpen[ClusterResolver]:
        context = KeptOpen(
            resolver, logger=logger, enter=partial(resolver._using, self._connections), after=after
        )
        task = self._tasks[context] = asyncio.create_task(context.run())
        task.add_done_callback(lambda _: self._discard(resolver, context))
        return context

    def _discard(self, resolver: ClusterResolver, context: KeptOpen[ClusterResolver]) -> None:
        del self._tasks[context]
        if self._contexts.get(id(resolver)) is context:
            del self._contexts[id(resolver)]

    async def _close(self) -> None:
        """Close every resolver, each within its own `timeout`."""
        for context in self._contexts.values():
            context.close()
        await wait_until_done(*self._tasks.values())
