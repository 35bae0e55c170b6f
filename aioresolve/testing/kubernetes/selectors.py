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
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"

_ENDS = "must start and end with an alphanumeric character"
_CHARACTERS = f"consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}"
_WRONG_NAME = (
    f"must {_CHARACTERS} (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    f"regex used for validation is '{_NAME}')"
)
_WRONG_KEY = (
    f"a valid label key {_WRONG_NAME} with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_WRONG_VALUE = (
    f"a valid label must be an empty string or {_CHARACTERS} "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_WRONG_PREFIX = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    f"'.', and {_ENDS} (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)


def _key_problems(key: str) -> list[str]:
    """Return why `key` is not a valid label key; empty if it is valid."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return [_WRONG_KEY]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash and len(prefix) > 253:
        problems.append("prefix part must be no more than 253 bytes")
    elif slash and not re.fullmatch(_SUBDOMAIN, prefix):
        problems.append(_WRONG_PREFIX)
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_NAME, name):
        problems.append(f"name part {_WRONG_NAME}")
    return problems


def _value_problems(value: str) -> list[str]:
    """Return why `value` is not a valid label value; empty if it is valid."""
    problems = []
    if len(value) > 63:
        problems.append("must be no more than 63 bytes")
    if not re.fullmatch(_VALUE, value):
        problems.append(_WRONG_VALUE)
    return problems


Operator = Literal["in", "notin", "=", "==", "!=", "gt", "lt", "exists", "!"]

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

_NO_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"
_BINARY = "in, notin, =, ==, !=, gt, lt"
_SYMBOLS = {")", ",", "!", "==", "=", ">", "<", "!=", "("}
_SYMBOL_CHARACTERS = frozenset("=!(),><")
_SPACES = frozenset(" \t\r\n")
_OPERATORS: dict[str, Operator] = {
    "in": "in",
    "notin": "notin",
    "=": "=",
    "==": "==",
    "!=": "!=",
    ">": "gt",
    "<": "lt",
}


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
            case "in" | "=" | "==":
                return value in self.values
            case "notin" | "!=":
                return value not in self.values
            case "gt" | "lt":
                number, bound = _int64(value or ""), _int64(*self.values)
                if number is None or bound is None:
                    return False
                return number > bound if self.operator == "gt" else number < bound


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
    return LabelSelector(_Parser(_tokens(text)).requirements())


def field_selector(text: str) -> FieldSelector:
    """Parse a field selector for pods; a SelectorError has the API server's message."""
    terms = []
    for term in _split_terms(text):
        if not term:
            continue
        found = re.match(
            r"(?P<name>(?:[^\\=!]|\\.|!(?!=))*)(?P<operator>!=|==|=)(?P<value>.*)", term, re.DOTALL
        )
        if found is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        name = found["name"]
        if name == "spec.host":
            name = "spec.nodeName"
        if name not in POD_FIELDS:
            raise SelectorError(f"field label not supported: {name}")
        terms.append((name, _unescape(found["value"]), found["operator"] != "!="))
    return FieldSelector(tuple(terms))


def _split_terms(text: str) -> list[str]:
    """Split at the commas that no backslash escapes."""
    return re.findall(r"(?:[^\\,]|\\.|\\$)+", text, re.DOTALL)


def _unescape(value: str) -> str:
    valid = re.match(r"(?:[^\\=]|\\[\\,=])*", value)
    rest = value[valid.end() :] if valid is not None else value
    if rest.startswith("\\"):
        raise SelectorError(f"invalid field selector: invalid escape sequence: {rest[:2]}")
    if rest:
        # The server prints the character as Go prints a rune: as its number.
        raise SelectorError(f"invalid field selector: unescaped character in value: {ord(rest[0])}")
    return re.sub(r"\\(.)", r"\1", value)


def _int64(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`identifier`, `end`, `error`, `in`, `notin` or the symbol itself."""
    text: str

    @property
    def as_value(self) -> str:
        """The kind in the position of a key or value, in which `in` and `notin` are ordinary words."""
        return "identifier" if self.kind in {"in", "notin"} else self.kind


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(text):
        character = text[position]
        if character in _SPACES:
            position += 1
        elif character in _SYMBOL_CHARACTERS:
            token, position = _symbol(text, position)
            tokens.append(token)
        else:
            end = position
            while end < len(text) and text[end] not in _SPACES and text[end] not in _SYMBOL_CHARACTERS:
                end += 1
            word = text[position:end]
            tokens.append(_Token(word if word in {"in", "notin"} else "identifier", word))
            position = end
    return [*tokens, _Token("end", "")]


def _symbol(text: str, position: int) -> tuple[_Token, int]:
    # A symbol has one or two characters; the longer one wins.
    pair = text[position : position + 2]
    symbol = pair if pair in _SYMBOLS else text[position]
    return _Token(symbol, symbol), position + len(symbol)


class _Parser:
    """A recursive descent parser with one token of lookahead and the error messages of `labels.Parse`."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0

    @property
    def _ahead(self) -> _Token:
        return self._tokens[self._position]

    def _consume(self) -> _Token:
        token = self._tokens[self._position]
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def requirements(self) -> tuple[Requirement, ...]:
        requirements: list[Requirement] = []
        while self._ahead.kind != "end":
            if self._ahead.as_value not in {"identifier", "!"}:
                raise SelectorError(
                    f"found '{self._ahead.text}', expected: !, identifier, or 'end of string'"
                )
            try:
                requirements.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            after = self._consume()
            if after.kind == "end":
                break
            if after.kind != ",":
                raise SelectorError(f"found '{after.text}', expected: ',' or 'end of string'")
            if self._ahead.as_value not in {"identifier", "!"}:
                raise SelectorError(f"found '{self._ahead.text}', expected: identifier after ','")
        return tuple(sorted(requirements, key=lambda requirement: requirement.key))

    def _requirement(self) -> Requirement:
        token = self._consume()
        absent = token.kind == "!"
        if absent:
            token = self._consume()
        if token.as_value != "identifier":
            raise SelectorError(f"found '{token.text}', expected: identifier")
        key = token.text
        _validate_key(key)
        if absent:
            return Requirement(key, "!")
        if self._ahead.kind in {"end", ","}:
            return Requirement(key, "exists")
        found = self._consume()
        operator = _OPERATORS.get(found.kind)
        if operator is None:
            raise SelectorError(f"found '{found.text}', expected: {_BINARY}")
        values = self._value_set() if operator in {"in", "notin"} else self._exact_value()
        _validate_values(key, operator, sorted(values))
        return Requirement(key, operator, frozenset(values))

    def _exact_value(self) -> set[str]:
        if self._ahead.kind in {"end", ","}:
            return {""}
        token = self._consume()
        if token.as_value != "identifier":
            raise SelectorError(f"found '{token.text}', expected: identifier")
        return {token.text}

    def _value_set(self) -> set[str]:
        token = self._consume()
        if token.kind != "(":
            raise SelectorError(f"found '{token.text}' expected: '('")
        first = self._ahead
        if first.kind == ")":
            self._consume()
            return {""}
        if first.as_value not in {"identifier", ","}:
            raise SelectorError(f"found '{first.text}', expected: ',', ')' or identifier")
        values = self._values()
        if self._consume().kind != ")":
            raise SelectorError(f"found '{first.text}', expected: ')'")
        return values

    def _values(self) -> set[str]:
        values: set[str] = set()
        while True:
            token = self._consume()
            if token.as_value == "identifier":
                values.add(token.text)
                if self._ahead.kind == ")":
                    return values
                if self._ahead.kind != ",":
                    raise SelectorError(f"found '{self._ahead.text}', expected: ',' or ')'")
            elif token.kind == ",":
                if not values or self._ahead.kind == ",":
                    values.add("")
                if self._ahead.kind == ")":
                    values.add("")
                    return values
            else:
                raise SelectorError(f"found '{token.text}', expected: ',', or identifier")


def _validate_values(key: str, operator: Operator, values: list[str]) -> None:
    problems = [
        f"values[{index}]: Invalid value: {json.dumps(value)}: {_NO_INTEGER}"
        for index, value in enumerate(values)
        if operator in {"gt", "lt"} and _int64(value) is None
    ]
    for index, value in enumerate(values):
        reasons = _value_problems(value)
        if reasons:
            problems.append(
                f"values[{index}][{key}]: Invalid value: {json.dumps(value)}: {'; '.join(reasons)}"
            )
    if problems:
        raise SelectorError(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")


def _validate_key(key: str) -> None:
    problems = _key_problems(key)
    if problems:
        raise SelectorError(f"<nil>: Invalid value: {json.dumps(key)}: {'; '.join(problems)}")
