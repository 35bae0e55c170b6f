"""KubernetesClusterResolver with long lists, in pages too: versions expire, and the server restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve.kubernetes import KubernetesClusterResolver

from .proxy import Proxy, open_proxy
from .servers import CROWD, CROWD_LABELS, CROWD_NAMESPACE, ApiServer, crowd_ip, write_kubeconfig
from .states import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every list requested in pages, as after a list in one response failed."""
    monkeypatch.setattr("aioresolve.kubernetes.api.client.AiohttpTransport.can_stream", False)


def crowd_resolver(server: ApiServer, folder: Path, proxy: Proxy) -> KubernetesClusterResolver:
    """Return a resolver that lists the crowd through `proxy`."""
    path = write_kubeconfig(folder, proxy.url, proxy.ca_pem, user="admin", token=server.tokens["admin"])
    return KubernetesClusterResolver(
        {"worker": ["crowd=yes"]}, kubeconfig=path, namespace=CROWD_NAMESPACE, order_by="index"
    )


async def test_one_response_has_the_same_pods_as_pages(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forward(query: Mapping[str, str]) -> None: ...

    await server.ensure_crowd()
    states = []
    for can_stream in (True, False):
        monkeypatch.setattr("aioresolve.kubernetes.api.client.AiohttpTransport.can_stream", can_stream)
        async with open_proxy(server, forward) as proxy, crowd_resolver(server, tmp_path, proxy) as one:
            states.append(await one.cluster_state())
        pages = sum("continue" in query for query in proxy.queries)
        assert (pages == 0) == can_stream
    assert repr(states[0].endpoints) == repr(states[1].endpoints)


async def test_two_thousand_pods_are_two_thousand_tasks(server: ApiServer, tmp_path: Path) -> None:
    namespace = await server.ensure_crowd()
    selector = ",".join(f"{name}={value}" for name, value in CROWD_LABELS.items())
    expected = [f"{crowd_ip(number)}:8470" for number in range(CROWD)]
    kubeconfig = server.kubeconfig(tmp_path)
    by_name = await KubernetesClusterResolver(
        {"worker": [selector]}, namespace=namespace, kubeconfig=kubeconfig
    ).cluster_spec()
    assert list(by_name.job_tasks("worker")) == expected
    found = await KubernetesClusterResolver(
        {"worker": [selector]}, kubeconfig=kubeconfig, order_by="index"
    ).cluster_state()
    assert [endpoint.address for endpoint in found.endpoints["worker"]] == expected
    assert [endpoint.index for endpoint in found.endpoints["worker"]] == list(range(CROWD))


@pytest.mark.usefixtures("pages")
async def test_list_restarts_if_its_pages_expire(server: ApiServer, tmp_path: Path) -> None:
    expired: list[Mapping[str, str]] = []

    async def expire_the_second_page(query: Mapping[str, str]) -> None:
        if "continue" in query and not expired:
            expired.append(query)
            # Without a write, the version of the first page would still be the latest.
            await admin.create_pod(manifest("another", server.namespace))
            await server.compact()

    await server.ensure_crowd()
    async with server.client() as admin, open_proxy(server, expire_the_second_page) as proxy:
        spec = await crowd_resolver(server, tmp_path, proxy).cluster_spec()
    assert spec.num_tasks("worker") == CROWD
    assert expired
    assert len([query for query in proxy.queries if "continue" not in query]) == 2


@pytest.mark.usefixtures("pages")
async def test_list_survives_a_restart_of_the_server(server: ApiServer, tmp_path: Path) -> None:
    back = anyio.Event()

    async def come_back() -> None:
        await proxy.broken.wait()
        await server.start()
        back.set()

    async def go_away_before_the_third_page(query: Mapping[str, str]) -> None:
        if sum("continue" in each for each in proxy.queries) == 2:
            await server.stop()

    await server.ensure_crowd()
    async with (
        open_proxy(server, go_away_before_the_third_page) as proxy,
        crowd_resolver(server, tmp_path, proxy) as one,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(come_back)
        spec = await one.cluster_spec()
        with anyio.fail_after(60.0):
            await back.wait()
        again = await one.cluster_spec()
        assert spec.num_tasks("worker") == CROWD
        assert again == spec
