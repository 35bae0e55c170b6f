"""What is drawn on a terminal. The room of rich, imported only where somebody looks."""

from __future__ import annotations

import io
import os
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.table
import rich.text
from rich.console import Group

from aioresolve.cli.output.formats import ABSENT, Table, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from aioresolve.cli.output.formats import Section

__all__ = ["Line", "console", "drawn_bar", "drawn_sections", "drawn_table", "line", "table_lines"]

BAR = 24
"""Columns of a bar."""

STYLES = {"JOB": "cyan", "ADDRESS": "bold", "UID": "dim"}


def drawn_table(table: Table) -> str:
    """Return the table with colours, each row on one line: an address is never cut."""
    if not table.rows:
        return ""
    return _drawn(Group(*table_lines(table)))


def table_lines(table: Table, styles: Sequence[str] = ()) -> list[rich.text.Text]:
    """Return the table as lines, the columns' names first; a terminal that is too narrow cuts off their ends.

    Args:
        table: what to draw.
        styles: of each row; none for those that are not given one.
    """
    rows = [[printable(cell) or ABSENT for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *rows, strict=True)]
    lines = [line(rich.text.Text.assemble(*_padded(table.columns, widths)), "bold")]
    for row, style in zip_longest(rows, styles[: len(rows)], fillvalue=""):
        cells = zip(_padded(row, widths), table.columns, strict=True)
        lines.append(
            line(rich.text.Text.assemble(*((cell, STYLES.get(column, "")) for cell, column in cells)), style)
        )
    return lines


def line(text: str | rich.text.Text, style: str = "") -> rich.text.Text:
    """Return `text` as one line, which ends in `...` where a terminal is too narrow for it."""
    shown = rich.text.Text(printable(text)) if isinstance(text, str) else text
    shown.stylize_before(style)
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the cells as wide as their columns, but for the last, and three spaces apart."""
    *before, last = map(str.ljust, cells, widths)
    return [*(f"{cell}   " for cell in before), last.rstrip()]


def drawn_bar(share: float, said: str, columns: int) -> str:
    """Return a bar of which `share`, from 0 to 1, is full, and what is said beside it, on one line."""
    from rich.progress_bar import ProgressBar

    page = io.StringIO()
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(ProgressBar(1.0, share, width=BAR), line(said))
    console(page, width=max(columns, 1)).print(grid, end="")
    return page.getvalue().strip("\n")


def drawn_sections(sections: Iterable[Section]) -> str:
    """Return a page with colours, an empty line between its sections."""
    return "\n".join(
        _drawn(rich.text.Text(title, "bold green")) + _body(body, is_code)
        for title, body, is_code in sections
    )


def _body(body: str | Table, is_code: bool) -> str:
    if isinstance(body, Table):
        return drawn_table(body)
    if not is_code:
        return body
    from rich.syntax import Syntax

    return _drawn(Syntax(body, "python", theme="ansi_dark", background_color="default").highlight(body))


def _drawn(what: RenderableType) -> str:
    """Return `what` as lines with colours, none of them cut or wrapped."""
    page = io.StringIO()
    console(page, width=100_000).print(what, crop=False, end="")
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


class Line:
    """A line on a terminal that moves while something is waited for; it is gone when it is stopped."""

    def __init__(self, stream: TextIO, text: str) -> None:
        self._status = console(stream).status(rich.text.Text(text), spinner="dots", spinner_style="cyan")
        self._status.start()

    def say(self, text: str) -> None:
        """Put `text` in the place of what the line says."""
        self._status.update(rich.text.Text(text))

    def stop(self) -> None:
        """Remove the line and give the cursor back."""
        self._status.stop()


def console(stream: TextIO, width: int | None = None) -> rich.console.Console:
    """Return a console that takes `stream` for a terminal, and its text for nothing but text.

    Args:
        stream: where it writes.
        width: in columns; that of this process's own terminal where None.
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
