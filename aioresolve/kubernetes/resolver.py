"""`KubernetesClusterResolver`: pods that match label selectors, or endpoints of Services, as a cluster."""

from __future__ import annotations

import logging
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from aioresolve._core.concurrency import gather, stream_latest
from aioresolve._core.deadline import Backoff, Progress, within_deadline
from aioresolve._core.validation import validate_choice, validate_count, validate_port
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterState, Missing, Observation
from aioresolve.spec.observation import MEMBERS, Want

from .api.client import ObjectAPI
from .api.queries import CONTEXT_NAMESPACE
from .api.transport import AiohttpTransport, client_transport
from .auth import CredentialCache, find_connection, search_for
from .cluster_cache import ClusterCache, Selection
from .reflector import ClusterWatch, WatchPolicy
from .selection import explain_empty, validate_jobs, validate_namespace
from .table_members import TableMembers
from .tasks.accelerators import device_counts
from .tasks.controllers import Controllers
from .tasks.ordering import NODE_LABEL, validate_order_by
from .tasks.pods import ADDRESSES

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AsyncExitStack

    from aioresolve._core.concurrency import LatestValue
    from aioresolve.probe.workers import Declared
    from aioresolve.resolver.checks import PlannedCheck
    from aioresolve.resolver.this_task import TaskClaim

    from .api.objects import Pod
    from .api.transport import Transport
    from .auth import Connection, ServerSearch

T = TypeVar("T")

