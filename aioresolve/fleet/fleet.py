"""`Fleet`: many resolvers, asked side by side."""

from __future__ import annotations

import asyncio
import os
import reprlib
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from aioresolve._core.concurrency import gather, newest_of
from aioresolve._core.validation import checked_count, checked_seconds
from aioresolve.errors import ConfigurationError, InvalidClusterError
from aioresolve.resolver.base import ClusterResolver

from .poller import Asking
from .sharding import checked_shard, rendezvous
from .target import Target
from .watcher import Following

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
    from types import TracebackType

    from aioresolve._core.concurrency import Newest

    from .target import Reading
    from .watcher import Work

__all__ = ["Fleet"]


class Fleet:
    """Resolves, polls or watches many clusters at once, of which a bad one stalls nobody.

    >>> jobs = {"worker": ["job-name=train"]}
    >>> targets = {name: KubernetesClusterResolver(jobs, context=name) for name in ("loopback", "gone")}
    >>> fleet = Fleet(targets, timeout=10.0)
    >>> async for reading in fleet.watch():
    ...     if set(fleet.readings) == {"loopback", "gone"}:
    ...         break
    >>> fleet.readings["loopback"].tasks_by_job
    {'worker': 2}
    >>> fleet.readings["gone"].error
    ConfigurationError("kubeconfig ...: there is no context 'gone'; there are: 'loopback'")

    Each question has a deadline of its own, and what is wrong with a target is told in its `Reading`: no
    target's fault is ever raised. A target that fails keeps the state that it had, is asked more and more
    rarely, up to once in five minutes, and never costs the others their turns.

    Targets on the same API server share one pool of connections. Outside `async with`, a call opens what it
    needs and closes it again; inside, connections are kept for the calls that follow. A target's resolver
    belongs to the fleet while it is used: do not enter it besides.

    Args:
        targets: resolvers by name.
        timeout: seconds that a question to one target may take, counted from when it has its turn.
        max_concurrency: how many questions are asked at a time. A watch counts until its first answer.
        shard: `(i, n)` to take only those targets that fall to the i-th of n processes, counted from 0, by
            rendezvous hashing of their names; or `n`, where i is this pod's `JOB_COMPLETION_INDEX`.

    Raises:
        ConfigurationError: (a ValueError) an argument is not one of these.
        InvalidClusterError: (a TypeError) a target is no `aioresolve.ClusterResolver`.
    """

    def __init__(
        self,
        targets: Mapping[str, ClusterResolver] | None = None,
        *,
        timeout: float = 30.0,
        max_concurrency: int = 256,
        shard: tuple[int, int] | int | None = None,
    ) -> None:
        self._timeout = checked_seconds("timeout", timeout)
        self._max_concurrency = checked_count("max_concurrency", max_concurrency)
        self._shard = checked_shard(shard, os.environ)
        self._targets: dict[str, Target] = {}
        self._resolvers: dict[str, ClusterResolver] = {}
        self._readings: dict[str, Reading] = {}
        self._followings: set[Following] = set()
        self._asking: Asking | None = None
        self._entered: AsyncExitStack | None = None
        for name, resolver in (targets or {}).items():
            self.add(name, resolver)

    def __repr__(self) -> str:
        shard = "" if self._shard is None else f", shard {self._shard[0]} of {self._shard[1]}"
        return f"<{type(self).__name__} of {len(self._targets)} targets{shard}>"

    @property
    def timeout(self) -> float:
        """Seconds that a question to one target may take."""
        return self._timeout

    @property
    def shard(self) -> tuple[int, int] | None:
        """Which part of the fleet this is, and of how many; None where it is the whole."""
        return self._shard

    @property
    def targets(self) -> MappingProxyType[str, ClusterResolver]:
        """The resolvers of this shard by name; it changes as targets are added and removed."""
        return MappingProxyType(self._resolvers)

    @property
    def readings(self) -> MappingProxyType[str, Reading]:
        """The newest reading of each target that was asked, by name; it changes as readings come."""
        return MappingProxyType(self._readings)

    def add(self, name: str, resolver: ClusterResolver) -> None:
        """Take one more target, also into the polls and watches that are going on.

        One that falls to another shard is left to that.

        Args:
            name: what to call it.
            resolver: its resolver.

        Raises:
            ConfigurationError: (a ValueError) the name is taken, or none.
            InvalidClusterError: (a TypeError) it is no `aioresolve.ClusterResolver`.
        """
        if not _is_name(name):
            raise ConfigurationError(f"{name!r} names no target: give a text that is not empty")
        if not isinstance(resolver, ClusterResolver):
            raise InvalidClusterError(
                f"target {name!r}: a fleet is made of aioresolve's resolvers; got"
                f" {type(resolver).__name__} {resolver!r}"
            )
        if name in self._targets:
            raise ConfigurationError(
                f"there is a target {name!r} already: remove it first, or take another name"
            )
        if not self._is_ours(name):
            return
        self._resolvers[name] = resolver
        target = self._targets[name] = Target(name, resolver, self._readings)
        for following in self._followings:
            following.add(target)

    def remove(self, name: str) -> None:
        """Let a target go at once: what is being asked of it ends, and no reading of it follows.

        Its connections are closed, unless other targets share them. One of another shard is no matter.

        Raises:
            ConfigurationError: (a ValueError) there is no such target.
        """
        if not self._is_ours(name):
            return
        if name not in self._targets:
            raise ConfigurationError(
                f"there is no target {name!r}: give one of {reprlib.repr(list(self._targets))}"
            )
        self._targets.pop(name).remove()
        resolver = self._resolvers.pop(name)
        is_used = any(other is resolver for other in self._resolvers.values())
        if self._asking is not None and not is_used:
            self._asking.connections.release(resolver)

    async def resolve(self) -> dict[str, Reading]:
        """Ask each target once, all at the same time, and return their readings in the order of the targets.

        What is wrong with a target is told in its reading, and not raised. One that is removed meanwhile has
        none.
        """
        targets = list(self._targets.values())
        async with self._opened() as asking:
            calls = [partial(target.unless_removed, partial(asking.once, target)) for target in targets]
            readings = await gather(calls, limit=len(calls))
        return {reading.name: reading for reading in readings if reading is not None}

    async def poll(self, *, interval: float = 30.0) -> AsyncGenerator[Reading, None]:
        """Ask each target every `interval` seconds, on a clock of its own, and yield each reading; no end.

        All are asked at once at first. A target that fails is asked more rarely, until it answers. A slow
        consumer gets the newest reading of each target, that of who waits longest first. The loop may be
        left at any point; `contextlib.aclosing` makes sure that all is closed at once.

        Args:
            interval: seconds between two questions to a target, a tenth more or less.

        Raises:
            ConfigurationError: (a ValueError) `interval` is no number of seconds above zero.
        """
        seconds = checked_seconds("interval", interval)
        followed = self._followed(lambda asking: partial(asking.poll, interval=seconds))
        async with aclosing(followed) as readings:
            async for reading in readings:
                yield reading

    async def watch(self, *, interval: float = 30.0) -> AsyncGenerator[Reading, None]:
        """Yield a reading of each target, and one whenever its members or its error change; without end.

        A source that tells its changes by itself is watched, any other is polled. A slow consumer gets the
        newest reading of each target, that of who waits longest first. The loop may be left at any point;
        `contextlib.aclosing` makes sure that all is closed at once.

        Args:
            interval: seconds between two questions to a source that has no watch, and the least time before
                a watch that failed for good is tried again.

        Raises:
            ConfigurationError: (a ValueError) `interval` is no number of seconds above zero.
        """
        seconds = checked_seconds("interval", interval)
        followed = self._followed(lambda asking: partial(asking.watch, interval=seconds))
        async with aclosing(followed) as readings:
            async for reading in readings:
                yield reading

    async def aclose(self) -> None:
        """Close the connections that the calls inside `async with` shared; polls that go on keep theirs."""
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.aclose()

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise ConfigurationError(f"{self!r} is entered already; use the one fleet, or make another")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._opened())
            self._entered = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Asking]:
        """Yield what asks, in this event loop; what it opens is kept until the last of these blocks ends."""
        asking = self._asking
        if asking is None or asking.loop is not asyncio.get_running_loop():
            asking = self._asking = Asking(timeout=self._timeout, max_concurrency=self._max_concurrency)
        async with asking.connections.kept():
            yield asking

    async def _followed(self, work: Callable[[Asking], Work]) -> AsyncGenerator[Reading, None]:
        """Yield the readings of what is done for every target, the newest of each."""
        following = Following()

        async def run(newest: Newest[None]) -> None:
            async with self._opened() as asking:
                self._followings.add(following)
                try:
                    await following.run(self._targets.values(), work(asking), newest)
                finally:
                    self._followings.discard(following)

        async with aclosing(newest_of(run)) as stirred:
            async for _ in stirred:
                while (reading := following.taken()) is not None:
                    yield reading

    def _is_ours(self, name: str) -> bool:
        if self._shard is None:
            return True
        index, number = self._shard
        return rendezvous(name, number) == index


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name)
