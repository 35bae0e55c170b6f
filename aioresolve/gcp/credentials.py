"""Credentials for Google's APIs: a token is fetched once for all tasks, and renewed before it expires.

Application default credentials are found as every Google client library finds them. Order and files:
https://cloud.google.com/docs/authentication/application-default-credentials. `default()` of google-auth is
not used: off Google Cloud it waits up to fifteen seconds for the metadata server, on a VM it needs the
package `requests`, it sends requests to other APIs, and its errors do not list where it searched.

The requests of google-auth to token servers are sent by our own client in the event loop; a worker thread
only signs, parses and waits. So a refresh obeys the deadline of the call that needs it, its retries are ours,
and a cancelled refresh ends at once.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import anyio
import msgspec
from yarl import URL

from aioresolve._core.deadline import RETRYABLE_STATUSES
from aioresolve._core.secrets import Confidential, TokenCache
from aioresolve._core.service_account import is_in_pod
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    CredentialsError,
    ResolveError,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from google.auth.credentials import Credentials

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import HTTPClient, Response

    AnyCredentials: TypeAlias = Credentials | Literal["default"] | None

T = TypeVar("T")

GOOGLE = "googleapis.com"
"""The domain of the APIs of Google Cloud; Trusted Partner Clouds have others."""

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope that leaves all decisions to IAM."""

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
QUOTA_VARIABLE = "GOOGLE_CLOUD_QUOTA_PROJECT"
DEFAULT_ACCOUNT = "instance/service-accounts/default"

LOGIN = (
    "Log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the path"
    " of a credentials file."
)
WORKLOAD_IDENTITY = (
    "In a pod of GKE, let its ServiceAccount act as one of Google Cloud: `gcloud iam service-accounts"
    " add-iam-policy-binding ACCOUNT --role=roles/iam.workloadIdentityUser"
    " --member='serviceAccount:PROJECT.svc.id.goog[NAMESPACE/SERVICEACCOUNT]'`, and the annotation"
    " iam.gke.io/gcp-service-account=ACCOUNT."
)

RENEW_BEFORE_EXPIRY = 225.0
"""Seconds before its end at which a token is renewed: the threshold of google-auth (3 min 45 s).

The metadata server returns the same token until five minutes before its end: renewing earlier is useless.
"""

EXPIRY_MARGIN = 10.0
"""Seconds before its end from which a token is not sent, so that it does not expire on the way."""

RENEWAL_TIMEOUT = 10.0
"""Maximum seconds for the renewal of a token that is still valid."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Headers that authenticate requests. The repr shows no secret.

    Attributes:
        source: where the credentials come from.
        headers: the headers.
        expires: seconds of Unix time; None for never.
        cloud: the domain of the APIs of the cloud that issued them.
    """

    source: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    expires: float | None = None
    cloud: str = GOOGLE

    @property
    def is_fresh(self) -> bool:
        """Whether it need not be renewed yet."""
        return self.expires is None or time.time() < self.expires - RENEW_BEFORE_EXPIRY

    @property
    def is_valid(self) -> bool:
        """Whether a server will accept it."""
        return self.expires is None or time.time() < self.expires - EXPIRY_MARGIN


ANONYMOUS = AccessToken("anonymous credentials")


class GoogleCredentials:
    """Credentials that sessions, tasks and event loops can share. The constructor does no I/O.

    A token is renewed almost four minutes before its end. If that fails with a retryable error, the old one
    is used until its end. `source` says where the credentials come from, as far as it is known; `key` differs
    for other ones.

    Args:
        credentials: `"default"` or None for application default credentials; or credentials of google-auth,
            whose scope is set if they have none.

    Raises:
        ConfigurationError: `credentials` are of another library.
    """

    def __init__(self, credentials: AnyCredentials = "default") -> None:
        self._given = _with_scopes(credentials)
        self.key: Hashable = "default" if self._given is None else id(credentials)
        self._file: Any = None  # credentials of google-auth
        self.source = "the application default credentials" if self._given is None else "credentials="
        self._cache: TokenCache[AccessToken] = TokenCache()

    async def token(self, client: HTTPClient, progress: Progress) -> AccessToken:
        """Return a token that is not about to expire; `client` sends requests to token servers."""
        return await self._cache.get(partial(self._fetch, client, progress, is_forced=False))

    async def renew(self, client: HTTPClient, rejected: AccessToken, progress: Progress) -> AccessToken:
        """Return a token other than `rejected`, which a server rejected."""
        token = self._cache.token
        if token is not None and token.headers != rejected.headers:
            return token
        return await self._cache.renew(partial(self._fetch, client, progress, is_forced=True))

    async def _fetch(self, client: HTTPClient, progress: Progress, *, is_forced: bool) -> AccessToken:
        present = self._cache.token
        # A renewal that hangs must not use up the deadline of a call while the present token is valid.
        has_alternative = not is_forced and present is not None and present.is_valid
        with anyio.move_on_after(RENEWAL_TIMEOUT if has_alternative else math.inf):
            return await self._new_token(client, progress, is_forced=is_forced)
        raise ConnectionFailedError(
            f"{self.source} got no access token within {RENEWAL_TIMEOUT:g} s", hint="Try again later."
        )

    async def _new_token(self, client: HTTPClient, progress: Progress, *, is_forced: bool) -> AccessToken:
        if self._given is not None:
            return await _refresh(self._given, client, self.source, is_forced=is_forced)
        tried: list[str] = []
        if self._file is None:
            found = await run_in_thread("read the credentials of Google", _read_file, tried)
            self._file, self.source = found or (None, self.source)
        if self._file is not None:
            try:
                return await _refresh(self._file, client, self.source, is_forced=is_forced)
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
                hint=WORKLOAD_IDENTITY if is_in_pod() else LOGIN,
                tried=tried,
            ) from error
        self.source = token.source
        return token


