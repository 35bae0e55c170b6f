"""Access tokens from credentials of google-auth, and credentials from the files that google-auth reads.

Its requests to token servers are sent by our own client in the event loop; a worker thread only signs, parses
and waits. So a refresh obeys the deadline of the call that needs it, its retries are ours, and a cancelled
refresh ends at once. Nothing here needs the package `requests`, which is optional for google-auth.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Any

import anyio
from yarl import URL

from aioresolve._core.http import close_one_sidedly, is_loopback, origin
from aioresolve._core.retry import RETRYABLE_STATUSES
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    CredentialsError,
    MissingDependencyError,
    ResolveError,
)

from .api_request import ANONYMOUS, DEFAULT_UNIVERSE, AccessToken, connection_hints
from .metadata_server import UNIVERSE, MetadataServer, is_metadata_host

try:
    from google.auth import exceptions, transport
    from google.auth.credentials import AnonymousCredentials
except ImportError as error:
    raise MissingDependencyError(
        "credentials of Google Cloud need google-auth, which is not installed",
        hint="Run `pip install google-auth`.",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from google.auth.credentials import Credentials

    from aioresolve._core.http import HTTPClient, Response

FAILURES = (exceptions.GoogleAuthError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What google-auth raises; the last three if a file or a response lacks a field."""

TYPES = (
    "service_account",
    "authorized_user",
    "external_account",
    "external_account_authorized_user",
    "impersonated_service_account",
)
AWS_TOKEN = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105 - the name of a kind of token

HINTS = connection_hints(
    "Check that the credentials name the correct token server, and that the network allows the connection."
)


