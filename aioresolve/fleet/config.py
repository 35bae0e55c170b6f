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
from functools import partial
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, Union, get_args, get_origin

import msgspec

from aioresolve._core.validation import parse_duration, suggestion
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.resolver.union import UnionClusterResolver
from aioresolve.sources import BY_KIND
from aioresolve.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

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


@functools.cache
def _field_types(kind: str) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field of a kind of target, and whether it is a path. Imports its resolver."""
    return {
        name: (in_file, "PathLike" in str(annotation))
        for name, annotation in BY_KIND[kind].field_types().items()
        if (in_file := _type_in_file(annotation)) is not None
    }


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema of fleet files, for editors and for checks before a file is used."""
    kinds: dict[str, Any] = {}
    for kind in BY_KIND:
        # A number may be a variable too.
        types = [(name, each | str | None, None) for name, (each, _) in _field_types(kind).items()]
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
        ConfigurationError: (a ValueError) the file cannot be read, or it is invalid: the message has the file
            and the field.
    """
    source = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        is_missing = isinstance(error, FileNotFoundError)
        hint = "Check the path; `aioresolve poll FILE --init` writes a file." if is_missing else None
        raise ConfigurationError(f"{source}: cannot read the fleet file: {reason}", hint=hint) from error
    return fleet_of(content, source=source, environ=environ)


def fleet_of(
    text: str | bytes, *, source: str = "fleet.yaml", environ: Mapping[str, str] = os.environ
) -> FleetFile:
    """Return the content of a fleet file with this text, as `read_fleet` does. No I/O.

    `source` is the path of the file, for messages, and for relative paths in the file.
    """
    try:
        content = _parse(text, source)
        return _Reader(os.path.dirname(os.path.abspath(source)), environ).read(content)
    except _InvalidFieldError as error:
        raise ConfigurationError(f"{source}: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{source}: it is nested too deeply, or an anchor contains itself") from None


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


class _InvalidFieldError(Exception):
    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"{location}: {problem}")


class _Field(NamedTuple):
    """A value, where the file has it, and the variables in it."""

    location: str
    value: Any = None
    variables: Collection[str] = ()

    def error(self, problem: str) -> _InvalidFieldError:
        """Return the error for this value, without the problem if that may show the value of a variable."""
        if self.variables:
            held = ", ".join(f"${name}" for name in self.variables)
            problem = f"the value of {held} is invalid; write it here to see the reason"
        return _InvalidFieldError(self.location, problem)


class _Target(NamedTuple):
    """A target as the file describes it; `fields` are its own and those from the defaults."""

    kind: str
    location: str
    fields: Mapping[str, _Field]

    def make(self, **others: Any) -> ClusterResolver:
        """Return its resolver; `others` are arguments that every constructor takes."""
        source = BY_KIND[self.kind]
        arguments = {source.fields.get(name, name): field.value for name, field in self.fields.items()}
        made: ClusterResolver = source.load()(**arguments, **source.constants, **others)
        return made


class _Reader:
    def __init__(self, folder: str, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ

    def read(self, root: Any) -> FleetFile:
        content = _mapping("the file", root, "{targets: ...}")
        for name in content:
            if not name.startswith("x-"):
                _check_name(name, name, (*_SETTINGS, "defaults", "targets"), "field of a fleet file")
        settings = {
            name: self._field(name, content[name], kind).value
            for name, kind in _SETTINGS.items()
            if content.get(name) is not None
        }
        defaults = {}
        for kind, fields in _mapping("defaults", content.get("defaults") or {}, "{tpu: ...}").items():
            location = f"defaults.{_step(kind)}"
            _check_name(location, kind, BY_KIND, "kind of target")
            defaults[kind] = self._fields(location, fields, kind)
        example = "{us-east: {kubernetes: {jobs: {worker: app=trainer}}}}"
        written_targets = _mapping("targets", content.get("targets") or {}, example)
        if not written_targets:
            raise _InvalidFieldError("targets", f"add at least one target, such as {example}")
        targets: dict[str, _Target] = {}
        expected: dict[str, Expected] = {}
        for name, written in written_targets.items():
            location = f"targets.{_step(name)}"
            kinds = _mapping(location, written or {}, "{kubernetes: {jobs: {worker: app=trainer}}}")
            if (number := kinds.pop("expected", None)) is not None:
                expected[name] = self._field(f"{location}.expected", number, _Expected).value
            targets[name] = self._target(location, kinds, defaults)
        resolvers = _resolvers(targets, settings.get("timeout"))
        return FleetFile(MappingProxyType(resolvers), **settings, expected=expected)

    def _target(
        self, location: str, kinds: Mapping[str, Any], defaults: Mapping[str, Mapping[str, _Field]]
    ) -> _Target:
        if len(kinds) != 1:
            problem = f"must have one kind; write one of {', '.join((*BY_KIND, UNION))} below it"
            raise _InvalidFieldError(location, problem)
        ((kind, content),) = kinds.items()
        location = f"{location}.{_step(kind)}"
        _check_name(location, kind, (*BY_KIND, UNION), "kind of target")
        if kind == UNION:
            return _Target(kind, location, {"members": self._field(location, content, _TextList)})
        own, required = self._fields(location, content, kind), set(BY_KIND[kind].required)
        # A field of its own replaces the alternative among the defaults.
        replaced = required if own.keys() & required else ()
        fields = {name: given for name, given in defaults.get(kind, {}).items() if name not in replaced} | own
        fields = {name: given for name, given in fields.items() if given.value is not None}
        if required and not fields.keys() & required:
            missing = " and no ".join(f"`{name}`" for name in BY_KIND[kind].required)
            problem = f"has no {missing}; add it here, or under defaults.{kind}"
            raise _InvalidFieldError(location, problem)
        return _Target(kind, location, fields)

    def _fields(self, location: str, written: Any, kind: str) -> dict[str, _Field]:
        """Return the fields below a kind of target; None restores the default of the constructor."""
        fields, types = dict[str, _Field](), _field_types(kind)
        for name, value in _mapping(location, {} if written is None else written, "{FIELD: VALUE}").items():
            place = f"{location}.{_step(name)}"
            _check_name(place, name, types, f"field of {kind}")
            fields[name] = _Field(place) if value is None else self._field(place, value, *types[name])
        return fields

    def _field(self, location: str, written: Any, kind: Any, is_path: bool = False) -> _Field:
        """Return a value of this type, in which the variables are replaced."""
        variables = dict[str, None]()

        def read(text: str) -> str:
            text = _DOLLAR.sub(partial(_replacement, self._environ, variables), text)
            # `~` is expanded when the file is opened.
            return os.path.join(self._folder, text) if is_path and not text.startswith("~") else text

        try:
            value = _with_texts(written, read)
        except ValueError as error:
            raise _InvalidFieldError(location, str(error)) from None
        try:
            value = msgspec.convert(value, kind, strict=False)
            if kind is _Duration:
                value = parse_duration(f"{value:g}" if isinstance(value, float) else value)
            elif kind is _Cluster:
                value = ClusterSpec({job: [at] if isinstance(at, str) else at for job, at in value.items()})
        except ValueError as error:  # msgspec's error is one
            quote = ". Put a text in quotes" if "Expected `str" in str(error) else ""
            raise _Field(location, None, variables).error(f"{error}{quote}") from None
        return _Field(location, value, variables)


def _mapping(location: str, written: Any, example: str) -> dict[str, Any]:
    try:
        return msgspec.convert(written, dict[str, Any])
    except msgspec.ValidationError as error:
        problem = str(error).replace("`object`", "a mapping").replace("`null`", "nothing")
        problem = f"{problem}. Write one such as {example}, with names in quotes"
        raise _InvalidFieldError(location, problem) from None


def _check_name(location: str, name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise _InvalidFieldError(location, f"unknown {what}; {suggestion(name, known)}")


def _resolvers(targets: Mapping[str, _Target], timeout: float | None) -> dict[str, ClusterResolver]:
    shared: dict[str, Any] = {} if timeout is None else {"timeout": timeout}

    def make(target: _Target) -> ClusterResolver:
        if target.kind == UNION:
            # The members get their own resolvers: those of the targets may be in use at the same time.
            return UnionClusterResolver(*map(make, _members(target, targets)), **shared)
        try:
            return target.make(**shared)
        except ResolveError as error:
            raise _rejection(target, error) from None

    return {name: make(target) for name, target in targets.items()}


def _members(union: _Target, targets: Mapping[str, _Target]) -> list[_Target]:
    members = union.fields["members"]
    names: list[str] = members.value
    allowed = {name for name, target in targets.items() if target.kind != UNION}
    if repeated := [name for name, number in Counter(names).items() if number > 1]:
        raise members.error(f"{_quoted(repeated[0])} is listed twice; remove one of the two")
    if unknown := [name for name in names if name not in allowed]:
        problem = f"{_quoted(unknown[0])} is not a target of this file, or a union itself"
        raise members.error(f"{problem}; {suggestion(unknown[0], sorted(allowed))}")
    return [targets[name] for name in names]


def _rejection(target: _Target, error: ResolveError) -> _InvalidFieldError:
    """Return the error for the value that a constructor rejected, with names of fields."""
    names = {argument: name for name, argument in BY_KIND[target.kind].fields.items()}
    argument = getattr(error, "argument", None) or ""
    rejected = target.fields.get(names.get(argument, argument))
    given = rejected or _Field(
        target.location,
        variables=dict.fromkeys(name for field in target.fields.values() for name in field.variables),
    )

    def spell(argument: str, _: str | None) -> str:
        return f"`{names.get(argument, argument)}`"

    return given.error(error.render(spell) if rejected is None else ResolveError.render(error, spell))


# Variables

_DOLLAR = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\})?")


def _replacement(environ: Mapping[str, str], found: dict[str, None], match: re.Match[str]) -> str:
    """Return the value of a variable, whose name is added to `found`, or the dollar of a `$$`.

    `${NAME:-default}` is the default if the variable is unset or empty, as in a POSIX shell and in Docker
    Compose files. The default is plain text. A `$` in the value of a variable has no special meaning.
    """
    if match["dollar"]:
        return "$"
    name, default = match["name"], match["default"]
    if name is None:
        raise ValueError(
            "contains a $ that starts neither ${NAME} nor ${NAME:-default}; write $$ for a dollar"
        )
    found[name] = None
    if default is not None:
        return environ.get(name) or default
    if name not in environ:
        raise ValueError(f"${name} is not set; set it, or give a default: ${{{name}:-default}}")
    return environ[name]


def _with_texts(written: Any, read: Callable[[str], str]) -> Any:
    """Return a value with `read` applied to each text in it."""
    if isinstance(written, str):
        return read(written)
    if isinstance(written, dict):
        return {key: _with_texts(value, read) for key, value in written.items()}
    return [_with_texts(value, read) for value in written] if isinstance(written, list) else written


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _step(name: str) -> str:
    return name if re.fullmatch(r"[\w-]{1,60}", name) else _quoted(name)
