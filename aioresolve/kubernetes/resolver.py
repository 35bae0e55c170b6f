"""`KubernetesClusterResolver`: the pods that match label selectors, as a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from aioresolve._core.concurrency import gather, stream_latest
from aioresolve._core.deadline import Progress
from aioresolve._core.shared_context import PoolLease
from aioresolve._core.validation import validate_count
from aioresolve.errors import APIError, ConfigurationError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import ClusterSpec, ClusterState

from .api_errors import is_expired
from .auth import CredentialCache, find_connection, kubeconfig_paths, validate_location, validate_overrides
from .client import AiohttpTransport, ConnectionPool, FoundPods, PodAPI
from .objects import PodQuery
from .override_client import client_transport
from .pod_cache import PodCache
from .pods import ADDRESSES, ListedMembers, raise_not_running
from .reflector import PodReflector, WatchPolicy
from .task_order import addresses_by_name

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable
    from contextlib import AbstractContextManager

    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.shared_context import Pool
    from aioresolve.spec import Observation

    from .objects import Pod
    from .pods import Rows

T = TypeVar("T")

CONTEXT_NAMESPACE = "CONTEXT_NAMESPACE"
"""As `namespace=`: the namespace that kubectl would use. That is the one of the kubeconfig's context, or in a
pod without a kubeconfig that of the pod; `default` if neither names one. No namespace can have this name."""

MAX_NAMED_REQUESTS = 8
"""The maximum number of pods with inconclusive rows that are requested by name; with more, all are listed."""


class KubernetesClusterResolver(ClusterResolver):
    """Finds the pods of each job by label selectors, concurrently, and returns their addresses.

    >>> async with KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml") as resolver:
    ...     spec = await resolver.cluster_spec()
    >>> spec.task_address("worker", 0)
    '10.8.0.10:8470'

    Pods that are being deleted, and failed pods that have a controller, are not members. A pod that two
    selectors match is two tasks, as in TensorFlow.

    Args:
        job_to_label_mapping: job name to its label selectors, in the grammar of the API. A single selector
            may be a string. The default is `{"worker": ["job-name=tensorflow"]}`.
        tf_server_port: the port to append to the host of each pod.
        rpc_layer: the protocol of the tasks, which `master` puts before the address.
        override_client: a `kubernetes_asyncio` ApiClient or CoreV1Api, or a synchronous `kubernetes`
            CoreV1Api (called in worker threads), to use instead of credentials. The resolver does not close
            it.
        executable_location: `ExecutableLocation.WITHIN_CLUSTER` or `OFF_CLUSTER`, to use the service account
            or the kubeconfig only. By default, the resolver looks for both.
        namespace: one namespace or several; None for all namespaces, `CONTEXT_NAMESPACE` for the one that
            kubectl would use.
        context: a context of the kubeconfig; None for its current context.
        kubeconfig: a kubeconfig file, or several to be merged; None for `$KUBECONFIG` or `~/.kube/config`.
        server: the URL of the API server, instead of that of the kubeconfig or service account, whose CA
            certificates and credentials are still used.
        token_file: a file with a bearer token, used instead of all other credentials. It is read again after
            a minute.
        impersonate: the user to act as, as with `kubectl --as`.
        impersonate_groups: the group or groups to act as, as with `kubectl --as-group`.
        address: which address of a pod: `"pod_ip"`, `"pod_ipv4"`, `"pod_ipv6"` (of a dual-stack pod),
            `"host_ip"`, `"hostname"` (`hostname.subdomain.namespace.svc`), or a callable that takes the `Pod`
            and returns a host, a `(host, port)`, or None if the pod has no address yet.
        order_by: how the pods of one selector become tasks: `"name"`, which compares numbers as numbers,
            or `"index"`, each pod at the task index that its controller gave it. Several selectors of a job
            follow one another in the order given.
        not_running: what to do with matching pods that are not running: `"raise"` or `"skip"`.
        timeout: the total deadline of a call, in seconds.
        max_concurrency: the maximum number of concurrent requests.

    Raises:
        ConfigurationError: an argument is invalid.
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
        server: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        impersonate: str | None = None,
        impersonate_groups: str | Sequence[str] | None = None,
        address: str | Callable[[Pod], str | tuple[str, int] | None] = "pod_ip",
        order_by: Literal["name", "index"] = "name",
        not_running: Literal["raise", "skip"] = "raise",
        timeout: float = 30.0,
        max_concurrency: int = 16,
    ) -> None:
        super().__init__(rpc_layer=rpc_layer, timeout=timeout)
        self._jobs = validate_jobs(job_to_label_mapping)
        self._port = validate_port(tf_server_port)
        self._namespaces = validate_namespaces(namespace)
        self._address = address if callable(address) else validate_choice("address", address, ADDRESSES)
        self._order_by = validate_choice("order_by", order_by, ("name", "index"))
        self._not_running = validate_choice("not_running", not_running, ("raise", "skip"))
        self._max_concurrency = validate_count("max_concurrency", max_concurrency)
        self._executable_location = validate_location(
            executable_location, kubeconfig=kubeconfig, context=context
        )
        self._overrides = validate_overrides(
            server=server,
            token_file=token_file,
            impersonate=impersonate,
            impersonate_groups=impersonate_groups,
        )
        if override_client is not None and self._overrides:
            raise ConfigurationError(
                "the client has its own server, credentials and impersonation",
                argument="override_client",
                hint="Configure them in the client, or leave out {server}, {token_file}, {impersonate} and"
                " {impersonate_groups}.",
            )
        if override_client is not None and CONTEXT_NAMESPACE in self._namespaces:
            raise ConfigurationError(
                "CONTEXT_NAMESPACE is the namespace of a kubeconfig or service account, but override_client"
                " is used instead of them",
                argument="namespace",
                hint="Pass the name of the namespace.",
            )
        self._override_client = override_client
        # Raises for an unsupported client here rather than at the first call.
        self._can_watch = override_client is None or client_transport(override_client).can_stream
        self._context = context
        self._kubeconfig = kubeconfig
        self._credentials = CredentialCache()
        self._lease = PoolLease(self, self.new_pool)

    watch_policy = WatchPolicy()
    """The timing of watches. Change it for tests and for unusual networks."""

    def __repr__(self) -> str:
        where = "all namespaces" if self._namespaces == (None,) else f"namespaces {list(self._namespaces)}"
        return f"<{type(self).__name__} {dict(self._jobs)} in {where}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The jobs of the mapping."""
        return tuple(self._jobs)

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        """Request rows of a Table if they are sufficient, which is many times cheaper than whole pods."""
        if self._address != "pod_ip" or self._order_by != "name":
            return (await self.fetch_state(progress)).spec
        async with self._connected(progress) as api:
            listed = await self._run_queries(api, lambda query: self._list_members(api, query, progress))
        if self._not_running == "raise":
            raise_not_running(
                {name: why for each in listed.values() for name, why in each.not_running.items()}
            )
        return ClusterSpec(
            {
                job: [
                    address
                    for selector in selectors
                    for address in self._addresses([listed[query] for query in self._queries(api, selector)])
                ]
                for job, selectors in self._jobs.items()
            }
        )

    async def fetch_state(self, progress: Progress) -> ClusterState:
        """Request the pods, which have names, uids, nodes and indices."""
        cache = await self._fill_cache(progress, allow_gaps=False)
        if self._not_running == "raise":
            raise_not_running(cache.not_running)
        return cache.state(datetime.now(UTC))

    async def fetch_observation(self, progress: Progress) -> Observation:
        """Request the pods, and report those that are not members or not ready too."""
        cache = await self._fill_cache(progress, allow_gaps=True)
        return cache.observation(datetime.now(UTC))

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        """List the pods and watch them, with one watch for each selector and namespace.

        A blocking `override_client` cannot watch; it is polled every `interval` seconds instead.
        """
        if not self._can_watch:
            async with aclosing(super().observations(interval=interval)) as polled:
                async for observation in polled:
                    yield observation

        async def follow(newest: LatestValue[Callable[[], Observation]]) -> None:
            # The connection is opened in the task that uses it, because the generator around it may be closed
            # in another task.
            async with self._connected(Progress()) as api:
                await PodReflector(
                    api,
                    self._new_cache(api, allow_gaps=True),
                    self._all_queries(api),
                    newest,
                    self.watch_policy,
                    timeout=self._timeout,
                ).run()

        async with aclosing(stream_latest(follow)) as newest:
            async for observe in newest:
                yield observe()

    def _claim_task(self) -> TaskClaim:
        return TaskClaim(self.task_type, self.task_id, "JOB_COMPLETION_INDEX")

    async def __aenter__(self) -> Self:
        self._lease.enter()
        return self

    @property
    def pool_key(self) -> Hashable:
        """What the connection is made from: if it is equal, resolvers share connections."""
        paths, client = kubeconfig_paths(self._kubeconfig), id(self._override_client)
        return "kubernetes", paths, self._context, self._executable_location, self._overrides, client

    def new_pool(self) -> ConnectionPool:
        return ConnectionPool()

    def using(self, pool: Pool) -> AbstractContextManager[None]:
        if not isinstance(pool, ConnectionPool):
            raise self._lease.mismatch(pool)
        return self._lease.using(pool)

    async def aclose(self) -> None:
        """Close the connections that the calls inside `async with` share."""
        await self._lease.aclose()

    async def _run_queries(self, api: PodAPI, call: Callable[[PodQuery], Awaitable[T]]) -> dict[PodQuery, T]:
        """Return what `call` returns for each distinct selector and namespace; the calls run concurrently."""
        queries = self._all_queries(api)
        results = await gather([partial(call, query) for query in queries], limit=self._max_concurrency)
        return dict(zip(queries, results, strict=True))

    async def _list_members(self, api: PodAPI, query: PodQuery, progress: Progress) -> ListedMembers:
        """Return the members among the pods that `query` matches, in the cheapest way that is exact."""
        members = await self._list_members_as_rows(api, query, progress) if api.has_tables else None
        if members is None:
            members = ListedMembers()
            members.add_pods((await api.pods(query, progress)).pods, self._address, self._port)
        return members

    async def _list_members_as_rows(
        self, api: PodAPI, query: PodQuery, progress: Progress
    ) -> ListedMembers | None:
        """List the running pods as rows and all others in full, as of one version.

        Return None if rows do not suffice: the server splits them or does not support them, many are
        inconclusive, or the server no longer has their version.
        """
        running, others = query.in_phase_running(True), query.in_phase_running(False)
        rows: Rows | FoundPods | None = None
        listed: list[FoundPods] = []

        async def list_running() -> None:
            nonlocal rows
            rows = await api.rows(running, progress)

        async def list_others() -> None:
            listed.append(await api.pods(others, progress))

        # The others are an error, or are skipped.
        calls = [list_running, list_others] if self._not_running == "raise" else [list_running]
        await gather(calls, limit=len(calls))
        if rows is None:
            return None
        members = ListedMembers()
        if isinstance(rows, FoundPods):
            members.add_pods(rows.pods, self._address, self._port)
            inconclusive: set[str] = set()
        else:
            inconclusive = rows.inconclusive
            members.add_rows(rows, inconclusive, self._port)
        if len(inconclusive) > MAX_NAMED_REQUESTS:
            return None
        # By name, because in all namespaces a row does not say which of several pods of a name it describes.
        missing = [running.named(name) for name in sorted(inconclusive)]
        if any(each.version != rows.version for each in listed):
            # Between the two lists a pod may have changed from one to the other, and would be in neither.
            listed.clear()
            missing.append(others)
        try:
            listed += await gather(
                [partial(api.pods, each.at(rows.version), progress) for each in missing],
                limit=self._max_concurrency,
            )
        except APIError as error:
            if not is_expired(error):
                raise
            return None
        if any(each.version != rows.version for each in listed):  # not every server supports exact versions
            return None
        for each in listed:
            members.add_pods(each.pods, self._address, self._port)
        return members

    def _addresses(self, listed: Sequence[ListedMembers]) -> list[str]:
        """Return the addresses of the members of one selector in order, from its lists in all namespaces."""
        names = list(chain.from_iterable(members.names for members in listed))
        return addresses_by_name(names, list(chain.from_iterable(members.addresses for members in listed)))

    async def _fill_cache(self, progress: Progress, *, allow_gaps: bool) -> PodCache:
        """Return a cache with the pods that all queries match now."""
        async with self._connected(progress) as api:
            found = await self._run_queries(api, lambda query: api.pods(query, progress))
        cache = self._new_cache(api, allow_gaps=allow_gaps)
        for query, listed in found.items():
            cache.replace(query, listed.pods, listed.version)
        return cache

    def _new_cache(self, api: PodAPI, *, allow_gaps: bool) -> PodCache:
        jobs = {
            job: [self._queries(api, each) for each in selectors] for job, selectors in self._jobs.items()
        }
        return PodCache(
            jobs, address=self._address, port=self._port, order_by=self._order_by, allow_gaps=allow_gaps
        )

    def _all_queries(self, api: PodAPI) -> list[PodQuery]:
        """Return the query for each distinct selector and namespace."""
        selectors = [selector for selectors in self._jobs.values() for selector in selectors]
        return list(dict.fromkeys(query for selector in selectors for query in self._queries(api, selector)))

    def _queries(self, api: PodAPI, selector: str) -> list[PodQuery]:
        namespaces = (api.namespace if each == CONTEXT_NAMESPACE else each for each in self._namespaces)
        # Another namespace of the list may be that of the context.
        return [PodQuery(selector, namespace) for namespace in dict.fromkeys(namespaces)]

    @asynccontextmanager
    async def _connected(self, progress: Progress) -> AsyncIterator[PodAPI]:
        """Yield the shared PodAPI inside `async with`, and a separate one for this call outside it."""
        async with self._lease.acquire() as pool:
            yield await pool.get(partial(self._connect, progress))

    async def _connect(self, progress: Progress) -> PodAPI:
        if self._override_client is not None:
            transport = client_transport(self._override_client)
            return PodAPI(transport, max_concurrency=self._max_concurrency)
        scope = "the API server's address and credentials"
        progress.waiting(scope, "reading the kubeconfig or the service account")
        connection = await find_connection(
            kubeconfig=self._kubeconfig,
            context=self._context,
            executable_location=self._executable_location,
            overrides=self._overrides,
            cache=self._credentials,
        )
        progress.ready(scope)
        return PodAPI(
            AiohttpTransport(connection),
            max_concurrency=self._max_concurrency,
            namespace=connection.namespace or "default",
        )


