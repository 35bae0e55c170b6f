"""Measures how many small changes of the package the tests notice (mutation testing by sampling).

    python tests/mutation/mutants.py [--number 20] [--seed 0] [--all] [MODULE ...]

draws mutants at random: copies of the package in which one node of the syntax tree of one module differs,
such as `<` for `<=`, or a statement that is removed. Each runs, in a scratch copy of the project, the quick
tests of the changed subpackage, and those of properties that hold everywhere; with `--all`, a mutant that
these do not notice also runs the slow and the real ones. A mutant is noticed if a test fails that succeeds
without it. The difference of each mutant that no test noticed is printed: it shows missing tests, or code
that makes no difference. Types, docstrings, log records and assertions are not changed.

The same seed, number and modules draw the same mutants from the same source.
"""

import argparse
import ast
import copy
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = "aioresolve"
TEST_FOLDERS = {
    "_core": ("core", "kubernetes", "fleet", "gcp/test_requests.py"),
    "cli": ("cli", "rendezvous/test_terminal.py"),
    "environment": ("environment", "contract", "sync"),
    "errors": ("test_public_api.py", "core", "gcp", "kubernetes"),
    "gcp": ("gcp", "tpu", "environment"),
    "kubernetes": ("kubernetes", "sync"),
    "probe": ("probe", "tpu", "resolver", "sync", "kubernetes/test_accelerators.py"),
    "resolver": (
        *("resolver", "contract", "sync", "kubernetes", "environment/test_launchers.py"),
        *("tensorflow/test_classes.py", "tensorflow/test_static_against_tensorflow.py"),
    ),
    "sources": ("resolver", "contract", "fleet", "sync"),
    "torch": ("rendezvous",),
    "spec": ("spec", "resolver", "launch", "kubernetes"),
    "sync": ("sync", "contract", "environment"),
    "tensorflow": ("tensorflow", "contract"),
    "tpu": ("tpu", "contract", "sync", "tensorflow/test_tpu_page.py"),
}
"""Subpackage: the folders and files with its tests, if it is not only the folder of the same name.

`sync` compares the signatures of the blocking calls with those of the async ones.
"""

WHOLE_PACKAGE_TESTS = (
    "test_limits.py",
    "test_public_api.py",
    "test_no_secrets.py",
    "test_process_end.py",
    "core/test_request_rates.py",
    "resolver/test_staleness.py",
)
"""Tests of properties that hold everywhere, such as: no message has a secret."""

QUICK = "not (real or slow or uvloop)"
REST = "(real or slow) and not uvloop"

SKIPPED_FILES = re.compile(r"_pb2\.py|__init__\.py|__main__\.py|/testing/|_version\.py")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".ci-venv", ".nox", ".hypothesis", ".*_cache", "__pycache__", "results", "dist"
)

SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "keywords", "type_params"}
"""Parts of the syntax tree that types and declarations use; `keywords` of classes only."""

TEST_TIMEOUT = 120
"""Seconds after which one test has failed."""

