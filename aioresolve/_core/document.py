"""Documents (YAML or JSON) as trees of nodes that know where they are written, and readers of fields by type.

Kubeconfigs and fleet files are read through this module, so that every error about a field has the same form:
`FILE:LINE: FIELD: PROBLEM`, such as `fleet.yaml:7: targets.us-east.kubernetes.port: ...`. For the parsers see
`yaml_parser`.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aioresolve.errors import ConfigurationError

from .validation import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MAX_DIAGNOSTICS = 20
"""Diagnostics of one document that are shown; the rest are counted."""

MAX_QUOTED = 60
"""Characters of a text that a message quotes."""

MAX_COMPARED = 200
"""Names that an unknown name is compared with; each comparison takes microseconds."""

MAX_LISTED = 15
"""Names that a message lists."""

_INTEGER = re.compile("[0-9]{1,9}")
_PLAIN_NAME = re.compile(r"[\w-]{1,60}")


def quoted(text: str) -> str:
    """Return `text` in quotes, on one line, cut to `MAX_QUOTED`, with control characters escaped."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}...")


@functools.lru_cache(maxsize=1024)
def _step(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


class Location(NamedTuple):
    """The place in a document where a value is written.

    Attributes:
        source: the document, for messages: a path, or "kubeconfig /home/me/.kube/config".
        line: the line, counted from 1; None if it is not known, as in JSON.
        path: the names that lead to the value, such as `targets.us-east.kubernetes.kubeconfig[1]`; empty for
            the whole document.
    """

    source: str
    line: int | None = None
    path: str = ""

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.path}" if self.path else place

    def field(self, name: str, line: int | None) -> Location:
        """Return the location of the field `name` of the mapping at this location."""
        step = _step(name)
        return Location(self.source, line, f"{self.path}.{step}" if self.path else step)

    def item(self, index: int, line: int | None, name: object = None) -> Location:
        """Return the location of an item of the list at this location.

        The text `name`, the value of the item's field `name`, is shown in place of the index: Kubernetes
        identifies the items of most lists by this field, and a name is easier to find than an index.
        """
        step = _step(name) if isinstance(name, str) and name else index
        return Location(self.source, line, f"{self.path}[{step}]")


class DocumentError(Exception):
    """A document cannot be parsed, or a value in it is invalid.

    Internal: callers convert it, outside of `except`, with `as_configuration_error` or `Diagnostics`. The
    error of a parser keeps the text that it failed on, which may contain a secret: it must not become the
    context of an error that is shown. `hint` says how to correct the value, if `problem` does not.
    """

    def __init__(self, location: Location, problem: str, hint: str | None = None) -> None:
        super().__init__(location, problem, hint)
        self.location = location
        self.problem = problem
        self.hint = hint

    def as_configuration_error(self) -> ConfigurationError:
        """Return the public error, with file, line and field in its summary."""
        return ConfigurationError(f"{self.location}: {self.problem}", hint=self.hint)


class Diagnostics:
    """The problems of one document, to report all of them at once; of several at one location, the first."""

    def __init__(self) -> None:
        self._problems: dict[Location, str] = {}

    def add(self, location: Location, problem: str) -> None:
        self._problems.setdefault(location, problem)

    def add_error(self, error: DocumentError) -> None:
        self.add(error.location, error.problem if error.hint is None else f"{error.problem}. {error.hint}")

    def __bool__(self) -> bool:
        return bool(self._problems)

    def as_configuration_error(self) -> ConfigurationError:
        """Return one error with a line `FILE:LINE: FIELD: PROBLEM` for each problem, in order of lines."""
        lines = [f"{location}: {problem}" for location, problem in sorted(self._problems.items())]
        if len(lines) > MAX_DIAGNOSTICS:
            source = next(iter(self._problems)).source
            lines[MAX_DIAGNOSTICS:] = [f"{source}: and {len(lines) - MAX_DIAGNOSTICS} more problems"]
        return ConfigurationError("\n".join(lines))


# No node shows values in its repr, because they may be secrets. Nodes are never changed, but frozen
# dataclasses take three times as long to make.


@dataclass(slots=True)
class ScalarNode:
    """A string, number, boolean, date or null: `written` in the document, and as the builder reads it."""

    location: Location
    written: str = field(repr=False)
    value: Any = field(repr=False)
    is_null: bool = False

    @property
    def size(self) -> int:
        """The number of values in it."""
        return 1


@dataclass(slots=True)
class SequenceNode:
    """A list. `size` is the number of values in it, at all levels."""

    location: Location
    values: tuple[Node, ...] = field(repr=False)
    size: int = 1


@dataclass(slots=True)
class MappingNode:
    """A mapping, with methods that read its optional fields by type.

    A field that is missing or null is None (or empty, or False). A value of another type is a `DocumentError`
    that does not show the value. `lines` has the line of each name, and `size` is as in `SequenceNode`.
    """

    location: Location
    values: Mapping[str, Node] = field(repr=False)
    lines: Mapping[str, int] = field(repr=False)
    size: int = 1

    def location_of(self, name: str) -> Location:
        """Return the location of the name of a field, or of the mapping's start if it has no such field."""
        return self.location.field(name, self.lines.get(name, self.location.line))

    def get(self, name: str) -> Node | None:
        node = self.values.get(name)
        return None if node is None or is_null(node) else node

    def string(self, name: str) -> str | None:
        """Return a string; None also for an empty one."""
        node = self.get(name)
        return None if node is None else require_string(node) or None

    def flag(self, name: str) -> bool:
        node = self.get(name)
        if node is None:
            return False
        if not isinstance(node, ScalarNode) or not isinstance(node.value, bool):
            raise DocumentError(
                node.location,
                f"must be a boolean, not {kind_of(node)}",
                "Write true or false, without quotes.",
            )
        return node.value

    def strings(self, name: str) -> tuple[str, ...]:
        return tuple(map(require_string, self._items(name)))

    def mapping(self, name: str) -> MappingNode | None:
        node = self.get(name)
        return None if node is None else require_mapping(node)

    def mappings(self, name: str) -> list[MappingNode]:
        return [
            MappingNode(node.location, {}, {}) if is_null(node) else require_mapping(node)
            for node in self._items(name)
        ]

    def _items(self, name: str) -> tuple[Node, ...]:
        node = self.get(name)
        if node is None:
            return ()
        if not isinstance(node, SequenceNode):
            raise DocumentError(node.location, f"must be a list, not {kind_of(node)}")
        return node.values


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


