"""Watches of KubernetesClusterResolver while pods change, connections break and the server restarts."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import anyio
import anyio.abc
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve._core.retry import RetryPolicy
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.api.client import ObjectAPI
from aioresolve.kubernetes.watch.reflector import WatchPolicy
from tests.kubernetes.convergence import (
    CONFIGS,
    Finish,
    Follower,
    Put,
    Remove,
    ResolverConfig,
    is_being_deleted,
    is_subsequence,
    truth,
    truth_of,
    writes,
)

from .servers import write_kubeconfig
from .states import manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kubernetes.convergence import Truth

    from .client import Client
    from .servers import ApiServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

POLICY = WatchPolicy(
    max_silence=1.0, response_timeout=5.0, backoff=RetryPolicy(first_wait=0.2, longest_wait=2.0)
)
"""A real server sends one bookmark per minute, so a watch that is silent for a second may be healthy."""

CONVERGING = 30.0
"""Seconds within which a watch shows the current pods."""

TIMEOUT = 3.0
"""The timeout in seconds of a list, which applies to silent connections too."""


@dataclass(frozen=True)
class Drop:
    """Every connection breaks."""


@dataclass(frozen=True)
class Mute:
    """Every connection remains open, and no more data passes."""


@dataclass(frozen=True)
class Pause:
    """The client has time to catch up."""

    seconds: float


steps = st.one_of(writes, writes, st.just(Drop()), st.just(Mute()), st.builds(Pause, st.floats(0.0, 0.05)))
schedules = st.lists(st.lists(steps, min_size=1, max_size=8), min_size=1, max_size=3)


class TCPProxy:
    """Forwards connections to an API server, and breaks or mutes them.

    Attributes:
        url: its base URL, `https://127.0.0.1:port`, for which the server's own certificate is valid.
    """

    def __init__(self, server: ApiServer) -> None:
        self.url = ""
        self._target = int(server.url.rpartition(":")[2])
        self._connections: set[anyio.CancelScope] = set()
        self._muted: set[anyio.CancelScope] = set()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[TCPProxy]:
        """Forward until the end of the block."""
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            self.url = f"https://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
            group.start_soon(listener.serve, self._serve)
            yield self
            group.cancel_scope.cancel()

    def drop(self) -> None:
        """Break every connection."""
        for connection in self._connections:
            connection.cancel()

    def mute(self) -> None:
        """Stop forwarding data on the existing connections."""
        self._muted |= self._connections

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        with anyio.CancelScope() as connection:
            self._connections.add(connection)
            # If the server is down, or one side disconnects, the connection ends.
            with contextlib.suppress(OSError):
                async with (
                    client,
                    await anyio.connect_tcp("127.0.0.1", self._target) as server,
                    anyio.create_task_group() as group,
                ):
                    group.start_soon(self._forward, client, server, connection)
                    group.start_soon(self._forward, server, client, connection)
        self._connections.remove(connection)
        self._muted.discard(connection)

    async def _forward(
        self, source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, connection: anyio.CancelScope
    ) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            while True:
                data = await source.receive()
                if connection in self._muted:
                    await anyio.sleep_forever()
                await sink.send(data)
        connection.cancel()


class Scenario:
    """The pods of one schedule, the expected states, and the follower of the watch."""

    def __init__(
        self, server: ApiServer, admin: Client, proxy: TCPProxy, config: ResolverConfig, follower: Follower
    ) -> None:
        self.server, self.admin, self.proxy = server, admin, proxy
        self.config, self.follower = config, follower
        self.history: list[Truth | None] = []

    async def pods(self) -> list[dict[str, Any]]:
        """Return the pods of this test, as the server lists them."""
        listed = await self.admin.list_pods(None, labelSelector=f"test={self.server.namespace}")
        pods: list[dict[str, Any]] = listed.body["items"]
        return pods

    async def record(self) -> None:
        """Record the expected state of the current pods."""
        self.history.append(truth(await self.pods(), self.config))

    async def apply(self, step: Any) -> None:
        match step:
            case Put() | Remove() | Finish():
                await self.write(step)
            case Drop():
                self.proxy.drop()
            case Mute():
                self.proxy.mute()
            case Pause(seconds):
                await anyio.sleep(seconds)

    async def write(self, step: Put | Remove | Finish) -> None:
        """Apply a write, if the pod's state permits it."""
        place = {"name": step.name, "namespace": f"{self.server.namespace}-{step.namespace}"}
        old = next((pod for pod in await self.pods() if place.items() <= pod["metadata"].items()), None)
        match step:
            case Put():
                if old is not None and is_being_deleted(old):
                    await self.admin.delete_pod(place, grace=0)
                    await self.record()
                    old = None
                await self._put(step, place, is_new=old is None)
            case Remove(gracefully=True) if old is not None and not is_being_deleted(old):
                await self.admin.delete_pod(place, grace=30)
            case Remove() if old is not None:
                await self.admin.delete_pod(place, grace=0)
            case Finish() if old is not None and is_being_deleted(old):
                await self.admin.delete_pod(place, grace=0)
        await self.record()

    async def _put(self, step: Put, place: dict[str, str], *, is_new: bool) -> None:
        labels = {**step.labels, "test": self.server.namespace}
        if is_new:
            await self.admin.create_pod(manifest(place["name"], place["namespace"], labels=labels))
        else:
            gone = {label: None for label in ("app", "role") if label not in labels}
            await self.admin.relabel_pod(place, {**labels, **gone})
        await self.record()
        status = {
            "phase": step.phase,
            "podIP": step.address,
            "podIPs": [{"ip": step.address}] if step.address else None,
            "conditions": [{"type": "Ready", "status": str(step.ready)}],
        }
        await self.admin.patch_pod(place, {"status": status}, subresource="/status")

    async def wait_until_converged(self) -> None:
        """Wait until the follower shows the expected state."""
        expected, states = truth(await self.pods(), self.config), self.follower.states
        if expected is None:
            return
        if not await self.follower.until(
            lambda: bool(states) and truth_of(states[-1]) == expected, CONVERGING
        ):
            seen = truth_of(states[-1]) if states else None
            raise AssertionError(f"after {CONVERGING:g} s the watch shows {seen}, the server {expected}")

    async def clear(self) -> None:
        """Delete every pod of this test."""
        for pod in await self.pods():
            await self.admin.delete_pod(pod["metadata"], grace=0)


