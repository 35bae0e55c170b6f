"""A request to the API server: what its path means, and the record of it that tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RequestRecord", "Target", "target_of"]

_PODS = re.compile(
    r"/api/v1(?:/namespaces/(?P<namespace>[^/]+))?/pods(?:/(?P<name>[^/]+)(?:/(?P<subresource>status))?)?/?"
)
_NAMED_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about.

    Attributes:
        verb: list, watch, get, create, update, patch or delete as in RBAC rules; empty where there is no such
            verb on that path.
        namespace: the namespace, None for all.
        name: the pod's name, None for the collection.
        subresource: `status` or empty.
    """

    verb: str
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What was asked for. No token, password or certificate is kept.

    Attributes:
        method: `GET`, ...
        path: without the query.
        query: name to (last) value.
        verb: list, watch, get, create, update, patch, delete; empty for anything but pods.
        namespace: the namespace asked about, None for all.
        name: the pod asked about, None for a collection.
        user_agent: the `User-Agent` header.
        accept: the `Accept` header.
        scheme: how the client said who it is: `Bearer`, `Basic`, `Certificate`, or empty.
        user: who the server takes it for; None where the credentials were not accepted.
        time: when it came, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    verb: str = ""
    namespace: str | None = None
    name: str | None = None
    user_agent: str = ""
    accept: str = ""
    scheme: str = ""
    user: str | None = None
    time: float = 0.0


def target_of(method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """The pods that a request is about, None for any other path."""
    found = _PODS.fullmatch(path)
    if found is None:
        return None
    namespace, name = found["namespace"], found["name"]
    if name is not None:
        if namespace is None:
            return None
        return Target(_NAMED_VERBS.get(method, ""), namespace, name, found["subresource"] or "")
    if method in {"GET", "HEAD"}:
        return Target("watch" if query.get("watch") in _TRUE else "list", namespace)
    return Target("create" if method == "POST" and namespace is not None else "", namespace)
