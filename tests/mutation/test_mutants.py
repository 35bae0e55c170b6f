"""The sampling of mutants: valid source, one change each."""

from __future__ import annotations

import ast
import random
from pathlib import Path

from .mutants import ROOT, TEST_FOLDERS, WHOLE_PACKAGE_TESTS, modules, mutants_of

SOURCE = '''\
"""A docstring."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1

T = TypeVar("T", covariant=True)
Number: TypeAlias = int | float


@overload
def first(values: list[int], limit: int = 9) -> int: ...

def first(values: list[int] = [], text: str = "ü") -> int | None:
    """A docstring."""
    for value in values:
        if value < 2 and text:
            return value  # ü
    print(f"{text!r:>{3}}")
    for pair in zip(values, text, strict=True):
        del pair
    return None


def is_small(value: int) -> bool:
    return False
'''


def test_each_mutant_changes_one_node() -> None:
    changes = []
    for mutant in mutants_of("module.py", SOURCE):
        before, after = SOURCE.splitlines(), mutant.after.splitlines()
        [changed] = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        changes.append((mutant.line, changed[1].strip()))
    assert changes == [
        (19, "if (not (value < 2 and text)):"),
        (19, "if (value < 2 or text):"),
        (19, "if (value <= 2) and text:"),
        (19, "if value < 3 and text:"),
        (20, "return None  # ü"),
        (21, "pass"),
        (28, "return True"),
    ]


def test_each_mutant_of_a_module_is_valid_and_different() -> None:
    path = "aioresolve/kubernetes/reflector.py"
    source = (ROOT / path).read_text()
    for mutant in random.Random(0).sample(list(mutants_of(path, source)), 20):
        assert ast.dump(ast.parse(mutant.after)) != ast.dump(ast.parse(source))


def test_every_module_is_changed_but_generated_and_public_ones() -> None:
    found = modules([])
    assert {"aioresolve/resolver/wait.py", "aioresolve/launch.py"} <= set(found)
    assert not [path for path in found if path.endswith(("_pb2.py", "__init__.py"))]


def test_every_module_has_tests() -> None:
    packages = {Path(path).parts[1].removesuffix(".py") for path in modules([])}
    names = {name for package in packages for name in TEST_FOLDERS.get(package, (package,))}
    assert not [name for name in {*names, *WHOLE_PACKAGE_TESTS} if not (ROOT / "tests" / name).exists()]
