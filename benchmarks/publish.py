"""Writes the figures of a run into docs/benchmarks.md: its table, and one picture for each column.

python benchmarks/publish.py [benchmarks/results/NAME.json...]

A file that a benchmark has written replaces the figures in docs/plots/NAME.json. Tables and pictures are then
made from docs/plots, so that they always show the same run.
"""

from __future__ import annotations

import json
import math
import re
import sys
from html import escape
from pathlib import Path

if __name__ == "__main__":
    # The folder of a script comes first in sys.path, and there `benchmarks` is not a package.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from typing import TYPE_CHECKING, Any

from benchmarks.report import duration, ratio, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DOCS = Path(__file__).resolve().parent.parent / "docs"
PLOTS = DOCS / "plots"
PAGE = DOCS / "benchmarks.md"

WIDTH = 690
"""The width of the column of the site, in pixels."""

FORMATS: dict[str, Callable[[float], str]] = {"time": duration, "CPU": duration, "peak memory": size}
STYLE = (
    "text{font:18px system-ui,sans-serif;fill:#333}.title{font-weight:600}.value{fill:#666}"
    ".ours{fill:#0b8a68}.others{fill:#9aa0a8}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.value{fill:#aaa}.ours{fill:#2fc79b}"
    ".others{fill:#7a818c}}"
)


def bars(title: str, values: Mapping[str, float], label: Callable[[float], str]) -> str:
    """Return a bar chart as SVG, on a logarithmic scale: names above the bars, values next to them."""
    least, most = math.log(min(values.values()) / 1.5), math.log(max(values.values()))
    parts = [f'<text class="title" x="0" y="20">{escape(title)} (logarithmic)</text>']
    for number, (name, value) in enumerate(values.items()):
        top = 40 + 52 * number
        length = max(4, 560 * (math.log(value) - least) / (most - least))
        kind = "ours" if "aioresolve" in name or name.endswith("()") else "others"
        parts += [
            f'<text x="0" y="{top + 16}">{escape(name)}</text>',
            f'<rect class="{kind}" x="0" y="{top + 23}" width="{length:.0f}" height="16" rx="2"/>',
            f'<text class="value" x="{length + 8:.0f}" y="{top + 37}">{label(value)}</text>',
        ]
    height = 40 + 52 * len(values)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return the figures as a table of Markdown: one row per peer, its ratio to the first after its time."""
    names = list(next(iter(columns.values())))
    first = {column: next(iter(values.values())) for column, values in columns.items()}
    head = [
        "",
        *(each for column in columns for each in ([column, "relative"] if column == "time" else [column])),
    ]
    rows: list[Sequence[str]] = [head, ["---"] * len(head)]
    for name in names:
        cells = [f"`{name}`" if name.endswith("()") else name]
        for column, values in columns.items():
            cells.append(FORMATS[column](values[name]).replace(" ", "\N{NO-BREAK SPACE}"))
            if column == "time":
                cells.append(ratio(values[name], first[column]))
        rows.append(cells)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def published(page: str, figures: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the page with the tables of the figures, and the pictures by the names of their files."""
    pictures = {}
    for name, run in figures.items():
        columns = run["columns"]
        block = f"<!-- {name}: python benchmarks/publish.py -->\n\n{table(columns)}\n"
        for column, values in columns.items():
            file = f"{name}-{column.replace(' ', '-')}.svg"
            title = f"{run['title']}: {column}"
            pictures[file] = bars(title, values, FORMATS[column])
            block += f"![{title}](plots/{file})\n"
        marked = re.compile(rf"<!-- {name}: .*?(?=\n<!-- end -->)", re.DOTALL)
        found = marked.search(page)
        if found is None:
            raise SystemExit(f"docs/benchmarks.md has no block for {name}")
        page = f"{page[: found.start()]}{block.rstrip()}{page[found.end() :]}"
    return page, pictures


def main(files: Sequence[str]) -> None:
    for file in files:
        run = json.loads(Path(file).read_text())["published"]
        (PLOTS / Path(file).name).write_text(json.dumps(run, indent=2) + "\n")
    figures = {path.stem: json.loads(path.read_text()) for path in sorted(PLOTS.glob("*.json"))}
    page, pictures = published(PAGE.read_text(), figures)
    PAGE.write_text(page)
    for name, picture in pictures.items():
        (PLOTS / name).write_text(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
