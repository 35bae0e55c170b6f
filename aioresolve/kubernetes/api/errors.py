"""Failure responses of an API server as typed errors, with hints.

For a 403 the hint is the smallest RBAC manifest that would permit the request.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from aioresolve._core.deadline import RETRYABLE_STATUSES
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    Hint,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)

from .objects import status_from_json
from .queries import PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve._core.http import Response

    from .objects import Status
    from .queries import Query, Resource

LIST_VERBS = ("list",)
"""The RBAC verbs that a single list needs."""

WATCH_VERBS = ("list", "watch")
"""The RBAC verbs that a watch needs, which begins with a list."""

EXPIRED = frozenset({400, 410})
"""The statuses for an expired resourceVersion or continue token.

410 is the documented one. 400 comes from a server that cannot parse the token at all, such as one of another
Kubernetes version behind the same address.
"""

MAX_MESSAGE = 500
"""The maximum length of a server's message that is quoted, in characters."""

ANONYMOUS = "system:anonymous"
SERVICE_ACCOUNT = "system:serviceaccount:"

_DENIAL = re.compile(r'User "((?:[^"\\]|\\.)*)" cannot(?: (\S+) resource "([^"]*)")?')
"""`User "NAME" cannot VERB resource "RESOURCE" in API group ...`: `ForbiddenMessage` of k8s.io/apiserver.

A name with quotation marks or special characters is kept as Go's `%q` writes it.
"""


def error_from_response(
    response: Response,
    query: Query[Any],
    *,
    host: str,
    source: str,
    verbs: Sequence[str] = LIST_VERBS,
    is_watch: bool = False,
) -> ResolveError:
    """Return the error for a response whose status is not 200.

    Args:
        response: the response.
        query: the request.
        host: the server, `scheme://host:port`.
        source: where the credentials come from, as text.
        verbs: the RBAC verbs that the caller needs; those of a watch if `is_watch`.
        is_watch: whether the request was to start a watch.
    """
    if 300 <= response.status < 400:
        return ProtocolError(
            f"{host} redirects {query.scope} to {response.location or 'nowhere'}; the redirect is not"
            " followed, because the other server would get the credentials",
            hint="Set the server in the kubeconfig to the API server itself.",
            host=host,
            scope=query.scope,
        )
    status = status_from_json(response.body)
    used = WATCH_VERBS if is_watch else verbs
    return _error(response.status, status, response.retry_after, query, host, source, used, is_watch=is_watch)


def error_from_watch_event(status: Status, query: Query[Any], *, host: str, source: str) -> ResolveError:
    """Return the error for an ERROR event; for the arguments see `error_from_response`."""
    return _error(status.code or 500, status, None, query, host, source, WATCH_VERBS, is_watch=True)


def is_expired(error: ResolveError) -> bool:
    """Whether `error` means that a resourceVersion or continue token expired: list from the beginning."""
    return isinstance(error, APIError) and error.status in EXPIRED


def _error(
    code: int,
    status: Status,
    retry_after: float | None,
    query: Query[Any],
    host: str,
    source: str,
    verbs: Sequence[str],
    *,
    is_watch: bool,
) -> ResolveError:
    message = f"{status.message[:MAX_MESSAGE]!r}" if status.message else "no reason given"
    summary = f"{host} returned {code} for {'the watch of ' if is_watch else ''}{query.scope} ({message})"
    place: dict[str, Any] = {"host": host, "scope": query.scope}
    attributes: dict[str, Any] = {**place, "status": code, "reason": status.reason}
    match code:
        case 400 | 410 if is_watch:
            # A 400 cannot be about the selector here, because the list before the watch accepted it.
            summary += f": it cannot resume from the last resourceVersion, so the {query.resource.name} are"
            summary += " listed again"
            remedy = "If this repeats, check the log of the API server."
        case 400 if status.message and not query.continue_:
            hint = Hint("Correct the selector {selector}.", values={"selector": repr(query.selector)})
            return ConfigurationError(summary, hint=hint)
        case 400 if not query.continue_:
            # An API server gives a reason. A server that expects https but receives http does not.
            protocol = "Check that this is a Kubernetes API server, and whether it expects https."
            return ProtocolError(summary, hint=protocol, **place)
        case 401:
            return UnauthorizedError(
                f"{summary}: it rejects the credentials from {source}",
                hint="Log in again, or renew the token there.",
                **attributes,
            )
        case 403:
            return _forbidden(status, query, verbs, summary, attributes)
        case 404:
            summary += f": there is no {query.resource.name} API at that address"
            remedy = "Correct the server in the kubeconfig."
        case 410:
            summary += ": the pages of the list expired faster than they could be read"
            remedy = "Try again."
        case _ if code in RETRYABLE_STATUSES:
            summary += ": the server is overloaded or unhealthy"
            remedy = "Try again later."
        case _:
            remedy = "Check that this is a Kubernetes API server, and check its log."
    if retry_after is None and status.details is not None:
        retry_after = status.details.retry_after_seconds
    return APIError(
        summary, hint=remedy, retry_after=retry_after, retryable=code in RETRYABLE_STATUSES, **attributes
    )


