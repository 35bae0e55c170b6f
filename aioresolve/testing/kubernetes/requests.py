"""What a request is for, whether its sender may make it, and its options: path, user, `Accept` and query.

Negotiation follows k8s.io/apiserver/pkg/endpoints/handlers/negotiation: the first acceptable clause, in the
order of `q`. The query follows https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
and k8s.io/apimachinery/pkg/apis/meta/internalversion/validation. Selectors:
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .statuses import Failure, invalid_option
from .store import KINDS, POD, Kind, StoredObject

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

ANONYMOUS = "system:anonymous"

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>status))?)?/?"
)
_BY_RESOURCE = {(kind.group, kind.resource): kind for kind in KINDS}
_NAMED_VERBS = {"GET": "get", "PATCH": "patch", "DELETE": "delete"}

_FALSE_VALUES = frozenset({None, "0", "false"})
"""The values of an option that are false, in lower case; all others are true."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that the server received, without its token or certificate.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        verb: list, watch, get, create, patch or delete; empty for requests that have no known kind of object.
        resource: such as `pods` or `endpointslices`; empty as the verb is.
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
class Target:
    """The verb and the objects of a request, in the terms of RBAC rules.

    The verb is empty if the path does not support the method. Without a namespace the request is for all of
    them, without a name for the collection. The subresource is `status` or empty.
    """

    verb: str
    kind: Kind
    namespace: str | None
    name: str | None = None
    subresource: str = ""


def target_of(method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """Return what a request is for, None if its path does not belong to objects."""
    found = _PATH.fullmatch(path)
    kind = None if found is None else _BY_RESOURCE.get((found["group"] or "", found["resource"]))
    if found is None or kind is None or (found["subresource"] and kind is not POD):
        return None
    namespace, name = found["namespace"], found["name"]
    if name is not None:
        if kind.is_namespaced and namespace is None:
            return None
        return Target(_NAMED_VERBS.get(method, ""), kind, namespace, name, found["subresource"] or "")
    if method == "GET":
        return Target("watch" if _is_true(query.get("watch")) else "list", kind, namespace)
    return Target("create" if method == "POST" and namespace is not None else "", kind, namespace)


class Access:
    """The users of a server and their permissions, which may be changed at any time."""

    tokens: dict[str, str] | None
    allow: dict[str, Collection[str] | None] | None
    resources: dict[str, Collection[str]]
    verbs: dict[str, Collection[str]]
    _anonymous: bool
    """Whether requests without credentials are accepted as `system:anonymous`, which `allow` then denies."""

    def sender(self, authorization: str, certificate_user: str | None) -> tuple[str | None, str]:
        """Return the sender of a request, None if its credentials are rejected, and their scheme.

        A client certificate counts before the `Authorization` header.
        """
        if certificate_user is not None:
            return certificate_user, "Certificate"
        scheme, _, credentials = authorization.partition(" ")
        if self.tokens is None:
            return ANONYMOUS, scheme
        if scheme.lower() == "bearer":
            return self.tokens.get(credentials.strip()), "Bearer"
        return (ANONYMOUS if self._anonymous and not scheme else None), scheme

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


Form = Literal["object", "table"]
_MEDIA_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_STREAMS = ("application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
_FORMS: dict[str, Form] = {"": "object", "Table": "table"}


def negotiated_form(accept: str | None, kind: Kind) -> Form:
    """Return the form of the objects for an `Accept` header: JSON or a Table; 406 if none is acceptable."""
    clauses = [
        parameters
        for media_type, parameters in _clauses(accept or "*/*")
        if media_type in {"application/json", "application/*", "*/*"}
    ]
    for parameters in clauses:
        form = _FORMS.get(parameters.get("as", ""))
        is_pod_table = (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1") and kind is POD
        if form == "object" or (form == "table" and is_pod_table):
            return form
    if clauses:
        message = f"only the following media types are accepted: {', '.join(_MEDIA_TYPES)}"
        raise Failure("NotAcceptable", message, is_indented=True)
    message = f"406: Not Acceptable\n\nAvailable representations: {', '.join(_MEDIA_TYPES + _STREAMS)}"
    raise Failure("NotAcceptable", message, details={}, is_indented=True)


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    clauses = []
    for text in accept.split(","):
        media_type, *pairs = (part.strip() for part in text.split(";"))
        parameters = {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs if pair}
        clauses.append((media_type.lower(), parameters))
    return sorted(clauses, key=lambda clause: (-float(clause[1].get("q", 1)), "*" in clause[0]))


IncludeObject = Literal["None", "Metadata", "Object"]


def included_object(query: Mapping[str, str]) -> IncludeObject:
    """Return which form of its object each row of a Table includes; 400 for an unknown form."""
    match query.get("includeObject") or "Metadata":
        case "None" | "Metadata" | "Object" as value:
            return value
        case value:
            problem = f"Invalid value: {json.dumps(value)}: must be 'Metadata', 'Object', 'None', or empty"
            raise Failure("BadRequest", f"Unable to convert to Table as requested: includeObject: {problem}")


_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})|(?P<key>{_KEY})\s*"
    rf"(?:(?P<operator>==?|!=|[<>](?=\s*[0-9]+\s*(?:,|$)))\s*(?P<value>{_VALUE})"
    rf"|(?<=\s)(?P<set>in|notin)\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\))?)\s*(?P<end>,|$)"
)
_BEGINNING = re.compile(rf"\s*!?\s*(?:{_KEY})?\s*(?:==?|!=|[<>])?\s*(?P<next>[^\s=!(),<>]+|.|$)")
"""As much of an invalid requirement as may be valid, and what follows."""

