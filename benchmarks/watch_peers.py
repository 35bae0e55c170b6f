"""The ways to follow the pods of one selector that `watch.py` compares.

Each is written as its own documentation shows: a list, then a watch from the version of the list. aioresolve
yields the whole cluster after a change; the others yield the one pod that changed, and the code here stores
it in a list. Libraries are imported when a way is opened, so that the process of one way does not load the
others.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.watch_server import NAMESPACE, SELECTOR

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WATCHERS", "Follow", "Watcher"]

Follow: TypeAlias = Callable[[], AsyncGenerator[Any, None]]
"""Starts a watch: yields a value first and after each change; `Watcher.address` reads the value."""

POLLS = 1.0
"""The interval of polling, in seconds."""

CLIENT_MOST = 90
"""Watches per client of lightkube, which limits a client to 100 connections and has no option for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """One way to follow changes.

    Attributes:
        title: its name in tables.
        yields: the yielded values: `states` of the whole cluster, or `events` of one pod.
        needs: the top-level modules it imports.
        open_client: opens a client for a kubeconfig, and yields its `Follow`.
        address: returns the address of a pod, by its number, in a yielded value.
        is_watch: whether it keeps a watch open, instead of polling.
    """

    title: str
    yields: str = "events"
    needs: tuple[str, ...] = ()
    open_client: Callable[[Path], AbstractAsyncContextManager[Follow]]
    address: Callable[[Any, int], str] = list.__getitem__
    is_watch: bool = True

    @property
    def missing(self) -> list[str]:
        """The modules it needs that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


def pod_number(name: str) -> int:
    """Return the number of a pod by its name."""
    return int(name.rpartition("-")[2])


def by_number(pods: dict[str, str]) -> list[str]:
    """Return the addresses in the order of the numbers of the pods, from addresses by name."""
    return [pods[name] for name in sorted(pods, key=pod_number)]


def our_resolver(kubeconfig: Path) -> Any:
    from aioresolve import KubernetesClusterResolver

    return KubernetesClusterResolver({"worker": [SELECTOR]}, namespace=NAMESPACE, kubeconfig=kubeconfig)


def state_address(state: Any, pod: int) -> str:
    """Return the address, `host:port`, of a pod in a ClusterState, whose tasks are ordered by name."""
    address: str = state.endpoints["worker"][pod].address
    return address


@asynccontextmanager
async def ours_entered(kubeconfig: Path) -> AsyncIterator[Follow]:
    """All watches use one resolver and its pooled connections."""
    async with our_resolver(kubeconfig) as resolver:
        yield resolver.watch


@asynccontextmanager
async def ours_alone(kubeconfig: Path) -> AsyncIterator[Follow]:
    """Each watch uses a separate resolver, with separate connections and a separate TLS context."""
    yield lambda: our_resolver(kubeconfig).watch()


@asynccontextmanager
async def ours_polled(kubeconfig: Path) -> AsyncIterator[Follow]:
    """No watch: all pods are requested repeatedly."""
    async with our_resolver(kubeconfig) as resolver:

        async def follow() -> AsyncGenerator[Any, None]:
            loop = asyncio.get_running_loop()
            while True:
                due = loop.time() + POLLS
                yield await resolver.cluster_state()
                await asyncio.sleep(max(due - loop.time(), 0.0))

        yield follow


@asynccontextmanager
async def by_msgspec(kubeconfig: Path) -> AsyncIterator[Follow]:
    """Hand-written code without error handling: msgspec decodes four fields of each line.

    aioresolve reads the server, TLS context and token; the requests use plain aiohttp.
    """
    import aiohttp
    import msgspec

    from aioresolve.kubernetes.auth import find_connection, search_for

    metadata = msgspec.defstruct("Metadata", [("name", str, ""), ("resourceVersion", str, "")])
    status = msgspec.defstruct("Status", [("podIP", str, "")])
    pod: Any = msgspec.defstruct("Pod", [("metadata", metadata), ("status", status)])
    events: Any = msgspec.json.Decoder(msgspec.defstruct("Event", [("type", str), ("object", pod)]))
    pods: Any = list[pod]
    lists: Any = msgspec.json.Decoder(msgspec.defstruct("PodList", [("metadata", metadata), ("items", pods)]))

    connection = await find_connection(search_for(kubeconfig=kubeconfig))
    credentials = await connection.credentials()
    headers, context = dict(credentials.headers), credentials.ssl_context
    url = f"{connection.server}/api/v1/namespaces/{NAMESPACE}/pods"
    query = {"labelSelector": SELECTOR}

    async def follow() -> AsyncGenerator[list[str], None]:
        async with session.get(url, params=query, ssl=context or True) as response:
            found = lists.decode(await response.read())
        known = by_number({each.metadata.name: each.status.podIP for each in found.items})
        version = found.metadata.resourceVersion
        del found
        yield known
        watch = {**query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        async with session.get(url, params=watch, ssl=context or True) as response:
            async for line in response.content:
                event = events.decode(line)
                if event.type != "BOOKMARK":
                    known[pod_number(event.object.metadata.name)] = event.object.status.podIP
                    yield known

    async with aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield follow


@asynccontextmanager
async def by_kubernetes_asyncio(kubeconfig: Path) -> AsyncIterator[Follow]:
    from kubernetes_asyncio import client, config, watch

    configuration = client.Configuration()
    configuration.connection_pool_maxsize = 0  # unlimited; the default allows 100 watches
    await config.load_kube_config(str(kubeconfig), client_configuration=configuration)

    async with client.ApiClient(configuration) as api_client:
        api = client.CoreV1Api(api_client)
        query: dict[str, Any] = {"namespace": NAMESPACE, "label_selector": SELECTOR}

        async def follow() -> AsyncGenerator[list[str], None]:
            found = await api.list_namespaced_pod(**query)
            known = by_number({pod.metadata.name: pod.status.pod_ip for pod in found.items})
            version = found.metadata.resource_version
            del found
            yield known
            async with watch.Watch() as watching:
                stream = watching.stream(api.list_namespaced_pod, resource_version=version, **query)
                async for event in stream:
                    pod = event["object"]
                    known[pod_number(pod.metadata.name)] = pod.status.pod_ip
                    yield known

        yield follow


@asynccontextmanager
async def by_lightkube(kubeconfig: Path) -> AsyncIterator[Follow]:
    from lightkube import AsyncClient, KubeConfig
    from lightkube.resources.core_v1 import Pod

    read = KubeConfig.from_file(kubeconfig).get()
    key, _, value = SELECTOR.partition("=")
    clients: list[Any] = []
    begun = 0

    async with AsyncExitStack() as stack:

        async def follow() -> AsyncGenerator[list[str], None]:
            nonlocal begun
            if begun % CLIENT_MOST == 0:
                clients.append(AsyncClient(read))
                stack.push_async_callback(clients[-1].close)
            begun += 1
            client = clients[-1]
            listing = client.list(Pod, namespace=NAMESPACE, labels={key: value})
            known = by_number({pod.metadata.name: pod.status.podIP async for pod in listing})
            yield known
            watching = client.watch(
                Pod,
                namespace=NAMESPACE,
                labels={key: value},
                resource_version=listing.resourceVersion,
            )
            async for _, pod in watching:
                known[pod_number(pod.metadata.name)] = pod.status.podIP
                yield known

        yield follow


WATCHERS = {
    "watch": Watcher(
        title="aioresolve watch()", yields="states", open_client=ours_entered, address=state_address
    ),
    "alone": Watcher(
        title="aioresolve watch(), a resolver each",
        yields="states",
        open_client=ours_alone,
        address=state_address,
    ),
    "poll": Watcher(
        title="aioresolve cluster_state() every second",
        yields="states",
        open_client=ours_polled,
        address=state_address,
        is_watch=False,
    ),
    "msgspec": Watcher(title="aiohttp + msgspec", needs=("aiohttp", "msgspec"), open_client=by_msgspec),
    "lightkube": Watcher(title="lightkube watch(), async", needs=("lightkube",), open_client=by_lightkube),
    "kubernetes_asyncio": Watcher(
        title="kubernetes_asyncio Watch, typed",
        needs=("kubernetes_asyncio",),
        open_client=by_kubernetes_asyncio,
    ),
}
"""Every way, by its name on the command line."""
