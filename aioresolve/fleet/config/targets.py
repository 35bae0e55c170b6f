"""The targets of a fleet file: their kinds, their fields, and the resolvers made from them. No I/O.

To add a kind, add an entry to `KINDS`. The package of a resolver is imported when the first target of its
kind is made.

If a constructor rejects its arguments, the error is reported at the location of the invalid field. The
message of the constructor shows the value, which must not be shown if it comes from a variable: the
constructor is then called once more with the text as written, to get a message without the value.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioresolve._core.document import (
    DocumentError,
    Location,
    MappingNode,
    SequenceNode,
    choice_reader,
    describe_text,
    integer_reader,
    is_null,
    kind_of,
    quoted,
    read_fields,
    read_text,
    read_text_or_texts,
    read_texts,
    suggestion,
)
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.resolver.static import SimpleClusterResolver
from aioresolve.resolver.union import UnionClusterResolver
from aioresolve.spec import ClusterSpec

from .variables import as_written, variables_in

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from aioresolve._core.document import Diagnostics, Node
    from aioresolve.resolver.base import ClusterResolver

    Fields = Mapping[str, Node]


def read_selectors(node: Node) -> dict[str, tuple[str, ...]]:
    """Return the label selectors of each job."""
    jobs = read_fields(node, "{worker: app=trainer}")
    return {job: read_texts(value) for job, value in jobs.values.items()}


def read_services(node: Node) -> str | dict[str, tuple[str, ...]]:
    """Return a Service, or the Services of each job."""
    if not isinstance(node, MappingNode):
        return read_text(node)
    jobs = read_fields(node, "{worker: trainer}")
    return {job: read_texts(value) for job, value in jobs.values.items()}


def read_addresses(node: Node) -> dict[str, tuple[str, ...] | dict[int, str]]:
    """Return the `host:port` of the tasks of each job, as a sequence or by task index."""
    jobs = read_fields(node, '{worker: ["10.0.0.1:8470"]}')
    return {job: _read_tasks(value) for job, value in jobs.values.items()}


def read_task_counts(node: Node) -> dict[str, int]:
    """Return the number of tasks of each job."""
    read_count = integer_reader(0, 1_000_000)
    jobs = read_fields(node, "{worker: 4}")
    return {job: read_count(value) for job, value in jobs.values.items()}


def _read_tasks(node: Node) -> tuple[str, ...] | dict[int, str]:
    if not isinstance(node, MappingNode):
        return read_texts(node)
    tasks: dict[int, str] = {}
    for index, value in read_fields(node, '{0: "10.0.0.1:8470"}').values.items():
        if not (index.isascii() and index.isdigit() and len(index) < 10):
            raise DocumentError(
                value.location, f"{quoted(index)} is not a task index; write an integer, at least 0"
            )
        if int(index) in tasks:
            raise DocumentError(value.location, f"task {int(index)} is defined twice; remove one of the two")
        tasks[int(index)] = read_text(value)
    return tasks


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a target."""

    read: Callable[[Node], Any]
    argument: str | None = None  # the name of the constructor's argument, if it differs
    is_required: bool = False
    replaces: str | None = None  # the required field that this one makes unnecessary
    is_path: bool = False  # its value or values are paths, which may be relative to the fleet file


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of target. `constructor` makes the resolver from the values of the fields, without I/O."""

    constructor: Callable[..., ClusterResolver]
    fields: Mapping[str, Field]

    def alternatives(self, name: str) -> list[str]:
        """Return the fields of which a target has one: `name`, and those that replace it or that it does."""
        common = self.fields[name].replaces or name
        return [each for each, known in self.fields.items() if common in (each, known.replaces)]

    def make(self, values: Mapping[str, Any], **others: Any) -> ClusterResolver:
        """Return the resolver with these values of fields, and arguments that every constructor takes."""
        arguments = {self.fields[name].argument or name: value for name, value in values.items()}
        return self.constructor(**arguments, **others)

    def describe(self, error: ResolveError, name: str | None = None) -> str:
        """Return the message of a constructor, with the names of fields in place of arguments.

        The name of the field that the message is reported for is left out.
        """
        fields = {known.argument or key: key for key, known in self.fields.items()}

        def spell(argument: str, value: str | None) -> str:
            key = fields.get(argument, argument)
            return f"`{key}`" if value is None else f"`{key}: {value}`"

        argument = error.argument if isinstance(error, ConfigurationError) else None
        if name is not None and argument is not None and fields.get(argument) == name:
            return ResolveError.render(error, spell)
        return error.render(spell)


def _kubernetes(**arguments: Any) -> ClusterResolver:
    from aioresolve.kubernetes import KubernetesClusterResolver

    return KubernetesClusterResolver(**arguments)


def _tpu(**arguments: Any) -> ClusterResolver:
    from aioresolve.tpu import TPUClusterResolver

    return TPUClusterResolver(**arguments)


def _gce(**arguments: Any) -> ClusterResolver:
    from aioresolve.environment.gce import GCEClusterResolver

    return GCEClusterResolver(**arguments)


def _tf_config(**arguments: Any) -> ClusterResolver:
    from aioresolve.environment.tf_config import TFConfigClusterResolver

    return TFConfigClusterResolver(**arguments)


def _slurm(**arguments: Any) -> ClusterResolver:
    from aioresolve.environment.slurm import SlurmClusterResolver

    # A fleet is not the program that uses the GPUs.
    return SlurmClusterResolver(auto_set_gpu=False, **arguments)


def _sagemaker(**arguments: Any) -> ClusterResolver:
    from aioresolve.environment.sagemaker import SageMakerClusterResolver

    return SageMakerClusterResolver(**arguments)


def _static(jobs: Any, **arguments: Any) -> ClusterResolver:
    return SimpleClusterResolver(ClusterSpec(jobs), **arguments)


KINDS: Mapping[str, Kind] = {
    "kubernetes": Kind(
        _kubernetes,
        {
            "jobs": Field(read_selectors, "job_to_label_mapping", is_required=True),
            "service": Field(read_services, replaces="jobs"),
            "namespace": Field(read_text_or_texts),
            "context": Field(read_text),
            "kubeconfig": Field(read_texts, is_path=True),
            "server": Field(read_text),
            "token_file": Field(read_text, is_path=True),
            "impersonate": Field(read_text),
            "impersonate_groups": Field(read_texts),
            "executable_location": Field(choice_reader("WITHIN_CLUSTER", "OFF_CLUSTER")),
            "port": Field(integer_reader(1, 65535), "tf_server_port"),
            "address": Field(choice_reader("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")),
            "order_by": Field(read_text_or_texts),
            "not_running": Field(choice_reader("raise", "skip")),
            "rpc_layer": Field(read_text),
            "max_concurrency": Field(integer_reader(1, 10_000)),
        },
    ),
    "tpu": Kind(
        _tpu,
        {
            "name": Field(read_text_or_texts, "tpu", is_required=True),
            "project": Field(read_text),
            "zone": Field(read_text),
            "job_name": Field(read_text),
            "discovery_url": Field(read_text),
            "api_version": Field(choice_reader("v1", "v2")),
            "not_healthy": Field(choice_reader("raise", "skip", "allow")),
            "address": Field(choice_reader("internal_ip", "external_ip")),
        },
    ),
    "gce": Kind(
        _gce,
        {
            "group": Field(read_text, "instance_group", is_required=True),
            "project": Field(read_text),
            "zone": Field(read_text),
            "region": Field(read_text),
            "port": Field(integer_reader(1, 65535)),
            "job_name": Field(read_text, "task_type"),
            "rpc_layer": Field(read_text),
            "address": Field(choice_reader("internal_ip", "external_ip", "hostname")),
            "not_running": Field(choice_reader("raise", "skip")),
        },
    ),
    "tf_config": Kind(_tf_config, {"rpc_layer": Field(read_text)}),
    "slurm": Kind(
        _slurm,
        {
            "jobs": Field(read_task_counts),
            "port": Field(integer_reader(1, 65535), "port_base"),
            "tasks_per_node": Field(integer_reader(1, 10_000)),
            "rpc_layer": Field(read_text),
        },
    ),
    "sagemaker": Kind(
        _sagemaker,
        {
            "port": Field(integer_reader(1, 65535)),
            "rpc_layer": Field(read_text),
        },
    ),
    "static": Kind(
        _static,
        {
            "jobs": Field(read_addresses, is_required=True),
            "rpc_layer": Field(read_text),
        },
    ),
}
"""The kinds of targets that have fields, by their names in a fleet file."""

UNION = "union"
"""The kind of a target that consists of other targets; it has no fields and no defaults."""


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A target as the file describes it; `fields` are its own and those from the defaults."""

    kind: str
    location: Location
    node: Node
    fields: Fields
    values: Mapping[str, Any] = field(repr=False)