def _with_scopes(credentials: Any) -> Any:
    """Return credentials of google-auth with a scope; None for application default credentials."""
    if credentials is None or credentials == "default":
        return None
    # A user with credentials of google-auth has imported it; we need not import it for the others.
    library = sys.modules.get("google.auth.credentials")
    if library is not None and isinstance(credentials, library.Credentials):
        return library.with_scopes_if_required(credentials, [CLOUD_PLATFORM])
    raise ConfigurationError(
        f"a {type(credentials).__module__}.{type(credentials).__qualname__} is not a credentials object of"
        " google-auth",
        argument="credentials",
        hint="Pass 'default', or an instance of google.auth.credentials.Credentials.",
    )


# Files


def _read_file(tried: list[str]) -> tuple[Any, str] | None:
    """Return the credentials in the file that the environment names, or gcloud's, and their place; or None.

    A line is appended to `tried` for each place without credentials.
    """
    import google.auth

    if named := os.environ.get(VARIABLE):
        file, source = Path(named), f"{named} (from ${VARIABLE})"
    else:
        tried.append(f"${VARIABLE}: not set")
        folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
        # `gcloud auth application-default login` writes it.
        file = Path(folder) / "application_default_credentials.json"
        source = f"{file} (from gcloud)"
        if not file.is_file():
            tried.append(f"{file}: does not exist")
            return None
    try:
        with warnings.catch_warnings():
            # It warns about files from strangers, and about quotas of other APIs.
            warnings.simplefilter("ignore")
            credentials, _ = google.auth.load_credentials_from_file(
                str(file), quota_project_id=os.environ.get(QUOTA_VARIABLE), request=_send_nothing
            )
        return _with_scopes(credentials), source
    except Exception as error:  # the file may have any content
        raise _credentials_error(error, source, "cannot be used") from error


def _send_nothing(*_: Any, **__: Any) -> Any:
    """Stand in for a request: one is only sent for credentials that already have a scope."""
    raise AssertionError


async def _refresh(credentials: Any, client: HTTPClient, source: str, *, is_forced: bool) -> AccessToken:
    """Return a token of credentials of google-auth, refreshed if it is not fresh, or `is_forced`."""
    from google.auth.credentials import AnonymousCredentials

    if isinstance(credentials, AnonymousCredentials):
        return ANONYMOUS
    request = ThreadRequest(client, source)

    def refresh() -> AccessToken | None:
        token = _token_of(credentials, source)
        if is_forced or token is None or not token.is_fresh:
            credentials.refresh(request)
            token = _token_of(credentials, source)
        return token

    try:
        # A thread cannot be cancelled: it is abandoned, and ends at its next request.
        token = await run_in_thread(f"refresh {source}", refresh)
    except ResolveError:
        raise
    except Exception as error:  # a credentials object of a user may raise anything
        raise _credentials_error(error, source, "got no access token") from error
    finally:
        request.stop()
    if token is None:
        raise CredentialsError(
            f"{source} returned no access token", hint="Log in again, or pass other {credentials}."
        )
    return token


