"""The client of one API server: lists and watches of pods and other objects.

A `Transport` sends one request. `ObjectAPI` adds retries, pages and typed errors to any transport.
"""

from __future__ import annotations

import abc
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio
import msgspec
from yarl import URL

from aioresolve._core.deadline import RETRYABLE_STATUSES, RetryPolicy, send_with_retries
from aioresolve._core.http import (
    CONNECT_TIMEOUT,
    Auth,
    BodyTooLongError,
    ConnectionHints,
    Credentials,
    HTTPClient,
    Response,
    StreamingResponse,
)
from aioresolve._core.network import origin
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import APIError, ForbiddenError, ProtocolError, UnauthorizedError

from .errors import LIST_VERBS, error_from_response, error_from_watch_response, is_expired
from .objects import Rows, Table, decode_list
from .splitting import ListSplitter

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
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
AS_JSON = "application/json"
"""For whole pods too: in protobuf they arrive no sooner, and Python takes longer to decode them."""
ACCEPT_JSON = {"Accept": AS_JSON}
MERGE_PATCH = "application/merge-patch+json"

PAGE = 250
"""Pods per page, 1 to 4 MB of JSON, where a list in one response fails."""

MAX_PAGES = 800
"""The maximum number of pages: 200,000 pods, more than Kubernetes supports in one cluster (150,000)."""

MAX_LIST = 512 << 20
"""The maximum length of a list in one response, in bytes: 64,000 pods of 8 KB."""

PAGES_AFTER = frozenset({200, 413, 500, 504})
"""The statuses of a list in one response after which pages are requested, because the server may be unable to
send all of it. After a 200, the connection may have broken, or the server may have split the list itself."""

UNREADABLE = frozenset(range(300, 600)) - RETRYABLE_STATUSES
"""The statuses that mean that an object cannot be read."""

MAX_RESTARTS = 3
"""How often a list is restarted after its pages expired."""