@asynccontextmanager
async def open_scenario(
    server: ApiServer,
    folder: Path,
    config: ResolverConfig,
    pods: list[Any],
    policy: WatchPolicy = POLICY,
    *,
    watch_list: bool = True,
) -> AsyncIterator[Scenario]:
    """Start a watch for `config`, through its own proxy, of a server with these initial pods.

    With `watch_list` the watch begins with the pods if the server supports that, otherwise they are listed.
    """
    space = server.namespace
    prefixed = ResolverConfig(
        {job: [f"{each},test={space}" for each in selectors] for job, selectors in config.jobs.items()},
        namespaces(space, config),
        config.order_by,
    )
    follower = Follower()
    async with (
        TCPProxy(server).listen() as proxy,
        server.client() as admin,
        asyncio.TaskGroup() as group,
        AsyncExitStack() as stack,
    ):
        scenario = Scenario(server, admin, proxy, prefixed, follower)
        await scenario.clear()
        for put in pods:
            await scenario.write(put)
        scenario.history.clear()
        await scenario.record()
        path = write_kubeconfig(folder, proxy.url, server.ca_pem, user="admin", token=server.tokens["admin"])
        resolver = KubernetesClusterResolver(
            prefixed.jobs,
            namespace=prefixed.namespace,
            order_by=prefixed.order_by,
            kubeconfig=path,
            timeout=TIMEOUT,
        )
        resolver.watch_policy = policy
        stack.enter_context(mock.patch.object(ObjectAPI, "sends_initial_events", watch_list))
        following = group.create_task(follower.follow(resolver.watch()))
        stack.callback(following.cancel)
        await scenario.wait_until_converged()
        yield scenario
    if prefixed.lists == 1:
        assert is_subsequence([truth_of(state) for state in follower.states], scenario.history)


