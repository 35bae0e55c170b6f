"""`Fleet`: many resolvers, resolved, polled or watched concurrently."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aioresolve._core.concurrency import gather, stream_latest
from aioresolve._core.connections import Copyable
from aioresolve._core.validation import suggestion, validate_count, validate_seconds
from aioresolve.errors import ConfigurationError, InvalidClusterError
from aioresolve.resolver.base import ClusterResolver

from .poller import Poller, StatusStream
from .status import Target, statuses_html

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.connections import Arguments

    from .status import Expected, TargetStatus

logger = logging.getLogger("aioresolve.fleet")

T = TypeVar("T")

SHARD_INDEX = "JOB_COMPLETION_INDEX"
"""The environment variable with the index of a pod in an Indexed Job:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode."""

MAX_SHARDS = 1000
"""The maximum number of shards: finding the shard of a target takes a hash for each."""


class Fleet(Copyable):
    """Resolves, polls or watches many clusters at once; a bad one does not delay the others.

    >>> jobs = {"worker": ["job-name=train"]}
    >>> targets = {name: KubernetesClusterResolver(jobs, context=name) for name in ("loopback", "gone")}
    >>> fleet = Fleet(targets, timeout=10.0)
    >>> async for status in fleet.watch():
    ...     if set(fleet.readings) == {"loopback", "gone"}:
    ...         break
    >>> fleet.readings["loopback"].tasks_by_job
    {'worker': 2}
    >>> str(fleet.readings["loopback"].health)
    'ready'
    >>> fleet.readings["gone"].error
    ConfigurationError("kubeconfig ...: there is no context 'gone'; there are: 'loopback'")

    Each request has its own deadline, and the error of a target is part of its `TargetStatus`: it is never
    raised. An exception that is not a `ResolveError` is logged, and is the `__cause__` of that error. A
    target that fails keeps its last state, and is requested less and less often, down to once in five
    minutes. It never takes the turns of the others.

    Targets on the same API server share a connection pool. Outside `async with`, a call closes the
    connections that it opened; inside, they are kept for the calls that follow. While a fleet is in use, its
    resolvers belong to it: do not enter them.

    Args:
        targets: resolvers by name.
        timeout: seconds that a request to one target may take, without the wait for its turn.
        max_concurrency: the number of concurrent requests. A watch counts until its first state. Requests
            that take longer than a second are counted separately, up to the same number, so that targets that
            hang do not delay the others.
        expected: target name to the number of tasks that it should have: a number, one for each job, or
            `"controller"`, the default: as many as the controllers of its jobs want, where the source knows
            it (on Kubernetes, a request more for each controller). A target without an expected number is
            ready if each job has a task, and no task is missing. See `TargetStatus.health`.
        on_change: called in the event loop when the health of a target changes, with its status and its
            previous one, which is None for the first. It should return soon; what it raises is logged.
        shard: `(i, n)` to take only the targets of the i-th of n processes, counted from 0, which are chosen
            by rendezvous hashing of their names; or `n`, if i is in the variable `JOB_COMPLETION_INDEX`. For
            fleets of hundreds of targets: fewer are spread unevenly, and one process is enough for them.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid.
        InvalidClusterError: (a TypeError) the targets are not a mapping, or one is not an
            `aioresolve.ClusterResolver`.
    """

    def __init__(
        self,
        targets: Mapping[str, ClusterResolver] | None = None,
        *,
        timeout: float = 30.0,
        max_concurrency: int = 256,
        expected: Mapping[str, Expected] | None = None,
        on_change: Callable[[TargetStatus, TargetStatus | None], object] | None = None,
        shard: tuple[int, int] | int | None = None,
    ) -> None:
        self._timeout = validate_seconds("timeout", timeout)
        self._max_concurrency = validate_count("max_concurrency", max_concurrency)
        self._shard = _validate_shard(shard)
        self._targets: dict[str, Target] = {}
        self._resolvers: dict[str, ClusterResolver] = {}
        self._statuses: dict[str, TargetStatus] = {}
        self._streams: set[StatusStream] = set()
        self._poller: Poller | None = None
        self._entered: AsyncExitStack | None = None
        self._on_change = on_change
        self._listeners: list[Callable[[str], None]] = []
        targets = {} if targets is None else targets
        if not isinstance(targets, Mapping):
            raise InvalidClusterError(
                f"the targets of a fleet are a mapping of names to resolvers; got {type(targets).__name__}",
                hint="Give each resolver a name, such as Fleet(dict(trainers=resolver)).",
            )
        numbers: dict[str, Expected] = dict(expected or {})
        if unknown := [name for name in numbers if name not in targets]:
            raise ConfigurationError(
                f"there is no target {unknown[0]!r}",
                argument="expected",
                hint="Pass names of targets with their numbers of tasks, such as {'trainers': 16}.",
            )
        for name, resolver in targets.items():
            self.add(name, resolver, expected=numbers.get(name, "controller"))

    def __repr__(self) -> str:
        shard = "" if self._shard is None else f", shard {self._shard[0]} of {self._shard[1]}"
        return f"<{type(self).__name__} of {len(self._targets)} targets{shard}>"

    def _repr_html_(self) -> str:
        return statuses_html(repr(self), self._statuses.values())

    def _copied_arguments(self) -> Arguments:
        arguments = {
            "timeout": self._timeout,
            "max_concurrency": self._max_concurrency,
            "expected": {target.name: target.expected for target in self._targets.values()},
            "on_change": self._on_change,
            "shard": self._shard,
        }
        return (self._resolvers,), arguments

    @property
    def timeout(self) -> float:
        """The seconds that a request to one target may take."""
        return self._timeout

    @property
    def shard(self) -> tuple[int, int] | None:
        """The index of this shard and the number of shards; None if this is the whole fleet."""
        return self._shard

    @property
    def targets(self) -> MappingProxyType[str, ClusterResolver]:
        """A live view of the resolvers of this shard, by name."""
        return MappingProxyType(self._resolvers)

    @property
    def readings(self) -> MappingProxyType[str, TargetStatus]:
        """A live view of the latest status of each target that was requested, by name."""
        return MappingProxyType(self._statuses)

    def add(self, name: str, resolver: ClusterResolver, *, expected: Expected = "controller") -> None:
        """Add a target, also to running polls and watches. A target of another shard is ignored.

        Args:
            name: its name.
            resolver: its resolver.
            expected: how many tasks it should have; see `Fleet`.

        Raises:
            ConfigurationError: (a ValueError) the name is empty or in use, or `expected` is invalid.
            InvalidClusterError: (a TypeError) it is not an `aioresolve.ClusterResolver`.
        """
        if not isinstance(name, str) or not name:  # type: ignore[redundant-expr]
            raise ConfigurationError(f"{name!r} is not a name for a target, which is a non-empty string")
        if not isinstance(resolver, ClusterResolver):
            raise InvalidClusterError(
                f"target {name!r} is not an aioresolve.ClusterResolver:"
                f" {type(resolver).__name__} {resolver!r}",
                hint="Pass a resolver of `aioresolve`, and await the fleet, or run it by `asyncio.run`.",
            )
        if name in self._targets:
            raise ConfigurationError(
                f"there is already a target {name!r}", hint="Remove it first, or use another name."
            )
        target = Target(name, resolver, expected, self._publish)
        if not self._is_in_shard(name):
            return
        self._resolvers[name] = resolver
        self._targets[name] = target
        for stream in self._streams:
            stream.add(target)

    def remove(self, name: str) -> None:
        """Remove a target at once: its requests are cancelled, and no status of it follows.

        Its connections are closed, unless other targets share them. A target of another shard is ignored.

        Raises:
            ConfigurationError: (a ValueError) the fleet has no target of this name.
        """
        if not self._is_in_shard(name):
            return
        if name not in self._targets:
            raise ConfigurationError(f"no target is named {name!r}; {suggestion(name, self._targets.keys())}")
        self._targets.pop(name).remove()
        self._statuses.pop(name, None)
        resolver = self._resolvers.pop(name)
        for listener in self._listeners:
            listener(name)
        if self._poller is not None:
            self._poller.connections.release(resolver, used=self._resolvers.values())

    def _publish(self, status: TargetStatus) -> None:
        """Store the latest status of a target, and call the listeners."""
        previous = self._statuses.get(status.name)
        self._statuses[status.name] = status
        for listener in self._listeners:
            listener(status.name)
        is_change = previous is None or previous.health is not status.health
        if self._on_change is None or not is_change:
            return
        try:
            self._on_change(status, previous)
        except Exception:
            logger.exception("on_change of %r failed", self, extra={"target": status.name})

    async def resolve(self) -> dict[str, TargetStatus]:
        """Resolve all targets concurrently, once, and return their statuses in the order of the targets.

        The error of a target is part of its status, and not raised. A target that is removed during the call
        is left out.
        """
        targets = list(self._targets.values())
        async with self._open_poller() as poller:
            calls = [
                partial(target.run_unless_removed, partial(poller.resolve, target)) for target in targets
            ]
            statuses = await gather(calls, limit=len(calls))
        return {status.name: status for status in statuses if status is not None}

    async def poll(self, *, interval: float = 30.0) -> AsyncGenerator[TargetStatus, None]:
        """Resolve each target every `interval` seconds, on its own schedule, and yield each status; endless.

        All targets are requested at the start. A target that fails is requested less often until it recovers.
        A slow consumer gets the latest status of each target, the one that has waited longest first. The loop
        may be left at any point; use `contextlib.aclosing` to close everything at once.

        Args:
            interval: seconds between two requests to a target, with a jitter of 10 %.

        Raises:
            ConfigurationError: (a ValueError) `interval` is not a positive number of seconds.
        """
        async with aclosing(self._stream(Poller.poll, interval)) as statuses:
            async for status in statuses:
                yield status

    async def watch(self, *, interval: float = 30.0) -> AsyncGenerator[TargetStatus, None]:
        """Yield the status of each target, and again after each change of it; endless.

        A change is one of the health, the reason, the members, the missing tasks, or the error.

        A source that reports changes is watched, any other is polled. A slow consumer gets the latest status
        of each target, the one that has waited longest first. The loop may be left at any point; use
        `contextlib.aclosing` to close everything at once.

        Args:
            interval: seconds between two requests to a source without a watch, and the least time before a
                watch that ended with an error is started again.

        Raises:
            ConfigurationError: (a ValueError) `interval` is not a positive number of seconds.
        """
        async with aclosing(self._stream(Poller.watch, interval)) as statuses:
            async for status in statuses:
                yield status

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        allowed_hosts: Sequence[str] = (),
        peers: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[str]:
        """Serve a page about this fleet inside the block; the value of the block is its URL.

        >>> fleet = Fleet({"fixed": SimpleClusterResolver(ClusterSpec({"worker": ["10.0.0.1:8470"]}))})
        >>> async with fleet.serve() as url:
        ...     async for status in fleet.watch():
        ...         break
        >>> url, status
        ('http://127.0.0.1:.../', <TargetStatus 'fixed', Ready 1/1>)

        It shows what polls and watches of this fleet find, and requests nothing by itself. `/api/targets` and
        `/api/targets/NAME` are JSON, `/events` sends changes, `/metrics` is for Prometheus, and `/sd` is the
        members as Prometheus' HTTP service discovery. `/healthz` and `/readyz` are for probes. Everything is
        read-only, and anyone who can connect may read it.

        Args:
            host: the address to listen on, without brackets; `"0.0.0.0"` for all IPv4 addresses.
            port: the port; 0 for one that is free.
            allowed_hosts: the names under which browsers reach the server, besides IP addresses, `localhost`
                and `host`. Requests for other names are rejected.
            peers: URLs of the servers of other shards, such as `"http://shard-1:8080"`: their pages may read
                this server, and the page of this one shows them too with `?peers=URL,URL`.

        Raises:
            ConfigurationError: (a ValueError) the port is in use, or cannot be listened on; or `peers` is
                invalid.
            MissingDependencyError: (an ImportError) the extra `serve` is not installed.
        """
        from .server import serve  # loads aiohttp's server and prometheus_client

        return serve(self._targets, self._listeners, host, port, allowed_hosts=allowed_hosts, peers=peers)

    async def aclose(self) -> None:
        """Close the connections shared inside `async with`; running polls and watches keep theirs."""
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.aclose()

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise ConfigurationError(
                f"{self!r} is already entered", hint="Share this fleet, or make another one."
            )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._open_poller())
            self._entered = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _open_poller(self) -> AsyncIterator[Poller]:
        """Yield the poller of this event loop; its connections are kept until the last such block ends."""
        poller = self._poller
        if poller is None or poller.loop is not asyncio.get_running_loop():
            poller = self._poller = Poller(timeout=self._timeout, max_concurrency=self._max_concurrency)
        async with poller.connections.keep_open():
            yield poller

    async def _stream(
        self, work: Callable[..., Awaitable[None]], interval: float
    ) -> AsyncGenerator[TargetStatus, None]:
        """Run a method of the poller for every target, and yield the latest status of each target."""
        seconds, stream = validate_seconds("interval", interval), StatusStream()

        async def run(wakeup: LatestValue[None]) -> None:
            async with self._open_poller() as poller:
                self._streams.add(stream)
                try:
                    await stream.run(self._targets.values(), partial(work, poller, interval=seconds), wakeup)
                finally:
                    self._streams.discard(stream)

        async with aclosing(stream_latest(run)) as wakeups:
            async for _ in wakeups:
                while (status := stream.take()) is not None:
                    yield status

    def _is_in_shard(self, name: str) -> bool:
        if self._shard is None:
            return True
        index, number = self._shard

        # Rendezvous hashing: each process computes the shard from the name alone, whatever other targets it
        # knows. A new shard takes its share from all the others, and no other target moves. Thaler and
        # Ravishankar, "Using name-based mappings to increase hit rates", 1998.
        def weight(shard: int) -> bytes:
            return blake2b(f"{shard}:{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

        return max(range(number), key=weight) == index


def _validate_shard(shard: Any) -> tuple[int, int] | None:
    """Return the index of the shard and the number of shards; None for the whole fleet."""
    if shard is None:
        return None
    is_pair = isinstance(shard, tuple) and len(shard) == 2
    index, number = shard if is_pair else (0, shard)
    if type(index) is not int or type(number) is not int or not 0 <= index < number <= MAX_SHARDS:
        raise ConfigurationError(
            f"{shard!r} is not a valid shard",
            argument="shard",
            hint=f"Pass its index, from 0, and the number of shards, at most {MAX_SHARDS:,}, such as (0, 4);"
            f" or the number alone in a pod of an Indexed Job, which has its index in ${SHARD_INDEX}.",
        )
    if not is_pair:
        text = os.environ.get(SHARD_INDEX)
        if text is None or not text.isdecimal() or int(text) >= number:
            raise ConfigurationError(
                f"cannot determine which of {number} shards this is, because ${SHARD_INDEX} is"
                f" {'not set' if text is None else repr(text)}",
                argument="shard",
                hint="Pass the index as well, or run as many pods of an Indexed Job as there are shards.",
            )
        index = int(text)
    return index, number
