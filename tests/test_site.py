"""The documentation site builds without warnings, has every public name, and fits every screen."""

import ast
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import publish

from .fleet.browser import axe_core, browser_page, violations

ROOT = Path(__file__).parent.parent

MODULES = ("jax", "launch", "probe", "sync", "tensorflow", "testing")
"""The public modules with `__all__`, which docs/reference describes."""

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
def pages(site: Path) -> list[str]:
    """Return the paths of all pages."""
    return sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))


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
    errors = {name.replace(".errors", "") for name in described if name.startswith("aioresolve.errors.")}
    names = public_names("aioresolve") - errors - {"aioresolve.__version__"}
    assert sorted(names - described) == []


def test_every_page_is_in_the_navigation(site: Path, pages: list[str]) -> None:
    home = (site / "index.html").read_text()
    assert [page for page in pages if f'href="{page}"' not in home] == ["404.html"]


def test_tables_and_charts_of_benchmarks_show_the_same_run() -> None:
    figures = {path.stem: json.loads(path.read_text()) for path in publish.PLOTS.glob("*.json")}
    page, charts = publish.published(publish.PAGE.read_text(), figures)
    assert page == publish.PAGE.read_text()
    assert charts == {path.name: path.read_text() for path in publish.PLOTS.glob("*.svg")}


PAGES = ("index", "quickstart", "cli", "fleets", "benchmarks", "reference/resolvers")
"""The pages that axe-core checks."""

NUMBER_OF_CUT_BLOCKS = """
[...document.querySelectorAll("pre > code, .md-typeset__scrollwrap")].filter(
  block => block.scrollWidth > block.clientWidth
).length
"""


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Serve the site."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
async def test_pages_fit_and_are_accessible(
    width: int, scheme: str, pages: list[str], url: str, tmp_path: Path
) -> None:
    script = axe_core(tmp_path)
    options: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    async with browser_page(url, shown="main", **options) as page:
        for name in pages:
            await page.goto(url + name, wait_until="load")
            assert await page.evaluate("document.documentElement.scrollWidth") == width, name
            assert await page.evaluate(NUMBER_OF_CUT_BLOCKS) == 0, name
            if name.removesuffix(".html") in PAGES:
                await page.evaluate(script)
                assert await violations(page, "serious", "critical") == [], name
