"""Secrets are removed from text in every usual encoding."""

from __future__ import annotations

import base64
import json
import urllib.parse

from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.redaction import redact, redact_bytes

SECRET = 'hunter22+/"pa ss='


def test_secret_is_removed_in_every_encoding() -> None:
    for form in (
        SECRET,
        SECRET.upper(),
        urllib.parse.quote(SECRET),
        urllib.parse.quote(SECRET, safe="").lower(),
        urllib.parse.quote_plus(SECRET),
        json.dumps(SECRET)[1:-1],
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
    ):
        assert redact(f"login as {form} failed", [SECRET]).startswith("login as (secret)")
        assert "hunter22" not in redact_bytes(f"\xff {form}".encode(), [SECRET]).decode().lower()


@given(st.binary(max_size=7), st.binary(max_size=7))
def test_secret_is_removed_from_the_base64_of_a_longer_text(before: bytes, after: bytes) -> None:
    secret = b"hunter22-hunter23"
    encoded = base64.b64encode(before + secret + after).decode()
    shown = redact(encoded, [secret.decode()])
    assert "(secret)" in shown
    assert len(shown.replace("(secret)", "")) <= len(base64.b64encode(before + after)) + 4


def test_short_secret_is_removed_where_it_is_a_whole_word() -> None:
    assert redact("pw=abc, abcd, xabc, %61, abc", ["abc"]) == "pw=(secret), abcd, xabc, %61, (secret)"


def test_longer_of_two_secrets_is_removed_as_a_whole() -> None:
    assert redact("secret-token-2", ["secret", "secret-token-2"]) == "(secret)"
    assert redact("a secret", ["secret"]) == "a (secret)"


def test_each_line_of_a_secret_is_removed() -> None:
    assert redact("key: second-line", ["first-line\n\nsecond-line\n"]) == "key: (secret)"


def test_text_without_a_secret_is_unchanged() -> None:
    assert redact("a text", ["", "  ", "token"]) == "a text"
    assert redact_bytes(b"\xff\xfe text", ["token"]) == b"\xff\xfe text"
