"""The kinds of targets that a fleet file knows: for each, its resolver and its fields.

A new kind is one entry of `KINDS`. A room is imported when the first target of its kind is made.

The targets of a fleet file: what is written of each, with its kind's defaults -> its resolver. Pure.

What a resolver's constructor refuses is told with the place of the field at fault. Its message shows the
value, which must not be seen where a variable holds it: there it is asked again, with what is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ResolveError
from aioresolve.resolver.union import UnionClusterResolver

from .fields import (
    FieldError,
    addresses,
    choice,
    closest,
    entries,
    kind_of,
    paths,
    selectors,
    shown_text,
    text,
    text_or_texts,
    texts,
    whole,
)
from .yaml_tree import Entries, Items, is_null

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from aioresolve.resolver.base import ClusterResolver

    from .diagnostics import Place, Problems
    from .fields import Reader
    from .yaml_tree import Tree

__all__ = ["KINDS", "Field", "Kind", "defaults_of", "resolvers_of", "targets_of"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a target.

    Attributes:
        read: how it is read.
        argument: the constructor's name for it, where that is another one.
        is_required: whether a target cannot do without it.
    """

    read: Reader
    argument: str | None = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of targets.

    Attributes:
        resolver: makes the resolver of what the fields say; no I/O.
        fields: its fields by name.
    """

    resolver: Callable[..., ClusterResolver]
    fields: Mapping[str, Field]

    def made(self, values: Mapping[str, Any], **others: Any) -> ClusterResolver:
        """Return the resolver of what the fields say, and of arguments that every constructor takes.

        Raises:
            ResolveError: the resolver does not take these.
        """
        arguments = {self.fields[name].argument or name: value for name, value in values.items()}
        return self.resolver(**arguments, **others)


def _kubernetes(**arguments: Any) -> ClusterResolver:
    from aioresolve.kubernetes import KubernetesClusterResolver

    return KubernetesClusterResolver(**arguments)


def _tpu(**arguments: Any) -> ClusterResolver:
    from aioresolve.tpu import TPUClusterResolver

    return TPUClusterResolver(**arguments)


def _static(jobs: Any, **arguments: Any) -> ClusterResolver:
    from aioresolve.resolver.static import SimpleClusterResolver
    from aioresolve.spec import ClusterSpec

    return SimpleClusterResolver(ClusterSpec(jobs), **arguments)


KINDS: Mapping[str, Kind] = {
    "kubernetes": Kind(
        _kubernetes,
        {
            "jobs": Field(selectors, "job_to_label_mapping", is_required=True),
            "namespace": Field(text_or_texts),
            "context": Field(text),
            "kubeconfig": Field(paths),
            "executable_location": Field(choice("WITHIN_CLUSTER", "OFF_CLUSTER")),
            "port": Field(whole(1, 65535), "tf_server_port"),
            "address": Field(choice("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")),
            "order_by": Field(choice("name", "index")),
            "not_running": Field(choice("raise", "skip")),
            "rpc_layer": Field(text),
            "max_concurrency": Field(whole(1, 10_000)),
        },
    ),
    "tpu": Kind(
        _tpu,
        {
            "name": Field(text_or_texts, "tpu", is_required=True),
            "project": Field(text),
            "zone": Field(text),
            "job_name": Field(text),
            "discovery_url": Field(text),
            "api_version": Field(choice("v1", "v2")),
        },
    ),
    "static": Kind(
        _static,
        {
            "jobs": Field(addresses, is_required=True),
            "rpc_layer": Field(text),
        },
    ),
}
"""Each kind by its name in a fleet file; `union` is read beside them, for it names other targets."""


UNION = "union"
"""The kind of a target that is made of others, and so has no fields, and no defaults."""


@dataclass(frozen=True, slots=True)
class Written:
    """What is written of one target.

    Attributes:
        kind: the name of its kind.
        place: where its kind is written.
        tree: what is written under its kind.
        fields: what is written of each field of it, there or in the defaults.
        values: what that means.
    """

    kind: str
    place: Place
    tree: Tree
    fields: Mapping[str, Tree]
    values: Mapping[str, Any] = field(repr=False)


def defaults_of(tree: Tree, folder: str, problems: Problems) -> dict[str, Mapping[str, Tree]]:
    """Return the fields that are written for each kind under `defaults`; add to `problems` what is wrong."""
    defaults: dict[str, Mapping[str, Tree]] = {}
    kinds = _entries(tree, "{kubernetes: {namespace: training}}", problems)
    for kind, written in kinds.values.items():
        if kind in KINDS:
            defaults[kind] = _fields(kind, written, problems)
            _values(kind, defaults[kind], folder, problems)
        else:
            problems.add(kinds.place_of(kind), f"is no kind of target with defaults; {closest(kind, KINDS)}")
    return defaults


def targets_of(
    tree: Tree, defaults: Mapping[str, Mapping[str, Tree]], folder: str, problems: Problems
) -> dict[str, Written]:
    """Return what is written of each target that makes sense; add to `problems` what is wrong with any."""
    targets: dict[str, Written] = {}
    try:
        named = entries(tree, "{us-east: {kubernetes: {jobs: {worker: app=trainer}}}}")
    except FieldError as error:
        problems.add(error.tree.place, str(error))
        return targets
    for name, written in named.values.items():
        kinds = _entries(written, "{kubernetes: {jobs: {worker: app=trainer}}}", problems)
        kind = _kind(kinds, named.place_of(name), problems)
        if kind is None:
            continue
        below, place = kinds.values[kind], kinds.place_of(kind)
        if kind == UNION:
            targets[name] = Written(kind, place, below, {}, {})
            continue
        fields = {**defaults.get(kind, {}), **_fields(kind, below, problems)}
        fields = {key: value for key, value in fields.items() if not is_null(value)}
        for key, known in KINDS[kind].fields.items():
            if known.is_required and key not in fields:
                problems.add(place, f"lacks `{key}`; write it here, or under defaults.{kind}")
        targets[name] = Written(kind, place, below, fields, _values(kind, fields, folder, problems))
    for target in targets.values():
        if target.kind == UNION:
            _check_members(target.tree, targets, named.values, problems)
    return targets


def resolvers_of(
    targets: Mapping[str, Written], timeout: float | None, folder: str, problems: Problems
) -> dict[str, ClusterResolver]:
    """Return a resolver for each target; add to `problems` what a constructor refuses.

    Args:
        targets: the targets, of which nothing is wrong so far.
        timeout: seconds that a call of a resolver may take; its own default where None.
        folder: what relative paths start from.
        problems: where to tell what is wrong.
    """
    shared: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    resolvers: dict[str, ClusterResolver] = {}
    for name, target in targets.items():
        # A union's members are resolvers of its own: those of the targets may be in use at the same time.
        parts = [targets[part] for part in texts(target.tree)] if target.kind == UNION else [target]
        made = []
        for part in parts:
            try:
                made.append(KINDS[part.kind].made(part.values, **shared))
            except ResolveError as error:
                problems.add(*_refusal(part, error, folder))
        if len(made) == len(parts):
            resolvers[name] = UnionClusterResolver(*made, **shared) if target.kind == UNION else made[0]
    return resolvers


def _kind(kinds: Entries, place: Place, problems: Problems) -> str | None:
    """Return the one kind that is written of a target; None, and a problem, where there is not one."""
    known = (*KINDS, UNION)
    unknown = [kind for kind in kinds.values if kind not in known]
    for kind in unknown:
        problems.add(kinds.place_of(kind), f"is no kind of target; {closest(kind, known)}")
    if unknown:
        return None
    if len(kinds.values) == 1:
        return next(iter(kinds.values))
    if kinds.values:
        several = ", ".join(kinds.values)
        problems.add(place, f"is of several kinds ({several}); make a target of each, and a union of them")
    else:
        problems.add(place, f"does not say what it is; write one of {', '.join(known)} below it")
    return None


def _fields(kind: str, tree: Tree, problems: Problems) -> Mapping[str, Tree]:
    known = KINDS[kind].fields
    written = _entries(tree, "{FIELD: VALUE}", problems)
    for name in written.values:
        if name not in known:
            problems.add(written.place_of(name), f"is no field of a {kind} target; {closest(name, known)}")
    return {name: value for name, value in written.values.items() if name in known}


def _values(kind: str, fields: Mapping[str, Tree], folder: str, problems: Problems) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, tree in fields.items():
        if is_null(tree):
            continue
        try:
            values[name] = KINDS[kind].fields[name].read(tree, folder)
        except FieldError as error:
            problems.add(error.tree.place, str(error))
    return values


def _entries(tree: Tree, example: str, problems: Problems) -> Entries:
    """Return the mapping that is written; an empty one where nothing is, or, with a problem, none."""
    if isinstance(tree, Entries):
        return tree
    if not is_null(tree):
        problems.add(tree.place, f"must be a mapping such as {example}, not {kind_of(tree)}")
    return Entries(tree.place, {}, {})


def _check_members(
    tree: Tree, targets: Mapping[str, Written], names: Container[str], problems: Problems
) -> None:
    """Add to `problems` which members a union cannot have. `names` are those of targets gone wrong, too."""
    able = [target for target, other in targets.items() if other.kind != UNION]
    try:
        members = texts(tree)
    except FieldError as error:
        problems.add(error.tree.place, str(error))
        return
    trees = tree.values if isinstance(tree, Items) else (tree,)
    for number, (member, written) in enumerate(zip(members, trees, strict=True)):
        shown = shown_text(written)
        if member in members[:number]:
            problems.add(written.place, f"{shown} is in it twice; leave one out")
        elif member in targets and targets[member].kind == UNION:
            problems.add(written.place, f"{shown} is a union; write its members here")
        elif member not in names:
            problems.add(written.place, f"{shown} is no target of this file; {closest(member, able)}")


def _refusal(target: Written, error: ResolveError, folder: str) -> tuple[Place, str]:
    """Return the place of what the constructor refused, and its reason.

    The field at fault is the one that is refused with nothing beside it but what a target cannot do without.
    """
    kind = KINDS[target.kind]
    needed = {name: value for name, value in target.values.items() if kind.fields[name].is_required}
    for name in sorted(target.values, key=lambda name: name not in needed):
        refused = _error(kind, {**needed, name: target.values[name]})
        if refused is not None:
            return target.fields[name].place, _reason(target, name, needed, refused, folder)
    held = _variables(target, target.fields)
    return target.place, _hidden(held) if held else str(error)


def _reason(target: Written, name: str, needed: Mapping[str, Any], refused: ResolveError, folder: str) -> str:
    """Return why the constructor refused the field, without what variables hold."""
    if not (held := _variables(target, {*needed, name})):
        return str(refused)
    if not _variables(target, needed.keys() - {name}):
        kind = KINDS[target.kind]
        try:
            written = kind.fields[name].read(target.fields[name].as_written, folder)
        except FieldError:
            written = None
        if written is not None and (again := _error(kind, {**needed, name: written})) is not None:
            return f"what {held} stands for is refused: {again}"
    return _hidden(held)


def _hidden(held: str) -> str:
    return f"what {held} stands for is refused (variables are not shown); mend it, or write it out here"


def _error(kind: Kind, values: Mapping[str, Any]) -> ResolveError | None:
    try:
        kind.made(values)
    except ResolveError as error:
        return error
    return None


def _variables(target: Written, names: Iterable[str]) -> str:
    """Return the variables that these fields refer to, as they are written in a shell."""
    held = dict.fromkeys(variable for name in names for variable in target.fields[name].variables)
    return ", ".join(f"${variable}" for variable in held)
