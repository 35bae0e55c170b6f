"""The reflector: keeps a cache up to date with a list and a watch for each query, as client-go's does.

A watch begins with an event for each object that exists, and continues with each change (WatchList,
KEP-3157). If a server does not support that, the objects are listed first, and a watch reports each change
since the version of that list. Every watch ends sooner or later: the server ends it after a while,
connections break, versions expire. The next watch resumes from the last version that was reported. If that
version is too old (410), the pods are listed again. No change is missed or applied twice.

The cached pods are current only while the watch of each query is established. Between two watches, and after
a list, they count as current for `WatchPolicy.max_gap` seconds; after that, observations have an error until
the watch is established and has reported what it missed.

`WatchState` decides what follows after a watch ends or fails: resume, list again, or give up. `Reflector`
does the I/O.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Backoff, RetryPolicy, within_deadline
from aioresolve._core.telemetry import Outage, record_retry, record_watch_restart
from aioresolve.errors import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.spec import Observation

from .api.errors import WATCH_VERBS, error_from_watch_event, is_expired
from .api.objects import Bookmark, Deleted, EventLines, Failed, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import StreamingResponse

    from .api.client import Found, ObjectAPI
    from .api.queries import Query
    from .cluster_cache import ObjectCache

logger = logging.getLogger("aioresolve.watch")

MIN_LIFETIME = 0.5
"""Seconds: a watch that ends sooner counts as failed, even if it reported something."""

HEALTHY_AFTER = 5.0
"""Seconds after which a watch counts as healthy even if it reported nothing; this resets the backoff."""

MAX_DENIALS = 5
"""How many times the first watch may be forbidden although the list was permitted.

An API server that is starting may reject valid credentials. If this continues, the user has the verb `list`
but not `watch`, and only the caller can decide what to do about that.
"""

REFUSALS = frozenset({405, 406, 415, 422, 501})
"""The statuses with which a server refuses a watch that begins with the existing objects.

