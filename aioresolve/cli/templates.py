"""`-o jsonpath=TEMPLATE` and `-o custom-columns=SPEC`, in the syntax of kubectl."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from .formats import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Part = Callable[[Any], str]

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
    tokens = list(_TOKEN.finditer(template))
    if sum(len(token[0]) for token in tokens) != len(template):
        raise ValueError(f"{template!r} has a brace without its counterpart; write {{PATH}}")
    part = _sequence(tokens[::-1], is_range=False)

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
