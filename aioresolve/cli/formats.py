"""How values are written: tables, one line of text, JSON and YAML, times, and what a cluster lacks."""

from __future__ import annotations

import textwrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

ABSENT = "<none>"
"""What a column shows for a missing value, as in kubectl's tables."""

GAP = "   "
"""What separates two columns."""

MAX_REASONS = 20
"""How many reasons for missing tasks are listed at most."""

MAX_NAMES = 3
"""How many of the tasks that are missing for one reason are named."""

LAST_WIDTH = 24
"""How much of the last column is visible on a narrow terminal, in characters."""

NAME_WIDTH = 12
"""How much of the widest other column is visible on the narrowest terminal, in characters."""


class Table(NamedTuple):
    """The column names of a table, its rows with one cell per column, and how a terminal shows them.

    `styles` are the colors of the rows. `expendable` are the columns that a narrow terminal does not show, in
    this order. The last column is cut, or with `wraps` continued on further lines.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str] = ()
    expendable: Sequence[str] = ()
    wraps: bool = False

    def without_empty(self, names: Sequence[str]) -> Table:
        """Return the table; a column in `names` is left out if no row has a value in it."""
        kept = [
            place
            for place, column in enumerate(self.columns)
            if column not in names or any(row[place] for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return self._replace(columns=[self.columns[place] for place in kept], rows=rows)

    def fitted(self, width: int) -> Table:
        """Return the table for a terminal with so many columns: every line fits, if that is possible."""
        cells = {
            name: [printable(row[place]) or ABSENT for row in self.rows]
            for place, name in enumerate(self.columns)
        }
        last = self.columns[-1]

        def widest_cell(name: str) -> int:
            return max(map(text_width, (name, *cells[name])))

        def left_for_last() -> int:
            return width - sum(widest_cell(name) + len(GAP) for name in cells if name != last)

        least = min(widest_cell(last), LAST_WIDTH)
        for name in self.expendable:
            if left_for_last() < least:
                cells.pop(name, None)
        widest = max((name for name in cells if name != last), key=widest_cell, default=last)
        limit = max(NAME_WIDTH, widest_cell(widest) - (least - left_for_last()))  # cuts nothing if all fits
        cells[widest] = [truncated(cell, limit) for cell in cells[widest]]
        limit = max(left_for_last(), 1)
        rows: list[tuple[str, ...]] = []
        styles: list[str] = []
        for place, row in enumerate(zip(*cells.values(), strict=True)):
            lines = (
                textwrap.wrap(row[-1], max(limit, NAME_WIDTH)) if self.wraps else [truncated(row[-1], limit)]
            )
            rows += [
                (*(" " if number else cell for cell in row[:-1]), line) for number, line in enumerate(lines)
            ]
            styles += [self.styles[place] if place < len(self.styles) else ""] * len(lines)
        return Table([*cells], rows, styles)


class TextTable:
    """A table as kubectl prints it, for `awk` and for terminals; its rows may become known one after another.

    Columns are three spaces apart and as wide as the widest cell so far; no cell is truncated, empty or
    contains unprintable characters. `widths` are the minimum widths of the first columns; a column is at
    least as wide as its name.
    """

    def __init__(
        self,
        columns: Sequence[str],
        widths: Sequence[int] = (),
        *,
        has_headers: bool = True,
        has_colors: bool = False,
    ) -> None:
        self._columns = columns
        names = [*map(text_width, columns)]
        self._widths = [*map(max, widths, names), *names[len(widths) :]][:-1]
        self._needs_header = has_headers
        self._has_colors = has_colors

    def lines(self, rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> str:
        """Return one line per row; the first call also returns the header. `styles` are colors of rows."""
        shown = [[printable(cell) or ABSENT for cell in row] for row in rows]
        for cells in shown:
            self._widths = [*map(max, self._widths, map(text_width, cells))]
        colors = [*styles, *[""] * (len(rows) - len(styles))]
        lines = [self._line(cells, style) for cells, style in zip(shown, colors, strict=True)]
        if self._needs_header:
            header = self._line(self._columns)
            lines.insert(0, click.style(header, bold=True) if self._has_colors else header)
        self._needs_header = False
        return "".join(f"{line}\n" for line in lines)

    def _line(self, cells: Sequence[str], style: str | None = None) -> str:
        """Return the cells as a line; in the colors of `style` and of their columns, except for headers."""
        padded = [*map(pad, cells, self._widths), cells[-1]]
        if self._has_colors and style is not None:
            padded = [
                click.style(
                    cell,
                    fg=style or ("cyan" if column == "JOB" else None),
                    bold=column == "ADDRESS" or None,
                )
                for cell, column in zip(padded, self._columns, strict=True)
            ]
        return GAP.join(padded)


def aligned(table: Table, *, has_headers: bool = True, has_colors: bool = False) -> str:
    """Return the table as text; one without rows is empty text."""
    if not table.rows:
        return ""
    text = TextTable(table.columns, has_headers=has_headers, has_colors=has_colors)
    return text.lines(table.rows, table.styles[: len(table.rows)])


def text_width(text: str) -> int:
    """Return how many columns of a terminal a printable text takes: two for an East Asian wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # imported now because few texts need it

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """Return `text` with spaces after it, so that it takes at least so many columns of a terminal."""
    return text + " " * (columns - text_width(text))


