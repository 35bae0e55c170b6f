"""List pods over HTTP: prepare, send, handle; pages, retries and expiry."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from aioresolve.errors import APIError, ForbiddenError, ProtocolError, UnauthorizedError
from aioresolve.retry import RetryPolicy, retrying

from .failures import expired, failure
from .messages import Pod, PodList, Table, decode_answer
from .pods import Rows, rows

if TYPE_CHECKING:
    from aioresolve.retry import Progress

    from .query import PodQuery
    from .transport import Answer, Transport

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
            raise self._not_understood(query, error) from error

    async def pods(self, query: PodQuery, progress: Progress) -> FoundPods:
        """Return every pod the query finds, whole, read page by page.

        Raises:
            ResolveError: no usable answer.
        """
        restarts = 0
        while True:
            try:
                found = await self._pages(query, progress)
            except APIError as error:
                if not expired(error) or restarts == MAX_RESTARTS:
                    raise
                restarts += 1
                progress.failed(query.scope, error)
            else:
                progress.done(query.scope, f"{len(found.pods)} pods")
                return found

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    async def _pages(self, query: PodQuery, progress: Progress) -> FoundPods:
        pods: list[Pod] = []
        continue_ = ""
        for _ in range(MAX_PAGES):
            page_query = query.page(PAGE, continue_)
            page = await self._answer(page_query, page_query.parameters, AS_LIST, progress)
            if not isinstance(page, PodList):
                raise self._not_understood(query, ValueError("it is a Table where a PodList was asked for"))
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
        self, query: PodQuery, parameters: dict[str, str], accept: str, progress: Progress
    ) -> Table | PodList:
        """Return the decoded answer, asked for again while that can help."""
        transport = self._transport
        scope = query.scope

        async def attempt() -> Answer:
            async with self._turns:
                started = time.perf_counter()
                answer = await transport.get(query.path, parameters, accept)
            logger.info(
                "GET %s%s %s: %d, %d bytes in %.3f s",
                transport.host,
                query.path,
                parameters,
                answer.status,
                len(answer.body),
                time.perf_counter() - started,
            )
            if answer.status == 200:
                return answer
            error = failure(answer, query, host=transport.host, source=transport.source)
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
            raise self._not_understood(query, error) from error

    def _not_understood(self, query: PodQuery, error: Exception) -> ProtocolError:
        host = self._transport.host
        return ProtocolError(
            f"the answer of {host} to {query.scope} is no list of pods: {error};"
            " see that the kubeconfig names a Kubernetes API server, with no login page in between",
            host=host,
            scope=query.scope,
        )