Without the feature gate WatchList it is 422.
"""

MAX_OBJECTS = 200_000
"""The maximum number of objects before the first bookmark: more pods than Kubernetes supports (150,000)."""

CHECK_SERVER = "Check the server, and the proxies and load balancers before it."

UNRELATED_TO_VERSION = frozenset({401, 403, 408, 429, 502, 503})
"""Failure statuses whose cause cannot be the version to resume from. After others, the pods are listed."""


class WatchPolicy(msgspec.Struct, frozen=True):
    """The timing of watches, in seconds.

    Attributes:
        min_lifetime: the minimum time after which the server should end a watch; five minutes, as in
            client-go. After `max_silence` in addition, the connection is closed.
        max_lifetime: the maximum. Each watch gets a random lifetime in between, so that not all end together.
        max_silence: how long a watch may receive no event before its connection counts as broken. An API
            server sends a bookmark about once a minute.
        response_timeout: how long the response to a watch may take to begin.
        max_initial_silence: how long a watch that begins with the existing objects may receive nothing before
            the bookmark that follows them. After that, they are listed.
        max_gap: how long the pods count as current while no watch is established: after a list, and after a
            watch has ended.
        max_replay: how long a watch that is established after a failure may take to report the changes that
            it missed; nothing marks the last of them.
        max_transit: how long to wait for an endpoint that left one EndpointSlice to appear in another one.
        size_interval: the time after which `wait` without a number reads the controllers of the pods again.
        backoff: the waits between attempts after failures.
    """

    min_lifetime: float = 300.0
    max_lifetime: float = 600.0
    max_silence: float = 150.0
    response_timeout: float = 30.0
    max_initial_silence: float = 5.0
    max_gap: float = 2.0
    max_replay: float = 0.2
    max_transit: float = 0.05
    size_interval: float = 10.0
    backoff: RetryPolicy = RetryPolicy(first_wait=0.5, longest_wait=30.0)


class WatchState:
    """The state of the list and watch of one query.

    Args:
        query: the query.
        backoff: the waits between attempts after failures.
        outage: logs when the query begins to fail and when it succeeds again.

    Attributes:
        query: the query.
        is_listed: whether there is a version to watch from.
        has_received_event: whether the watch that is open reported something.
        error: why the query fails at present; None if it does not.
        stale_since: since when it fails.
        timer: makes the query stale without a watch, or current when the watch has caught up; None before.
    """

    def __init__(self, query: Query[Any], backoff: RetryPolicy, outage: Outage) -> None:
        self.query = query
        self.is_listed = self.has_received_event = False
        self.error: ResolveError | None = None
        self.stale_since: datetime | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._opened_at: float | None = None  # of the watch that is open, on the loop's clock
        self._was_listed = self._was_watched = False
        self._was_just_listed = False  # without a wait or a healthy watch since
        self._current_at: datetime | None = None  # since the last list or watch, while no watch is open
        self._last_watch_failure: ResolveError | None = None  # since a watch was open
        self._denials = 0
        self._backoff = Backoff(backoff)
        self._outage = outage

    @property
    def failures(self) -> int:
        """The number of failures since the last healthy watch."""
        return self._backoff.failures

    def on_list(self) -> None:
        """Record that the pods were listed."""
        self.is_listed = self._was_listed = self._was_just_listed = True
        self._current_at = datetime.now(UTC)
        # If watches fail, a list proves only what the pods were at that moment. The query is then stale until
        # a watch is established, instead of seeming to recover with each list.
        if self._last_watch_failure is None:
            self._mark_current()

    def on_open(self, now: float) -> bool:
        """Record that a watch was opened; return whether the query is stale until the watch has caught up."""
        self._opened_at, self._was_watched, self.has_received_event = now, True, False
        if self.timer is not None:
            self.timer.cancel()
        if self.stale_since is None:
            self.on_replay()
        return self.stale_since is not None

    def on_replay(self) -> None:
        """Record that the watch that is open has reported the changes that it missed."""
        self._current_at = self._last_watch_failure = None
        self._mark_current()

    def on_close(self, now: float) -> float | None:
        """Record that the watch, if any, was closed; return for how many seconds it was open."""
        if self._opened_at is None:
            return None
        lifetime, self._opened_at = now - self._opened_at, None
        self._current_at = datetime.now(UTC)
        if lifetime > (MIN_LIFETIME if self.has_received_event else HEALTHY_AFTER):
            self._backoff.reset()
            self._was_just_listed = False
        return lifetime

    def on_failure(self, error: ResolveError) -> float:
        """Return the seconds to wait after `error`, and decide whether to resume the watch or to list again.

        Raises:
            ResolveError: `error`, if the query is given up.
        """
        if self._should_give_up(error):
            raise error
        wait = self._backoff.wait(error)
        if not self.is_listed:
            self.mark_stale(error)
            self._was_just_listed = False
            return wait
        self._last_watch_failure = error.with_traceback(None)
        is_silent = isinstance(error, DeadlineExceededError)
        # A single failure of a watch is part of normal operation, but not a long time without events.
        if self.failures > 1 or is_silent:
            self.mark_stale(error)
        # After an expired version (410) or an invalid event, changes were missed. A silent watch may have
        # missed some, and so may the next one: a proxy may hold back all events, and a server that was
        # restored from a backup sends none until it reaches the version to resume from.
        self.is_listed = not (
            is_silent
            or isinstance(error, ProtocolError)
            or (isinstance(error, APIError) and error.status not in UNRELATED_TO_VERSION)
        )
        # A version expires without any failure of the server, so list at once, but not in a loop.
        if is_expired(error) and not self._was_just_listed:
            return 0.0
        self._was_just_listed = False
        return wait

    def on_gap(self, error: ResolveError) -> None:
        """Record that no watch was established in time; `error` says so if no attempt failed."""
        if self.stale_since is None:
            self.mark_stale(self._last_watch_failure or error)

    def mark_stale(self, error: ResolveError) -> None:
        """Record that the query fails at present."""
        self.error = error.with_traceback(None)
        self.stale_since = self.stale_since or self._current_at or datetime.now(UTC)
        self._outage.update(error)

    def _mark_current(self) -> None:
        self.error = self.stale_since = None
        self._outage.update(None)

    def _should_give_up(self, error: ResolveError) -> bool:
        # Before the first list, an error that is not retryable is a mistake of the caller. After it, the
        # request and the credentials were right once, so the cause is an outage: a proxy that redirects to a
        # login page, an identity provider or an API server that is starting, a VPN that is down.
        if not self._was_listed:
            return not error.retryable and not is_expired(error)
        if self._was_watched or not isinstance(error, ForbiddenError):
            return False
        self._denials += 1
        return self._denials > MAX_DENIALS


RESTART_REASONS: dict[type[ResolveError], str] = {
    UnauthorizedError: "unauthorized",
    DeadlineExceededError: "silent",
    ConnectionFailedError: "broken",
}
"""Why a watch ended, in one word, for telemetry; besides `ended`, `expired` and `failed`."""


class Reflector:
    """Keeps an `ObjectCache` up to date.

    Args:
        api: the API server.
        cache: the cache.
        queries: the queries of the cache.
        latest: where to put `observe` whenever it may return something new.
        policy: the timing of watches.
        timeout: the deadline of a list, in seconds.
    """

    def __init__(
        self,
        api: ObjectAPI,
        cache: ObjectCache[Any, Any],
        queries: Iterable[Query[Any]],
        latest: LatestValue[Callable[[], Observation]],
        policy: WatchPolicy,
        *,
        timeout: float,
    ) -> None:
        self._api = api
        self._cache = cache
        self._policy = policy
        self._timeout = timeout
        self._watches = [
            WatchState(
                query,
                policy.backoff,
                Outage(logger, f"{query.scope} at {api.host}", server=api.host, scope=query.scope),
            )
            for query in queries
        ]
        self._latest = latest
        self._transit: asyncio.TimerHandle | None = None  # while an object is in transit
        self._last = Observation(None)
        self._cache_error: ResolveError | None = None

    async def run(self) -> None:
        """List and watch until a query is given up; never returns.

        Raises:
            ResolveError: the error of that query.
        """
        try:
            await gather(
                [partial(self._list_and_watch, watch) for watch in self._watches], limit=len(self._watches)
            )
        finally:
            for timer in (self._transit, *(watch.timer for watch in self._watches)):
                if timer is not None:
                    timer.cancel()

    def observe(self) -> Observation:
        """Return the current observation.

        Raises:
            ResolveError: an `address` callable failed.
        """
        now = datetime.now(UTC)
        # While an endpoint moves to another slice, the last state is kept; whether it is stale is not.
        if self._transit is None and self._cache.is_complete:
            try:
                self._last = self._cache.observation(now)
            except ResolveError as error:
                # Two pods with one index, for example: there is no state until one of them is deleted.
                if not error.retryable:
                    raise
                self._last = self._last.stale(error, now)
        failing = [watch for watch in self._watches if watch.stale_since is not None]
        if not failing:
            return self._last
        first = min(failing, key=lambda watch: watch.stale_since or now)
        assert first.error is not None
        return self._last.stale(first.error, first.stale_since or now)

    async def _list_and_watch(self, watch: WatchState) -> None:
        while True:
            error: ResolveError | None = None
            try:
                if watch.is_listed or not await self._list_by_watch(watch):
                    if not watch.is_listed:
                        await self._list(watch)
                    await self._watch(watch)
            except ResolveError as failure:
                error = failure
            lifetime = watch.on_close(anyio.current_time())
            if lifetime is not None:
                reason = "ended" if error is None else RESTART_REASONS.get(type(error), "failed")
                reason = "expired" if error is not None and is_expired(error) else reason
                record_watch_restart(self._api.host, watch.query.scope, reason, seconds=lifetime)
                self._set_timer(watch, self._policy.max_gap, self._on_gap)
            if error is not None and (wait := self._on_failure(error, watch)):
                await self._api.sleep(wait)

    def _on_failure(self, error: ResolveError, watch: WatchState) -> float:
        """Return the seconds to wait until the next attempt.

        Raises:
            ResolveError: `error`, if the query is given up.
        """
        if self._api.is_closed or error is self._cache_error:
            raise error
        wait = watch.on_failure(error)
        if watch.stale_since is not None:
            self._notify()
        record_retry(error, attempt=watch.failures, wait=wait)
        return wait

    async def _list(self, watch: WatchState) -> None:
        def on_failed_attempt(error: ResolveError) -> None:
            watch.mark_stale(error)
            self._notify()

        async def request(progress: Progress) -> Found[Any]:
            progress.on_failure = on_failed_attempt
            match = partial(self._match, watch)
            return await self._api.objects(watch.query, progress, convert=match, verbs=WATCH_VERBS)

        found = await within_deadline(self._timeout, f"the list of {watch.query.scope}", request)
        self._on_list(watch, found.items, found.version)
        self._set_timer(watch, self._policy.max_gap, self._on_gap)
        self._notify()
        # From now on the watch reports everything, and the next list may be hours away.
        await self._api.close_idle()

    async def _list_by_watch(self, watch: WatchState) -> bool:
        """Read one watch that begins with the existing objects until it ends.

        Returns:
            Whether it reported the objects. If not, they have to be listed: a list has more retries, and its
            error is the one to report.
        """
        if not self._api.sends_initial_events:
            return False
        # A plugin may take longer to return credentials than the server may take to respond.
        prepare = partial(self._api.prepare, watch.query.scope)
        await within_deadline(self._timeout, f"the list of {watch.query.scope}", prepare)
        try:
            await self._watch(watch)
        except ResolveError as error:
            if watch.is_listed or error is self._cache_error or self._api.is_closed:
                raise
            is_refused = isinstance(error, APIError) and error.status in REFUSALS
            if is_refused or isinstance(error, DeadlineExceededError):
                self._api.sends_initial_events = False
            logger.debug(
                "%s: the pods are listed, because a watch did not report them: %s", watch.query.scope, error
            )
            if error.retryable and getattr(error, "retry_after", None):  # from the list too
                await self._api.sleep(self._on_failure(error, watch))
        return watch.is_listed

    async def _watch(self, watch: WatchState) -> None:
        """Read one watch until it ends. If the query is not listed, it begins with the existing objects."""
        policy = self._policy
        lifetime = random.uniform(policy.min_lifetime, policy.max_lifetime)  # noqa: S311
        splitter = EventLines(watch.query.resource.decode_event)
        async with AsyncExitStack() as stack:
            events: list[WatchEvent[Any]] = []
            is_initial = not watch.is_listed
            if is_initial:
                async with self._api.limiter:  # as for a list
                    timeout = min(policy.max_initial_silence, policy.response_timeout)
                    stream = await self._open(stack, watch, None, lifetime, timeout)
                    opened_at = anyio.current_time()
                    events = await self._replace(watch, splitter, stream)
            else:
                version = self._cache.store(watch.query).version
                stream = await self._open(stack, watch, version, lifetime, policy.response_timeout)
                opened_at = anyio.current_time()
            is_stale = watch.on_open(opened_at)
            if is_initial:
                self._on_replay(watch)
            elif is_stale:
                self._set_timer(watch, policy.max_replay, self._on_replay)
            # If the server does not end the watch in time, the connection is closed from here.
            deadline = opened_at + lifetime + policy.max_silence
            self._apply(watch, events)
            # An empty line, or a part of an event, does not show that the server still reports changes.
            silent_since = anyio.current_time()
            while anyio.current_time() < deadline and (
                chunk := await self._read(stream, watch, deadline, policy.max_silence, silent_since)
            ):
                if events := self._decode(watch, splitter, chunk):
                    silent_since = anyio.current_time()
                    self._apply(watch, events)
        if not splitter.at_boundary:
            raise self._broken(watch, "it ended in the middle of an event")
        if anyio.current_time() - opened_at < MIN_LIFETIME:
            raise self._broken(watch, f"it ended within {MIN_LIFETIME:g} s")

    async def _open(
        self, stack: AsyncExitStack, watch: WatchState, version: str | None, lifetime: float, timeout: float
    ) -> StreamingResponse:
        """Return the stream of a watch, which `stack` will close; see `ObjectAPI.watch`."""
        with anyio.move_on_after(timeout):
            return await stack.enter_async_context(self._api.watch(watch.query, version, lifetime))
        if version is None:
            # A proxy may hold the events back, so that no list by watch would succeed.
            self._api.sends_initial_events = False
        raise self._broken(watch, f"the server did not respond within {timeout:g} s")

    async def _replace(
        self, watch: WatchState, splitter: EventLines[Any], stream: StreamingResponse
    ) -> list[WatchEvent[Any]]:
        """Read the events of the existing objects up to the bookmark after them, and put them into the cache.

        Returns:
            The events that arrived together with the bookmark, after it.
        """
        found: dict[str, Any] = {}
        silence = min(self._policy.max_initial_silence, self._policy.max_silence)
        deadline = anyio.current_time() + self._timeout  # as for a list
        while chunk := await self._read(stream, watch, deadline, silence, anyio.current_time()):
            events = self._decode(watch, splitter, chunk)
            marks = [number for number, event in enumerate(events) if isinstance(event, Bookmark)]
            end = marks[0] if marks else len(events)
            self._collect(watch, events[:end], found)
            if len(found) > MAX_OBJECTS:
                raise self._api.invalid_event(watch.query, f"more than {MAX_OBJECTS} objects exist")
            if not marks:
                continue
            bookmark: Any = events[end]
            if not bookmark.ends_initial_events:
                self._api.sends_initial_events = False
                raise self._broken(watch, "it does not mark the end of the existing objects")
            self._on_list(watch, list(found.values()), bookmark.object.metadata.resource_version)
            return events[end + 1 :]
        if anyio.current_time() >= deadline:
            self._api.sends_initial_events = False
        raise self._broken(watch, "it did not report all objects")

    def _collect(self, watch: WatchState, events: Sequence[WatchEvent[Any]], found: dict[str, Any]) -> None:
        """Add what the cache keeps of the objects that `events` report to `found`, by `namespace/name`."""
        added: dict[str, Any] = {}
        for event in events:
            if isinstance(event, Failed):
                raise self._failure(watch, event)
            changed: Any = event.object
            name = f"{changed.metadata.namespace}/{changed.metadata.name}"
            if isinstance(event, Deleted):  # changes may be reported before the bookmark too
                for each in (added, found):
                    each.pop(name, None)
            else:
                added[name] = changed
        found.update(zip(added, self._match(watch, list(added.values())), strict=True))

    async def _read(
        self,
        stream: StreamingResponse,
        watch: WatchState,
        deadline: float,
        max_silence: float,
        silent_since: float,
    ) -> bytes:
        """Return the next bytes of the watch, empty at its end and at the deadline."""
        with anyio.CancelScope(deadline=min(deadline, silent_since + max_silence)):
            return await stream.read()
        if anyio.current_time() >= deadline:
            return b""
        raise DeadlineExceededError(
            f"the watch of {watch.query.scope} by {self._api.host} received no event for {max_silence:g} s",
            hint=CHECK_SERVER,
            timeout=max_silence,
        )

    def _decode(self, watch: WatchState, splitter: EventLines[Any], chunk: bytes) -> list[WatchEvent[Any]]:
        """Return the events that end in `chunk`."""
        try:
            return splitter.feed(chunk)
        except ValueError as error:
            raise self._api.invalid_event(watch.query, str(error)) from error

    def _apply(self, watch: WatchState, events: Sequence[WatchEvent[Any]]) -> None:
        """Apply events to the cache."""
        failed = [event for event in events if isinstance(event, Failed)]
        if len(failed) < len(events):
            watch.has_received_event = True
            with self._updating_cache():
                has_changed = self._cache.apply(watch.query, events)
            if has_changed:
                self._notify()
            if self._cache.store(watch.query).version_decreased:
                raise self._api.invalid_event(watch.query, "its resourceVersion decreased")
        if failed:
            raise self._failure(watch, failed[0])

    def _failure(self, watch: WatchState, event: Failed) -> ResolveError:
        """Return the error of an ERROR event."""
        return error_from_watch_event(event.object, watch.query, host=self._api.host, source=self._api.source)

    # The cache

    def _match(self, watch: WatchState, objects: list[Any]) -> list[Any]:
        with self._updating_cache():
            return self._cache.match(watch.query, objects)

    def _on_list(self, watch: WatchState, found: list[Any], version: str) -> None:
        with self._updating_cache():
            self._cache.replace(watch.query, found, version)
        watch.on_list()

    @contextmanager
    def _updating_cache(self) -> Iterator[None]:
        """Make errors inside the block final: a retry would only return the same pods."""
        try:
            yield
        except ResolveError as error:
            self._cache_error = error
            raise

    def _notify(self) -> None:
        """Have the consumer observe, but not while an endpoint moves to another slice."""
        if not self._cache.in_transit:
            self._notify_now()
        elif self._transit is None:
            loop = asyncio.get_running_loop()
            self._transit = loop.call_later(self._policy.max_transit, self._notify_now)

    def _notify_now(self) -> None:
        if self._transit is not None:
            self._transit.cancel()
            self._transit = None
        self._latest.put(self.observe)

    def _set_timer(self, watch: WatchState, seconds: float, callback: Callable[[WatchState], None]) -> None:
        if watch.timer is not None:
            watch.timer.cancel()
        watch.timer = asyncio.get_running_loop().call_later(seconds, callback, watch)

    def _on_gap(self, watch: WatchState) -> None:
        watch.on_gap(self._broken(watch, f"it is not established after {self._policy.max_gap:g} s"))
        self._notify()

    def _on_replay(self, watch: WatchState) -> None:
        watch.on_replay()
        self._notify()

    def _broken(self, watch: WatchState, reason: str) -> ConnectionFailedError:
        return ConnectionFailedError(
            f"the watch of {watch.query.scope} by {self._api.host} (from {self._api.source}) broke: {reason}",
            hint=CHECK_SERVER,
            host=self._api.host,
            scope=watch.query.scope,
        )
