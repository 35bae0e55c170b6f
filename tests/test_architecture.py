"""docs/architecture.md names files that exist, and calls enter no more files than planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.journeys import TARGETS, layers, top_level_packages, trace_journey

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def paths_in_the_page() -> list[str]:
    """Return every path of a Python file in the page; the package's name may be left out."""
    return sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE)))


def definitions_in_the_page() -> list[tuple[str, str]]:
    """Return each name that the page gives in parentheses after a path, with that path."""
    return [
        (path, name)
        for path, names in re.findall(r"`([\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", PAGE)
        for name in re.findall(r"\w+", names)
    ]


@pytest.mark.parametrize("path", paths_in_the_page())
def test_named_file_exists(path: str) -> None:
    assert (ROOT / path).is_file() or (ROOT / "aioresolve" / path).is_file()


@pytest.mark.parametrize(("path", "name"), definitions_in_the_page())
def test_named_file_defines_the_name(path: str, name: str) -> None:
    assert re.search(rf"^(?:class|(?:async )?def) {name}\b", (ROOT / path).read_text(), re.MULTILINE)


def test_figure_shows_every_package() -> None:
    figure = PAGE.partition("```text\n")[2].partition("```")[0]
    assert top_level_packages() - set(re.findall(r"\w+", figure)) == set()


def test_package_has_at_most_16_top_level_parts_and_8_layers() -> None:
    assert len(top_level_packages()) <= 16
    assert len(layers()) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("journey", TARGETS)
def test_call_enters_no_more_files_than_planned(journey: str) -> None:
    assert len(trace_journey(journey)) <= TARGETS[journey]
