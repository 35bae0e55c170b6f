"""One authorized GET to an API server: bytes out, bytes in, whole or as they come.

List and watch pods over HTTP: prepare, send, handle; pages, retries and expiry.

`ConnectionPool`: what the calls of an entered resolver share, or those of several resolvers.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import anyio
from yarl import URL

from aioresolve._core.http.client import CONNECT_TIMEOUT, Answer, HTTPSession, OpenAnswer, origin
from aioresolve._core.http.dns import AbandonableResolver
from aioresolve._core.http.errors import Exchange, Mends
from aioresolve._core.retry import RetryPolicy, call_with_retries
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import APIError, ForbiddenError, ProtocolError, UnauthorizedError

from .api_errors import LIST_VERBS, error_from_response, error_from_watch_response, is_expired
from .objects import Pod, PodList, Table, decode_list
from .pods import Rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.deadline import Progress

    from .auth import Connection
    from .objects import PodQuery

__all__ = [
    "MENDS",
    "AiohttpTransport",
    "Answer",
    "ConnectionPool",
    "FoundPods",
    "PodAPI",
    "Stream",
    "Transport",
    "started",
]

MENDS = Mends(
    certificate="correct certificate-authority or tls-server-name in the kubeconfig",
    tls="see that the port speaks https and that the client certificate is one it accepts",
    name="correct the server in the kubeconfig, or see to the DNS",
    proxy="correct proxy-url in the kubeconfig, or HTTPS_PROXY and NO_PROXY",
    url="correct the server in the kubeconfig",
    protocol="see that the port is the API server's and whether it wants https",
    reach="see that the address is right, that the server runs, and that nothing between blocks it",
    length="narrow the selector or the namespace, or see whether this is the API server",
    owner="resolver",
)


class Stream(abc.ABC):
    """An answer whose body is read as it comes.

    Attributes:
        answer: what the server answered; of a failure the whole body, of a 200 an empty one, for that is what
            `read` returns.
    """

    answer: Answer

    @abc.abstractmethod
    async def read(self) -> bytes:
        """Return the next bytes, decompressed, as soon as there are any; `b""` at the body's clean end.

        A read that is cancelled loses nothing: the next one returns what it would have.

        Raises:
            ConnectionFailedError: the connection broke, or the transport was closed meanwhile.
            ProtocolError: what comes is no HTTP.
        """

    @abc.abstractmethod
    def without_secrets(self, text: str) -> str:
        """Return `text` of the body without the secrets that were sent: a server may echo them."""


class Transport(abc.ABC):
    """A way to ask one API server.

    Attributes:
        can_stream: whether `stream` can be called; where not, what a stream would tell is asked for anew.
    """

    can_stream = True

    @property
    @abc.abstractmethod
    def host(self) -> str:
        """The server, `scheme://host:port`."""

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Where the credentials come from, in words."""

    async def prepare(self) -> None:  # noqa: B027 - a client handed in brings its credentials along
        """Wait until the credentials are at hand, which a plugin may have to say.

        Raises:
            ResolveError: they cannot be had.
        """

    @abc.abstractmethod
    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        """Return the answer to one GET.

        Raises:
            ResolveError: no whole answer came back.
        """

    @abc.abstractmethod
    def stream(self, path: str, query: Mapping[str, str], accept: str) -> AbstractAsyncContextManager[Stream]:
        """Return a block in which the answer to one GET is read as it comes.

        Its connection is closed where the block is left, whatever is still to come. There is no deadline but
        the caller's.

        Raises:
            ResolveError: no answer came, or that of a failure was not whole.
        """

    async def close_idle(self) -> None:  # noqa: B027 - a client handed in keeps its own connections
        """Close the connections that `get` keeps for its next call, where none is in use."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close what the transport opened itself, streams that are being read among it."""


class AnswerStream(Stream):
    """The body of an answer that is open."""

    def __init__(self, opened: OpenAnswer, answer: Answer) -> None:
        self.answer = answer
        self._opened = opened

    async def read(self) -> bytes:
        return await self._opened.read()

    def without_secrets(self, text: str) -> str:
        return self._opened.without_secrets(text)


async def started(opened: OpenAnswer) -> Stream:
    """Return the stream of an open answer, with the whole body where it is a failure.

    Raises:
        ResolveError: that body did not come whole.
    """
    return AnswerStream(opened, opened.answer if opened.answer.status == 200 else await opened.whole())


