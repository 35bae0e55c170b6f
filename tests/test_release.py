"""The distributions, the image and the workflows of a release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from aioresolve import __version__

from .programs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

HAS_HATCHLING = find_spec("hatchling") is not None
PIP_OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"} if HAS_HATCHLING else {}
"""Variables with which pip downloads at most hatchling, if it is not installed. The 0 disables isolation."""


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout
    return done


def add_dependencies(environment: Path) -> None:
    """Let a virtual environment import the packages of this one, after its own."""
    [folder] = environment.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if "site" in Path(path).name]
    (folder / "dependencies.pth").write_text("\n".join(paths))


def test_demo_has_the_requirements_of_the_loopback_servers_and_the_tests_those_of_all_features() -> None:
    assert set(EXTRAS["testing"]) <= set(EXTRAS["cli"])
    for extra in ("cli", "otel", "testing"):
        assert set(EXTRAS[extra]) <= set(EXTRAS["test"])


def test_workflow_tests_each_version_of_python_that_is_listed() -> None:
    versions = re.findall(r"Python :: (3\.\d+)'", str(PROJECT["project"]["classifiers"]))
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions


def test_context_of_the_image_has_the_files_that_the_wheel_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], *wheel["packages"]}
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == needed


class Distributions(NamedTuple):
    wheel: Path
    sdist: Path
    folder: Path
    """The unpacked sdist."""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder = tmp_path_factory.mktemp("dist")
    options = ["--no-isolation"] if HAS_HATCHLING else []
    run(sys.executable, "-m", "build", *options, "--outdir", folder, ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return Distributions(wheel, sdist, folder / sdist.name.removesuffix(".tar.gz"))


@pytest.mark.slow
class TestDistributions:
    def test_package_index_accepts_them(self, distributions: Distributions) -> None:
        done = run(
            sys.executable, "-m", "twine", "check", "--strict", distributions.wheel, distributions.sdist
        )
        assert done.stdout.count("PASSED") == 2

    def test_wheel_has_the_package_and_its_licence_and_nothing_else(
        self, distributions: Distributions
    ) -> None:
        names = set(zipfile.ZipFile(distributions.wheel).namelist())
        information = f"aioresolve-{__version__}.dist-info"
        assert {name.partition("/")[0] for name in names} == {"aioresolve", information}
        assert {"aioresolve/py.typed", f"{information}/licenses/LICENSE"} <= names
        modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "aioresolve").rglob("*.py")}
        assert modules <= names

    def test_sdist_has_the_files_of_the_repository(self, distributions: Distributions) -> None:
        folder = distributions.folder
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        ignored = {".git", ".venv", ".nox", ".hypothesis", "dist", "site", "__pycache__"}
        assert not [name for name in files if ignored & set(name.split("/")) or "_cache/" in name]
        assert {"LICENSE", "pyproject.toml", "tests/conftest.py", "docs/quickstart.md"} <= files
        if (ROOT / ".git").exists():
            tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
            names = tracked.stdout.decode().split("\0")
            assert {name for name in names if name and (ROOT / name).exists()} <= files

    def test_installed_wheel_has_the_command_and_its_demo(
        self, distributions: Distributions, tmp_path: Path
    ) -> None:
        environment = tmp_path / "environment"
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        python = environment / "bin" / "python"
        run(
            *(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", distributions.wheel),
            env={**os.environ, **PIP_OFFLINE},
        )
        add_dependencies(environment)
        where = run(python, "-c", "import aioresolve; print(aioresolve.__file__)", cwd=tmp_path)
        assert Path(where.stdout).is_relative_to(environment)
        command = environment / "bin" / "aioresolve"
        assert run(command, "--version").stdout == f"aioresolve {__version__}\n"
        assert "worker" in run(command, "demo", cwd=tmp_path).stdout