def read_defaults(node: Node, folder: str, diagnostics: Diagnostics) -> dict[str, Fields]:
    """Return the fields under `defaults` by kind; add problems to `diagnostics`."""
    defaults: dict[str, Fields] = {}
    kinds = _optional_mapping(node, "{kubernetes: {namespace: training}}", diagnostics)
    for kind, value in kinds.values.items():
        if kind in KINDS:
            defaults[kind] = _known_fields(kind, value, diagnostics)
            _read_values(kind, defaults[kind], folder, diagnostics)
        else:
            problem = f"unknown kind of target with defaults; {suggestion(kind, KINDS)}"
            diagnostics.add(kinds.location_of(kind), problem)
    return defaults


def read_targets(
    node: Node, defaults: Mapping[str, Fields], folder: str, diagnostics: Diagnostics
) -> dict[str, TargetEntry]:
    """Return the targets whose kind is valid; add the problems of all targets to `diagnostics`."""
    targets: dict[str, TargetEntry] = {}
    try:
        named = read_fields(node, "{us-east: {kubernetes: {jobs: {worker: app=trainer}}}}")
    except DocumentError as error:
        diagnostics.add_error(error)
        return targets
    for name, value in named.values.items():
        kinds = _optional_mapping(value, "{kubernetes: {jobs: {worker: app=trainer}}}", diagnostics)
        kind = _read_kind(kinds, named.location_of(name), diagnostics)
        if kind is None:
            continue
        content, location = kinds.values[kind], kinds.location_of(kind)
        if kind == UNION:
            targets[name] = TargetEntry(kind, location, content, {}, {})
            continue
        own = _known_fields(kind, content, diagnostics)
        fields = {**_remaining(defaults.get(kind, {}), kind, own), **own}
        fields = {key: child for key, child in fields.items() if not is_null(child)}
        for key, known in KINDS[kind].fields.items():
            if known.is_required and fields.keys().isdisjoint(KINDS[kind].alternatives(key)):
                others = [f" and no `{each}`" for each in KINDS[kind].alternatives(key) if each != key]
                one = "one of them" if others else "it"
                missing = f"has no `{key}`{''.join(others)}; add {one} here, or under defaults.{kind}"
                diagnostics.add(location, missing)
        values = _read_values(kind, fields, folder, diagnostics)
        targets[name] = TargetEntry(kind, location, content, fields, values)
    for target in targets.values():
        if target.kind == UNION:
            _check_members(target.node, targets, named.values, diagnostics)
    return targets