def truncated(text: str, columns: int) -> str:
    """Return `text`, cut to so many columns of a terminal with an ellipsis."""
    if text_width(text) <= columns:
        return text
    from rich.text import Text

    shown = Text(text)
    shown.truncate(columns, overflow="ellipsis")
    return shown.plain


def printable(text: str) -> str:
    r"""Return `text` with unprintable characters escaped (`\x1b`), so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def one_line(text: str) -> str:
    """Return `text` as one `printable` line, with single spaces between its words."""
    return printable(" ".join(text.split()))


def as_json_line(value: dict[str, Any]) -> str:
    """Return an object as one line of JSON, with its line feed."""
    return msgspec.json.encode(value).decode() + "\n"


def as_yaml(value: dict[str, Any]) -> str:
    """Return an object as YAML."""
    import yaml

    # If PyYAML was built with libyaml, this writes a thousand pods ten times as fast.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def format_instant(moment: datetime | None) -> str | None:
    """Return a time in UTC in the format of RFC 3339, such as `2026-11-20T19:27:00.123456Z`."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def format_span(seconds: float) -> str:
    """Return a duration by its two largest units, as kubectl shows ages: `350ms`, `7s`, `5m12s`."""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f}ms"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number)


def some_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def by_reason(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each reason once, after the names of the first tasks that it holds for."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(" ".join(reason.split()), []).append(name)
    return [(some_names(each), reason) for reason, each in names.items()]


def wait_report(
    found: Mapping[str, int],
    wanted: Mapping[str, int],
    missing: Mapping[str, str],
    sources: Mapping[str, str] = MappingProxyType({}),
    *,
    width: int | None = None,
    max_reasons: int = MAX_REASONS,
) -> str:
    """Return what a cluster lacks: a table of missing tasks, an empty line, and a table of numbers.

    The first table has a row for each reason, at most `max_reasons`. The second has a row for each job: the
    number of its usable tasks, the wanted number, and what states it. In `wanted`, the empty name stands for
    the total of all jobs. `width` is that of the terminal, if the lines have to fit.
    """
    if "" in wanted and len(found) == 1:
        wanted = dict.fromkeys(found, wanted[""])
    reasons = by_reason(missing)
    rows = [
        (job, str(number), str(wanted.get(job, "")), sources.get(job, "")) for job, number in found.items()
    ]
    if "" in wanted:
        rows.append(("(all)", str(sum(found.values())), str(wanted[""]), ""))
    tables = [
        Table(("MISSING", "REASON"), reasons[:max_reasons], wraps=True),
        Table(("JOB", "FOUND", "WANTED", "WANTED BY"), rows).without_empty(("WANTED", "WANTED BY")),
    ]
    first, second = (aligned(table.fitted(width) if width else table) for table in tables)
    if len(reasons) > max_reasons:
        first += f"and {len(reasons) - max_reasons} more\n"
    return "\n".join(filter(None, (first, second))) or "no response yet\n"
