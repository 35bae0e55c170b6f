"""How Google's APIs answer: documents, what has not been modified, and failures as they write them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aioresolve.testing.replies import Reply

__all__ = [
    "NAMES",
    "Failure",
    "bad_page_token",
    "compute_not_found",
    "conditional",
    "failure_of_status",
    "json_reply",
    "no_such_page",
    "not_found",
    "oauth_failure",
    "permission_denied",
    "service_disabled",
    "unauthenticated",
]

NAMES = {
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
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
JSON = {"Content-Type": "application/json; charset=UTF-8"}


class Failure(Exception):  # noqa: N818 - it is an answer, and no error of the server
    """A request that is answered with a failure."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def json_reply(document: Any, status: int = 200, **headers: str) -> Reply:
    """The reply whose body is `document`, indented as Google's APIs do."""
    return Reply(status, json.dumps(document, indent=2).encode() + b"\n", {**JSON, **headers})


def conditional(reply: Reply, none_match: str) -> Reply:
    """`reply` with an entity tag of its body, or 304 where `If-None-Match` names that (RFC 9110, 13.1.2)."""
    assert isinstance(reply.body, bytes)
    tag = f'"{hashlib.blake2b(reply.body, digest_size=8).hexdigest()}"'
    known = {each.strip().removeprefix("W/") for each in none_match.split(",")}
    if known & {tag, "*"}:
        return Reply(304, b"", {"ETag": tag})
    return Reply(reply.status, reply.body, {**reply.headers, "ETag": tag})


def failure(
    status: int, message: str, reason: str = "", domain: str = "googleapis.com", **metadata: str
) -> Failure:
    """A google.rpc.Status, with an ErrorInfo where there is a reason."""
    error: dict[str, Any] = {"code": status, "message": message, "status": NAMES.get(status, "UNKNOWN")}
    if reason:
        error["details"] = [{"@type": ERROR_INFO, "reason": reason, "domain": domain, "metadata": metadata}]
    return Failure(json_reply({"error": error}, status))


def failure_of_status(status: int) -> Reply:
    """The reply with that status and nothing particular to say; 429 names the quota that is used up."""
    if status == 429:
        return failure(
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
    return failure(status, f"The server answered {status}.").reply


def unauthenticated(given: bool) -> Failure:
    """401: no token, or one that is not known."""
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other"
        " valid authentication credential."
        if given
        else "Request is missing required authentication credential. Expected OAuth 2 access token, login"
        " cookie or other valid authentication credential."
    )
    found = failure(401, message, "ACCESS_TOKEN_EXPIRED" if given else "CREDENTIALS_MISSING")
    challenge = 'Bearer realm="https://accounts.google.com/"' + (', error="invalid_token"' if given else "")
    return Failure(Reply(401, found.reply.body, {**found.reply.headers, "WWW-Authenticate": challenge}))


def permission_denied(permission: str, resource: str) -> Failure:
    """403: the permission is not there, or the resource."""
    return failure(
        403,
        f"Permission '{permission}' denied on resource '//tpu.googleapis.com/{resource}' (or it may not"
        " exist).",
        "IAM_PERMISSION_DENIED",
        "iam.googleapis.com",
        permission=permission,
        resource=resource,
    )


def service_disabled(service: str, project: str) -> Failure:
    """403: the API is not enabled in the project."""
    page = f"https://console.developers.google.com/apis/api/{service}/overview?project={project}"
    return failure(
        403,
        f"{service} has not been used in project {project} before or it is disabled. Enable it by visiting"
        f" {page} then retry.",
        "SERVICE_DISABLED",
        service=service,
        consumer=f"projects/{project}",
        activationUrl=page,
    )


def not_found(resource: str) -> Failure:
    """404 of the Cloud TPU API."""
    return failure(404, f"Resource '{resource}' was not found", "RESOURCE_NOT_FOUND", resource=resource)


def compute_not_found(resource: str) -> Failure:
    """404 of Compute Engine, in its older form."""
    message = f"The resource '{resource}' was not found"
    error = {
        "code": 404,
        "message": message,
        "errors": [{"message": message, "domain": "global", "reason": "notFound"}],
    }
    return Failure(json_reply({"error": error}, 404))


def no_such_page() -> Failure:
    """404 of a path that no API has: a page for people."""
    page = b"<!DOCTYPE html>\n<html lang=en>\n  <title>Error 404 (Not Found)!!1</title>\n"
    return Failure(Reply(404, page, {"Content-Type": "text/html; charset=UTF-8"}))


def bad_page_token() -> Failure:
    """400: a page token that the server did not give."""
    return failure(400, "The page token is invalid.")


def oauth_failure(error: str, description: str, status: int = 400) -> Failure:
    """A token endpoint's refusal (RFC 6749 section 5.2)."""
    return Failure(json_reply({"error": error, "error_description": description}, status))
