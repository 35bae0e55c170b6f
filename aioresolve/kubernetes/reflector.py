"""The reflector: keeps a store up to date with a list and watches, as client-go's does.

The objects are listed, and a watch reports each change since the version of that list. With the policy
`watch_list`, a watch reports the objects too, before the changes; if the server does not support that, they
are listed. Every watch ends sooner or later: the server ends it after a while, connections break, versions
expire. The next watch resumes from the last version that was reported. If that version is too old (410), the
pods are listed again. No change is missed or applied twice.

The cached pods are current only while the watch of each query is established, so that a list is reported when
the watch that follows has begun. Between two watches they count as current for `WatchPolicy.max_gap` seconds;
after that, observations have an error until the watch is established and has reported what it missed.

A `Reflector` follows one query, and decides what follows after a watch ends or fails: resume, list again, or
give up. `ClusterWatch` has the reflectors of a cluster.
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
from aioresolve._core.deadline import RETRYABLE_STATUSES, Backoff, RetryPolicy, within_deadline
from aioresolve._core.telemetry import Outage, log_retry, log_watch_restart
from aioresolve.errors import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    PodIndexError,
    ProtocolError,
    ResolveError,
)
from aioresolve.spec import Observation

from .api.errors import WATCH_VERBS, error_from_watch_event, is_expired
from .api.objects import Bookmark, Deleted, EventLines, Failed, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import StreamingResponse

    from .api.client import Found, ObjectAPI
    from .api.queries import Query
    from .cluster_cache import ClusterCache, Store

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

UNRELATED_TO_VERSION = frozenset({401, 403}) | RETRYABLE_STATUSES - {500, 504}
"""Failure statuses whose cause cannot be the version to resume from. After others, the pods are listed.

