"""EndpointSlices of both API servers, and KubernetesClusterResolver(service=...) with them."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing import endpoint, endpoint_slice

from .client import TABLE, Client, slices_path
from .servers import ApiServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


def of_pod(server: ApiServer, name: str, address: str, **conditions: Any) -> dict[str, Any]:
    """Return the endpoint of a pod in the test's namespace."""
    return endpoint(address, pod=name, namespace=server.namespace, hostname=name, **conditions)


def trainer(
    server: ApiServer, *endpoints: dict[str, Any], name: str = "trainer-a", **options: Any
) -> dict[str, Any]:
    """Return a slice of the Service `trainer`, with a port `grpc`."""
    arguments: dict[str, Any] = {"ports": {"grpc": 8470}, **options}
    return endpoint_slice(name, server.namespace, service="trainer", endpoints=endpoints, **arguments)


async def create(admin: Client, *slices: dict[str, Any]) -> None:
    """Create slices, as the controller of a cluster would."""
    for each in slices:
        await admin.write("POST", slices_path(each["metadata"]["namespace"]), each)


def resolver(
    server: ApiServer, folder: Path, service: str = "trainer", user: str = "admin", **options: Any
) -> KubernetesClusterResolver:
    """Return a resolver for a Service in the test's namespace."""
    arguments = {"namespace": server.namespace, "kubeconfig": server.kubeconfig(folder, user), **options}
    return KubernetesClusterResolver(service=service, **arguments)


async def test_user_without_permission_is_403_with_the_group(server: ApiServer) -> None:
    async with server.client("limited") as limited:
        response = await limited.request("GET", slices_path(server.namespace), accept=f"{TABLE},*/*")
    assert response.status == 403
    assert response.message == (
        'endpointslices.discovery.k8s.io is forbidden: User "limited" cannot list resource "endpointslices"'
        f' in API group "discovery.k8s.io" in the namespace "{server.namespace}"'
    )
    assert response.body["details"] == {"group": "discovery.k8s.io", "kind": "endpointslices"}


async def test_endpoints_are_the_tasks_in_order(server: ApiServer, tmp_path: Path) -> None:
    async with server.client() as admin:
        await create(
            admin,
            trainer(server, *(of_pod(server, f"train-{n}", f"10.8.0.{n}") for n in (10, 2))),
            trainer(server, of_pod(server, "train-1", "10.8.0.1"), name="trainer-b"),
            trainer(server, of_pod(server, "train-1", "fd00::1"), name="trainer-c", address_type="IPv6"),
        )
    one = resolver(server, tmp_path)
    spec, state = await one.cluster_spec(), await one.cluster_state()
    assert list(spec.job_tasks("worker")) == ["10.8.0.1:8470", "10.8.0.2:8470", "10.8.0.10:8470"]
    assert state.spec == spec
    assert [each.name for each in state.endpoints["worker"]] == ["train-1", "train-2", "train-10"]


async def test_watch_follows_the_slices(server: ApiServer, tmp_path: Path) -> None:
    path = f"{slices_path(server.namespace)}/trainer-a"
    one, two = of_pod(server, "train-1", "10.8.0.1"), of_pod(server, "train-2", "10.8.0.2")
    async with server.client() as admin:
        await create(admin, trainer(server, one))
        async with aclosing(resolver(server, tmp_path).watch()) as states:
            with anyio.fail_after(20.0):
                assert (await anext(states)).spec.job_tasks("worker") == ["10.8.0.1:8470"]
                replaced = trainer(server, one, two)
                await admin.write("PATCH", path, replaced)
                assert (await anext(states)).spec.num_tasks("worker") == 2
                await admin.write("DELETE", path, None)
                assert (await anext(states)).spec.num_tasks("worker") == 0
