"""What `fleet.py` measures: ours and other ways to ask many clusters for their pods.

Libraries are imported when a way is opened: a process that measures one pays for no other.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.fleet_servers import NAMESPACE

if TYPE_CHECKING:
    from aioresolve import Fleet, KubernetesClusterResolver, TargetStatus
    from benchmarks.fleet_servers import Target

__all__ = ["WAYS", "Ask", "Client", "Failed", "Follow", "Tell", "Way"]

NEVER = 3600.0
"""Seconds of an interval of which only the beginning is of interest."""


@dataclass(frozen=True, slots=True)
class Failed:
    """In the place of an answer: what was wrong, in words."""

    words: str


Tell: TypeAlias = Callable[[str, Any], None]
"""Called with a target's name and its answer, a way's own or `Failed`, as soon as the way's user sees it."""

Ask: TypeAlias = Callable[[Tell], Awaitable[None]]
"""Asks every target once."""

Follow: TypeAlias = Callable[[Tell, float], Awaitable[None]]
"""Asks every target, every so many seconds; does not end."""


@dataclass(frozen=True, slots=True)
class Client:
    """What a way has opened for its targets."""

    ask: Ask
    follow: Follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to ask.

    Attributes:
        title: what it is called in tables.
        needs: the top-level modules it imports.
        opened: opens a client for targets and the seconds that each has.
        addresses: the addresses of the pods, with or without ports, in an answer.
    """

    title: str
    needs: tuple[str, ...] = ()
    opened: Callable[[Sequence[Target], float], AbstractAsyncContextManager[Client]]
    addresses: Callable[[Any], Iterable[str]]

    @property
    def missing(self) -> list[str]:
        """The modules it needs that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


