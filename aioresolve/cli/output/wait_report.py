"""Tables of what an incomplete cluster lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .formats import Table, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["counts_table", "missing_table", "wait_report"]

SHOWN = 50
"""How many missing tasks a report lists at most."""


def counts_table(found: Mapping[str, int], wanted: Mapping[str, int]) -> Table:
    """Return one row per job: the number of its usable tasks, and the number that was requested, if any.

    The empty name in `wanted` stands for the total of all jobs. It gets the last row if there are
    several jobs.
    """
    if not wanted:
        return Table(("JOB", "FOUND"), [(job, str(number)) for job, number in found.items()])
    if "" in wanted and len(found) == 1:
        wanted = dict.fromkeys(found, wanted[""])
    rows = [(job, str(number), str(wanted.get(job, ""))) for job, number in found.items()]
    if "" in wanted:
        rows.append(("(all)", str(sum(found.values())), str(wanted[""])))
    return Table(("JOB", "FOUND", "WANTED"), rows)


def missing_table(missing: Mapping[str, str]) -> Table:
    """Return one row per missing task: its name and the reason."""
    rows = [(name, " ".join(reason.split())) for name, reason in missing.items()]
    return Table(("MISSING", "REASON"), rows)


def wait_report(found: Mapping[str, int], wanted: Mapping[str, int], missing: Mapping[str, str]) -> str:
    """Return what a cluster lacks: the table of counts, an empty line, and the table of missing tasks."""
    columns, rows = missing_table(missing)
    tables = [aligned(counts_table(found, wanted)), aligned(Table(columns, rows[:SHOWN]))]
    if len(rows) > SHOWN:
        tables[-1] += f"and {len(rows) - SHOWN} more\n"
    return "\n".join(filter(None, tables)) or "no response yet\n"
