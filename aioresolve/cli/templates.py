"""`-o jsonpath=TEMPLATE` and `-o custom-columns=SPEC`, in kubectl's syntax."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Part = Callable[[Any], str]

_QUOTED = r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'"
_TOKEN = re.compile(rf"\{{((?:[^{{}}'\"]|{_QUOTED})*)\}}|([^{{}}]+)")
_DOT = "\\."
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED_FIELD = re.compile(rf"\[\s*({_QUOTED})\s*\]|(?:{_QUOTED})|\.([\w/-]*(?:\\\.[\w/-]*)+)")
"""A field in brackets, another quoted text, or a field whose dots are escaped, such as `nvidia\\.com/gpu`."""


class _Token(NamedTuple):
    text: str
    is_literal: bool


def validate_template(output: str) -> None:
    """Raise a ValueError if the template of `output` is invalid, or the library for it is not installed."""
    kind, _, template = output.partition("=")
    if kind == "jsonpath":
        _compile(template)
    else:
        _parse_columns(template)


def format_jsonpath(template: str, document: dict[str, Any]) -> str:
    """Return the text of `template` for `document`. Unless it is empty, it ends with a line feed."""
    text = _compile(template)(document)
    return text if not text or text.endswith("\n") else f"{text}\n"


def format_columns(spec: str, rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns of `spec`, and their cells for each of `rows`."""
    columns = _parse_columns(spec)
    return [name for name, _ in columns], [[cell(row) for _, cell in columns] for row in rows]


def _parse_columns(spec: str) -> list[tuple[str, Part]]:
    columns = []
    for column in spec.split(","):
        name, colon, path = column.partition(":")
        path = path.removeprefix("{").removesuffix("}")
        if not (name and colon and path):
            raise ValueError(f"{column!r} is not a column; write NAME:PATH, such as ADDRESS:.address")
        # As in kubectl, the first dot of a path can be left out, and commas separate several values.
        path = path if path.startswith((".", "[", "$", "@")) else f".{path}"
        columns.append((name, _values(path, ",")))
    return columns


def _compile(template: str) -> Part:
    """Return a function that formats a document by a template of text, paths and ranges."""
    tokens: list[_Token] = []
    end = 0
    for match in _TOKEN.finditer(template):
        if match.start() != end:
            break
        end = match.end()
        tokens.append(_Token(match[2], True) if match[1] is None else _Token(match[1].strip(), False))
    if end != len(template):
        raise ValueError(f"{template[end:]!r} has a brace without its counterpart; write {{PATH}}")
    tokens.reverse()
    parts = _parts(tokens, is_range=False)
    return lambda document: "".join(part(document) for part in parts)


def _parts(tokens: list[_Token], *, is_range: bool) -> list[Part]:
    """Return the parts up to the end of the range or of the template; `tokens` are in reverse order."""
    parts: list[Part] = []
    while tokens:
        text, is_literal = tokens.pop()
        if is_literal:
            parts.append(partial(_literal, text))
        elif text.startswith(("'", '"')):
            literal = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])
            parts.append(partial(_literal, literal))
        elif text == "end":
            if not is_range:
                raise ValueError("{end} has no {range}")
            return parts
        elif text.startswith("range "):
            find, inner = _finder(text.removeprefix("range ").strip()), _parts(tokens, is_range=True)
            parts.append(partial(_range, find, inner))
        else:
            parts.append(_values(text))
    if is_range:
        raise ValueError("{range} has no {end}")
    return parts


def _literal(text: str, _: Any) -> str:
    return text


def _range(find: Callable[[Any], list[Any]], parts: Sequence[Part], value: Any) -> str:
    return "".join(part(item) for item in find(value) for part in parts)


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
    if value is None:
        return ""
    return msgspec.json.encode(value).decode()
