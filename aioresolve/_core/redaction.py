"""Values without a repr, and removal of known secrets from text that others wrote. No I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Confidential(msgspec.Struct, frozen=True):
    """A value whose repr shows nothing of it, because parts of it are secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return `text` without `secrets`, and without each line of those that have several."""
    found = {part.strip() for secret in secrets for part in (secret, *secret.split("\n"))} - {""}
    # The longest first, because a secret may contain a shorter one.
    for secret in sorted(found, key=len, reverse=True):
        # A short one only where it is a whole word: removing `true` everywhere would reveal it.
        boundary = r"(?<!\w){}(?!\w)" if len(secret) < 6 else "{}"
        text = re.sub(boundary.format(re.escape(secret)), "(secret)", text)
    return text