def make_resolvers(
    targets: Mapping[str, TargetEntry], timeout: float | None, diagnostics: Diagnostics
) -> dict[str, ClusterResolver]:
    """Return a resolver for each target; add the errors of constructors to `diagnostics`.

    `timeout` is that of each call of a resolver, in seconds; None for its own default.
    """
    shared: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    resolvers: dict[str, ClusterResolver] = {}
    for name, target in targets.items():
        # The members of a union get their own resolvers: those of the targets may be in use at the same time.
        parts = [targets[part] for part in read_texts(target.node)] if target.kind == UNION else [target]
        made = []
        for part in parts:
            try:
                made.append(KINDS[part.kind].make(part.values, **shared))
            except ResolveError as error:
                diagnostics.add(*_locate_rejection(part, error))
        if len(made) == len(parts):
            resolvers[name] = UnionClusterResolver(*made, **shared) if target.kind == UNION else made[0]
    return resolvers


def _read_kind(kinds: MappingNode, location: Location, diagnostics: Diagnostics) -> str | None:
    """Return the one kind of a target; None, and a diagnostic, if there is not exactly one known kind."""
    known = (*KINDS, UNION)
    unknown = [kind for kind in kinds.values if kind not in known]
    for kind in unknown:
        diagnostics.add(kinds.location_of(kind), f"unknown kind of target; {suggestion(kind, known)}")
    if unknown:
        return None
    if len(kinds.values) == 1:
        return next(iter(kinds.values))
    if kinds.values:
        several = ", ".join(kinds.values)
        diagnostics.add(
            location, f"has several kinds ({several}); make a target of each, and a union of them"
        )
    else:
        diagnostics.add(location, f"has no kind; add one of {', '.join(known)} below it")
    return None


def _remaining(defaults: Fields, kind: str, own: Fields) -> Fields:
    """Return the defaults that apply to a target with these fields of its own."""
    replaced = {other for name in own for other in KINDS[kind].alternatives(name)}
    return {name: value for name, value in defaults.items() if name not in replaced}


