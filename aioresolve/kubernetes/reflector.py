"""`Feed`: how it stands with one query's list and watch, and what follows when one of them fails.

The reflector: what selectors find, kept like the server's own, by a list and a watch for each of them.

After a list, a watch tells each change from the list's version on. It ends all the time: the server ends it
after a while, connections break, versions expire. A watch that ended is resumed from the last version that it
told; where that is too old, a new list takes its place. Nothing is missed, and nothing is told twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import within_deadline
from aioresolve._core.retry import Backoff, RetryPolicy
from aioresolve._core.telemetry import Outage, record_retry, record_watch_restart
from aioresolve.errors import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.spec import Observation

from .api_errors import WATCH_VERBS, error_from_watch_event, is_expired
from .objects import EventLines, Failed, with_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress

    from .client import FoundPods, PodAPI, Stream
    from .objects import PodQuery
    from .pod_cache import PodCache

__all__ = ["SHORT", "Feed", "PodReflector", "WatchPolicy", "reason"]

SHORT = 0.5
"""Seconds that a watch goes on at least, unless something is wrong with it, whatever it tells."""

HEALTHY = 5.0
"""Seconds after which a watch that tells nothing is deemed well: what fails then begins with short waits."""

REFUSALS = 5
"""How often in a row a query that was answered before may be refused: a starting server knows nobody yet."""

FAILED_RESUMES = 3
"""How often a server may fail, or fall silent, before the version is given up for a new list.

That is, without telling anything in between: a server that was restored from a backup tells nothing until it
has come to the version that it is asked for.
"""

BUSY = frozenset({401, 403, 408, 429, 502, 503})
"""Statuses that say nothing about the version that a watch was to be resumed from."""


class Feed:
    """One query's list and watch.

    Args:
        query: what is asked.
        waits: between attempts after failures.
        outage: is told when the query cannot be answered, and when it can again.

    Attributes:
        query: what is asked.
        is_listed: whether there is a version to watch from.
        began_at: when the watch that is under way began to be answered, in seconds of the loop's clock; None
            while none is.
        has_told: whether that one has told anything.
        failures: how often in a row it failed.
        error: why the query cannot be answered at present.
        stale_since: since when that is so.
    """

    def __init__(self, query: PodQuery, waits: RetryPolicy, outage: Outage) -> None:
        self.query = query
        self.is_listed = False
        self.began_at: float | None = None
        self.has_told = False
        self.error: ResolveError | None = None
        self.stale_since: datetime | None = None
        self._was_listed = self._was_just_listed = False
        self._refusals = 0
        self._fruitless = 0
        self._backoff = Backoff(waits)
        self._outage = outage

    @property
    def failures(self) -> int:
        """How often in a row it failed."""
        return self._backoff.failures

    def listed(self) -> None:
        """Note that there is a version to watch from."""
        self.is_listed = self._was_listed = self._was_just_listed = True
        self._fruitless = 0
        self._answered()

    def begins(self, now: float) -> bool:
        """Note that a watch is being answered; return whether the query could not be before."""
        was_stale = self.stale_since is not None
        self.began_at, self.has_told, self._refusals = now, False, 0
        self._answered()
        return was_stale

    def tells(self) -> None:
        """Note that the watch tells something."""
        self.has_told = True
        self._fruitless = 0

    def ends(self, now: float) -> float | None:
        """Note that the watch is over; return the seconds that it lived, or None if there was none."""
        if self.began_at is None:
            return None
        lived, self.began_at = now - self.began_at, None
        if lived > (SHORT if self.has_told else HEALTHY):
            self._backoff.reset()
            self._was_just_listed = False
        return lived

    def is_stale(self, error: ResolveError) -> None:
        """Note that the query cannot be answered at present."""
        self.error = error.with_traceback(None)
        self.stale_since = self.stale_since or datetime.now(UTC)
        self._outage.update(error)

    def wait_after(self, error: ResolveError) -> float:
        """Return the seconds to wait after a failure, and decide whether a list follows or a watch.

        Raises:
            ResolveError: `error`, if it does not pass.
        """
        # Who knows the name that was found before may be away for a while, as with a VPN that is down.
        is_nameless = self._was_listed and isinstance(error.__cause__, socket.gaierror)
        may_pass = error.retryable or is_expired(error) or is_nameless
        self._refusals = 0 if may_pass else self._refusals + 1
        if self._refusals and (not self._was_listed or self._refusals > REFUSALS):
            raise error
        wait = self._backoff.wait(error)
        if not self.is_listed or self.failures > 1:
            self.is_stale(error)
        self._fruitless += _may_be_the_versions_fault(error)
        # Lost is what was told in between, or the version itself.
        is_lost = isinstance(error, ProtocolError) or is_expired(error)
        if self.is_listed and (is_lost or self._fruitless >= FAILED_RESUMES):
            self.is_listed = False
            # An expired version is nobody's fault: the list in its place is wanted at once.
            return 0.0 if is_expired(error) and not self._was_just_listed else wait
        return wait

    def _answered(self) -> None:
        self.error = self.stale_since = None
        self._outage.update(None)


def _may_be_the_versions_fault(error: ResolveError) -> bool:
    """Whether it may be because of the version to resume from that a server fails, or tells nothing."""
    if isinstance(error, APIError):
        return error.status not in BUSY
    return isinstance(error, DeadlineExceededError)


def reason(error: ResolveError) -> str:
    """Return in one word why a watch was over that `error` ended."""
    match error:
        case _ if is_expired(error):
            return "expired"
        case UnauthorizedError():
            return "unauthorized"
        case DeadlineExceededError():
            return "silent"
        case ConnectionFailedError():
            return "broken"
    return "failed"


logger = logging.getLogger("aioresolve.watch")

WAITS = RetryPolicy(first_wait=0.5, longest_wait=30.0)


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The times of a watch, in seconds.

    Attributes:
        shortest: the least time after which the server is to end a watch; as in client-go, five minutes.
        longest: the greatest; each watch takes one in between, so that many do not end together.
        silence: how long a watch may tell nothing, not even a bookmark, of which an API server sends one a
            minute. Whoever is silent for longer is taken for gone.
        answering: how long an answer may take to begin.
        transit: how long a pod that left one selector by its labels may take to appear in another.
        waits: between attempts after failures.
    """

    shortest: float = 300.0
    longest: float = 600.0
    silence: float = 150.0
    answering: float = 30.0
    transit: float = 0.05
    waits: RetryPolicy = WAITS


