"""What a Google API's failure answers mean: status and body -> one typed error. Pure.

Reasons: `google/api/error_reason.proto`, and those of Compute Engine's older errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve._core.retry import PASSING
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)

from .messages import Failure, decode_failure

if TYPE_CHECKING:
    from .api_request import Question
    from .transport import Answer

__all__ = ["Asker", "failure"]

RATE_LIMITED = frozenset({"RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded"})
"""Reasons for a 403 or 429 that pass within the minute."""

DISABLED = frozenset({"SERVICE_DISABLED", "accessNotConfigured"})
"""Reasons for a 403: the API is not enabled in the project that is charged."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked.

    Attributes:
        source: where the credentials come from, in words.
        member: the IAM member they stand for, such as `serviceAccount:a@b`, where that is known.
        scopes: the OAuth scopes asked for.
    """

    source: str
    member: str | None = None
    scopes: tuple[str, ...] = ()


def failure(answer: Answer, question: Question, *, host: str, asker: Asker) -> ResolveError:
    """Return the error for an answer whose status is not 200.

    Args:
        answer: what the server answered.
        question: what it was asked.
        host: the server, `scheme://host:port`.
        asker: who asked it.
    """
    if 300 <= answer.status < 400:
        return ProtocolError(
            f"{host} redirects {question.scope} to {answer.location}, which is not followed, for"
            " it would be shown the credentials; name the API itself as the endpoint",
            host=host,
            scope=question.scope,
        )
    said = decode_failure(answer.body)
    words = f"{said.message[:500]!r}" if said.message else "no reason given"
    where = f"{host} answered {answer.status} for {question.scope} ({words})"
    reason = said.reason or said.status or None
    match answer.status:
        case 400 if said.status in ("", "INVALID_ARGUMENT", "OUT_OF_RANGE"):
            return ConfigurationError(where, hint="Correct the name, {project} or {zone}.")
        case 401:
            return UnauthorizedError(
                f"{where}: it does not accept the credentials of {asker.source}, nor after renewing them;"
                f" {_login(asker)}",
                host=host,
                scope=question.scope,
                status=401,
                reason=reason,
            )
        case 403 if said.reason not in RATE_LIMITED:
            return ForbiddenError(
                f"{where}: {_forbidden_mend(said, question, asker)}",
                host=host,
                scope=question.scope,
                status=403,
                reason=reason,
            )
    retryable = answer.status in PASSING or said.reason in RATE_LIMITED
    return APIError(
        f"{where}: {_mend(answer.status, said, question)}",
        host=host,
        scope=question.scope,
        status=answer.status,
        reason=reason,
        retry_after=said.retry_delay if answer.retry_after is None else answer.retry_after,
        retryable=retryable,
    )


def _mend(status: int, said: Failure, question: Question) -> str:
    if status == 404:
        return (
            "there is none of that name, or not in that project and zone;"
            f" see `gcloud compute tpus tpu-vm list --project={question.project} --zone=-`"
            if question.service == "tpu"
            else "there is none of that name, or not in that project and zone"
        )
    if status == 429 or said.reason in RATE_LIMITED:
        quota = said.metadata.get("quota_metric") or said.metadata.get("quota_limit")
        return f"the quota {quota or 'of requests'} is used up; ask less often, or have it raised"
    if status in PASSING:
        return "the server is overloaded or not well; try again later"
    return "see that the endpoint is the API's own"


def _forbidden_mend(said: Failure, question: Question, asker: Asker) -> str:
    """Return what to do about a 403."""
    member = asker.member or "user:YOUR-ADDRESS"
    project = question.project or "PROJECT"
    if said.reason in DISABLED:
        service = said.metadata.get("service") or f"{question.service}.googleapis.com"
        consumer = said.metadata.get("consumer", "").removeprefix("projects/") or project
        page = said.metadata.get("activationUrl")
        at = f" or at {page}" if page else ""
        return (
            f"the API is not enabled there: `gcloud services enable {service} --project={consumer}`{at},"
            " then wait some minutes"
        )
    if said.reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
        return (
            f"the access token of {asker.source} lacks a scope it needs ({' '.join(asker.scopes)}): on a VM,"
            " stop it and `gcloud compute instances set-service-account NAME --scopes=cloud-platform`; else"
            " log in again with that scope"
        )
    if said.reason == "USER_PROJECT_DENIED":
        charged = said.metadata.get("consumer", "").removeprefix("projects/") or "QUOTA-PROJECT"
        return (
            f"it may not charge its requests to the project {charged}: "
            f"{_binding(charged, member, 'roles/serviceusage.serviceUsageConsumer')},"
            " or give another `quota_project`"
        )
    if said.reason in ("BILLING_DISABLED", "CONSUMER_INVALID", "CONSUMER_SUSPENDED"):
        return f"the project {project} cannot be charged; see to its billing, or correct its name"
    if said.reason == "SECURITY_POLICY_VIOLATED":
        return "a VPC Service Controls perimeter forbids it; ask from inside, or have an ingress rule added"
    permission = said.metadata.get("permission") or question.permission
    if not permission:
        return f"{asker.source} may not; have the permission granted"
    return (
        f"{asker.source} lacks the permission {permission}, or there is no such project or zone; the smallest"
        f" predefined role with it is {question.role}: {_binding(project, member, question.role)}"
    )


def _binding(project: str, member: str, role: str) -> str:
    return f"`gcloud projects add-iam-policy-binding {project} --member={member} --role={role}`"


def _login(asker: Asker) -> str:
    if asker.member is not None and asker.member.startswith("serviceAccount:"):
        return "see that the service account and its key are still there"
    return "log in again with `gcloud auth application-default login`"
