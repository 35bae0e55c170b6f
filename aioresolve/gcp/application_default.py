"""Application default credentials, found as every Google client library finds them.

Order and files: https://cloud.google.com/docs/authentication/application-default-credentials. `default()`
of google-auth is not used: off Google Cloud it waits up to fifteen seconds for the metadata server, sends
requests to other APIs, and its errors do not list the places that it searched.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from aioresolve.errors import ConfigurationError, CredentialsError, ResolveError

from .api_request import AccessToken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.auth.credentials import Credentials

    from aioresolve._core.deadline import Progress

    from .metadata_server import MetadataServer

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


@dataclass(frozen=True, slots=True)
class FileCredentials:
    """Credentials from a file.

    Attributes:
        credentials: of google-auth, not yet refreshed.
        source: where they come from, as text.
    """

    credentials: Credentials
    source: str


async def load_file_credentials(scopes: Sequence[str], tried: list[str]) -> FileCredentials | None:
    """Return the credentials of the file that the environment names, or of gcloud's; None without either.

    Args:
        scopes: OAuth scopes, for the types of credentials that need them.
        tried: a line is appended for each place without credentials.

    Raises:
        CredentialsError: the file cannot be used.
    """
    return await anyio.to_thread.run_sync(
        _load_file_credentials, dict(os.environ), tuple(scopes), tried, abandon_on_cancel=True
    )


async def metadata_token(
    server: MetadataServer, scopes: Sequence[str], quota_project: str | None, progress: Progress | None = None
) -> AccessToken:
    """Return an access token of the default service account of this machine.

    Raises:
        CredentialsError: the machine has no service account, or the response is invalid.
        ResolveError: there is no metadata server.
    """
    requested_at = time.time()
    body = await server.value(f"{DEFAULT_ACCOUNT}/token", progress, query={"scopes": ",".join(scopes)})
    if body is None:
        raise CredentialsError(
            "the metadata server reports that this machine has no service account",
            hint="Attach one with `gcloud compute instances set-service-account`, or pass {credentials}.",
        )
    try:
        token = decode_token(body.encode())
    except ValueError as error:
        raise CredentialsError(f"the metadata server returned an invalid access token: {error}") from error
    email = await server.value(f"{DEFAULT_ACCOUNT}/email", progress)
    headers = {"authorization": f"Bearer {token.access_token}"}
    if quota_project := quota_project or os.environ.get(QUOTA_VARIABLE):
        headers["x-goog-user-project"] = quota_project
    member = f"serviceAccount:{email}" if email and "@" in email else None
    return AccessToken(headers, requested_at + token.expires_in, member)


def _load_file_credentials(
    environ: Mapping[str, str], scopes: tuple[str, ...], tried: list[str]
) -> FileCredentials | None:
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


def _load(file: Path, source: str, environ: Mapping[str, str], scopes: tuple[str, ...]) -> FileCredentials:
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
    return FileCredentials(credentials, source)


def _read_object(file: Path, source: str) -> dict[str, Any]:
    """Return the JSON object in `file`."""
    try:
        with file.open("rb") as opened:
            text = opened.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE >> 20} MiB")
        info = json.loads(text)
        if not isinstance(info, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        # A JSONDecodeError contains the whole document, which contains a key.
        reason = error.strerror if isinstance(error, OSError) else _reason(error)
        raise CredentialsError(
            f"the credentials file {source} cannot be read: {reason}",
            hint="Use a file that `gcloud auth application-default login` wrote, or a service account key.",
            tried=[f"{source}: {reason}"],
        ) from (error if isinstance(error, OSError) else None)
    return info


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
