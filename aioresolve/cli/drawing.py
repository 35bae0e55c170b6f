"""Colored tables and lines, drawn with rich. Imported only if the output is a terminal."""

from __future__ import annotations

import io
import os
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.live
import rich.text

from .formats import ABSENT, Table, pad, printable, text_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STYLES = {"JOB": "cyan", "ADDRESS": "bold", "UID": "dim"}


def render_table(table: Table, *, has_headers: bool = True) -> str:
    """Return the table with colors. Rows are never truncated, so that addresses can be copied."""
    if not table.rows:
        return ""
    lines = table_lines(table)
    page = io.StringIO()
    # The width of the terminal does not matter: nothing is truncated or wrapped.
    console = new_console(page, width=100_000)
    console.print(rich.console.Group(*(lines if has_headers else lines[1:])), crop=False, end="")
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def table_lines(table: Table) -> list[rich.text.Text]:
    """Return the header and the rows of the table as lines, which a narrow terminal truncates."""
    rows = [[printable(cell) or ABSENT for cell in row] for row in table.rows]
    widths = [max(map(text_width, column)) for column in zip(table.columns, *rows, strict=True)]
    lines = [single_line(rich.text.Text.assemble(*_pad(table.columns, widths)), "bold")]
    for row, style in zip_longest(rows, table.styles[: len(rows)], fillvalue=""):
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


def new_live(
    stream: TextIO, render: Callable[[int, int], rich.console.RenderableType], *, keep: bool
) -> rich.live.Live:
    """Return a display of what `render` returns for a number of columns and lines; see `live.draw_live`."""
    console = new_console(stream)
    return rich.live.Live(
        # The last line is for the cursor, and for the shell's prompt afterwards.
        get_renderable=lambda: render(console.width, console.height - 1),
        console=console,
        auto_refresh=False,
        transient=not keep,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )
