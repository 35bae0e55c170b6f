"""Who is asking, and may they: bearer tokens, passwords, client certificates, and RBAC as far as pods go."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .statuses import forbidden, unauthorized

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .requests import Target

__all__ = ["ANONYMOUS", "Access", "Caller"]

ANONYMOUS = "system:anonymous"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: `user` is None where the credentials are not accepted, `scheme` is how they were given."""

    user: str | None
    scheme: str = ""


class Access:
    """The users of a server and what they may do; every attribute may be changed while it runs.

    Attributes:
        tokens: bearer token to user name; None lets everybody in.
        passwords: user name to password, for basic authentication.
        allow: user name to the namespaces it may use, None being all of them; without a mapping every user
            may use everything.
        anonymous: whether a request without credentials is let in as `system:anonymous`, to be refused by
            `allow`.
    """

    def __init__(
        self,
        tokens: Mapping[str, str] | None,
        passwords: Mapping[str, str] | None,
        allow: Mapping[str, Collection[str] | None] | None,
        anonymous: bool,
    ) -> None:
        self.tokens = None if tokens is None else dict(tokens)
        self.passwords = dict(passwords or {})
        self.allow = None if allow is None else dict(allow)
        self.anonymous = anonymous

    def caller(self, authorization: str, certificate: Mapping[str, Any] | None) -> Caller:
        """Who sent a request with this `Authorization` header and (verified) client certificate."""
        user = _common_name(certificate)
        if user is not None:
            return Caller(user, "Certificate")
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return Caller(self._token_user(credentials.strip()), "Bearer")
        if scheme.lower() == "basic":
            return Caller(self._password_user(credentials.strip()), "Basic")
        if self._open or self.anonymous:
            return Caller(ANONYMOUS)
        return Caller(None)

    def check(self, caller: Caller, target: Target) -> None:
        """Return when `caller` may do what it asks.

        Raises:
            Failure: 401 or 403, as the API server says it.
        """
        if caller.user is None:
            raise unauthorized()
        if not self._may(caller.user, target.namespace):
            raise forbidden(caller.user, target.verb, target.namespace, target.name, target.subresource)

    @property
    def _open(self) -> bool:
        return self.tokens is None and not self.passwords

    def _may(self, user: str, namespace: str | None) -> bool:
        if self.allow is None:
            return self._open or user != ANONYMOUS
        if user not in self.allow:
            return False
        namespaces = self.allow[user]
        return namespaces is None or namespace in namespaces

    def _token_user(self, token: str) -> str | None:
        if self.tokens is None:
            return ANONYMOUS if self._open else None
        return self.tokens.get(token)

    def _password_user(self, credentials: str) -> str | None:
        try:
            user, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if self._open:
            return user
        known = self.passwords.get(user)
        return user if known is not None and known == password else None


def _common_name(certificate: Mapping[str, Any] | None) -> str | None:
    for relative_name in (certificate or {}).get("subject", ()):
        for key, value in relative_name:
            if key == "commonName":
                return str(value)
    return None
