"""A cache of one token: fetched once for all tasks that need it, and kept while it is fresh."""

from __future__ import annotations

import copy
from time import monotonic
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from aioresolve.errors import ResolveError

from .concurrency import CrossLoopLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Token(Protocol):
    """A token that may expire."""

    @property
    def is_fresh(self) -> bool:
        """Whether it need not be renewed yet."""
        ...

    @property
    def is_valid(self) -> bool:
        """Whether a server will accept it."""
        ...


TokenT = TypeVar("TokenT", bound=Token)


class TokenCache(Generic[TokenT]):
    """Keeps a token while it is fresh. Tasks of several event loops may share one cache.

    Args:
        token: the token, if there is one already.
        max_age: the seconds after which a token is fetched again although it is fresh; None for no limit.

    Attributes:
        token: the last token that was fetched, fresh or not.
    """

    def __init__(self, token: TokenT | None = None, *, max_age: float | None = None) -> None:
        self.token = token
        self._max_age = max_age
        self._fetched_at = monotonic()
        self._error: ResolveError | None = None
        self._num_fetches = 0
        self._lock = CrossLoopLock()

    async def get(self, fetch: Callable[[], Awaitable[TokenT]]) -> TokenT:
        """Return the token, fetched again if it is not fresh.

        If a fetch fails with a retryable error, a token that is still valid is returned.

        Raises:
            ResolveError: the error of `fetch`.
        """
        token = self.token
        is_old = self._max_age is not None and monotonic() >= self._fetched_at + self._max_age
        if token is not None and token.is_fresh and not is_old:
            return token
        try:
            return await self.renew(fetch)
        except ResolveError as error:
            if token is not None and token.is_valid and error.retryable:
                return token
            raise

    async def renew(self, fetch: Callable[[], Awaitable[TokenT]]) -> TokenT:
        """Return a token whose fetch ended after this call began: its own fetch, or that of another task.

        Raises:
            ResolveError: the error of the fetch, for every task that waited for it.
        """
        num_fetches = self._num_fetches
        async with self._lock:
            if self._num_fetches == num_fetches:
                # A cancelled fetch leaves the number unchanged: the next task that waits fetches again.
                try:
                    self.token, self._error = await fetch(), None
                except ResolveError as error:
                    self._error = error
                self._num_fetches += 1
                self._fetched_at = monotonic()
            token, failure = self.token, self._error
        if failure is not None:
            # A copy for each task: an exception raised by several tasks collects the tracebacks of all.
            raise copy.copy(failure) from failure.__cause__
        assert token is not None
        return token
