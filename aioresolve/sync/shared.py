"""What the blocking calls of many threads share: entered by the first of them, and left after the last."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aioresolve._core.shared_context import Enterable, Stay

from .loop_thread import running_portal, started_portal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aioresolve.resolver.base import ClusterResolver

    from .loop_thread import Portal

__all__ = ["Shared", "SharedResolver"]

logger = logging.getLogger(__name__)

EnterableT = TypeVar("EnterableT", bound=Enterable)


class Shared(Generic[EnterableT]):
    """A resolver or a fleet, the stay inside its `async with` that calls share, and a way to make it again.

    Args:
        entered: the resolver or fleet.
        remade: called with it in a forked child if the parent had entered it; returns one to use instead.

    Attributes:
        entered: the one in use.
    """

    def __init__(self, entered: EnterableT, remade: Callable[[EnterableT], EnterableT]) -> None:
        self.entered = entered
        self._remade = remade
        self._stay: _Stay[EnterableT] | None = None

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what its `method` answers. Waits for it, in any thread but the loop's own."""
        return running_portal().run(partial(self.answer, method, *args, **kwargs))

    async def answer(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what its `method` answers. Awaited in the loop."""
        async with self.visit() as entered:
            return await getattr(entered, method)(*args, **kwargs)

    def change(self, change: Callable[[EnterableT], object]) -> None:
        """Let `change` happen to it, entered, in the loop. Waits for it, in any thread but the loop's own."""

        async def changed() -> None:
            async with self.visit() as entered:
                change(entered)

        running_portal().run(changed)

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[EnterableT]:
        """Yield it, entered; it is not left meanwhile. In the loop."""
        async with self._current_stay().visit() as entered:
            yield entered

    async def visit_until_left(self, work: Callable[[EnterableT], Awaitable[object]]) -> None:
        """Do `work`, which may have no end, with it, entered; leaving it cancels that. In the loop."""
        await self._current_stay().visit_until_left(work)

    def close(self) -> None:
        """Leave it, when the calls in flight have their answers; the next call enters it again."""
        portal, stay = started_portal(), self._stay
        if portal is not None and portal.is_running and stay is not None and stay.portal is portal:
            portal.run(stay.left)

    def release(self) -> None:
        """Let it be left soon. Never waits, in whatever thread."""
        if self._stay is not None:
            self._stay.portal.soon(self._stay.leave)

    def _current_stay(self) -> _Stay[EnterableT]:
        portal, stay = started_portal(), self._stay
        assert portal is not None
        if stay is not None and stay.portal is not portal:
            self.entered, stay = self._remade(self.entered), None
        if stay is None or stay.is_over:
            stay = self._stay = _Stay(portal, self.entered, after=stay)
            portal.welcome(stay)
        return stay


class SharedResolver(Shared["ClusterResolver"]):
    """A resolver, shared by calls; the one made again keeps the attributes that may have been set.

    Args:
        resolver: the resolver.
        remade: called in a forked child if the parent had entered the resolver; returns one to use instead.
    """

    def __init__(self, resolver: ClusterResolver, remade: Callable[[], ClusterResolver]) -> None:
        super().__init__(resolver, lambda old: _like(old, remade()))

    @property
    def resolver(self) -> ClusterResolver:
        """The resolver in use."""
        return self.entered


class _Stay(Stay[EnterableT]):
    """A stay in a portal's loop."""

    def __init__(self, portal: Portal, entered: EnterableT, *, after: _Stay[EnterableT] | None) -> None:
        super().__init__(entered, logger=logger, after=after)
        self.portal = portal


def _like(old: ClusterResolver, new: ClusterResolver) -> ClusterResolver:
    """Return `new`, with the attributes that may have been set on `old`."""
    for name in ("task_type", "task_id", "rpc_layer"):
        if getattr(new, name) != getattr(old, name):
            setattr(new, name, getattr(old, name))
    return new