504 and 500 are retryable, but not with the same version: an API server returns 504 (`Too large resource
version`) for a version that it has not reached, such as after a restore from a backup, and 500 if etcd has
compacted the version.
"""


class WatchPolicy(msgspec.Struct, frozen=True):
    """How watches begin, and their timing in seconds.

    Attributes:
        watch_list: whether a watch begins with an event for each object that exists (WatchList, KEP-3157),
            instead of following a list. This is one request instead of two, which helps a server that gets
            hundreds at once; but thousands of objects arrive later than in a list.
        min_lifetime: the minimum time after which the server should end a watch; five minutes, as in
            client-go. After `max_silence` in addition, the connection is closed.
        max_lifetime: the maximum. Each watch gets a random lifetime in between, so that not all end together.
        max_silence: how long a watch may receive no event before its connection counts as broken. An API
            server sends a bookmark about once a minute.
        response_timeout: how long the response to a watch may take to begin.
        max_initial_silence: how long a watch may take to begin after a list, before the list is reported as
            out of date. With `watch_list`, how long a watch may receive nothing before the bookmark that
            follows the existing objects, before these are listed.
        max_gap: how long the pods count as current after a watch has ended, while no other is established.
        max_replay: how long a watch that is established after a failure may take to report the changes that
            it missed; nothing marks the last of them.
        max_transit: how long to wait for an endpoint that left one EndpointSlice to appear in another one.
        size_interval: the time after which `wait` without a number reads the controllers of the pods again.
        backoff: the waits between attempts after failures.
    """

    watch_list: bool = False
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


class Reflector:
    """Keeps the store of one query up to date.

    It calls `notify` whenever the store, or whether the query fails, may have changed. `timeout` is the
    deadline of a list, in seconds.

    Attributes:
        can_resume: whether there is a version to watch from.
        error: why the query fails at present; None if it does not.
        stale_since: since when it fails.
    """

    def __init__(
        self,
        api: ObjectAPI,
        store: Store[Any],
        notify: Callable[[], None],
        policy: WatchPolicy,
        *,
        timeout: float,
    ) -> None:
        self._api, self._store, self._query, self._notify = api, store, store.query, notify
        self._scope = store.query.scope
        self._policy, self._timeout = policy, timeout
        self.can_resume = False
        self.error: ResolveError | None = None
        self.stale_since: datetime | None = None
        # Makes the query stale without a watch, or current when the watch has caught up.
        self._timer: asyncio.TimerHandle | None = None
        self._opened_at: float | None = None  # of the watch that is open, on the loop's clock
        self._has_received_event = False  # in that watch
        self._was_watched = False
        self._was_just_listed = False  # without a wait or a healthy watch since
        self._current_at: datetime | None = None  # since the last list or watch, while no watch is open
        self._last_watch_failure: ResolveError | None = None  # since a watch was open
        self._denials = 0
        self._backoff = Backoff(policy.backoff)
        self._outage = Outage(logger, f"{self._scope} at {api.host}", server=api.host, scope=self._scope)
        self._store_error: ResolveError | None = None

    async def run(self) -> None:
        """List and watch until the query is given up; never returns.

        Raises:
            ResolveError: why it was given up.
        """
        try:
            while True:
                await self._list_and_watch()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _list_and_watch(self) -> None:
        error: ResolveError | None = None
        try:
            if self.can_resume or not await self._list_by_watch():
                if not self.can_resume:
                    await self._list()
                await self._watch()
        except ResolveError as failure:
            error = failure
        lifetime = self.on_close(anyio.current_time())
        if lifetime is not None:
            reason = "it ended" if error is None else error.summary
            log_watch_restart(self._api.host, self._scope, reason, seconds=lifetime)
            self._expect_watch(self._policy.max_gap)
        if error is not None and (wait := self.on_failure(error)):
            await self._api.sleep(wait)

    # What follows from the end or failure of a watch: resume it, list again, or give up

    def on_list(self) -> None:
        """Record that the pods were listed."""
        self.can_resume = self._was_just_listed = True
        # Without a watch, a list proves only what the pods were at that moment.
        self._current_at = datetime.now(UTC)

    def on_open(self, now: float) -> bool:
        """Record that a watch was opened; return whether it has to report first what was missed."""
        self._opened_at, self._was_watched, self._has_received_event = now, True, False
        if self._timer is not None:
            self._timer.cancel()
        return self.stale_since is not None and not self._was_just_listed

    def on_replay(self) -> None:
        """Record that the watch that is open has reported the changes that were missed."""
        self._current_at = self._last_watch_failure = None
        self._mark_current()
        self._notify()

    def on_close(self, now: float) -> float | None:
        """Record that the watch, if any, was closed; return for how many seconds it was open."""
        if self._opened_at is None:
            return None
        lifetime, self._opened_at = now - self._opened_at, None
        self._current_at = datetime.now(UTC)
        if lifetime > (MIN_LIFETIME if self._has_received_event else HEALTHY_AFTER):
            self._backoff.reset()
            self._was_just_listed = False
        return lifetime

    def on_failure(self, error: ResolveError) -> float:
        """Return the seconds to wait after `error`, and decide whether to resume the watch or to list again.

        Raises:
            ResolveError: `error`, if the query is given up.
        """
        if self._api.is_closed or error is self._store_error or self._should_give_up(error):
            raise error
        wait = self._backoff.wait(error)
        is_silent, could_resume = isinstance(error, DeadlineExceededError), self.can_resume
        if could_resume:
            self._last_watch_failure = error.with_traceback(None)
        # A single failure of a watch is part of normal operation, but not a long time without events.
        if not could_resume or self._backoff.failures > 1 or is_silent:
            self._mark_stale(error)
        # After an expired version (410) or an invalid event, changes were missed. A silent watch may have
        # missed some, and so may the next one: a proxy may hold back all events, and a server that was
        # restored from a backup sends none until it reaches the version to resume from.
        self.can_resume = could_resume and not (
            is_silent
            or isinstance(error, ProtocolError)
            or (isinstance(error, APIError) and error.status not in UNRELATED_TO_VERSION)
        )
        # A version expires without any failure of the server, so list at once, but not in a loop.
        if could_resume and is_expired(error) and not self._was_just_listed:
            wait = 0.0
        else:
            self._was_just_listed = False
        log_retry(error, attempt=self._backoff.failures, wait=wait)
        return wait

    def on_gap(self, seconds: float) -> None:
        """Record that no watch was established within so many seconds."""
        if self.stale_since is None:
            gap = self._broken(f"it is not established after {seconds:g} s")
            self._mark_stale(self._last_watch_failure or gap)

    def _mark_stale(self, error: ResolveError) -> None:
        self.error = error.with_traceback(None)
        self.stale_since = self.stale_since or self._current_at or datetime.now(UTC)
        self._outage.update(error)
        self._notify()

    def _mark_current(self) -> None:
        self.error = self.stale_since = None
        self._outage.update(None)

    def _should_give_up(self, error: ResolveError) -> bool:
        # Before the first list, an error that is not retryable is a mistake of the caller. After it, the
        # request and the credentials were right once, so the cause is an outage: a proxy that redirects to a
        # login page, an identity provider or an API server that is starting, a VPN that is down.
        if not self._store.is_listed:
            return not error.retryable and not is_expired(error)
        if self._was_watched or not isinstance(error, ForbiddenError):
            return False
        self._denials += 1
        return self._denials > MAX_DENIALS

    def _expect_watch(self, seconds: float) -> None:
        """Call `on_gap` unless a watch is opened within so many seconds."""
        self._set_timer(seconds, partial(self.on_gap, seconds))

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, callback)

    def _broken(self, reason: str) -> ConnectionFailedError:
        return ConnectionFailedError(
            f"the watch of {self._scope} by {self._api.host} (from {self._api.source}) broke: {reason}",
            hint=CHECK_SERVER,
            host=self._api.host,
            scope=self._scope,
        )

    # Lists

    async def _list(self) -> None:
        async def request(progress: Progress) -> Found[Any]:
            progress.on_failure = self._mark_stale
            return await self._api.objects(self._query, progress, convert=self._match, verbs=WATCH_VERBS)

        found = await within_deadline(self._timeout, f"the list of {self._scope}", request)
        self._replace(found.items, found.version)
        self._expect_watch(self._policy.max_initial_silence)
        # From now on the watch reports everything, and the next list may be hours away.
        await self._api.close_idle()

    async def _list_by_watch(self) -> bool:
        """Read one watch that begins with the existing objects until it ends.

        Returns:
            Whether it reported the objects. If not, they have to be listed: a list has more retries, and its
            error is the one to report.
        """
        if not (self._policy.watch_list and self._api.sends_initial_events):
            return False
        # A plugin may take longer to return credentials than the server may take to respond.
        prepare = partial(self._api.prepare, self._scope)
        await within_deadline(self._timeout, f"the list of {self._scope}", prepare)
        try:
            await self._watch()
        except ResolveError as error:
            if self.can_resume or error is self._store_error or self._api.is_closed:
                raise
            # Only a refusal says something about the server. What was slow or broken is tried again.
            if isinstance(error, APIError) and error.status in REFUSALS:
                self._api.sends_initial_events = False
            logger.debug(
                "%s: the pods are listed, because a watch did not report them: %s", self._scope, error
            )
            if error.retryable and getattr(error, "retry_after", None):  # from the list too
                await self._api.sleep(self.on_failure(error))
        return self.can_resume

    # Watches

    async def _watch(self) -> None:
        """Read one watch until it ends. If the query is not listed, it begins with the existing objects."""
        policy, is_initial = self._policy, not self.can_resume
        lifetime = random.uniform(policy.min_lifetime, policy.max_lifetime)  # noqa: S311
        async with AsyncExitStack() as stack:
            events: Sequence[WatchEvent[Any]] = ()
            if is_initial:
                async with self._api.limiter:  # as for a list
                    timeout = min(policy.max_initial_silence, policy.response_timeout)
                    watch = await self._open(stack, None, lifetime, timeout)
                    events = await self._read_initial(watch)
            else:
                watch = await self._open(stack, self._store.version, lifetime, policy.response_timeout)
            if self.on_open(watch.opened_at):
                self._set_timer(policy.max_replay, self.on_replay)
            else:
                self.on_replay()
            self._apply(events)
            # If the server does not end the watch in time, the connection is closed from here.
            deadline = watch.opened_at + lifetime + policy.max_silence
            while events := await watch.read(deadline, policy.max_silence):
                self._apply(events)
        if anyio.current_time() >= deadline:
            return
        if not watch.at_boundary:
            raise self._broken("it ended in the middle of an event")
        if anyio.current_time() - watch.opened_at < MIN_LIFETIME:
            raise self._broken(f"it ended within {MIN_LIFETIME:g} s")

    async def _open(
        self, stack: AsyncExitStack, version: str | None, lifetime: float, timeout: float
    ) -> OpenWatch:
        """Return a watch, which `stack` will close; see `ObjectAPI.watch`."""
        with anyio.move_on_after(timeout):
            stream = await stack.enter_async_context(self._api.watch(self._query, version, lifetime))
            return OpenWatch(self._api, self._query, stream)
        raise self._broken(f"the server did not respond within {timeout:g} s")

    async def _read_initial(self, watch: OpenWatch) -> Sequence[WatchEvent[Any]]:
        """Read the events of the existing objects up to the bookmark after them, and put them into the store.

        Returns:
            The events that arrived together with the bookmark, after it.
        """
        found: dict[str, Any] = {}
        silence = min(self._policy.max_initial_silence, self._policy.max_silence)
        deadline = watch.opened_at + self._timeout  # as for a list
        while events := await watch.read(deadline, silence):
            end = next((at for at, each in enumerate(events) if isinstance(each, Bookmark)), len(events))
            self._collect(events[:end], found)
            if len(found) > MAX_OBJECTS:
                raise self._api.invalid_event(self._query, f"more than {MAX_OBJECTS} objects exist")
            if end == len(events):
                continue
            bookmark: Any = events[end]
            if not bookmark.ends_initial_events:  # a server that ignores the parameter
                self._api.sends_initial_events = False
                raise self._broken("it does not mark the end of the existing objects")
            self._replace(list(found.values()), bookmark.object.metadata.resource_version)
            return events[end + 1 :]
        raise self._broken("it did not report all objects")

    def _collect(self, events: Sequence[WatchEvent[Any]], found: dict[str, Any]) -> None:
        """Add what the store keeps of the objects that `events` report to `found`, by `namespace/name`."""
        added: dict[str, Any] = {}
        for event in events:
            changed: Any = event.object
            name = f"{changed.metadata.namespace}/{changed.metadata.name}"
            if isinstance(event, Deleted):  # changes may be reported before the bookmark too
                added.pop(name, None)
                found.pop(name, None)
            else:
                added[name] = changed
        found.update(zip(added, self._match(list(added.values())), strict=True))

    def _apply(self, events: Sequence[WatchEvent[Any]]) -> None:
        """Apply events to the store."""
        self._has_received_event |= bool(events)
        with self._updating_store():
            has_changed = self._store.apply(events)
        if has_changed:
            self._notify()
        if self._store.version_decreased:
            raise self._api.invalid_event(self._query, "its resourceVersion decreased")

    # The store

    def _match(self, objects: list[Any]) -> list[Any]:
        with self._updating_store():
            return self._store.match(objects)

    def _replace(self, found: list[Any], version: str) -> None:
        with self._updating_store():
            self._store.replace(found, version)
        self.on_list()

    @contextmanager
    def _updating_store(self) -> Iterator[None]:
        """Make errors inside the block final: a retry would only return the same pods."""
        try:
            yield
        except ResolveError as error:
            self._store_error = error
            raise


class OpenWatch:
    """The events of one watch.

    Attributes:
        opened_at: when it was opened, on the clock of the event loop.
    """

    def __init__(self, api: ObjectAPI, query: Query[Any], stream: StreamingResponse) -> None:
        self.opened_at = anyio.current_time()
        self._api, self._query, self._stream = api, query, stream
        self._splitter = EventLines(query.resource.decode_event)
        self._failed: Failed | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether no part of an event has been read."""
        return self._splitter.at_boundary

    async def read(self, deadline: float, max_silence: float) -> list[WatchEvent[Any]]:
        """Return the next events; none at the end of the watch, and at the deadline.

        Raises:
            ResolveError: the connection broke, the server reported an error, an event is invalid, or no event
                arrived for `max_silence` seconds.
        """
        # An empty line, or a part of an event, does not show that the server still reports changes.
        with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + max_silence)):
            while self._failed is None and (chunk := await self._stream.read()):
                if events := self._decode(chunk):
                    return events
            if self._failed is None:
                return []
        api, query = self._api, self._query
        if self._failed is not None:
            raise error_from_watch_event(self._failed.object, query, host=api.host, source=api.source)
        if anyio.current_time() >= deadline:
            return []
        raise DeadlineExceededError(
            f"the watch of {query.scope} by {api.host} received no event for {max_silence:g} s",
            hint=CHECK_SERVER,
            timeout=max_silence,
        )

    def _decode(self, chunk: bytes) -> list[WatchEvent[Any]]:
        """Return the events that end in `chunk`, up to an ERROR event, which is the last one."""
        try:
            events = self._splitter.feed(chunk)
        except ValueError as error:
            raise self._api.invalid_event(self._query, str(error)) from error
        for position, event in enumerate(events):
            if isinstance(event, Failed):
                self._failed = event
                return events[:position]
        return events


