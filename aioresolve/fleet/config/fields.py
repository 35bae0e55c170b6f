"""Parts of a fleet file by type: each reader takes what is written and returns what it means. Pure."""

from __future__ import annotations

import difflib
import os.path
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioresolve._core.validation import seconds

from .diagnostics import quoted
from .yaml_tree import Entries, Items, Text, Tree

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "FieldError",
    "Reader",
    "addresses",
    "choice",
    "closest",
    "duration",
    "entries",
    "kind_of",
    "paths",
    "selectors",
    "shown_text",
    "text",
    "text_or_texts",
    "texts",
    "whole",
]

Reader = Callable[[Tree, str], Any]
"""What is written, and the folder that relative paths start from -> what it means, or a FieldError."""

MOST_COMPARED = 200
"""So many names are compared with one that is not known: each comparison takes microseconds."""

MOST_LISTED = 15
"""So many names are listed in a message."""

_WHOLE = re.compile("[0-9]{1,9}")


class FieldError(Exception):
    """A part of the file is not what it has to be.

    Attributes:
        tree: that part.
    """

    def __init__(self, tree: Tree, message: str) -> None:
        super().__init__(message)
        self.tree = tree


def text(tree: Tree, folder: str = "") -> str:
    """Return a text of at least one character, all of which print."""
    if not isinstance(tree, Text):
        raise FieldError(tree, f"must be a text, not {kind_of(tree)}")
    if tree.is_null or not tree.value.strip():
        raise FieldError(tree, f"{shown_text(tree)} is empty; write a value, or leave it out")
    if not tree.value.isprintable():
        raise FieldError(
            tree, f"{shown_text(tree)} holds a line break or another character that does not print"
        )
    return tree.value


def texts(tree: Tree, folder: str = "") -> tuple[str, ...]:
    """Return the texts of a list of at least one; a single text is a list of one."""
    if isinstance(tree, Text):
        return (text(tree),)
    if not isinstance(tree, Items):
        raise FieldError(tree, f"must be a text or a list of texts, not {kind_of(tree)}")
    if not tree.values:
        raise FieldError(tree, "is an empty list; write at least one text into it, or leave it out")
    return tuple(text(value) for value in tree.values)


def text_or_texts(tree: Tree, folder: str = "") -> str | tuple[str, ...]:
    """Return a text where one is written, and the texts of a list."""
    return text(tree) if isinstance(tree, Text) else texts(tree)


def paths(tree: Tree, folder: str) -> tuple[str, ...]:
    """Return one path or several; a relative one starts from `folder`, and `~/` is left as it is."""
    return tuple(path if path.startswith("~") else os.path.join(folder, path) for path in texts(tree))


def duration(tree: Tree, folder: str = "") -> float:
    """Return seconds: `30s`, `2m`, `1m30s`, `500ms`, or a number of seconds."""
    given = text(tree)
    try:
        return seconds(given)
    except ValueError:
        said = f"{shown_text(tree)} is no span of time; write one above zero, such as 30s, 2m, 500ms or 30"
    raise FieldError(tree, said)


def whole(lowest: int, highest: int) -> Reader:
    """Return a reader of whole numbers in this range."""

    def number(tree: Tree, folder: str = "") -> int:
        given = text(tree)
        if not _WHOLE.fullmatch(given) or not lowest <= int(given) <= highest:
            raise FieldError(
                tree, f"{shown_text(tree)} is no whole number from {lowest} to {highest}; write one"
            )
        return int(given)

    return number


def choice(*words: str) -> Reader:
    """Return a reader of one of these words."""

    def word(tree: Tree, folder: str = "") -> str:
        given = text(tree)
        if given not in words:
            raise FieldError(tree, f"{shown_text(tree)} is none of {', '.join(words)}; write one of these")
        return given

    return word


def selectors(tree: Tree, folder: str = "") -> dict[str, tuple[str, ...]]:
    """Return each job's label selectors."""
    jobs = entries(tree, "{worker: app=trainer}")
    return {job: texts(value) for job, value in jobs.values.items()}


def addresses(tree: Tree, folder: str = "") -> dict[str, tuple[str, ...] | dict[int, str]]:
    """Return each job's `host:port`, one after the other, or by task index."""
    jobs = entries(tree, '{worker: ["10.0.0.1:8470"]}')
    return {job: _tasks(value) for job, value in jobs.values.items()}


def entries(tree: Tree, example: str) -> Entries:
    """Return a mapping of at least one entry, such as `example`."""
    if not isinstance(tree, Entries):
        raise FieldError(tree, f"must be a mapping such as {example}, not {kind_of(tree)}")
    if not tree.values:
        raise FieldError(tree, f"is an empty mapping; write at least one entry, such as {example}")
    return tree


def closest(name: str, known: Collection[str]) -> str:
    """Return, for a message, which of `known` may be meant by `name`, or else which there are."""
    few = list(known)[:MOST_COMPARED]
    for near in difflib.get_close_matches(name[:100], few, 1):
        return f"did you mean {quoted(near)}?"
    listed = ", ".join(map(quoted, few[:MOST_LISTED]))
    return f"there are {listed}{', ...' * (len(known) > MOST_LISTED)}"


def kind_of(tree: Tree) -> str:
    """Return what is written, in words for a message."""
    if isinstance(tree, Text):
        return "nothing" if tree.is_null else f"the text {quoted(tree.written)}"
    return "a mapping" if isinstance(tree, Entries) else "a list"


def shown_text(tree: Tree) -> str:
    """Return the text that is written, in quotes, for a message on what it stands for."""
    if not isinstance(tree, Text) or not tree.written:
        return "it"
    return f"what {quoted(tree.written)} stands for" if tree.variables else quoted(tree.written)


def _tasks(tree: Tree) -> tuple[str, ...] | dict[int, str]:
    if not isinstance(tree, Entries):
        return texts(tree)
    tasks: dict[int, str] = {}
    for index, value in entries(tree, '{0: "10.0.0.1:8470"}').values.items():
        if not _WHOLE.fullmatch(index):
            raise FieldError(value, f"{quoted(index)} is no task index; write a whole number from 0 on")
        if int(index) in tasks:
            raise FieldError(value, f"task {int(index)} is given twice; keep one of the two")
        tasks[int(index)] = text(value)
    return tasks
