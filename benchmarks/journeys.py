"""Counts the files that one call enters, and the files, lines, packages and layers of the package.

`python benchmarks/journeys.py` prints, for three typical calls, the files of aioresolve in which functions
are called, in the order of the first call. Fewer files mean less to read in order to follow one value from
the request to the result. Nothing is timed. Each call runs in a fresh process against a loopback server with
TLS and credentials; function calls during the import of a module do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioresolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = Path(aioresolve.__file__).parent
PYPROJECT = PACKAGE.parent / "pyproject.toml"

TARGETS = {"kubernetes": 19, "cli": 27, "tpu": 21}
"""The number of files that each call should enter at most."""

DESCRIPTIONS = {
    "kubernetes": "await KubernetesClusterResolver(...).cluster_spec()",
    "cli": "aioresolve kubernetes -l worker=app=x",
    "tpu": 'await TPUClusterResolver("my-tpu", ...).cluster_spec()',
}


class FileTrace:
    """Records the files of the package in which functions are called, in the order of the first call.

    Attributes:
        files: file, relative to the package, to the qualified names of the functions called in it.
    """

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {}

    def __enter__(self) -> None:
        # Threads that the call starts are traced as well.
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        # Lambdas and comprehensions belong to the function that contains them.
        if event != "call" or code.co_name.startswith("<"):
            return
        with contextlib.suppress(ValueError):
            name = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            if not name.startswith("testing/") and not _is_importing(frame):
                self.files.setdefault(name, set()).add(code.co_qualname)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


def _kubernetes_call(kubeconfig: str) -> Callable[[], object]:
    from aioresolve import KubernetesClusterResolver

    async def resolve() -> object:
        resolver = KubernetesClusterResolver({"worker": ["app=x"]}, namespace="ml", kubeconfig=kubeconfig)
        return await resolver.cluster_spec()

    return lambda: asyncio.run(resolve())


def _cli_call(kubeconfig: str) -> Callable[[], object]:
    from aioresolve.cli import main

    return lambda: main(["kubernetes", "-n", "ml", "--kubeconfig", kubeconfig, "-l", "worker=app=x"])


def _tpu_call(_: str) -> Callable[[], object]:
    from aioresolve import TPUClusterResolver

    async def resolve() -> object:
        return await TPUClusterResolver("my-tpu", zone="us-central2-b", project="my-project").cluster_spec()

    return lambda: asyncio.run(resolve())


CALLS: dict[str, Callable[[str], Callable[[], object]]] = {
    "kubernetes": _kubernetes_call,
    "cli": _cli_call,
    "tpu": _tpu_call,
}


def trace_in_this_process(journey: str, kubeconfig: str) -> None:
    """Make the call, and print the files that it entered as a JSON object on stdout."""
    call, trace = CALLS[journey](kubeconfig), FileTrace()
    with trace, contextlib.redirect_stdout(sys.stderr):
        print(call())
    print(json.dumps({file: sorted(functions) for file, functions in trace.files.items()}))


def trace_journey(journey: str) -> dict[str, list[str]]:
    """Make the call in a fresh process against a loopback server.

    Returns:
        Each file that was entered, relative to the package, to the functions called in it.
    """
    from aioresolve.testing import GoogleServer, KubernetesServer, pod, tpu_node

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        kubeconfig, environment = "", dict(os.environ)
        if journey == "tpu":
            nodes = [tpu_node("my-tpu", ips=["10.0.0.1", "10.0.0.2"])]
            google = GoogleServer(nodes, project="my-project", zone="us-central2-b", tls=True)
            environment |= servers.enter_context(google.in_thread()).environ(folder)
        else:
            pods = [pod(f"t-{n}", "ml", labels={"app": "x"}, ip=f"10.0.0.{n + 1}") for n in range(3)]
            server = KubernetesServer(pods, tls=True, tokens={"a-token": "reader"})
            path = servers.enter_context(server.in_thread()).write_kubeconfig(Path(folder) / "kubeconfig")
            kubeconfig = str(path)
        completed = subprocess.run(
            [sys.executable, __file__, "--trace", journey, kubeconfig],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if completed.returncode or "10.0.0.1:8470" not in completed.stderr:
        raise RuntimeError(f"the call failed: {completed.stderr}")
    files: dict[str, list[str]] = json.loads(completed.stdout)
    return files


def layers() -> list[str]:
    """Return the rows of the import contract in pyproject.toml, from the top to the bottom."""
    contracts: list[dict[str, Any]] = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"][
        "contracts"
    ]
    rows: list[str] = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return rows


def source_files() -> list[Path]:
    """Return the Python files of the package, without generated ones."""
    return sorted(file for file in PACKAGE.rglob("*.py") if not file.name.endswith("_pb2.py"))


def top_level_packages() -> set[str]:
    """Return the names of the modules and packages directly below `aioresolve`, without the entry modules."""
    names = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in source_files()}
    return names - {"__init__", "__main__", "_version"}


def main() -> None:
    """Print the report, or make one call and print the files that it entered."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print the functions that are called"
    )
    parser.add_argument("--trace", nargs=2, metavar=("CALL", "KUBECONFIG"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trace:
        trace_in_this_process(*arguments.trace)
        return
    for journey, target in TARGETS.items():
        files = trace_journey(journey)
        print(f"{DESCRIPTIONS[journey]}: {len(files)} files (target {target})")
        for file, functions in files.items():
            print(f"    {file}{'  ' + ' '.join(functions) if arguments.verbose else ''}")
    files_of_package = source_files()
    lines = sum(len(file.read_text().splitlines()) for file in files_of_package)
    print(f"aioresolve/: {len(files_of_package)} files, {lines} lines,", end=" ")
    print(f"{len(top_level_packages())} modules and packages at the top level, {len(layers())} layers")


if __name__ == "__main__":
    main()
