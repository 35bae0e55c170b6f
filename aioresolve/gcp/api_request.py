"""A request to one of Google's APIs, its access token and hints, and the cache of unchanged responses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve._core.http import ConnectionHints

T = TypeVar("T")

NOT_MODIFIED = 304
"""The status of a response without a body: the client already has it."""

DEFAULT_UNIVERSE = "googleapis.com"
"""The domain of the APIs of Google Cloud; Trusted Partner Clouds and air-gapped ones have others."""

RENEW_BEFORE_EXPIRY = 225.0
"""Seconds before its end at which a token is renewed: the threshold of google-auth (3 min 45 s).

The metadata server returns the same token until five minutes before its end: renewing earlier is useless.
"""

EXPIRY_MARGIN = 10.0
"""Seconds before its end at which a token is no longer sent, so that it does not expire on the way."""


@dataclass(frozen=True, slots=True)
class APIRequest:
    """A request to an API; it may be repeated, because it changes nothing.

    Attributes:
        service: the API, `tpu` or `compute`.
        path: the path of the URL, starting with `/`, made of validated names.
        scope: the requested resource, as text for messages.
        permission: the IAM permission it requires, such as `tpu.nodes.get`.
        role: the smallest predefined role with that permission.
        method: `GET`; `POST` for the lists of Compute Engine that require it.
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


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Headers that authenticate requests. The repr shows no secret.

    `expires` is in seconds of Unix time, None for never; `member` is the IAM member that they stand for, such
    as `serviceAccount:a@b`, if known; `universe` is the domain of the cloud that issued them.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    expires: float | None = None
    member: str | None = None
    universe: str = DEFAULT_UNIVERSE

    @property
    def is_fresh(self) -> bool:
        """Whether it need not be renewed yet."""
        return self.expires is None or time.time() < self.expires - RENEW_BEFORE_EXPIRY

    @property
    def is_valid(self) -> bool:
        """Whether a server will accept it."""
        return self.expires is None or time.time() < self.expires - EXPIRY_MARGIN


ANONYMOUS = AccessToken()
"""No credentials."""


def connection_hints(reach: str) -> ConnectionHints:
    """Return the hints for a server of Google; `reach` if it cannot be reached, or is a different server."""
    # Imported here, because it loads aiohttp, which resolving by address does not need.
    from aioresolve._core.http import ConnectionHints

    return ConnectionHints(
        certificate="Name its authority with {ssl_context} or SSL_CERT_FILE, or correct the endpoint.",
        tls="Check that the port speaks https.",
        name=reach,
        proxy="Correct HTTPS_PROXY and NO_PROXY.",
        url="It must start with https://HOST.",
        protocol=reach,
        reach=reach,
        length="Check whether this is the right server.",
        owner="session",
    )


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes JSON; it raises a ValueError that names the malformed field."""
    # Not strict: protojson writes 64-bit numbers as strings, and older servers also 32-bit ones.
    decoder = msgspec.json.Decoder(kind, strict=False)

    def decode(body: bytes) -> T:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    return decode
