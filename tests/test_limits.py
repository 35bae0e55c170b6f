"""`docs/limits.md` states the limits that a user can meet with their values."""

import ast
import re
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).parent.parent

UNITS = {"": 1, "s": 1, "ms": 0.001, "KiB": 1 << 10, "MiB": 1 << 20}


def number_in(constant: str) -> float | None:
    """Return the value of a constant of a module or class, without importing it; None if it has no such."""
    module, _, name = constant.rpartition(".")
    owner = ROOT / "aioresolve" / module.replace(".", "/")
    in_class = owner.name[0].isupper()
    path = owner.parent if in_class else owner
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    body = ast.parse(file.read_text()).body
    if in_class:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner.name)
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == name:
                value = eval(compile(ast.Expression(node.value), file, "eval"), {"timedelta": timedelta})
                return value.total_seconds() if isinstance(value, timedelta) else float(value)
    return None


def test_limits_have_the_stated_values() -> None:
    rows = re.findall(r"^\| .+ \| (\S.*) \| `(\S+)` \|$", (ROOT / "docs/limits.md").read_text(), re.MULTILINE)
    stated = {}
    for value, constant in rows:
        number, _, unit = value.partition(" ")
        stated[constant] = float(number.replace(",", "")) * UNITS[unit]
    assert len(stated) > 100
    assert stated == {constant: number_in(constant) for constant in stated}
