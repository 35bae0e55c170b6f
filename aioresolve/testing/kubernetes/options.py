"""The representation in an `Accept` header, and the options in the query of a list or watch.

Negotiation follows k8s.io/apiserver/pkg/endpoints/handlers/negotiation: the first acceptable clause, in the
order of `q`. The query follows https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
and k8s.io/apimachinery/pkg/apis/meta/internalversion/validation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .kinds import POD
from .selectors import FieldSelector, LabelSelector, SelectorError, field_selector, label_selector
from .statuses import bad_request, no_such_transformation, not_acceptable, unprocessable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .kinds import Kind
    from .store import StoredObject

_JSON = frozenset({"application/json", "application/*", "*/*"})
_INTERACTIVE_AGENTS = ("curl", "Wget", "Mozilla/5.0")
"""User agents that get indented JSON."""

TRUE_VALUES = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""The texts that Go's strconv.ParseBool accepts as true."""

Form = Literal["object", "table"]


@dataclass(frozen=True, slots=True)
class Representation:
    """The form of the objects in a response: complete objects, or a Table of rows."""

    kind: Form
    indent: bool = False


_FORMS: dict[str, Form] = {"": "object", "Table": "table"}


def negotiate_representation(
    accept: str | None,
    user_agent: str,
    pretty: str | None,
    *,
    only_objects: bool = False,
) -> Representation:
    """Return the representation for an `Accept` header, without one plain JSON; 406 if none is acceptable.

    With `only_objects` nothing but complete objects is acceptable.
    """
    clauses = [parameters for media_type, parameters in _clauses(accept or "*/*") if media_type in _JSON]
    for parameters in clauses:
        kind = _FORMS.get(parameters.get("as", ""))
        transformed = kind not in {None, "object"}
        group_version = parameters.get("g"), parameters.get("v")
        if kind is None or (transformed and (only_objects or group_version != ("meta.k8s.io", "v1"))):
            continue
        return Representation(kind, _wants_indent(user_agent, pretty, parameters))
    raise no_such_transformation() if clauses else not_acceptable()


