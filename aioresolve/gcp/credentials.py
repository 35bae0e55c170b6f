"""Credentials for Google's APIs: a token is fetched once for all tasks, and renewed before it expires.

Application default credentials are found as every Google client library finds them. Order and files:
https://cloud.google.com/docs/authentication/application-default-credentials. `default()` of google-auth is
not used: off Google Cloud it waits up to fifteen seconds for the metadata server, on a VM it needs the
package `requests`, it sends requests to other APIs, and its errors do not list where it searched.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import msgspec

from aioresolve._core.concurrency import gather
from aioresolve._core.threads import run_in_thread
from aioresolve._core.token_cache import TokenCache
from aioresolve.errors import ConfigurationError, ConnectionFailedError, CredentialsError, ResolveError

from .api_request import DEFAULT_UNIVERSE, AccessToken, decoder
from .google_errors import Principal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.auth.credentials import Credentials

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import HTTPClient

    AnyCredentials: TypeAlias = Credentials | Literal["default"] | None


CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope that leaves all decisions to IAM."""

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
QUOTA_VARIABLE = "GOOGLE_CLOUD_QUOTA_PROJECT"
DEFAULT_ACCOUNT = "instance/service-accounts/default"

RENEWAL_TIMEOUT = 10.0
"""Maximum seconds for the renewal of a token that is still valid."""


class GoogleCredentials:
    """Credentials that sessions, tasks and event loops can share. The constructor does no I/O.

    A token is renewed almost four minutes before its end. If that fails with a retryable error, the old one
    is used until its end.

    Args:
        credentials: `"default"` or None for application default credentials; or credentials of google-auth,
            whose scope is set if they have none.

    Raises:
        ConfigurationError: `credentials` are of another library.
    """

    def __init__(self, credentials: AnyCredentials = "default") -> None:
        self._source = _token_source(credentials)
        self._cache: TokenCache[AccessToken] = TokenCache()

    def __repr__(self) -> str:
        return f"<GoogleCredentials {self._source.name}>"

    @property
    def principal(self) -> Principal:
        """The identity of the latest token, for messages."""
        token = self._cache.token
        return Principal(self._source.name, token.member if token is not None else None)

    async def token(self, client: HTTPClient, progress: Progress | None = None) -> AccessToken:
        """Return a token that is not about to expire; `client` sends requests to token servers.

        Failed attempts of the metadata server are noted in `progress`.

        Raises:
            ResolveError: no token is available; CredentialsError if no source of credentials works.
        """
        return await self._cache.get(lambda: self._fetch(client, progress, force=False))

    async def renew(
        self, client: HTTPClient, rejected: AccessToken, progress: Progress | None = None
    ) -> AccessToken:
        """Return a token other than `rejected`, which a server rejected."""
        token = self._cache.token
        if token is not None and token.headers != rejected.headers:
            return token
        return await self._cache.renew(lambda: self._fetch(client, progress, force=True))

    async def _fetch(self, client: HTTPClient, progress: Progress | None, *, force: bool) -> AccessToken:
        present = self._cache.token
        # A renewal that hangs must not use up the deadline of a call while the present token is valid.
        has_alternative = not force and present is not None and present.is_valid
        token = None
        with anyio.move_on_after(RENEWAL_TIMEOUT if has_alternative else math.inf):
            token = await self._source.fetch(client, progress, force=force)
        if token is None:
            raise ConnectionFailedError(
                f"{self._source.name} got no access token within {RENEWAL_TIMEOUT:g} s",
                hint="Try again later.",
            )
        return token


@dataclass(eq=False, repr=False)
class _GoogleAuthSource:
    """Credentials of google-auth, from the user or from a file."""

    credentials: Any
    name: str

    async def fetch(self, client: HTTPClient, progress: Progress | None, *, force: bool) -> AccessToken:
        """Return a token; a new one even if the present one is fresh, with `force`."""
        from .google_auth import fetch_token

        return await fetch_token(self.credentials, client, self.name, force=force)


