"""Failure responses of Google's APIs, translated to one typed error each. No I/O.

Formats: `google/rpc/error_details.proto`. Reasons: `google/api/error_reason.proto`, and those of
Compute Engine's legacy errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve._core.retry import RETRYABLE_STATUSES
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    Hint,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)

from .api_request import decoder

if TYPE_CHECKING:
    from aioresolve._core.http import Response

    from .api_request import APIRequest

RATE_LIMITED = frozenset({"RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded"})
"""Reasons for a 403 or 429 that end within a minute."""

DISABLED = frozenset({"SERVICE_DISABLED", "accessNotConfigured"})
"""Reasons for a 403: the API is not enabled in the project that is charged."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity that sends a request.

    `source` says where its credentials come from; `member` is its IAM member, such as `serviceAccount:a@b`.
    """

    source: str
    member: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an API denied a request; what it does not report is empty.

    `status` is the name of the gRPC code (`PERMISSION_DENIED`), `reason` is more specific
    (`SERVICE_DISABLED`), `metadata` belongs to the reason, `retry_delay` is in seconds.
    """

    message: str = ""
    status: str = ""
    reason: str = ""
    metadata: dict[str, str] = {}
    retry_delay: float | None = None


def error_from_response(
    response: Response, request: APIRequest, *, host: str, principal: Principal
) -> ResolveError:
    """Return the error for a response whose status is not 200."""
    status = response.status
    kind: type[APIError] = APIError
    hint: Hint | None
    if 300 <= status < 400:
        return ProtocolError(
            f"{host} redirects {request.scope} to {response.location or 'nowhere'}; redirects are not"
            " followed, because they would send the credentials there",
            hint="Configure the API itself as the endpoint.",
            host=host,
            scope=request.scope,
        )
    reported = decode_failure(response.body)
    if status in (400, 403, 404) and reported == Failure():
        return ProtocolError(
            f"{host} returned status {status} for {request.scope}, but not in the format of Google's APIs",
            hint="Check that the endpoint is the API itself, and any proxy in front of it.",
            host=host,
            scope=request.scope,
        )
    message = f"{reported.message[:500]!r}" if reported.message else "no reason given"
    summary = f"{host} returned status {status} for {request.scope} ({message})"
    reason = reported.reason or reported.status or None
    # A 401 is about credentials, whatever its reason says: a retry would not help.
    is_rate_limited = reported.reason in RATE_LIMITED and status != 401
    match status:
        # Other gRPC codes with status 400, such as FAILED_PRECONDITION, do not mean a wrong argument.
        case 400 if reported.status in ("", "INVALID_ARGUMENT", "OUT_OF_RANGE"):
            return ConfigurationError(summary, hint="Correct the name, {project} or {zone}.")
        case 401:
            kind, hint = UnauthorizedError, _login_hint(principal)
            cause = f"it rejects the credentials of {principal.source}, also after renewing them"
        case 403 if not is_rate_limited:
            kind = ForbiddenError
            cause, hint = _forbidden(reported, request, principal)
        case 404:
            cause, hint = "it does not exist in that project and zone", _list_hint(request)
        case _ if status == 429 or is_rate_limited:
            quota = reported.metadata.get("quota_metric") or reported.metadata.get("quota_limit")
            cause = f"the quota {quota or 'of requests'} is exhausted"
            hint = Hint("Send fewer requests, or request a higher quota.")
        case _ if status in RETRYABLE_STATUSES:
            cause, hint = "the server is overloaded or unavailable", Hint("Try again later.")
        case _:
            cause, hint = "unexpected status", Hint("Check that the endpoint is the API itself.")
    return kind(
        f"{summary}: {cause}",
        hint=hint,
        host=host,
        scope=request.scope,
        status=status,
        reason=reason,
        retry_after=reported.retry_delay if response.retry_after is None else response.retry_after,
        retryable=status in RETRYABLE_STATUSES or is_rate_limited,
    )


