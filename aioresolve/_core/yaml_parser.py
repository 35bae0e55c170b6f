"""YAML and JSON text to the nodes of `document`.

Anchors, aliases and merge keys (https://yaml.org/type/merge.html) are supported. A part that is referred to
twice is one part of the tree, so that no document makes a tree much larger than itself; the size that it
would have if all aliases were written out, which is what reading it costs, is limited too.

PyYAML is imported when the first YAML document is parsed: JSON is read without it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .document import DocumentError, Location, MappingNode, Node, ScalarNode, SequenceNode, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import yaml

MAX_DEPTH = 32
"""Levels of nesting; a fleet file or kubeconfig has six."""

MAX_VALUES = 1_000_000
"""Values in a document, with its aliases written out."""

_CORE_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = frozenset(
    f"{_CORE_TAG}{name}"
    for name in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
)
_NAME_TAGS = frozenset(f"{_CORE_TAG}{name}" for name in ("str", "merge", "value"))
"""The tags of names that are their text: strings, `<<` and `=`."""

_KEY_PROBLEM = "a list or mapping is used as a name. Names are strings."


def decode(content: bytes, source: str) -> str:
    """Return the text of a UTF-8 document, without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    raise DocumentError(Location(source, line), "not valid UTF-8", "Save the file as UTF-8.")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; None if it is not valid JSON."""
    try:
        return json.loads(text)
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
    return ScalarNode(location, "", value, value is None)


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


def parse_yaml(
    text: str, source: str, builder: NodeBuilder | None = None, *, show_text: bool = False
) -> Node | None:
    """Return the nodes of the one YAML document in `text`; None for an empty text.

    With `show_text`, errors quote the document, which must not contain secrets then.
    """
    root = _compose(text, source, show_text=show_text)
    return None if root is None else (builder or NodeBuilder()).build(root, Location(source, 1))


def _compose(text: str, source: str, *, show_text: bool) -> yaml.Node | None:
    import yaml

    try:
        composer = _composer_class()(text)
        root: yaml.Node | None = composer.get_node() if composer.check_node() else None
        if composer.check_node():
            line = composer.peek_event().start_mark.line + 1
            raise DocumentError(
                Location(source, line), "starts a second YAML document", "Remove the `---` before it."
            )
        return root
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source, show_text=show_text) from None
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes of UTF-8, PyYAML's own reader counts characters.
        before = text.encode()[: error.position].decode(errors="ignore") if yaml.__with_libyaml__ else text
        line = before.count("\n", 0, error.position) + 1
        problem = "not valid YAML: contains a control character"
        raise DocumentError(Location(source, line), problem, "Remove it.") from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        problem = "not valid YAML: contains half of a UTF-16 surrogate pair"
        raise DocumentError(Location(source, line), problem, "Remove it.") from None


@functools.cache
def _composer_class() -> Callable[[str], Any]:
    import yaml
    from yaml.composer import Composer, ComposerError
    from yaml.resolver import Resolver

    class NodeComposer(Composer, Resolver):
        """Composes nodes from the events of libyaml's parser if it is installed, else of PyYAML's.

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
            if self._depth > MAX_DEPTH:
                mark = self.peek_event().start_mark
                raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

    return NodeComposer


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str, *, show_text: bool) -> DocumentError:
    mark = error.problem_mark or error.context_mark
    line = 1 if mark is None else mark.line + 1
    problem = "not valid YAML" if mark is None else f"not valid YAML (column {mark.column + 1})"
    if not show_text:  # the parser's explanation quotes names of anchors and tags
        return DocumentError(Location(source, line), problem)
    explanation = " ".join(filter(None, (error.context, error.problem)))
    lines = text.splitlines()
    content = lines[line - 1] if line <= len(lines) else ""
    hint = None
    if "\t" in content[: len(content) - len(content.lstrip())]:
        hint = "Indent with spaces: YAML does not allow tabs there."
    elif "${" in content and "flow" in explanation:
        hint = 'Between { } and [ ], put "${NAME}" in quotes.'
    elif ": " in content and "mapping values" in explanation:
        hint = (
            'Put a text that contains ": " in quotes, and start all fields of a mapping in the same column.'
        )
    return DocumentError(Location(source, line), f"{problem}: {explanation}", hint)


