"""The failures of the API server: HTTP status, reason, and the `Status` object in the body.

The messages are those of Kubernetes, word for word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .store import compact_json, indented_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .store import Kind


_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an inconsistent "
    "list - objects that were created, modified, or deleted between the time the first chunk was returned "
    "and now may show up in the list."
)
_MEDIA_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_STREAMS = ("application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")


class Failure(Exception):  # noqa: N818 - a Status whose status is "Failure"
    """A request that fails with the HTTP status `code`, the `Status` object `status`, and `headers`.

    With `is_indented` its JSON is indented for every client.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        is_indented: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = dict(headers or {})
        self.is_indented = is_indented
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(metadata or {}),
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({} if details is None else {"details": dict(details)}),
            "code": code,
        }

    @property
    def body(self) -> bytes:
        body = compact_json(self.status) + b"\n"
        return indented_json(body) if self.is_indented else body

    @property
    def event(self) -> bytes:
        """The ERROR event that ends a watch with it."""
        return b'{"type":"ERROR","object":%s}\n' % compact_json(self.status)


def bad_request(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def unauthorized() -> Failure:
    return Failure(401, "Unauthorized", "Unauthorized")


def forbidden(
    user: str, verb: str, kind: Kind, namespace: str | None, name: str, subresource: str
) -> Failure:
    """403; without a namespace at the cluster scope."""
    subject = f'{kind.qualified_resource} "{name}"' if name else kind.qualified_resource
    resource = f"{kind.resource}/{subresource}" if subresource else kind.resource
    scope = "at the cluster scope" if namespace is None else f'in the namespace "{namespace}"'
    message = (
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{resource}"'
        f' in API group "{kind.group}" {scope}'
    )
    headers = {"X-Content-Type-Options": "nosniff"}
    return Failure(403, "Forbidden", message, details=details_of(kind, name), headers=headers)


def not_found(name: str, kind: Kind) -> Failure:
    message = f'{kind.qualified_resource} "{name}" not found'
    return Failure(404, "NotFound", message, details=details_of(kind, name))


def no_such_resource() -> Failure:
    return Failure(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> Failure:
    message = "the server does not allow this method on the requested resource"
    return Failure(405, "MethodNotAllowed", message, details={})


def not_acceptable() -> Failure:
    available = ", ".join(_MEDIA_TYPES + _STREAMS)
    message = f"406: Not Acceptable\n\nAvailable representations: {available}"
    return Failure(406, "NotAcceptable", message, details={}, is_indented=True)


def no_such_transformation() -> Failure:
    """406 for JSON in an unknown form (`as=`, `g=`, `v=`)."""
    message = f"only the following media types are accepted: {', '.join(_MEDIA_TYPES)}"
    return Failure(406, "NotAcceptable", message, is_indented=True)


def already_exists(name: str, kind: Kind) -> Failure:
    message = f'{kind.qualified_resource} "{name}" already exists'
    return Failure(409, "AlreadyExists", message, details=details_of(kind, name))


def conflict(name: str, kind: Kind) -> Failure:
    subject = f'Operation cannot be fulfilled on {kind.qualified_resource} "{name}"'
    hint = "please apply your changes to the latest version and try again"
    message = f"{subject}: the object has been modified; {hint}"
    return Failure(409, "Conflict", message, details=details_of(kind, name))


def details_of(kind: Kind, name: str) -> dict[str, str]:
    """Return the `details` of a Status about an object, or without a name about a collection."""
    details = {"name": name, "group": kind.group, "kind": kind.resource}
    return {key: value for key, value in details.items() if value}


def expired_list() -> Failure:
    return Failure(410, "Expired", "The resourceVersion for the provided list is too old.")


def expired_page(rest: str) -> Failure:
    """410 for a continue token; `rest` is the token that lists the remaining pods at the current version."""
    return Failure(410, "Expired", _CONTINUE_EXPIRED, metadata={"continue": rest})


def expired_watch(version: int, oldest: int) -> Failure:
    return Failure(410, "Expired", f"too old resource version: {version} ({oldest})")


def unsupported_media_type(*accepted: str) -> Failure:
    message = "the body of the request was in an unknown format - accepted media types include: "
    return Failure(415, "UnsupportedMediaType", message + ", ".join(accepted))


def invalid(kind: Kind, name: str, field: str, message: str) -> Failure:
    """422 for a field of an object that is required."""
    details = {"name": name, "group": kind.group, "kind": kind.name}
    qualified = f"{kind.name}.{kind.group}" if kind.group else kind.name
    return _invalid(qualified, details, field, "FieldValueRequired", message)


def forbidden_option(field: str, message: str) -> Failure:
    """422 for a parameter of a list or watch."""
    details = {"group": "meta.k8s.io", "kind": "ListOptions"}
    return _invalid("ListOptions.meta.k8s.io", details, field, "FieldValueForbidden", f"Forbidden: {message}")


def _invalid(kind: str, details: Mapping[str, str], field: str, reason: str, message: str) -> Failure:
    cause = {"reason": reason, "message": message, "field": field}
    details = {key: value for key, value in details.items() if value}
    text = f'{kind} "{details.get("name", "")}" is invalid: {field}: {message}'
    return Failure(422, "Invalid", text, details={**details, "causes": [cause]})


def too_large_version(version: int, current: int) -> Failure:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Failure(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )


_REASONS = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    404: ("NotFound", "the server could not find the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    410: ("Expired", "The resourceVersion for the provided list is too old."),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "an error on the server has prevented the request from succeeding"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "the server was unable to return a response in the time allotted"),
}


def failure_of_status(code: int) -> Failure:
    """Return the failure that the API server sends if only the HTTP status is known."""
    reason, message = _REASONS.get(code, ("", f"the server responded with the status code {code}"))
    return Failure(code, reason, message)
