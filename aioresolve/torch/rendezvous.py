"""The handler of torchrun's rendezvous. It is imported only when it is used: its libraries take a while."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve.errors import IncompleteClusterError, MissingDependencyError, ProtocolError, ResolveError
from aioresolve.rendezvous.agent import Agent, ClosedError
from aioresolve.rendezvous.objects import config_map_of
from aioresolve.rendezvous.protocol import Limits
from aioresolve.sync.loop_thread import get_loop_thread

try:
    import torch  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingDependencyError(
        f"aioresolve.torch needs PyTorch, which is not installed ({error})", hint="Run `pip install torch`."
    ) from error

try:
    from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]
    from torch.distributed.elastic.rendezvous import (  # pyright: ignore[reportMissingImports]
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStateError,
        RendezvousStoreInfo,
        RendezvousTimeoutError,
    )
except ImportError as error:
    raise MissingDependencyError(
        f"aioresolve.torch does not support PyTorch {torch.__version__}: {error}",  # pyright: ignore[reportAttributeAccessIssue]
        hint="Install another release of PyTorch, 2.6 or later, with `torch.distributed`.",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.rendezvous.agent import Round
    from aioresolve.rendezvous.protocol import World

T = TypeVar("T")

TIMEOUTS = {"join_timeout": 600, "last_call_timeout": 30, "close_timeout": 30}
"""The defaults of torch's own back ends, in seconds."""

STORE_TIMEOUT = timedelta(seconds=60)
"""How long a node may take to connect to the store of a round, and a response of the store to arrive."""

ATTEMPT_TIMEOUT = timedelta(seconds=5)
"""How long one attempt to connect to the store may take."""

CONNECT_INTERVAL = 0.2
"""Seconds between two attempts, of which some fail at once."""

logger = logging.getLogger("aioresolve.rendezvous")


def _seconds(parameters: RendezvousParameters, key: str) -> float:
    seconds = parameters.get_as_int(key, TIMEOUTS[key])
    if seconds is None or seconds <= 0:
        raise ValueError(f"--rdzv-conf {key}={seconds} is not a positive number of seconds.")
    return float(seconds)


