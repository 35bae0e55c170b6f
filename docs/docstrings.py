"""An extension of Griffe, which reads docstrings for the site.

- Examples (`>>> ...`) become code blocks: Markdown would render `>>>` as three nested quotations.
- Each error links to its section in docs/errors.md.
- Properties that `settable` makes have their text.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*\n?(?:^(?P=indent)\S.*\n?)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes docstrings before they are rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Enclose the examples of `obj` in the fences of a code block."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the text from `settable(name, text)`."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "settable":
            attr.docstring = griffe.Docstring(ast.literal_eval(str(value.arguments[1])), parent=attr)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the link if `cls` is a public error."""
        if cls.path == f"aioresolve.errors.{cls.name}" and cls.name.endswith("Error") and cls.docstring:
            cls.docstring.value += f"\n\n[What to check][{cls.name.lower()}]"


def _fenced(example: re.Match[str]) -> str:
    indent = example["indent"]
    return f"{indent}```pycon\n{example[0].rstrip()}\n{indent}```\n"
