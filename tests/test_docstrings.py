"""Every example in a docstring runs, and its result is the one shown."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import aioresolve
from aioresolve.testing import KubernetesServer, pod

from .test_public_api import ALL_MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def docstrings() -> dict[str, str]:
    """The docstring of every module, class and function of the package that has an example, by its name.

    They are imported before an event loop runs: that takes seconds.
    """
    found: dict[str, str] = {}
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


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the cluster of the examples; `$KUBECONFIG` names its kubeconfig."""
    pods = [pod(f"train-{n}", "ml", labels={"job-name": "train"}, ip=f"10.8.0.1{n}") for n in range(2)]
    with KubernetesServer(pods, tls=True, tokens={"a-token": "reader"}).in_thread() as server:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config")))
        monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
        monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1")
        # The examples set them, and they are removed afterwards.
        for name in ("WORKERS", "LEADER", "TF_CONFIG", "SM_HOSTS", "SM_CURRENT_HOST"):
            monkeypatch.setenv(name, "")
        yield


@pytest.mark.usefixtures("cluster")
async def test_every_example_has_the_result_that_is_shown(docstrings: dict[str, str]) -> None:
    assert {"aioresolve", "aioresolve.sync", "aioresolve.resolver.base.ClusterResolver"} <= set(docstrings)
    different = []
    for name, docstring in docstrings.items():
        names: dict[str, Any] = {
            "json": json,
            "os": os,
            "aioresolve": aioresolve,
            **{public: getattr(aioresolve, public) for public in aioresolve.__all__},
        }
        for example in doctest.DocTestParser().get_examples(docstring, name):
            result = await evaluate(example.source, names)
            shown = "" if result is None else f"{result!r}\n"
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
