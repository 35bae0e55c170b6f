"""The clients that `kubernetes.py` compares, each of which resolves the same selectors in all namespaces.

Each peer is written as its own documentation shows, with one client for all calls and, if it is async, with
concurrent requests. tensorflow's resolver requests one selector after another. Libraries are imported when a
peer is opened, so that the process of one peer does not load the others.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PEERS", "PORT", "Peer", "Resolve"]

PORT = 8470

Resolve: TypeAlias = Callable[[], Awaitable[Any]]
"""Resolves once with an open client. `Peer.addresses` extracts the addresses from the result."""

AS_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to find the pods of some selectors.

    Attributes:
        title: its name in tables.
        needs: the top-level modules it imports.
        open_client: opens a client for a kubeconfig and selectors, and yields its `Resolve`.
        addresses: the `host:port` of each pod, in the peer's own order, from what its `Resolve` returned.
        by_host_ip: whether it returns the addresses of nodes, as tensorflow does.
    """

    title: str
    needs: tuple[str, ...] = ()
    open_client: Callable[[Path, Sequence[str]], AbstractAsyncContextManager[Resolve]]
    addresses: Callable[[Any], list[str]] = list
    by_host_ip: bool = False

    @property
    def missing(self) -> list[str]:
        """The modules it needs that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


def members(pods: Iterable[tuple[str, str | None, str | None, bool]]) -> list[str]:
    """Return `ip:port` by name, for pods given as name, phase, IP and whether they are being deleted.

    Hand-written code has to do this, and tensorflow's resolver does it, except for the deletion.
    """
    found = []
    for name, phase, ip, deleting in pods:
        if deleting:
            continue
        if phase != "Running" or not ip:
            raise RuntimeError(f"pod {name} is not running; phase: {phase}")
        found.append((name, f"{ip}:{PORT}"))
    return [address for _, address in sorted(found)]


def concatenate(lists: Iterable[list[str]]) -> list[str]:
    """Return the lists of several selectors as one, in the order of the selectors."""
    return [address for addresses in lists for address in addresses]


def spec_addresses(spec: Any) -> list[str]:
    """Return the addresses in a ClusterSpec, ours or tensorflow's."""
    addresses: list[str] = spec.job_tasks("worker")
    return addresses


