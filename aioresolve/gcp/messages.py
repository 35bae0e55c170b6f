"""Decoding of JSON responses, and the access tokens among them (RFC 6749)."""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["AccessToken", "decode_json", "decode_token"]

T = TypeVar("T")


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """An access token of the metadata server; `expires_in` is in seconds."""

    access_token: str
    expires_in: float = 0.0

    def __repr__(self) -> str:
        return f"AccessToken(expires_in={self.expires_in})"


# Some servers write numbers as strings.
_tokens = msgspec.json.Decoder(AccessToken, strict=False)


def decode_token(body: bytes) -> AccessToken:
    """Return the access token in `body`; raises a ValueError without any part of it if it is malformed."""
    return decode_json(_tokens, body)


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return what `decoder` decodes from `body`; raises a ValueError if it is malformed."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