class _DefaultSource:
    """Application default credentials: a file, or else the metadata server."""

    def __init__(self) -> None:
        self.name = "the application default credentials"
        self._file: _GoogleAuthSource | None = None

    async def fetch(self, client: HTTPClient, progress: Progress | None, *, force: bool) -> AccessToken:
        tried: list[str] = []
        if self._file is None:
            read = partial(_read_file, os.environ, tried)
            self._file = await run_in_thread("read the credentials of Google", read)
        if self._file is not None:
            self.name = self._file.name
            try:
                return await self._file.fetch(client, progress, force=force)
            except CredentialsError:
                self._file = None  # read it again next time: the user may have logged in again
                raise
        try:
            token = await _metadata_token(progress)
        except ResolveError as error:
            if error.retryable:
                raise
            tried.append(f"the metadata server: {error.summary}")
            raise CredentialsError(
                f"no credentials for Google Cloud were found. Tried {'; '.join(tried)}",
                hint="Log in with `gcloud auth application-default login`, or set"
                " GOOGLE_APPLICATION_CREDENTIALS to the path of a credentials file.",
                tried=tried,
            ) from error
        self.name = "the metadata server's default service account"
        return token


def _token_source(credentials: Any) -> _GoogleAuthSource | _DefaultSource:
    if credentials is None or credentials == "default":
        return _DefaultSource()
    # A user with credentials of google-auth has imported it; we need not import it for the others.
    library = sys.modules.get("google.auth.credentials")
    if library is not None and isinstance(credentials, library.Credentials):
        scoped = library.with_scopes_if_required(credentials, [CLOUD_PLATFORM])
        return _GoogleAuthSource(scoped, "credentials=")
    raise ConfigurationError(
        f"a {type(credentials).__module__}.{type(credentials).__qualname__} is not a credentials object of"
        " google-auth",
        argument="credentials",
        hint="Pass 'default', or an instance of google.auth.credentials.Credentials.",
    )


def _read_file(environ: Mapping[str, str], tried: list[str]) -> _GoogleAuthSource | None:
    """Return the credentials of the file that the environment names, or of gcloud's; None without either.

    A line is appended to `tried` for each place without credentials.
    """
    if named := environ.get(VARIABLE):
        file, source = Path(named), f"{named} (from ${VARIABLE})"
    else:
        tried.append(f"${VARIABLE}: not set")
        folder = environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
        # `gcloud auth application-default login` writes it.
        file = Path(folder) / "application_default_credentials.json"
        source = f"{file} (from gcloud)"
        if not file.is_file():
            tried.append(f"{file}: does not exist")
            return None
    from .google_auth import load_credentials

    return _GoogleAuthSource(
        load_credentials(file, source, [CLOUD_PLATFORM], environ.get(QUOTA_VARIABLE)), source
    )


async def _metadata_token(progress: Progress | None) -> AccessToken:
    """Return an access token of the default service account of this machine.

    google-auth's own credentials for a VM are not used: they need the package `requests`.
    """
    from .metadata_server import UNIVERSE, MetadataServer

    server, requested_at = MetadataServer(), time.time()
    body = await server.value(f"{DEFAULT_ACCOUNT}/token", progress, query={"scopes": CLOUD_PLATFORM})
    if body is None:
        raise CredentialsError(
            "the metadata server reports that this machine has no service account",
            hint="Attach one with `gcloud compute instances set-service-account`, or pass {credentials}.",
        )
    try:
        token = decode_token(body.encode())
    except ValueError as error:
        raise CredentialsError(f"the metadata server returned an invalid access token: {error}") from error
    optional = (f"{DEFAULT_ACCOUNT}/email", UNIVERSE)
    email, universe = await gather([partial(server.optional_value, path) for path in optional], limit=2)
    headers: dict[str, str] = {"authorization": f"Bearer {token.access_token}"}
    if quota_project := os.environ.get(QUOTA_VARIABLE):
        headers["x-goog-user-project"] = quota_project
    member = f"serviceAccount:{email}" if email and "@" in email else None
    return AccessToken(headers, requested_at + token.expires_in, member, universe or DEFAULT_UNIVERSE)


class TokenResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An access token of the metadata server; `expires_in` is in seconds."""

    access_token: str
    expires_in: float = 0.0

    def __repr__(self) -> str:
        return f"TokenResponse(expires_in={self.expires_in})"


decode_token = decoder(TokenResponse)
