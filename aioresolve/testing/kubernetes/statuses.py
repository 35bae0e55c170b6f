"""The failures of the API server: HTTP status, reason, and the `Status` object in the body.

The messages are those of Kubernetes, word for word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .store import compact_json, indented_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .store import Kind

_FAILURES = {
    "BadRequest": (400, "the server rejected our request for an unknown reason"),
    "Unauthorized": (401, "Unauthorized"),
    "Forbidden": (403, "forbidden"),
    "NotFound": (404, "the server could not find the requested resource"),
    "MethodNotAllowed": (405, "the server does not allow this method on the requested resource"),
    "NotAcceptable": (406, ""),
    "Conflict": (409, "the server reported a conflict"),
    "AlreadyExists": (409, ""),
    "Expired": (410, "The resourceVersion for the provided list is too old."),
    "Invalid": (422, ""),
    "TooManyRequests": (429, "Too many requests, please try again later."),
    "InternalError": (500, "an error on the server has prevented the request from succeeding"),
    "ServiceUnavailable": (503, "the server is currently unable to handle the request"),
    "Timeout": (504, "the server was unable to return a response in the time allotted"),
}
"""Reason to HTTP status, and the message of a failure of which no more is known."""


class Failure(Exception):  # noqa: N818 - a Status whose status is "Failure"
    """A request that fails with the HTTP status `code`, the `Status` object `status`, and `headers`.

    With `is_indented` its JSON is indented for every client.
    """

    def __init__(
        self,
        reason: str,
        message: str = "",
        *,
        code: int = 0,
        details: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        is_indented: bool = False,
    ) -> None:
        usual_code, usual_message = _FAILURES.get(reason, (code, ""))
        self.code = code or usual_code
        self.headers = dict(headers or {})
        self.is_indented = is_indented
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(metadata or {}),
            "status": "Failure",
            "message": message or usual_message,
            **({"reason": reason} if reason else {}),
            **({} if details is None else {"details": dict(details)}),
            "code": self.code,
        }
        super().__init__(self.status["message"])

    @property
    def body(self) -> bytes:
        body = compact_json(self.status) + b"\n"
        return indented_json(body) if self.is_indented else body

    @property
    def event(self) -> bytes:
        """The ERROR event that ends a watch with it."""
        return b'{"type":"ERROR","object":%s}\n' % compact_json(self.status)


def failure_of_status(code: int) -> Failure:
    """Return the failure that the API server sends if only the HTTP status is known."""
    reason = next((reason for reason, (each, text) in _FAILURES.items() if each == code and text), "")
    return Failure(reason, "" if reason else f"the server responded with the status code {code}", code=code)


def object_failure(reason: str, kind: Kind, name: str, problem: str) -> Failure:
    """Return a failure about an object; the message ends with `problem`, such as `not found`."""
    return Failure(reason, f'{kind.qualified_resource} "{name}" {problem}', details=details_of(kind, name))


def details_of(kind: Kind, name: str) -> dict[str, str]:
    """Return the `details` of a Status about an object, or without a name about a collection."""
    details = {"name": name, "group": kind.group, "kind": kind.resource}
    return {key: value for key, value in details.items() if value}


def invalid_option(field: str, problem: str) -> Failure:
    """Return the 422 for a parameter of a list or watch."""
    message = f"Forbidden: {problem}"
    cause = {"reason": "FieldValueForbidden", "message": message, "field": field}
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause]}
    text = f'ListOptions.meta.k8s.io "" is invalid: {field}: {message}'
    return Failure("Invalid", text, details=details)


def too_large_version(version: int, current: int) -> Failure:
    """Return the 504 for a version that does not exist yet."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Failure(
        "Timeout",
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )
