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

    from .store import Kind

_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"({_NAME})?")
_CHARACTERS = (
    "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character"
)
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_TOKEN = re.compile(r"==|!=|[=!(),<>]|[^\s=!(),<>]+")
_WORD = re.compile(r"[^=!(),<>]+")

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


class SelectorError(ValueError):
    """A selector is invalid; the message is that of the API server."""


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
                if not _INTEGER.fullmatch(value or ""):
                    return False
                number, bound = int(value or ""), int(min(self.values))
                return number > bound if self.operator == ">" else number < bound


def label_requirements(text: str) -> tuple[Requirement, ...]:
    """Parse a label selector into terms, of which every one must match; or raise a SelectorError."""
    return tuple(_Parser(text).requirements())


def field_terms(text: str, kind: Kind) -> tuple[tuple[str, str, bool], ...]:
    """Parse a field selector into terms (field, value, is equal); or raise a SelectorError."""
    terms = []
    for term in filter(None, text.split(",")):
        name, operator, value = (*re.split("(!=|==?)", term, maxsplit=1), "", "")[:3]
        if not operator:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        if name not in ("metadata.name", "metadata.namespace", *kind.selectable):
            raise SelectorError(f"field label not supported: {name}")
        terms.append((name, value, operator != "!="))
    return tuple(terms)


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

    def requirements(self) -> list[Requirement]:
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
        return requirements

    def _requirement(self) -> Requirement:
        is_absent = self._ahead == "!"
        if is_absent:
            self._take()
        key = self._take_word()
        if not _KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            raise SelectorError(f"<nil>: Invalid value: {json.dumps(key)}: name part must {_CHARACTERS}")
        if is_absent or self._ahead in {"", ","}:
            return Requirement(key, "!" if is_absent else "exists")
        found = self._take()
        operator = _OPERATORS.get(found)
        if operator is None:
            raise SelectorError(f"found '{found}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in {"in", "notin"}:
            values = self._value_set()
        else:
            values = {""} if self._ahead in {"", ","} else {self._take_word()}
        for value in sorted(values):
            _validate_value(key, operator, value)
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


def _validate_value(key: str, operator: Operator, value: str) -> None:
    problem = ""
    if operator in {">", "<"} and not _INTEGER.fullmatch(value):
        problem = "for 'Gt', 'Lt' operators, the value must be an integer"
    elif len(value) > 63:
        problem = "must be no more than 63 bytes"
    elif not _VALUE.fullmatch(value):
        problem = f"a valid label must be an empty string or {_CHARACTERS}"
    if problem:
        raise SelectorError(f"values[0][{key}]: Invalid value: {json.dumps(value)}: {problem}")
