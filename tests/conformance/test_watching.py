"""What a watch makes of an API server while pods, connections and the server itself come and go."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve._core.retry import RetryPolicy
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.reflector import WatchPolicy
from tests.kubernetes.convergence import (
    QUESTIONS,
    Finish,
    Follower,
    Put,
    Question,
    Remove,
    is_leaving,
    is_subsequence,
    shown,
    truth,
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

POLICY = WatchPolicy(silence=1.0, answering=5.0, waits=RetryPolicy(first_wait=0.2, longest_wait=2.0))
"""A real server sends a bookmark a minute: who is taken for gone after a second may be well."""

CONVERGING = 30.0
"""Seconds within which a watch shows what there is."""

TIMEOUT = 3.0
"""Seconds that a list may take, over a connection that has fallen silent as well."""


@dataclass(frozen=True)
class Drop:
    """Every connection breaks."""


@dataclass(frozen=True)
class Mute:
    """Every connection that is there stays, and nothing comes over it any more."""


@dataclass(frozen=True)
class Pause:
    """The client has a moment to itself."""

    seconds: float


steps = st.one_of(writes, writes, st.just(Drop()), st.just(Mute()), st.builds(Pause, st.floats(0.0, 0.05)))
schedules = st.lists(st.lists(steps, min_size=1, max_size=8), min_size=1, max_size=3)


class Wire:
    """Forwards connections to an API server, and breaks them or lets them fall silent.

    Attributes:
        url: where it listens, `https://127.0.0.1:port`; the server's own certificate is valid for that.
    """

    def __init__(self, server: ApiServer) -> None:
        self.url = ""
        self._target = int(server.url.rpartition(":")[2])
        self._connections: set[anyio.CancelScope] = set()
        self._muted: set[anyio.CancelScope] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Wire]:
        """Forward until the end of the block."""
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            self.url = f"https://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
            group.start_soon(listener.serve, self._connected)
            yield self
            group.cancel_scope.cancel()

    def drop(self) -> None:
        """Break every connection."""
        for connection in self._connections:
            connection.cancel()

    def mute(self) -> None:
        """Let nothing pass any more over the connections that are there."""
        self._muted |= self._connections

    async def _connected(self, client: anyio.abc.SocketStream) -> None:
        with anyio.CancelScope() as connection:
            self._connections.add(connection)
            # A server that is down, or an end that breaks off, is the end of the connection.
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


class World:
    """The pods of one schedule, the truth of them, and who follows."""

    def __init__(
        self, server: ApiServer, admin: Client, wire: Wire, question: Question, follower: Follower
    ) -> None:
        self.server, self.admin, self.wire = server, admin, wire
        self.question, self.follower = question, follower
        self.history: list[Truth | None] = []

    async def pods(self) -> list[dict[str, Any]]:
        """The pods of this test, as the server lists them."""
        listed = await self.admin.list_pods(None, labelSelector=f"test={self.server.namespace}")
        pods: list[dict[str, Any]] = listed.body["items"]
        return pods

    async def note(self) -> None:
        """Note what is true now."""
        self.history.append(truth(await self.pods(), self.question))

    async def happen(self, step: Any) -> None:
        match step:
            case Put() | Remove() | Finish():
                await self.write(step)
            case Drop():
                self.wire.drop()
            case Mute():
                self.wire.mute()
            case Pause(seconds):
                await anyio.sleep(seconds)

    async def write(self, step: Put | Remove | Finish) -> None:
        """Let a write happen, if it can."""
        place = {"name": step.name, "namespace": f"{self.server.namespace}-{step.namespace}"}
        old = next((pod for pod in await self.pods() if place.items() <= pod["metadata"].items()), None)
        match step:
            case Put():
                if old is not None and is_leaving(old):
                    await self.admin.delete_pod(place, grace=0)
                    await self.note()
                    old = None
                await self._put(step, place, is_new=old is None)
            case Remove(gracefully=True) if old is not None and not is_leaving(old):
                await self.admin.delete_pod(place, grace=30)
            case Remove() if old is not None:
                await self.admin.delete_pod(place, grace=0)
            case Finish() if old is not None and is_leaving(old):
                await self.admin.delete_pod(place, grace=0)
        await self.note()

    async def _put(self, step: Put, place: dict[str, str], *, is_new: bool) -> None:
        labels = {**step.labels, "test": self.server.namespace}
        if is_new:
            await self.admin.create_pod(manifest(place["name"], place["namespace"], labels=labels))
        else:
            gone = {label: None for label in ("app", "role") if label not in labels}
            await self.admin.relabel_pod(place, {**labels, **gone})
        await self.note()
        status = {
            "phase": step.phase,
            "podIP": step.address,
            "podIPs": [{"ip": step.address}] if step.address else None,
            "conditions": [{"type": "Ready", "status": str(step.ready)}],
        }
        await self.admin.patch_pod(place, {"status": status}, subresource="/status")

    async def settle(self) -> None:
        """Wait until the follower sees what there is."""
        wanted, states = truth(await self.pods(), self.question), self.follower.states
        if wanted is None:
            return
        if not await self.follower.until(lambda: bool(states) and shown(states[-1]) == wanted, CONVERGING):
            seen = shown(states[-1]) if states else None
            raise AssertionError(f"{CONVERGING:g} s later the watch shows {seen}, the server {wanted}")

    async def clear(self) -> None:
        """Let there be no pods."""
        for pod in await self.pods():
            await self.admin.delete_pod(pod["metadata"], grace=0)


@asynccontextmanager
async def watched(
    server: ApiServer, folder: Path, question: Question, pods: list[Any], policy: WatchPolicy = POLICY
) -> AsyncIterator[World]:
    """A watch of `question`, over a wire of its own, of a server that holds `pods` at first."""
    space = server.namespace
    asked = Question(
        {job: [f"{each},test={space}" for each in selectors] for job, selectors in question.jobs.items()},
        namespaces(space, question),
        question.order_by,
    )
    follower = Follower()
    async with (
        Wire(server).listening() as wire,
        server.client() as admin,
        asyncio.TaskGroup() as group,
        AsyncExitStack() as stack,
    ):
        world = World(server, admin, wire, asked, follower)
        await world.clear()
        for put in pods:
            await world.write(put)
        world.history.clear()
        await world.note()
        path = write_kubeconfig(folder, wire.url, server.ca_pem, user="admin", token=server.tokens["admin"])
        resolver = KubernetesClusterResolver(
            asked.jobs, namespace=asked.namespace, order_by=asked.order_by, kubeconfig=path, timeout=TIMEOUT
        )
        resolver.watch_policy = policy
        following = group.create_task(follower.follow(resolver.watch()))
        stack.callback(following.cancel)
        await world.settle()
        yield world
    if asked.lists == 1:
        assert is_subsequence([shown(state) for state in follower.states], world.history)


def namespaces(space: str, question: Question) -> str | tuple[str, ...] | None:
    """The namespaces of a question, inside those of the test."""
    match question.namespace:
        case None:
            return None
        case str(name):
            return f"{space}-{name}"
        case names:
            return tuple(f"{space}-{name}" for name in names)


@pytest.fixture
async def spaces(server: ApiServer) -> ApiServer:
    """A server with the namespaces of the schedules."""
    async with server.client() as admin:
        for name in ("ml", "web", "spare"):
            await server.create_namespace(admin, f"{server.namespace}-{name}")
    return server


@given(question=st.sampled_from(QUESTIONS), before=st.lists(writes, max_size=4), schedule=schedules)
@settings(
    max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_a_watch_converges_to_what_the_server_holds(
    spaces: ApiServer, tmp_path: Path, question: Question, before: list[Any], schedule: list[list[Any]]
) -> None:
    async with watched(spaces, tmp_path, question, before) as world:
        for steps in schedule:
            for step in steps:
                await world.happen(step)
            await world.settle()


A, B = Put("w-0", "ml", "a", None, "Running", 1, True), Put("w-2", "ml", "a", None, "Running", 1, True)


async def test_a_watch_outlives_the_server(spaces: ApiServer, tmp_path: Path) -> None:
    async with watched(spaces, tmp_path, QUESTIONS[0], [A]) as world:
        for write in (B, Remove(A.name, A.namespace, gracefully=False)):
            await spaces.stop()
            await spaces.start()
            await world.write(write)
            await world.settle()
        assert [len(shown(state)["worker"]) for state in world.follower.states] == [1, 2, 1]


async def test_a_watch_outlives_its_version(spaces: ApiServer, tmp_path: Path) -> None:
    async with watched(spaces, tmp_path, QUESTIONS[0], [A]) as world:
        world.wire.mute()
        await world.write(B)
        await spaces.compact()
        await spaces.stop()
        await spaces.start()
        await world.write(Remove(A.name, A.namespace, gracefully=False))
        await world.settle()


async def test_a_pod_that_changes_selectors_is_never_in_neither_for_long(
    spaces: ApiServer, tmp_path: Path
) -> None:
    question = Question({"worker": ["app=a"], "ps": ["app=b"]}, "ml", "name")
    # A server that is busy may tell the one selector of it long before the other.
    patient = replace(POLICY, transit=5.0)
    async with watched(spaces, tmp_path, question, [A], patient) as world:
        for app in ("b", "a", "b"):
            await world.write(Put(A.name, A.namespace, app, None, "Running", 1, True))
            await world.settle()
        counts = [{job: len(tasks) for job, tasks in shown(state).items()} for state in world.follower.states]
        assert all(sum(count.values()) == 1 for count in counts), counts
