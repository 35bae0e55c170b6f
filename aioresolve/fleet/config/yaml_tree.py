"""What a YAML document says: texts, lists and mappings, each with the place where it is written. Pure values.

A scalar is its text as written, whatever YAML would take it for: a job named `no` is no boolean, and who
reads a field says what its text means. The text with variables replaced is kept beside it and in no repr, so
that messages show the one in the file.

YAML text -> nodes that know their lines. Pure; an error says where the text is no YAML, and the mend.

`${NAME}` in a text, replaced by what the environment says. Pure; no error shows a variable's value.

YAML nodes -> a tree, with variables replaced. Pure.

Anchors, aliases and merge keys (https://yaml.org/type/merge.html) work. A part that is referred to twice is
one part of the tree, so that no file makes a tree much larger than itself; how large it would be if it were
written out, which is what reading it costs, is bounded too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.resolver import Resolver

from .diagnostics import Place, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .diagnostics import Problems

__all__ = [
    "Entries",
    "Items",
    "Text",
    "Tree",
    "UnreadableError",
    "interpolated",
    "is_null",
    "root_node",
    "tree_of",
    "variables",
]


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar.

    Attributes:
        place: where it is written.
        written: its text as written.
        value: its text with variables replaced.
        is_null: whether nothing is written, or `null` or `~`.
        size: how many values it is.
    """

    place: Place
    written: str
    value: str = field(repr=False)
    is_null: bool = False
    size: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it refers to."""
        return variables(self.written)

    @property
    def as_written(self) -> Text:
        """The same without what the variables hold."""
        return Text(self.place, self.written, self.written, self.is_null)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    place: Place
    values: tuple[Tree, ...]
    size: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that its texts refer to."""
        return _distinct(self.values)

    @property
    def as_written(self) -> Items:
        """The same without what the variables hold."""
        return Items(self.place, tuple(value.as_written for value in self.values), self.size)


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping: names to values, and to the lines that the names stand on."""

    place: Place
    values: Mapping[str, Tree]
    lines: Mapping[str, int]
    size: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that its texts refer to."""
        return _distinct(self.values.values())

    @property
    def as_written(self) -> Entries:
        """The same without what the variables hold."""
        values = {name: value.as_written for name, value in self.values.items()}
        return Entries(self.place, values, self.lines, self.size)

    def place_of(self, name: str) -> Place:
        """Return the place where `name` is written as a name, or should be."""
        return self.place.below(name, self.lines.get(name, self.place.line))


Tree = Text | Items | Entries


def is_null(tree: Tree) -> bool:
    """Return whether nothing is written, or `null` or `~`."""
    return isinstance(tree, Text) and tree.is_null


def _distinct(values: Iterable[Tree]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for value in values for name in value.variables))


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


_DOLLAR = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\})?")


