"""`KubernetesServer` for code without an event loop: it runs in a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from aioresolve.testing.kubernetes.controls import Controls, not_running
from aioresolve.testing.threaded import ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from aioresolve.errors import ConfigurationError
    from aioresolve.testing.kubernetes.cluster import Cluster
    from aioresolve.testing.kubernetes.controls import Listener

__all__ = ["ThreadedKubernetesServer"]


class _Server(Protocol):
    """The part of `KubernetesServer` that needs a loop."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    async def restart(self) -> None: ...

    def down(self) -> AbstractAsyncContextManager[None]: ...

    async def until(self, condition: Callable[[], bool], timeout: float) -> None: ...


class ThreadedKubernetesServer(ThreadedServer[_Server], Controls):
    """What `KubernetesServer.in_thread()` gives: `with` instead of `async with`, everything else the same."""

    def __init__(self, server: _Server, cluster: Cluster, listener: Listener, *, tls: bool) -> None:
        super().__init__(cluster, listener, tls=tls)
        self._server = server

    def restart(self) -> None:
        """Drop every connection and listen again, at the same port and with the same data.

        Raises:
            ConfigurationError: it is not running, or the port has been taken meanwhile.
        """
        self._running.call(self._server.restart)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Refuse connections inside the block: the port is closed, every connection is dropped.

        Raises:
            ConfigurationError: it is not running, or the port has been taken meanwhile.
        """
        with self._running.wrap_async_context_manager(self._server.down()):
            yield

    def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: server.watches == 1`.

        Raises:
            DeadlineExceededError: it does not within `timeout` seconds.
            ConfigurationError: it is not running.
        """
        self._running.call(self._server.until, condition, timeout)

    def _not_running(self) -> ConfigurationError:
        return not_running()
