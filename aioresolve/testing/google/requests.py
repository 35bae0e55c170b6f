"""A request to the loopback Google: which service its path means, and the record of it that tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GoogleRequest", "service_of"]

_SERVICES = (
    ("metadata", re.compile(r"/|/computeMetadata/.*")),
    ("oauth2", re.compile(r"/token")),
    ("sts", re.compile(r"/v1/token")),
    ("iamcredentials", re.compile(r"/v1/projects/-/serviceAccounts/[^/:]+:generateAccessToken")),
    ("tpu", re.compile(r"/v[12]/projects/.*")),
    ("compute", re.compile(r"/compute/v1/.*")),
)


@dataclass(frozen=True, slots=True)
class GoogleRequest:
    """What was asked for. No token, key or assertion is kept.

    Attributes:
        method: `GET`, ...
        path: without the query.
        query: name to (last) value.
        service: `metadata`, `oauth2`, `sts`, `iamcredentials`, `tpu`, `compute`; empty for anything else.
        scheme: how the client said who it is: `Bearer` or empty.
        user: the IAM member the server takes it for; None where no token was given, or one that is not good.
        certificate: the common name of the client certificate shown, if one was.
        quota_project: the header `X-Goog-User-Project`.
        user_agent: the `User-Agent` header.
        time: when it came, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    service: str = ""
    scheme: str = ""
    user: str | None = None
    certificate: str = ""
    quota_project: str = ""
    user_agent: str = ""
    time: float = 0.0


def service_of(path: str) -> str:
    """The service that a path belongs to, empty for none."""
    return next((service for service, paths in _SERVICES if paths.fullmatch(path)), "")
