"""How values are written: tables, one line of text, JSON and YAML, times, and what a cluster lacks."""

from __future__ import annotations

from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

ABSENT = "<none>"
"""What a column shows for a missing value, as in kubectl's tables."""

MAX_REASONS = 20
"""How many reasons for missing tasks are listed at most."""

MAX_NAMES = 3
"""How many of the tasks that are missing for one reason are named."""


class Table(NamedTuple):
    """The column names of a table, its rows with one cell per column, and on a terminal their colors."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str] = ()


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
        known = [*widths, *[0] * (len(columns) - len(widths))]
        self._widths = [*map(max, known, map(text_width, columns))][:-1]
        self._needs_header = has_headers
        self._has_colors = has_colors

    def lines(self, rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> str:
        """Return one line per row; the first call also returns the header. `styles` are colors of rows."""
        shown = [[printable(cell) or ABSENT for cell in row] for row in rows]
        for cells in shown:
            self._widths = [*map(max, self._widths, map(text_width, cells))]
        lines = [self._line(cells, style) for cells, style in zip_longest(shown, styles, fillvalue="")]
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
                    dim=column == "UID" or None,
                )
                for cell, column in zip(padded, self._columns, strict=True)
            ]
        return "   ".join(padded)


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


def format_latency(seconds: float) -> str:
    """Return the duration of a request, such as `1.5ms` or `2.25s`."""
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def some_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def wait_report(
    found: Mapping[str, int],
    wanted: Mapping[str, int],
    missing: Mapping[str, str],
    sources: Mapping[str, str] = MappingProxyType({}),
    max_reasons: int = MAX_REASONS,
) -> str:
    """Return what a cluster lacks: a table of missing tasks, an empty line, and a table of numbers.

    The first table has a row for each reason, at most `max_reasons`. The second has a row for each job: the
    number of its usable tasks, the wanted number, and what states it. In `wanted`, the empty name stands for
    the total of all jobs.
    """
    if "" in wanted and len(found) == 1:
        wanted = dict.fromkeys(found, wanted[""])
    names: dict[str, list[str]] = {}
    for name, reason in missing.items():
        names.setdefault(" ".join(reason.split()), []).append(name)
    reasons = [(some_names(each), reason) for reason, each in names.items()]
    rows = [
        (job, str(number), str(wanted.get(job, "")), sources.get(job, "")) for job, number in found.items()
    ]
    if "" in wanted:
        rows.append(("(all)", str(sum(found.values())), str(wanted[""]), ""))
    columns = ("JOB", "FOUND", "WANTED", "WANTED BY")[: 4 if sources else 3 if wanted else 2]
    tables = [
        aligned(Table(("MISSING", "REASON"), reasons[:max_reasons])),
        aligned(Table(columns, [row[: len(columns)] for row in rows])),
    ]
    if len(reasons) > max_reasons:
        tables[0] += f"and {len(reasons) - max_reasons} more reasons\n"
    return "\n".join(filter(None, tables)) or "no response yet\n"
