"""`${NAME}` in a text, replaced by what the environment says. Pure; no error shows a variable's value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["interpolated", "variables"]

_DOLLAR = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\})?")


def interpolated(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` with each `${NAME}` replaced by the variable, and each `$$` by a dollar.

    `${NAME:-default}` is the default where the variable is not set or empty, as in a POSIX shell and in
    Docker Compose files. The default is plain text. What a variable holds is not looked into again.

    Raises:
        ValueError: a variable without a default is not set, or a `$` begins none of these.
    """

    def replacement(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name, default = found["name"], found["default"]
        if name is None:
            raise ValueError(
                "holds a $ that begins neither ${NAME} nor ${NAME:-default}; write $$ for a dollar"
            )
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(f"${name} is not set; set it, or give a default: ${{{name}:-default}}")
        return environ[name]

    return _DOLLAR.sub(replacement, text)


def variables(text: str) -> tuple[str, ...]:
    """Return the names of the variables that `text` refers to, each once."""
    return tuple(dict.fromkeys(found["name"] for found in _DOLLAR.finditer(text) if found["name"]))