class ClusterWatch:
    """Keeps the cache of a cluster up to date, with a reflector for each query.

    It puts `observe` into `latest` whenever that may return something new.
    """

    def __init__(
        self,
        api: ObjectAPI,
        cache: ClusterCache,
        latest: LatestValue[Callable[[], Observation]],
        policy: WatchPolicy,
        *,
        timeout: float,
    ) -> None:
        self._cache, self._latest, self._policy = cache, latest, policy
        self._reflectors = [
            Reflector(api, store, self._notify, policy, timeout=timeout) for store in cache.stores.values()
        ]
        self._transit: asyncio.TimerHandle | None = None  # while an object is in transit
        self._last = Observation(None)

    async def run(self) -> None:
        """List and watch until a query is given up; never returns.

        Raises:
            ResolveError: the error of that query.
        """
        calls = [one.run for one in self._reflectors]
        if self._cache.controllers.reads_ended:
            repeat = self._cache.controllers.repeat
            calls.append(partial(repeat, self._policy.size_interval, self._notify_now))
        try:
            await gather(calls, limit=len(calls))
        finally:
            if self._transit is not None:
                self._transit.cancel()

    def observe(self) -> Observation:
        """Return the current observation."""
        now = datetime.now(UTC)
        # While an endpoint moves to another slice, the last state is kept; whether it is stale is not.
        if self._transit is None and self._cache.is_complete:
            try:
                self._last = self._cache.observation(now)
            except PodIndexError as error:
                # Two pods with one index, for example: the state is known again once one of them is deleted.
                self._last = self._last.stale(error, now)
        failures = [(one.stale_since, one.error) for one in self._reflectors if one.stale_since and one.error]
        if not failures:
            return self._last
        since, first = min(failures, key=lambda failure: failure[0])
        return self._last.stale(first, since)

    def _notify(self) -> None:
        """Have the consumer observe, but not while an endpoint moves to another slice."""
        if not self._cache.in_transit:
            self._notify_now()
        elif self._transit is None:
            self._transit = asyncio.get_running_loop().call_later(self._policy.max_transit, self._notify_now)

    def _notify_now(self) -> None:
        if self._transit is not None:
            self._transit.cancel()
            self._transit = None
        self._latest.put(self.observe)
