"""One identity, kept while it is good, and fetched anew once however many ask for it at a time."""

from __future__ import annotations

import copy
from time import monotonic, time
from typing import TYPE_CHECKING

from aioresolve.concurrency import Turn
from aioresolve.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .identity import Identity

__all__ = ["EXPIRY_MARGIN", "IdentitySource"]

EXPIRY_MARGIN = 10.0
"""Seconds before its end at which an identity counts as expired, so that it does not expire on the way."""


class IdentitySource:
    """Fetches an identity, and keeps it until it expires, gets old or is renewed.

    Tasks of several event loops may share one.

    Args:
        fetch: fetches the identity.
        identity: what was fetched before, if anything.
        max_age: seconds after which an identity is fetched anew though it has not expired; None for never.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Identity]],
        identity: Identity | None = None,
        *,
        max_age: float | None = None,
    ) -> None:
        self._fetch = fetch
        self._max_age = max_age
        self._identity = identity
        self._fetched_at = monotonic()
        self._error: ResolveError | None = None
        self._fetches = 0
        self._turn = Turn()

    async def current(self) -> Identity:
        """Return the identity, fetched anew where it is no longer good.

        Raises:
            ResolveError: what the fetch raised.
        """
        identity = self._identity
        return identity if identity is not None and self._is_good(identity) else await self.renewed()

    async def renewed(self) -> Identity:
        """Return an identity whose fetch ended after this call began: its own, or one that others wait for.

        Raises:
            ResolveError: what the fetch raised, to everybody who waited for it.
        """
        fetches = self._fetches
        async with self._turn:
            if self._fetches == fetches:
                # A cancelled fetch ends without a result: the next in turn makes another.
                try:
                    self._identity, self._error = await self._fetch(), None
                except ResolveError as error:
                    self._error = error
                self._fetches += 1
                self._fetched_at = monotonic()
            identity, failure = self._identity, self._error
        if failure is not None:
            # A copy for each: one exception raised by several tasks grows a traceback of them all.
            raise copy.copy(failure) from failure.__cause__
        assert identity is not None
        return identity

    def _is_good(self, identity: Identity) -> bool:
        if identity.expires is not None and time() >= identity.expires - EXPIRY_MARGIN:
            return False
        return self._max_age is None or monotonic() < self._fetched_at + self._max_age
