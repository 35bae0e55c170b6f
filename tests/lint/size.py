"""Prints the size of the project beside its budgets, and fails if one is exceeded.

    python tests/lint/size.py

What exceeds a budget has to be paid for by removing something else.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


BUDGETS = {
    "lines of aioresolve/": 37_500,
    "lines of aioresolve/testing/": 5_000,
    "files of aioresolve/": 150,
    "lines of tests/": 39_000,
    "cases of tests/": 7_000,
    "imports of private modules in tests/": 100,
}


def python_files(folder: str) -> list[Path]:
    """Return the Python files of a folder, without generated ones."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.stem.endswith("_pb2")]


def lines(files: list[Path]) -> int:
    """Return how many lines the files have."""
    return sum(len(path.read_text().splitlines()) for path in files)


def cases() -> int:
    """Return how many cases pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return sum(int(count) for count in re.findall(r"^\S+: (\d+)$", done.stdout, re.MULTILINE))


def private_imports(file: Path) -> int:
    """Return how many statements of the file import a private module or name of aioresolve."""
    count = 0
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names if alias.name[0] == "_")]
            case _:
                continue
        count += any(is_private(name) for name in names)
    return count


def is_private(name: str) -> bool:
    """Return whether a module is below a package of aioresolve, or a name has an underscore."""
    package, *parts = name.split(".")
    is_hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return package == "aioresolve" and (len(parts) > 1 or is_hidden)


def main() -> int:
    """Print the table; return 1 if a budget is exceeded."""
    package, tests = python_files("aioresolve"), python_files("tests")
    sizes = {
        "lines of aioresolve/": lines(package),
        "lines of aioresolve/testing/": lines(python_files("aioresolve/testing")),
        "files of aioresolve/": len(package),
        "lines of tests/": lines(tests),
        "cases of tests/": cases(),
        "imports of private modules in tests/": sum(map(private_imports, tests)),
    }
    print(f"{'':<38}{'now':>9}{'budget':>9}")
    for name, budget in BUDGETS.items():
        print(f"{name:<38}{sizes[name]:>9,}{budget:>9,}{'  too many' if sizes[name] > budget else ''}")
    return int(any(sizes[name] > budget for name, budget in BUDGETS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
