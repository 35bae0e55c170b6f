"""KubernetesClusterResolver: label selectors -> ClusterState."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from aioresolve._core.concurrency import gather, newest_of
from aioresolve._core.retry import Progress
from aioresolve._core.shared_context import Sharing
from aioresolve._core.validation import checked_count
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterSpec, ClusterState

from .auth import CredentialCache, checked_location, find_connection, kubeconfig_paths
from .client import AiohttpTransport, ConnectionPool, FoundPods, PodAPI
from .objects import oldest_version
from .override_client import client_transport
from .pod_cache import Membership
from .pods import ADDRESSES
from .query import PodQuery, checked_choice, checked_jobs, checked_namespaces, checked_port
from .reflector import PodReflector, WatchPolicy
from .tasks import Candidate, endpoint, pod_candidates, row_candidates, tasks

if TYPE_CHECKING:
    import os
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Hashable,
        Iterable,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractContextManager

    from aioresolve._core.concurrency import Newest
    from aioresolve._core.shared_context import Pool
    from aioresolve.spec import Observation

    from .objects import Pod

T = TypeVar("T")

__all__ = ["KubernetesClusterResolver"]

HANDFUL = 8
"""Up to this many pods that their rows do not prove members are asked for by name, else all are listed."""


class KubernetesClusterResolver(ClusterResolver):
    """Finds the pods of each job by label selectors, concurrently, and answers with their addresses.

    >>> async with KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml") as resolver:
    ...     spec = await resolver.cluster_spec()
    >>> spec.task_address("worker", 0)
    '10.8.0.10:8470'

    Pods being deleted are no members. A pod matched by two selectors is two tasks, as in TensorFlow.

    Args:
        job_to_label_mapping: job name to its label selectors, in the API's grammar; one may stand as a plain
            string. `{"worker": ["job-name=tensorflow"]}` where None.
        tf_server_port: the port put behind each pod's host.
        rpc_layer: the protocol of the tasks, which `master` puts before the address.
        override_client: a `kubernetes_asyncio` ApiClient or CoreV1Api, or a synchronous `kubernetes`
            CoreV1Api (called in worker threads), used in place of any credentials. It stays yours to close.
        executable_location: `ExecutableLocation.WITHIN_CLUSTER` or `OFF_CLUSTER` to force one side; by
            default both are looked for.
        namespace: one namespace or several; all of them where None.
        context: the kubeconfig's context; its current one where None.
        kubeconfig: a kubeconfig file, or several to be merged; `$KUBECONFIG` where None.
        address: which address of a pod: `"pod_ip"`, `"pod_ipv4"`, `"pod_ipv6"` (of a dual-stack pod),
            `"host_ip"`, `"hostname"` (`hostname.subdomain.namespace.svc`), or a callable that is given the
            `Pod` and returns a host, a `(host, port)`, or None while there is none.
        order_by: how the pods of one selector become tasks: `"name"`, with the numbers in it compared as
            numbers, or `"index"`, each pod at the task index its controller gave it. Selectors
            follow one another in the order given.
        not_running: what to do with pods that match and are not running: `"raise"`, or `"skip"` them.
        timeout: the total deadline of a call, in seconds.
        max_concurrency: how many requests are made at a time.

    Raises:
        ConfigurationError: an argument is not one of these.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, str | Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: str | None = None,
        *,
        namespace: str | Sequence[str] | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        address: str | Callable[[Pod], str | tuple[str, int] | None] = "pod_ip",
        order_by: Literal["name", "index"] = "name",
        not_running: Literal["raise", "skip"] = "raise",
        timeout: float = 30.0,
        max_concurrency: int = 16,
    ) -> None:
        super().__init__(rpc_layer=rpc_layer, timeout=timeout)
        self._jobs = checked_jobs(job_to_label_mapping)
        self._port = checked_port(tf_server_port)
        self._namespaces = checked_namespaces(namespace)
        self._address = address if callable(address) else checked_choice("address", address, ADDRESSES)
        self._order_by = checked_choice("order_by", order_by, ("name", "index"))
        self._not_running = checked_choice("not_running", not_running, ("raise", "skip"))
        self._max_concurrency = checked_count("max_concurrency", max_concurrency)
        self._executable_location = checked_location(
            executable_location, kubeconfig=kubeconfig, context=context
        )
        self._override_client = override_client
        # A client of a wrong kind is told here, not at the first call.
        self._can_watch = override_client is None or client_transport(override_client).can_stream
        self._context = context
        self._kubeconfig = kubeconfig
        self._credentials = CredentialCache()
        self._sharing = Sharing(self, self.new_pool)

    watch_policy = WatchPolicy()
    """The times of its watches; for tests, and for networks of their own kind."""

    def __repr__(self) -> str:
        where = "all namespaces" if self._namespaces == (None,) else f"namespaces {list(self._namespaces)}"
        return f"<{type(self).__name__} {dict(self._jobs)} in {where}>"

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        """Ask for rows where rows say enough: many times cheaper than asking for the pods."""
        if self._address != "pod_ip" or self._order_by != "name":
            return (await self.fetch_state(progress)).spec
        async with self._opened(progress) as api:
            found = await self._ask(lambda query: self._cheapest(api, query, progress))
        return ClusterSpec(
            {job: [member.address for member in members] for job, members in self._tasks(found)}
        )

    async def fetch_state(self, progress: Progress) -> ClusterState:
        """Ask for the pods themselves, which know their names, uids, nodes and indices."""
        async with self._opened(progress) as api:
            answers = await self._ask(lambda query: api.pods(query, progress))
        found = {query: self._candidates(answer.pods) for query, answer in answers.items()}
        return ClusterState.of(
            {job: [endpoint(member) for member in members] for job, members in self._tasks(found)},
            version=oldest_version(answer.version for answer in answers.values()),
            observed_at=datetime.now(UTC),
        )

    async def fetch_observation(self, progress: Progress) -> Observation:
        """Ask for the pods themselves, and tell of those that are no members or not ready."""
        async with self._opened(progress) as api:
            answers = await self._ask(lambda query: api.pods(query, progress))
        membership = self._membership()
        for query, answer in answers.items():
            membership.replace(query, answer.pods, answer.version)
        return membership.observation(datetime.now(UTC))

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        """List the pods and watch them, each selector in each namespace by a watch of its own.

        A blocking client that was handed in is asked at intervals.
        """
        if not self._can_watch:
            async with aclosing(super().observations(interval=interval)) as polled:
                async for observation in polled:
                    yield observation

        async def follow(newest: Newest[Callable[[], Observation]]) -> None:
            # Opened by the task that uses it: the generator around it may be closed by anybody, in any order.
            async with self._opened(Progress()) as api:
                await PodReflector(
                    api,
                    self._membership(),
                    self._all_queries(),
                    newest,
                    self.watch_policy,
                    timeout=self._timeout,
                ).run()

        async with aclosing(newest_of(follow)) as newest:
            async for observed in newest:
                yield observed()

    async def __aenter__(self) -> Self:
        self._sharing.enter()
        return self

    @property
    def pool_key(self) -> Hashable:
        """The kubeconfig, context, side and client: whoever is given the same shares connections."""
        paths = kubeconfig_paths(self._kubeconfig)
        return "kubernetes", paths, self._context, self._executable_location, id(self._override_client)

    def new_pool(self) -> ConnectionPool:
        return ConnectionPool()

    def using(self, pool: Pool) -> AbstractContextManager[None]:
        if not isinstance(pool, ConnectionPool):
            raise self._sharing.unfit(pool)
        return self._sharing.using(pool)

    async def aclose(self) -> None:
        """Close the connections that the calls inside `async with` shared."""
        await self._sharing.aclose()

    async def _ask(self, question: Callable[[PodQuery], Awaitable[T]]) -> dict[PodQuery, T]:
        """Return the answer to each distinct selector and namespace, all asked at once."""
        queries = self._all_queries()
        answers = await gather([partial(question, query) for query in queries], limit=self._max_concurrency)
        return dict(zip(queries, answers, strict=True))

    async def _cheapest(self, api: PodAPI, query: PodQuery, progress: Progress) -> list[Candidate]:
        """Return the candidates of `query` by the cheapest way that is exact."""
        answer = await api.rows(query, progress)
        if isinstance(answer, FoundPods):
            return self._candidates(answer.pods)
        # Of a name, every row or none: in all namespaces a row does not say which of its bearers it is.
        unproven = answer.unproven if answer else set()
        if answer is None or len(unproven) > HANDFUL:
            return self._candidates((await api.pods(query, progress)).pods)
        proven = row_candidates(answer, unproven, self._port)
        if not unproven:
            return proven
        named = await gather(
            [partial(api.pods, query.named(name), progress) for name in sorted(unproven)],
            limit=self._max_concurrency,
        )
        return proven + [candidate for found in named for candidate in self._candidates(found.pods)]

    def _candidates(self, pods: list[Pod]) -> list[Candidate]:
        return pod_candidates(pods, self._address, self._port)

    def _tasks(self, found: Mapping[PodQuery, list[Candidate]]) -> Iterable[tuple[str, list[Candidate]]]:
        matched = {
            job: [
                [candidate for query in self._queries(selector) for candidate in found[query]]
                for selector in selectors
            ]
            for job, selectors in self._jobs.items()
        }
        return tasks(matched, order_by=self._order_by, not_running=self._not_running).items()

    def _membership(self) -> Membership:
        jobs = {job: [self._queries(one) for one in selectors] for job, selectors in self._jobs.items()}
        return Membership(jobs, address=self._address, port=self._port, order_by=self._order_by)

    def _all_queries(self) -> list[PodQuery]:
        """Return each distinct selector and namespace."""
        selectors = [selector for selectors in self._jobs.values() for selector in selectors]
        return list(dict.fromkeys(query for selector in selectors for query in self._queries(selector)))

    def _queries(self, selector: str) -> list[PodQuery]:
        return [PodQuery(selector, namespace) for namespace in self._namespaces]

    @asynccontextmanager
    async def _opened(self, progress: Progress) -> AsyncIterator[PodAPI]:
        """Yield the shared PodAPI inside `async with`, and one of this call's own outside it."""
        async with self._sharing.opened() as pool:
            yield await pool.opened(partial(self._open, progress))

    async def _open(self, progress: Progress) -> PodAPI:
        if self._override_client is not None:
            transport = client_transport(self._override_client)
            return PodAPI(transport, max_concurrency=self._max_concurrency)
        place = "the API server's address and credentials"
        progress.waiting(place, "reading the kubeconfig or the service account")
        connection = await find_connection(
            kubeconfig=self._kubeconfig,
            context=self._context,
            executable_location=self._executable_location,
            cache=self._credentials,
        )
        progress.ready(place)
        return PodAPI(AiohttpTransport(connection), max_concurrency=self._max_concurrency)