_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The name of a namespace: a DNS label, RFC 1123. It becomes part of the path of a URL."""


def validate_jobs(mapping: Any) -> Mapping[str, tuple[str, ...]]:
    """Return the selectors of each job; TensorFlow's default if `mapping` is None."""
    if mapping is None:
        return MappingProxyType({"worker": ("job-name=tensorflow",)})
    # TensorFlow also replaces an empty mapping, and so returns pods that the caller did not select.
    if not isinstance(mapping, Mapping) or not mapping:
        kind = "an empty mapping" if isinstance(mapping, Mapping) else f"a {type(mapping).__name__}"
        raise ConfigurationError(
            f"{kind} is not a mapping of job names to label selectors",
            argument="job_to_label_mapping",
            hint="Pass a mapping such as `{'worker': ['job-name=trainer']}`.",
        )
    return MappingProxyType({job: _validate_selectors(job, given) for job, given in mapping.items()})


def _validate_selectors(job: Any, selectors: Any) -> tuple[str, ...]:
    if not isinstance(job, str) or not job:
        raise ConfigurationError(
            f"{job!r} is not a valid job name",
            argument="job_to_label_mapping",
            hint="Use a string that is not empty.",
        )
    given = [selectors] if isinstance(selectors, str) else selectors
    if (
        not isinstance(given, Sequence)
        or not given
        or not all(isinstance(selector, str) for selector in given)
    ):
        raise ConfigurationError(
            f"{selectors!r} is not a list of label selectors (job {job!r})",
            argument="job_to_label_mapping",
            hint="Pass a list of label selectors such as ['app=trainer'].",
        )
    for selector in given:
        try:
            selector.encode()
        except UnicodeEncodeError:
            # The URL would be built without these characters, and the rest may match other pods, or all.
            raise ConfigurationError(
                f"{selector!r} is not a label selector (job {job!r}): it has characters that are not Unicode",
                argument="job_to_label_mapping",
                hint="Remove the surrogate characters.",
            ) from None
    return tuple(given)


