"""fleet.yaml: the targets of a fleet, described in a file.

```yaml
interval: 30s
defaults:
  kubernetes: {namespace: training, kubeconfig: ~/.kube/config}
targets:
  us-east:
    expected: 16
    kubernetes: {context: us-east, jobs: {worker: app=trainer}}
  fixed:
    static: {jobs: {worker: ["${HOST:-10.0.0.1}:8470"]}}
  both:
    union: [us-east, fixed]
```

docs/fleets.md describes the format. The kinds of targets and their fields come from `aioresolve.sources`.
"""

from __future__ import annotations

import functools
import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, Union, get_args, get_origin

import msgspec

from aioresolve._core.validation import parse_duration, suggestion
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.resolver.union import UnionClusterResolver
from aioresolve.sources import BY_KIND
from aioresolve.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Collection

    from aioresolve.resolver.base import ClusterResolver

    from .status import Expected

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_TextList = Annotated[list[_Text], msgspec.Meta(min_length=1)]
_Duration = float | str
_Addresses = _Text | _TextList | dict[Annotated[int, msgspec.Meta(ge=0)], _Text]
_Number = Annotated[int, msgspec.Meta(ge=1)]
_Expected = _Number | Annotated[dict[str, _Number], msgspec.Meta(min_length=1)] | Literal["controller"]
_Cluster = Annotated[dict[str, _Addresses], msgspec.Meta(min_length=1)]

UNION = "union"
"""The kind of a target that consists of other targets; it has no fields and no defaults."""

_SETTINGS: Mapping[str, Any] = {
    "interval": _Duration,
    "timeout": _Duration,
    "max_concurrency": Annotated[int, msgspec.Meta(ge=1)],
}

# Fields


def _type_in_file(annotation: Any) -> Any:
    """Return the type of an argument in a file; None if no file can express it.

    The constructor checks the values further.
    """
    origin, parameters = get_origin(annotation), get_args(annotation)
    if annotation in (int, float, bool):
        return annotation
    if annotation is str or origin is Literal:
        return _Text
    if annotation is ClusterSpec:
        return _Cluster
    if origin in (Union, UnionType):
        kinds = [kind for each in parameters if (kind := _type_in_file(each)) is not None]
        return functools.reduce(operator.or_, kinds) if kinds else None
    if origin is Sequence:
        return Annotated[list[_type_in_file(parameters[0])], msgspec.Meta(min_length=1)]  # type: ignore[misc]
    if origin is Mapping:
        return Annotated[dict[str, _type_in_file(parameters[1])], msgspec.Meta(min_length=1)]  # type: ignore[misc]
    return None


class _FieldType(NamedTuple):
    type: Any
    is_path: bool
    is_cluster: bool


@functools.cache
def _field_types(kind: str) -> Mapping[str, _FieldType]:
    """Return the fields of a kind of target. Imports its resolver."""
    return {
        name: _FieldType(in_file, "PathLike" in str(annotation), annotation is ClusterSpec)
        for name, annotation in BY_KIND[kind].field_types().items()
        if (in_file := _type_in_file(annotation)) is not None
    }


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema of fleet files, for editors and for checks before a file is used."""
    kinds: dict[str, Any] = {}
    for kind in BY_KIND:
        # A number may be a variable too.
        types = [(name, each.type | str | None, None) for name, each in _field_types(kind).items()]
        kinds[kind] = msgspec.defstruct(kind, types, forbid_unknown_fields=True) | None
    defaults = msgspec.defstruct("defaults", [(kind, fields, None) for kind, fields in kinds.items()])
    kinds |= {UNION: Optional[_TextList], "expected": _Expected | str | None}  # noqa: UP045
    target = msgspec.defstruct("target", [(kind, fields, None) for kind, fields in kinds.items()])
    settings = [(name, kind | str | None, None) for name, kind in _SETTINGS.items()]
    file = msgspec.defstruct(
        "fleet",
        [("targets", dict[str, target]), ("defaults", defaults | None, None), *settings],  # type: ignore[valid-type]
    )
    return msgspec.json.schema(file)


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The content of a fleet file. A setting that the file does not have is None.

    >>> file = fleet_of("targets: {fixed: {static: {jobs: {worker: 'a:1'}}}}", environ={})
    >>> Fleet(file.targets)
    <Fleet of 1 targets>

    Attributes:
        targets: the resolver of each target by its name, in the order of the file.
        interval: seconds between two requests to a target.
        timeout: seconds that a request may take, and each call of the resolvers.
        max_concurrency: the number of concurrent requests.
        expected: target name to its expected number of tasks, for the targets that state one.
    """

    targets: Mapping[str, ClusterResolver] = field(repr=False)
    interval: float | None = None
    timeout: float | None = None
    max_concurrency: int | None = None
    expected: Mapping[str, Expected] = field(default_factory=dict)


