"""HTTP over aiohttp: a response, or an error of aioresolve that contains no secret.

Redirects are not followed and cookies are not kept: a request goes to its host and to no other.
"""

from .client import CONNECT_TIMEOUT, Auth, Credentials, HTTPClient, timeout_to_connect_only
from .response import (
    FAILURES,
    BodyTooLongError,
    ConnectionHints,
    OpenResponses,
    RequestContext,
    Response,
    StreamingResponse,
    translate_errors,
)

__all__ = [
    "CONNECT_TIMEOUT",
    "FAILURES",
    "Auth",
    "BodyTooLongError",
    "ConnectionHints",
    "Credentials",
    "HTTPClient",
    "OpenResponses",
    "RequestContext",
    "Response",
    "StreamingResponse",
    "timeout_to_connect_only",
    "translate_errors",
]