def load_credentials(file: Path, source: str, scopes: list[str], quota_project: str | None) -> Any:
    """Return the credentials in a file; `source` names the file in messages.

    `google.auth.load_credentials_from_file` is not used: for external accounts it sends other requests.
    """
    try:
        info = json.loads(file.read_bytes())
        if not isinstance(info, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = str(error.strerror)
        elif isinstance(error, json.JSONDecodeError):
            reason = f"it is not JSON (line {error.lineno})"
            error.doc = ""  # the document may contain a key
        raise CredentialsError(
            f"the credentials file {source} cannot be read: {reason}",
            hint="Use a file that `gcloud auth application-default login` wrote, or a service account key.",
            tried=[f"{source}: {reason}"],
        ) from error
    if info.get("type") not in TYPES:
        raise ConfigurationError(
            f"the credentials file {source} is of type {str(info.get('type'))[:60]!r}, not one of"
            f" {', '.join(TYPES)}",
            hint="Create it again with `gcloud auth application-default login`.",
        )
    try:
        credentials = _credentials(info, scopes)
        return credentials.with_quota_project(quota_project) if quota_project else credentials
    except FAILURES as error:
        raise credentials_error(error, source) from error


def _credentials(info: dict[str, Any], scopes: list[str]) -> Any:
    """Return the credentials that a JSON object describes. Imports only the library of its type."""
    match info["type"]:
        case "service_account":
            from google.oauth2 import service_account

            return service_account.Credentials.from_service_account_info(info, scopes=scopes)
        case "authorized_user":
            from google.oauth2 import credentials

            return credentials.Credentials.from_authorized_user_info(info)
        case "external_account_authorized_user":
            from google.auth import external_account_authorized_user

            return external_account_authorized_user.Credentials.from_info(info)
        case "impersonated_service_account":
            from google.auth.impersonated_credentials import Credentials

            return Credentials.from_impersonated_service_account_info(info, scopes=scopes)
    if info.get("subject_token_type") == AWS_TOKEN:
        from google.auth import aws

        return aws.Credentials.from_info(info, scopes=scopes)
    if "executable" in info.get("credential_source", {}):
        from google.auth import pluggable

        return pluggable.Credentials.from_info(info, scopes=scopes)
    from google.auth import identity_pool

    return identity_pool.Credentials.from_info(info, scopes=scopes)


def credentials_error(error: Exception, source: str) -> ResolveError:
    """Return our error for `error`, one of FAILURES, of the credentials from `source`.

    The response of a token server and the output of an executable are removed from `error`.
    """
    if isinstance(error, exceptions.GoogleAuthError):
        message = str(error.args[0]) if error.args else ""
        for end in ("return code", "unsuccessful response"):
            if message.startswith("Executable ") and end in message:
                message = message.partition(end)[0] + end
        error.args = (message,)
    text = str(error).partition("\n")[0][:500].rstrip(". ") or type(error).__name__
    retryable = bool(getattr(error, "retryable", False))
    if isinstance(error, exceptions.TransportError | exceptions.TimeoutError):
        return ConnectionFailedError(
            f"the token server of {source} was not reached: {text}",
            hint="Check that the network allows the connection.",
        )
    if isinstance(error, exceptions.RefreshError):
        return CredentialsError(
            f"{source} got no access token: {text}",
            hint="Log in again with `gcloud auth application-default login`; for a service account, check"
            " that it and its key still exist, and that the clock is correct.",
            tried=[f"{source}: {text}"],
            retryable=retryable,
        )
    if isinstance(error, KeyError | AttributeError | TypeError):
        text = f"a field is missing or has the wrong type ({type(error).__name__}: {text})"
    return CredentialsError(
        f"{source} cannot be used: {text}",
        hint="Create the file again, or pass other {credentials}.",
        tried=[f"{source}: {text}"],
        retryable=retryable,
    )


async def fetch_token(
    credentials: Credentials, client: HTTPClient, source: str, *, force: bool
) -> AccessToken:
    """Return a token of the credentials, refreshed in a worker thread if it is not fresh, or `force`."""
    if isinstance(credentials, AnonymousCredentials):
        return ANONYMOUS
    token = _current_token(credentials)
    if force or token is None or not token.is_fresh:
        request = ThreadRequest(client)
        try:
            # A thread cannot be cancelled: it is abandoned, and ends at its next request.
            await run_in_thread(f"refresh {source}", credentials.refresh, request)
        except ResolveError:
            raise
        except FAILURES as error:
            raise credentials_error(error, source) from error
        finally:
            request.stop()
        token = _current_token(credentials)
    if token is None:
        raise CredentialsError(
            f"{source} returned no access token", hint="Log in again, or pass other {credentials}."
        )
    if _lacks_universe(credentials):
        universe = await MetadataServer().optional_value(UNIVERSE)
        token = replace(token, universe=universe or DEFAULT_UNIVERSE)
    return token


def _current_token(credentials: Any) -> AccessToken | None:
    """Return the token that credentials of google-auth have; None without one."""
    if not credentials.token:
        return None
    headers: dict[str, str] = {}
    credentials.apply(headers)
    email = getattr(credentials, "service_account_email", None)
    member = f"serviceAccount:{email}" if isinstance(email, str) and "@" in email else None
    universe = None if _lacks_universe(credentials) else getattr(credentials, "universe_domain", None)
    return AccessToken(headers, _unix_time(credentials.expiry), member, universe or DEFAULT_UNIVERSE)


def _lacks_universe(credentials: Any) -> bool:
    """Whether reading the universe of credentials sends a blocking request, as of those of a VM."""
    return getattr(credentials, "_universe_domain_cached", None) is False


def _unix_time(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class ThreadResponse(transport.Response):
    """A response, for google-auth."""

    def __init__(self, response: Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def data(self) -> bytes:
        return self._response.body


class ThreadRequest(transport.Request):
    """Sends the requests of google-auth: called in a worker thread, sent in the event loop.

    It raises our errors, also for retryable statuses: google-auth would sleep between attempts of its own,
    up to fifteen seconds, and nothing could wake it.
    """

    def __init__(self, client: HTTPClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._scope: anyio.CancelScope | None = None

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> ThreadResponse:
        """Send a request. `timeout` is ignored, because the deadline of the caller applies."""
        if self._is_stopped:
            raise _stopped(url)
        data = body.encode() if isinstance(body, str) else body
        sending = self._send(method, url, headers or {}, data, options.get("cert"))
        return asyncio.run_coroutine_threadsafe(sending, self._loop).result()

    def stop(self) -> None:
        """End the thread at its present or next request. Called in the event loop."""
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        certificate: tuple[str, str] | None,
    ) -> ThreadResponse:
        host, scope = validate_token_host(url), f"{method} {URL(url).path}"
        response = None
        with anyio.CancelScope() as self._scope:
            if self._is_stopped:
                self._scope.cancel()
            context = await _ssl_context_with(certificate)
            response = await self._client.send(
                method, URL(url), scope=scope, headers=headers, body=body, ssl_context=context, hints=HINTS
            )
        if response is None:
            raise _stopped(url)
        if response.status in RETRYABLE_STATUSES:
            raise APIError(
                f"the token server {host} returned status {response.status} for {scope}",
                hint="Try again later.",
                host=host,
                scope=scope,
                status=response.status,
                retry_after=response.retry_after,
                retryable=True,
            )
        return ThreadResponse(response)


def _stopped(url: str) -> ConnectionFailedError:
    return ConnectionFailedError(
        f"no request is sent to {origin(url)}: the call was cancelled", retryable=False
    )


def validate_token_host(url: str) -> str:
    """Return the origin of the URL of a token server.

    Its scheme must be https, except for this machine and metadata servers.
    """
    host, parts = origin(url), URL(url)
    if parts.scheme != "https" and not is_loopback(parts.host or "") and not is_metadata_host(parts):
        raise ConfigurationError(
            f"the credentials name the token server {host}, to which no secret may be sent without TLS",
            hint="Correct its URL to https:// in the credentials file.",
        )
    return host


async def _ssl_context_with(certificate: tuple[str, str] | None) -> ssl.SSLContext | None:
    """Return a TLS context that presents a client certificate, for X.509 federation; None without one."""
    if certificate is None:
        return None

    def load() -> ssl.SSLContext:
        context = close_one_sidedly(ssl.create_default_context())
        context.load_cert_chain(*certificate)
        return context

    return await run_in_thread(f"load the client certificate {certificate[0]}", load)
