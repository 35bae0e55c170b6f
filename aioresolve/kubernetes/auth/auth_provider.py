"""auth-providers: sources of tokens in kubeconfigs, from before exec plugins existed.

`kubernetes_asyncio.config` is not used. To refresh an OIDC token, it sends the refresh token and the client
secret without verifying the server, or raises a TypeError if the kubeconfig has the issuer's CA; and its
Google command can hang, and keeps running after a cancellation, like its exec plugins.

An expired OIDC token is not refreshed here: issuers accept a refresh token once, and the new one would have
to be written to the user's kubeconfig, which is the task of kubectl.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aioresolve._core.redaction import Confidential
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, CredentialsError

from .connection import Identity, bearer, unix_time
from .exec_plugin import find_program, run_command
from .kubeconfig import parse_json

if TYPE_CHECKING:
    from .kubeconfig import AuthProvider


def identity_of(provider: AuthProvider) -> Identity:
    """Return the credentials that the kubeconfig itself contains."""
    config = dict(provider.config)
    where = provider.where
    if provider.name == "oidc":
        token, hint = config.get("id-token"), "Run any kubectl command, which gets and stores a new one."
        expires = None if token is None else _jwt_expiry(token, where)
    elif provider.name == "gcp":
        token, hint = config.get("access-token"), "Use the exec plugin gke-gcloud-auth-plugin instead."
        expires = unix_time(config.get("expiry"), f"{where}: its expiry")
    else:
        raise ConfigurationError(
            f"{where} is not supported, and not by kubectl since 1.26 either",
            hint="Replace it with an exec plugin (for azure: `kubelogin convert-kubeconfig`).",
        )
    if token is None or (expires is not None and expires <= time.time()):
        raise CredentialsError(
            f"{where}: its token {'is missing' if token is None else 'has expired'}", hint=hint
        )
    return Identity(authorization=bearer(token, f"{where}: its token"), expires=expires)


class GoogleCommand(Confidential, frozen=True):
    """The command of a `gcp` provider that prints a token: `gcloud config config-helper --format=json`."""

    where: str
    path: str
    args: tuple[str, ...]
    token_key: str
    expiry_key: str

    @property
    def key(self) -> str:
        """The kubeconfig entry that the credentials belong to."""
        return self.where

    async def identity(self) -> Identity:
        """Run the command once and return the credentials that it prints."""
        what = f"the command {os.path.basename(self.path)!r} ({self.where})"
        path = await run_in_thread(f"find {what}", find_program, self.path, what)
        output = await run_command([path, *self.args], env=dict(os.environ), what=what)
        token, expiry = _text_at(output, self.token_key), _text_at(output, self.expiry_key)
        if token is None:
            raise CredentialsError(f"{what} printed no token at the kubeconfig's token-key")
        return Identity(
            authorization=bearer(token, f"the token of {what}"),
            expires=unix_time(expiry, f"the expiry of {what}"),
        )


def google_command(provider: AuthProvider) -> GoogleCommand | None:
    """Return the command of a `gcp` provider; None if it has none, or if it is another provider."""
    config = dict(provider.config)
    if provider.name != "gcp" or "cmd-path" not in config:
        return None
    return GoogleCommand(
        where=provider.where,
        path=config["cmd-path"],
        args=tuple(config.get("cmd-args", "").split()),
        token_key=config.get("token-key", "{.access_token}"),
        expiry_key=config.get("expiry-key", "{.token_expiry}"),
    )


def _jwt_expiry(token: str, where: str) -> float | None:
    """Return the claim `exp` of a JSON Web Token (RFC 7519), in seconds of Unix time."""
    claims = jwt_claims(token)
    if claims is None:
        raise ConfigurationError(f"{where}: its id-token is not a JSON Web Token", hint="Log in again.")
    expires = claims.get("exp")
    return float(expires) if isinstance(expires, (int, float)) else None


def jwt_claims(token: str) -> dict[str, Any] | None:
    """Return the claims of a JSON Web Token (RFC 7519), which is not verified; None for any other token."""
    claims = None
    if token.isascii() and token.count(".") == 2:
        payload = token.split(".")[1]
        with suppress(binascii.Error):
            claims = parse_json(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims if isinstance(claims, dict) else None


def _text_at(output: bytes, key: str) -> str | None:
    """Return the string at a path such as `{.credential.access_token}`."""
    value = parse_json(output)
    for name in key.strip("{}").strip(".").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else None