def read_fleet(path: str | os.PathLike[str], *, environ: Mapping[str, str] = os.environ) -> FleetFile:
    """Return the content of the fleet file at `path`. It blocks while it reads the file, and connects to
    nothing.

    Args:
        path: the file; docs/fleets.md describes its format.
        environ: the variables that the file may refer to.

    Raises:
        ConfigurationError: (a ValueError) the file cannot be read, or it is invalid: the message has one line
            with file and field for each problem.
    """
    source = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{source}: cannot read the fleet file: {reason}") from error
    folder = os.path.dirname(os.path.abspath(source))
    return fleet_of(content, source=source, folder=folder, environ=environ)


def fleet_of(
    text: str | bytes,
    *,
    source: str = "fleet.yaml",
    folder: str | None = None,
    environ: Mapping[str, str],
) -> FleetFile:
    """Return the content of a fleet file with this text. No I/O.

    Args:
        text: the text of the file.
        source: the path of the file, for messages.
        folder: the folder that relative paths start from; None for the folder of `source`.
        environ: the variables that the file may refer to.

    Raises:
        ConfigurationError: (a ValueError) the file is invalid: the message has one line with file and field
            for each problem.
    """
    folder = os.path.dirname(source) if folder is None else folder
    reader = _Reader(folder, environ)
    fleet = reader.read(_parse(text, source))
    if reader.problems:
        raise ConfigurationError("\n".join(f"{source}: {problem}" for problem in reader.problems))
    return fleet


def _parse(text: str | bytes, source: str) -> Any:
    import yaml

    loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        opened = loader(text)
        node = opened.get_single_node()
        _reject_duplicates(node, set())
        return None if node is None else opened.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError for a date such as 2024-99-99
        mark = getattr(error, "problem_mark", None)
        place = source if mark is None else f"{source}:{mark.line + 1}"
        problem = " ".join(filter(None, (getattr(error, "context", ""), getattr(error, "problem", ""))))
        hint = 'Between { } and [ ], put "${NAME}" in quotes.' if "flow" in problem else None
        raise ConfigurationError(f"{place}: not valid YAML: {problem or error}", hint=hint) from None


def _reject_duplicates(node: Any, seen: set[int]) -> None:
    """Raise an error for a name that a mapping has twice: of two targets, one would be lost."""
    import yaml

    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    pairs = node.value if isinstance(node, yaml.MappingNode) else ((None, child) for child in node.value)
    names = set[str]()
    for key, value in pairs:
        if isinstance(key, yaml.ScalarNode):
            # PyYAML 6.0.4 compares names by identity where `<<` is a list, whose first item counts.
            key.value = sys.intern(key.value)
            if key.value in names and key.tag != "tag:yaml.org,2002:merge":
                problem = f"{_quoted(key.value)} is defined twice; remove one"
                raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
            names.add(key.value)
        _reject_duplicates(value, seen)


class _Field(NamedTuple):
    location: str
    written: Any


class _Target(NamedTuple):
    """A target as the file describes it; `fields` are its own and those from the defaults."""

    kind: str
    location: str
    fields: Mapping[str, _Field]
    values: Mapping[str, Any]

    def make(self, **others: Any) -> ClusterResolver:
        """Return its resolver; `others` are arguments that every constructor takes."""
        source = BY_KIND[self.kind]
        arguments = {source.fields.get(name, name): value for name, value in self.values.items()}
        made: ClusterResolver = source.load()(**arguments, **source.constants, **others)
        return made


