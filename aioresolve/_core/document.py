"""Kubeconfigs and the output of plugins (YAML or JSON) as trees of nodes that know where they are written.

Every error about a field has the same form: `FILE:LINE: FIELD: PROBLEM`, and does not show the value, which
may be a secret. Anchors, aliases and merge keys (https://yaml.org/type/merge.html) are supported. PyYAML is
imported when the first YAML document is parsed: JSON is read without it.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aioresolve.errors import ConfigurationError, MissingDependencyError

from .redaction import Confidential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import yaml


MAX_QUOTED = 60
"""Characters of a text that a message quotes."""


_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_NAME = re.compile(r"[\w-]{1,60}")


def quoted(text: str) -> str:
    """Return `text` in quotes, on one line, cut to `MAX_QUOTED`, with control characters escaped."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}...")


@functools.lru_cache(maxsize=1024)  # the targets of a fleet have the same fields
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

    Internal: callers convert it, outside of `except`, with `as_configuration_error`. The
    error of a parser keeps the text that it failed on, which may contain a secret: it must not become the
    context of an error that is shown. `hint` says how to correct the value, if `problem` does not.
    """

    def __init__(self, location: Location, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{location}: {problem}")
        self.location = location
        self.problem = problem
        self.hint = hint

    def as_configuration_error(self) -> ConfigurationError:
        """Return the public error, with file, line and field in its summary."""
        return ConfigurationError(str(self), hint=self.hint)


class ScalarNode(Confidential, frozen=True):
    """A string, number, boolean or null."""

    location: Location
    value: Any
    is_null: bool = False


class SequenceNode(Confidential, frozen=True):
    """A list."""

    location: Location
    values: tuple[Node, ...]


class MappingNode(Confidential, frozen=True):
    """A mapping, with methods that read its optional fields by type.

    A field that is missing or null is None (or empty, or False). A value of another type is a `DocumentError`
    that does not show the value. `lines` has the line of each name.
    """

    location: Location
    values: Mapping[str, Node]
    lines: Mapping[str, int]

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
        """Return the strings of a list; one that is null is empty."""
        return tuple("" if is_null(item) else require_string(item) for item in self._items(name))

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
    if not node.value.isascii() and _SURROGATE.search(node.value):
        raise DocumentError(node.location, "contains half of a UTF-16 surrogate pair", "Remove it.")
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


def python_value(node: Node) -> Any:
    """Return the value as dicts, lists and Python scalars."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [python_value(item) for item in node.values]
    return {name: python_value(value) for name, value in node.values.items()}


MAX_DEPTH = 32
"""Levels of nesting; a fleet file or kubeconfig has six."""


_CORE_TAG = "tag:yaml.org,2002:"
_PLAIN_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (
        r"y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        list("yYnNtTfFoO"),
    ),
    "int": (
        r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)",
        list("-+0123456789"),
    ),
    "float": (
        (
            r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        list("-+.0123456789"),
    ),
    "merge": ("<<", ["<"]),
}
"""The plain scalars that are not strings, by tag, with their first characters.

They are those of kubectl's YAML parser: YAML 1.1 without dates, numbers to the base of 60, and `=`, so that
`2024-01-01` and `1:30` are strings.
"""
_KNOWN_TAGS = frozenset(
    f"{_CORE_TAG}{name}"
    for name in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
)
_NAME_TAGS = frozenset(f"{_CORE_TAG}{name}" for name in ("str", "merge", "value"))
"""The tags of names that are their text: strings, `<<` and `=`."""


def decode(content: bytes, source: str) -> str:
    """Return the text of a UTF-8 document, or of one that a byte order mark declares to be UTF-16."""
    try:
        # PowerShell redirects the output of a command to a file in UTF-16.
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    raise DocumentError(Location(source, line), "not valid UTF-8", "Save the file as UTF-8.")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; None if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parse_first_json(text: str) -> Any:
    """Return the JSON value that `text` starts with, whatever follows it; None if it starts with none."""
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError):
        return None


