"""The sampling of mutants: valid source, one change each."""

from pathlib import Path

from .mutants import ROOT, TEST_FOLDERS, WHOLE_PACKAGE_TESTS, modules, mutants_of

SOURCE = '''\
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
        (14, "if (not (value < 2 and text)):"),
        (14, "if (value < 2 or text):"),
        (14, "if (value <= 2) and text:"),
        (14, "if value < 3 and text:"),
        (15, "return None  # ü"),
        (16, "pass"),
        (23, "return True"),
    ]


def test_every_module_has_tests() -> None:
    packages = {Path(path).parts[1].removesuffix(".py") for path in modules([])}
    names = {name for package in packages for name in TEST_FOLDERS.get(package, (package,))}
    assert not [name for name in {*names, *WHOLE_PACKAGE_TESTS} if not (ROOT / "tests" / name).exists()]
