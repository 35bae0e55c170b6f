"""docs/architecture.md names files and definitions that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_named_file_exists() -> None:
    """The name of the package may be left out."""
    paths = sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE)))
    assert paths
    assert [
        path for path in paths if not ((ROOT / path).is_file() or (ROOT / "aioresolve" / path).is_file())
    ] == []


def test_every_named_file_defines_the_names_in_parentheses_after_it() -> None:
    definitions = [
        (path, name)
        for path, names in re.findall(r"`([\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", PAGE)
        for name in re.findall(r"\w+", names)
    ]
    assert definitions
    assert [
        (path, name)
        for path, name in definitions
        if not re.search(rf"^(?:class|(?:async )?def) {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    ] == []


def test_figure_shows_every_package() -> None:
    figure = PAGE.partition("```text\n")[2].partition("```")[0]
    files = (ROOT / "aioresolve").glob("*")
    names = {file.stem for file in files if file.suffix == ".py" or (file / "__init__.py").exists()}
    assert names - {"__init__", "__main__", "_version"} - set(re.findall(r"\w+", figure)) == set()