class KubernetesRendezvousHandler(RendezvousHandler):
    """The rendezvous of one torchrun agent.

    Raises:
        ValueError: an option of the torchrun command is invalid.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        namespace, _, name = parameters.endpoint.strip().partition("/")
        if not name and parameters.run_id == "none":
            raise ValueError("The rendezvous has no name. Pass --rdzv-id, the same in all pods of the job.")
        self._run_id: str = parameters.run_id
        self._agent = Agent(
            name or config_map_of(parameters.run_id),
            Limits(parameters.min_nodes, parameters.max_nodes),
            namespace=namespace or None,
            selector=parameters.get("selector"),
            address=parameters.local_addr,
        )
        self._timeouts = {key: _seconds(parameters, key) for key in TIMEOUTS}
        self._port = parameters.get_as_int("port", 0) or 0  # 0 is any that is free
        if not 0 <= self._port <= 65535:
            raise ValueError(f"--rdzv-conf port={self._port} is not in 0 to 65535.")
        self._is_shut_down = False
        self._scope: anyio.CancelScope | None = None  # of the task that follows the objects, once it runs
        # The agent gets only clients of the store: the server ends when it is released here.
        self._server: TCPStore | None = None

    def get_backend(self) -> str:
        """Return the name of the back end: `kubernetes`."""
        return "kubernetes"

    @property
    def _is_open(self) -> bool:
        return self._scope is not None

    def get_run_id(self) -> str:
        """Return the value of `--rdzv-id`."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers use the store of the round, so that they need no other port."""
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Come to the barrier, and return the store, the rank and the size of the next round.

        Raises:
            RendezvousClosedError: the rendezvous is closed.
            RendezvousGracefulExitError: it was closed while this node was not needed.
            RendezvousTimeoutError: too few nodes came in time; the message says why each pod is missing.
            RendezvousConnectionError: the API server, or the store of the round, could not be reached.
            RendezvousStateError: the ConfigMap is not that of a rendezvous.
        """
        while True:
            # With a given port, the server of the last round has to end first. With a free one it keeps
            # running until the next round begins, for nodes whose workers have not ended yet.
            if self._port:
                self._server = None
            server = None if self._port else _new_server(0)
            rank, world = self._call(partial(self._join, self._port if server is None else server.port))
            self._server = None
            if rank == 0:
                self._server = server if server is not None else _new_server(self._port)
            logger.info("%s: rank %d of %d in round %d", self._agent, rank, len(world.nodes), world.round)
            client = self._connect(world)
            if client is not None:
                store = PrefixStore(f"aioresolve/{self._run_id}/{world.round}", client)
                info = RendezvousStoreInfo(world.host, world.port)
                if not self.use_agent_store:  # the workers make one, on a free port
                    info = RendezvousStoreInfo.build(rank, store, local_addr=self._agent.own.host)
                return RendezvousInfo(store, rank, len(world.nodes), info)

    def is_closed(self) -> bool:
        """Return whether a node has closed the rendezvous, or has ended with success."""
        return self._is_open and self._observe(lambda: self._agent.view.closed is not None)

    def set_closed(self) -> None:
        """Close the rendezvous for all nodes, as after a success."""
        self._call(self._close)

    def num_nodes_waiting(self) -> int:
        """Return the number of new and lost nodes for which torchrun must start another round."""
        return self._observe(lambda: self._agent.nodes_waiting) if self._is_open else 0

    def shutdown(self) -> bool:
        """Close the rendezvous if this node takes part in the round; return False if that failed.

        If torchrun has failed, the next attempt of the job may open the rendezvous again. After a success it
        is closed for ever: a pod that starts later must not train alone.
        """
        if not self._is_open or self._is_shut_down:
            return True
        self._is_shut_down = True
        # torchrun calls this while it handles the error of its workers.
        failed = sys.exc_info()[1] is not None
        try:
            self._call(partial(self._end, failed=failed))
        except RendezvousError as error:
            logger.warning("%s was not closed: %s", self._agent, error)
            return False
        finally:
            self._server = None
        return True

    async def _join(self, port: int) -> Round:
        await self._open()
        join, last_call = self._timeouts["join_timeout"], self._timeouts["last_call_timeout"]
        return await self._agent.join(port=port, timeout=join, last_call=last_call)

    async def _open(self) -> None:
        if self._scope is None:
            await self._agent.open()
            self._scope = anyio.CancelScope()
            get_loop_thread().start_service(partial(self._run, self._scope))

    async def _run(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._agent.run()

    async def _close(self) -> None:
        await self._open()
        await self._in_close_timeout(self._agent.close)

    async def _end(self, *, failed: bool) -> None:
        try:
            await self._in_close_timeout(partial(self._agent.end, failed=failed))
        finally:
            if self._scope is not None:
                self._scope.cancel()
            await self._agent.aclose()

    async def _in_close_timeout(self, function: Callable[[], Awaitable[None]]) -> None:
        seconds = self._timeouts["close_timeout"]
        try:
            with anyio.fail_after(seconds):
                await function()
        except TimeoutError as error:
            raise RendezvousConnectionError(
                f"the rendezvous was not closed: the API server did not respond within {seconds:g} s"
                " (--rdzv-conf close_timeout)."
            ) from error

    def _connect(self, world: World) -> TCPStore | None:
        """Return a client of the store of a round; None if the round has ended before that."""
        ends = monotonic() + STORE_TIMEOUT.total_seconds()
        while True:
            try:
                # Short attempts, because the node with rank 0 may be lost at this very moment.
                client = TCPStore(
                    world.host, world.port, is_master=False, wait_for_workers=False, timeout=ATTEMPT_TIMEOUT
                )
            except (RuntimeError, ValueError) as error:
                if self.num_nodes_waiting() > 0:
                    return None
                if monotonic() > ends:
                    raise RendezvousConnectionError(
                        f"the store of round {world.round} does not respond at {world.host}:{world.port}"
                        f" ({error}). Check that the nodes reach each other at this address, or pass another"
                        " one by --local-addr."
                    ) from error
                sleep(CONNECT_INTERVAL)
            else:
                client.set_timeout(STORE_TIMEOUT)
                return client

    def _observe(self, read: Callable[[], T]) -> T:
        async def observe() -> T:
            return read()

        return self._call(observe)

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a function in the event loop thread; raise torch's error for one of ours."""
        try:
            return get_loop_thread().run(function)
        except ClosedError as error:
            if error.is_spare:
                raise RendezvousGracefulExitError(str(error)) from error
            raise RendezvousClosedError(str(error)) from error
        except IncompleteClusterError as error:
            raise RendezvousTimeoutError(str(error)) from error
        except ProtocolError as error:
            raise RendezvousStateError(str(error)) from error
        except ResolveError as error:
            raise RendezvousConnectionError(str(error)) from error


def _new_server(port: int) -> TCPStore:
    """Return the server of a store, which listens on all addresses."""
    try:
        return TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT)
    except RuntimeError as error:
        raise RendezvousConnectionError(
            f"the store cannot listen on port {port} ({error}). Pass another one, or none, by"
            " --rdzv-conf port=..."
        ) from error
