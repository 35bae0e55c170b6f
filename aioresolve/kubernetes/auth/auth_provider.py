"""auth-providers: the way before exec plugins for a kubeconfig to name a source of tokens.

`oidc` and `gcp` are read here and not by `kubernetes_asyncio.config`. To refresh an OIDC token that one sends
the refresh token and the client secret without verifying whom it talks to, or, where the kubeconfig names
the issuer's CA, fails on its type; and its Google command can hang, and is left running on cancellation, as
its exec plugins are. An expired OIDC token is not refreshed here either: issuers take a refresh token once,
and the next one would have to be written into the user's kubeconfig, which is kubectl's to do.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioresolve._core.yaml_document import parse_json
from aioresolve.errors import ConfigurationError, CredentialsError

from .exec_plugin import output_of
from .identity import Identity, bearer, unix_time

if TYPE_CHECKING:
    from .kubeconfig import AuthProvider

__all__ = ["GoogleCommand", "google_command", "identity_of"]


def identity_of(provider: AuthProvider) -> Identity:
    """Return who the tokens in the kubeconfig itself say we are.

    Raises:
        ConfigurationError: the provider is unknown, or has no token that can be read.
        CredentialsError: the token has expired.
    """
    config = dict(provider.config)
    where = provider.where
    if provider.name == "oidc":
        token, mend = config.get("id-token"), "run any kubectl command, which gets and stores a new one"
        expires = None if token is None else _jwt_expiry(token, where)
    elif provider.name == "gcp":
        token, mend = config.get("access-token"), "use the exec plugin gke-gcloud-auth-plugin instead"
        expires = unix_time(config.get("expiry"), f"{where}: its expiry")
    else:
        raise ConfigurationError(
            f"{where} is not known here, nor to kubectl since 1.26; "
            "write the user's entry anew with an exec plugin (azure: `kubelogin convert-kubeconfig`)"
        )
    if token is None or (expires is not None and expires <= time.time()):
        raise CredentialsError(
            f"{where}: its token {'is missing' if token is None else 'has expired'}; {mend}"
        )
    return Identity(authorization=bearer(token, f"{where}: its token"), expires=expires)


@dataclass(frozen=True, slots=True)
class GoogleCommand:
    """A `gcp` provider's command that prints a token: `gcloud config config-helper --format=json`."""

    where: str
    path: str
    args: tuple[str, ...] = field(repr=False)
    token_key: str = field(repr=False)
    expiry_key: str = field(repr=False)

    @property
    def key(self) -> str:
        """The kubeconfig entry that the credentials belong to."""
        return self.where

    async def identity(self) -> Identity:
        """Return who the command says we are; it runs once.

        Raises:
            CredentialsError: it failed, or printed no token.
        """
        what = f"the command {os.path.basename(self.path)!r} ({self.where})"
        printed = await output_of([self.path, *self.args], env=os.environ, what=what)
        token, expiry = _at(printed, self.token_key), _at(printed, self.expiry_key)
        if token is None:
            raise CredentialsError(f"{what} printed no token where the kubeconfig's token-key says it is")
        return Identity(
            authorization=bearer(token, f"the token of {what}"),
            expires=unix_time(expiry, f"the expiry of {what}"),
        )


def google_command(provider: AuthProvider) -> GoogleCommand | None:
    """Return the command that a `gcp` provider names; None where it names none, or is another provider."""
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
    """The claim `exp` of a JSON Web Token (RFC 7519), in seconds of Unix time."""
    claims = None
    if token.isascii() and token.count(".") == 2:
        payload = token.split(".")[1]
        with suppress(binascii.Error):
            claims = parse_json(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if not isinstance(claims, dict):
        raise ConfigurationError(f"{where}: its id-token is no JSON Web Token; log in again")
    expires = claims.get("exp")
    return float(expires) if isinstance(expires, (int, float)) else None


def _at(printed: bytes, key: str) -> str | None:
    """The text at a path such as `{.credential.access_token}`."""
    value = parse_json(printed)
    for name in key.strip("{}").strip(".").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else None
