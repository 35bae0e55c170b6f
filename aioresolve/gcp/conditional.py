"""Asking only for what has changed: the entity tag of the last answer goes with the next question.

A GET with `If-None-Match` is answered 304, without a body, while what is asked for still has that tag
(RFC 9110, section 13.1.2). An API that gives no tags is asked as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from .question import NOT_MODIFIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve.retry import Progress

    from .question import Question
    from .session import GoogleSession

__all__ = ["KnownAnswers"]

T = TypeVar("T")


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
