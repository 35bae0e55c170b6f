"""The client of one API server: lists and watches of pods and other objects.

`ObjectAPI` adds retries, pages and typed errors to a `Transport`.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import msgspec

from aioresolve._core.deadline import RETRYABLE_STATUSES, RetryPolicy, send_with_retries
from aioresolve._core.http import BodyTooLongError
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import APIError, ForbiddenError, ProtocolError, ResolveError, UnauthorizedError

from .errors import LIST_VERBS, error_from_response, is_expired
from .objects import Rows, decode_table, metadata_from_json
from .transport import ACCEPT_JSON, AiohttpTransport, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import Response, StreamingResponse
    from aioresolve.kubernetes.auth import Connection

    from .objects import ListMeta, ObjectList, ObjectMeta
    from .queries import PodQuery, Query, Resource
    from .transport import Transport

T = TypeVar("T")

logger = logging.getLogger("aioresolve.kubernetes")

AS_JSON = "application/json"
AS_TABLE = f"application/json;as=Table;g=meta.k8s.io;v=v1,{AS_JSON}"
AS_METADATA = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{AS_JSON}"

PAGE = 250
"""Pods per page, 1 to 4 MB of JSON, where a list in one response fails."""

MAX_METADATA = 500
"""The maximum number of objects of which only names and labels are listed."""

MAX_PAGES = 800
"""The maximum number of pages: 200,000 pods, more than Kubernetes supports in one cluster (150,000)."""

MAX_LIST = 512 << 20
"""The maximum length of a list in one response, in bytes: 64,000 pods of 8 KB."""

PAGES_AFTER = frozenset({200, 500, 504})
"""The statuses of a whole list, besides 413, after which pages are requested: it may be too long to send.
After a 200, the connection may have broken, or the server may have split the list itself."""

MAX_RESTARTS = 3
"""How often a list is restarted after its pages expired."""


class ListSplitter(Generic[T]):
    """Decodes the items of a list from its bytes, which arrive in arbitrary chunks.

    An API server writes `{"kind":"PodList",...,"items":[{"metadata":{...},...},{"metadata":...` without
    spaces. In valid JSON the bytes between two such items never occur inside a string, where quotation marks
    are escaped. The item before them is complete, unless they are nested in it. If a server writes lists
    in another way, nothing is decoded before the end.

    Args:
        resource: the kind of the items.
    """

    _BEGIN = b'"items":['
    _BETWEEN = b'},{"metadata":'

    def __init__(self, resource: Resource[T]) -> None:
        self._decode = resource.decode_items
        self._decode_page = resource.decode_page
        self._head = b""  # up to the first item
        self._tail = bytearray()  # what was not decoded yet
        self._enough = 0  # do not try to decode less than this

    @property
    def pending(self) -> int:
        """The number of bytes that were not decoded yet."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[T]:
        """Return the items that are complete with `data`."""
        tail = self._tail
        tail += data
        if len(tail) < self._enough:
            return []
        try:
            if not self._head:
                begin = tail.index(self._BEGIN) + len(self._BEGIN)
                self._head = bytes(tail[:begin])
                del tail[:begin]
            end = tail.rindex(self._BETWEEN)
            items = self._decode(b"".join((b"[", memoryview(tail)[:end], b"}]")))
        except ValueError:
            # More bytes show whether it is invalid, or only not the end of an item. Do not try again before
            # the length has doubled: otherwise the time of many small chunks would grow with their square.
            self._enough = 2 * len(tail)
            return []
        del tail[: end + 2]
        self._enough = 0
        return items

    def finish(self) -> ObjectList[T]:
        """Return the list without the items that were returned before.

        Raises:
            ValueError: it is not a list of such items; the message says where it differs.
        """
        return self._decode_page(self._head + self._tail)


class Found(msgspec.Struct, Generic[T], frozen=True):
    """The objects that match a query, in the order of the server, and the resourceVersion of the list."""

    items: list[T]
    version: str


@asynccontextmanager
async def open_api(connection: Connection, *, max_concurrency: int = 1) -> AsyncIterator[ObjectAPI]:
    """Yield a client of the API server, which is closed at the end."""
    api = ObjectAPI(AiohttpTransport(connection), max_concurrency=max_concurrency)
    try:
        yield api
    finally:
        await api.aclose()