class _Reader:
    """Reads one file; `problems` has a line for each problem, once, in the order in which they were found."""

    def __init__(self, folder: str, environ: Mapping[str, str]) -> None:
        self.problems: dict[str, None] = {}
        self._expected: dict[str, Expected] = {}
        self._folder = folder
        self._environ = environ

    def read(self, root: Any) -> FleetFile:
        content = self._mapping("the file", root, "{targets: ...}")
        settings = {}
        for name, written in content.items():
            if name in _SETTINGS and written is not None:
                settings[name] = self._value(_Field(name, written), _SETTINGS[name])
            elif not name.startswith("x-"):
                self._check_name(name, name, (*_SETTINGS, "defaults", "targets"), "field of a fleet file")
        defaults = {
            kind: self._fields(f"defaults.{_step(kind)}", fields, kind)
            for kind, fields in self._mapping("defaults", content.get("defaults") or {}, "{tpu: ...}").items()
            if self._check_name(f"defaults.{_step(kind)}", kind, BY_KIND, "kind of target")
        }
        example = "{us-east: {kubernetes: {jobs: {worker: app=trainer}}}}"
        written_targets = self._mapping("targets", content.get("targets") or {}, example)
        if not written_targets:
            self._add("targets", f"add at least one target, such as {example}")
        targets = {
            name: target
            for name, written in written_targets.items()
            if (target := self._target(name, written, defaults)) is not None
        }
        if self.problems:  # one of them may be why a constructor would reject a target
            return FleetFile({})
        resolvers = self._resolvers(targets, settings.get("timeout"))
        return FleetFile(MappingProxyType(resolvers), **settings, expected=self._expected)

    def _add(self, location: str, problem: str) -> None:
        self.problems[f"{location}: {problem}"] = None

    def _mapping(self, location: str, written: Any, example: str) -> dict[str, Any]:
        try:
            return msgspec.convert(written, dict[str, Any])
        except msgspec.ValidationError as error:
            problem = str(error).replace("`object`", "a mapping").replace("`null`", "nothing")
            self._add(location, f"{problem}. Write one such as {example}, with names in quotes")
            return {}

    def _check_name(self, location: str, name: str, known: Collection[str], what: str) -> bool:
        if name not in known:
            self._add(location, f"unknown {what}; {suggestion(name, known)}")
        return name in known

    def _value(self, given: _Field, kind: Any) -> Any:
        try:
            value = msgspec.convert(_replaced(given.written, self._environ), kind, strict=False)
            if kind is _Duration:
                return parse_duration(f"{value:g}" if isinstance(value, float) else value)
            return value
        except ValueError as error:  # msgspec's error is one
            quote = ". Put a text in quotes" if "Expected `str" in str(error) else ""
            self._add(given.location, f"{error}{quote}")
        return None

    def _fields(self, location: str, written: Any, kind: str) -> dict[str, _Field]:
        fields = self._mapping(location, {} if written is None else written, "{FIELD: VALUE}")
        return {
            name: _Field(f"{location}.{name}", value)
            for name, value in fields.items()
            if self._check_name(f"{location}.{_step(name)}", name, _field_types(kind), f"field of {kind}")
        }

    def _target(
        self, target: str, written: Any, defaults: Mapping[str, Mapping[str, _Field]]
    ) -> _Target | None:
        location = f"targets.{_step(target)}"
        kinds = self._mapping(location, written or {}, "{kubernetes: {jobs: {worker: app=trainer}}}")
        if (expected := kinds.pop("expected", None)) is not None:
            self._expected[target] = self._value(_Field(f"{location}.expected", expected), _Expected)
        if len(kinds) != 1:
            self._add(location, f"must have one kind; write one of {', '.join((*BY_KIND, UNION))} below it")
            return None
        ((kind, content),) = kinds.items()
        location = f"{location}.{_step(kind)}"
        if not self._check_name(location, kind, (*BY_KIND, UNION), "kind of target"):
            return None
        if kind == UNION:
            given = _Field(location, content)
            return _Target(kind, location, {}, {"members": self._value(given, _TextList) or []})
        own, required = self._fields(location, content, kind), BY_KIND[kind].required
        # A field of its own replaces the alternative among the defaults.
        replaced = required if own.keys() & set(required) else ()
        fields = {name: given for name, given in defaults.get(kind, {}).items() if name not in replaced} | own
        fields = {name: given for name, given in fields.items() if given.written is not None}
        if required and not fields.keys() & set(required):
            missing = " and no ".join(f"`{name}`" for name in required)
            self._add(location, f"has no {missing}; add it here, or under defaults.{kind}")
        values = {name: self._argument(given, _field_types(kind)[name]) for name, given in fields.items()}
        return _Target(kind, location, fields, values)

    def _argument(self, given: _Field, kind: _FieldType) -> Any:
        value = self._value(given, kind.type)
        if value is None:
            return None
        if kind.is_path:
            return self._path(value) if isinstance(value, str) else tuple(map(self._path, value))
        if kind.is_cluster:
            return ClusterSpec(
                {job: [each] if isinstance(each, str) else each for job, each in value.items()}
            )
        return value

    def _path(self, path: str) -> str:
        # `~` is expanded when the file is opened.
        return path if path.startswith("~") else os.path.join(self._folder, path)

    def _resolvers(self, targets: Mapping[str, _Target], timeout: float | None) -> dict[str, ClusterResolver]:
        shared: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        resolvers: dict[str, ClusterResolver] = {}
        for name, target in targets.items():
            try:
                if target.kind != UNION:
                    resolvers[name] = target.make(**shared)
                    continue
                # The members get their own resolvers: those of the targets may be in use at the same time.
                members = [each.make(**shared) for each in self._members(target, targets)]
                if members:
                    resolvers[name] = UnionClusterResolver(*members, **shared)
            except ResolveError as error:
                self._add(*_rejection(target, error))
        return resolvers

    def _members(self, union: _Target, targets: Mapping[str, _Target]) -> list[_Target]:
        allowed = {name for name, target in targets.items() if target.kind != UNION}
        numbers = Counter[str](union.values["members"])
        if repeated := [name for name, number in numbers.items() if number > 1]:
            self._add(union.location, f"{_quoted(repeated[0])} is listed twice; remove one of the two")
        if unknown := [name for name in numbers if name not in allowed]:
            problem = f"{_quoted(unknown[0])} is not a target of this file, or a union itself"
            more = f" ({len(unknown) - 1} more names are neither)" if len(unknown) > 1 else ""
            self._add(union.location, f"{problem}{more}; {suggestion(unknown[0], sorted(allowed))}")
        return [targets[name] for name in union.values["members"] if name in allowed]


