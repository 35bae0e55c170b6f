"""Secrets: a cache of a token, and values that their repr does not show."""

from __future__ import annotations

import asyncio
import copy
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from aioresolve.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Confidential(msgspec.Struct, frozen=True):
    """A value whose repr shows nothing of it, because parts of it are secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class CrossLoopLock:
    """A lock for tasks of several event loops; those of anyio and asyncio serve the tasks of one loop.

    A task that is cancelled while it waits does not block the others.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_locked = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def __aenter__(self) -> None:
        while True:
            with self._mutex:
                if not self._is_locked:
                    self._is_locked = True
                    return
                released = asyncio.Event()
                self._waiters.append((asyncio.get_running_loop(), released))
            await released.wait()

    async def __aexit__(self, *exc_info: object) -> None:
        with self._mutex:
            self._is_locked = False
            waiters, self._waiters = self._waiters, []
        # All of them, not one: the one chosen might have been cancelled, and nothing would wake the others.
        for loop, released in waiters:
            with suppress(RuntimeError):  # that loop was closed, and its waiting task with it
                loop.call_soon_threadsafe(released.set)


class Token(Protocol):
    """A token that may expire: whether it need not be renewed yet, and whether a server will accept it."""

    @property
    def is_fresh(self) -> bool: ...

    @property
    def is_valid(self) -> bool: ...


TokenT = TypeVar("TokenT", bound=Token)


class TokenCache(Generic[TokenT]):
    """Keeps a token while it is fresh. Tasks of several event loops may share one cache.

    The attribute `token` is the last one that was fetched, fresh or not.

    Args:
        token: the first token, if there is one already.
        min_age: seconds for which a token is kept although it is not fresh.
        max_age: seconds after which a token is fetched again although it is fresh; None for no limit.
    """

    def __init__(
        self, token: TokenT | None = None, *, min_age: float = 0.0, max_age: float | None = None
    ) -> None:
        self.token = token
        self._min_age = min_age
        self._max_age = max_age
        self._fetched_at = monotonic()
        self._error: ResolveError | None = None
        self._num_fetches = 0
        self._lock = CrossLoopLock()

    async def get(self, fetch: Callable[[], Awaitable[TokenT]]) -> TokenT:
        """Return the token, fetched again if it is not fresh, or too old.

        If a fetch fails with a retryable error, a token that is still valid is returned.
        """
        token = self.token
        age = monotonic() - self._fetched_at
        is_old = self._max_age is not None and age >= self._max_age
        if token is not None and (age < self._min_age or (token.is_fresh and not is_old)):
            return token
        try:
            return await self.renew(fetch)
        except ResolveError as error:
            if token is not None and token.is_valid and error.retryable:
                return token
            raise

    async def renew(self, fetch: Callable[[], Awaitable[TokenT]]) -> TokenT:
        """Return a token whose fetch ended after this call began: its own fetch, or that of another task.

        If that fetch fails, every task that waited for it raises its error.
        """
        num_fetches = self._num_fetches
        async with self._lock:
            if self._num_fetches == num_fetches:
                # A cancelled fetch leaves the number unchanged: the next task that waits fetches again.
                try:
                    self.token, self._error = await fetch(), None
                    self._fetched_at = monotonic()
                except ResolveError as error:
                    self._error = error
                self._num_fetches += 1
            token, failure = self.token, self._error
        if failure is not None:
            # A copy for each task: an exception raised by several tasks collects the tracebacks of all.
            raise copy.copy(failure) from failure.__cause__
        assert token is not None
        return token
