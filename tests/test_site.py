"""The documentation site builds without warnings, and its reference has every public name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MODULES = ("errors", "jax", "launch", "probe", "sync", "tensorflow", "testing")
"""The public modules, which docs/reference describes."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="pip install -e '.[docs]'"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def described(site: Path) -> set[str]:
    """Return the names in the inventory of the site (https://sphobjinv.readthedocs.io/en/stable/syntax.html)."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}


def public_names(module: str) -> set[str]:
    """Return the names in `__all__`. The module is not imported, because TensorFlow takes seconds."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return {f"{module}.{name}" for name in ast.literal_eval(value)}
    raise ValueError(module)


@pytest.mark.parametrize("module", MODULES)
def test_reference_describes_every_public_name_of_a_module(module: str, described: set[str]) -> None:
    assert sorted(public_names(f"aioresolve.{module}") - described) == []


def test_reference_describes_every_name_at_the_top(described: set[str]) -> None:
    errors = {name.replace(".errors", "") for name in public_names("aioresolve.errors")}
    names = public_names("aioresolve") - errors - {"aioresolve.__version__"}
    assert sorted(names - described) == []


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    assert sorted(page for page in pages if f'href="{page}"' not in home) == []


def test_site_loads_nothing_from_other_servers(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for attribute in ('src="http', 'rel="stylesheet" href="http', "fonts.googleapis", "unpkg.com"):
            assert attribute not in text, page
