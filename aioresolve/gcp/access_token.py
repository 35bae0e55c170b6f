"""What proves who we are to Google, for a while. A pure value whose repr shows no secret."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AHEAD", "ANONYMOUS", "Grant"]

AHEAD = 225.0
"""Seconds before its end at which a token is renewed: google-auth's own threshold (3 min 45 s).

The metadata server hands out the same token until five minutes before its end: asking earlier gains nothing.
"""

ON_THE_WAY = 10.0
"""Seconds before its end at which a token is no longer sent, so that it does not expire on the way."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Headers that say who we are.

    Attributes:
        headers: what is sent with every request.
        expires: when that stops being valid, in seconds of Unix time; None where it does not.
        member: the IAM member it stands for, such as `serviceAccount:a@b`, where that is known.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    expires: float | None = None
    member: str | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether it need not be renewed yet."""
        return self.expires is None or time.time() < self.expires - AHEAD

    @property
    def is_valid(self) -> bool:
        """Whether a server will accept it."""
        return self.expires is None or time.time() < self.expires - ON_THE_WAY


ANONYMOUS = Grant()
"""Nobody in particular."""
