"""Label and field selectors: the grammar, the matching and the error messages of the API server.

Labels and their selectors: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/ and
k8s.io/apimachinery/pkg/labels. Field selectors:
https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_NAME})?"
_PREFIX = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_CHARACTERS = (
    "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character"
)
_WRONG_NAME = (
    f"name part must {_CHARACTERS} (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    f"regex used for validation is '{_NAME}')"
)
_WRONG_PREFIX = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
    f"validation is '{_PREFIX}')"
)
_WRONG_VALUE = (
    f"a valid label must be an empty string or {_CHARACTERS} "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_NO_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"

Operator = Literal["in", "notin", "=", "!=", ">", "<", "exists", "!"]

_OPERATORS: dict[str, Operator] = {
    "in": "in",
    "notin": "notin",
    "=": "=",
    "==": "=",
    "!=": "!=",
    ">": ">",
    "<": "<",
}
_TOKEN = re.compile(r"==|!=|[=!(),<>]|[^\s=!(),<>]+")
_WORD = re.compile(r"[^=!(),<>]+")

POD_FIELDS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "spec.hostNetwork",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.nominatedNodeName",
        "status.phase",
        "status.podIP",
        "status.podIPs",
    }
)
"""The fields of a pod that field selectors support."""


class SelectorError(ValueError):
    """The selector is invalid; the message is the API server's."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether `labels` satisfy this term; a missing key satisfies only `!=`, `notin` and `!`."""
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "!":
                return value is None
            case "in" | "=":
                return value in self.values
            case "notin" | "!=":
                return value not in self.values
            case ">" | "<":
                if not _is_integer(value or ""):
                    return False
                number, bound = int(value or ""), int(min(self.values))
                return number > bound if self.operator == ">" else number < bound


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A parsed `labelSelector`; without requirements it matches every pod."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether `labels` satisfy every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """A parsed `fieldSelector`: (field, value, is equal) terms; without terms it matches every pod."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return whether `fields` (name to value; a missing field is empty) satisfy every term."""
        return all((fields.get(name, "") == value) is equal for name, value, equal in self.terms)


def label_selector(text: str) -> LabelSelector:
    """Parse a label selector; a SelectorError has the API server's message."""
    return LabelSelector(_Parser(text).requirements())


def field_selector(text: str) -> FieldSelector:
    """Parse a field selector for pods; a SelectorError has the API server's message."""
    terms = []
    for term in filter(None, text.split(",")):
        name, operator, value = re.match(r"(.*?)(!=|==|=|$)(.*)", term, re.DOTALL).groups()  # type: ignore[union-attr]
        if not operator:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        if name not in POD_FIELDS:
            raise SelectorError(f"field label not supported: {name}")
        terms.append((name, value, operator != "!="))
    return FieldSelector(tuple(terms))


class _Parser:
    """A recursive descent parser with the error messages of `labels.Parse`; the token at the end is empty."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [*_TOKEN.findall(text), ""]

    @property
    def _ahead(self) -> str:
        return self._tokens[0]

    def _take(self) -> str:
        return self._tokens.pop(0) if len(self._tokens) > 1 else ""

    def _take_word(self) -> str:
        token = self._take()
        if not _WORD.fullmatch(token):
            raise SelectorError(f"found '{token}', expected: identifier")
        return token

    def requirements(self) -> tuple[Requirement, ...]:
        requirements: list[Requirement] = []
        expected = "!, identifier, or 'end of string'"
        while self._ahead or requirements:
            if self._ahead != "!" and not _WORD.fullmatch(self._ahead):
                raise SelectorError(f"found '{self._ahead}', expected: {expected}")
            try:
                requirements.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            after = self._take()
            if not after:
                break
            if after != ",":
                raise SelectorError(f"found '{after}', expected: ',' or 'end of string'")
            expected = "identifier after ','"
        return tuple(sorted(requirements, key=lambda requirement: requirement.key))

    def _requirement(self) -> Requirement:
        is_absent = self._ahead == "!"
        if is_absent:
            self._take()
        key = self._take_word()
        _validate_key(key)
        if is_absent:
            return Requirement(key, "!")
        if self._ahead in {"", ","}:
            return Requirement(key, "exists")
        found = self._take()
        operator = _OPERATORS.get(found)
        if operator is None:
            raise SelectorError(f"found '{found}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in {"in", "notin"}:
            values = self._value_set()
        else:
            values = {""} if self._ahead in {"", ","} else {self._take_word()}
        _validate_values(key, operator, sorted(values))
        return Requirement(key, operator, frozenset(values))

    def _value_set(self) -> set[str]:
        opening = self._take()
        if opening != "(":
            raise SelectorError(f"found '{opening}' expected: '('")
        values: set[str] = set()
        while True:
            values.add("" if self._ahead in {",", ")"} else self._take_word())
            after = self._take()
            if after == ")":
                return values
            if after != ",":
                raise SelectorError(f"found '{after}', expected: ',' or ')'")


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) is not None


def _validate_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    problems = []
    if slash and not re.fullmatch(_PREFIX, prefix):
        problems.append(_WRONG_PREFIX)
    if len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_NAME, name):
        problems.append(_WRONG_NAME)
    if problems:
        raise SelectorError(f"<nil>: Invalid value: {json.dumps(key)}: {'; '.join(problems)}")


def _validate_values(key: str, operator: Operator, values: list[str]) -> None:
    problems = []
    for index, value in enumerate(values):
        invalid = f"Invalid value: {json.dumps(value)}"
        if operator in {">", "<"} and not _is_integer(value):
            problems.append(f"values[{index}]: {invalid}: {_NO_INTEGER}")
        too_long = ["must be no more than 63 bytes"] if len(value) > 63 else []
        wrong = [] if re.fullmatch(_VALUE, value) else [_WRONG_VALUE]
        if too_long or wrong:
            problems.append(f"values[{index}][{key}]: {invalid}: {'; '.join(too_long + wrong)}")
    if problems:
        raise SelectorError(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