class PodReflector:
    """Keeps a `PodCache` like the server's own.

    Args:
        api: the API server.
        membership: what is kept.
        queries: what to ask for it.
        newest: where `observed` is put whenever it may return something else.
        policy: the times.
        timeout: seconds that a list may take.
    """

    def __init__(
        self,
        api: PodAPI,
        membership: PodCache,
        queries: Iterable[PodQuery],
        newest: LatestValue[Callable[[], Observation]],
        policy: WatchPolicy,
        *,
        timeout: float,
    ) -> None:
        self._api = api
        self._membership = membership
        self._policy = policy
        self._timeout = timeout
        self._feeds = [Feed(query, policy.waits, self._outage(query)) for query in queries]
        self._newest = newest
        self._in_transit: asyncio.TimerHandle | None = None
        self._last = Observation(None)
        self._fault: ResolveError | None = None

    async def run(self) -> None:
        """List and watch; never ends.

        Raises:
            ResolveError: a failure that does not pass.
        """
        try:
            await gather([partial(self._keep, feed) for feed in self._feeds], limit=len(self._feeds))
        finally:
            self._forget_transit()

    def observed(self) -> Observation:
        """Return what is to be seen now.

        Raises:
            ResolveError: an `address` callable failed.
        """
        if self._in_transit is not None:
            return self._last
        now = datetime.now(UTC)
        failing = [feed for feed in self._feeds if feed.stale_since is not None]
        if self._membership.is_complete:
            try:
                self._last = self._membership.observation(now)
            except ResolveError as error:
                # Pods that claim one index: what they say together makes no state, until one of them goes.
                if not error.retryable:
                    raise
                self._last = self._last.stale(error, now)
        if not failing:
            return self._last
        first = min(failing, key=lambda feed: feed.stale_since or now)
        assert first.error is not None
        return self._last.stale(first.error, first.stale_since or now)

    async def _keep(self, feed: Feed) -> None:
        """List and watch for one query, again and again."""
        while True:
            error: ResolveError | None = None
            try:
                if not feed.is_listed:
                    await self._list(feed)
                await self._watch(feed)
            except ResolveError as failure:
                error = failure
            lived = feed.ends(anyio.current_time())
            if lived is not None:
                why = "ended" if error is None else reason(error)
                record_watch_restart(self._api.host, feed.query.scope, why, seconds=lived)
            if error is not None:
                await self._recover(feed, error)

    async def _recover(self, feed: Feed, error: ResolveError) -> None:
        """Wait until the next attempt is due; to a connection that is closed meanwhile, it is at once.

        Raises:
            ResolveError: `error`, if it does not pass.
        """
        if self._api.is_closed or error is self._fault:
            raise error
        wait = feed.wait_after(error)
        if feed.stale_since is not None:
            self._stir()
        record_retry(error, attempt=feed.failures, wait=wait)
        await self._api.sleep(wait)

    async def _list(self, feed: Feed) -> None:
        def failed(error: ResolveError) -> None:
            feed.is_stale(error)
            self._stir()

        async def ask(progress: Progress) -> FoundPods:
            progress.on_failure = failed
            return await self._api.pods(feed.query, progress, verbs=WATCH_VERBS)

        found = await within_deadline(self._timeout, f"the list of {feed.query.scope}", ask)
        with self._taking_in():
            self._membership.replace(feed.query, found.pods, found.version)
        feed.listed()
        self._stir()
        # From here on a watch tells all there is: nobody lists for a long time.
        await self._api.close_idle()

    async def _watch(self, feed: Feed) -> None:
        """Follow one watch to its end."""
        lifetime = random.uniform(self._policy.shortest, self._policy.longest)  # noqa: S311
        lines = EventLines()
        async with AsyncExitStack() as stack:
            stream = None
            with anyio.move_on_after(self._policy.answering):
                version = self._membership.version(feed.query)
                watching = self._api.watching(feed.query, version, lifetime)
                stream = await stack.enter_async_context(watching)
            if stream is None:
                raise self._broken(feed, f"it was not answered within {self._policy.answering:g} s")
            began = anyio.current_time()
            if feed.begins(began):
                self._stir()
            # A server that does not end the watch in time is not heard any more.
            until = began + lifetime + self._policy.silence
            while chunk := await self._chunk(stream, feed, until):
                self._take(feed, lines, chunk, stream)
        if not lines.at_boundary:
            raise self._broken(feed, "it ended in the middle of an event")
        if anyio.current_time() - began < SHORT:
            raise self._broken(feed, f"it ended within {SHORT:g} s")

    async def _chunk(self, stream: Stream, feed: Feed, until: float) -> bytes:
        """Return the next bytes of the watch, empty at its end."""
        silence = self._policy.silence
        with anyio.CancelScope(deadline=min(until, anyio.current_time() + silence)):
            return await stream.read()
        raise DeadlineExceededError(
            f"nothing was heard of the watch of {feed.query.scope} by {self._api.host} for {silence:g} s;"
            " see to the server, and to what is between",
            timeout=silence,
        )

    def _take(self, feed: Feed, lines: EventLines, chunk: bytes, stream: Stream) -> None:
        """Let the events in `chunk`, of `stream`, happen here."""
        try:
            events = lines.feed(chunk)
        except ValueError as error:
            raise self._api.no_event(feed.query, error) from error
        told = [event for event in events if not isinstance(event, Failed)]
        if told:
            feed.tells()
            with self._taking_in():
                has_changed = self._membership.apply(feed.query, told)
            if has_changed:
                self._stir()
            if self._membership.version_decreased(feed.query):
                raise self._api.no_event(feed.query, ValueError("its versions went back"))
        for event in events:
            if isinstance(event, Failed):
                status = with_message(event.object, stream.without_secrets(event.object.message))
                raise error_from_watch_event(status, feed.query, host=self._api.host, source=self._api.source)

    @contextmanager
    def _taking_in(self) -> Iterator[None]:
        """Let an error inside the block be final: to ask again would only bring the same pods again."""
        try:
            yield
        except ResolveError as error:
            self._fault = error
            raise

    def _stir(self) -> None:
        """Let the consumer look, but not while a pod that was given another label is in no selector."""
        if self._membership.in_transit:
            if self._in_transit is None:
                loop = asyncio.get_running_loop()
                self._in_transit = loop.call_later(self._policy.transit, self._show)
            return
        self._show()

    def _show(self) -> None:
        self._forget_transit()
        self._newest.put(self.observed)

    def _forget_transit(self) -> None:
        if self._in_transit is not None:
            self._in_transit.cancel()
            self._in_transit = None

    def _outage(self, query: PodQuery) -> Outage:
        host = self._api.host
        return Outage(logger, f"{query.scope} at {host}", server=host, scope=query.scope)

    def _broken(self, feed: Feed, why: str) -> ConnectionFailedError:
        return ConnectionFailedError(
            f"the watch of {feed.query.scope} by {self._api.host} (from {self._api.source}) broke: {why};"
            " see to the server, and to what is between",
            host=self._api.host,
            scope=feed.query.scope,
        )