def build_from_json(value: Any, location: Location, depth: int = 0) -> Node:
    """Return the nodes of a value that `json.loads` returned. Their lines are not known."""
    if depth > MAX_DEPTH:
        raise DocumentError(location, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return MappingNode(location, _JSONFields(value, location, depth), {})
    if isinstance(value, list):
        items = (
            build_from_json(
                item,
                location.item(index, None, item.get("name") if isinstance(item, dict) else None),
                depth + 1,
            )
            for index, item in enumerate(value)
        )
        return SequenceNode(location, tuple(items))
    return ScalarNode(location, value, value is None)


class _JSONFields(Mapping[str, Node]):
    """The fields of a JSON object, built on access: most entries of a large kubeconfig are never used."""

    __slots__ = ("_depth", "_location", "_values")

    def __init__(self, values: dict[str, Any], location: Location, depth: int) -> None:
        self._values = values
        self._location = location
        self._depth = depth

    def __getitem__(self, name: str) -> Node:
        return build_from_json(self._values[name], self._location.field(name, None), self._depth + 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def parse_yaml(text: str, source: str) -> Node | None:
    """Return the nodes of the first YAML document in `text`; None for an empty text."""
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError(
            f"{source} is YAML, and PyYAML is not installed", hint="Run `pip install pyyaml`."
        ) from error
    try:
        composer = _composer_class()(text)
        root: yaml.Node | None = composer.get_node() if composer.check_node() else None
    except yaml.YAMLError as error:
        # Without the explanation of the parser, which quotes names of anchors and tags.
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = Location(source, None if mark is None else mark.line + 1)
        problem = "not valid YAML" if mark is None else f"not valid YAML (column {mark.column + 1})"
        raise DocumentError(place, problem) from None
    except UnicodeEncodeError:
        raise DocumentError(Location(source), "not valid YAML: half of a UTF-16 surrogate pair") from None
    return None if root is None else _NodeBuilder().build(root, Location(source, 1))


@functools.cache
def _composer_class() -> Callable[[str], Any]:
    import yaml
    from yaml.composer import Composer, ComposerError
    from yaml.resolver import BaseResolver

    class NodeComposer(Composer, BaseResolver):
        """Composes nodes from the events of libyaml's parser if it is installed, else of PyYAML's.

        `yaml.CSafeLoader` composes in C, where deep nesting overflows the stack and ends the process.
        """

        def __init__(self, text: str) -> None:
            parser: Any = (yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)(text)
            self.check_event = parser.check_event
            self.peek_event = parser.peek_event
            self.get_event = parser.get_event
            Composer.__init__(self)
            BaseResolver.__init__(self)
            self._depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self._depth > MAX_DEPTH:
                mark = self.peek_event().start_mark
                raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

    for tag, (pattern, first) in _PLAIN_SCALARS.items():
        NodeComposer.add_implicit_resolver(f"{_CORE_TAG}{tag}", re.compile(rf"(?:{pattern})\Z"), first)
    return NodeComposer


class _NodeBuilder:
    """Converts PyYAML's nodes, each of them once. Scalars get the value that YAML gives them.

    Errors have no details, as the document may contain secrets. Of a name that is used twice in a mapping,
    the last value counts. As for kubectl, the fields of `<<` replace those that are written before it.
    """

    def __init__(self) -> None:
        self._built: dict[int, Node] = {}
        self._building: set[int] = set()

    def build(self, node: yaml.Node, location: Location) -> Node:
        """Return the converted `node`, whose first occurrence is at `location`."""
        known = self._built.get(id(node))
        if known is not None:
            return known
        if id(node) in self._building:
            raise DocumentError(location, "contains itself through an alias", "Write out its content.")
        built: Node
        kind = node.id  # type: ignore[attr-defined]  # missing in the stubs
        if kind == "scalar":
            value = self._python_scalar(node, location)  # type: ignore[arg-type]
            built = ScalarNode(location, value, value is None)
        else:
            self._building.add(id(node))
            if node.tag not in _KNOWN_TAGS:
                raise _invalid(location)
            built = self._mapping(node, location) if kind == "mapping" else self._sequence(node, location)
            self._building.discard(id(node))
        self._built[id(node)] = built
        return built

    def _python_scalar(self, node: yaml.ScalarNode, location: Location) -> Any:
        if node.tag in _NAME_TAGS:  # `<<` is a merge key only as a name
            return node.value
        if node.tag == f"{_CORE_TAG}bool" and node.value in ("y", "Y", "n", "N"):
            return node.value in ("y", "Y")
        import yaml

        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError):
            pass  # PyYAML raises the last four for values that do not fit their tag
        raise _invalid(location)

    def _sequence(self, node: yaml.Node, location: Location) -> SequenceNode:
        values = (
            self.build(item, location.item(index, _line(item), _name_of(item)))
            for index, item in enumerate(node.value)
        )
        return SequenceNode(location, tuple(values))

    def _mapping(self, node: yaml.Node, location: Location) -> MappingNode:
        values: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = _line(key)
            if key.id != "scalar":
                raise _invalid(Location(location.source, line, location.path))
            name = self._python_scalar(key, Location(location.source, line, location.path))
            name = name if isinstance(name, str) else json.dumps(name, default=str)
            built = self.build(value, location.field(name, _line(value)))
            if key.tag == f"{_CORE_TAG}merge":
                added = self._merged(built, location.field(name, line))
                values |= added.values
                lines |= added.lines
            else:
                values[name] = built
                lines[name] = line
        return MappingNode(location, MappingProxyType(values), MappingProxyType(lines))

    def _merged(self, node: Node, location: Location) -> MappingNode:
        """Return the fields that `<<` adds; of several mappings with the same name, the first one counts."""
        sources = list(node.values) if isinstance(node, SequenceNode) else [node]
        values: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for source in reversed(sources):
            if not isinstance(source, MappingNode):
                raise _invalid(location)
            values.update(source.values)
            lines.update(source.lines)
        return MappingNode(location, values, lines)


def _invalid(location: Location) -> DocumentError:
    return DocumentError(location, "not valid YAML")


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _name_of(node: Any) -> str | None:
    """Return the field `name` of an item of a list, if it has one."""
    if node.id == "mapping":
        for key, value in node.value:
            if key.value == "name" and value.id == "scalar" and value.tag == f"{_CORE_TAG}str":
                name: str = value.value
                return name
    return None
