"""What `watch.py` measures: ours and other ways to hear of the pods of one selector as they change.

Each is written as its own documentation shows: a list, then a watch from the list's version on. What ours
yields is the whole cluster after a change; what the others yield is the one pod that changed, which is put
into a plain list here. Libraries are imported when a way is opened: a process that measures one pays for no
other.
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
"""Begins one watch: yields something at first and whenever a change was told; `Watcher.address` reads it."""

POLLS = 1.0
"""Seconds from one poll to the next."""

CLIENT_MOST = 90
"""Watches of one client of lightkube's, whose connections are limited to 100, in a way that cannot be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """One way to hear of changes.

    Attributes:
        title: what it is called in tables.
        yields: what a change comes as: `states` of the whole, or `events` of one pod.
        needs: the top-level modules it imports.
        opened: opens a client for a kubeconfig, and yields its `Follow`.
        address: the address of a pod, by its number, in what was yielded.
        is_watch: whether it has a watch open, rather than ask again.
    """

    title: str
    yields: str = "events"
    needs: tuple[str, ...] = ()
    opened: Callable[[Path], AbstractAsyncContextManager[Follow]]
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
    """Return addresses by pods' numbers, of addresses by their names."""
    return [pods[name] for name in sorted(pods, key=pod_number)]


def our_resolver(kubeconfig: Path) -> Any:
    from aioresolve import KubernetesClusterResolver

    return KubernetesClusterResolver({"worker": [SELECTOR]}, namespace=NAMESPACE, kubeconfig=kubeconfig)


def state_address(state: Any, pod: int) -> str:
    """Return the address, `host:port`, of a pod in a ClusterState: tasks are in the order of their names."""
    address: str = state.endpoints["worker"][pod].address
    return address


@asynccontextmanager
async def ours_entered(kubeconfig: Path) -> AsyncIterator[Follow]:
    """Every watch of the one resolver, over the connections that it pools."""
    async with our_resolver(kubeconfig) as resolver:
        yield resolver.watch


@asynccontextmanager
async def ours_alone(kubeconfig: Path) -> AsyncIterator[Follow]:
    """Each watch of a resolver of its own, with connections and TLS context of its own."""
    yield lambda: our_resolver(kubeconfig).watch()


@asynccontextmanager
async def ours_polled(kubeconfig: Path) -> AsyncIterator[Follow]:
    """No watch: everything is asked for again and again."""
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
    """What a careful engineer writes by hand, on a day when nothing breaks: lines, decoded into four fields.

    Server, TLS context and token are read by aioresolve; all else is aiohttp's.
    """
    import aiohttp
    import msgspec

    from aioresolve.kubernetes.auth import CredentialCache, find_connection

    metadata = msgspec.defstruct("Metadata", [("name", str, ""), ("resourceVersion", str, "")])
    status = msgspec.defstruct("Status", [("podIP", str, "")])
    pod: Any = msgspec.defstruct("Pod", [("metadata", metadata), ("status", status)])
    events: Any = msgspec.json.Decoder(msgspec.defstruct("Event", [("type", str), ("object", pod)]))
    pods: Any = list[pod]
    lists: Any = msgspec.json.Decoder(msgspec.defstruct("PodList", [("metadata", metadata), ("items", pods)]))

    connection = await find_connection(kubeconfig=kubeconfig, cache=CredentialCache())
    context, headers = await connection.ssl(), await connection.headers()
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
    configuration.connection_pool_maxsize = 0  # or the hundredth watch is the last one
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
    "watch": Watcher(title="aioresolve watch()", yields="states", opened=ours_entered, address=state_address),
    "alone": Watcher(
        title="aioresolve watch(), a resolver each",
        yields="states",
        opened=ours_alone,
        address=state_address,
    ),
    "poll": Watcher(
        title="aioresolve cluster_state() every second",
        yields="states",
        opened=ours_polled,
        address=state_address,
        is_watch=False,
    ),
    "msgspec": Watcher(title="aiohttp + msgspec", needs=("aiohttp", "msgspec"), opened=by_msgspec),
    "lightkube": Watcher(title="lightkube watch(), async", needs=("lightkube",), opened=by_lightkube),
    "kubernetes_asyncio": Watcher(
        title="kubernetes_asyncio Watch, typed", needs=("kubernetes_asyncio",), opened=by_kubernetes_asyncio
    ),
}
"""Every way, by the name that names it at the command line."""