def _wants_indent(user_agent: str, pretty: str | None, parameters: Mapping[str, str]) -> bool:
    if parameters.get("pretty") == "1":
        return True
    if pretty:
        return pretty in TRUE_VALUES
    return user_agent.startswith(_INTERACTIVE_AGENTS)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the client accepts gzip."""
    return any(coding.partition(";")[0].strip() == "gzip" for coding in accept_encoding.split(","))


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    clauses = []
    for text in accept.split(","):
        media_type, *pairs = (part.strip() for part in text.split(";"))
        parameters = {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs if pair}
        clauses.append((media_type.lower(), parameters))
    return sorted(clauses, key=lambda clause: (-_quality(clause[1]), "*" in clause[0]))


def _quality(parameters: Mapping[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 1.0


IncludeObject = Literal["None", "Metadata", "Object"]

_INCLUDED = "must be 'Metadata', 'Object', 'None', or empty"
_NOT_OLDER = "NotOlderThan"


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects that a request selects."""

    namespace: str | None = None
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)
    kind: Kind = POD

    @property
    def is_everything(self) -> bool:
        """Whether it selects every object of the kind and namespace."""
        return not self.labels.requirements and not self.fields.terms

    def matches(self, stored: StoredObject) -> bool:
        """Return whether it selects `stored`."""
        if stored.kind is not self.kind or self.namespace not in (None, stored.namespace):
            return False
        return self.labels.matches(stored.labels) and self.fields.matches(stored.fields)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of a list or watch.

    `version` is `resourceVersion`, None if it is not set; `exact` requests exactly that version, rather than
    one that is at least as new. `limit` is objects per page, 0 for all. With `initial_events` a watch starts
    with an event for each existing object. `timeout` is in seconds, None for the server's default.
    """

    selection: Selection
    version: int | None = None
    exact: bool = False
    limit: int = 0
    continue_token: str = ""
    bookmarks: bool = False
    initial_events: bool = False
    timeout: float | None = None


def list_options(
    namespace: str | None, query: Mapping[str, str], *, watch: bool, kind: Kind = POD
) -> ListOptions:
    """Parse the query of a list, or with `watch` of a watch; `namespace=None` means all namespaces."""
    selection = _selection(kind, namespace, query)
    problems = _watch_problems(query) if watch else _list_problems(query)
    if problems:
        raise unprocessable("meta.k8s.io", "ListOptions", "", problems)
    text = query.get("resourceVersion", "")
    token = query.get("continue", "")
    if token and text not in {"", "0"}:
        raise bad_request("specifying resource version is not allowed when using continue")
    version = _version(text)
    limit = _number(query, "limit")
    match = query.get("resourceVersionMatch", "")
    initial = query.get("sendInitialEvents")
    timeout = _number(query, "timeoutSeconds")
    return ListOptions(
        selection=selection,
        version=version,
        exact=match == "Exact" or (not match and limit > 0 and bool(version)),
        # For "any version" the API server responds from its cache, without pages.
        limit=0 if version == 0 else limit,
        continue_token=token,
        bookmarks=query.get("allowWatchBookmarks", "") in TRUE_VALUES,
        initial_events=initial in TRUE_VALUES if initial is not None else not version,
        timeout=float(timeout) if timeout else None,
    )


def included_object(query: Mapping[str, str]) -> IncludeObject:
    """Return which form of its object each row of a Table includes; 400 for an unknown form."""
    value = query.get("includeObject", "")
    match value:
        case "None" | "Metadata" | "Object":
            return value
        case "":
            return "Metadata"
        case _:
            problem = f"includeObject: Invalid value: {json.dumps(value)}: {_INCLUDED}"
            raise bad_request(f"Unable to convert to Table as requested: {problem}")


def _selection(kind: Kind, namespace: str | None, query: Mapping[str, str]) -> Selection:
    try:
        return Selection(
            namespace,
            label_selector(query.get("labelSelector", "")),
            field_selector(query.get("fieldSelector", "")),
            kind,
        )
    except SelectorError as error:
        raise bad_request(str(error)) from None


def _list_problems(query: Mapping[str, str]) -> list[tuple[str, str, str]]:
    match = query.get("resourceVersionMatch", "")
    problems = []
    if match:
        if not query.get("resourceVersion"):
            problems.append(_forbidden_match("is forbidden unless resourceVersion is provided"))
        if query.get("continue"):
            problems.append(_forbidden_match("is forbidden when continue is provided"))
        if match not in {"Exact", _NOT_OLDER}:
            problems.append(_unsupported_match(match, '"Exact", "NotOlderThan", ""'))
        if match == "Exact" and query.get("resourceVersion") == "0":
            problems.append(_forbidden_match('"exact" is forbidden for resourceVersion "0"'))
    if "sendInitialEvents" in query:
        problems.append(
            ("sendInitialEvents", "FieldValueForbidden", "Forbidden: sendInitialEvents is forbidden for list")
        )
    return problems


def _watch_problems(query: Mapping[str, str]) -> list[tuple[str, str, str]]:
    match = query.get("resourceVersionMatch", "")
    initial = "sendInitialEvents" in query
    problems = []
    if initial and match != _NOT_OLDER:
        requires = f"Forbidden: sendInitialEvents requires setting resourceVersionMatch to {_NOT_OLDER}"
        problems.append(("resourceVersionMatch", "FieldValueForbidden", requires))
    if match:
        if not initial:
            problems.append(_forbidden_match("is forbidden for watch unless sendInitialEvents is provided"))
        if match != _NOT_OLDER:
            problems.append(_unsupported_match(match, f'"{_NOT_OLDER}"'))
        if query.get("continue"):
            problems.append(_forbidden_match("is forbidden when continue is provided"))
    return problems


def _forbidden_match(text: str) -> tuple[str, str, str]:
    return "resourceVersionMatch", "FieldValueForbidden", f"Forbidden: resourceVersionMatch {text}"


def _unsupported_match(value: str, supported: str) -> tuple[str, str, str]:
    text = f"Unsupported value: {json.dumps(value)}: supported values: {supported}"
    return "resourceVersionMatch", "FieldValueNotSupported", text


def _version(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        quoted = json.dumps(text)
        raise bad_request(
            f"resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: invalid syntax"
        )
    return int(text)


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise bad_request(f"strconv.ParseInt: parsing {json.dumps(text)}: invalid syntax")
    return max(0, int(text))
