"""`KubernetesServer` for code without an event loop: it runs in a thread of its own."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from anyio.from_thread import BlockingPortal, start_blocking_portal

from aioresolve.testing.kubernetes.controls import Controls, not_running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

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


class ThreadedKubernetesServer(Controls):
    """What `KubernetesServer.in_thread()` gives: `with` instead of `async with`, everything else the same."""

    def __init__(self, server: _Server, cluster: Cluster, listener: Listener, *, tls: bool) -> None:
        super().__init__(cluster, listener, tls=tls)
        self._server = server
        self._exits = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        """Start the thread and listen; raises as `KubernetesServer.__aenter__` does."""
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name="KubernetesServer"))
            stack.enter_context(portal.wrap_async_context_manager(self._server))
            self._portal = portal
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._exits.close()

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

    @property
    def _running(self) -> BlockingPortal:
        if self._portal is None:
            raise not_running()
        return self._portal