def _forbidden(
    status: Status, query: Query[Any], verbs: Sequence[str], summary: str, attributes: dict[str, Any]
) -> ForbiddenError:
    found = _DENIAL.search(status.message)
    user, verb, resource = found.groups(default="") if found is not None else ("", "", "")
    if user in ("", ANONYMOUS):
        return ForbiddenError(
            f"{summary}: it knows no user who sent the request",
            hint="Check that the kubeconfig has a user with credentials, and that no proxy denied the"
            " request.",
            **attributes,
        )
    if resource != query.resource.name or verb not in verbs:
        hint = "Have a cluster administrator grant user {user} that permission."
        if verb == "impersonate":
            hint += " Or remove the impersonation (`as` in the kubeconfig, or {impersonate})."
        return ForbiddenError(summary, hint=Hint(hint, {"user": repr(user)}), user=user, **attributes)
    manifest = rbac_manifest(user, query.namespace, verbs, query.resource)
    alternative = ""
    if not query.resource.is_namespaced:  # only nodes, for their labels
        alternative = ", or pass {order_by=name}"
    elif query.namespace is None:
        alternative = ", or pass {namespace}, for which a Role is sufficient"
    if '["container.' in status.message:  # the API server of GKE names the permission of IAM
        alternative += ", or grant the user roles/container.viewer of the project (IAM)"
    return ForbiddenError(
        f"user {user!r} may not {verb} {resource} in {query.where}: {attributes['host']} returned 403 for"
        f" {query.scope}",
        hint=Hint(
            f"Have a cluster administrator apply this (`kubectl apply -f -`){alternative}:\n{{manifest}}",
            values={"manifest": manifest},
        ),
        manifest=manifest,
        user=user,
        **attributes,
    )


def rbac_manifest(
    user: str,
    namespace: str | None,
    verbs: Sequence[str] = LIST_VERBS,
    resource: Resource[Any] = PODS,
) -> str:
    """Return the smallest RBAC objects that permit `user` to read objects, as YAML for `kubectl apply -f -`.

    Applying them never changes the permissions of another user, nor those that the user already has: the
    names have the verbs, the resource unless it is pods, and that of the binding a hash of the user. (A
    binding cannot change its role.)

    Args:
        user: the user as the API server names it; `system:serviceaccount:NAMESPACE:NAME` is a ServiceAccount.
        namespace: the namespace of a Role and RoleBinding; None for a ClusterRole and ClusterRoleBinding.
        verbs: the verbs to permit.
        resource: what the verbs apply to.
    """
    cluster = "Cluster" if namespace is None else ""
    where = "" if namespace is None else f", namespace: {json.dumps(namespace)}"
    of_resource = [] if resource is PODS else [resource.name]
    role = "-".join(["aioresolve", *of_resource, *verbs])
    readable = re.sub("[^A-Za-z0-9.-]+", "-", user.removeprefix(SERVICE_ACCOUNT))[:63]
    binding = f"{role}-{readable}-{hashlib.sha256(user.encode()).hexdigest()[:8]}"
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: {cluster}Role
metadata: {{name: {role}{where}}}
rules:
- apiGroups: [{json.dumps(resource.group)}]
  resources: [{resource.name}]
  verbs: [{", ".join(verbs)}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {cluster}RoleBinding
metadata: {{name: {json.dumps(binding)}{where}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {cluster}Role, name: {role}}}
subjects:
- {rbac_subject(user)}
"""


def rbac_subject(user: str) -> str:
    """Return the subject of a binding for a user, as YAML."""
    match user.split(":"):
        case ["system", "serviceaccount", namespace, name]:
            return f"{{kind: ServiceAccount, name: {json.dumps(name)}, namespace: {json.dumps(namespace)}}}"
    return f"{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {json.dumps(user)}}}"
