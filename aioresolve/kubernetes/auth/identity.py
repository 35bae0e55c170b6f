"""Who we are to an API server. Pure values whose reprs show no secret."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aioresolve.errors import ConfigurationError

__all__ = ["ClientCertificate", "Identity", "basic", "bearer", "unix_time"]


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate chain and its key, as PEM.

    Attributes:
        where: the place they came from, for messages.
    """

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    where: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """What proves who we are: a header, a client certificate, both, or nothing.

    Attributes:
        authorization: the value of the Authorization header.
        certificate: what is shown during the TLS handshake.
        expires: when it stops being valid, in seconds of Unix time; None where it does not say.
    """

    authorization: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = field(default=None, repr=False)
    expires: float | None = None


def bearer(token: str, where: str) -> str:
    """Return the Authorization header of a bearer token.

    Raises:
        ConfigurationError: the token is empty or holds what no header may hold.
    """
    token = token.strip()
    if not token:
        raise ConfigurationError(f"{where} is empty; put the token there")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigurationError(
            f"{where} holds a line break, a space or another character that no token has; "
            "put the bare token there"
        )
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a user name and password (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")


def unix_time(timestamp: str | None, where: str) -> float | None:
    """Return an RFC 3339 time as seconds of Unix time; None where there is none.

    Raises:
        ConfigurationError: it is no such time.
    """
    if not timestamp:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        raise ConfigurationError(f"{where} is no RFC 3339 time such as 2030-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
