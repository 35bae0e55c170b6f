"""What a source has in place of what was not found there, so that a message helps after a typing error."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT = 2.0
"""Seconds that a source has to list what exists; a message does not wait for it any longer."""

MAX_NAMES = 8
"""How many of the existing names a message has."""


def existing_names(names: Iterable[str], typed: str) -> str:
    """Return the names in alphabetical order; if there are many, those most like the `typed` one first."""
    known = sorted(set(names))
    if len(known) > MAX_NAMES:
        near = difflib.get_close_matches(typed, known, MAX_NAMES, cutoff=0.5)
        known = [*near, *(name for name in known if name not in near)]
    more = len(known) - MAX_NAMES
    return ", ".join(known[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