logger = logging.getLogger("aioresolve.kubernetes")


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
        service: Services whose EndpointSlices are read instead of pods, for users that may only list and
            watch `endpointslices`. `"trainer"` has the workers; a mapping has the Services of each job, such
            as `{"worker": "trainer", "ps": ["ps-a", "ps-b"]}`. `"trainer:8470"` chooses a port. The default
            is the only TCP port of the Service, or `tf_server_port` if it has none. Excludes
            `job_to_label_mapping` and `order_by`.
        namespace: the namespace; None for all namespaces, `CONTEXT_NAMESPACE` for the one that kubectl would
            use.
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
            and returns a host, a `(host, port)`, or None if the pod has no address yet. With `service`, one
            of `"pod_ip"` (IPv4 if there are both), `"pod_ipv4"`, `"pod_ipv6"` and `"hostname"`.
        order_by: how the pods of one selector become tasks: `"name"`, which compares numbers as numbers,
            or `"index"`, each pod at the task index that its controller gave it; or labels, one or several,
            the most important one first: `"label:KEY"` of the pod, `"node-label:KEY"` of the node that it
            runs on, for an order by topology. Several selectors of a job follow one another in the order
            given.
        not_running: what to do with matching pods that are not running, and endpoints that are not ready:
            `"raise"` or `"skip"`.
        timeout: the total deadline of a call, in seconds.
        max_concurrency: the maximum number of concurrent requests, apart from watches. In a `Fleet` or union,
            resolvers with the same server, credentials and maximum share connections and this limit.

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
        service: str | Mapping[str, str | Sequence[str]] | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        server: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        impersonate: str | None = None,
        impersonate_groups: str | Sequence[str] | None = None,
        address: str | Callable[[Pod], str | tuple[str, int] | None] = "pod_ip",
        order_by: str | Sequence[str] = "name",
        not_running: Literal["raise", "skip"] = "raise",
        timeout: float = 30.0,
        max_concurrency: int = 16,
    ) -> None:
        super().__init__(rpc_layer=rpc_layer, timeout=timeout)
        common: dict[str, Any] = {
            "port": validate_port("tf_server_port", tf_server_port),
            "namespace": validate_namespace(namespace),
            "address": address if callable(address) else validate_choice("address", address, ADDRESSES),
            "order_by": validate_order_by(order_by),
            "not_running": validate_choice("not_running", not_running, ("raise", "skip")),
        }
        if service is None:
            selected = Selection(jobs=validate_jobs(job_to_label_mapping), **common)
        else:
            # Most resolvers have no Services.
            from .endpoint_slices import SliceStore, validate_arguments

            validate_arguments(job_to_label_mapping, address, common["order_by"])
            services = {"worker": service} if isinstance(service, str) else service
            jobs = validate_jobs(services, "service", "Service", SliceStore)
            selected = Selection(jobs=jobs, store_type=SliceStore, **common)
        self._selection = selected
        # Rows of a Table have the addresses of members, but nothing else by which they could be ordered.
        self._rows_suffice = service is None and address == "pod_ip" and selected.order_by == ("name",)
        self._max_concurrency = validate_count("max_concurrency", max_concurrency)
        self._search = search_for(
            kubeconfig=kubeconfig,
            context=context,
            executable_location=executable_location,
            server=server,
            token_file=token_file,
            impersonate=impersonate,
            impersonate_groups=impersonate_groups,
        )
        self._override_client = override_client
        # Raises for an unsupported client here rather than at the first call.
        transport = None if override_client is None else self._client_transport()
        self._only_lists_pods = transport is not None and transport.only_lists_pods
        self._credentials = CredentialCache()

    def _client_transport(self) -> Transport:
        """Return the transport of `override_client`.

        Raises:
            ConfigurationError: it is not a client, or other arguments contradict it or need more than it has.
        """
        if self._search.replaces:
            raise ConfigurationError(
                "the client has its own server, credentials and impersonation",
                argument="override_client",
                hint="Configure them in the client, or leave out {server}, {token_file}, {impersonate} and"
                " {impersonate_groups}.",
            )
        if self._selection.namespace == CONTEXT_NAMESPACE:
            raise ConfigurationError(
                "CONTEXT_NAMESPACE is the namespace of a kubeconfig or service account, but override_client"
                " is used instead of them",
                argument="namespace",
                hint="Pass the name of the namespace.",
            )
        transport = client_transport(self._override_client)
        reads_slices = self._selection.reads_slices
        by_nodes = any(term.startswith(NODE_LABEL) for term in self._selection.order_by)
        if transport.only_lists_pods and (reads_slices or by_nodes):
            others = "Services" if reads_slices else "nodes"
            raise ConfigurationError(
                f"the client has only methods that list pods, not {others}",
                argument="override_client",
                hint="Pass an ApiClient, or leave out {service} and labels of nodes in {order_by}.",
            )
        return transport

    _kept_attributes = ClusterResolver._kept_attributes | {"watch_policy"}

    watch_policy = WatchPolicy()
    """How watches begin, and their timing. Change it for tests and for unusual networks."""

    def __repr__(self) -> str:
        selected = self._selection
        where = "all namespaces" if selected.namespace is None else f"namespace {selected.namespace!r}"
        kind = "Services " if selected.reads_slices else ""
        return f"<{type(self).__name__} {kind}{dict(selected.jobs)} in {where}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The jobs of the mapping."""
        return tuple(self._selection.jobs)

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Request the pods or slices: as rows of a Table if only addresses are needed, and rows have them."""
        if want.complete and not want.identities and self._rows_suffice:
            async with self._opened(progress) as api:
                rows = TableMembers(api, self._selection, progress, want.names, self._max_concurrency)
                state = await rows.read()
            if state is not None:
                return Observation(state)
        cache = await self._filled_cache(want, progress)
        if want.complete and self._selection.not_running == "raise":
            return Observation(self._state(cache))
        return cache.observation(datetime.now(UTC))  # which has the pods that are skipped

    def _state(self, cache: ClusterCache) -> ClusterState:
        """Return the state; raise if pods must run and do not, or if a task index is missing."""
        if self._selection.not_running == "raise":
            cache.raise_not_running()
        return cache.state(datetime.now(UTC))

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        """List the pods or slices and watch them, with one watch for each selector.

        With `want.sizes`, each controller is read when its first pod is found, every
        `watch_policy.size_interval` seconds, and before an observation that has all of its pods. While one
        cannot be reached, observations have an error. The number of one that may not be read is unknown, and
        so is that of the endpoints of a Service, which do not name their controller.

        A blocking `override_client` cannot watch; it is polled every `interval` seconds instead.
        """
        following = super().changes(want, interval) if self._only_lists_pods else self._watch(want)
        async with aclosing(following) as observations:
            async for observation in observations:
                yield observation

    async def _watch(self, want: Want) -> AsyncGenerator[Observation, None]:
        opened: tuple[ObjectAPI, ClusterCache] | None = None

        async def follow(newest: LatestValue[Callable[[], Observation]]) -> None:
            nonlocal opened
            # The connection is opened in the task that uses it, because the generator around it may be closed
            # in another task.
            async with self._opened(Progress()) as api:
                cache = self._cache(api, want)
                opened = api, cache
                watch = ClusterWatch(api, cache, newest, self.watch_policy, timeout=self._timeout)
                await watch.run()

        async with aclosing(stream_latest(follow)) as newest:
            async for observe in newest:
                assert opened is not None
                async with aclosing(self._read_details(*opened, observe)) as failing:
                    async for stale in failing:
                        yield stale
                yield observe()

    async def _read_details(
        self, api: ObjectAPI, cache: ClusterCache, observe: Callable[[], Observation]
    ) -> AsyncGenerator[Observation, None]:
        """Read what the observation lacks; while that fails, yield the observation with the error."""
        backoff, interval = Backoff(self.watch_policy.backoff), self.watch_policy.size_interval

        async def read(progress: Progress) -> None:
            are_current = await read_details(api, cache, progress)  # the controllers
            if not are_current and await cache.controllers.read_again(api, observe, interval, progress):
                await read_details(api, cache, progress)

        while True:
            try:
                await within_deadline(self._timeout, "the details of the pods", read)
            except ResolveError as error:
                # Nodes that could be read once cannot be read because of an outage, as for pods.
                if api.is_closed or not (error.retryable or cache.ordering.nodes):
                    raise
                yield observe().stale(error, datetime.now(UTC))
                # The retries of the read itself end at once if the server requests a longer wait than its
                # deadline.
                await api.sleep(backoff.wait(error))
            else:
                return

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        state = observation.state
        if state is None or self._only_lists_pods:
            return ()
        parts = observation.absent, observation.failed, state.members, state.done
        found = {one.job for part in parts for one in part} | observation.controllers.keys()
        # Tasks do not say which of several selectors they match.
        unclear = {
            job: selectors
            for job, selectors in self._selection.jobs.items()
            if job not in found or len(selectors) > 1
        }
        if not unclear:
            return ()
        async with self._opened(Progress()) as api:
            known = self._selection.queries(api.namespace)
            queries = [(job, known[each]) for job, selectors in unclear.items() for each in selectors]
            calls = [partial(explain_empty, api, query, may_match=job in found) for job, query in queries]
            reasons = await gather(calls, limit=self._max_concurrency)
        return tuple(
            Missing(job, query.selector, f"{reason} ({api.source})", tasks=0)
            for (job, query), reason in zip(queries, reasons, strict=True)
            if reason
        )

    def _checks(self) -> AbstractAsyncContextManager[Sequence[PlannedCheck]]:
        if self._override_client is not None:
            return super()._checks()
        # Imported here because only `aioresolve.doctor` needs it.
        from aioresolve.resolver.checks import cluster_checks

        from .checks import open_checks

        check_cluster = partial(cluster_checks, self._call_observe, self._explain, self.this_task)
        return open_checks(self._selection, self._find_connection, check_cluster)

    async def _declared_accelerators(
        self, task_type: str | None, task_id: int | None, timeout: float
    ) -> Declared:
        from aioresolve.probe.workers import declared_by_all

        call = f"num_accelerators() of {self!r}"
        cache = await within_deadline(timeout, call, partial(self._filled_cache, MEMBERS))
        declared = declared_by_all(self._state(cache), task_type, task_id, device_counts)
        if cache.devices.faults:
            faults = "; ".join(cache.devices.faults.values())
            declared = declared._replace(reason=f"{declared.reason}: ResourceClaims were not read ({faults})")
        return declared

    async def _claim(self, progress: Progress) -> TaskClaim:
        from aioresolve.resolver.this_task import TaskClaim

        return TaskClaim(self.task_type, self.task_id, "JOB_COMPLETION_INDEX")

    async def _filled_cache(self, want: Want, progress: Progress) -> ClusterCache:
        """Return a cache with what all queries match now, and with the details that are wanted."""
        async with self._opened(progress) as api:
            cache = self._cache(api, want)
            stores = cache.stores.values()
            calls = [partial(api.objects, one.query, progress, convert=one.match) for one in stores]
            found = await gather(calls, limit=self._max_concurrency)
            for store, listed in zip(stores, found, strict=True):
                store.replace(listed.items, listed.version)
            await read_details(api, cache, progress, with_claims=want.identities)
        return cache

    def _cache(self, api: ObjectAPI, want: Want) -> ClusterCache:
        controllers = Controllers(reads_sizes=want.sizes, reads_ended=want.controllers or want.sizes)
        allow_gaps = not want.complete
        return ClusterCache(self._selection, api.namespace, allow_gaps=allow_gaps, controllers=controllers)

    @asynccontextmanager
    async def _opened(self, progress: Progress) -> AsyncIterator[ObjectAPI]:
        """Yield the client of the API server, which resolvers with an equal `ClientKey` share."""
        client = self._override_client
        uses_context = self._selection.namespace == CONTEXT_NAMESPACE
        key = ClientKey(self._search, id(client), uses_context, self._max_concurrency)
        async with self._connected() as connections:
            yield await connections.get(
                self, key, partial(open_client, key, client, self._credentials, progress)
            )

    async def _find_connection(self) -> Connection:
        return await find_connection(self._search, self._credentials)


class ClientKey(NamedTuple):
    """What the client of an API server is made from: the id is that of `override_client`."""

    search: ServerSearch
    client_id: int
    uses_context: bool
    max_concurrency: int  # the limit of one resolver does not apply to others


async def open_client(
    key: ClientKey,
    override_client: object,
    credentials: CredentialCache,
    progress: Progress,
    stack: AsyncExitStack,
) -> ObjectAPI:
    """Return the client for a key.

    It is a function that does not see the resolver: what a client depends on has to be in the key.
    """
    namespace = "default"
    if override_client is not None:
        transport = client_transport(override_client)
    else:
        scope = "the API server's address and credentials"
        progress.waiting(scope, "reading the kubeconfig or the service account")
        connection = await find_connection(key.search, credentials)
        progress.ready(scope)
        if key.uses_context:
            # Read only here, because the namespace of the context may be invalid if it is not used.
            namespace = connection.default_namespace()
        transport = AiohttpTransport(connection)
    api = ObjectAPI(transport, max_concurrency=key.max_concurrency, namespace=namespace)
    stack.push_async_callback(api.aclose)
    return api


async def read_details(
    api: ObjectAPI, cache: ClusterCache, progress: Progress, *, with_claims: bool = True
) -> bool:
    """Read the nodes, claims and controllers that the cache lacks; return whether controllers were read."""
    has_read = False
    while True:
        if nodes := cache.unknown_nodes:
            await cache.ordering.read_nodes(api, nodes, progress)
            cache.order_again()
        elif with_claims and (claims := cache.unread_claims):
            await cache.devices.read(api, claims, progress)
            cache.order_again()
            for namespace, fault in cache.devices.faults.items():
                logger.info("devices of ResourceClaims in namespace %r are not known: %s", namespace, fault)
        elif unread := cache.unread_controllers:
            await cache.controllers.read(api, unread, progress)
            has_read = True
        else:
            return has_read
