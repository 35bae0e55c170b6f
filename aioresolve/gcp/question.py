"""What is asked of one of Google's APIs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOT_MODIFIED", "Question"]

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
