"""From what a cluster lacks to the text that says so. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .formats import Table, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["counts_table", "missing_table", "report"]

SHOWN = 50
"""How many of the missing a report names."""


def counts_table(found: Mapping[str, int], wanted: Mapping[str, int]) -> Table:
    """Return one row per job: how many of its tasks can be used, and how many are wanted, if that is said.

    The empty name in `wanted` stands for all jobs together, and has the last row, if there are several.
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
    """Return one row per name that is missing, with the reason."""
    rows = [(name, " ".join(reason.split())) for name, reason in missing.items()]
    return Table(("MISSING", "REASON"), rows)


def report(found: Mapping[str, int], wanted: Mapping[str, int], missing: Mapping[str, str]) -> str:
    """Return what a cluster lacks as tables, an empty line between them."""
    columns, rows = missing_table(missing)
    tables = [aligned(counts_table(found, wanted)), aligned(Table(columns, rows[:SHOWN]))]
    if len(rows) > SHOWN:
        tables[-1] += f"and {len(rows) - SHOWN} more\n"
    return "\n".join(filter(None, tables)) or "nothing has answered yet\n"
