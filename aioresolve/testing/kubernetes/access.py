"""Authentication and authorization of requests for objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .kinds import KINDS, POD, SERVICE
from .options import TRUE_VALUES
from .statuses import forbidden, unauthorized

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .kinds import Kind

ANONYMOUS = "system:anonymous"

_OBJECTS = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>status))?)?/?"
)
_BY_RESOURCE = {(kind.group, kind.resource): kind for kind in (*KINDS, SERVICE)}
_NAMED_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that the server received, without its token or certificate.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        verb: list, watch, get, create, update, patch, delete; empty for kinds that cannot be listed.
        resource: such as `pods` or `endpointslices`; empty for kinds that cannot be listed.
        namespace: the requested namespace, None for all.
        name: the requested object, None for a collection.
        user_agent: the `User-Agent` header.
        accept: the `Accept` header.
        scheme: how the client authenticated: `Bearer`, `Certificate`, another scheme, or empty.
        user: the authenticated user; None if the credentials were rejected.
        impersonated_user: the user of `Impersonate-User`, whose permissions then apply; every user may
            impersonate.
        impersonated_groups: the groups of `Impersonate-Group`.
        time: when it arrived, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    verb: str = ""
    resource: str = ""
    namespace: str | None = None
    name: str | None = None
    user_agent: str = ""
    accept: str = ""
    scheme: str = ""
    user: str | None = None
    impersonated_user: str | None = None
    impersonated_groups: tuple[str, ...] = ()
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The verb and the resource of a request, in the terms of RBAC rules.

    The verb is empty if the path does not support the method. Without a namespace the request is for all of
    them, without a name for the collection. The subresource is `status` or empty.
    """

    verb: str
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""
    kind: Kind = POD


def request_info(method: str, path: str, query: Mapping[str, str]) -> RequestInfo | None:
    """Return the verb and resource of a request, None if its path does not belong to objects."""
    found = _OBJECTS.fullmatch(path)
    kind = None if found is None else _BY_RESOURCE.get((found["group"] or "", found["resource"]))
    if found is None or kind is None or (found["subresource"] and kind is not POD):
        return None
    namespace, name = found["namespace"], found["name"]
    if name is not None:
        if namespace is None:
            return None
        return RequestInfo(_NAMED_VERBS.get(method, ""), namespace, name, found["subresource"] or "", kind)
    if method in {"GET", "HEAD"}:
        return RequestInfo("watch" if query.get("watch") in TRUE_VALUES else "list", namespace, kind=kind)
    verb = "create" if method == "POST" and namespace is not None else ""
    return RequestInfo(verb, namespace, kind=kind)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: `user` is None if its credentials are rejected, `scheme` is their kind."""

    user: str | None
    scheme: str = ""


class Access:
    """The users of a server and their permissions; every attribute may be changed while the server runs.

    `tokens` is bearer token to user (None accepts every request). `allow` is user to the namespaces that the
    user may access, None for all; without a mapping every user may access everything. `resources` and `verbs`
    are user to the resources and RBAC verbs that the user may use; other users may use all. With
    `anonymous`, requests without credentials are accepted as `system:anonymous`, which `allow` then denies.
    """

    def __init__(
        self,
        tokens: Mapping[str, str] | None,
        allow: Mapping[str, Collection[str] | None] | None,
        anonymous: bool,
        resources: Mapping[str, Collection[str]] | None = None,
        verbs: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.tokens = None if tokens is None else dict(tokens)
        self.allow = None if allow is None else dict(allow)
        self.anonymous = anonymous
        self.resources = dict(resources or {})
        self.verbs = dict(verbs or {})

    def caller(self, authorization: str, certificate_user: str | None) -> Caller:
        """Return the sender of a request: its client certificate counts before its `Authorization` header."""
        if certificate_user is not None:
            return Caller(certificate_user, "Certificate")
        scheme, _, credentials = authorization.partition(" ")
        if self.tokens is None:
            return Caller(ANONYMOUS, scheme)
        if scheme.lower() == "bearer":
            return Caller(self.tokens.get(credentials.strip()), "Bearer")
        return Caller(ANONYMOUS if self.anonymous and not scheme else None, scheme)

    def check(self, caller: Caller, info: RequestInfo) -> None:
        """Return if `caller` may make the request; otherwise raise the API server's 401 or 403."""
        if caller.user is None:
            raise unauthorized()
        if not self.may(caller.user, info.verb, info.kind.resource, info.namespace):
            raise forbidden(caller.user, info.verb, info.namespace, info.name, info.subresource, info.kind)

    def may(self, user: str, verb: str, resource: str, namespace: str | None) -> bool:
        """Whether `user` may use `verb` for `resource` in a namespace; None for all namespaces."""
        if resource not in self.resources.get(user, (resource,)) or verb not in self.verbs.get(user, (verb,)):
            return False
        if self.allow is None:
            return self.tokens is None or user != ANONYMOUS
        if user not in self.allow:
            return False
        namespaces = self.allow[user]
        return namespaces is None or namespace in namespaces
