"""The distributions, the image and the workflows of a release."""

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
import yaml

from aioresolve import __version__

from .programs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

RELEASE = ROOT / ".github" / "release"


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout
    return done


def test_quick_tests_have_the_requirements_of_all_features() -> None:
    for extra in ("cli", "otel", "serve", "testing"):
        assert set(EXTRAS[extra]) <= set(EXTRAS["test"])


FIXED = {
    "aiohttp": "3.13.3",  # CVE-2025-69223 to 69230
    "anyio": "4.4",  # a race of threads, without a number
    "grpcio": "1.65.4",  # CVE-2024-7246
    "protobuf": "4.25.8",  # CVE-2025-4565
    "pyyaml": "5.4",  # CVE-2020-14343
}
"""The first version of each dependency without a known vulnerability that concerns its users."""


def test_lowest_versions_have_no_known_vulnerability() -> None:
    lowest = dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(PROJECT["project"]["dependencies"])))
    for name, version in FIXED.items():
        required, fixed = ([int(part) for part in text.split(".")] for text in (lowest[name], version))
        assert required >= fixed, name


WORKFLOWS = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")]
STEPS = [step for each in WORKFLOWS for job in each["jobs"].values() for step in job.get("steps", ())]


def test_actions_and_the_base_image_are_pinned() -> None:
    actions = [step["uses"] for step in STEPS if "uses" in step]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    image = re.findall(r"^(?:ARG PYTHON=|FROM )(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert [each for each in image if "@sha256:" not in each] == ["${PYTHON}", "${PYTHON}"]


def test_build_tools_of_a_release_are_pinned_by_hashes() -> None:
    text = (RELEASE / "requirements.txt").read_text()
    pinned = set(re.findall(r"^([\w-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
    assert len(pinned) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
    wanted = {line for line in (RELEASE / "requirements.in").read_text().splitlines() if line[:1] != "#"}
    assert wanted <= pinned
    assert "://" not in text


def test_plugin_of_kubectl_runs_the_installed_command(tmp_path: Path) -> None:
    run(sys.executable, RELEASE / "krew.py", tmp_path)
    manifest = yaml.safe_load((tmp_path / "krew.yaml").read_text())
    [platform] = manifest["spec"]["platforms"]
    archive = tmp_path / PurePosixPath(platform["uri"]).name
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    command = tmp_path / "bin" / "aioresolve"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\necho aioresolve "$@"\n')
    command.chmod(0o755)
    plugin = tmp_path / platform["bin"]
    found = run(plugin, "wait", "-l", "app=trainer", env={"PATH": f"{command.parent}:/usr/bin:/bin"})
    assert found.stdout == "aioresolve wait -l app=trainer\n"
    assert f"aioresolve[cli]=={__version__}" in plugin.read_text()


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
    needed.add(".github/release/requirements.txt")
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
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return Distributions(wheel, sdist, folder / sdist.name.removesuffix(".tar.gz"))


@pytest.mark.slow
def test_package_index_accepts_the_distributions(distributions: Distributions) -> None:
    twine = (sys.executable, "-m", "twine", "check", "--strict")
    assert run(*twine, distributions.wheel, distributions.sdist).stdout.count("PASSED") == 2


@pytest.mark.slow
def test_wheel_has_the_package_and_its_licence_and_nothing_else(distributions: Distributions) -> None:
    names = set(zipfile.ZipFile(distributions.wheel).namelist())
    information = f"aioresolve-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"aioresolve", information}
    assert {"aioresolve/py.typed", f"{information}/licenses/LICENSE"} <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "aioresolve").rglob("*.py")} <= names


@pytest.mark.slow
def test_sdist_has_the_files_of_the_repository(distributions: Distributions) -> None:
    folder = distributions.folder
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    ignored = {".git", ".venv", ".nox", ".hypothesis", "dist", "site", "__pycache__"}
    assert not [name for name in files if ignored & set(name.split("/")) or "_cache/" in name]
    assert {"LICENSE", "pyproject.toml", "tests/conftest.py", "docs/quickstart.md"} <= files
    if (ROOT / ".git").exists():
        tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
        names = tracked.stdout.decode().split("\0")
        assert {name for name in names if name and (ROOT / name).exists()} <= files


@pytest.mark.slow
def test_installed_wheel_has_the_command_and_its_demo(distributions: Distributions, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    programs = environment / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-index", "--no-deps")
    run(*pip, distributions.wheel)
    # It imports the dependencies from this environment, after its own packages.
    [packages] = environment.glob("lib/python*/site-packages")
    folders = [path for path in sys.path if "site" in Path(path).name]
    (packages / "dependencies.pth").write_text("\n".join(folders))
    where = run(programs / "python", "-c", "import aioresolve; print(aioresolve.__file__)", cwd=tmp_path)
    assert Path(where.stdout).is_relative_to(environment)
    assert run(programs / "aioresolve", "--version").stdout == f"aioresolve {__version__}\n"
    assert "worker" in run(programs / "aioresolve", "demo", cwd=tmp_path).stdout
