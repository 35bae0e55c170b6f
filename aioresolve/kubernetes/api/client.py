"""The client of one API server: lists and watches of pods and other objects.

A `Transport` sends one GET. `ObjectAPI` adds retries, pages and typed errors to any transport.
"""

from __future__ import annotations

import abc
import logging
import random
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio
import msgspec
from yarl import URL

from aioresolve._core.http import (
    CONNECT_TIMEOUT,
    Auth,
    BodyTooLongError,
    ConnectionHints,
    Credentials,
    HTTPClient,
    Response,
    StreamingResponse,
    origin,
)
from aioresolve._core.retry import RETRYABLE_STATUSES, RetryPolicy, send_with_retries
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import APIError, ForbiddenError, ProtocolError, UnauthorizedError

from .errors import LIST_VERBS, error_from_response, error_from_watch_response, is_expired
from .objects import Rows, Table, decode_list
from .splitting import ListSplitter

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.deadline import Progress
    from aioresolve.errors import ResolveError
    from aioresolve.kubernetes.auth import Connection

    from .objects import ListMeta, PodQuery, Query

T = TypeVar("T")
U = TypeVar("U")

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
"""For whole pods too: in protobuf they arrive no sooner, and Python takes longer to decode them."""

PAGE = 250
"""Pods per page, 1 to 4 MB of JSON, where a list in one response fails."""

SMALL_PAGE = 16
"""Pods per page after a page that was too long: etcd limits a pod to 1.5 MiB, so these fit in any case."""

MAX_PAGES = 800
"""The maximum number of pages: 200,000 pods, more than Kubernetes supports in one cluster (150,000)."""

MAX_LIST = 512 << 20
"""The maximum length of a list in one response, in bytes: 64,000 pods of 8 KB."""

SLICE = 128 << 10
"""How many bytes of a list are decoded at a time."""

PAGES_AFTER = frozenset({200, 413, 500, 504})
"""The statuses of a list in one response after which pages are requested, because the server may be unable to
send all of it. After a 200, the connection may have broken, or the server may have split the list itself."""

MAX_RESTARTS = 3
"""How often a list is restarted after its pages expired."""


