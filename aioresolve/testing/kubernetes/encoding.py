"""JSON as the API server writes it: Go's encoding/json, compact or indented by two spaces, HTML-safe."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["compact_json", "indented_json"]


def compact_json(value: Any) -> bytes:
    """`value` as one line of UTF-8 JSON without spaces, `<`, `>` and `&` escaped as Go escapes them."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _html_safe(text).encode()


def indented_json(body: bytes) -> bytes:
    """The JSON document `body` indented by two spaces, as a person's client (curl, a browser) is answered."""
    return _html_safe(json.dumps(json.loads(body), ensure_ascii=False, indent=2)).encode()


def _html_safe(text: str) -> str:
    # Outside of strings JSON has none of these characters, so replacing them everywhere is exact.
    return (
        text.replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