def _rejection(target: _Target, error: ResolveError) -> tuple[str, str]:
    """Return the location of the value that the constructor rejected, and the message with names of fields.

    The message shows the value, which must not be shown if it comes from a variable.
    """
    if target.kind == UNION:
        return target.location, str(error)
    names = {argument: name for name, argument in BY_KIND[target.kind].fields.items()}
    argument = getattr(error, "argument", None) or ""
    rejected = target.fields.get(names.get(argument, argument))
    given = target.fields.values() if rejected is None else [rejected]
    location = target.location if rejected is None else rejected.location
    if variables := dict.fromkeys(name for each in given for name in _variables(each.written)):
        held = ", ".join(f"${name}" for name in variables)
        return location, f"the value of {held} is invalid; write it here to see the reason"

    def spell(argument: str, value: str | None) -> str:
        name = names.get(argument, argument)
        return f"`{name}`" if value is None else f"`{name}: {value}`"

    return location, error.render(spell) if rejected is None else ResolveError.render(error, spell)


# Variables

_DOLLAR = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\})?")


def _replaced(written: Any, environ: Mapping[str, str]) -> Any:
    """Return a value with the variables in its texts replaced, and each `$$` by a dollar.

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

    if isinstance(written, str):
        return _DOLLAR.sub(replacement, written)
    if isinstance(written, dict):
        return {key: _replaced(value, environ) for key, value in written.items()}
    return [_replaced(value, environ) for value in written] if isinstance(written, list) else written


def _variables(written: Any) -> set[str]:
    """Return the names of the variables in the texts of a value."""
    if isinstance(written, str):
        return {match["name"] for match in _DOLLAR.finditer(written) if match["name"]}
    children = written.values() if isinstance(written, dict) else written if isinstance(written, list) else ()
    return {name for child in children for name in _variables(child)}


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _step(name: str) -> str:
    return name if re.fullmatch(r"[\w-]{1,60}", name) else _quoted(name)
