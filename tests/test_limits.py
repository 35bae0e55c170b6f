"""`docs/limits.md` states the limits that a user can meet with their values."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

UNITS = {"": 1, "s": 1, "ms": 0.001, "KiB": 1 << 10, "MiB": 1 << 20}


def number_in(constant: str) -> float | None:
    """Return the value of a constant of a module; None if it has no such number. No module is imported."""
    module, _, name = constant.rpartition(".")
    path = ROOT / "aioresolve" / module.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return float(eval(compile(ast.Expression(node.value), file, "eval")))
    return None


def test_limits_have_the_stated_values() -> None:
    rows = re.findall(r"^\| .+ \| (\S.*) \| `(\S+)` \|$", (ROOT / "docs/limits.md").read_text(), re.MULTILINE)
    stated = {}
    for value, constant in rows:
        number, _, unit = value.partition(" ")
        stated[constant] = float(number.replace(",", "")) * UNITS[unit]
    assert len(stated) > 50
    assert stated == {constant: number_in(constant) for constant in stated}
