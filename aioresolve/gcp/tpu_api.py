"""The Cloud TPU API: nodes and queued resources, one or all of a zone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from aioresolve.errors import ConfigurationError, ProtocolError

from .api_request import Question
from .messages import (
    Node,
    NodePage,
    QueuedResource,
    QueuedResourcePage,
    decode_node,
    decode_node_page,
    decode_queued_resource,
    decode_queued_resource_page,
)
from .resource_names import checked_project, checked_zone

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.retry import Progress

    from .api_request import KnownAnswers
    from .client import GoogleSession
    from .resource_names import NodeName, QueuedResourceName

__all__ = ["TPUAPI", "NodeList", "QueuedResourceList", "TPUVersion"]

TPUVersion = Literal["v1", "v2"]

T = TypeVar("T")
PageT = TypeVar("PageT", NodePage, QueuedResourcePage)

VIEWER = "roles/tpu.viewer"
"""The smallest predefined role with every permission asked for here."""

PAGE = 500
"""Items of one page; the server may send fewer."""

MAX_PAGES = 1000
"""Pages read at most: half a million nodes."""


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of a zone, or of all.

    Attributes:
        nodes: in the API's order.
        unreachable: the locations that could not be asked, `projects/P/locations/Z`: their nodes are missing.
    """

    nodes: tuple[Node, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedResourceList:
    """The queued resources of a zone, or of all.

    Attributes:
        queued_resources: in the API's order.
        unreachable: the locations that could not be asked, `projects/P/locations/Z`: theirs are missing.
    """

    queued_resources: tuple[QueuedResource, ...]
    unreachable: tuple[str, ...] = ()


class TPUAPI:
    """The Cloud TPU API of one version; v1 knows TPU nodes of old and no TPU VMs.

    Args:
        session: what it is asked through.
        version: `v2` or `v1`.
        known: what was answered before, which is not to be sent again; None where that is no matter.

    Raises:
        ConfigurationError: there is no such version.
    """

    def __init__(
        self, session: GoogleSession, version: TPUVersion = "v2", known: KnownAnswers | None = None
    ) -> None:
        if version not in ("v1", "v2"):
            raise ConfigurationError(f"api_version={version!r} is none of 'v2' and 'v1'")
        self._session = session
        self._version: TPUVersion = version
        self._known = known

    def remembering(self, known: KnownAnswers) -> TPUAPI:
        """Return the same API, asked for nodes and queued resources only as far as they have changed."""
        return TPUAPI(self._session, self._version, known)

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return one node as it is now.

        Raises:
            APIError: there is none (status 404).
            ResolveError: no usable answer.
        """
        question = self._question(name.path, f"TPU node {name.path}", "tpu.nodes.get", name.project)
        return await self._one(question, decode_node, progress)

    async def nodes(self, project: str, zone: str, progress: Progress) -> NodeList:
        """Return the nodes of a zone, or of all of them where it is `-`.

        Raises:
            ResolveError: no usable answer.
        """
        pages = await self._pages(
            self._list(project, zone, "nodes", "TPU nodes", "tpu.nodes.list"), decode_node_page, progress
        )
        return NodeList(tuple(node for page in pages for node in page.nodes), _unreachable(pages))

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return one queued resource as it is now.

        Raises:
            APIError: there is none (status 404).
            ConfigurationError: the API's version is v1, which has none.
            ResolveError: no usable answer.
        """
        self._check_queued_resources()
        question = self._question(
            name.path, f"queued resource {name.path}", "tpu.queuedResources.get", name.project
        )
        return await self._one(question, decode_queued_resource, progress)

    async def queued_resources(self, project: str, zone: str, progress: Progress) -> QueuedResourceList:
        """Return the queued resources of a zone, or of all of them where it is `-`.

        Raises:
            ConfigurationError: the API's version is v1, which has none.
            ResolveError: no usable answer.
        """
        self._check_queued_resources()
        question = self._list(
            project, zone, "queuedResources", "queued resources", "tpu.queuedResources.list"
        )
        pages = await self._pages(question, decode_queued_resource_page, progress)
        return QueuedResourceList(
            tuple(found for page in pages for found in page.queued_resources), _unreachable(pages)
        )

    def _list(self, project: str, zone: str, collection: str, what: str, permission: str) -> Question:
        parent = f"projects/{checked_project(project)}/locations/{checked_zone(zone)}"
        where = f"project {project}" if zone == "-" else f"{parent}"
        question = self._question(f"{parent}/{collection}", f"{what} of {where}", permission, project)
        return question.with_query(pageSize=str(PAGE))

    def _question(self, path: str, scope: str, permission: str, project: str) -> Question:
        return Question(
            service="tpu",
            path=f"/{self._version}/{path}",
            scope=scope,
            permission=permission,
            role=VIEWER,
            project=project,
        )

    def _check_queued_resources(self) -> None:
        if self._version == "v1":
            raise ConfigurationError(
                "version v1 of the Cloud TPU API has no queued resources", hint="Pass {api_version=v2}."
            )

    async def _one(self, question: Question, decode: Callable[[bytes], T], progress: Progress) -> T:
        def understood(body: bytes) -> T:
            return self._understood(decode, body, question)

        if self._known is None:
            return understood(await self._session.ask(question, progress))
        return await self._known.decoded(self._session, question, understood, progress)

    async def _pages(
        self, question: Question, decode: Callable[[bytes], PageT], progress: Progress
    ) -> list[PageT]:
        pages: list[PageT] = []
        token, seen = "", set[str]()
        while True:
            body = await self._session.ask(question.page(token), progress)
            page = self._understood(decode, body, question)
            pages.append(page)
            token = page.next_page_token
            if not token:
                return pages
            if token in seen or len(pages) == MAX_PAGES:
                raise self._not_understood(question, "its pages have no end")
            seen.add(token)

    def _understood(self, decode: Callable[[bytes], T], body: bytes, question: Question) -> T:
        try:
            return decode(body)
        except ValueError as error:
            raise self._not_understood(question, str(error)) from error

    def _not_understood(self, question: Question, reason: str) -> ProtocolError:
        host = self._session.host(question.service)
        return ProtocolError(
            f"the answer of {host} to {question.scope} is not what the Cloud TPU API {self._version} says:"
            f" {reason}; see that the endpoint is that API, with no login page in between",
            host=host,
            scope=question.scope,
        )


def _unreachable(pages: list[NodePage] | list[QueuedResourcePage]) -> tuple[str, ...]:
    """Return the locations that any page misses, each once."""
    return tuple(dict.fromkeys(location for page in pages for location in page.unreachable))
