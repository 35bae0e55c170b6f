"""HTTP over aiohttp: a response, or an error of aioresolve that contains no secret.

Redirects are not followed and cookies are not kept: a request goes to its host and to no other.
"""

from .auth import Auth, Credentials
from .client import CONNECT_TIMEOUT, HTTPClient, timeout_to_connect_only
from .errors import FAILURES, BodyTooLongError, ConnectionHints, RequestContext
from .response import OpenResponses, Response, StreamingResponse, check_length, translate_errors
from .tls import close_one_sidedly
from .urls import environment_proxy, is_loopback, origin

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
    "check_length",
    "close_one_sidedly",
    "environment_proxy",
    "is_loopback",
    "origin",
    "timeout_to_connect_only",
    "translate_errors",
]