class Transport(abc.ABC):
    """Sends GET requests to one API server.

    Attributes:
        can_stream: whether `stream` is supported; if not, the resolver polls instead of watching.
        has_tables: whether `get` can return Tables and select by field; if not, whole pods are listed.
        reads_any_path: whether `get` can read objects other than pods.
    """

    can_stream = True
    has_tables = True
    reads_any_path = True

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

    def stream(
        self, path: str, query: Mapping[str, str], accept: str
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        """Return a context manager that yields the response to a GET, to be read as it arrives.

        The body of a failure is complete. The connection is closed after the block, even if more would
        arrive. Only a deadline of the caller ends it. Not called if `can_stream` is false.
        """
        raise NotImplementedError

    def receive(
        self, path: str, query: Mapping[str, str], accept: str
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        """Return the same as `stream`, for a long response that ends; its connection may be used again."""
        return self.stream(path, query, accept)

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

    async def post(self, path: str, body: bytes) -> Response:
        """Return the response to a POST of a JSON document, whatever its status."""
        return await self._client.send(
            "POST",
            self._url(path, {}),
            scope=f"POST {path}",
            headers={"Accept": AS_LIST, "Content-Type": "application/json"},
            body=body,
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

    def receive(
        self, path: str, query: Mapping[str, str], accept: str
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        return self._client.stream(
            "GET",
            self._url(path, query),
            scope=f"GET {path}",
            headers={"Accept": accept},
            auth=self._auth,
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


class Found(msgspec.Struct, Generic[T], frozen=True):
    """The objects that match a query, in the order of the server, and the resourceVersion of the list."""

    items: list[T]
    version: str


class ObjectAPI:
    """The objects of one API server; at most `max_concurrency` requests are sent at a time.

    Attributes:
        namespace: the one that the credentials came with: that of the context, or of the pod.
        limiter: limits the number of requests that are sent at a time.
        sends_initial_events: whether the server may support watches that start with the existing objects. It
            is set to False when the server refuses one.
        claim_version: the newest version of ResourceClaims that the server may support.
    """

    sends_initial_events = True
    claim_version = "v1"

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
        self.limiter = anyio.CapacityLimiter(max_concurrency)
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

    async def prepare(self, query: Query[Any], progress: Progress) -> None:
        """Wait until the credentials for `query` are available, for which a plugin may have to run."""
        progress.waiting(query.scope, f"the credentials of {self.source} are not available yet")
        await self._transport.prepare()

    async def rows(self, query: PodQuery, progress: Progress) -> Rows | None:
        """Return the rows of a Table; None if the server has no Tables, or splits this one into pages."""
        parameters = {**query.parameters, "includeObject": "None"}

        async def send(attempts: Iterator[int]) -> Response:
            return await self._send(query, parameters, AS_TABLE, progress, LIST_VERBS, attempts)

        try:
            response = await self._retry(query, progress, send)
        except APIError as error:
            if error.status == 406:
                return None
            raise
        rows = self._decode(query, response, lambda: _decode_rows(response.body))
        progress.done(query.scope, "received")
        return rows

    @overload
    async def objects(
        self, query: Query[T], progress: Progress, *, verbs: Sequence[str] = LIST_VERBS
    ) -> Found[T]: ...

    @overload
    async def objects(
        self,
        query: Query[T],
        progress: Progress,
        *,
        convert: Callable[[list[T]], list[U]],
        verbs: Sequence[str] = LIST_VERBS,
    ) -> Found[U]: ...

    async def objects(
        self,
        query: Query[T],
        progress: Progress,
        *,
        convert: Callable[[list[T]], list[Any]] = list,
        verbs: Sequence[str] = LIST_VERBS,
    ) -> Found[Any]:
        """Return every object that matches the query, with all fields.

        They are requested in one response, because each page costs the server a new list, and decoded while
        it arrives. If that response is refused, cut or too long, they are requested in pages. `convert` is
        called with some of them at a time, and returns the part to keep.

        `verbs` are the RBAC verbs that the caller needs, for the error if they are denied. If the query has a
        version, it may have expired (410).
        """
        restarts = 0
        while True:
            try:
                found = await self._list(query, progress, convert, verbs)
            except APIError as error:
                if not is_expired(error) or restarts == MAX_RESTARTS or query.version:
                    raise
                restarts += 1
                progress.failed(query.scope, error)
            else:
                progress.done(query.scope, f"{len(found.items)} {query.resource.name}")
                return found

    async def read(self, path: str, scope: str, progress: Progress) -> bytes | None:
        """Return the body of one object, which may be of any kind.

        None if it does not exist, or if the user or the client cannot read it.
        """
        transport = self._transport
        if not transport.reads_any_path:
            return None

        async def send(attempts: Iterator[int]) -> Response:
            with HTTPCall(
                logger, "GET", transport.host, path, scope=scope, attempt=next(attempts), expected=(403, 404)
            ) as call:
                response = await transport.get(path, {}, AS_LIST)
                call.set_response(response.status, len(response.body))
            if response.status not in RETRYABLE_STATUSES:
                return response
            raise APIError(
                f"{transport.host} returned {response.status} for {scope}: the server is overloaded",
                hint="Try again later.",
                host=transport.host,
                scope=scope,
                status=response.status,
                retry_after=response.retry_after,
                retryable=True,
            )

        progress.waiting(scope, "no response yet")
        await transport.prepare()
        response = await send_with_retries(
            send,
            scope=scope,
            host=transport.host,
            progress=progress,
            policy=self._policy,
            limiter=self.limiter,
        )
        progress.done(scope, f"status {response.status}")
        return response.body if response.status == 200 else None

    @asynccontextmanager
    async def watch(
        self, query: Query[Any], version: str | None, lifetime: float
    ) -> AsyncIterator[StreamingResponse]:
        """Yield the stream of a watch, with objects and bookmarks, as soon as its headers have arrived.

        The events contain whole pods, because a Table does not have their exact phase and readiness. The
        watch starts after the resourceVersion `version`; with None it starts with an event for each object
        that exists, and a bookmark after them. The server should end it after `lifetime` seconds.
        """
        transport = self._transport
        if version is None:
            start = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            start = {"resourceVersion": version}
        parameters = {
            **query.parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            **start,
            "timeoutSeconds": f"{lifetime:.0f}",
        }
        # The call ends with the headers of the response; the stream must outlive it.
        async with AsyncExitStack() as stack:
            with HTTPCall(
                logger, "GET", transport.host, query.path, scope=f"watch of {query.scope}", query=parameters
            ) as call:
                opening = transport.stream(query.path, parameters, AS_LIST)
                stream = await stack.enter_async_context(opening)
                call.set_response(stream.response.status)
            if stream.response.status != 200:
                raise error_from_watch_response(
                    stream.response, query, host=transport.host, source=transport.source
                )
            content_type: str = stream.response.headers.get("Content-Type", "")
            media_type = content_type.partition(";")[0].strip().lower()
            if media_type not in ("", AS_LIST):
                # A login page may remain open, or end, without an event that would show what it is.
                raise self.invalid_event(query, f"the Content-Type is {media_type!r}")
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

    def invalid_list(self, query: Query[Any], reason: str) -> ProtocolError:
        """Return the error for a response to `query` that is not a list of such objects."""
        host = self._transport.host
        return ProtocolError(
            f"{host} returned an invalid {query.resource.noun} list for {query.scope}: {reason}",
            hint="Check that the kubeconfig points to a Kubernetes API server, not to a login page.",
            host=host,
            scope=query.scope,
        )

    def invalid_event(self, query: Query[Any], reason: str) -> ProtocolError:
        """Return the error for an invalid or impossible event of a watch."""
        host = self._transport.host
        return ProtocolError(
            f"invalid watch event from {host} for {query.scope}: {reason}",
            hint="Check the server, and any proxy in front of it.",
            host=host,
            scope=query.scope,
        )

    async def _list(
        self,
        query: Query[T],
        progress: Progress,
        convert: Callable[[list[T]], list[U]],
        verbs: Sequence[str],
    ) -> Found[U]:
        items: list[U] = []
        continue_ = ""
        limit = None if self._transport.can_stream else PAGE

        def use_pages() -> None:
            nonlocal limit
            limit = PAGE

        async def send(attempts: Iterator[int]) -> tuple[list[U], ListMeta]:
            page_query = query.page(limit, continue_)
            if limit is None:
                return await self._receive(page_query, progress, convert, verbs, attempts, use_pages)
            parameters = page_query.parameters
            response = await self._send(page_query, parameters, AS_LIST, progress, verbs, attempts)
            page = self._decode(page_query, response, lambda: query.resource.decode_page(response.body))
            return convert(page.items or []), page.metadata

        for _ in range(MAX_PAGES):
            requested = limit
            try:
                page, metadata = await self._retry(query, progress, send)
            except BodyTooLongError:
                if requested == SMALL_PAGE:
                    raise
                limit = PAGE if requested is None else SMALL_PAGE
                continue
            except APIError as error:
                if requested is None and error.status == 413:
                    continue
                raise
            items += page
            if not metadata.continue_:
                return Found(items, metadata.resource_version)
            continue_ = metadata.continue_
        raise ProtocolError(
            f"{self._transport.host} returned more than {MAX_PAGES} pages ({len(items)}"
            f" {query.resource.name}) for {query.scope}, more than a cluster can have",
            hint="Narrow the selector, or check whether this is the API server.",
            host=self._transport.host,
            scope=query.scope,
        )

    async def _receive(
        self,
        query: Query[T],
        progress: Progress,
        convert: Callable[[list[T]], list[U]],
        verbs: Sequence[str],
        attempts: Iterator[int],
        use_pages: Callable[[], None],
    ) -> tuple[list[U], ListMeta]:
        """Send one GET, and decode the items of the response while it arrives.

        `use_pages` is called if the rest, or another attempt, has to be requested in pages.
        """
        parameters = query.parameters
        items: list[U] = []
        length = 0
        with self._call(query, parameters, attempts) as call:
            async with self._transport.receive(query.path, parameters, AS_LIST) as stream:
                response = stream.response
                call.set_response(response.status, len(response.body))
                if response.status in PAGES_AFTER:
                    use_pages()
                splitter = ListSplitter(query.resource)
                if response.status == 200:
                    while chunk := memoryview(await stream.read()):
                        length += len(chunk)
                        # What was compressed may arrive as megabytes at a time.
                        for start in range(0, len(chunk), SLICE):
                            piece = chunk[start : start + SLICE]
                            items += convert(self._decode(query, response, partial(splitter.feed, piece)))
                        stream.check_length(splitter.pending)
                        stream.check_length(length, limit=MAX_LIST)
                        if len(items) > MAX_PAGES * PAGE:
                            raise self.invalid_list(
                                query, f"it has more than {MAX_PAGES * PAGE} {query.resource.name}"
                            )
                    call.set_response(response.status, length)
        if response.status != 200:
            raise self._error(response, query, progress, verbs)
        page = self._decode(query, response, splitter.finish)
        return items + convert(page.items or []), page.metadata

    async def _retry(
        self, query: Query[Any], progress: Progress, send: Callable[[Iterator[int]], Awaitable[T]]
    ) -> T:
        """Return the result of `send`, repeated while its error is retryable."""
        await self.prepare(query, progress)
        return await send_with_retries(
            send,
            scope=query.scope,
            host=self._transport.host,
            progress=progress,
            policy=self._policy,
            limiter=self.limiter,
        )

    async def _send(
        self,
        query: Query[Any],
        parameters: dict[str, str],
        accept: str,
        progress: Progress,
        verbs: Sequence[str],
        attempts: Iterator[int],
    ) -> Response:
        """Send one GET; return the response if its status is 200."""
        with self._call(query, parameters, attempts) as call:
            response = await self._transport.get(query.path, parameters, accept)
            call.set_response(response.status, len(response.body))
        if response.status != 200:
            raise self._error(response, query, progress, verbs)
        return response

    def _call(self, query: Query[Any], parameters: dict[str, str], attempts: Iterator[int]) -> HTTPCall:
        host = self._transport.host
        return HTTPCall(
            logger, "GET", host, query.path, scope=query.scope, attempt=next(attempts), query=parameters
        )

    def _error(
        self, response: Response, query: Query[Any], progress: Progress, verbs: Sequence[str]
    ) -> ResolveError:
        """Return the error for a response whose status is not 200."""
        transport = self._transport
        error = error_from_response(
            response, query, host=transport.host, source=transport.source, verbs=verbs
        )
        if isinstance(error, (ForbiddenError, UnauthorizedError)) and progress.last_error is not None:
            # An API server that has just started rejects every user until it has read its roles.
            error.retryable = True
        return error

    def _decode(self, query: Query[Any], response: Response, decode: Callable[[], T]) -> T:
        """Return what `decode` returns, a part of the response to `query`."""
        try:
            return decode()
        except ValueError as error:
            raise self.invalid_list(query, str(error)) from error


def _decode_rows(body: bytes) -> Rows | None:
    found = decode_list(body)
    return Rows.from_table(found) if isinstance(found, Table) and not found.metadata.continue_ else None
