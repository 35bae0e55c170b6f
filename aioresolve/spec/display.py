"""How values display in notebooks (`_repr_html_`) and in one line (`repr`), and names in a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_ROWS = 200
"""The number of rows of a table in a notebook."""

MAX_LINE = 200
"""The length of a `repr`, in characters."""

MAX_NAMES = 8
"""How many existing names a message has."""


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML, with all texts escaped, and without columns in which each value is None."""
    from html import escape  # few programs display values

    def element(tag: str, value: object) -> str:
        # JupyterLab aligns cells to the right, and wraps captions of narrow tables.
        style = "text-align: left; white-space: nowrap" if tag == "caption" else "text-align: left"
        return f'<{tag} style="{style}">{"" if value is None else escape(str(value))}</{tag}>'

    shown = [n for n in range(len(columns)) if not rows or any(row[n] is not None for row in rows)]
    head = "".join(element("th", columns[n]) for n in shown)
    body = "".join(f"<tr>{''.join(element('td', row[n]) for n in shown)}</tr>" for row in rows[:MAX_ROWS])
    more = f"<p>and {len(rows) - MAX_ROWS} more</p>" if len(rows) > MAX_ROWS else ""
    title = element("caption", caption.strip("<>"))
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def short_line(text: str, length: int = MAX_LINE) -> str:
    """Return `text` as one line of at most this number of characters; the end is replaced by `...`."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def task_numbers(numbers: Iterable[tuple[str, int]]) -> str:
    """Return the number of tasks, and that of each job: `3 tasks: worker 2, ps 1`."""
    jobs = list(numbers)
    total = sum(number for _, number in jobs)
    listed = ", ".join(f"{job} {number}" for job, number in jobs)
    return f"{total} task{'' if total == 1 else 's'}" + (f": {listed}" if listed else "")


def existing_names(names: Iterable[str], typed: str) -> str:
    """Return the names in alphabetical order; if there are many, those most like the `typed` one first."""
    known = sorted(set(names))
    if len(known) <= MAX_NAMES:
        return ", ".join(known)
    import difflib  # few messages need it

    near = difflib.get_close_matches(typed, known, MAX_NAMES, cutoff=0.5)
    known = [*near, *(name for name in known if name not in near)]
    return f"{', '.join(known[:MAX_NAMES])} and {len(known) - MAX_NAMES} more"
