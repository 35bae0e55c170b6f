"""The coordinator: one task of a job of its own beside the workers, given or started in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve._core.concurrency import Turn
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.spec import host_port

from .tensorflow_runtime import started_server

if TYPE_CHECKING:
    from aioresolve._core.retry import Progress

    from .connections import Connections

__all__ = ["Coordinator"]


class Coordinator:
    """Who coordinates the workers.

    Args:
        name: its job; where None, there is no coordinator.
        address: its `host:port`; where None, a TensorFlow server of this process, started when it is
            first asked for.
    """

    def __init__(self, name: str | None, address: str | None) -> None:
        self._name = name
        self._address = address
        self._server: tuple[Any, str] | None = None
        self._starting = Turn()

    async def jobs(self, connections: Connections, progress: Progress) -> dict[str, str]:
        """Return its job and its address, `host:port`; empty where there is no coordinator.

        Raises:
            MissingDependencyError: a server would have to be started, and TensorFlow is not installed.
            ConfigurationError: this machine's address, where the server listens, is not known.
        """
        if self._name is None:
            return {}
        if self._address is not None:
            return {self._name: self._address}
        async with self._starting:
            if self._server is None:
                host = await self._own_host(connections, progress)
                progress.waiting("coordinator", "TensorFlow has not started its server")
                server, port = await started_server()
                self._server = server, host_port(host, port)
        # A server that runs stays where it is, whoever cannot be asked at present.
        address = self._server[1]
        progress.done("coordinator", address)
        return {self._name: address}

    async def _own_host(self, connections: Connections, progress: Progress) -> str:
        try:
            return await (await connections.metadata()).internal_ip(progress)
        except ResolveError as error:
            if error.retryable:
                raise
            raise ConfigurationError(
                f"where coordinator {self._name!r} listens is not known: give coordinator_address; this VM's"
                f" metadata server did not tell: {error}"
            ) from error
