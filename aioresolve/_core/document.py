"""Documents (YAML or JSON) as trees of nodes that know where they are written, and readers of fields by type.

Kubeconfigs and fleet files are read through this module, so that every error about a field has the same form:
`FILE:LINE: FIELD: PROBLEM`, such as `fleet.yaml:7: targets.us-east.kubernetes.port: ...`.

Anchors, aliases and merge keys (https://yaml.org/type/merge.html) are supported. A part that is referred to
twice is one part of the tree, so that no document makes a tree much larger than itself; the size that it
would have if all aliases were written out, which is what reading it costs, is limited too. PyYAML is imported
when the first YAML document is parsed: JSON is read without it.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aioresolve.errors import ConfigurationError, MissingDependencyError

from .redaction import Confidential
from .validation import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import yaml


MAX_DIAGNOSTICS = 20
"""Diagnostics of one document that are shown; the rest are counted."""

MAX_QUOTED = 60
"""Characters of a text that a message quotes."""

MAX_COMPARED = 200
"""Names that an unknown name is compared with; each comparison takes microseconds."""

MAX_LISTED = 15
"""Names that a message lists."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile("[0-9]{1,9}")
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

    Internal: callers convert it, outside of `except`, with `as_configuration_error` or `Diagnostics`. The
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


class ScalarNode(Confidential, frozen=True):
    """A string, number, boolean, date or null: `written` in the document, and as the builder reads it."""

    location: Location
    written: str
    value: Any
    is_null: bool = False

    @property
    def size(self) -> int:
        """The number of values in it."""
        return 1


class SequenceNode(Confidential, frozen=True):
    """A list. `size` is the number of values in it, at all levels."""

    location: Location
    values: tuple[Node, ...]
    size: int = 1


class MappingNode(Confidential, frozen=True):
    """A mapping, with methods that read its optional fields by type.

    A field that is missing or null is None (or empty, or False). A value of another type is a `DocumentError`
    that does not show the value. `lines` has the line of each name, and `size` is as in `SequenceNode`.
    """

    location: Location
    values: Mapping[str, Node]
    lines: Mapping[str, int]
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


MAX_DEPTH = 32
"""Levels of nesting; a fleet file or kubeconfig has six."""

MAX_VALUES = 1_000_000
"""Values in a document, with its aliases written out."""

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

_KEY_PROBLEM = "a list or mapping is used as a name. Names are strings."


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
    text: str,
    source: str,
    builder: NodeBuilder | None = None,
    *,
    show_text: bool = False,
    only_first: bool = False,
) -> Node | None:
    """Return the nodes of the one YAML document in `text`; None for an empty text.

    With `show_text`, errors quote the document, which must not contain secrets then. With `only_first`, what
    follows the first document is ignored; otherwise it is an error.
    """
    root = _compose(text, source, show_text=show_text, only_first=only_first)
    return None if root is None else (builder or NodeBuilder()).build(root, Location(source, 1))


def _compose(text: str, source: str, *, show_text: bool, only_first: bool) -> yaml.Node | None:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError(
            f"{source} is YAML, and PyYAML is not installed", hint="Run `pip install pyyaml`."
        ) from error
    try:
        composer = _composer_class()(text)
        root: yaml.Node | None = composer.get_node() if composer.check_node() else None
        if not only_first and composer.check_node():
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

    Attributes:
        merges_replace: whether the fields of `<<` replace those that are written before it; otherwise, as in
            https://yaml.org/type/merge.html, a mapping's own fields count.
    """

    merges_replace = False

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
        if node.tag in _NAME_TAGS:  # `<<` is a merge key only as a name
            return node.value
        if node.tag == f"{_CORE_TAG}bool" and node.value in ("y", "Y", "n", "N"):
            return node.value in ("y", "Y")
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
                if self.merges_replace:
                    own |= added.values
                    lines |= added.lines
                else:
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
