"""The reflector: what selectors find, kept like the server's own, by a list and a watch for each of them.

After a list, a watch tells each change from the list's version on. It ends all the time: the server ends it
after a while, connections break, versions expire. A watch that ended is resumed from the last version that it
told; where that is too old, a new list takes its place. Nothing is missed, and nothing is told twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aioresolve.concurrency import gather
from aioresolve.errors import ConnectionFailedError, DeadlineExceededError, ResolveError
from aioresolve.retry import RetryPolicy, within_deadline
from aioresolve.spec import Observation
from aioresolve.telemetry import Outage, retried, watch_restarted

from .events import EventLines
from .failures import WATCH, watch_failure
from .feed import SHORT, Feed, reason
from .messages import Failed, with_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aioresolve.concurrency import Newest
    from aioresolve.retry import Progress

    from .api import FoundPods, PodAPI
    from .membership import Membership
    from .query import PodQuery
    from .transport import Stream

__all__ = ["PodReflector", "WatchPolicy"]

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
    """Keeps a `Membership` like the server's own.

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
        membership: Membership,
        queries: Iterable[PodQuery],
        newest: Newest[Callable[[], Observation]],
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
                watch_restarted(self._api.host, feed.query.scope, why, seconds=lived)
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
        retried(error, attempt=feed.failures, wait=wait)
        await self._api.sleep(wait)

    async def _list(self, feed: Feed) -> None:
        def failed(error: ResolveError) -> None:
            feed.is_stale(error)
            self._stir()

        async def ask(progress: Progress) -> FoundPods:
            progress.on_failure = failed
            return await self._api.pods(feed.query, progress, verbs=WATCH)

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
            if self._membership.went_back(feed.query):
                raise self._api.no_event(feed.query, ValueError("its versions went back"))
        for event in events:
            if isinstance(event, Failed):
                status = with_message(event.object, stream.without_secrets(event.object.message))
                raise watch_failure(status, feed.query, host=self._api.host, source=self._api.source)

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
