"""Clusters in each format of `-o`: tables, documents, templates, and what programs read."""

from __future__ import annotations

import re
import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from .formats import Table, as_yaml, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aioresolve.spec import ClusterSpec, ClusterState, Member, Task

    Part = Callable[[Any], str]

OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")
"""The values of `-o`."""

HOST_FILES = ("hostfile", "host:slots")

PROGRAM_OUTPUTS = (
    *("env", "jax", "torch", "torchrun", "accelerate", "tensorflow", "megascale", "ray", "vllm", "sglang"),
    *HOST_FILES,
)
"""The values of `-o` for what a kind of program reads: variables or a host file (see `aioresolve.launch`)."""

WATCH_OUTPUTS = ("table", "wide", "json", "yaml", "tf-config")
"""The values of `-o` for a watch. In a list of names, it would not be visible where the next list begins."""

TASK = ("JOB", "TASK", "ADDRESS")
IDENTITY = ("NAME", "NAMESPACE", "NODE", "READY", "UID", "ACCELERATORS", "STATUS")

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class TaskName(msgspec.Struct, frozen=True):
    """A task of a cluster: its job, and its index in the job."""

    job: str
    index: int


def spec_table(spec: ClusterSpec) -> Table:
    """Return one row per task: its job, index and address."""
    return Table(
        TASK,
        [
            (job, str(index), spec.task_address(job, index))
            for job in spec.jobs
            for index in spec.task_indices(job)
        ],
    )


def state_table(state: ClusterState) -> Table:
    """Return one row per task, with the identity of its pod."""
    return Table(
        (*TASK, *IDENTITY),
        [
            (member.job, str(member.task_index), member.endpoint.address, *identity_cells(member))
            for member in state.members
        ],
    )


def identity_cells(member: Member) -> tuple[str, ...]:
    """Return the cells of a task in the columns `IDENTITY`."""
    endpoint = member.endpoint
    return (
        endpoint.name or "",
        endpoint.namespace or "",
        endpoint.node or "",
        "" if endpoint.ready is None else str(endpoint.ready).lower(),
        endpoint.uid or "",
        ",".join(f"{name}={number}" for name, number in (endpoint.accelerators or {}).items()),
        endpoint.status or "",
    )


def is_document(output: str) -> bool:
    """Whether `output` shows one object: as `json`, as `yaml`, or by a template."""
    return output in ("json", "yaml") or "=" in output


def has_identities(output: str) -> bool:
    """Whether `output` may show pod identities. For the others, less is requested from the server."""
    return output == "wide" or is_document(output)


