"""Colored tables and pages, drawn with rich. Imported only if the output is a terminal."""

from __future__ import annotations

import io
import os
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.table
import rich.text
from rich.console import Group

from aioresolve.cli.output.formats import ABSENT, Table, pad, printable, text_width

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.status import Status

    from aioresolve.cli.output.formats import Section

BAR_COLUMNS = 24

STYLES = {"JOB": "cyan", "ADDRESS": "bold", "UID": "dim"}


def render_table(table: Table, *, has_headers: bool = True) -> str:
    """Return the table with colors. Rows are never truncated, so that addresses can be copied."""
    if not table.rows:
        return ""
    lines = table_lines(table)
    return _render(Group(*(lines if has_headers else lines[1:])))


def table_lines(table: Table, styles: Sequence[str] = ()) -> list[rich.text.Text]:
    """Return the header and the rows of the table as lines, which a narrow terminal truncates.

    `styles` are those of the first rows.
    """
    rows = [[printable(cell) or ABSENT for cell in row] for row in table.rows]
    widths = [max(map(text_width, column)) for column in zip(table.columns, *rows, strict=True)]
    lines = [single_line(rich.text.Text.assemble(*_pad(table.columns, widths)), "bold")]
    for row, style in zip_longest(rows, styles[: len(rows)], fillvalue=""):
        cells = zip(_pad(row, widths), table.columns, strict=True)
        text = rich.text.Text.assemble(*((cell, STYLES.get(column, "")) for cell, column in cells))
        lines.append(single_line(text, style))
    return lines


def single_line(text: str | rich.text.Text, style: str = "") -> rich.text.Text:
    """Return `text` as one line, which a narrow terminal truncates with an ellipsis."""
    shown = rich.text.Text(printable(text)) if isinstance(text, str) else text
    shown.stylize_before(style)
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def _pad(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    *before, last = map(pad, cells, widths)
    return [*(f"{cell}   " for cell in before), last.rstrip()]


def render_bar(share: float, text: str, columns: int) -> str:
    """Return a progress bar, filled by a `share` from 0 to 1, and a text, for a terminal of that width."""
    from rich.progress_bar import ProgressBar

    page = io.StringIO()
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(ProgressBar(1.0, share, width=BAR_COLUMNS), single_line(text))
    new_console(page, width=max(columns, 1)).print(grid, end="")
    return page.getvalue().strip("\n")


def render_sections(sections: Iterable[Section]) -> str:
    """Return a page with colors, with an empty line between its sections."""
    return "\n".join(
        _render(rich.text.Text(title, "bold green")) + _render_body(body, is_code)
        for title, body, is_code in sections
    )


def _render_body(body: str | Table, is_code: bool) -> str:
    if isinstance(body, Table):
        return render_table(body)
    if not is_code:
        return body
    from rich.syntax import Syntax

    return _render(Syntax(body, "python", theme="ansi_dark", background_color="default").highlight(body))


def _render(renderable: RenderableType) -> str:
    page = io.StringIO()
    # The width of the terminal does not matter: nothing is truncated or wrapped.
    new_console(page, width=100_000).print(renderable, crop=False, end="")
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def new_spinner(stream: TextIO) -> Status:
    """Return a line with a moving spinner, drawn when it is started and removed when it is stopped."""
    return new_console(stream).status("", spinner="dots", spinner_style="cyan")


def new_console(stream: TextIO, width: int | None = None) -> rich.console.Console:
    """Return a console that treats `stream` as a terminal and does not interpret markup in texts.

    Without a `width` in columns, it has that of the terminal of this process.
    """
    return rich.console.Console(
        file=stream,
        force_terminal=True,
        no_color=bool(os.environ.get("NO_COLOR")),
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
    )
