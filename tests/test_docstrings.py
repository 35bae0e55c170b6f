"""Every example in a docstring runs, and its result is the one shown."""

import ast
import doctest
import importlib
import inspect
import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import aioresolve
from aioresolve.testing import Fault, GoogleRequest, KubernetesServer, RequestRecord, pod

from .test_public_api import ALL_MODULES

PACKAGES = ["aioresolve", "aioresolve.sync", "aioresolve.fleet", "aioresolve.probe", "aioresolve.testing"]
"""Each public class of these has an example."""

WITHOUT_EXAMPLE = (Exception, Fault, RequestRecord, GoogleRequest)
"""Errors, faults and requests are described by tables, and are part of the examples of servers."""


def public_names(module_name: str) -> dict[str, Any]:
    module = importlib.import_module(module_name)
    return {name: getattr(module, name) for name in module.__all__}


@pytest.fixture(scope="module")
def docstrings() -> dict[str, str]:
    """The docstring of every module, class and function of the package that has an example, by its name.

    They are imported before an event loop runs: that takes seconds.
    """
    found: dict[str, str] = {}
    for package in PACKAGES:
        public_names(package)  # makes the classes of `aioresolve.sync`
    for module_name in ["aioresolve", *ALL_MODULES]:
        if module_name.endswith("__main__"):
            continue
        module = importlib.import_module(module_name)
        candidates: dict[str, Any] = {module_name: module}
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module_name:
                candidates |= {
                    f"{module_name}.{name}.{member}": attribute for member, attribute in vars(value).items()
                }
            if getattr(value, "__module__", None) == module_name:
                candidates[f"{module_name}.{name}"] = value
        for name, candidate in candidates.items():
            doc = getattr(candidate, "__doc__", None)
            if isinstance(doc, str) and ">>> " in doc:
                found[name] = inspect.cleandoc(doc)
    return found


def test_every_public_class_has_an_example() -> None:
    values = [value for package in PACKAGES for value in public_names(package).values()]
    without = [each for each in values if inspect.isclass(each) and ">>> " not in (each.__doc__ or "")]
    assert [each for each in without if not issubclass(each, WITHOUT_EXAMPLE)] == []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the cluster of the examples; `$KUBECONFIG` names its kubeconfig."""
    pods = [pod(f"train-{n}", "ml", labels={"job-name": "train"}, ip=f"10.8.0.1{n}") for n in range(2)]
    with KubernetesServer(pods, tls=True, tokens={"a-token": "reader"}).in_thread() as server:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config")))
        monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
        monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1")
        yield


@pytest.mark.usefixtures("cluster")
@mock.patch.dict(os.environ)
async def test_every_example_has_the_result_that_is_shown(docstrings: dict[str, str]) -> None:
    assert {"aioresolve", "aioresolve.sync", "aioresolve.resolver.base.ClusterResolver"} <= set(docstrings)
    different = []
    for name, docstring in docstrings.items():
        names: dict[str, Any] = {"json": json, "os": os, "aioresolve": aioresolve}
        for package in [*PACKAGES[2:], "aioresolve", *["aioresolve.sync"] * (".sync" in name)]:
            names |= public_names(package)
        for example in doctest.DocTestParser().get_examples(docstring, name):
            with redirect_stdout(io.StringIO()) as output:
                result = await evaluate(example.source, names)
            shown = output.getvalue() + ("" if result is None else f"{result!r}\n")
            if not doctest.OutputChecker().check_output(example.want, shown, doctest.ELLIPSIS):
                different.append((name, example.source, shown))
    assert different == []


async def evaluate(source: str, names: dict[str, Any]) -> Any:
    """Return the value of `source` if it is an expression, with `await` allowed as in a REPL."""
    try:
        code = compile(source, "docs", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        code = compile(source, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    return await result if inspect.iscoroutine(result) else result
