"""Lines and tables that are redrawn on a terminal, with rich. Imported only if something is drawn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.live
import rich.text

from .formats import Table, TextTable, printable

if TYPE_CHECKING:
    from collections.abc import Callable


def table_lines(table: Table) -> list[rich.text.Text]:
    """Return the header and the rows of the table as lines, which a narrow terminal truncates."""
    text = TextTable(table.columns, has_colors=True).lines(table.rows, table.styles[: len(table.rows)])
    return [single_line(rich.text.Text.from_ansi(line)) for line in text.splitlines()]


def single_line(text: str | rich.text.Text, style: str = "") -> rich.text.Text:
    """Return `text` as one line, which a narrow terminal truncates with an ellipsis."""
    shown = rich.text.Text(printable(text), style) if isinstance(text, str) else text
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def new_live(
    stream: TextIO, render: Callable[[int, int], rich.console.RenderableType], *, keep: bool
) -> rich.live.Live:
    """Return a display of what `render` returns for a number of columns and lines; see `live.draw_live`."""
    console = rich.console.Console(
        file=stream,
        force_terminal=True,
        no_color=bool(os.environ.get("NO_COLOR")),
        markup=False,
        highlight=False,
        emoji=False,
    )
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
