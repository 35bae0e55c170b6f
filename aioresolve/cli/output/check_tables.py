"""The checks of `aioresolve doctor` as a table with remedies, and as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .error_messages import option_spelling
from .formats import Table, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.resolver.checks import Check


def checks_table(checks: Sequence[Check]) -> Table:
    """Return a row for each check: its name, its result, and what was found, on one line."""
    rows = [(check.name, check.result, one_line(check.found)) for check in checks]
    return Table(("CHECK", "RESULT", "FOUND"), rows)


def remedies(checks: Sequence[Check]) -> str:
    """Return what to change for each check that has a remedy, after an empty line; empty without any.

    A remedy may be several lines, such as a manifest, which can be copied.
    """
    texts = [f"{printable(check.name)}: {_lines(_remedy(check))}\n" for check in checks if check.remedy]
    return "".join(f"\n{text}" for text in texts)


def checks_document(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks as one object: `{"checks": [{"name", "result", "found", "remedy"}, ...]}`.

    A remedy is null if there is nothing to change.
    """
    return {
        "checks": [
            {
                "name": check.name,
                "result": check.result,
                "found": check.found,
                "remedy": _remedy(check) or None,
            }
            for check in checks
        ]
    }


def _remedy(check: Check) -> str:
    return "" if check.remedy is None else check.remedy.render(option_spelling).rstrip("\n")


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
