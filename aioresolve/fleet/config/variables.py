"""`${NAME}` in the values of a fleet file, replaced by environment variables.

No error and no repr shows the value of a variable, which may be a secret: messages show the text as written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aioresolve._core.document import Location, MappingNode, NodeBuilder, ScalarNode, SequenceNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    import yaml

    from aioresolve._core.document import Diagnostics, Node

_DOLLAR = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\})?")


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` with each `${NAME}` replaced by the variable, and each `$$` by a dollar.

    `${NAME:-default}` is the default if the variable is unset or empty, as in a POSIX shell and in Docker
    Compose files. The default is plain text. A `$` in the value of a variable has no special meaning.
    """

    def replacement(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name, default = match["name"], match["default"]
        if name is None:
            raise ValueError(
                "contains a $ that starts neither ${NAME} nor ${NAME:-default}; write $$ for a dollar"
            )
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(f"${name} is not set; set it, or give a default: ${{{name}:-default}}")
        return environ[name]

    return _DOLLAR.sub(replacement, text)


def variable_names(text: str) -> tuple[str, ...]:
    """Return the names of the variables in `text`, each once."""
    return tuple(dict.fromkeys(match["name"] for match in _DOLLAR.finditer(text) if match["name"]))


def variables_in(node: Node) -> tuple[str, ...]:
    """Return the names of the variables in the texts of `node`, each once."""
    if isinstance(node, ScalarNode):
        return variable_names(node.written)
    children = node.values if isinstance(node, SequenceNode) else node.values.values()
    return tuple(dict.fromkeys(name for child in children for name in variables_in(child)))


def as_written(node: Node) -> Node:
    """Return a copy of `node` with the names of variables in place of their values."""
    if isinstance(node, ScalarNode):
        return ScalarNode(node.location, node.written, node.written, node.is_null)
    if isinstance(node, SequenceNode):
        return SequenceNode(node.location, tuple(map(as_written, node.values)), node.size)
    fields = {name: as_written(child) for name, child in node.values.items()}
    return MappingNode(node.location, fields, node.lines, node.size)


class TemplateBuilder(NodeBuilder):
    """Builds the nodes of a fleet file: every scalar is a string, with its variables replaced.

    A job named `no` is not a boolean: the reader of a field decides what its text means.
    """

    def __init__(self, environ: Mapping[str, str], diagnostics: Diagnostics) -> None:
        super().__init__()
        self._environ = environ
        self._diagnostics = diagnostics

    def report(self, location: Location, problem: str) -> None:
        """Collect the problem, so that all problems of a file are reported together."""
        self._diagnostics.add(location, problem)

    def accepts_duplicate(self, location: Location, first_line: int) -> bool:
        """Reject it."""
        self.report(location, f"is already defined on line {first_line}; remove one of the two")
        return False

    def scalar(self, node: yaml.ScalarNode, location: Location) -> ScalarNode:
        """Return a scalar whose value is its text with variables replaced."""
        self.check_tag(node, location)
        value = node.value
        try:
            value = interpolate(node.value, self._environ)
        except ValueError as error:
            self.report(location, str(error))
        return ScalarNode(location, node.value, value, node.tag == "tag:yaml.org,2002:null")

    def name(self, key: yaml.ScalarNode, location: Location) -> str | None:
        """Return the text of the key, which must not be empty or contain variables."""
        name: str = key.value
        if not name:
            self.report(location, "a field has no name; write one before the colon")
            return None
        if variable_names(name):
            self.report(
                location.field(name, location.line), "variables are replaced in values only, not in names"
            )
        return name
