"""YAML text -> nodes that know their lines. Pure; an error says where the text is no YAML, and the mend."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.resolver import Resolver

from .problems import Place

__all__ = ["UnreadableError", "root_node"]

DEEPEST = 32
"""Levels of nesting; a fleet file needs six."""


class UnreadableError(Exception):
    """The text is no YAML document that can be read any further."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place


class _NodeComposer(Composer, Resolver):
    """Composes nodes, none of deep nesting, from the events of libyaml where there is one, else of PyYAML.

    `yaml.CSafeLoader` composes in C, where deep nesting overflows the stack and ends the process.
    """

    def __init__(self, text: str) -> None:
        parser: Any = (yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)(text)
        self.check_event = parser.check_event
        self.peek_event = parser.peek_event
        self.get_event = parser.get_event
        Composer.__init__(self)
        Resolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._depth > DEEPEST:
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, f"nested deeper than {DEEPEST} levels", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def root_node(text: str) -> yaml.Node | None:
    """Return the root node of the one YAML document in `text`; None where there is none.

    Raises:
        UnreadableError: it is not YAML, has several documents, or is nested too deeply.
    """
    try:
        composer = _NodeComposer(text)
        root = composer.get_node() if composer.check_node() else None
        if composer.check_node():
            line = composer.peek_event().start_mark.line + 1
            raise UnreadableError(
                Place(line), "begins a second YAML document; a fleet is one: leave the `---` out"
            )
        return root
    except yaml.MarkedYAMLError as error:
        raise UnreadableError(*_told(error, text)) from None
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes of UTF-8, PyYAML's own reader counts characters.
        before = text.encode()[: error.position].decode(errors="ignore") if yaml.__with_libyaml__ else text
        line = before.count("\n", 0, error.position) + 1
        raise UnreadableError(Place(line), "holds a control character; take it out") from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise UnreadableError(Place(line), "holds half of a UTF-16 surrogate pair; take it out") from None


def _told(error: yaml.MarkedYAMLError, text: str) -> tuple[Place, str]:
    """Return where and why `text` is no YAML, and what may be done about it."""
    mark = error.problem_mark or error.context_mark
    line = 1 if mark is None else mark.line + 1
    said = " ".join(filter(None, (error.context, error.problem)))
    lines = text.splitlines()
    at = lines[line - 1] if line <= len(lines) else ""
    mend = ""
    if "\t" in at[: len(at) - len(at.lstrip())]:
        mend = "; indent with spaces, YAML takes no tabs there"
    elif "${" in at and "flow" in said:
        mend = '; between { } and [ ] put "${NAME}" in quotes'
    elif ": " in at and "mapping values" in said:
        mend = '; put a text with ": " in it in quotes, and begin entries of one mapping in one column'
    column = "" if mark is None else f" (column {mark.column + 1})"
    return Place(line), f"is not valid YAML{column}: {said}{mend}"
