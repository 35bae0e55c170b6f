"""Who gets an access token, and how long it lasts: OAuth 2.0 as Google's token servers speak it."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioresolve.errors import MissingDependencyError

from .statuses import json_reply, oauth_failure, unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.testing.replies import Reply

__all__ = ["Tokens", "service_account_key"]

JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
GOOGLES_OWN = "https://oauth2.googleapis.com/token"
LONGEST_ASSERTION = 3600.0
SKEW = 300.0


@dataclass(slots=True)
class Tokens:
    """The tokens that are good, and the secrets that earn new ones.

    Attributes:
        known: token to IAM member, for good; None while every service is open to everybody.
        lifetime: seconds that a token issued from now on lasts.
        email: the service account's address.
        client_secret, refresh_token, subject_token: what an authorized user and a federated workload show.
    """

    known: dict[str, str] | None
    email: str
    lifetime: float = 3599.0
    client_id: str = "1234567890.apps.googleusercontent.com"
    client_secret: str = field(default_factory=lambda: f"client-{secrets.token_hex(8)}", repr=False)
    refresh_token: str = field(default_factory=lambda: f"refresh-{secrets.token_hex(8)}", repr=False)
    subject_token: str = field(default_factory=lambda: f"subject-{secrets.token_hex(8)}", repr=False)
    user: str = "user:alice@example.com"
    _issued: dict[str, tuple[str, float]] = field(default_factory=dict, repr=False)

    def member(self, token: str) -> str | None:
        """The IAM member that a token stands for, None where it is not good."""
        if self.known is not None and token in self.known:
            return self.known[token]
        member, end = self._issued.get(token, ("", 0.0))
        return member if time.time() < end else None

    def revoke(self) -> None:
        """Let every token issued so far be good no more."""
        self._issued.clear()

    def issue(self, member: str) -> tuple[str, float]:
        """A new token, and when it ends in seconds of Unix time."""
        token = f"ya29.{secrets.token_urlsafe(24)}"
        end = time.time() + self.lifetime
        self._issued[token] = (member, end)
        return token, end

    def issued_json(self, member: str, **more: Any) -> dict[str, Any]:
        """A new token as a token endpoint writes it."""
        token, _ = self.issue(member)
        return {"access_token": token, "expires_in": int(self.lifetime), "token_type": "Bearer", **more}

    def granted(self, form: Mapping[str, str], audience: str) -> Reply:
        """The answer of `oauth2.googleapis.com/token`.

        Raises:
            Failure: nothing is granted.
        """
        match form.get("grant_type"):
            case grant if grant == JWT_GRANT:
                scope = self._asserted(form.get("assertion", ""), audience)
                return json_reply(self.issued_json(f"serviceAccount:{self.email}", scope=scope))
            case "refresh_token":
                if form.get("client_secret") != self.client_secret:
                    raise oauth_failure("invalid_client", "The OAuth client was not found.", 401)
                if form.get("refresh_token") != self.refresh_token:
                    raise oauth_failure("invalid_grant", "Token has been expired or revoked.")
                return json_reply(self.issued_json(self.user, scope=form.get("scope", "")))
        raise oauth_failure("unsupported_grant_type", "Invalid grant_type.")

    def exchanged(self, form: Mapping[str, str]) -> Reply:
        """The answer of `sts.googleapis.com/v1/token` (RFC 8693).

        Raises:
            Failure: nothing is granted.
        """
        if form.get("grant_type") != EXCHANGE_GRANT:
            raise oauth_failure("unsupported_grant_type", "Invalid grant_type.")
        if form.get("subject_token") != self.subject_token:
            raise oauth_failure("invalid_grant", "The given credential is rejected.")
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return json_reply(self.issued_json("principal://pool/subject/workload", issued_token_type=kind))

    def impersonated(self, email: str, member: str | None) -> Reply:
        """The answer of `iamcredentials.googleapis.com` to generateAccessToken.

        Raises:
            Failure: the caller is nobody.
        """
        if member is None:
            raise unauthenticated(True)
        token, end = self.issue(f"serviceAccount:{email}")
        expire = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
        return json_reply({"accessToken": token, "expireTime": expire})

    def _asserted(self, assertion: str, audience: str) -> str:
        """The scope that a signed assertion (RFC 7523) asks for, once it has been verified."""
        try:
            head, payload, signature = (_decoded(part) for part in assertion.split("."))
            header, claims = json.loads(head), json.loads(payload)
            _verify(assertion.rpartition(".")[0].encode(), signature)
        except (ValueError, binascii.Error) as error:
            raise oauth_failure("invalid_grant", "Invalid JWT Signature.") from error
        now = time.time()
        if header.get("alg") != "RS256" or claims.get("iss") != self.email:
            raise oauth_failure("invalid_grant", "Invalid grant: account not found")
        # google-auth names Google's own token server, wherever the key file sends it.
        if claims.get("aud") not in (audience, GOOGLES_OWN):
            raise oauth_failure("invalid_grant", "Invalid JWT: Failed audience check.")
        start, end = float(claims.get("iat", 0)), float(claims.get("exp", 0))
        if not (start - SKEW <= now < end) or end - start > LONGEST_ASSERTION:
            raise oauth_failure(
                "invalid_grant",
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.",
            )
        scope = str(claims.get("scope", ""))
        if not scope:
            raise oauth_failure("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        return scope


def service_account_key(email: str, project: str, token_uri: str) -> dict[str, str]:
    """The key file of a service account, whose assertions `Tokens` accepts.

    Raises:
        MissingDependencyError: cryptography is not installed.
    """
    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "0123456789abcdef0123456789abcdef01234567",
        "private_key": _key_pair().pem,
        "client_email": email,
        "client_id": "112233445566778899000",
        "token_uri": token_uri,
        "universe_domain": "googleapis.com",
    }


class _KeyPair:
    def __init__(self, private: Any, pem: str) -> None:
        self.private = private
        self.pem = pem


@functools.cache
def _key_pair() -> _KeyPair:
    """An RSA key pair, made once in a process: making one takes a tenth of a second."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError as error:
        raise MissingDependencyError(
            "a service account's key needs cryptography: pip install 'aioresolve[testing]'"
        ) from error
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _KeyPair(private, pem.decode())


def _verify(signed: bytes, signature: bytes) -> None:
    """Raise a ValueError unless the key pair signed this."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    try:
        _key_pair().private.public_key().verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise ValueError("the signature is not the key's") from error


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