class NodeBuilder:
    """Converts PyYAML's nodes, each of them once.

    Scalars get the value that YAML gives them. Errors have no details, as the document may
    contain secrets; of a name that is used twice in a mapping, the last value counts. Subclasses may be
    stricter.
    """

    def __init__(self) -> None:
        self._built: dict[int, Node] = {}
        self._building: set[int] = set()
        self._num_merged = 0

    def report(self, location: Location, problem: str) -> None:
        """Report an invalid part of the document, which is left out if this returns."""
        raise DocumentError(location, "not valid YAML")

    def accepts_duplicate(self, location: Location, first_line: int) -> bool:
        """Return whether a second value for the same name replaces the first."""
        return True

    def scalar(self, node: yaml.ScalarNode, location: Location) -> ScalarNode:
        """Return a scalar with its value."""
        value = self._python_scalar(node, location)
        return ScalarNode(location, node.value, value, value is None)

    def name(self, key: yaml.ScalarNode, location: Location) -> str | None:
        """Return the name of a field; None to leave the field out."""
        if key.tag in _NAME_TAGS:
            name: str = key.value
            return name
        value = self._python_scalar(key, location)
        return value if isinstance(value, str) else json.dumps(value, default=str)

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
            built = self.scalar(node, location)  # type: ignore[arg-type]
        else:
            self._building.add(id(node))
            self.check_tag(node, location)
            built = self._mapping(node, location) if kind == "mapping" else self._sequence(node, location)
            self._building.discard(id(node))
            self._check_size(built.size, location)
        self._built[id(node)] = built
        return built

    def check_tag(self, node: yaml.Node, location: Location) -> None:
        """Report a tag that has no meaning here."""
        if node.tag not in _KNOWN_TAGS:
            tag = node.tag.replace(_CORE_TAG, "!!")
            self.report(location, f"the tag {quoted(tag)} is not supported. Remove it.")

    def _python_scalar(self, node: yaml.ScalarNode, location: Location) -> Any:
        if node.tag == f"{_CORE_TAG}str":
            return node.value
        import yaml

        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError):
            pass  # PyYAML raises the last four for values that do not fit their tag
        self.report(location, "the value does not fit its tag")
        return None

    def _sequence(self, node: yaml.Node, location: Location) -> SequenceNode:
        values = tuple(
            self.build(item, location.item(index, _line(item), _name_of(item)))
            for index, item in enumerate(node.value)
        )
        return SequenceNode(location, values, 1 + sum(value.size for value in values))

    def _mapping(self, node: yaml.Node, location: Location) -> MappingNode:
        own: dict[str, Node] = {}
        lines: dict[str, int] = {}
        merged: MappingNode | None = None
        for key, value in node.value:
            line = _line(key)
            if key.id != "scalar":
                self.report(Location(location.source, line, location.path), _KEY_PROBLEM)
                continue
            name = self.name(key, Location(location.source, line, location.path))
            if name is None:
                continue
            if name in lines and not self.accepts_duplicate(location.field(name, line), lines[name]):
                continue
            lines[name] = line
            built = self.build(value, location.field(name, _line(value)))
            if key.tag == f"{_CORE_TAG}merge":
                added = self._merged(built, location.field(name, line))
                merged = added if merged is None else _overlaid(merged, added)
            else:
                own[name] = built
        result = MappingNode(location, own, lines)
        if merged is not None:
            result = _overlaid(merged, result)
        size = 1 + sum(value.size for value in result.values.values())
        return MappingNode(location, MappingProxyType(result.values), MappingProxyType(result.lines), size)

    def _merged(self, node: Node, location: Location) -> MappingNode:
        """Return the fields that `<<` adds; of several mappings with the same name, the first one counts."""
        sources = list(node.values) if isinstance(node, SequenceNode) else [node]
        values: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for source in reversed(sources):
            if not isinstance(source, MappingNode):
                self.report(
                    location, "must be an alias of a mapping, such as *base, or a list of such aliases"
                )
                continue
            self._num_merged += len(source.values)
            self._check_size(self._num_merged, location)
            values.update(source.values)
            lines.update(source.lines)
        return MappingNode(location, values, lines)

    def _check_size(self, size: int, location: Location) -> None:
        if size > MAX_VALUES:
            raise DocumentError(
                location, f"has more than {MAX_VALUES} values with its aliases written out", "Split the file."
            )


def _overlaid(base: MappingNode, top: MappingNode) -> MappingNode:
    return MappingNode(top.location, {**base.values, **top.values}, {**base.lines, **top.lines})


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
