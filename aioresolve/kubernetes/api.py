"""List and watch pods over HTTP: prepare, send, handle; pages, retries and expiry."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import anyio

from aioresolve.errors import APIError, ForbiddenError, ProtocolError, UnauthorizedError
from aioresolve.retry import RetryPolicy, retrying
from aioresolve.telemetry import HTTPRequest

from .failures import LIST, expired, failure, watch_refusal
from .messages import Pod, PodList, Table, decode_answer
from .pods import Rows, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aioresolve.retry import Progress

    from .query import PodQuery
    from .transport import Answer, Stream, Transport

__all__ = ["FoundPods", "PodAPI"]

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
            return rows(answer)
        except ValueError as error:
            raise self.not_understood(query, error) from error

    async def pods(self, query: PodQuery, progress: Progress, *, verbs: Sequence[str] = LIST) -> FoundPods:
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
                if not expired(error) or restarts == MAX_RESTARTS:
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
            with HTTPRequest(
                logger, "GET", transport.host, query.path, scope=f"watch of {query.scope}", query=parameters
            ) as request:
                stream = await opened.enter_async_context(transport.stream(query.path, parameters, AS_LIST))
                request.answered(stream.answer.status)
            if stream.answer.status != 200:
                raise watch_refusal(stream.answer, query, host=transport.host, source=transport.source)
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
        verbs: Sequence[str] = LIST,
    ) -> Table | PodList:
        """Return the decoded answer, asked for again while that can help."""
        transport = self._transport
        scope = query.scope
        attempts = count(1)

        async def attempt() -> Answer:
            async with self._turns:
                with HTTPRequest(
                    logger,
                    "GET",
                    transport.host,
                    query.path,
                    scope=scope,
                    attempt=next(attempts),
                    query=parameters,
                ) as request:
                    answer = await transport.get(query.path, parameters, accept)
                    request.answered(answer.status, len(answer.body))
            if answer.status == 200:
                return answer
            error = failure(answer, query, host=transport.host, source=transport.source, verbs=verbs)
            if isinstance(error, (ForbiddenError, UnauthorizedError)) and progress.last_error is not None:
                # An API server that has just come up turns everybody away until it has read its roles.
                error.retryable = True
            raise error

        progress.waiting(scope, f"the credentials of {transport.source} are not there yet")
        await transport.prepare()
        progress.waiting(scope, f"{transport.host} has not answered")
        answer = await retrying(
            attempt, policy=self._policy, on_failure=lambda error, wait: progress.failed(scope, error)
        )
        try:
            return decode_answer(answer.body)
        except ValueError as error:
            raise self.not_understood(query, error) from error
