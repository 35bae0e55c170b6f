"""The ways to request the pods of many clusters that `fleet.py` compares.

Libraries are imported when a way is opened, so that the process of one way does not load the others.
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

__all__ = ["WAYS", "Client", "Failed", "Follow", "Report", "RequestAll", "Way"]

NEVER = 3600.0
"""An interval, in seconds, that does not end during a measurement."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Replaces the result of a target that failed; has the error as text."""

    text: str


Report: TypeAlias = Callable[[str, Any], None]
"""Called with the name of a target and its result, or `Failed`, as soon as the way returns it."""

RequestAll: TypeAlias = Callable[[Report], Awaitable[None]]
"""Sends one request to every target."""

Follow: TypeAlias = Callable[[Report, float], Awaitable[None]]
"""Polls every target at an interval in seconds; does not end."""


@dataclass(frozen=True, slots=True)
class Client:
    """The open client of a way."""

    request_all: RequestAll
    follow: Follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to request pods.

    Attributes:
        title: its name in tables.
        needs: the top-level modules it imports.
        open_client: opens a client for targets and the timeout of each.
        addresses: returns the addresses of the pods, with or without ports, in a result.
    """

    title: str
    needs: tuple[str, ...] = ()
    open_client: Callable[[Sequence[Target], float], AbstractAsyncContextManager[Client]]
    addresses: Callable[[Any], Iterable[str]]

    @property
    def missing(self) -> list[str]:
        """The modules it needs that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


def rounds_of(request_all: RequestAll) -> Client:
    """Return a client that polls in rounds, and sleeps for the rest of each interval."""

    async def follow(report: Report, interval: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval
            await request_all(report)
            await asyncio.sleep(max(due - loop.time(), 0.0))

    return Client(request_all, follow)


def our_resolver(target: Target, timeout: float) -> KubernetesClusterResolver:
    from aioresolve import KubernetesClusterResolver

    return KubernetesClusterResolver(
        {"worker": target.selector},
        namespace=NAMESPACE,
        kubeconfig=target.kubeconfig,
        context=target.context,
        timeout=timeout,
    )


def our_fleet(targets: Sequence[Target], timeout: float, **options: Any) -> Fleet:
    from aioresolve import Fleet

    resolvers = {target.name: our_resolver(target, timeout) for target in targets}
    return Fleet(resolvers, timeout=timeout, **options)


def report_status(report: Report, status: TargetStatus) -> None:
    report(status.name, status.state if status.error is None else Failed(str(status.error)))


@asynccontextmanager
async def fleet_entered(targets: Sequence[Target], timeout: float, **options: int) -> AsyncIterator[Client]:
    """Connections are kept between calls of `resolve`."""
    async with our_fleet(targets, timeout, **options) as fleet:

        async def request_all(report: Report) -> None:
            for status in (await fleet.resolve()).values():
                report_status(report, status)

        yield rounds_of(request_all)


@asynccontextmanager
async def fleet_fresh(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    """Every call of `resolve` opens new connections."""
    fleet = our_fleet(targets, timeout)

    async def request_all(report: Report) -> None:
        for status in (await fleet.resolve()).values():
            report_status(report, status)

    yield rounds_of(request_all)


@asynccontextmanager
async def fleet_polling(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    """Each status is reported as it arrives; one request to every target is the first round of a poll."""
    async with our_fleet(targets, timeout) as fleet:

        async def request_all(report: Report) -> None:
            waiting = {target.name for target in targets}
            async with aclosing(fleet.poll(interval=NEVER)) as statuses:
                async for status in statuses:
                    report_status(report, status)
                    waiting.discard(status.name)
                    if not waiting:
                        return

        async def follow(report: Report, interval: float) -> None:
            async with aclosing(fleet.poll(interval=interval)) as statuses:
                async for status in statuses:
                    report_status(report, status)

        yield Client(request_all, follow)


@asynccontextmanager
async def one_after_another(targets: Sequence[Target], timeout: float) -> AsyncIterator[Client]:
    """Resolvers called in a loop, over connections that are kept."""
    async with AsyncExitStack() as stack:
        resolvers = {
            target.name: await stack.enter_async_context(our_resolver(target, timeout)) for target in targets
        }

        async def request_all(report: Report) -> None:
            for name, resolver in resolvers.items():
                await report_result(report, name, resolver.cluster_state)

        yield rounds_of(request_all)


async def report_result(report: Report, name: str, call: Callable[[], Awaitable[Any]]) -> None:
    """Report the result of a resolver."""
    from aioresolve import ResolveError

    try:
        report(name, await call())
    except ResolveError as error:
        report(name, Failed(str(error)))


def all_at_once(
    method: str, targets: Sequence[Target], timeout: float
) -> AbstractAsyncContextManager[Client]:
    """The simplest code: a new resolver for each target, called concurrently with `asyncio.gather`.

    Args:
        method: the method to call: `cluster_state`, or `cluster_spec`, which returns addresses only and
            for which a
            server sends a fiftieth of the bytes.
        targets: the targets.
        timeout: the timeout of each target in seconds.
    """

    async def one(target: Target, report: Report) -> None:
        await report_result(report, target.name, getattr(our_resolver(target, timeout), method))

    async def request_all(report: Report) -> None:
        await asyncio.gather(*[one(target, report) for target in targets])

    return nullcontext(rounds_of(request_all))


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

        async def one(target: Target, report: Report) -> None:
            listing = partial(apis[target].list_namespaced_pod, NAMESPACE, label_selector=target.selector)
            try:
                report(target.name, (await listing(_request_timeout=timeout)).items)
            except (client.ApiException, ClientError, TimeoutError) as error:
                report(target.name, Failed(repr(error)))

        async def request_all(report: Report) -> None:
            await asyncio.gather(*[one(target, report) for target in targets])

        yield rounds_of(request_all)


def state_addresses(state: Any) -> list[str]:
    return [endpoint.address for endpoint in state.endpoints["worker"]]


def spec_addresses(spec: Any) -> list[str]:
    addresses: list[str] = spec.job_tasks("worker")
    return addresses


def pod_addresses(pods: Any) -> list[str]:
    return [pod.status.pod_ip for pod in pods if pod.status.phase == "Running"]


WAYS = {
    "resolve": Way(title="Fleet.resolve(), entered", open_client=fleet_entered, addresses=state_addresses),
    "resolve-64": Way(
        title="Fleet(max_concurrency=64).resolve(), entered",
        open_client=partial(fleet_entered, max_concurrency=64),
        addresses=state_addresses,
    ),
    "poll": Way(title="Fleet.poll(), entered", open_client=fleet_polling, addresses=state_addresses),
    "fresh": Way(title="Fleet.resolve()", open_client=fleet_fresh, addresses=state_addresses),
    "serial": Way(
        title="cluster_state() one after another",
        open_client=one_after_another,
        addresses=state_addresses,
    ),
    "gather": Way(
        title="asyncio.gather, cluster_state()",
        open_client=partial(all_at_once, "cluster_state"),
        addresses=state_addresses,
    ),
    "gather-spec": Way(
        title="asyncio.gather, cluster_spec()",
        open_client=partial(all_at_once, "cluster_spec"),
        addresses=spec_addresses,
    ),
    "kubernetes_asyncio": Way(
        title="asyncio.gather, kubernetes_asyncio",
        needs=("kubernetes_asyncio",),
        open_client=by_kubernetes_asyncio,
        addresses=pod_addresses,
    ),
}
"""Every way, by its name on the command line."""
