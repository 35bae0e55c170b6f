"""The client of one API server: lists and watches of pods.

A `Transport` sends one GET. `PodAPI` adds retries, pages and typed errors to any transport. `ConnectionPool`
is the one client that the calls of an entered resolver, or of several resolvers, share.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import anyio
from yarl import URL

from aioresolve._core.http.client import (
    CONNECT_TIMEOUT,
    Auth,
    Credentials,
    HTTPClient,
    Response,
    StreamingResponse,
    origin,
    send_with_retries,
)
from aioresolve._core.http.errors import BodyTooLongError, ConnectionHints
from aioresolve._core.retry import RetryPolicy
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import APIError, ForbiddenError, ProtocolError, UnauthorizedError

from .api_errors import LIST_VERBS, error_from_response, error_from_watch_response, is_expired
from .objects import Pod, PodList, decode_list
from .pods import Rows

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.deadline import Progress

    from .auth import Connection
    from .objects import PodQuery

T = TypeVar("T")

HINTS = ConnectionHints(
    certificate="Correct certificate-authority or tls-server-name in the kubeconfig.",
    tls="Check that the port speaks https, and that the server accepts the client certificate.",
    name="Correct the server in the kubeconfig, or check the DNS.",
    proxy="Correct proxy-url in the kubeconfig, or HTTPS_PROXY and NO_PROXY.",
    url="Correct the server in the kubeconfig.",
    protocol="Check that the port is that of the API server, and whether it expects https.",
    reach="Check that the address is correct, that the server runs, and that no firewall blocks it.",
    length="Narrow the selector or the namespace, or check whether this is the API server.",
    owner="resolver",
)

logger = logging.getLogger("aioresolve.kubernetes")

AS_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
AS_LIST = "application/json"

PAGE = 250
"""Pods per page of a full list: 1 to 4 MB of JSON. Each selector holds one page in memory at a time."""

SMALL_PAGE = 16
"""Pods per page after a page that was too long: etcd limits a pod to 1.5 MiB, so these fit in any case."""

MAX_PAGES = 800
"""The maximum number of pages: 200,000 pods, more than Kubernetes supports in one cluster (150,000)."""

MAX_RESTARTS = 3
"""How often a list is restarted after its pages expired."""


class Transport(abc.ABC):
    """Sends GET requests to one API server.

    Attributes:
        can_stream: whether `stream` is supported; if not, the resolver polls instead of watching.
        has_tables: whether `get` can return Tables and select by field; if not, whole pods are listed.
    """

    can_stream = True
    has_tables = True

    @property
    @abc.abstractmethod
    def host(self) -> str:
        """The server, `scheme://host:port`."""

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Where the credentials come from, as text."""

    async def prepare(self) -> None:  # noqa: B027 - a client that the user passes has its credentials
        """Wait until the credentials are available, for which a plugin may have to run."""

    @abc.abstractmethod
    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Response:
        """Return the response to a GET, whatever its status."""

    @abc.abstractmethod
    def stream(
        self, path: str, query: Mapping[str, str], accept: str
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        """Return a context manager that yields the response to a GET, to be read as it arrives.

        The body of a failure is complete. The connection is closed after the block, even if more would
        arrive. There is no deadline but that of the caller.
        """

    async def close_idle(self) -> None:  # noqa: B027 - a client that the user passes keeps its connections
        """Close the connections that `get` keeps for its next call, unless one is in use."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close what the transport opened itself, including streams that are being read."""


class _ConnectionAuth(Auth):
    """The credentials of a `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def credentials(self) -> Credentials:
        return Credentials(*await self._connection.credentials())

    async def renew(self, rejected: Credentials, response: Response) -> Credentials | None:
        # The request is sent again even if the credentials are the same: a starting API server also rejects
        # valid ones.
        await self._connection.renew(rejected.headers)
        return await self.credentials()

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        return await self._connection.renew_trust(rejected)


class AiohttpTransport(Transport):
    """Sends requests with our own HTTP client and the credentials of a `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._auth = _ConnectionAuth(connection)
        self._client = self._new_client()
        # Streams have connections of their own: one that carried a long list keeps the memory it took.
        self._streams = self._new_client()

    @property
    def host(self) -> str:
        return origin(self._connection.server)

    @property
    def source(self) -> str:
        return self._connection.source

    async def prepare(self) -> None:
        await self._auth.credentials()

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Response:
        return await self._client.send(
            "GET",
            self._url(path, query),
            scope=f"GET {path}",
            headers={"Accept": accept},
            auth=self._auth,
        )

    def stream(
        self, path: str, query: Mapping[str, str], accept: str
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        # Compression would save little on small events, and a decoder for each stream takes memory.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        return self._streams.stream(
            "GET", self._url(path, query), scope=f"GET {path}", headers=headers, auth=self._auth
        )

    async def close_idle(self) -> None:
        await self._client.close_idle()

    async def aclose(self) -> None:
        try:
            await self._client.aclose()
        finally:
            await self._streams.aclose()

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        return URL(self._connection.server + path).with_query(query)

    def _new_client(self) -> HTTPClient:
        proxy = self._connection.proxy
        return HTTPClient(
            hints=HINTS,
            source=self._connection.source,
            headers=self._connection.fixed_headers,
            socket_timeout=CONNECT_TIMEOUT,
            server_hostname=self._connection.tls_server_name,
            proxy=lambda _: proxy,
        )


@dataclass(frozen=True, slots=True)
class FoundPods:
    """The pods that match a query, in the order of the server, and the resourceVersion of the list."""

    pods: list[Pod]
    version: str


class PodAPI:
    """The pods of one API server; at most `max_concurrency` requests are sent at a time.

    `namespace` is the one that the credentials came with: that of the context, or of the pod.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        max_concurrency: int,
        policy: RetryPolicy | None = None,
        namespace: str = "default",
    ) -> None:
        self.namespace = namespace
        self._transport = transport
        self._limiter = anyio.CapacityLimiter(max_concurrency)
        self._policy = policy or RetryPolicy()
        self._closed = anyio.Event()
        self._sleeps: dict[anyio.CancelScope, float] = {}  # to the earliest end, on the loop's clock

    @property
    def is_closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed.is_set()

    async def sleep(self, seconds: float, *, at_least: float = 0.0) -> bool:
        """Sleep for `seconds`, for `at_least` seconds if `end_sleeps` is called, or until `aclose` is called.

        Returns:
            Whether `end_sleeps` did not shorten it.
        """
        now = anyio.current_time()
        with anyio.CancelScope(deadline=now + seconds) as sleep:
            self._sleeps[sleep] = now + at_least
            try:
                await self._closed.wait()
            finally:
                del self._sleeps[sleep]
        return sleep.deadline == now + seconds

    def end_sleeps(self, *, within: float) -> None:
        """End all sleeps at random times within this number of seconds."""
        now = anyio.current_time()
        for sleep, earliest_end in self._sleeps.items():
            end = max(now + random.uniform(0.0, within), earliest_end)  # noqa: S311
            sleep.deadline = min(sleep.deadline, end)

    @property
    def has_tables(self) -> bool:
        """Whether `rows` can be used; see `Transport`."""
        return self._transport.has_tables

    async def rows(self, query: PodQuery, progress: Progress) -> Rows | FoundPods | None:
        """Return the rows of a Table, or pods from a server that does not support Tables of pods.

        None if only a paged list is possible: the server rejects Tables, or splits this one into pages.
        """
        parameters = {**query.parameters, "includeObject": "None"}
        try:
            found = await self._get(query, parameters, AS_TABLE, progress, _decode_rows)
        except APIError as error:
            if error.status == 406:
                return None
            raise
        progress.done(query.scope, "received")
        return found

    async def pods(
        self, query: PodQuery, progress: Progress, *, verbs: Sequence[str] = LIST_VERBS
    ) -> FoundPods:
        """Return every pod that matches the query, with all fields, read page by page.

        `verbs` are the RBAC verbs that the caller needs, for the error if they are denied. If the query has a
        version, it may have expired (410).
        """
        restarts = 0
        while True:
            try:
                found = await self._pages(query, progress, verbs)
            except APIError as error:
                if not is_expired(error) or restarts == MAX_RESTARTS or query.version:
                    raise
                restarts += 1
                progress.failed(query.scope, error)
            else:
                progress.done(query.scope, f"{len(found.pods)} pods")
                return found

    @asynccontextmanager
    async def watch(self, query: PodQuery, version: str, lifetime: float) -> AsyncIterator[StreamingResponse]:
        """Yield the stream of a watch, with pods and bookmarks, as soon as its headers have arrived.

        The events contain whole pods, because a Table does not have their exact phase and readiness. The
        watch starts after the resourceVersion `version`; the server should end it after `lifetime` seconds.
        """
        transport = self._transport
        parameters = {
            **query.parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{lifetime:.0f}",
        }
        # The call ends with the headers of the response; the stream must outlive it.
        async with AsyncExitStack() as stack:
            with HTTPCall(
                logger, "GET", transport.host, query.path, scope=f"watch of {query.scope}", query=parameters
            ) as call:
                stream = await stack.enter_async_context(transport.stream(query.path, parameters, AS_LIST))
                call.set_response(stream.response.status)
            if stream.response.status != 200:
                raise error_from_watch_response(
                    stream.response, query, host=transport.host, source=transport.source
                )
            yield stream

    @property
    def host(self) -> str:
        """The server, `scheme://host:port`."""
        return self._transport.host

    @property
    def source(self) -> str:
        """Where the credentials come from, as text."""
        return self._transport.source

    async def close_idle(self) -> None:
        """Close the connections that are kept for the next list, unless one is in use."""
        await self._transport.close_idle()

    async def aclose(self) -> None:
        """Close the transport."""
        try:
            await self._transport.aclose()
        finally:
            self._closed.set()

    def invalid_list(self, query: PodQuery, reason: str) -> ProtocolError:
        """Return the error for a response to `query` that is not a list of pods."""
        host = self._transport.host
        return ProtocolError(
            f"{host} returned an invalid pod list for {query.scope}: {reason}",
            hint="Check that the kubeconfig points to a Kubernetes API server, not to a login page.",
            host=host,
            scope=query.scope,
        )

    def invalid_event(self, query: PodQuery, reason: str) -> ProtocolError:
        """Return the error for an invalid or impossible event of a watch."""
        host = self._transport.host
        return ProtocolError(
            f"invalid watch event from {host} for {query.scope}: {reason}",
            hint="Check the server, and any proxy in front of it.",
            host=host,
            scope=query.scope,
        )

    async def _pages(self, query: PodQuery, progress: Progress, verbs: Sequence[str]) -> FoundPods:
        pods: list[Pod] = []
        continue_ = ""
        limit = PAGE
        for _ in range(MAX_PAGES):
            page_query = query.page(limit, continue_)
            parameters = page_query.parameters
            try:
                page = await self._get(page_query, parameters, AS_LIST, progress, _decode_page, verbs)
            except BodyTooLongError:
                if limit <= SMALL_PAGE:
                    raise
                limit = SMALL_PAGE
                continue
            pods += page.items or ()
            if not page.metadata.continue_:
                return FoundPods(pods, page.metadata.resource_version)
            continue_ = page.metadata.continue_
        raise ProtocolError(
            f"{self._transport.host} returned more than {MAX_PAGES} pages ({len(pods)} pods) for"
            f" {query.scope}, more than a cluster can have",
            hint="Narrow the selector, or check whether this is the API server.",
            host=self._transport.host,
            scope=query.scope,
        )

    async def _get(
        self,
        query: PodQuery,
        parameters: dict[str, str],
        accept: str,
        progress: Progress,
        decode: Callable[[bytes], T],
        verbs: Sequence[str] = LIST_VERBS,
    ) -> T:
        """Return the decoded response to a GET, sent with retries."""
        transport = self._transport
        scope = query.scope

        async def send(attempts: Iterator[int]) -> Response:
            attempt = next(attempts)
            with HTTPCall(
                logger, "GET", transport.host, query.path, scope=scope, attempt=attempt, query=parameters
            ) as call:
                response = await transport.get(query.path, parameters, accept)
                call.set_response(response.status, len(response.body))
            if response.status == 200:
                return response
            error = error_from_response(
                response, query, host=transport.host, source=transport.source, verbs=verbs
            )
            if isinstance(error, (ForbiddenError, UnauthorizedError)) and progress.last_error is not None:
                # An API server that has just started rejects every user until it has read its roles.
                error.retryable = True
            raise error

        progress.waiting(scope, f"the credentials of {transport.source} are not available yet")
        await transport.prepare()
        response = await send_with_retries(
            send,
            scope=scope,
            host=transport.host,
            progress=progress,
            policy=self._policy,
            limiter=self._limiter,
        )
        try:
            return decode(response.body)
        except ValueError as error:
            reason = response.redact(str(error))
        # Outside of `except`: the context would show what was redacted.
        raise self.invalid_list(query, reason)


def _decode_rows(body: bytes) -> Rows | FoundPods | None:
    found = decode_list(body)
    if found.metadata.continue_:
        return None
    if isinstance(found, PodList):
        return FoundPods(found.items or [], found.metadata.resource_version)
    return Rows.from_table(found)


def _decode_page(body: bytes) -> PodList:
    page = decode_list(body)
    if not isinstance(page, PodList):
        raise ValueError("a Table was returned in place of a PodList")
    return page


class ConnectionPool:
    """One PodAPI, opened by the first call that needs it. It belongs to the running event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lock = anyio.Lock()
        self._api: PodAPI | None = None
        self._is_closed = False

    async def get(self, create: Callable[[], Awaitable[PodAPI]]) -> PodAPI:
        """Return the PodAPI; the first call creates it."""
        async with self._lock:
            if self._api is None:
                self._api = await create()
                if self._is_closed:
                    # `async with` ended while it was created: the requests of this call will fail.
                    await self._api.aclose()
            return self._api

    async def aclose(self) -> None:
        """Close the PodAPI, or one that is being created as soon as it is."""
        self._is_closed = True
        if self._api is not None:
            await self._api.aclose()