def _forbidden(reported: Failure, request: APIRequest, principal: Principal) -> tuple[str, Hint]:
    """Return the cause of a 403, and what to do about it."""
    project = request.project or "PROJECT"
    consumer = reported.metadata.get("consumer", "").removeprefix("projects/")
    if reported.reason in DISABLED:
        service = reported.metadata.get("service") or f"{request.service}.googleapis.com"
        return "the API is not enabled", Hint(
            "Run `gcloud services enable {service} --project={project_id}`, then wait some minutes.",
            values={"service": service, "project_id": consumer or project},
        )
    if reported.reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
        return (
            f"the access token of {principal.source} lacks the scope cloud-platform",
            Hint(
                "On a VM, stop it and run `gcloud compute instances set-service-account NAME"
                " --scopes=cloud-platform`; otherwise log in again with that scope."
            ),
        )
    if reported.reason not in ("", "IAM_PERMISSION_DENIED", "forbidden"):
        # The message of the API says which policy, account or project is the reason.
        return f"the reason is {reported.reason}", Hint("Correct what the message names.")
    # A 403 without details: assume that the permission is missing which the request requires.
    permission = reported.metadata.get("permission") or request.permission
    if not permission:
        return f"{principal.source} lacks a permission", Hint("Assign a role that contains it.")
    cause = f"{principal.source} lacks the permission {permission} (part of {request.role})"
    return f"{cause}, or the project or zone does not exist", Hint(
        "Run `gcloud projects add-iam-policy-binding {project_id} --member={member} --role={role}`.",
        values={
            "project_id": project,
            "member": principal.member or "user:YOUR-ADDRESS",
            "role": request.role,
        },
    )


def _login_hint(principal: Principal) -> Hint:
    if principal.member is not None and principal.member.startswith("serviceAccount:"):
        return Hint("Check that the service account and its key still exist.")
    return Hint("Log in again with `gcloud auth application-default login`.")


def _list_hint(request: APIRequest) -> Hint:
    is_tpu = request.service == "tpu"
    kind, zone = ("tpus tpu-vm", " --zone=-") if is_tpu else ("instance-groups", "")
    return Hint(
        f"List the existing ones with `gcloud compute {kind} list --project={{project_id}}{zone}`.",
        values={"project_id": request.project},
    )


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    reason: Any = None
    metadata: Any = None
    retry_delay: Any = None


class _LegacyDetail(msgspec.Struct, frozen=True):
    reason: str = ""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    status: str = ""
    details: tuple[_Detail, ...] = ()
    errors: tuple[_LegacyDetail, ...] = ()


class _FailureBody(msgspec.Struct, frozen=True):
    error: _Error


_decode_body = decoder(_FailureBody)


def decode_failure(body: bytes) -> Failure:
    """Return why an API denied a request; an empty Failure if `body` is not from the API."""
    try:
        document = _decode_body(body)
    except ValueError:
        return Failure()  # from a proxy, for example: a page, or JSON such as {"error": "Not Found"}
    error = document.error
    reason, metadata, delay = "", {}, None
    for detail in error.details:
        if isinstance(detail.reason, str) and not reason:
            reason = detail.reason
            pairs = detail.metadata.items() if isinstance(detail.metadata, dict) else ()
            metadata = {str(name): str(value) for name, value in pairs}
        delay = _seconds(detail.retry_delay) if delay is None else delay
    return Failure(
        message=error.message,
        status=error.status,
        reason=reason or next((legacy.reason for legacy in error.errors), ""),
        metadata=metadata,
        retry_delay=delay,
    )


def _seconds(duration: object) -> float | None:
    """Return a google.protobuf.Duration, such as `1.5s`, in seconds."""
    if not isinstance(duration, str) or not duration.endswith("s"):
        return None
    try:
        return max(0.0, float(duration[:-1]))
    except ValueError:
        return None