class ObjectAPI:
    """The objects of one API server; at most `max_concurrency` requests are sent at a time.

    Attributes:
        host: the server, `scheme://host:port`.
        source: where the credentials come from, as text.
        has_tables: whether `rows` can be used.
        namespace: the one that the credentials came with: that of the context, or of the pod.
        limiter: limits the number of requests that are sent at a time.
        sends_initial_events: whether the server may support watches that start with the existing objects. It
            is set to False when the server refuses one.
    """

    sends_initial_events = True

    def __init__(self, transport: Transport, *, max_concurrency: int, namespace: str = "default") -> None:
        self.host, self.source = transport.host, transport.source
        self.has_tables = not transport.only_lists_pods
        self.namespace = namespace
        self._transport = transport
        self.limiter = anyio.CapacityLimiter(max_concurrency)
        self._policy = RetryPolicy()
        self._closed = anyio.Event()

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

    # Requests for one object

    async def request(
        self,
        method: str,
        query: Query[Any],
        name: str,
        progress: Progress,
        *,
        body: bytes | None = None,
        verbs: Sequence[str],
        expected: Collection[int] = (),
    ) -> Response:
        """Send a request for one object, or with an empty `name` for the collection, and return the response.

        `query` says which resource and namespace it is in. A request that fails is repeated until the
        deadline, so it must be one that can be repeated; a PATCH is a merge patch. `verbs` are the RBAC verbs
        that it needs.

        Raises:
            ResolveError: the status is neither of success nor in `expected`.
        """
        scope = f"{query.resource.noun} {name!r} in {query.where}"
        headers = dict(ACCEPT_JSON)
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else AS_JSON
        sent = Request(method, f"{query.path}/{name}".rstrip("/"), {}, headers, body)
        fail = partial(self._error, query, progress, verbs)
        return await self._send(sent, scope, progress, fail, expected)

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

        # All others mean that the object cannot be read.
        expected = frozenset(range(300, 600)) - RETRYABLE_STATUSES
        response = await self._send(Request("GET", path), scope, progress, fail, expected)
        progress.done(scope, f"status {response.status}")
        return response.body if response.status == 200 else None

    # Lists

    async def metadata(self, path: str, selector: str = "") -> list[ObjectMeta] | None:
        """Return the metadata of the first objects of a list; None if it cannot be read, without retries."""
        query = {"limit": str(MAX_METADATA), "labelSelector": selector}
        try:
            response = await self._transport.send(Request("GET", path, query, {"Accept": AS_METADATA}))
            return metadata_from_json(response.body) if response.status == 200 else None
        except (ResolveError, ValueError):
            return None

    async def rows(self, query: PodQuery, progress: Progress, *, with_nodes: bool) -> Rows | None:
        """Return the rows of a Table; None if the server has no Tables, or splits this one into pages."""
        parameters, headers = {**query.parameters, "includeObject": "None"}, {"Accept": AS_TABLE}
        request = Request("GET", query.path, parameters, headers)
        fail = partial(self._error, query, progress, LIST_VERBS)
        response = await self._send(request, query.scope, progress, fail, expected=(406,))
        if response.status == 406:
            return None
        table = self._decode(query, partial(decode_table, response.body))
        progress.done(query.scope, "received")
        if table.kind != "Table" or table.metadata.continue_:
            return None
        return self._decode(query, partial(Rows.from_table, table, with_nodes=with_nodes))

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

    async def _list(
        self,
        query: Query[T],
        progress: Progress,
        convert: Callable[[list[T]], list[Any]],
        verbs: Sequence[str],
    ) -> Found[Any]:
        if self._transport.only_lists_pods:
            fail = partial(self._error, query, progress, verbs)
            request = Request("GET", query.path, query.parameters)
            response = await self._send(request, query.scope, progress, fail)
            listed = self._decode(query, partial(query.resource.decode_page, response.body))
            return Found(convert(listed.items or []), listed.metadata.resource_version)
        items: list[Any] = []
        limit, continue_ = None, ""

        def use_pages() -> None:
            nonlocal limit
            limit = PAGE

        async def attempt(attempts: Iterator[int]) -> tuple[list[Any], ListMeta]:
            page = query.page(limit, continue_)
            fail = partial(self._error, page, progress, verbs)
            return await self._receive(page, convert, fail, use_pages, next(attempts))

        for _ in range(MAX_PAGES):
            is_whole = limit is None
            try:
                page, metadata = await self._retry(query.scope, progress, attempt)
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
        convert: Callable[[list[T]], list[Any]],
        fail: Callable[[Response], ResolveError],
        use_pages: Callable[[], None],
        number: int,
    ) -> tuple[list[Any], ListMeta]:
        """Send one GET, and decode the items of the response while it arrives.

        `use_pages` is called if the rest, or another attempt, has to be requested in pages.
        """
        items: list[Any] = []
        length, splitter, parameters = 0, ListSplitter(query.resource), query.parameters
        options: dict[str, Any] = {"attempt": number, "query": parameters}
        with HTTPCall(logger, "GET", self.host, query.path, scope=query.scope, **options) as call:
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

    # Watches

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
            scope = f"watch of {query.scope}"
            with HTTPCall(logger, "GET", self.host, query.path, scope=scope, query=parameters) as call:
                opening = self._transport.stream(query.path, parameters, is_watch=True)
                stream = await stack.enter_async_context(opening)
                call.set_response(stream.response.status)
            if stream.response.status != 200:
                raise error_from_response(
                    stream.response, query, host=self.host, source=self.source, is_watch=True
                )
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

    # Attempts

    async def _send(
        self,
        request: Request,
        scope: str,
        progress: Progress,
        fail: Callable[[Response], ResolveError],
        expected: Collection[int] = (),
    ) -> Response:
        """Send a request, repeatedly while its error is retryable, and return the response.

        If the response is neither a success nor expected, raise what `fail` returns.
        """
        method, path, query = request.method, request.path, request.query or None

        async def attempt(attempts: Iterator[int]) -> Response:
            options: dict[str, Any] = {"attempt": next(attempts), "query": query, "expected": expected}
            with HTTPCall(logger, method, self.host, path, scope=scope, **options) as call:
                response = await self._transport.send(request)
                call.set_response(response.status, len(response.body))
            if response.status < 300 or response.status in expected:
                return response
            raise fail(response)

        return await self._retry(scope, progress, attempt)

    async def _retry(
        self, scope: str, progress: Progress, attempt: Callable[[Iterator[int]], Awaitable[T]]
    ) -> T:
        """Return the result of `attempt`, repeated while its error is retryable."""
        await self.prepare(scope, progress)
        return await send_with_retries(
            attempt, scope=scope, host=self.host, progress=progress, policy=self._policy, limiter=self.limiter
        )

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