def rounds_of(ask: Ask) -> Client:
    """Return a client that follows by asking, and waiting for what is left of the interval."""

    async def follow(tell: Tell, interval: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval
            await ask(tell)
            await asyncio.sleep(max(due - loop.time(), 0.0))

    return Client(ask, follow)


def our_resolver(target: Target, timeout: float) -> KubernetesClusterResolver:
    from aioresolve import KubernetesClusterResolver

    return KubernetesClusterResolver(
        {"worker": target.selector},
        namespace=NAMESPACE,
        kubeconfig=target.kubeconfig,
        context=target.context,
        timeout=timeout,
    )


def our_fleet(targets: Sequence[Target], timeout: float, **options: int) -> Fleet:
    from aioresolve import Fleet

    resolvers = {target.name: our_resolver(target, timeout) for target in targets}
    return Fleet(resolvers, timeout=timeout, **options)


def tell_reading(tell: Tell, reading: TargetStatus) -> None:
    tell(reading.name, reading.state if reading.error is None else Failed(str(reading.error)))


@asynccontextmanager
async def fleet_entered(targets: Sequence[Target], timeout: float, **options: int) -> AsyncIterator[Client]:
    """Connections are kept from one `resolve` to the next."""
    async with our_fleet(targets, timeout, **options) as fleet:

        async def ask(tell: Tell) -> None:
            for reading in (await fleet.resolve()).values():
                tell_reading(tell, reading)

        yield rounds_of(ask)


@asynccontextmanager
async def fleet_fresh(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    """Every `resolve` opens connections of its own."""
    fleet = our_fleet(targets, timeout)

    async def ask(tell: Tell) -> None:
        for reading in (await fleet.resolve()).values():
            tell_reading(tell, reading)

    yield rounds_of(ask)


@asynccontextmanager
async def fleet_polling(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    """Each reading is told as it comes; asking once is the first round of a poll."""
    async with our_fleet(targets, timeout) as fleet:

        async def ask(tell: Tell) -> None:
            waiting = {target.name for target in targets}
            async with aclosing(fleet.poll(interval=NEVER)) as readings:
                async for reading in readings:
                    tell_reading(tell, reading)
                    waiting.discard(reading.name)
                    if not waiting:
                        return

        async def follow(tell: Tell, interval: float) -> None:
            async with aclosing(fleet.poll(interval=interval)) as readings:
                async for reading in readings:
                    tell_reading(tell, reading)

        yield Client(ask, follow)


@asynccontextmanager
async def one_after_another(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    """Ours in a loop, over connections that are kept."""
    async with AsyncExitStack() as stack:
        resolvers = {
            target.name: await stack.enter_async_context(our_resolver(target, timeout)) for target in targets
        }

        async def ask(tell: Tell) -> None:
            for name, resolver in resolvers.items():
                await tell_answer(tell, name, resolver.cluster_state)

        yield rounds_of(ask)


async def tell_answer(tell: Tell, name: str, answer: Callable[[], Awaitable[Any]]) -> None:
    """Tell what one of ours answers."""
    from aioresolve import ResolveError

    try:
        tell(name, await answer())
    except ResolveError as error:
        tell(name, Failed(str(error)))


def all_at_once(
    method: str, targets: Sequence[Target], timeout: float
) -> AbstractAsyncContextManager[Client]:
    """What comes to mind first: a fresh resolver for each, and all of them at once.

    Args:
        method: what to call: `cluster_state`, or `cluster_spec` for addresses alone, to which a server
            projects the pods: a fiftieth of the bytes.
        targets: whom to ask.
        timeout: seconds that each has.
    """

    async def one(target: Target, tell: Tell) -> None:
        await tell_answer(tell, target.name, getattr(our_resolver(target, timeout), method))

    async def ask(tell: Tell) -> None:
        await asyncio.gather(*[one(target, tell) for target in targets])

    return nullcontext(rounds_of(ask))


@asynccontextmanager
async def by_kubernetes_asyncio(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    from aiohttp import ClientError
    from kubernetes_asyncio import client, config

    async with AsyncExitStack() as stack:
        apis: dict[Target, Any] = {}
        for target in targets:
            configuration = client.Configuration()
            await config.load_kube_config(
                target.kubeconfig, target.context, client_configuration=configuration
            )
            opened = await stack.enter_async_context(client.ApiClient(configuration))
            apis[target] = client.CoreV1Api(opened)

        async def one(target: Target, tell: Tell) -> None:
            listing = partial(apis[target].list_namespaced_pod, NAMESPACE, label_selector=target.selector)
            try:
                tell(target.name, (await listing(_request_timeout=timeout)).items)
            except (client.ApiException, ClientError, TimeoutError) as error:
                tell(target.name, Failed(repr(error)))

        async def ask(tell: Tell) -> None:
            await asyncio.gather(*[one(target, tell) for target in targets])

        yield rounds_of(ask)


def state_addresses(state: Any) -> list[str]:
    return [endpoint.address for endpoint in state.endpoints["worker"]]


def spec_addresses(spec: Any) -> list[str]:
    addresses: list[str] = spec.job_tasks("worker")
    return addresses


def pod_addresses(pods: Any) -> list[str]:
    return [pod.status.pod_ip for pod in pods if pod.status.phase == "Running"]


WAYS = {
    "resolve": Way(title="Fleet.resolve(), entered", opened=fleet_entered, addresses=state_addresses),
    "resolve-64": Way(
        title="Fleet(max_concurrency=64).resolve(), entered",
        opened=partial(fleet_entered, max_concurrency=64),
        addresses=state_addresses,
    ),
    "poll": Way(title="Fleet.poll(), entered", opened=fleet_polling, addresses=state_addresses),
    "fresh": Way(title="Fleet.resolve()", opened=fleet_fresh, addresses=state_addresses),
    "serial": Way(
        title="cluster_state() one after another",
        opened=one_after_another,
        addresses=state_addresses,
    ),
    "gather": Way(
        title="asyncio.gather, cluster_state()",
        opened=partial(all_at_once, "cluster_state"),
        addresses=state_addresses,
    ),
    "gather-spec": Way(
        title="asyncio.gather, cluster_spec()",
        opened=partial(all_at_once, "cluster_spec"),
        addresses=spec_addresses,
    ),
    "kubernetes_asyncio": Way(
        title="asyncio.gather, kubernetes_asyncio",
        needs=("kubernetes_asyncio",),
        opened=by_kubernetes_asyncio,
        addresses=pod_addresses,
    ),
}
"""Every way, by the name that names it at the command line."""
