"""Loopback servers for code without an event loop: each runs in a loop and a thread of its own."""

from __future__ import annotations

import abc
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TYPE_CHECKING, Generic, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ThreadedServer"]

S = TypeVar("S", bound=AbstractAsyncContextManager[object])


class ThreadedServer(abc.ABC, Generic[S]):
    """`with` in the place of a server's `async with`."""

    _server: S
    _exits: ExitStack
    _portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        """Start the thread and listen; raises as the server's `__aenter__` does."""
        with ExitStack() as stack:
            name = type(self._server).__name__
            portal = stack.enter_context(start_blocking_portal("asyncio", name=name))
            stack.enter_context(portal.wrap_async_context_manager(self._server))
            self._portal = portal
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._exits.close()

    @property
    def _running(self) -> BlockingPortal:
        """The way into the server's loop."""
        if self._portal is None:
            raise self._not_running()
        return self._portal

    @abc.abstractmethod
    def _not_running(self) -> Exception:
        """Return the error of what can only be done to a running server."""