def namespaces(space: str, config: ResolverConfig) -> str | tuple[str, ...] | None:
    """Return the namespaces of a config, prefixed with that of the test."""
    match config.namespace:
        case None:
            return None
        case str(name):
            return f"{space}-{name}"
        case names:
            return tuple(f"{space}-{name}" for name in names)


@pytest.fixture
async def prepared_server(server: ApiServer) -> ApiServer:
    """An API server with the namespaces of the schedules."""
    async with server.client() as admin:
        for name in ("ml", "web", "spare"):
            await server.create_namespace(admin, f"{server.namespace}-{name}")
    return server


@given(
    config=st.sampled_from(CONFIGS),
    before=st.lists(writes, max_size=4),
    schedule=schedules,
    watch_list=st.booleans(),
)
@settings(
    max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_watch_converges_to_the_pods_of_the_server(
    prepared_server: ApiServer,
    tmp_path: Path,
    config: ResolverConfig,
    before: list[Any],
    schedule: list[list[Any]],
    watch_list: bool,
) -> None:
    async with open_scenario(prepared_server, tmp_path, config, before, watch_list=watch_list) as scenario:
        for steps in schedule:
            for step in steps:
                await scenario.apply(step)
            await scenario.wait_until_converged()


A, B = Put("w-0", "ml", "a", None, "Running", 1, True), Put("w-2", "ml", "a", None, "Running", 1, True)


both_starts = pytest.mark.parametrize("watch_list", [True, False])


@both_starts
async def test_watch_survives_a_restart_of_the_server(
    prepared_server: ApiServer, tmp_path: Path, watch_list: bool
) -> None:
    async with open_scenario(prepared_server, tmp_path, CONFIGS[0], [A], watch_list=watch_list) as scenario:
        for write in (B, Remove(A.name, A.namespace, gracefully=False)):
            await prepared_server.stop()
            await prepared_server.start()
            await scenario.write(write)
            await scenario.wait_until_converged()
        assert [len(truth_of(state)["worker"]) for state in scenario.follower.states] == [1, 2, 1]


@both_starts
async def test_watch_survives_the_expiry_of_its_version(
    prepared_server: ApiServer, tmp_path: Path, watch_list: bool
) -> None:
    async with open_scenario(prepared_server, tmp_path, CONFIGS[0], [A], watch_list=watch_list) as scenario:
        scenario.proxy.mute()
        await scenario.write(B)
        await prepared_server.compact()
        await prepared_server.stop()
        await prepared_server.start()
        await scenario.write(Remove(A.name, A.namespace, gracefully=False))
        await scenario.wait_until_converged()


async def test_pod_moving_between_selectors_is_always_in_exactly_one(
    prepared_server: ApiServer, tmp_path: Path
) -> None:
    config = ResolverConfig({"worker": ["app=a"], "ps": ["app=b"]}, "ml", "name")
    # A busy server may send the event to one watch long before the other.
    patient = msgspec.structs.replace(POLICY, max_transit=5.0)
    async with open_scenario(prepared_server, tmp_path, config, [A], patient) as scenario:
        for app in ("b", "a", "b"):
            await scenario.write(Put(A.name, A.namespace, app, None, "Running", 1, True))
            await scenario.wait_until_converged()
        counts = [
            {job: len(tasks) for job, tasks in truth_of(state).items()} for state in scenario.follower.states
        ]
        assert all(sum(count.values()) == 1 for count in counts), counts
