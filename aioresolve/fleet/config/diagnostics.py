"""What is wrong with a file: collected while it is read, told all at once, in order of lines. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Place", "Problems", "quoted"]

MOST_TOLD = 20
"""So many problems are told of one file; the others are counted."""

LONGEST_QUOTE = 60
"""So many characters of a text are quoted."""

_PLAIN_NAME = re.compile(r"[\w-]{1,60}")


def quoted(text: str) -> str:
    """Return `text` in quotes, on one line, with everything escaped that a terminal would act upon."""
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}...")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something is written.

    Attributes:
        line: the line, the first being 1.
        path: the names that lead there: `targets.us-east.kubernetes.kubeconfig[1]`; empty for the whole file.
    """

    line: int
    path: str = ""

    def below(self, name: str, line: int) -> Self:
        """Return the place of the entry `name` in the mapping at this place."""
        step = name if _PLAIN_NAME.fullmatch(name) else quoted(name)
        return type(self)(line, f"{self.path}.{step}" if self.path else step)

    def item(self, number: int, line: int) -> Self:
        """Return the place of an item in the list at this place."""
        return type(self)(line, f"{self.path}[{number}]")


class Problems:
    """The problems found in one file; of several at one place, the first one found."""

    def __init__(self) -> None:
        self._found: dict[Place, str] = {}

    def add(self, place: Place, message: str) -> None:
        self._found.setdefault(place, message)

    def __bool__(self) -> bool:
        return bool(self._found)

    def error(self, source: str) -> ConfigurationError:
        """Return the error that tells them: a line each, `FILE:LINE: PATH: MESSAGE`."""
        lines = [
            f"{source}:{place.line}: {place.path}: {message}"
            if place.path
            else f"{source}:{place.line}: {message}"
            for place, message in sorted(self._found.items())
        ]
        if len(lines) > MOST_TOLD:
            lines[MOST_TOLD:] = [f"{source}: and {len(lines) - MOST_TOLD} more such problems"]
        return ConfigurationError("\n".join(lines))
