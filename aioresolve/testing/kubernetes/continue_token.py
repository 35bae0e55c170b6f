"""Continue tokens of chunked lists: `{"v":"meta.k8s.io/v1","rv":8470,"start":"/train-1\\u0000"}` in base64.

Format: k8s.io/apiserver/pkg/storage/continue.go. `start` is the key after which the next page begins,
relative to the namespace listed; `rv` the version of the first page, or -1 for whatever there is now.
"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
import re
from dataclasses import dataclass
from typing import Any

from aioresolve.testing.kubernetes.encoding import compact_json

__all__ = ["ContinueToken", "InvalidTokenError"]

_INVALID = "continue key is not valid"


class InvalidTokenError(ValueError):
    """The token was not made by an API server; the message is the server's own."""


@dataclass(frozen=True, slots=True)
class ContinueToken:
    """Where the next page starts.

    Attributes:
        version: the version listed; -1 is the current one.
        start: the key of the first pod that may follow, relative, without a leading slash.
    """

    version: int
    start: str

    def encoded(self, *, rooted: bool = True) -> str:
        """The token as a client gets it; `rooted` puts a slash before the key, which is left out on 410."""
        start = f"/{self.start}" if rooted else self.start
        body = compact_json({"v": "meta.k8s.io/v1", "rv": self.version, "start": start})
        return base64.urlsafe_b64encode(body).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> ContinueToken:
        """The token that a client sent back.

        Raises:
            InvalidTokenError: it is none.
        """
        document = _document(_decoded_base64(text))
        version = document.get("v", "")
        if version != "meta.k8s.io/v1":
            raise InvalidTokenError(f'{_INVALID}: server does not recognize this encoded version "{version}"')
        revision, start = document.get("rv", 0), document.get("start", "")
        if not isinstance(revision, int) or not isinstance(start, str):
            raise InvalidTokenError(f"{_INVALID}: json: cannot unmarshal")
        if revision == 0:
            raise InvalidTokenError(
                f"{_INVALID}: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
            )
        if not start:
            raise InvalidTokenError(f"{_INVALID}: encoded start key empty (version meta.k8s.io/v1)")
        key = start if start.startswith("/") else f"/{start}"
        if posixpath.normpath(key) != key:
            raise InvalidTokenError(f"{_INVALID}: {start}")
        return cls(revision, key[1:])


def _decoded_base64(text: str) -> bytes:
    wrong = re.search(r"[^A-Za-z0-9_-]", text)
    if wrong is not None:
        raise InvalidTokenError(f"{_INVALID}: illegal base64 data at input byte {wrong.start()}")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise InvalidTokenError(f"{_INVALID}: illegal base64 data at input byte {len(text)}") from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except UnicodeDecodeError:
        raise InvalidTokenError(f"{_INVALID}: {_unexpected(body, 0)}") from None
    except json.JSONDecodeError as error:
        raise InvalidTokenError(f"{_INVALID}: {_unexpected(body, error.pos)}") from None
    if not isinstance(document, dict):
        raise InvalidTokenError(
            f"{_INVALID}: json: cannot unmarshal into Go value of type storage.continueToken"
        )
    return document


def _unexpected(body: bytes, position: int) -> str:
    if position >= len(body):
        return "unexpected end of JSON input"
    byte = body[position]
    shown = chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
    return f"invalid character '{shown}' looking for beginning of value"