def interpolated(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` with each `${NAME}` replaced by the variable, and each `$$` by a dollar.

    `${NAME:-default}` is the default where the variable is not set or empty, as in a POSIX shell and in
    Docker Compose files. The default is plain text. What a variable holds is not looked into again.

    Raises:
        ValueError: a variable without a default is not set, or a `$` begins none of these.
    """

    def replacement(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name, default = found["name"], found["default"]
        if name is None:
            raise ValueError(
                "holds a $ that begins neither ${NAME} nor ${NAME:-default}; write $$ for a dollar"
            )
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(f"${name} is not set; set it, or give a default: ${{{name}:-default}}")
        return environ[name]

    return _DOLLAR.sub(replacement, text)


def variables(text: str) -> tuple[str, ...]:
    """Return the names of the variables that `text` refers to, each once."""
    return tuple(dict.fromkeys(found["name"] for found in _DOLLAR.finditer(text) if found["name"]))


LARGEST = 1_000_000
"""Values in a file, were its aliases written out."""

CORE = "tag:yaml.org,2002:"
KNOWN_TAGS = frozenset(
    f"{CORE}{name}"
    for name in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
)


def tree_of(text: str, environ: Mapping[str, str], problems: Problems) -> Tree:
    """Return what the YAML in `text` says, null where that is nothing; add to `problems` what is wrong.

    Raises:
        UnreadableError: it is not one YAML document, contains itself, is too deep or too large.
    """
    root = root_node(text)
    if root is None:
        return Text(Place(1), "", "", is_null=True)
    return _Grower(environ, problems).tree(root, Place(1))


class _Grower:
    """Makes trees of nodes, each node's once."""

    def __init__(self, environ: Mapping[str, str], problems: Problems) -> None:
        self._environ = environ
        self._problems = problems
        self._grown: dict[int, Tree] = {}
        self._growing: set[int] = set()
        self._copied = 0

    def tree(self, node: yaml.Node, place: Place) -> Tree:
        """Return the tree of `node`, which is first met at `place`."""
        known = self._grown.get(id(node))
        if known is not None:
            return known
        if id(node) in self._growing:
            raise UnreadableError(place, "contains itself by an alias; write out what is meant")
        self._growing.add(id(node))
        if node.tag not in KNOWN_TAGS:
            tag = node.tag.replace(CORE, "!!")
            self._problems.add(place, f"has the tag {quoted(tag)}, which means nothing here; leave it out")
        tree: Tree
        if isinstance(node, yaml.MappingNode):
            tree = self._entries(node, place)
        elif isinstance(node, yaml.SequenceNode):
            tree = self._items(node, place)
        else:
            tree = self._text(node, place)
        self._growing.discard(id(node))
        self._bounded(tree.size, place)
        self._grown[id(node)] = tree
        return tree

    def _text(self, node: yaml.Node, place: Place) -> Text:
        written: str = node.value
        try:
            value = interpolated(written, self._environ)
        except ValueError as error:
            self._problems.add(place, str(error))
            value = written
        return Text(place, written, value, node.tag == f"{CORE}null")

    def _items(self, node: yaml.SequenceNode, place: Place) -> Items:
        values = tuple(
            self.tree(item, place.item(number, _line(item))) for number, item in enumerate(node.value)
        )
        return Items(place, values, 1 + sum(value.size for value in values))

    def _entries(self, node: yaml.MappingNode, place: Place) -> Entries:
        own: dict[str, Tree] = {}
        lines: dict[str, int] = {}
        merged: Entries | None = None
        for key, value in node.value:
            name = self._name(key, place)
            if name is None:
                continue
            at = place.below(name, _line(key))
            is_merge = key.tag == f"{CORE}merge"
            if name in lines:
                self._problems.add(at, f"is given twice, first on line {lines[name]}; keep one of the two")
                continue
            lines[name] = _line(key)
            tree = self.tree(value, place.below(name, _line(value)))
            if is_merge:
                merged = self._merged(tree, at)
            else:
                own[name] = tree
        if merged is not None:
            own = {**merged.values, **own}
            lines = {**merged.lines, **lines}
        return Entries(
            place,
            MappingProxyType(own),
            MappingProxyType(lines),
            1 + sum(value.size for value in own.values()),
        )

    def _merged(self, tree: Tree, place: Place) -> Entries:
        """Return the entries that `<<` brings along; of several mappings, the first one's count."""
        sources = list(tree.values) if isinstance(tree, Items) else [tree]
        values: dict[str, Tree] = {}
        lines: dict[str, int] = {}
        for source in reversed(sources):
            if not isinstance(source, Entries):
                self._problems.add(place, "must be an alias of a mapping, such as *base, or a list of such")
                continue
            self._copied += len(source.values)
            self._bounded(self._copied, place)
            values.update(source.values)
            lines.update(source.lines)
        return Entries(place, values, lines)

    def _name(self, key: yaml.Node, place: Place) -> str | None:
        """Return the name that `key` is; None, and a problem, where it is none."""
        at = Place(_line(key), place.path)
        if not isinstance(key, yaml.ScalarNode):
            self._problems.add(at, "has a list or a mapping for a name; names are texts")
            return None
        name: str = key.value
        if not name:
            self._problems.add(at, "has an entry without a name; write a name before the colon")
            return None
        if variables(name):
            self._problems.add(
                place.below(name, _line(key)), "variables are replaced in values only; write the name out"
            )
        return name

    def _bounded(self, size: int, place: Place) -> None:
        if size > LARGEST:
            raise UnreadableError(
                place, f"is more than {LARGEST} values with its aliases written out; split the fleet"
            )


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1