def format_cluster(
    output: str,
    spec: ClusterSpec,
    state: ClusterState | None,
    task: TaskName | None,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> str | Table:
    """Return the cluster in the format `output`: one of `OUTPUTS`, `PROGRAM_OUTPUTS`, or a template.

    Args:
        output: the format.
        spec: the cluster.
        state: the same cluster with identities; required if `has_identities`.
        task: the task that reads the output; required for the variables of programs.
        options: those of the function of `aioresolve.launch`.
    """
    match output:
        case "table":
            return spec_table(spec)
        case "name":
            return "".join(f"{printable(address)}\n" for _, _, address in spec_table(spec).rows)
        case "tf-config":
            return tf_config(spec, task, **options)
        case "hostfile" | "host:slots":
            from aioresolve import launch

            return (launch.hostfile if output == "hostfile" else launch.host_slots)(spec, **options)
    if output in PROGRAM_OUTPUTS:
        from aioresolve import launch

        assert task is not None
        variables = launch.environment(output, spec, _find_task(spec, task), **options)
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    assert state is not None
    if output == "wide":
        return state_table(state)
    document = state.as_dict()
    return format_document(output, document, tasks_of(document))


def format_document(output: str, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str | Table:
    """Return `document` in the format `output`, or `rows` as a table with custom columns."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if output == "yaml":
        return as_yaml(document)
    return compile_template(output)(document, rows)


def tasks_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of all jobs of `ClusterState.as_dict`, each with its `job`."""
    return [{"job": job, **task} for job, tasks in document["jobs"].items() for task in tasks]


def tf_config(spec: ClusterSpec, task: TaskName | None = None, *, rpc_layer: str | None = None) -> str:
    """Return the cluster as TensorFlow's `TF_CONFIG`, a line of JSON: `{"cluster": ..., "task": ...}`.

    See `aioresolve.launch.tensorflow`. The key `task` names the task that will read it; without a task it is
    omitted. A task that the cluster does not have, and that is not an evaluator, is an UnknownTaskError.
    """
    from aioresolve import launch

    found = None if task is None else _find_task(spec, task)
    return launch.tensorflow(spec, found, rpc_layer=rpc_layer)["TF_CONFIG"] + "\n"


def _find_task(spec: ClusterSpec, name: TaskName) -> Task:
    """Return the task of that name; an unknown one is an UnknownTaskError.

    TensorFlow's evaluator need not be in the cluster. It then has no address and no rank of its own.
    """
    from aioresolve.launch import EVALUATOR
    from aioresolve.spec import Task

    if name.job == EVALUATOR and EVALUATOR not in spec.jobs:
        return Task(name.job, name.index, "", 0, 0)
    return spec.task(name.job, name.index)


# Templates in the syntax of kubectl


_QUOTED = r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'"
_TOKEN = re.compile(rf"\{{((?:[^{{}}'\"]|{_QUOTED})*)\}}|([^{{}}]+)")
_DOT = "\\."
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED_FIELD = re.compile(rf"\[\s*({_QUOTED})\s*\]|(?:{_QUOTED})|\.([\w/-]*(?:\\\.[\w/-]*)+)")
"""A field in brackets, another quoted text, or a field whose dots are escaped, such as `nvidia\\.com/gpu`."""


def compile_template(output: str) -> Callable[[dict[str, Any], Sequence[dict[str, Any]]], str | Table]:
    """Return a function that formats a document by a jsonpath, or rows as a table of custom columns.

    A text that is not empty ends with a line feed.

    Raises:
        ValueError: the template of `output` is invalid, or the library for it is not installed.
    """
    kind, _, template = output.partition("=")
    if kind == "custom-columns":
        columns = [_column(each) for each in template.split(",")]
        names = [name for name, _ in columns]
        return lambda _, rows: Table(names, [[cell(row) for _, cell in columns] for row in rows])
    part = _compile(template)

    def format_document(document: dict[str, Any], _: object) -> str:
        text = part(document)
        return text if not text or text.endswith("\n") else f"{text}\n"

    return format_document


def _column(text: str) -> tuple[str, Part]:
    name, colon, path = text.partition(":")
    path = path.removeprefix("{").removesuffix("}")
    if not (name and colon and path):
        raise ValueError(f"{text!r} is not a column; write NAME:PATH, such as ADDRESS:.address")
    # As in kubectl, the first dot of a path can be left out, and commas separate several values.
    return name, _values(path if path.startswith((".", "[", "$", "@")) else f".{path}", ",")


def _compile(template: str) -> Part:
    """Return a function that formats a document by a template of text, paths and ranges."""
    tokens = list(_TOKEN.finditer(template))
    length = sum(len(token[0]) for token in tokens)
    if length != len(template):
        raise ValueError(f"{template!r} has a brace without its counterpart; write {{PATH}}")
    return _sequence(tokens[::-1], is_range=False)


def _sequence(tokens: list[re.Match[str]], *, is_range: bool) -> Part:
    """Return the parts up to the end of the range or of the template; `tokens` are in reverse order."""
    parts: list[Part] = []
    while tokens:
        token = tokens.pop()
        text = token[0] if token[1] is None else token[1].strip()
        if token[1] is None:
            parts.append(_literal(text))
        elif text.startswith(("'", '"')):
            parts.append(
                _literal(re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1]))
            )
        elif text == "end":
            if not is_range:
                raise ValueError("{end} has no {range}")
            return _joined(parts)
        elif text.startswith("range "):
            parts.append(_range(_finder(text.removeprefix("range ").strip()), tokens))
        else:
            parts.append(_values(text))
    if is_range:
        raise ValueError("{range} has no {end}")
    return _joined(parts)


def _literal(text: str) -> Part:
    return lambda _: text


def _joined(parts: Sequence[Part]) -> Part:
    return lambda value: "".join(part(value) for part in parts)


def _range(find: Callable[[Any], list[Any]], tokens: list[re.Match[str]]) -> Part:
    inner = _sequence(tokens, is_range=True)
    return lambda value: "".join(map(inner, find(value)))


def _values(path: str, separator: str = " ") -> Part:
    find = _finder(path)
    return lambda value: separator.join(map(_as_text, find(value)))


def _finder(path: str) -> Callable[[Any], list[Any]]:
    """Return a function that finds the values at a path, which starts with `.`, `[`, `$` or `@`."""
    try:
        from jsonpath_ng.exceptions import JSONPathError
        from jsonpath_ng.ext import parse  # pyright: ignore[reportPrivateImportUsage]
    except ImportError:
        raise ValueError("it requires jsonpath-ng: pip install 'aioresolve[cli]'") from None
    rest = path[1:] if path.startswith(("$", "@")) else path
    if not path or (rest and not rest.startswith((".", "["))):
        raise ValueError(f"{path!r} is not a path; write one such as .jobs.worker[0].address")
    try:
        expression = parse(f"${_ESCAPED_FIELD.sub(_quoted_field, rest)}" if rest != "." else "$")
    except JSONPathError as error:
        raise ValueError(f"{path!r} is not a path: {' '.join(str(error).split())}") from None
    return lambda value: [match.value for match in expression.find(value)]


def _quoted_field(match: re.Match[str]) -> str:
    r"""Return a field without kubectl's `\.`, in the quotes that it then needs; other texts unchanged."""
    if match[1]:
        return f"[{match[1].replace(_DOT, '.')}]"
    return f".'{match[2].replace(_DOT, '.')}'" if match[2] else match[0]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
