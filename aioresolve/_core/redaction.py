"""Removal of secrets from text that servers, commands and libraries wrote, and values without a repr. No I/O.

A server may echo the token that it received, and a command its arguments: in an error message, and so in
logs and issue reports, they must not be shown. Reports of errors may also contain the local variables of each
frame (`traceback.TracebackException(..., capture_locals=True)`): values that are secrets hide it in their
repr.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PLACEHOLDER = "(secret)"

MIN_LENGTH = 6
"""Shorter secrets are removed only where they are whole words: removing `true` everywhere would reveal it."""


class Confidential(msgspec.Struct, frozen=True):
    """A value whose repr shows nothing of it, because parts of it are secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class SecretText(str):
    """A string whose repr does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return PLACEHOLDER


class SecretBytes(bytes):
    """Bytes whose repr does not show them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return PLACEHOLDER


class SecretMapping(dict[str, Any]):
    """A dictionary whose repr does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return PLACEHOLDER


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return `text` without `secrets`: as they are, URL-encoded, in base64 or in JSON, in any case."""
    lowered = text.lower()
    found = {form for secret in secrets for form in _forms(secret) if form.lower() in lowered}
    if not found:
        return text
    # The longest first, because a secret may contain a shorter one.
    patterns = map(_pattern, sorted(found, key=len, reverse=True))
    return re.sub("|".join(patterns), PLACEHOLDER, text, flags=re.IGNORECASE)


def redact_bytes(content: bytes, secrets: Iterable[str]) -> bytes:
    """Return `content`, text in UTF-8 or other bytes, without `secrets`; see `redact`."""
    text = content.decode("utf-8", "surrogateescape")
    return redact(text, secrets).encode("utf-8", "surrogateescape")


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret, and each line of one that has several, in every encoding."""
    for text in {part.strip() for part in (secret, *secret.split("\n"))} - {""}:
        yield text
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield from (quote(text, safe="", errors="replace"), quote(text, errors="replace"))
        yield quote_plus(text, errors="replace")
        content = text.encode("utf-8", "replace")
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(content).decode("ascii").rstrip("=")
            if len(content) >= MIN_LENGTH:
                yield from (_shifted(encode(bytes(shift) + content), shift, content) for shift in range(3))


def _shifted(encoded: bytes, shift: int, content: bytes) -> str:
    """Return the part of the base64 of a longer text that depends only on `content`.

    `shift` is the position of `content` there, modulo three.
    """
    start = (0, 2, 3)[shift]
    end = (shift + len(content)) * 8 // 6  # the next digit has bits of what follows
    return encoded.decode("ascii")[start:end]


def _pattern(form: str) -> str:
    pattern = re.escape(form)
    return pattern if len(form) >= MIN_LENGTH else rf"(?<!\w){pattern}(?!\w)"
