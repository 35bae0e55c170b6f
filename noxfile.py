"""The tasks of a developer: `nox --list` shows them, `nox -s lint` runs one (see CONTRIBUTING.md).

Every session except `lowest`, `newest` and `protos` runs in the environment in which nox itself is installed,
so that it starts at once and checks the packages that the developer uses (`pip install -e '.[dev,test]'`).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
BIN = Path(sys.executable).parent

nox.options.sessions = ["lint", "quick"]
nox.options.default_venv_backend = "none"

PYTEST_OPTIONS = ("-q", "-n", "2", "--dist", "worksteal")

# Code made by protoc 5.26 and later refuses a protobuf runtime that is older than itself or more than one
# major version newer. protoc 4.25, which grpcio-tools 1.62 carries, generates no such check and uses nothing
# that protobuf 4.25, 5, 6 or 7 lacks, so that users keep the protobuf that their TensorFlow requires.
# setuptools: grpcio-tools 1.62 imports pkg_resources, about which setuptools 81 warns.
PROTOC = ("grpcio-tools==1.62.3", "setuptools<81")

# protoc writes a bare `Mapping` into its stubs, which `mypy --strict` rejects.
STUB_HEADER = "# mypy: disable-error-code=type-arg"


def _run(session: nox.Session, tool: str, *arguments: str) -> None:
    session.run(str(BIN / tool), *arguments)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format, types, import contracts, vocabulary and size, and build the documentation site."""
    _run(session, "ruff", "check", ".")
    _run(session, "ruff", "format", "--check", ".")
    _run(session, "lint-imports")
    _run(session, "python", "tests/lint/retired_words.py")
    _run(session, "mypy")
    # The code after `if sys.platform == "win32": raise ...` is unreachable there.
    windows = ("--platform", "win32", "--no-warn-unreachable", "--cache-dir", ".mypy_cache/win32")
    _run(session, "mypy", *windows, "aioresolve")
    _run(session, "pyright", "--pythonpath", sys.executable)
    size(session)
    docs(session)


@nox.session
def size(session: nox.Session) -> None:
    """Print the size of the project; more than a budget of tests/lint/size.py permits is an error."""
    _run(session, "python", "tests/lint/size.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into site/; a broken link or a missing page is an error."""
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    _run(session, "mkdocs", "build", "--strict", "--quiet")


@nox.session
def quick(session: nox.Session) -> None:
    """Run the quick tests: every package, on asyncio, without real programs."""
    _pytest(session)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests; arguments after `--` go to pytest."""
    _pytest(session, "--asyncio-debug", "-m", "")


@nox.session
def rest(session: nox.Session) -> None:
    """Run the other tests: those with real programs, slow ones, and the repetitions on uvloop."""
    _pytest(session, "--asyncio-debug", "-m", "real or slow or uvloop")


@nox.session(venv_backend="venv")
def lowest(session: nox.Session) -> None:
    """Run the quick tests with the lowest permitted version of every direct dependency.

    It runs them more strictly than README's test command: in the debug mode of asyncio, with more examples.
    """
    minimums = [match for line in _requirements() if (match := re.fullmatch(r"([\w-]+)>=([\w.]+)", line))]
    constraints = Path(session.create_tmp()) / "lowest.txt"
    constraints.write_text("".join(f"{minimum[1]}=={minimum[2]}\n" for minimum in minimums))
    session.install("--constraint", str(constraints), "--editable", ".[test]")
    pytest = ("python", "-m", "pytest", *PYTEST_OPTIONS, "--asyncio-debug")
    session.run(*pytest, *session.posargs, env={"HYPOTHESIS_PROFILE": "suite"})


@nox.session(venv_backend="venv")
def newest(session: nox.Session) -> None:
    """Run the quick tests with the newest version of every direct dependency, without TensorFlow and JAX."""
    session.install("--upgrade", "--upgrade-strategy", "eager", "--editable", ".[test]")
    session.run("python", "-m", "pytest", *PYTEST_OPTIONS, *session.posargs)


@nox.session
def outdated(session: nox.Session) -> None:
    """Run `newest` too if this environment lacks the newest version of a direct dependency.

    That is so if TensorFlow or JAX do not permit it, or if the environment is old.
    """
    names = [re.split("[^\\w-]", line, maxsplit=1)[0] for line in _requirements()]
    options = ("--dry-run", "--no-deps", "--upgrade", "--quiet", "--report", "-")
    python = (str(BIN / "python"), "-m", "pip", "--disable-pip-version-check")
    report = session.run(*python, "install", *options, *names, silent=True, stderr=None)
    newer = [item["metadata"] for item in json.loads(str(report))["install"]]
    for package in newer:
        session.warn(f"{package['name']} {package['version']} is newer than the version here.")
    if newer:
        session.notify("newest")


def _requirements() -> list[str]:
    """Return the requirements of the package and of the extras that its own code needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["cli"], *extras["otel"], *extras["testing"]]


def _pytest(session: nox.Session, *arguments: str) -> None:
    """Run tests in the environment in which nox is installed."""
    _run(session, "python", "-m", "pytest", *PYTEST_OPTIONS, *arguments, *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Compare the loopback API server with a real control plane, if one is configured (tests/conformance)."""
    _run(session, "python", "-m", "pytest", "-q", "-rs", "-m", "", "tests/conformance", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Measure how many small changes of the package the tests notice; arguments go to tests/mutation."""
    _run(session, "python", "tests/mutation/mutants.py", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run the quick form of every benchmark (`pip install -e '.[benchmark,dev,test]'`)."""
    for name in ("kubernetes", "probe", "watch", "fleet", "rendezvous"):
        _run(session, "python", f"benchmarks/{name}.py", "--quick")
    _run(session, "python", "benchmarks/cold_start.py")


@nox.session(venv_backend="venv")
def protos(session: nox.Session) -> None:
    """Compile every `.proto` file of the package to `*_pb2.py` and `*_pb2.pyi`, in place.

    Needs Python 3.11 or 3.12, because grpcio-tools 1.62 has no wheels for later versions.
    """
    session.install(*PROTOC)
    sources = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("aioresolve/**/*.proto"))]
    outputs = ["--proto_path=.", "--python_out=.", "--pyi_out=."]
    session.run("python", "-m", "grpc_tools.protoc", *outputs, *sources)
    for source in sources:
        stub = ROOT / source.replace(".proto", "_pb2.pyi")
        stub.write_text(f"{STUB_HEADER}\n{stub.read_text()}")