def _known_fields(kind: str, node: Node, diagnostics: Diagnostics) -> Fields:
    known = KINDS[kind].fields
    mapping = _optional_mapping(node, "{FIELD: VALUE}", diagnostics)
    for name in mapping.values:
        if name not in known:
            problem = f"unknown field of a {kind} target; {suggestion(name, known)}"
            diagnostics.add(mapping.location_of(name), problem)
    return {name: value for name, value in mapping.values.items() if name in known}


def _read_values(kind: str, fields: Fields, folder: str, diagnostics: Diagnostics) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, node in fields.items():
        if is_null(node):
            continue
        known = KINDS[kind].fields[name]
        try:
            values[name] = known.read(node)
        except DocumentError as error:
            diagnostics.add_error(error)
            continue
        if known.is_path:
            given = values[name]
            values[name] = (
                _in_folder(given, folder)
                if isinstance(given, str)
                else tuple(_in_folder(path, folder) for path in given)
            )
    return values


def _in_folder(path: str, folder: str) -> str:
    # `~` is expanded when the file is opened.
    return path if path.startswith("~") else os.path.join(folder, path)


def _optional_mapping(node: Node, example: str, diagnostics: Diagnostics) -> MappingNode:
    """Return `node`; an empty mapping if it is null, or, with a diagnostic, if it is not a mapping."""
    if isinstance(node, MappingNode):
        return node
    if not is_null(node):
        diagnostics.add(node.location, f"must be a mapping such as {example}, not {kind_of(node)}")
    return MappingNode(node.location, {}, {})


def _check_members(
    node: Node,
    targets: Mapping[str, TargetEntry],
    names: Container[str],
    diagnostics: Diagnostics,
) -> None:
    """Add the invalid members of a union to `diagnostics`. `names` includes the names of invalid targets."""
    allowed = [name for name, target in targets.items() if target.kind != UNION]
    try:
        members = read_texts(node)
    except DocumentError as error:
        diagnostics.add_error(error)
        return
    nodes = node.values if isinstance(node, SequenceNode) else (node,)
    for number, (member, item) in enumerate(zip(members, nodes, strict=True)):
        shown = describe_text(item)
        if member in members[:number]:
            diagnostics.add(item.location, f"{shown} is listed twice; remove one of the two")
        elif member in targets and targets[member].kind == UNION:
            diagnostics.add(item.location, f"{shown} is a union; list its members here")
        elif member not in names:
            diagnostics.add(
                item.location, f"{shown} is not a target of this file; {suggestion(member, allowed)}"
            )


def _locate_rejection(target: TargetEntry, error: ResolveError) -> tuple[Location, str]:
    """Return the location of the value that the constructor rejected, and the message.

    The invalid field is the one that is rejected together with nothing but the required fields.
    """
    kind = KINDS[target.kind]
    required = {
        name: value
        for name, value in target.values.items()
        if kind.fields[name].is_required or kind.fields[name].replaces
    }
    for name in sorted(target.values, key=lambda name: name not in required):
        rejection = _constructor_error(kind, {**required, name: target.values[name]})
        if rejection is not None:
            return target.fields[name].location, _explain(target, name, required, rejection)
    held = _variables_of(target, target.fields)
    return target.location, _hidden(held) if held else kind.describe(error)


def _explain(target: TargetEntry, name: str, required: Mapping[str, Any], rejection: ResolveError) -> str:
    """Return why the constructor rejected the field, without the values of variables."""
    kind = KINDS[target.kind]
    held = _variables_of(target, {*required, name})
    if not held:
        return kind.describe(rejection, name)
    if not _variables_of(target, required.keys() - {name}):
        try:
            value = kind.fields[name].read(as_written(target.fields[name]))
        except DocumentError:
            value = None
        if value is not None and (again := _constructor_error(kind, {**required, name: value})) is not None:
            return f"the value of {held} is invalid: {kind.describe(again, name)}"
    return _hidden(held)


def _hidden(held: str) -> str:
    return (
        f"the value of {held} is invalid (the values of variables are not shown); correct it, or write it"
        " in the file to see the reason"
    )


def _constructor_error(kind: Kind, values: Mapping[str, Any]) -> ResolveError | None:
    try:
        kind.make(values)
    except ResolveError as error:
        return error
    return None


def _variables_of(target: TargetEntry, names: Iterable[str]) -> str:
    """Return the variables in these fields as a shell writes them."""
    held = dict.fromkeys(variable for name in names for variable in variables_in(target.fields[name]))
    return ", ".join(f"${variable}" for variable in held)