def is_null(node: Node) -> bool:
    """Whether nothing is written, or `null` or `~`."""
    return isinstance(node, ScalarNode) and node.is_null


def require_string(node: Node) -> str:
    """Return the value of a string; for anything else raise a `DocumentError` that does not show it."""
    if not isinstance(node, ScalarNode):
        raise DocumentError(node.location, f"must be a string, not {kind_of(node)}")
    if not isinstance(node.value, str):
        raise DocumentError(node.location, f"must be a string, not {kind_of(node)}", "Put it in quotes.")
    return node.value


def require_mapping(node: Node) -> MappingNode:
    """Return `node`; raise a `DocumentError` if it is not a mapping."""
    if not isinstance(node, MappingNode):
        raise DocumentError(node.location, f"must be a mapping, not {kind_of(node)}")
    return node


def kind_of(node: Node) -> str:
    """Return the type of a value for a message: "a list", "a number"."""
    if not isinstance(node, ScalarNode):
        return "a mapping" if isinstance(node, MappingNode) else "a list"
    kinds = {str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if node.is_null else kinds.get(type(node.value), f"a {type(node.value).__name__}")


# Readers of required values, for documents without secrets: messages show the text as written. If the builder
# replaces variables, that is the name of a variable and not its value.


def read_text(node: Node) -> str:
    """Return a string that is not blank and has only printable characters."""
    text = require_string(node)
    if is_null(node) or not text.strip():
        raise DocumentError(
            node.location, f"{describe_text(node)} is empty", "Write a value, or remove the field."
        )
    if not text.isprintable():
        problem = f"{describe_text(node)} contains a line break or another character that is not printable"
        raise DocumentError(node.location, problem)
    return text


def read_texts(node: Node) -> tuple[str, ...]:
    """Return the strings of a list, at least one; a single string is a list of one."""
    if isinstance(node, ScalarNode):
        return (read_text(node),)
    if not isinstance(node, SequenceNode):
        raise DocumentError(node.location, f"must be a string or a list of strings, not {kind_of(node)}")
    if not node.values:
        raise DocumentError(
            node.location, "the list is empty", "Add at least one string, or remove the field."
        )
    return tuple(map(read_text, node.values))


def read_text_or_texts(node: Node) -> str | tuple[str, ...]:
    """Return a single string as it is, and a list as a tuple."""
    return read_text(node) if isinstance(node, ScalarNode) else read_texts(node)


def read_duration(node: Node) -> float:
    """Return seconds from `30s`, `2m`, `1m30s`, `500ms`, or a number of seconds."""
    text = read_text(node)
    with suppress(ValueError):
        return parse_duration(text)
    raise DocumentError(
        node.location,
        f"{describe_text(node)} is not a duration above zero",
        "Write one such as 30s, 2m, 500ms or 30.",
    )


def integer_reader(lowest: int, highest: int) -> Callable[[Node], int]:
    """Return a reader of integers in this range."""

    def read(node: Node) -> int:
        text = read_text(node)
        if not _INTEGER.fullmatch(text) or not lowest <= int(text) <= highest:
            raise DocumentError(
                node.location, f"{describe_text(node)} is not an integer between {lowest} and {highest}"
            )
        return int(text)

    return read


def choice_reader(*choices: str) -> Callable[[Node], str]:
    """Return a reader of one of these strings."""

    def read(node: Node) -> str:
        text = read_text(node)
        if text not in choices:
            raise DocumentError(node.location, f"{describe_text(node)} is not one of {', '.join(choices)}")
        return text

    return read


def read_fields(node: Node, example: str) -> MappingNode:
    """Return a mapping of at least one field, such as `example`."""
    if not isinstance(node, MappingNode):
        raise DocumentError(node.location, f"must be a mapping such as {example}, not {kind_of(node)}")
    if not node.values:
        raise DocumentError(node.location, f"the mapping is empty; an example is {example}")
    return node


def suggestion(name: str, known: Collection[str]) -> str:
    """Return which of `known` was probably meant by `name`, or a list of them, for a message."""
    import difflib  # only for an error

    compared = list(known)[:MAX_COMPARED]
    for match in difflib.get_close_matches(name[:100], compared, 1):
        return f"did you mean {quoted(match)}?"
    listed = ", ".join(map(quoted, compared[:MAX_LISTED]))
    return f"there are {listed}{', ...' * (len(known) > MAX_LISTED)}"


def describe_text(node: Node) -> str:
    """Return a text for a message, as written: "'abc'", or "the value of '${NAME}'"."""
    if not isinstance(node, ScalarNode) or not node.written:
        return "it"
    return quoted(node.written) if node.written == node.value else f"the value of {quoted(node.written)}"


def python_value(node: Node) -> Any:
    """Return the value as dicts, lists and Python scalars."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [python_value(item) for item in node.values]
    return {name: python_value(value) for name, value in node.values.items()}