def validate_namespaces(namespace: Any) -> tuple[str | None, ...]:
    """Return the distinct namespaces to search; `(None,)` for all namespaces."""
    if namespace is None:
        return (None,)
    given = [namespace] if isinstance(namespace, str) else namespace
    if not isinstance(given, Sequence) or not given:
        raise ConfigurationError(
            f"{namespace!r} is not a namespace or a list of them",
            argument="namespace",
            hint="Pass a name, a list of names, CONTEXT_NAMESPACE, or None for all namespaces.",
        )
    for name in given:
        if not isinstance(name, str) or not (name == CONTEXT_NAMESPACE or _NAMESPACE.fullmatch(name)):
            raise ConfigurationError(
                f"{name!r} is not a valid namespace name",
                argument="namespace",
                hint="A name has at most 63 lower-case letters, digits and '-'.",
            )
    return tuple(dict.fromkeys(given))


def validate_port(port: Any) -> int:
    """Return `port` if it is a TCP port."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigurationError(
            f"{port!r} is not a valid port", argument="tf_server_port", hint="Pass a number from 1 to 65535."
        )
    return port


def validate_choice(argument: str, choice: Any, choices: Sequence[str]) -> str:
    """Return `choice` if it is one of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        raise ConfigurationError(
            f"{choice!r} is not one of {', '.join(map(repr, choices))}", argument=argument
        )
    return choice