_EQUALITIES = {"=": "in", "==": "in", "!=": "notin"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector; the operator is `in`, `notin`, `<`, `>`, `exists` or `!`."""

    key: str
    operator: str
    values: frozenset[str]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether `labels` satisfy this term; a missing key satisfies only `notin` and `!`."""
        value = labels.get(self.key)
        match self.operator:
            case "exists" | "!":
                return (value is None) is (self.operator == "!")
            case "in" | "notin":
                return (value in self.values) is (self.operator == "in")
        if not re.fullmatch("[+-]?[0-9]+", value or "", re.ASCII):
            return False
        number, bound = int(value or ""), int(min(self.values))
        return number > bound if self.operator == ">" else number < bound


def _label_requirements(text: str) -> Iterator[Requirement]:
    """Yield the terms of a label selector, of which every one must match; 400 if it is invalid."""
    position, end = 0, text.strip()
    while end:
        found = _REQUIREMENT.match(text, position)
        if found is None:
            rest = _BEGINNING.match(text, position)
            problem = f"found '{rest and rest['next']}', expected: identifier"
            raise Failure("BadRequest", f"unable to parse requirement: {problem}")
        position, end = found.end(), found["end"]
        operator = found["set"] or found["operator"] or ("!" if found["absent"] else "exists")
        values = (found["values"] or found["value"] or "").split(",")
        yield Requirement(
            key=found["key"] or found["absent"],
            operator=_EQUALITIES.get(operator, operator),
            values=frozenset(map(str.strip, values)),
        )


def _field_terms(text: str, kind: Kind) -> Iterator[tuple[str, str, bool]]:
    """Yield the terms (field, value, is equal) of a field selector; 400 if it is invalid."""
    for term in filter(None, text.split(",")):
        name, operator, value = (*re.split("(!=|==?)", term, maxsplit=1), "", "")[:3]
        if not operator:
            raise Failure("BadRequest", f"invalid selector: '{text}'; can't understand '{term}'")
        if name not in ("metadata.name", "metadata.namespace", *kind.selectable):
            raise Failure("BadRequest", f"field label not supported: {name}")
        yield name, value, operator != "!="


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects that a request selects; those of all namespaces if `namespace` is None."""

    kind: Kind
    namespace: str | None
    labels: tuple[Requirement, ...]
    fields: tuple[tuple[str, str, bool], ...]

    @property
    def is_everything(self) -> bool:
        return not self.labels and not self.fields

    def matches(self, stored: StoredObject) -> bool:
        if stored.kind is not self.kind or self.namespace not in (None, stored.namespace):
            return False
        if not all(requirement.matches(stored.labels) for requirement in self.labels):
            return False
        return all((stored.fields.get(name, "") == value) is equal for name, value, equal in self.fields)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of a list or watch.

    `version` is `resourceVersion`, None if it is not set; `exact` requests exactly that version, rather than
    one that is at least as new. `limit` is objects per page, 0 for all. With `initial_events` a watch starts
    with an event for each existing object. `timeout` is in seconds, None for the server's default.
    """

    selection: Selection
    version: int | None
    exact: bool
    limit: int
    continue_token: str
    bookmarks: bool
    initial_events: bool
    timeout: float | None


def list_options(target: Target, query: Mapping[str, str]) -> ListOptions:
    """Return the options of a list or watch; 400 if one is invalid."""
    labels = tuple(_label_requirements(query.get("labelSelector", "")))
    fields = tuple(_field_terms(query.get("fieldSelector", ""), target.kind))
    match, initial = query.get("resourceVersionMatch", ""), query.get("sendInitialEvents")
    if initial is not None and match != "NotOlderThan":
        problem = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid_option("resourceVersionMatch", problem)
    text, token = query.get("resourceVersion", ""), query.get("continue", "")
    if token and text not in {"", "0"}:
        raise Failure("BadRequest", "specifying resource version is not allowed when using continue")
    version = _version(text)
    limit = _number(query, "limit")
    return ListOptions(
        selection=Selection(target.kind, target.namespace, labels, fields),
        version=version,
        # A limit makes the version exact, unless it is "any version".
        exact=match == "Exact" or (not match and limit > 0 and bool(version)),
        # For "any version" the API server responds from its cache, without pages.
        limit=0 if version == 0 else limit,
        continue_token=token,
        bookmarks=_is_true(query.get("allowWatchBookmarks")),
        # A watch from no version, or from "any version", begins with the existing objects.
        initial_events=not version if initial is None else _is_true(initial),
        timeout=float(_number(query, "timeoutSeconds")) or None,
    )


def _is_true(value: str | None) -> bool:
    return (value and value.lower()) not in _FALSE_VALUES


def _version(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit()):
        quoted = json.dumps(text)
        raise Failure(
            "BadRequest",
            f"resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: invalid syntax",
        )
    return int(text) if text else None


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "") or "0"
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise Failure("BadRequest", f"strconv.ParseInt: parsing {json.dumps(text)}: invalid syntax")
    return max(0, int(text))
