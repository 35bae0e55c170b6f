"""What a KubernetesClusterResolver does while the server has much to say and something happens meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve.kubernetes import KubernetesClusterResolver

from .between import Between, between
from .servers import CROWD, CROWD_LABELS, CROWD_NAMESPACE, ApiServer, crowd_ip, write_kubeconfig
from .states import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


def crowd_resolver(server: ApiServer, folder: Path, place: Between) -> KubernetesClusterResolver:
    """A resolver that reads the crowd page by page, through `place`."""
    path = write_kubeconfig(folder, place.url, place.ca_pem, user="admin", token=server.tokens["admin"])
    return KubernetesClusterResolver(
        {"worker": ["crowd=yes"]}, kubeconfig=path, namespace=CROWD_NAMESPACE, order_by="index"
    )


async def test_two_thousand_pods_are_two_thousand_tasks(server: ApiServer, tmp_path: Path) -> None:
    namespace = await server.crowd()
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


async def test_a_list_whose_pages_expire_is_begun_again(server: ApiServer, tmp_path: Path) -> None:
    expired: list[Mapping[str, str]] = []

    async def expire_the_second_page(query: Mapping[str, str]) -> None:
        if "continue" in query and not expired:
            expired.append(query)
            # Something has to happen, or the version of the first page is still the newest.
            await admin.create_pod(manifest("another", server.namespace))
            await server.compact()

    await server.crowd()
    async with server.client() as admin, between(server, expire_the_second_page) as place:
        spec = await crowd_resolver(server, tmp_path, place).cluster_spec()
    assert spec.num_tasks("worker") == CROWD
    assert expired
    assert len([query for query in place.queries if "continue" not in query]) == 2


async def test_a_restart_in_the_middle_of_a_list_goes_unnoticed(server: ApiServer, tmp_path: Path) -> None:
    back = anyio.Event()

    async def come_back() -> None:
        await place.broken.wait()
        await server.start()
        back.set()

    async def go_away_before_the_third_page(query: Mapping[str, str]) -> None:
        if sum("continue" in each for each in place.queries) == 2:
            await server.stop()

    await server.crowd()
    async with (
        between(server, go_away_before_the_third_page) as place,
        crowd_resolver(server, tmp_path, place) as one,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(come_back)
        spec = await one.cluster_spec()
        with anyio.fail_after(60.0):
            await back.wait()
        again = await one.cluster_spec()
        assert spec.num_tasks("worker") == CROWD
        assert again == spec
