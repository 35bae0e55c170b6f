"""Replies of Google's APIs: JSON documents, entity tags, and failures.

The messages are those of Google, word for word.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aioresolve.testing.replies import Reply

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_JSON_HEADERS = {"Content-Type": "application/json; charset=UTF-8"}


class Failure(Exception):  # noqa: N818 - a reply, not an error of the server
    """A request that is rejected with `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def json_reply(document: Any, status: int = 200, **headers: str) -> Reply:
    """Return a reply with the body `document`, indented as by Google's APIs."""
    return Reply(status, json.dumps(document, indent=2).encode() + b"\n", {**_JSON_HEADERS, **headers})


def add_etag(reply: Reply, if_none_match: str) -> Reply:
    """Return `reply` with an entity tag of its body, or 304 if `If-None-Match` has it (RFC 9110, 13.1.2)."""
    assert isinstance(reply.body, bytes)
    tag = f'"{hashlib.blake2b(reply.body, digest_size=8).hexdigest()}"'
    known = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    if known & {tag, "*"}:
        return Reply(304, b"", {"ETag": tag})
    return Reply(reply.status, reply.body, {**reply.headers, "ETag": tag})


def _rpc_failure(
    status: int, message: str, reason: str = "", domain: str = "googleapis.com", **metadata: str
) -> Failure:
    """Return a google.rpc.Status, with an ErrorInfo if there is a reason."""
    error: dict[str, Any] = {
        "code": status,
        "message": message,
        "status": _STATUS_NAMES.get(status, "UNKNOWN"),
    }
    if reason:
        error["details"] = [{"@type": _ERROR_INFO, "reason": reason, "domain": domain, "metadata": metadata}]
    return Failure(json_reply({"error": error}, status))


def failure_of_status(status: int) -> Reply:
    """Return a general failure with that status; 429 names an exceeded quota."""
    if status == 429:
        return _rpc_failure(
            429,
            "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service"
            " 'tpu.googleapis.com' for consumer 'project_number:123456789012'.",
            "RATE_LIMIT_EXCEEDED",
            quota_limit="ReadRequestsPerMinutePerProject",
            quota_limit_value="600",
            quota_metric="tpu.googleapis.com/read_requests",
            service="tpu.googleapis.com",
            consumer="projects/123456789012",
        ).reply
    return _rpc_failure(status, f"The server returned status {status}.").reply


def unauthenticated(has_token: bool) -> Failure:
    """401: there is no token, or it is invalid."""
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other"
        " valid authentication credential."
        if has_token
        else "Request is missing required authentication credential. Expected OAuth 2 access token, login"
        " cookie or other valid authentication credential."
    )
    found = _rpc_failure(401, message, "ACCESS_TOKEN_EXPIRED" if has_token else "CREDENTIALS_MISSING")
    challenge = 'Bearer realm="https://accounts.google.com/"' + (
        ', error="invalid_token"' if has_token else ""
    )
    return Failure(Reply(401, found.reply.body, {**found.reply.headers, "WWW-Authenticate": challenge}))


def permission_denied(permission: str, resource: str) -> Failure:
    """403 of the Cloud TPU API: the permission or the resource is missing."""
    return _rpc_failure(
        403,
        f"Permission '{permission}' denied on resource '//tpu.googleapis.com/{resource}' (or it may not"
        " exist).",
        "IAM_PERMISSION_DENIED",
        "iam.googleapis.com",
        permission=permission,
        resource=resource,
    )


def compute_permission_denied(permission: str, resource: str) -> Failure:
    """403 of Compute Engine."""
    return _compute_failure(403, f"Required '{permission}' permission for '{resource}'", "forbidden")


def not_found(resource: str) -> Failure:
    """404 of the Cloud TPU API."""
    return _rpc_failure(404, f"Resource '{resource}' was not found", "RESOURCE_NOT_FOUND", resource=resource)


def compute_not_found(resource: str) -> Failure:
    """404 of Compute Engine."""
    return _compute_failure(404, f"The resource '{resource}' was not found", "notFound")


def compute_invalid(field: str, value: str, reason: str) -> Failure:
    """400 of Compute Engine: a parameter is invalid."""
    return _compute_failure(400, f"Invalid value for field '{field}': '{value}'. {reason}", "invalid")


def invalid_fields(fields: str) -> Failure:
    """400: the parameter `fields` is invalid."""
    return _rpc_failure(400, f"Request contains an invalid argument: Invalid field selection {fields}")


def _compute_failure(status: int, message: str, reason: str) -> Failure:
    """Return a failure in the older format, that of Compute Engine."""
    error = {
        "code": status,
        "message": message,
        "errors": [{"message": message, "domain": "global", "reason": reason}],
    }
    return Failure(json_reply({"error": error}, status))


def no_such_page() -> Failure:
    """404 for a path that no API has, as an HTML page."""
    page = b"<!DOCTYPE html>\n<html lang=en>\n  <title>Error 404 (Not Found)!!1</title>\n"
    return Failure(Reply(404, page, {"Content-Type": "text/html; charset=UTF-8"}))


def bad_page_token() -> Failure:
    """400: the page token is not from this server."""
    return _rpc_failure(400, "The page token is invalid.")


def oauth_failure(error: str, description: str, status: int = 400) -> Failure:
    """An error of a token endpoint (RFC 6749, section 5.2)."""
    return Failure(json_reply({"error": error, "error_description": description}, status))
