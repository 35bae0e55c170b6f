"""What to grant when the API server says no: the smallest Role that would do, as YAML.

What an API server's failure answers mean: status and body -> one typed error.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from aioresolve._core.retry import PASSING
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    Hint,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)

from .objects import Status, decode_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .client import Answer
    from .objects import PodQuery

__all__ = ["LIST", "WATCH", "denied_user", "expired", "failure", "manifest", "watch_failure", "watch_refusal"]

SERVICE_ACCOUNT = "system:serviceaccount:"

_USER = re.compile(r'User "((?:[^"\\]|\\.)*)" cannot')


def denied_user(message: str) -> str | None:
    """Return the user that the API server's 403 message names, or None where it names none."""
    found = _USER.search(message)
    return found[1] if found else None


def manifest(user: str, namespace: str | None, verbs: Sequence[str] = ("list",)) -> str:
    """Return the smallest RBAC objects that let `user` do so with pods, as YAML for `kubectl apply -f -`.

    Args:
        user: the user as the API server names it; `system:serviceaccount:NAMESPACE:NAME` is a ServiceAccount.
        namespace: a Role and RoleBinding there; None for a ClusterRole and ClusterRoleBinding.
        verbs: what the user is to be allowed.
    """
    cluster = "Cluster" if namespace is None else ""
    where = "" if namespace is None else f", namespace: {json.dumps(namespace)}"
    # A binding of its own for each user: applying one must not take another's away.
    binding = json.dumps("aioresolve-" + re.sub("[^A-Za-z0-9.-]+", "-", user.removeprefix(SERVICE_ACCOUNT)))
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: {cluster}Role
metadata: {{name: aioresolve{where}}}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [{", ".join(verbs)}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {cluster}RoleBinding
metadata: {{name: {binding}{where}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {cluster}Role, name: aioresolve}}
subjects:
- {_subject(user)}
"""


def _subject(user: str) -> str:
    match user.split(":"):
        case ["system", "serviceaccount", namespace, name]:
            return f"{{kind: ServiceAccount, name: {json.dumps(name)}, namespace: {json.dumps(namespace)}}}"
    return f"{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {json.dumps(user)}}}"


EXPIRED = frozenset({400, 410})
"""Statuses of a continue token or a version that is no longer good.

410 is the server's word for it; 400 comes from one that cannot read it at all, such as another version behind
the same address.
"""

LIST = ("list",)
"""What a user has to be allowed who asks once."""

WATCH = ("list", "watch")
"""What a user has to be allowed who wants to be told of changes."""


def failure(
    answer: Answer, query: PodQuery, *, host: str, source: str, verbs: Sequence[str] = LIST
) -> ResolveError:
    """Return the error for an answer whose status is not 200.

    Args:
        answer: what the server answered.
        query: what it was asked.
        host: the server, `scheme://host:port`.
        source: where the credentials come from, in words.
        verbs: what the user has to be allowed for it to be answered.
    """
    if 300 <= answer.status < 400:
        return ProtocolError(
            f"{host} redirects {query.scope} to {answer.location or 'nowhere'}, which is not followed, for"
            " it would be shown the credentials; name the API server itself as the server in the kubeconfig",
            host=host,
            scope=query.scope,
        )
    status = decode_status(answer.body)
    return _failure(answer.status, status, answer.retry_after, query, host, source, verbs)


def watch_refusal(answer: Answer, query: PodQuery, *, host: str, source: str) -> ResolveError:
    """Return the error for a watch that was not begun; the arguments are those of `failure`."""
    if answer.status in EXPIRED:
        return _version_expired(answer.status, decode_status(answer.body), query, host)
    return failure(answer, query, host=host, source=source, verbs=WATCH)


def watch_failure(status: Status, query: PodQuery, *, host: str, source: str) -> ResolveError:
    """Return the error for the ERROR event that ended a watch; the arguments are those of `failure`."""
    if status.code in EXPIRED:
        return _version_expired(status.code, status, query, host)
    return _failure(status.code or 500, status, None, query, host, source, WATCH)


def _version_expired(code: int, status: Status, query: PodQuery, host: str) -> APIError:
    # The list before it accepted the selector: what the server minds is the version.
    said = f"{status.message[:500]!r}" if status.message else "no reason given"
    return APIError(
        f"{host} answered {code} for the watch of {query.scope} ({said}): it does not go on from the version"
        " that was told last, so that the pods are listed anew; where that does not help, see its log",
        host=host,
        scope=query.scope,
        status=code,
        reason=status.reason,
    )


def _failure(
    code: int,
    status: Status,
    retry_after: float | None,
    query: PodQuery,
    host: str,
    source: str,
    verbs: Sequence[str],
) -> ResolveError:
    said = f"{status.message[:500]!r}" if status.message else "no reason given"
    where = f"{host} answered {code} for {query.scope} ({said})"
    match code:
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
            return _forbidden(status, query, host, verbs)
        case 404:
            mend = "it has no pods API at that address; correct the server in the kubeconfig"
        case 410:
            mend = "pages of the list expired faster than they could be read; try again"
        case _ if code in PASSING:
            mend = "the server is overloaded or not well; try again later"
        case _:
            mend = "see that this is a Kubernetes API server, and its log"
    if retry_after is None and status.details is not None:
        retry_after = status.details.retry_after_seconds
    return APIError(
        f"{where}: {mend}",
        host=host,
        scope=query.scope,
        status=code,
        reason=status.reason,
        retry_after=retry_after,
        retryable=code in PASSING,
    )


def expired(error: ResolveError) -> bool:
    """Whether `error` says that a continue token or a version is no longer good: list from the beginning."""
    return isinstance(error, APIError) and error.status in EXPIRED


def _forbidden(status: Status, query: PodQuery, host: str, verbs: Sequence[str]) -> ForbiddenError:
    user = denied_user(status.message)
    said = f"may not {verbs[-1]} pods in {query.where}: {host} answered 403 for {query.scope}"
    if user is None or user == "system:anonymous":
        return ForbiddenError(
            f"an unknown user {said}; no credentials were accepted: see that the kubeconfig names a user",
            host=host,
            scope=query.scope,
            status=403,
            reason=status.reason,
        )
    grant = manifest(user, query.namespace, verbs)
    narrower = "" if query.namespace else ", or pass {namespace}, for which a Role there is enough"
    return ForbiddenError(
        f"user {user!r} {said}",
        hint=Hint(
            f"Have this applied (`kubectl apply -f -`){narrower}:\n{{manifest}}", values={"manifest": grant}
        ),
        host=host,
        scope=query.scope,
        status=403,
        reason=status.reason,
        manifest=grant,
    )
