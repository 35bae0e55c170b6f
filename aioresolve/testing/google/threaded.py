"""`GoogleServer` for code without an event loop: it runs in a thread of its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from anyio.from_thread import BlockingPortal, start_blocking_portal

from aioresolve.testing.google.controls import GoogleControls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from aioresolve.testing.google.cloud import Cloud
    from aioresolve.testing.google.controls import Listeners

__all__ = ["ThreadedGoogleServer"]


class ThreadedGoogleServer(GoogleControls):
    """What `GoogleServer.in_thread()` gives: `with` instead of `async with`, everything else the same."""

    def __init__(
        self,
        cloud: Cloud,
        listeners: Listeners,
        server: AbstractAsyncContextManager[object],
        until: Callable[[Callable[[], bool], float], Awaitable[None]],
        *,
        tls: bool,
    ) -> None:
        super().__init__(cloud, listeners, tls=tls)
        self._server = server
        self._until = until
        self._exits = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        """Start the thread and listen; raises as `GoogleServer.__aenter__` does."""
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name="GoogleServer"))
            stack.enter_context(portal.wrap_async_context_manager(self._server))
            self._portal = portal
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._exits.close()

    def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: len(server.requests) == 2`.

        Raises:
            TimeoutError: it does not within `timeout` seconds.
        """
        if self._portal is None:
            raise RuntimeError("this GoogleServer is not running")
        self._portal.call(self._until, condition, timeout)
