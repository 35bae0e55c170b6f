"""Public names are documented and loaded on first use; importing the package loads no third-party library."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aioresolve

ROOT = Path(aioresolve.__file__).parent
DEFAULTS = Path(__file__).with_name("public_defaults.txt")


BY_ADDRESS = """
import asyncio
from aioresolve import TPUClusterResolver
asyncio.run(TPUClusterResolver('grpc://a').cluster_spec())
"""


@pytest.mark.parametrize(
    ("statement", "libraries"),
    [
        ("import aioresolve", "aiohttp anyio asyncio click google grpc msgspec rich yaml"),
        pytest.param(
            "import aioresolve.kubernetes",
            "click google grpc kubernetes kubernetes_asyncio rich yaml",
            marks=pytest.mark.slow,
        ),
        pytest.param(BY_ADDRESS, "aiohttp grpc kubernetes_asyncio tensorflow yaml", marks=pytest.mark.slow),
    ],
)
def test_third_party_libraries_are_loaded_when_they_are_needed(statement: str, libraries: str) -> None:
    script = f"{statement}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert set(loaded) & set(libraries.split()) == set()


def test_dir_shows_the_public_names_only() -> None:
    for name in ("aioresolve", "aioresolve.sync", "aioresolve.fleet"):
        module = importlib.import_module(name)
        assert dir(module) == sorted(module.__all__), name


def test_resolver_has_few_members_that_are_not_those_of_tensorflow() -> None:
    members = {name for name in dir(aioresolve.ClusterResolver) if not name.startswith("_")}
    tensorflow = {
        "cluster_spec",
        "environment",
        "master",
        "num_accelerators",
        "rpc_layer",
        "task_id",
        "task_type",
    }
    assert tensorflow < members
    assert len(members - tensorflow) <= 12


ALL_MODULES = [
    found.name
    for found in pkgutil.walk_packages([str(ROOT)], "aioresolve.")
    if found.name not in ("aioresolve.jax", "aioresolve.tensorflow", "aioresolve.torch.rendezvous")
]
"""Every module that can be imported without JAX, TensorFlow and PyTorch."""

PUBLIC_MODULES = [
    "aioresolve",
    "aioresolve.fleet",
    "aioresolve.kubernetes",
    "aioresolve.probe",
    "aioresolve.resolver",
    "aioresolve.spec",
    "aioresolve.sync",
    "aioresolve.sync.probe",
    "aioresolve.testing",
    "aioresolve.tpu",
]


def test_every_public_class_function_and_method_has_a_docstring() -> None:
    undocumented = []
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            getattr(module, "nothing")  # noqa: B009 - a type checker refuses `module.nothing`
        undocumented += [
            f"{name}.{path}" for path, value in public_objects(module) if not inspect.getdoc(value)
        ]
    assert undocumented == []


def public_objects(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions, and the public methods and properties of the classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        if inspect.isclass(value):
            yield from ((f"{name}.{each}", getattr(value, each)) for each in public_members(value))


def public_defaults() -> list[str]:
    """Return each public function and constructor with the defaults of its arguments.

    Those of the blocking calls are derived from the others.
    """
    lines: dict[object, str] = {}
    for name in PUBLIC_MODULES:
        if name.startswith("aioresolve.sync"):
            continue
        for path, function in public_objects(importlib.import_module(name)):
            if not callable(function) or function in lines or isinstance(function, EnumType):
                continue
            defaults = [
                f"{each.name}={each.default!r}"
                for each in inspect.signature(function).parameters.values()
                if isinstance(each.default, bool | int | float | str | tuple)
            ]
            lines[function] = " ".join([f"{name}.{path}", *defaults])
    return [line for line in lines.values() if " " in line]


def test_defaults_of_public_arguments_are_those_that_users_rely_on() -> None:
    # If a change is meant, describe it in CHANGELOG.md, and write the new defaults into the file.
    assert public_defaults() == DEFAULTS.read_text().splitlines()


def public_members(cls: type) -> Iterator[str]:
    """Yield the names of the public methods and properties."""
    for name in dir(cls):
        value = getattr(cls, name)
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield name


WITHOUT_GRPC = """
import asyncio, sys
sys.modules["grpc"] = None
import aioresolve
try:
    asyncio.run(aioresolve.TPUClusterResolver("grpc://127.0.0.1:1").num_accelerators())
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_call_that_needs_a_library_that_is_not_installed_names_its_package() -> None:
    command = [sys.executable, "-c", WITHOUT_GRPC]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingDependencyError ")
    assert "pip install grpcio`" in done.stdout


def test_pytorch_without_the_interface_of_a_rendezvous_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = ModuleType("torch")
    torch.__dict__["__version__"] = "1.0"
    monkeypatch.delitem(sys.modules, "aioresolve.torch.rendezvous", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    for module, problem in (
        (torch, r"does not support PyTorch 1\.0: "),
        (None, "needs PyTorch, which"),
    ):
        monkeypatch.setitem(sys.modules, "torch", module)
        with pytest.raises(aioresolve.errors.MissingDependencyError, match=problem):
            importlib.import_module("aioresolve.torch.rendezvous")
