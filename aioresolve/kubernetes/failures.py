"""What an API server's failure answers mean: status and body -> one typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)

from .messages import Status, decode_status
from .rbac import denied_user, manifest

if TYPE_CHECKING:
    from .query import PodQuery
    from .transport import Answer

__all__ = ["expired", "failure"]

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that pass: the same request may succeed later."""


def failure(answer: Answer, query: PodQuery, *, host: str, source: str) -> ResolveError:
    """Return the error for an answer whose status is not 200.

    Args:
        answer: what the server answered.
        query: what it was asked.
        host: the server, `scheme://host:port`.
        source: where the credentials come from, in words.
    """
    status = decode_status(answer.body)
    said = f"{status.message[:500]!r}" if status.message else "no reason given"
    where = f"{host} answered {answer.status} for {query.scope} ({said})"
    if 300 <= answer.status < 400:
        return ProtocolError(
            f"{host} redirects {query.scope} to {answer.location or 'nowhere'}, which is not followed, for"
            " it would be shown the credentials; name the API server itself as the server in the kubeconfig",
            host=host,
            scope=query.scope,
        )
    match answer.status:
        case 400 if status.message and not query.continue_:
            return ConfigurationError(f"{where}: correct the selector {query.selector!r}")
        case 400 if not query.continue_:
            # An API server says what it minds. It does not where http is spoken at its port of https.
            return ProtocolError(
                f"{where}: see that this is a Kubernetes API server, and whether it wants https",
                host=host,
                scope=query.scope,
            )
        case 401:
            return UnauthorizedError(
                f"{where}: it does not accept the credentials of {source}, nor after renewing them;"
                " log in again, or renew the token there",
                host=host,
                scope=query.scope,
                status=401,
                reason=status.reason,
            )
        case 403:
            return _forbidden(status, query, host)
        case 404:
            mend = "it has no pods API at that address; correct the server in the kubeconfig"
        case 410:
            mend = "pages of the list expired faster than they could be read; try again"
        case code if code in PASSING:
            mend = "the server is overloaded or not well; try again later"
        case _:
            mend = "see that this is a Kubernetes API server, and its log"
    return APIError(
        f"{where}: {mend}",
        host=host,
        scope=query.scope,
        status=answer.status,
        reason=status.reason,
        retry_after=_retry_after(answer, status),
        retryable=answer.status in PASSING,
    )


def expired(error: ResolveError) -> bool:
    """Whether `error` says that a continue token is no longer good: the list has to be begun again.

    410 is the server's word for it; 400 comes from one that cannot read the token at all, such as another
    version behind the same address.
    """
    return isinstance(error, APIError) and error.status in (400, 410)


def _retry_after(answer: Answer, status: Status) -> float | None:
    if answer.retry_after is None and status.details is not None:
        return status.details.retry_after_seconds
    return answer.retry_after


def _forbidden(status: Status, query: PodQuery, host: str) -> ForbiddenError:
    user = denied_user(status.message)
    said = f"may not list pods in {query.where}: {host} answered 403 for {query.scope}"
    if user is None or user == "system:anonymous":
        return ForbiddenError(
            f"an unknown user {said}; no credentials were accepted: see that the kubeconfig names a user",
            host=host,
            scope=query.scope,
            status=403,
            reason=status.reason,
        )
    grant = manifest(user, query.namespace)
    narrower = "" if query.namespace else ", or pass `namespace=`, for which a Role there is enough"
    return ForbiddenError(
        f"user {user!r} {said}; have this applied (`kubectl apply -f -`){narrower}:\n{grant}",
        host=host,
        scope=query.scope,
        status=403,
        reason=status.reason,
        manifest=grant,
    )
