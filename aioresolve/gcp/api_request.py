"""A request to one of Google's APIs, and the cache of entity tags that avoids repeated responses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOT_MODIFIED", "APIRequest", "CachedResponse", "ETagCache"]

NOT_MODIFIED = 304
"""The status of a response without a body: the client already has it."""


@dataclass(frozen=True, slots=True)
class APIRequest:
    """A request to an API; it may be repeated, because it changes nothing.

    Attributes:
        service: the API, `tpu` or `compute`.
        path: the path of the URL, starting with `/`, made of validated names.
        scope: what is requested, as text for messages.
        permission: the IAM permission it requires, such as `tpu.nodes.get`.
        role: the smallest predefined role with that permission.
        project: the project of the requested resource.
        query: the query of the URL.
        method: `GET`; `POST` for the lists of Compute Engine that require it.
        body: the JSON body of a POST request.
        known_tag: the entity tag of a cached response, which the server need not send again.
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

    def page(self, token: str) -> APIRequest:
        """Return the same request for the page with this token; the first page if it is empty."""
        return self.with_query(pageToken=token) if token else self

    def with_query(self, **query: str) -> APIRequest:
        """Return the same request with additional parameters in its query."""
        return replace(self, query={**self.query, **query})


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A decoded response with its entity tag, which is empty if the API sent none."""

    tag: str
    decoded: Any


class ETagCache(dict[str, CachedResponse]):
    """The last response to each request of one watch, by path.

    A GET request with `If-None-Match` has the status 304 and no body while the resource still has that tag
    (RFC 9110, section 13.1.2). For an API without entity tags, every request is a plain one.
    """