@asynccontextmanager
async def our_spec(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    from aioresolve import KubernetesClusterResolver

    async with KubernetesClusterResolver({"worker": selectors}, PORT, kubeconfig=kubeconfig) as resolver:
        yield resolver.cluster_spec


@asynccontextmanager
async def our_state(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    from aioresolve import KubernetesClusterResolver

    async with KubernetesClusterResolver({"worker": selectors}, PORT, kubeconfig=kubeconfig) as resolver:
        yield resolver.cluster_state


@asynccontextmanager
async def our_state_in_pages(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    from unittest import mock

    # Pages are requested after one response was too long.
    with mock.patch("aioresolve.kubernetes.api.client.MAX_LIST", 1):
        async with our_state(kubeconfig, selectors) as resolve:
            yield resolve


@asynccontextmanager
async def our_first_state(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    from contextlib import aclosing

    from aioresolve import KubernetesClusterResolver

    async with KubernetesClusterResolver({"worker": selectors}, PORT, kubeconfig=kubeconfig) as resolver:

        async def first() -> Any:
            async with aclosing(resolver.watch()) as states:
                return await anext(states)

        yield first


@asynccontextmanager
async def bare_bodies(
    kubeconfig: Path, accept: str, parameters: Sequence[dict[str, str]]
) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
    """Yield a function that sends a GET for each of `parameters` with plain aiohttp.

    aioresolve reads the server, TLS context and token, so that any kubeconfig works.
    """
    import aiohttp

    from aioresolve.kubernetes.auth import find_connection, search_for

    connection = await find_connection(search_for(kubeconfig=kubeconfig))
    credentials = await connection.credentials()
    headers, context = dict(credentials.headers), credentials.ssl_context
    headers["Accept"] = accept

    async def body(query: dict[str, str]) -> bytes:
        async with session.get(
            f"{connection.server}/api/v1/pods",
            params=query,
            ssl=context or True,
            server_hostname=connection.tls_server_name,
            proxy=connection.proxy,
        ) as response:
            response.raise_for_status()
            return await response.read()

    async def bodies() -> list[bytes]:
        return await asyncio.gather(*map(body, parameters))

    async with aiohttp.ClientSession(headers=headers) as session:
        yield bodies


@asynccontextmanager
async def bare_table(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    parameters = [{"labelSelector": selector, "includeObject": "None"} for selector in selectors]
    async with bare_bodies(kubeconfig, AS_TABLE, parameters) as bodies:
        yield bodies


def table_addresses(bodies: Iterable[bytes]) -> list[str]:
    """Return the addresses in the bodies of `bare_table`; not part of the measurement."""
    import json

    found = []
    for body in bodies:
        table = json.loads(body)
        columns = [column["name"] for column in table["columnDefinitions"]]
        cells = (dict(zip(columns, row["cells"], strict=True)) for row in table["rows"])
        found.append(members((row["Name"], row["Status"], row["IP"], False) for row in cells))
    return concatenate(found)


@asynccontextmanager
async def bare_lists(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    parameters = [{"labelSelector": selector} for selector in selectors]
    async with bare_bodies(kubeconfig, "application/json", parameters) as bodies:
        yield bodies


def list_addresses(bodies: Iterable[bytes]) -> list[str]:
    """Return the addresses in the bodies of `bare_lists`; not part of the measurement."""
    import json

    found = []
    for body in bodies:
        pods = [(pod["metadata"], pod["status"]) for pod in json.loads(body)["items"]]
        found.append(
            members(
                (metadata["name"], status["phase"], status.get("podIP"), "deletionTimestamp" in metadata)
                for metadata, status in pods
            )
        )
    return concatenate(found)


@asynccontextmanager
async def by_msgspec(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    """Hand-written code: msgspec decodes four fields of whole pods."""
    import msgspec

    absent = str | None, None
    metadata = msgspec.defstruct("Metadata", [("name", str), ("deletionTimestamp", *absent)])
    status = msgspec.defstruct("Status", [("phase", *absent), ("podIP", *absent)])
    pods: Any = list[msgspec.defstruct("Pod", [("metadata", metadata), ("status", status)])]  # type: ignore[misc]
    pod_list: Any = msgspec.defstruct("PodList", [("items", pods)])
    decoder = msgspec.json.Decoder(pod_list)

    def decode(body: bytes) -> list[str]:
        return members(
            (pod.metadata.name, pod.status.phase, pod.status.podIP, bool(pod.metadata.deletionTimestamp))
            for pod in decoder.decode(body).items
        )

    parameters = [{"labelSelector": selector} for selector in selectors]
    async with bare_bodies(kubeconfig, "application/json", parameters) as bodies:

        async def resolve() -> list[str]:
            return concatenate(map(decode, await bodies()))

        yield resolve


@asynccontextmanager
async def by_lightkube(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    from lightkube import AsyncClient, KubeConfig
    from lightkube.resources.core_v1 import Pod

    client = AsyncClient(KubeConfig.from_file(kubeconfig).get())
    labels: list[dict[str, Any]] = [
        dict(term.split("=", 1) for term in selector.split(",")) for selector in selectors
    ]

    async def one(label: dict[str, Any]) -> list[str]:
        pods = [pod async for pod in client.list(Pod, namespace="*", labels=label)]
        return members(
            (pod.metadata.name, pod.status.phase, pod.status.podIP, bool(pod.metadata.deletionTimestamp))
            for pod in pods
            if pod.metadata and pod.metadata.name and pod.status
        )

    async def resolve() -> list[str]:
        return concatenate(await asyncio.gather(*map(one, labels)))

    try:
        yield resolve
    finally:
        await client.close()


@asynccontextmanager
async def by_kr8s(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    import kr8s
    import kr8s.asyncio

    # It cannot be closed. The same arguments return the same client as long as it is referenced.
    api: Any = await kr8s.asyncio.api(kubeconfig=str(kubeconfig))

    async def one(selector: str) -> list[str]:
        pods = [pod async for pod in api.get("pods", namespace=kr8s.ALL, label_selector=selector)]
        return members(
            (pod.name, pod.status.phase, pod.status.podIP, "deletionTimestamp" in pod.metadata)
            for pod in pods
        )

    async def resolve() -> list[str]:
        return concatenate(await asyncio.gather(*map(one, selectors)))

    yield resolve


@asynccontextmanager
async def by_kubernetes_asyncio(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=configuration)

    async with client.ApiClient(configuration) as api_client:
        api = client.CoreV1Api(api_client)

        async def one(selector: str) -> list[str]:
            pods = await api.list_pod_for_all_namespaces(label_selector=selector)
            return members(
                (
                    pod.metadata.name,
                    pod.status.phase,
                    pod.status.pod_ip,
                    pod.metadata.deletion_timestamp is not None,
                )
                for pod in pods.items
            )

        async def resolve() -> list[str]:
            return concatenate(await asyncio.gather(*map(one, selectors)))

        yield resolve


@asynccontextmanager
async def by_tensorflow(kubeconfig: Path, selectors: Sequence[str]) -> AsyncIterator[Resolve]:
    import os

    # Hides warnings about CPU features, which do not matter here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf
    from kubernetes import client, config

    # One client for all calls: otherwise the resolver reads a kubeconfig and connects in every call.
    with config.new_client_from_config(str(kubeconfig)) as api_client:
        resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
            {"worker": list(selectors)}, PORT, override_client=client.CoreV1Api(api_client)
        )

        async def resolve() -> Any:
            return resolver.cluster_spec()

        yield resolve


PEERS = {
    "spec": Peer(title="aioresolve cluster_spec()", open_client=our_spec, addresses=spec_addresses),
    "state": Peer(
        title="aioresolve cluster_state()",
        open_client=our_state,
        addresses=lambda state: spec_addresses(state.spec),
    ),
    "pages": Peer(
        title="aioresolve cluster_state() in pages",
        open_client=our_state_in_pages,
        addresses=lambda state: spec_addresses(state.spec),
    ),
    "watch": Peer(
        title="aioresolve watch(), first state",
        open_client=our_first_state,
        addresses=lambda state: spec_addresses(state.spec),
    ),
    "bare": Peer(
        title="bare aiohttp GET, Table, undecoded",
        needs=("aiohttp",),
        open_client=bare_table,
        addresses=table_addresses,
    ),
    "bare_json": Peer(
        title="bare aiohttp GET, full JSON, undecoded",
        needs=("aiohttp",),
        open_client=bare_lists,
        addresses=list_addresses,
    ),
    "msgspec": Peer(
        title="aiohttp + msgspec, full JSON", needs=("aiohttp", "msgspec"), open_client=by_msgspec
    ),
    "lightkube": Peer(title="lightkube, async", needs=("lightkube",), open_client=by_lightkube),
    "tensorflow": Peer(
        title="tensorflow KubernetesClusterResolver",
        needs=("tensorflow", "kubernetes"),
        open_client=by_tensorflow,
        addresses=spec_addresses,
        by_host_ip=True,
    ),
    "kubernetes_asyncio": Peer(
        title="kubernetes_asyncio, typed", needs=("kubernetes_asyncio",), open_client=by_kubernetes_asyncio
    ),
    "kr8s": Peer(title="kr8s, async", needs=("kr8s",), open_client=by_kr8s),
}
"""Every peer, by its name on the command line."""
