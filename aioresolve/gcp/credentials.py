"""Credentials for Google's APIs: a token is fetched once for all tasks, and renewed before it expires.

Application default credentials are found as every Google client library finds them. Order and files:
https://cloud.google.com/docs/authentication/application-default-credentials. `default()` of google-auth is
not used: off Google Cloud it waits up to fifteen seconds for the metadata server, sends requests to other
APIs, and its errors do not list the places that it searched.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio
import msgspec

from aioresolve._core.concurrency import TokenCache, gather, run_in_thread
from aioresolve._core.redaction import SecretBytes, SecretMapping, SecretText
from aioresolve.errors import ConfigurationError, ConnectionFailedError, CredentialsError, ResolveError

from .api_request import DEFAULT_UNIVERSE, AccessToken
from .google_errors import Principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.auth.aio.credentials import Credentials as AsyncCredentials
    from google.auth.credentials import Credentials

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import HTTPClient

    AnyCredentials: TypeAlias = Credentials | AsyncCredentials | Literal["default"] | None
    from collections.abc import Mapping

    from .metadata_server import MetadataServer


CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope that leaves all decisions to IAM."""

RENEWAL_TIMEOUT = 10.0
"""Maximum seconds for the renewal of a token that is still valid."""


class GoogleCredentials:
    """Credentials that sessions, tasks and event loops can share. The constructor does no I/O.

    A token is renewed almost four minutes before its end. If that fails with a retryable error, the old one
    is used until its end.

    Args:
        credentials: `"default"` or None for application default credentials; or credentials of google-auth,
            whose scopes are set if they have none.
        scopes: the OAuth scopes to request.
        quota_project: the project that is charged for requests; None for that of the credentials.

    Raises:
        ConfigurationError: `credentials` are of another library.
    """

    def __init__(
        self,
        credentials: AnyCredentials = "default",
        *,
        scopes: Sequence[str] = (CLOUD_PLATFORM,),
        quota_project: str | None = None,
    ) -> None:
        self._scopes = tuple(scopes)
        self._quota_project = quota_project
        self._source = _token_source(credentials, self._scopes)
        self._cache: TokenCache[AccessToken] = TokenCache()

    def __repr__(self) -> str:
        return f"<GoogleCredentials {self._source.name}>"

    @property
    def principal(self) -> Principal:
        """The identity of the latest token, for messages."""
        token = self._cache.token
        return Principal(self._source.name, token.member if token is not None else None, self._scopes)

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
        if self._quota_project is None or not token.headers:
            return token
        return replace(token, headers={**token.headers, "x-goog-user-project": self._quota_project})


class _TokenSource(Protocol):
    """A source of tokens; `name` describes it in messages."""

    @property
    def name(self) -> str: ...

    async def fetch(self, client: HTTPClient, progress: Progress | None, *, force: bool) -> AccessToken:
        """Return a token; a new one even if the present one is fresh, with `force`."""
        ...


@dataclass(eq=False, repr=False)
class _GoogleAuthSource:
    """Credentials of google-auth or google.auth.aio, from the user or from a file."""

    credentials: Any
    name: str
    is_async: bool = False

    async def fetch(self, client: HTTPClient, progress: Progress | None, *, force: bool) -> AccessToken:
        from .google_auth import fetch_token, fetch_token_async

        fetch = fetch_token_async if self.is_async else fetch_token
        return await fetch(self.credentials, client, self.name, force=force)


class _DefaultSource:
    """Application default credentials: a file, or else the metadata server."""

    def __init__(self, scopes: tuple[str, ...]) -> None:
        self.name = "the application default credentials"
        self._scopes = scopes
        self._file: _GoogleAuthSource | None = None

    async def fetch(self, client: HTTPClient, progress: Progress | None, *, force: bool) -> AccessToken:
        tried: list[str] = []
        if self._file is None:
            self._file = await _load_file_credentials(self._scopes, tried)
        if self._file is not None:
            self.name = self._file.name
            try:
                return await self._file.fetch(client, progress, force=force)
            except CredentialsError:
                self._file = None  # read it again next time: the user may have logged in again
                raise
        from .metadata_server import MetadataServer

        try:
            token = await _metadata_token(MetadataServer(), self._scopes, progress)
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