RUN_TIMEOUT = 1800
"""Seconds after which a run of tests is stopped."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module: its path in the project, the line of the change, and its source before and after."""

    path: str
    line: int
    before: str
    after: str


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of one module, in the order of the source."""
    encoded = source.encode()
    starts = [0, *accumulate(map(len, encoded.splitlines(keepends=True)))]
    for node, changed in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        text = ast.unparse(changed)
        if isinstance(changed, ast.Compare | ast.BoolOp | ast.BinOp | ast.UnaryOp):
            text = f"({text})"
        after = (encoded[:begin] + text.encode() + encoded[end:]).decode()
        yield Mutant(path, node.lineno, source, after)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield each changeable node below `node`, with its replacement."""
    if _is_skipped(node):
        return
    if isinstance(node, ast.expr | ast.stmt):
        for changed in _replacements(node):
            yield node, changed
    for name, value in ast.iter_fields(node):
        if name in SKIPPED_FIELDS and not (name == "keywords" and isinstance(node, ast.Call)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if name == "test" or (name == "ifs" and isinstance(child, ast.expr)):
                yield child, ast.UnaryOp(ast.Not(), child)
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _is_skipped(node: ast.AST) -> bool:
    """Return whether changes below `node` make no difference that a test could notice."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True  # f-strings: before Python 3.12 their parts have no exact position
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.FunctionDef(name="__repr__"):
            return True
        case ast.Expr(ast.Constant()) | ast.Expr(ast.Call(ast.Attribute(ast.Name("logger")))):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():  # an overload, or a method of a protocol
            return all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in node.body)
        case ast.Call(ast.Name("TypeVar")) | ast.AnnAssign(annotation=ast.Name("TypeAlias")):
            return True
        case ast.keyword("strict", ast.Constant()):  # of zip(): an assertion
            return True
        case ast.Delete(targets=[ast.Name()]):  # frees memory
            return True
    return False


def _replacements(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    """Yield what `node` can be replaced with."""
    match node:
        case ast.Compare():
            for position, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[position] = COMPARISONS[type(operator)]()
                yield changed
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        case ast.UnaryOp(ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Return(value=ast.Constant(None | False)):
            pass  # callers test both in the same way
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


class Scratch:
    """A copy of the project, in which mutants are tested.

    Args:
        folder: an empty folder for it.
        runs_all: whether a mutant that the quick tests do not notice runs the others too.
    """

    def __init__(self, folder: Path, *, runs_all: bool) -> None:
        self._copy = folder / "project"
        self._phases = [QUICK, REST] if runs_all else [QUICK]
        shutil.copytree(ROOT, self._copy, ignore=NOT_COPIED)

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """Run the tests of the module with the mutant in place.

        Returns `noticed` and the test, `survived`, or `unclear` and why the outcome does not count.
        """
        file = self._copy / mutant.path
        try:
            file.write_text(mutant.after)
            for markers in self._phases:
                code, failed = self._run("-m", markers, *self._tests(mutant.path))
                if code not in (0, 5):
                    break
            else:
                return "survived", ""
        finally:
            file.write_text(mutant.before)
        if code is None:  # a single test that hangs fails by its own timeout
            return "unclear", f"the tests took more than {RUN_TIMEOUT} s"
        if failed is None:  # pytest itself has failed
            return "unclear", f"pytest exits with {code}, and names no test"
        if self._run("-m", "", failed)[0] != 0:
            return "unclear", f"fails without the mutant too: {failed}"
        return "noticed", failed

    def _tests(self, path: str) -> list[str]:
        """Return the test files of a module; those that name it are first, because they fail sooner."""
        package, stem = Path(path).parts[1].removesuffix(".py"), Path(path).stem
        names = (*TEST_FOLDERS.get(package, (package,)), *WHOLE_PACKAGE_TESTS)
        paths = [self._copy / "tests" / name for name in names]
        found = [file for path in paths for file in (sorted(path.rglob("test_*.py")) or [path])]
        unique = dict.fromkeys(found)
        files = sorted(unique, key=lambda file: re.search(rf"\b{stem}\b", file.read_text()) is None)
        return [str(file.relative_to(self._copy)) for file in files]

    def _run(self, *arguments: str) -> tuple[int | None, str | None]:
        """Return pytest's exit code, None if it did not end; and the test that failed, if any."""
        options = ["-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT}"]
        environ = {**os.environ, "PYTHONPATH": str(self._copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *arguments],
                cwd=self._copy,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=RUN_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return None, None
        # A file that cannot be imported has no name of a test.
        failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?|\S+\.py)(?: - .*)?$", done.stdout, re.MULTILINE)
        return done.returncode, None if failed is None else failed[1]


def modules(names: Sequence[str]) -> list[str]:
    """Return the paths of the modules to change, relative to the project: these files and folders, or all."""
    chosen = [ROOT / name for name in names] or [ROOT / PACKAGE]
    files = [file for path in chosen for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    return [path for path in paths if not SKIPPED_FILES.search(path)]


def main() -> int:
    """Test the mutants that the options describe, and print the result of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("modules", nargs="*", help="files or folders of the package (default: all of it)")
    parser.add_argument("--number", type=int, default=20, help="the number of mutants (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn (default: 0)")
    parser.add_argument("--all", action="store_true", help="run the slow and the real tests too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the tests and removes the copy
    found = [one for path in modules(options.modules) for one in mutants_of(path, (ROOT / path).read_text())]
    sample = random.Random(options.seed).sample(found, min(options.number, len(found)))
    print(f"{len(sample)} of {len(found)} mutants, seed {options.seed}", flush=True)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(Path(folder), runs_all=options.all)
        for mutant in sample:
            started_at = time.monotonic()
            outcome, reason = scratch.judge(mutant)
            counts[outcome] += 1
            seconds = time.monotonic() - started_at
            print(f"{outcome} ({seconds:.0f} s) {mutant.path}:{mutant.line} {reason}", flush=True)
            if outcome == "survived":
                lines = mutant.before.splitlines(keepends=True), mutant.after.splitlines(keepends=True)
                print("".join(difflib.unified_diff(*lines, mutant.path, mutant.path, n=2)), flush=True)
    print(f"of {counts['noticed'] + counts['survived']} mutants, {counts['noticed']} were noticed", end="")
    print(f"; {counts['unclear']} are unclear")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
