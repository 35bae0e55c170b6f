"""What a YAML document says: texts, lists and mappings, each with the place where it is written. Pure values.

A scalar is its text as written, whatever YAML would take it for: a job named `no` is no boolean, and who
reads a field says what its text means. The text with variables replaced is kept beside it and in no repr, so
that messages show the one in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .interpolation import variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .problems import Place

__all__ = ["Entries", "Items", "Text", "Tree", "is_null"]


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar.

    Attributes:
        place: where it is written.
        written: its text as written.
        value: its text with variables replaced.
        is_null: whether nothing is written, or `null` or `~`.
        size: how many values it is.
    """

    place: Place
    written: str
    value: str = field(repr=False)
    is_null: bool = False
    size: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it refers to."""
        return variables(self.written)

    @property
    def as_written(self) -> Text:
        """The same without what the variables hold."""
        return Text(self.place, self.written, self.written, self.is_null)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    place: Place
    values: tuple[Tree, ...]
    size: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that its texts refer to."""
        return _distinct(self.values)

    @property
    def as_written(self) -> Items:
        """The same without what the variables hold."""
        return Items(self.place, tuple(value.as_written for value in self.values), self.size)


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping: names to values, and to the lines that the names stand on."""

    place: Place
    values: Mapping[str, Tree]
    lines: Mapping[str, int]
    size: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that its texts refer to."""
        return _distinct(self.values.values())

    @property
    def as_written(self) -> Entries:
        """The same without what the variables hold."""
        values = {name: value.as_written for name, value in self.values.items()}
        return Entries(self.place, values, self.lines, self.size)

    def place_of(self, name: str) -> Place:
        """Return the place where `name` is written as a name, or should be."""
        return self.place.below(name, self.lines.get(name, self.place.line))


Tree = Text | Items | Entries


def is_null(tree: Tree) -> bool:
    """Return whether nothing is written, or `null` or `~`."""
    return isinstance(tree, Text) and tree.is_null


def _distinct(values: Iterable[Tree]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for value in values for name in value.variables))
