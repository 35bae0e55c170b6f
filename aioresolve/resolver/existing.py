"""What a source has in place of what was not found there, so that a message helps after a typing error."""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from aioresolve.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioresolve.spec import Observation

    from .base import ClusterResolver

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


async def explain(resolver: ClusterResolver, observation: Observation) -> Observation:
    """Return the observation with what does not exist in `unmatched`, if the source says so in time.

    Requests are sent only if a name or a selector of the resolver has found nothing.
    """
    with anyio.move_on_after(TIMEOUT), suppress(ResolveError):
        return replace(observation, unmatched=await resolver._unmatched(observation))
    return observation
