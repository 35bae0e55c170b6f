"""docs/architecture.md names files and definitions that exist."""

import re

from .programs import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_named_file_exists_and_defines_the_names_in_parentheses_after_it() -> None:
    """The name of the package may be left out."""
    named = re.findall(r"`([\w/]+\.py)`(?: \(((?:`[\w.]+`(?:, )?)+)\))?", PAGE)
    missing = []
    for path, names in named:
        file = ROOT / path if (ROOT / path).is_file() else ROOT / "aioresolve" / path
        text = file.read_text() if file.is_file() else None
        defined = re.findall(r"^ *(?:class|(?:async )?def) (\w+)\b", text or "", re.MULTILINE)
        missing += [path] * (text is None)
        missing += [(path, name) for name in re.findall(r"\w+", names) if name not in defined]
    assert len(named) > 50
    assert missing == []


def test_figure_shows_every_package() -> None:
    figure = PAGE.partition("```text\n")[2].partition("```")[0]
    files = (ROOT / "aioresolve").glob("*")
    names = {file.stem for file in files if file.suffix == ".py" or (file / "__init__.py").exists()}
    assert names - {"__init__", "__main__", "_version"} - set(re.findall(r"\w+", figure)) == set()
