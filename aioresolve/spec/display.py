"""How values display in notebooks (`_repr_html_`), and in one line (`repr`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_ROWS = 200
"""The number of rows of a table in a notebook."""

MAX_LINE = 200
"""The length of a `repr`, in characters."""


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML, with all texts escaped; None is an empty cell."""
    from html import escape  # few programs display values

    def cell(value: object) -> str:
        return "" if value is None else escape(str(value))

    left = 'style="text-align: left"'  # JupyterLab aligns cells to the right
    head = "".join(f"<th {left}>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td {left}>{cell(value)}</td>' for value in row)}</tr>" for row in rows[:MAX_ROWS]
    )
    more = f"<p>and {len(rows) - MAX_ROWS} more</p>" if len(rows) > MAX_ROWS else ""
    caption = f"<caption {left}>{escape(caption.strip('<>'))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def short_line(text: str, length: int = MAX_LINE) -> str:
    """Return `text` as one line of at most this number of characters; the end is replaced by `...`."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def counted(numbers: Iterable[tuple[str, int]]) -> str:
    """Return the number of tasks, and that of each job: `3 tasks: worker 2, ps 1`."""
    jobs = list(numbers)
    total = sum(number for _, number in jobs)
    listed = ", ".join(f"{job} {number}" for job, number in jobs)
    return f"{total} task{'' if total == 1 else 's'}" + (f": {listed}" if listed else "")