def _token_source(credentials: Any, scopes: tuple[str, ...]) -> _TokenSource:
    if credentials is None or credentials == "default":
        return _DefaultSource(scopes)
    # A user with credentials of google-auth has imported it; we need not import it for the others.
    blocking = sys.modules.get("google.auth.credentials")
    asynchronous = sys.modules.get("google.auth.aio.credentials")
    if asynchronous is not None and isinstance(credentials, asynchronous.Credentials):
        return _GoogleAuthSource(credentials, "credentials=", is_async=True)
    if blocking is not None and isinstance(credentials, blocking.Credentials):
        return _GoogleAuthSource(blocking.with_scopes_if_required(credentials, scopes), "credentials=")
    raise ConfigurationError(
        f"a {type(credentials).__module__}.{type(credentials).__qualname__} is not a credentials object of"
        " google-auth",
        argument="credentials",
        hint="Pass 'default', or an instance of google.auth.credentials.Credentials.",
    )


VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
QUOTA_VARIABLE = "GOOGLE_CLOUD_QUOTA_PROJECT"
TYPES = (
    "service_account",
    "authorized_user",
    "external_account",
    "external_account_authorized_user",
    "impersonated_service_account",
)
AWS_TOKEN = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105 - the name of a kind of token
LARGEST_FILE = 1 << 20
"""The maximum size of a credentials file in bytes; a key has 2 KB."""

DEFAULT_ACCOUNT = "instance/service-accounts/default"


async def _load_file_credentials(scopes: tuple[str, ...], tried: list[str]) -> _GoogleAuthSource | None:
    """Return the credentials of the file that the environment names, or of gcloud's; None without either.

    A line is appended to `tried` for each place without credentials.
    """
    return await run_in_thread(
        "read the credentials of Google", _read_file_credentials, SecretMapping(os.environ), scopes, tried
    )


async def _metadata_token(
    server: MetadataServer, scopes: Sequence[str], progress: Progress | None
) -> AccessToken:
    """Return an access token of the default service account of this machine."""
    from .metadata_server import UNIVERSE

    requested_at = time.time()
    body = await server.value(f"{DEFAULT_ACCOUNT}/token", progress, query={"scopes": ",".join(scopes)})
    if body is None:
        raise CredentialsError(
            "the metadata server reports that this machine has no service account",
            hint="Attach one with `gcloud compute instances set-service-account`, or pass {credentials}.",
        )
    try:
        body = SecretText(body)
        token = decode_token(SecretBytes(body.encode()))
    except ValueError as error:
        raise CredentialsError(f"the metadata server returned an invalid access token: {error}") from error
    optional = (f"{DEFAULT_ACCOUNT}/email", UNIVERSE)
    email, universe = await gather([partial(server.optional_value, path) for path in optional], limit=2)
    headers: dict[str, str] = {"authorization": SecretText(f"Bearer {token.access_token}")}
    if quota_project := os.environ.get(QUOTA_VARIABLE):
        headers["x-goog-user-project"] = quota_project
    member = f"serviceAccount:{email}" if email and "@" in email else None
    return AccessToken(headers, requested_at + token.expires_in, member, universe or DEFAULT_UNIVERSE)


def _read_file_credentials(
    environ: Mapping[str, str], scopes: tuple[str, ...], tried: list[str]
) -> _GoogleAuthSource | None:
    named = environ.get(VARIABLE)
    if named:
        return _load(Path(named), f"{named} (from ${VARIABLE})", environ, scopes)
    tried.append(f"${VARIABLE}: not set")
    file = _gcloud_file(environ)
    if file is None or not file.is_file():
        tried.append(f"{file or 'the file of gcloud'}: does not exist")
        return None
    return _load(file, f"{file} (from gcloud)", environ, scopes)


