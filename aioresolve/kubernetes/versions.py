"""resourceVersions: which of two is newer, which of several is the oldest.

Those of one resource type compare as whole numbers (KEP-5504, "Comparable Resource Version"). A server whose
versions are no numbers has versions that compare with none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_newer", "is_older", "oldest_version", "version_number"]

MAX_DIGITS = 40
"""More digits than a version of 128 bits has."""


def version_number(version: str) -> int | None:
    """Return what a resourceVersion counts; None where it is no number."""
    if version.isascii() and version.isdigit() and len(version) <= MAX_DIGITS:
        return int(version)
    return None


def is_newer(number: int | None, than: int | None) -> bool:
    """Whether one version is newer than another; of two that do not compare, the one that came last is."""
    return number is None or than is None or number > than


def is_older(number: int | None, than: int | None) -> bool:
    """Whether one version is known to be older than another."""
    return number is not None and than is not None and number < than


def oldest_version(versions: Iterable[str]) -> str | None:
    """Return the resourceVersion that a state made of several lists is at least as new as, if any."""
    numbers = {version: version_number(version) for version in versions}
    if len(numbers) == 1:
        return next(iter(numbers)) or None
    known = {version: number for version, number in numbers.items() if number is not None}
    return min(known, key=known.__getitem__) if known and len(known) == len(numbers) else None
