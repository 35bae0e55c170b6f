"""What is drawn on a terminal. The room of rich, imported only where somebody looks."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.table
import rich.text

from .output import ABSENT, Table, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from .output import Section

__all__ = ["Line", "drawn_bar", "drawn_sections", "drawn_table"]

BAR = 24
"""Columns of a bar."""

STYLES = {"JOB": "cyan", "ADDRESS": "bold", "UID": "dim"}


def drawn_table(table: Table) -> str:
    """Return the table with colours, each row on one line: an address is never cut."""
    if not table.rows:
        return ""
    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in table.columns:
        drawn.add_column(column, style=STYLES.get(column, ""), no_wrap=True)
    for row in table.rows:
        # Text and not str: an IPv6 address stands in brackets, as rich's markup does.
        drawn.add_row(*(rich.text.Text(printable(cell) or ABSENT) for cell in row))
    return _drawn(drawn)


def drawn_bar(share: float, said: str, columns: int) -> str:
    """Return a bar of which `share`, from 0 to 1, is full, and what is said beside it, on one line."""
    from rich.progress_bar import ProgressBar

    page = io.StringIO()
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(ProgressBar(1.0, share, width=BAR), rich.text.Text(said, no_wrap=True, overflow="ellipsis"))
    _console(page, width=max(columns, 1)).print(grid, end="")
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
    _console(page, width=100_000).print(what, crop=False, end="")
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


class Line:
    """A line on a terminal that moves while something is waited for; it is gone when it is stopped."""

    def __init__(self, stream: TextIO, text: str) -> None:
        self._status = _console(stream).status(rich.text.Text(text), spinner="dots", spinner_style="cyan")
        self._status.start()

    def say(self, text: str) -> None:
        """Put `text` in the place of what the line says."""
        self._status.update(rich.text.Text(text))

    def stop(self) -> None:
        """Remove the line and give the cursor back."""
        self._status.stop()


def _console(stream: TextIO, width: int | None = None) -> rich.console.Console:
    return rich.console.Console(
        file=stream,
        force_terminal=True,
        no_color=bool(os.environ.get("NO_COLOR")),
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
    )