class Transport(abc.ABC):
    """Sends requests to one API server.

    Attributes:
        only_lists_pods: whether it only lists whole pods: the resolver then polls instead of watching, and
            reads no other objects.
    """

    only_lists_pods = False

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
    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] = ACCEPT_JSON,
        body: bytes | None = None,
    ) -> Response:
        """Send a request and return the response, whatever its status."""

    def stream(
        self, path: str, query: Mapping[str, str], *, is_watch: bool = True
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        """Return a context manager that yields the response to a GET, to be read as it arrives.

        The body of a failure is complete. The connection is closed after the block, even if more would
        arrive. Only a deadline of the caller ends it. Not called if `only_lists_pods` is true.
        """
        raise NotImplementedError

    async def close_idle(self) -> None:  # noqa: B027 - a client that the user passes keeps its connections
        """Close the connections that are kept for the next request, unless one is in use."""

    async def aclose(self) -> None:  # noqa: B027 - the user closes a client that they pass
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
        # Watches have connections of their own: one that carried a long list keeps the memory it took.
        self._watches = self._new_client()

    @property
    def host(self) -> str:
        return origin(self._connection.server)

    @property
    def source(self) -> str:
        return self._connection.source

    async def prepare(self) -> None:
        await self._auth.credentials()

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] = ACCEPT_JSON,
        body: bytes | None = None,
    ) -> Response:
        url = self._url(path, query)
        return await self._client.send(
            method, url, scope=f"{method} {path}", headers=headers, body=body, auth=self._auth
        )

    def stream(
        self, path: str, query: Mapping[str, str], *, is_watch: bool = True
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        client, headers = self._client, ACCEPT_JSON
        if is_watch:
            # Compression would save little on small events, and a decoder for each stream takes memory.
            client, headers = self._watches, {**headers, "Accept-Encoding": "identity"}
        url = self._url(path, query)
        return client.stream("GET", url, scope=f"GET {path}", headers=headers, auth=self._auth)

    async def close_idle(self) -> None:
        await self._client.close_idle()

    async def aclose(self) -> None:
        try:
            await self._client.aclose()
        finally:
            await self._watches.aclose()

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
    """

    sends_initial_events = True

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

    @property
    def host(self) -> str:
        """The server, `scheme://host:port`."""
        return self._transport.host

    @property
    def source(self) -> str:
        """Where the credentials come from, as text."""
        return self._transport.source

    @property
    def has_tables(self) -> bool:
        """Whether `rows` can be used."""
        return not self._transport.only_lists_pods

    @property
    def is_closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed.is_set()

    async def close_idle(self) -> None:
        """Close the connections that are kept for the next list, unless one is in use."""
        await self._transport.close_idle()

    async def aclose(self) -> None:
        """Close the transport."""
        try:
            await self._transport.aclose()
        finally:
            self._closed.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `aclose` is called."""
        with anyio.move_on_after(seconds):
            await self._closed.wait()

    async def prepare(self, scope: str, progress: Progress) -> None:
        """Wait until the credentials for `scope` are available, for which a plugin may have to run."""
        progress.waiting(scope, f"the credentials of {self.source} are not available yet")
        await self._transport.prepare()

    async def request(
        self,
        method: str,
        query: Query[Any],
        name: str,
        progress: Progress,
        *,
        body: bytes | None = None,
        content_type: str = AS_JSON,
        verbs: Sequence[str],
        expected: Collection[int] = (),
    ) -> Response:
        """Send a request for one object, or with an empty `name` for the collection, and return the response.

        `query` says which resource and namespace it is in. A request that fails is repeated until the
        deadline, so it must be one that can be repeated. `verbs` are the RBAC verbs that it needs.

        Raises:
            ResolveError: the status is neither of success nor in `expected`.
        """
        scope = f"{query.resource.noun} {name!r} in {query.where}"
        fail = partial(self._error, query, progress, verbs)
        options: dict[str, Any] = {"expected": expected, "body": body, "content_type": content_type}
        send = partial(self._send, method, f"{query.path}/{name}".rstrip("/"), scope, fail, **options)
        response = await self._retry(scope, progress, send)
        progress.done(scope, f"status {response.status}")
        return response

    async def read(self, path: str, scope: str, progress: Progress) -> bytes | None:
        """Return the body of one object, which may be of any kind.

        None if it does not exist, or if the user or the client cannot read it.
        """
        if self._transport.only_lists_pods:
            return None

        def fail(response: Response) -> ResolveError:
            return APIError(
                f"{self.host} returned {response.status} for {scope}: the server is overloaded",
                hint="Try again later.",
                host=self.host,
                scope=scope,
                status=response.status,
                retry_after=response.retry_after,
                retryable=True,
            )

        send = partial(self._send, "GET", path, scope, fail, expected=UNREADABLE)
        response = await self._retry(scope, progress, send)
        progress.done(scope, f"status {response.status}")
        return response.body if response.status == 200 else None

    async def rows(self, query: PodQuery, progress: Progress) -> Rows | None:
        """Return the rows of a Table; None if the server has no Tables, or splits this one into pages."""
        parameters = {**query.parameters, "includeObject": "None"}
        fail = partial(self._error, query, progress, LIST_VERBS)
        options: dict[str, Any] = {"parameters": parameters, "expected": (406,), "accept": AS_TABLE}
        send = partial(self._send, "GET", query.path, query.scope, fail, **options)
        response = await self._retry(query.scope, progress, send)
        if response.status == 406:
            return None
        found = self._decode(query, partial(decode_list, response.body))
        progress.done(query.scope, "received")
        if not isinstance(found, Table) or found.metadata.continue_:
            return None
        return self._decode(query, partial(Rows.from_table, found))

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

    @asynccontextmanager
    async def watch(
        self, query: Query[Any], version: str | None, lifetime: float
    ) -> AsyncIterator[StreamingResponse]:
        """Yield the stream of a watch, with objects and bookmarks, as soon as its headers have arrived.

        The events contain whole pods, because a Table does not have their exact phase and readiness. The
        watch starts after the resourceVersion `version`; with None it starts with an event for each object
        that exists, and a bookmark after them. The server should end it after `lifetime` seconds.
        """
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
                logger, "GET", self.host, query.path, scope=f"watch of {query.scope}", query=parameters
            ) as call:
                opening = self._transport.stream(query.path, parameters, is_watch=True)
                stream = await stack.enter_async_context(opening)
                call.set_response(stream.response.status)
            if stream.response.status != 200:
                raise error_from_watch_response(stream.response, query, host=self.host, source=self.source)
            content_type: str = stream.response.headers.get("Content-Type", "")
            media_type = content_type.partition(";")[0].strip().lower()
            if media_type not in ("", AS_JSON):
                # A login page may remain open, or end, without an event that would show what it is.
                raise self.invalid_event(query, f"the Content-Type is {media_type!r}")
            yield stream

    def invalid_event(self, query: Query[Any], reason: str) -> ProtocolError:
        """Return the error for an invalid or impossible event of a watch."""
        return ProtocolError(
            f"invalid watch event from {self.host} for {query.scope}: {reason}",
            hint="Check the server, and any proxy in front of it.",
            host=self.host,
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
        limit, continue_ = None, ""

        def use_pages() -> None:
            nonlocal limit
            limit = PAGE

        async def send(attempts: Iterator[int]) -> tuple[list[U], ListMeta]:
            page = query.page(limit, continue_)
            fail = partial(self._error, page, progress, verbs)
            if not self._transport.only_lists_pods:
                return await self._receive(page, convert, fail, use_pages, attempts)
            response = await self._send(
                "GET", page.path, page.scope, fail, attempts, parameters=page.parameters
            )
            listed = self._decode(query, partial(query.resource.decode_page, response.body))
            return convert(listed.items or []), listed.metadata

        for _ in range(MAX_PAGES):
            is_whole = limit is None
            try:
                page, metadata = await self._retry(query.scope, progress, send)
            except (APIError, BodyTooLongError) as error:
                if is_whole and (isinstance(error, BodyTooLongError) or error.status == 413):
                    use_pages()
                    continue
                raise
            items += page
            if not metadata.continue_:
                return Found(items, metadata.resource_version)
            continue_ = metadata.continue_
        raise ProtocolError(
            f"{self.host} returned more than {MAX_PAGES} pages ({len(items)} {query.resource.name}) for"
            f" {query.scope}, more than a cluster can have",
            hint="Narrow the selector, or check whether this is the API server.",
            host=self.host,
            scope=query.scope,
        )

    async def _receive(
        self,
        query: Query[T],
        convert: Callable[[list[T]], list[U]],
        fail: Callable[[Response], ResolveError],
        use_pages: Callable[[], None],
        attempts: Iterator[int],
    ) -> tuple[list[U], ListMeta]:
        """Send one GET, and decode the items of the response while it arrives.

        `use_pages` is called if the rest, or another attempt, has to be requested in pages.
        """
        items: list[U] = []
        length, splitter, parameters = 0, ListSplitter(query.resource), query.parameters
        with self._call("GET", query.path, query.scope, attempts, parameters) as call:
            async with self._transport.stream(query.path, parameters, is_watch=False) as stream:
                response = stream.response
                call.set_response(response.status, len(response.body))
                if response.status in PAGES_AFTER:
                    use_pages()
                while response.status == 200 and (chunk := await stream.read()):
                    length += len(chunk)
                    stream.check_length(length, limit=None if query.limit else MAX_LIST)
                    items += convert(self._decode(query, partial(splitter.feed, chunk)))
                    stream.check_length(splitter.pending)
                    call.set_response(response.status, length)
        if response.status != 200:
            raise fail(response)
        page = self._decode(query, splitter.finish)
        return items + convert(page.items or []), page.metadata

    async def _send(
        self,
        method: str,
        path: str,
        scope: str,
        fail: Callable[[Response], ResolveError],
        attempts: Iterator[int],
        *,
        parameters: Mapping[str, str] | None = None,
        expected: Collection[int] = (),
        accept: str = AS_JSON,
        body: bytes | None = None,
        content_type: str = AS_JSON,
    ) -> Response:
        """Send one request. If its response is neither a success nor expected, raise what `fail` returns."""
        headers = {"Accept": accept} if body is None else {"Accept": accept, "Content-Type": content_type}
        with self._call(method, path, scope, attempts, parameters, expected) as call:
            response = await self._transport.send(method, path, parameters or {}, headers=headers, body=body)
            call.set_response(response.status, len(response.body))
        if response.status < 300 or response.status in expected:
            return response
        raise fail(response)

    async def _retry(
        self, scope: str, progress: Progress, send: Callable[[Iterator[int]], Awaitable[T]]
    ) -> T:
        """Return the result of `send`, repeated while its error is retryable."""
        await self.prepare(scope, progress)
        return await send_with_retries(
            send, scope=scope, host=self.host, progress=progress, policy=self._policy, limiter=self.limiter
        )

    def _call(
        self,
        method: str,
        path: str,
        scope: str,
        attempts: Iterator[int],
        parameters: Mapping[str, str] | None,
        expected: Collection[int] = (),
    ) -> HTTPCall:
        options: dict[str, Any] = {"attempt": next(attempts), "query": parameters, "expected": expected}
        return HTTPCall(logger, method, self.host, path, scope=scope, **options)

    def _error(
        self, query: Query[Any], progress: Progress, verbs: Sequence[str], response: Response
    ) -> ResolveError:
        """Return the error for a response that is not a success."""
        error = error_from_response(response, query, host=self.host, source=self.source, verbs=verbs)
        if isinstance(error, (ForbiddenError, UnauthorizedError)) and progress.last_error is not None:
            # An API server that has just started rejects every user until it has read its roles.
            error.retryable = True
        return error

    def _decode(self, query: Query[Any], decode: Callable[[], T]) -> T:
        """Return what `decode` returns, a part of the response to `query`."""
        try:
            return decode()
        except ValueError as error:
            raise ProtocolError(
                f"{self.host} returned an invalid {query.resource.noun} list for {query.scope}: {error}",
                hint="Check that the kubeconfig points to a Kubernetes API server, not to a login page.",
                host=self.host,
                scope=query.scope,
            ) from error