class AiohttpTransport(Transport):
    """Our own way: a session of ours, and the credentials of a `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Names in threads of their own: where DNS hangs, those of the loop would soon all wait for it.
        self._session = HTTPSession(socket_timeout=CONNECT_TIMEOUT, resolver=AbandonableResolver())
        # Over connections of their own: one that a long list came over keeps the memory which that took.
        self._streams = HTTPSession(socket_timeout=CONNECT_TIMEOUT, resolver=AbandonableResolver())

    @property
    def host(self) -> str:
        return origin(self._connection.server)

    @property
    def source(self) -> str:
        return self._connection.source

    async def prepare(self) -> None:
        await self._connection.headers()
        await self._connection.ssl()

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        opening = self._opened(self._session, path, query, {"Accept": accept})
        async with self._session.answers.reading(opening) as opened:
            return await opened.whole()

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], accept: str) -> AsyncIterator[Stream]:
        # Compression would save little of small events, and cost a decoder's memory for each stream.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        opening = self._opened(self._streams, path, query, headers)
        async with self._streams.answers.reading(opening) as opened:
            opened.rest()
            yield await started(opened)

    async def close_idle(self) -> None:
        await self._session.close_idle()

    async def aclose(self) -> None:
        try:
            await self._session.aclose()
        finally:
            await self._streams.aclose()

    async def _opened(
        self, session: HTTPSession, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> OpenAnswer:
        """Return the answer to one GET, with credentials that were renewed once where they are refused."""
        credentials = await self._connection.headers()
        opened = await self._sent(session, path, query, headers, credentials)
        if opened.answer.status != 401:
            return opened
        try:
            await opened.whole()  # so that its connection is used again
        finally:
            opened.close()
        # Once, whether or not the credentials changed: a starting API server turns good ones away too.
        await self._connection.renew(credentials)
        return await self._sent(session, path, query, headers, await self._connection.headers())

    async def _sent(
        self,
        session: HTTPSession,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        credentials: Mapping[str, str],
    ) -> OpenAnswer:
        connection = self._connection
        through = f" through the proxy {origin(connection.proxy)}" if connection.proxy else ""
        where = f"{self.host}{through} (from {connection.source})"
        return await session.open(
            Exchange(f"GET {path}", self.host, where, MENDS, is_over=lambda: session.is_closed),
            "GET",
            URL(connection.server + path).with_query(query),
            headers={**headers, **credentials},
            secrets=[credentials.get("Authorization", "").partition(" ")[2]],
            context=await connection.ssl(),
            server_hostname=connection.tls_server_name,
            proxy=connection.proxy,
        )


logger = logging.getLogger("aioresolve.kubernetes")

AS_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
AS_LIST = "application/json"

PAGE = 250
"""Pods of one page of a full list: 1 to 4 MB of JSON, of which each selector holds one page at a time."""

MAX_PAGES = 800
"""Pages read at most: 200,000 pods, more than Kubernetes supports in one cluster (150,000)."""

MAX_RESTARTS = 3
"""How often a list whose pages expired is begun again."""


@dataclass(frozen=True, slots=True)
class FoundPods:
    """The pods one query found, in the server's order, and the resourceVersion of the list."""

    pods: list[Pod]
    version: str