def _token_of(credentials: Any, source: str) -> AccessToken | None:
    """Return the token that credentials of google-auth have; None without one."""
    if not credentials.token:
        return None
    headers: dict[str, str] = {}
    credentials.apply(headers)
    expiry = credentials.expiry
    expires = (
        None if expiry is None else (expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp()
    )
    # Not the public property: credentials of a VM would request it from the metadata server.
    cloud = getattr(credentials, "_universe_domain", None)
    return AccessToken(source, headers, expires, cloud or GOOGLE)


def _credentials_error(error: Exception, source: str, failure: str) -> ResolveError:
    """Return our error for one of google-auth, without the response of the token server."""
    from google.auth import exceptions

    text = f"{type(error).__name__}: {error}"
    if isinstance(error, exceptions.GoogleAuthError) and error.args:
        text = str(error.args[0])
    text = text.partition("\n")[0][:500].rstrip(". ")
    if isinstance(error, exceptions.TransportError | exceptions.TimeoutError):
        return ConnectionFailedError(
            f"the token server of {source} was not reached: {text}",
            hint="Check that the network allows the connection.",
        )
    return CredentialsError(
        f"{source} {failure}: {text}",
        hint="Log in again with `gcloud auth application-default login`; for a service account, check that it"
        " and its key still exist, and that the clock is correct.",
        tried=[f"{source}: {text}"],
        retryable=bool(getattr(error, "retryable", False)),
    )


class ThreadRequest:
    """Sends the requests of google-auth: called in a worker thread, sent in the event loop.

    It raises our errors, also for retryable statuses: google-auth would sleep between attempts of its own,
    up to fifteen seconds, and nothing could wake it.
    """

    def __init__(self, client: HTTPClient, source: str) -> None:
        self._client = client
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._task: asyncio.Task[Any] | None = None

    def __call__(
        self, url: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any
    ) -> SimpleNamespace:
        """Return a response as google-auth reads it. A timeout is ignored: that of the caller applies."""
        data = body.encode() if isinstance(body, str) else body
        sending = self._send(method, URL(url), headers or {}, data)
        response = asyncio.run_coroutine_threadsafe(sending, self._loop).result()
        return SimpleNamespace(status=response.status, headers=response.headers, data=response.body)

    def stop(self) -> None:
        """End the thread at its present or next request. Called in the event loop."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _send(self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None) -> Response:
        from aioresolve._core.network import is_loopback, origin

        from .metadata_server import connection_hints

        self._task = asyncio.current_task()
        host, scope = origin(str(url)), f"{method} {url.path}"
        if self._is_stopped:
            raise ConnectionFailedError(
                f"no request is sent to {host}: the call was cancelled", retryable=False
            )
        # Secrets are sent by POST only; metadata servers of clouds, which have no TLS, get other requests.
        if method == "POST" and url.scheme != "https" and not is_loopback(url.host or ""):
            raise CredentialsError(
                f"{self._source} names the token server {host}, to which secrets would be sent unencrypted",
                hint="Correct its URL: it must start with https://.",
            )
        response = await self._client.send(
            method,
            url,
            scope=scope,
            headers=headers,
            body=body,
            hints=connection_hints(
                "Check that the credentials name the correct token server, and that the network allows the"
                " connection."
            ),
        )
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
        return response


# The metadata server


class TokenResponse(Confidential, frozen=True):
    """An access token of the metadata server; `expires_in` is in seconds."""

    access_token: str
    expires_in: float = 0.0


async def _metadata_token(progress: Progress) -> AccessToken:
    """Return an access token of the default service account of this machine.

    google-auth's own credentials for a VM are not used: they need the package `requests`.
    """
    from .metadata_server import MetadataServer

    requested_at = time.time()
    async with MetadataServer() as server:
        body = await server.value(f"{DEFAULT_ACCOUNT}/token", progress, query={"scopes": CLOUD_PLATFORM})
    if body is None:
        raise CredentialsError(
            "the metadata server reports that this machine has no service account",
            hint="Attach one with `gcloud compute instances set-service-account`, or pass {credentials}.",
        )
    try:
        token = decode(body.encode(), TokenResponse)
    except ValueError as error:
        raise CredentialsError(f"the metadata server returned an invalid access token: {error}") from error
    headers = {"authorization": f"Bearer {token.access_token}"}
    if quota_project := os.environ.get(QUOTA_VARIABLE):
        headers["x-goog-user-project"] = quota_project
    return AccessToken(
        "the metadata server's default service account",
        headers,
        requested_at + token.expires_in,
    )


def decode(body: bytes, kind: type[T]) -> T:
    """Return decoded JSON; a ValueError that names the malformed field if it is not a `kind`."""
    try:
        # Not strict: protojson writes 64-bit numbers as strings, and older servers also 32-bit ones.
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
