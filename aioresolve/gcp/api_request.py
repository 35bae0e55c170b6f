"""A request to one of Google's APIs, and the cache of entity tags that avoids repeated responses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve._core.deadline import Progress

    from .client import GoogleSession

__all__ = ["NOT_MODIFIED", "KnownAnswers", "Question"]

T = TypeVar("T")

NOT_MODIFIED = 304
"""The status of an answer that is not sent again."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question for an API; asking it twice changes nothing.

    Attributes:
        service: the API, `tpu` or `compute`.
        path: the URL's path, from `/`, made of checked names.
        scope: the question in words, for messages.
        permission: the IAM permission it needs, such as `tpu.nodes.get`.
        role: the smallest predefined role that has that permission.
        project: the project asked about.
        query: the URL's query.
        method: `GET`; `POST` for the lists of Compute Engine that want it so.
        body: the JSON sent with a POST.
        known_tag: the entity tag of an answer that is known, which need not be sent again.
    """

    service: str
    path: str
    scope: str
    permission: str = ""
    role: str = ""
    project: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: bytes | None = None
    known_tag: str = ""

    def page(self, token: str) -> Question:
        """Return the same question for the page that `token` names; for the first page where it is empty."""
        return self.with_query(pageToken=token) if token else self

    def with_query(self, **query: str) -> Question:
        """Return the same question with more in its URL's query."""
        return replace(self, query={**self.query, **query})


@dataclass(frozen=True, slots=True)
class _Known:
    tag: str
    decoded: Any


class KnownAnswers:
    """What one watch was last answered to each of its questions, for as long as it lasts."""

    def __init__(self) -> None:
        self._by_path: dict[str, _Known] = {}

    async def decoded(
        self, session: GoogleSession, question: Question, decode: Callable[[bytes], T], progress: Progress
    ) -> T:
        """Return the answer to `question`, decoded: as it was known, where it has not changed.

        Args:
            session: what is asked.
            question: one whose path alone says what it asks for.
            decode: makes the answer of its body.
            progress: what is waited for is noted here.

        Raises:
            ResolveError: no usable answer.
        """
        known = self._by_path.get(question.path)
        if known is not None:
            question = replace(question, known_tag=known.tag)
        answer = await session.answer(question, progress)
        if known is not None and answer.status == NOT_MODIFIED:
            unchanged: T = known.decoded
            return unchanged
        decoded = decode(answer.body)
        self._by_path[question.path] = _Known(answer.headers.get("ETag", ""), decoded)
        return decoded
