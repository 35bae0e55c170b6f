"""Watches of KubernetesClusterResolver with both API servers, which restart and forget old versions."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from aioresolve._core.deadline import RetryPolicy
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.reflector import WatchPolicy
from aioresolve.spec import ClusterState

from .servers import ApiServer
from .states import pod

pytestmark = [
    pytest.mark.asyncio(loop_factories=["asyncio"]),
    # A watch begins with the existing pods, or follows a list.
    pytest.mark.parametrize("watch_list", [True, False]),
]

# A busy server may send the event of a changed label to one watch long before the other.
POLICY = WatchPolicy(
    response_timeout=5.0, max_transit=5.0, backoff=RetryPolicy(first_wait=0.2, longest_wait=2.0)
)


@asynccontextmanager
async def watching(
    server: ApiServer, folder: Path, jobs: Mapping[str, Any], *, watch_list: bool
) -> AsyncIterator[AsyncGenerator[ClusterState, None]]:
    """Yield a watch of the pods in the test's namespace."""
    resolver = KubernetesClusterResolver(
        jobs, namespace=server.namespace, kubeconfig=server.kubeconfig(folder), timeout=3.0
    )
    resolver.watch_policy = msgspec.structs.replace(POLICY, watch_list=watch_list)
    with anyio.fail_after(60.0):
        async with aclosing(resolver.watch()) as states:
            yield states


def names(state: ClusterState) -> list[str | None]:
    return [endpoint.name for endpoint in state.endpoints["worker"]]


async def put(server: ApiServer, name: str) -> None:
    async with server.client() as admin:
        await admin.create_pod(*pod(name, server.namespace, "10.8.0.1", labels={"app": "a"}))


async def test_watch_survives_a_restart_of_the_server(
    server: ApiServer, tmp_path: Path, watch_list: bool
) -> None:
    await put(server, "w-0")
    async with watching(server, tmp_path, {"worker": "app=a"}, watch_list=watch_list) as states:
        assert names(await anext(states)) == ["w-0"]
        for name in ("w-1", "w-2"):
            await server.stop()
            await server.start()
            await put(server, name)
            assert names(await anext(states))[-1] == name


async def test_watch_survives_the_expiry_of_its_version(
    server: ApiServer, tmp_path: Path, watch_list: bool
) -> None:
    await put(server, "w-0")
    async with watching(server, tmp_path, {"worker": "app=a"}, watch_list=watch_list) as states:
        assert names(await anext(states)) == ["w-0"]
        await server.compact()
        await server.stop()
        await server.start()
        await put(server, "w-1")
        assert names(await anext(states)) == ["w-0", "w-1"]
