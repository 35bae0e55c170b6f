"""The house itself: imports run downward, each library has one room, public names are whole."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import aioresolve
from aioresolve import errors

ROOT = Path(aioresolve.__file__).parent
FILES = sorted(file for file in ROOT.rglob("*.py") if not file.name.endswith("_pb2.py"))

FLOORS = [
    {"_version", "errors"},
    {"telemetry"},
    {"arguments", "durations"},
    {"retry", "concurrency", "pooling", "spec", "wire"},
    {"http", "probe"},
    {"merging", "polling", "reachability", "stays"},
    {"waiting"},
    {"resolver"},
    {"static", "kubernetes", "gcp"},
    {"tpu"},
    {"fleet"},
    {"portal"},
    {"sharing"},
    {"sync"},
    {"testing"},
    {"cli"},
    {"__main__"},
]
"""Rooms from the ground up: a room imports only from floors below its own, or from inside itself."""

ROOMS_OF = {
    "aiohttp": {"http", "testing"},
    "click": {"cli"},
    "cryptography": {"testing"},
    "google": {"gcp", "probe", "spec", "wire"},
    "grpc": {"probe/channels.py", "testing"},
    "kubernetes": {"kubernetes/clients.py"},
    "kubernetes_asyncio": set[str](),
    "msgspec": {"cli", "gcp/messages.py", "kubernetes/messages.py"},
    "opentelemetry": {"telemetry/otel.py"},
    "rich": {"cli"},
    "tenacity": {"retry.py"},
    "tensorflow": {"tpu/tensorflow.py"},
    "trustme": {"testing"},
    "urllib3": {"kubernetes/clients.py"},
}
"""Where each third-party library may be imported; anyio and yaml are everywhere's."""


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def imported(file: Path) -> set[str]:
    """Return the dotted names that `file` imports, anywhere in it."""
    package = (
        module_name(file).split(".") if file.name == "__init__.py" else module_name(file).split(".")[:-1]
    )
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            whole = {f"{start}.{alias.name}" for alias in node.names}
            names.update(name if name in MODULES else start for name in whole)
    return names


IMPORTS = {
    name: {found for found in imported(file) if found in MODULES} - {name} for name, file in MODULES.items()
}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_room_stands_on_a_floor() -> None:
    assert {room(module) for module in MODULES} - {""} == set().union(*FLOORS)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"aioresolve"}))
def test_imports_run_downward(module: str) -> None:
    floor = next(level for level, rooms in enumerate(FLOORS) if room(module) in rooms)
    below = set().union(*FLOORS[:floor]) | {room(module), ""}
    assert {room(found) for found in IMPORTS[module]} <= below


def test_there_are_no_circles() -> None:
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for found in sorted(IMPORTS[module]):
                visit(found, [*path, module])
            done.add(module)

    for module in sorted(set(IMPORTS) - {"aioresolve"}):
        visit(module, [])


@pytest.mark.parametrize("library", sorted(ROOMS_OF))
def test_each_library_lives_in_its_room(library: str) -> None:
    at = {
        file.relative_to(ROOT).as_posix()
        for file in FILES
        if any(name == library or name.startswith(f"{library}.") for name in imported(file))
    }
    assert {
        path for path in at if path not in ROOMS_OF[library] and path.split("/")[0] not in ROOMS_OF[library]
    } == set()


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages in memory after `statement`, in a fresh interpreter."""
    script = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_aioresolve_loads_no_third_party_library() -> None:
    assert not loaded_by("import aioresolve, aioresolve.errors") & {
        "aiohttp",
        "anyio",
        "google",
        "grpc",
        "msgspec",
        "tenacity",
        "yaml",
        "click",
        "rich",
        "asyncio",
    }


def test_resolving_kubernetes_loads_no_kubernetes_client() -> None:
    assert not loaded_by("import aioresolve.kubernetes") & {
        "kubernetes_asyncio",
        "kubernetes",
        "google",
        "grpc",
        "yaml",
        "click",
        "rich",
    }


def test_tpu_workers_whose_addresses_are_given_cost_no_library() -> None:
    script = "import asyncio; from aioresolve import TPUClusterResolver; "
    script += "asyncio.run(TPUClusterResolver('grpc://a').cluster_spec())"
    assert not loaded_by(script) & {"aiohttp", "grpc", "kubernetes_asyncio", "tensorflow", "yaml"}


def test_no_file_is_two_rooms() -> None:
    assert {file.name: length for file in FILES if (length := file.read_text().count("\n")) > 420} == {}


def test_every_public_name_loads_and_is_documented() -> None:
    for name in aioresolve.__all__:
        value = getattr(aioresolve, name)
        if name != "__version__":
            assert inspect.getdoc(value), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'TPU'"):
        _ = aioresolve.TPU


def test_dir_shows_the_public_names_before_they_are_loaded() -> None:
    assert set(aioresolve.__all__) <= set(dir(aioresolve))


ALL_MODULES = [found.name for found in pkgutil.walk_packages([str(ROOT)], "aioresolve.")]
PUBLIC_MODULES = [
    "aioresolve",
    "aioresolve.errors",
    "aioresolve.fleet",
    "aioresolve.kubernetes",
    "aioresolve.probe",
    "aioresolve.resolver",
    "aioresolve.retry",
    "aioresolve.spec",
    "aioresolve.static",
    "aioresolve.sync",
    "aioresolve.testing",
    "aioresolve.tpu",
]


@pytest.mark.parametrize("name", [name for name in ALL_MODULES if not name.endswith(("_pb2", "__main__"))])
def test_every_module_says_what_it_is_for_and_exports_what_it_names(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for exported in getattr(module, "__all__", ()):
        assert hasattr(module, exported)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_class_function_and_method_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    for public in module.__all__:
        value = getattr(module, public)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        assert inspect.getdoc(value), public
        for member in dir(value) if inspect.isclass(value) else ():
            attribute = getattr(value, member)
            if not member.startswith("_") and (
                inspect.isfunction(attribute) or isinstance(attribute, property)
            ):
                assert inspect.getdoc(attribute), f"{public}.{member}"


ERRORS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_the_one_root_and_survives_pickling(error: type[errors.ResolveError]) -> None:
    assert issubclass(error, errors.ResolveError)
    made = error("what and where and the mend")
    made.retryable = True
    copy = pickle.loads(pickle.dumps(made))
    assert (type(copy), str(copy), vars(copy)) == (error, str(made), vars(made))


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__
    for error in ERRORS:
        assert error.__name__ in errors.__doc__
