"""`GoogleServer` for code without an event loop: it runs in a thread of its own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from aioresolve.testing.google.controls import GoogleControls
from aioresolve.testing.threaded import ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.testing.google.cloud import Cloud
    from aioresolve.testing.google.controls import Listeners

__all__ = ["ThreadedGoogleServer"]


class ThreadedGoogleServer(ThreadedServer[AbstractAsyncContextManager[object]], GoogleControls):
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

    def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: len(server.requests) == 2`.

        Raises:
            TimeoutError: it does not within `timeout` seconds.
            RuntimeError: it is not running.
        """
        self._running.call(self._until, condition, timeout)

    def _not_running(self) -> RuntimeError:
        return RuntimeError("this GoogleServer is not running")