class PodAPI:
    """The pods of one API server.

    Args:
        transport: the way to ask it.
        max_concurrency: how many requests are made at a time; others wait their turn.
        policy: how often a request is made again.
    """

    def __init__(
        self, transport: Transport, *, max_concurrency: int, policy: RetryPolicy | None = None
    ) -> None:
        self._transport = transport
        self._turns = anyio.CapacityLimiter(max_concurrency)
        self._policy = policy or RetryPolicy()
        self._closed = anyio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed.is_set()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds, or once `aclose` was called."""
        with anyio.move_on_after(seconds):
            await self._closed.wait()

    async def rows(self, query: PodQuery, progress: Progress) -> Rows | FoundPods | None:
        """Return what the server projects to a Table's rows, or pods from a server that does not project.

        None means that only a paged list will do: the server refuses Tables, or cut this one into pages.

        Raises:
            ResolveError: no usable answer.
        """
        parameters = {**query.parameters, "includeObject": "None"}
        try:
            answer = await self._answer(query, parameters, AS_TABLE, progress)
        except APIError as error:
            if error.status == 406:
                return None
            raise
        progress.done(query.scope, "answered")
        if answer.metadata.continue_:
            return None
        if isinstance(answer, PodList):
            return FoundPods(answer.items or [], answer.metadata.resource_version)
        try:
            return Rows.from_table(answer)
        except ValueError as error:
            raise self.not_understood(query, error) from error

    async def pods(
        self, query: PodQuery, progress: Progress, *, verbs: Sequence[str] = LIST_VERBS
    ) -> FoundPods:
        """Return every pod the query finds, whole, read page by page.

        Args:
            query: which pods.
            progress: what is told of it.
            verbs: what the user needs in all, for the error where that is not allowed.

        Raises:
            ResolveError: no usable answer.
        """
        restarts = 0
        while True:
            try:
                found = await self._pages(query, progress, verbs)
            except APIError as error:
                if not is_expired(error) or restarts == MAX_RESTARTS:
                    raise
                restarts += 1
                progress.failed(query.scope, error)
            else:
                progress.done(query.scope, f"{len(found.pods)} pods")
                return found

    @asynccontextmanager
    async def watching(self, query: PodQuery, version: str, lifetime: float) -> AsyncIterator[Stream]:
        """Yield the bytes of a watch, whole pods and bookmarks, once the server has begun to answer.

        Whole pods, because a Table knows neither phase nor readiness exactly.

        Args:
            query: what to watch.
            version: the resourceVersion to go on from.
            lifetime: seconds after which the server is to end it.

        Raises:
            ResolveError: the server did not answer, or refused.
        """
        transport = self._transport
        parameters = {
            **query.parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{lifetime:.0f}",
        }
        async with AsyncExitStack() as opened:
            with HTTPCall(
                logger, "GET", transport.host, query.path, scope=f"watch of {query.scope}", query=parameters
            ) as request:
                stream = await opened.enter_async_context(transport.stream(query.path, parameters, AS_LIST))
                request.set_response(stream.answer.status)
            if stream.answer.status != 200:
                raise error_from_watch_response(
                    stream.answer, query, host=transport.host, source=transport.source
                )
            yield stream

    @property
    def host(self) -> str:
        """The server, `scheme://host:port`."""
        return self._transport.host

    @property
    def source(self) -> str:
        """Where the credentials come from, in words."""
        return self._transport.source

    async def close_idle(self) -> None:
        """Close the connections that are kept for the next list, where none is in use."""
        await self._transport.close_idle()

    async def aclose(self) -> None:
        """Close the transport."""
        try:
            await self._transport.aclose()
        finally:
            self._closed.set()

    def not_understood(self, query: PodQuery, error: Exception) -> ProtocolError:
        """Return the error for an answer to `query` that is none; `error` says where it differs."""
        host = self._transport.host
        return ProtocolError(
            f"the answer of {host} to {query.scope} is no list of pods: {error};"
            " see that the kubeconfig names a Kubernetes API server, with no login page in between",
            host=host,
            scope=query.scope,
        )

    def no_event(self, query: PodQuery, error: Exception) -> ProtocolError:
        """Return the error for a watch of `query` that tells what cannot be; `error` says what is wrong."""
        host = self._transport.host
        return ProtocolError(
            f"what the watch of {query.scope} by {host} tells cannot be trusted: {error};"
            " see to the server, and to what is between",
            host=host,
            scope=query.scope,
        )

    async def _pages(self, query: PodQuery, progress: Progress, verbs: Sequence[str]) -> FoundPods:
        pods: list[Pod] = []
        continue_ = ""
        for _ in range(MAX_PAGES):
            page_query = query.page(PAGE, continue_)
            page = await self._answer(page_query, page_query.parameters, AS_LIST, progress, verbs)
            if not isinstance(page, PodList):
                raise self.not_understood(query, ValueError("it is a Table where a PodList was asked for"))
            pods += page.items or ()
            if not page.metadata.continue_:
                return FoundPods(pods, page.metadata.resource_version)
            continue_ = page.metadata.continue_
        raise ProtocolError(
            f"{self._transport.host} goes on after {MAX_PAGES} pages ({len(pods)} pods) of {query.scope},"
            " more than a cluster can have; narrow the selector, or see whether this is the API server",
            host=self._transport.host,
            scope=query.scope,
        )

    async def _answer(
        self,
        query: PodQuery,
        parameters: dict[str, str],
        accept: str,
        progress: Progress,
        verbs: Sequence[str] = LIST_VERBS,
    ) -> Table | PodList:
        """Return the decoded answer, asked for again while that can help."""
        transport = self._transport
        scope = query.scope
        attempts = count(1)

        async def attempt() -> Answer:
            async with self._turns:
                with HTTPCall(
                    logger,
                    "GET",
                    transport.host,
                    query.path,
                    scope=scope,
                    attempt=next(attempts),
                    query=parameters,
                ) as request:
                    answer = await transport.get(query.path, parameters, accept)
                    request.set_response(answer.status, len(answer.body))
            if answer.status == 200:
                return answer
            error = error_from_response(
                answer, query, host=transport.host, source=transport.source, verbs=verbs
            )
            if isinstance(error, (ForbiddenError, UnauthorizedError)) and progress.last_error is not None:
                # An API server that has just come up turns everybody away until it has read its roles.
                error.retryable = True
            raise error

        progress.waiting(scope, f"the credentials of {transport.source} are not there yet")
        await transport.prepare()
        progress.waiting(scope, f"{transport.host} has not answered")
        answer = await call_with_retries(
            attempt, policy=self._policy, on_failure=lambda error, wait: progress.failed(scope, error)
        )
        try:
            return decode_list(answer.body)
        except ValueError as error:
            raise self.not_understood(query, error) from error


class ConnectionPool:
    """One PodAPI, opened by the first who asks for it, in the event loop that is running.

    Attributes:
        loop: that loop; sockets belong to it.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._opening = anyio.Lock()
        self._api: PodAPI | None = None
        self._is_closed = False

    async def opened(self, opening: Callable[[], Awaitable[PodAPI]]) -> PodAPI:
        """Return the one PodAPI, opened by the first to ask."""
        async with self._opening:
            if self._api is None:
                self._api = await opening()
                if self._is_closed:
                    # `async with` ended meanwhile: the call that opened this is told so when it asks.
                    await self._api.aclose()
            return self._api

    async def aclose(self) -> None:
        """Close what was opened, and what is being opened as soon as it is."""
        self._is_closed = True
        if self._api is not None:
            await self._api.aclose()
