"""YAML nodes -> a tree, with variables replaced. Pure.

Anchors, aliases and merge keys (https://yaml.org/type/merge.html) work. A part that is referred to twice is
one part of the tree, so that no file makes a tree much larger than itself; how large it would be if it were
written out, which is what reading it costs, is bounded too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import yaml

from .composing import UnreadableError, root_node
from .interpolation import interpolated, variables
from .problems import Place, quoted
from .tree import Entries, Items, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .problems import Problems
    from .tree import Tree

__all__ = ["tree_of"]

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
