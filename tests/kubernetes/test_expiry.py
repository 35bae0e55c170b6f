"""When credentials expire, as far as they say so themselves."""

from __future__ import annotations

import pytest

from aioresolve.kubernetes.auth.connection import EXPIRY_MARGIN, Identity
from aioresolve.kubernetes.auth.expiry import END_OF_TIME, expiry

from .kubeconfigs import id_token


def test_first_part_that_expires_decides() -> None:
    token = f"Bearer {id_token(exp=2_000)}"
    assert expiry(Identity(token, expires=1_000.0)) == 1_000.0
    assert expiry(Identity(token, expires=3_000.0)) == 2_000.0
    assert expiry(Identity(token)) == 2_000.0
    for authorization in (None, "Basic YTpi", "Bearer opaque", f"Bearer {id_token(sub='ada')}"):
        assert expiry(Identity(authorization)) is None
        assert expiry(Identity(authorization, expires=1_000.0)) == 1_000.0


def test_end_that_is_not_a_date_from_1970_to_9999_is_not_known() -> None:
    for expires in (-1.0, END_OF_TIME):
        assert expiry(Identity(f"Bearer {id_token(exp=expires)}")) is None
    for expires in (0.0, END_OF_TIME - 1):
        assert expiry(Identity(expires=expires)) == expires


@pytest.mark.parametrize(("seconds_left", "is_used"), [(EXPIRY_MARGIN + 0.5, True), (EXPIRY_MARGIN, False)])
def test_identity_is_used_until_shortly_before_its_end(
    seconds_left: float, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.auth.connection.time", lambda: 2_000.0)
    identity = Identity(expires=2_000.0 + seconds_left)
    assert (identity.is_fresh, identity.is_valid) == (is_used, is_used)