def _gcloud_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file that `gcloud auth application-default login` writes."""
    name = "application_default_credentials.json"
    if folder := environ.get("CLOUDSDK_CONFIG"):
        return Path(folder) / name
    if os.name == "nt":
        return Path(environ["APPDATA"]) / "gcloud" / name if environ.get("APPDATA") else None
    try:
        return Path("~/.config/gcloud").expanduser() / name
    except RuntimeError:
        return None  # without a home directory


def _load(file: Path, source: str, environ: Mapping[str, str], scopes: tuple[str, ...]) -> _GoogleAuthSource:
    from .google_auth import FAILURES, credentials_error

    info = _read_object(file, source)
    try:
        credentials = _credentials(info, source, scopes)
        quota_project = environ.get(QUOTA_VARIABLE)
        if quota_project:
            credentials = credentials.with_quota_project(quota_project)
    except ResolveError:
        raise
    except FAILURES as error:
        raise credentials_error(error, source) from error
    return _GoogleAuthSource(credentials, source)


def _read_object(file: Path, source: str) -> dict[str, Any]:
    """Return the JSON object in `file`."""
    cause = None
    try:
        with file.open("rb") as opened:
            text = SecretBytes(opened.read(LARGEST_FILE + 1))
        if len(text) > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE >> 20} MiB")
        info = SecretMapping(_json_object(text))
    except OSError as error:
        cause, reason = error, error.strerror
    except ValueError as error:
        reason = _reason(error)
    else:
        return info
    # Outside of `except`: a JSONDecodeError contains the whole document, with its key.
    raise CredentialsError(
        f"the credentials file {source} cannot be read: {reason}",
        hint="Use a file that `gcloud auth application-default login` wrote, or a service account key.",
        tried=[f"{source}: {reason}"],
    ) from cause


def _json_object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _reason(error: ValueError) -> str:
    return f"it is not JSON (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else str(error)


def _credentials(info: dict[str, Any], source: str, scopes: tuple[str, ...]) -> Any:
    """Return the credentials that a JSON object describes. Imports only the library of its type."""
    match info.get("type"):
        case "service_account":
            from google.oauth2 import service_account

            return service_account.Credentials.from_service_account_info(info, scopes=scopes)
        case "authorized_user":
            from google.oauth2 import credentials

            return credentials.Credentials.from_authorized_user_info(info)
        case "external_account":
            return _external_account(info, scopes)
        case "external_account_authorized_user":
            from google.auth import external_account_authorized_user

            return external_account_authorized_user.Credentials.from_info(info)
        case "impersonated_service_account":
            from google.auth import impersonated_credentials

            return impersonated_credentials.Credentials.from_impersonated_service_account_info(
                info, scopes=scopes
            )
    raise ConfigurationError(
        f"the credentials file {source} is of type {str(info.get('type'))[:60]!r}, not one of"
        f" {', '.join(TYPES)}",
        hint="Create it again with `gcloud auth application-default login`.",
    )


def _external_account(info: dict[str, Any], scopes: tuple[str, ...]) -> Any:
    source = info.get("credential_source")
    if info.get("subject_token_type") == AWS_TOKEN:
        from google.auth import aws

        return aws.Credentials.from_info(info, scopes=scopes)
    if isinstance(source, dict) and source.get("executable") is not None:
        from google.auth import pluggable

        return pluggable.Credentials.from_info(info, scopes=scopes)
    from google.auth import identity_pool

    return identity_pool.Credentials.from_info(info, scopes=scopes)


class TokenResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An access token of the metadata server; `expires_in` is in seconds."""

    access_token: str
    expires_in: float = 0.0

    def __repr__(self) -> str:
        return f"TokenResponse(expires_in={self.expires_in})"


# Not strict: some servers write the number as a string.
_tokens = msgspec.json.Decoder(TokenResponse, strict=False)


def decode_token(body: bytes) -> TokenResponse:
    """Return the access token in `body`; raises a ValueError without any part of it if it is malformed."""
    try:
        return _tokens.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
