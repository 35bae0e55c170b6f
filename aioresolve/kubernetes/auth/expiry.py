"""When credentials expire, as far as they say so themselves. Nothing is verified."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from aioresolve._core.certificates import read_certificate

from .auth_provider import jwt_claims

if TYPE_CHECKING:
    from .connection import Identity

END_OF_TIME = 253_402_300_800.0
"""The end of the year 9999, after which `datetime` has no times."""

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def expiry(identity: Identity) -> float | None:
    """Return when the first part of an identity expires, in seconds of Unix time; None if unknown.

    The parts are what the plugin said, the claim `exp` of a token (RFC 7519), and the client certificate.
    """
    times = [identity.expires, _of_token(identity), _of_certificate(identity)]
    return min((time for time in times if time is not None and 0 <= time < END_OF_TIME), default=None)


def _of_token(identity: Identity) -> float | None:
    token = (identity.authorization or "").removeprefix("Bearer ")
    claims = jwt_claims(token)
    expires = None if claims is None else claims.get("exp")
    return float(expires) if isinstance(expires, int | float) else None


def _of_certificate(identity: Identity) -> float | None:
    if identity.certificate is None:
        return None
    _, begin, rest = identity.certificate.chain.decode("ascii", "replace").partition(_BEGIN)
    with suppress(ValueError):
        der = ssl.PEM_cert_to_DER_cert(begin + rest.partition(_END)[0] + _END)
        return read_certificate(der).not_after.timestamp()
    return None
