"""Credentials for Google's APIs: a token is fetched once for all tasks, and renewed before it expires."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from aioresolve._core.token_cache import TokenCache
from aioresolve.errors import ConfigurationError, CredentialsError, ResolveError

from .google_errors import Principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.auth.aio.credentials import Credentials as AsyncCredentials
    from google.auth.credentials import Credentials

    from aioresolve._core.http.client import HTTPClient

    from .api_request import AccessToken

    AnyCredentials: TypeAlias = Credentials | AsyncCredentials | Literal["default"] | None

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope that leaves all decisions to IAM."""


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

    async def token(self, client: HTTPClient) -> AccessToken:
        """Return a token that is not about to expire.

        Args:
            client: sends requests to token servers.

        Raises:
            ResolveError: no token is available; CredentialsError if no source of credentials works.
        """
        return await self._cache.get(lambda: self._fetch(client, force=False))

    async def renew(self, client: HTTPClient, rejected: AccessToken) -> AccessToken:
        """Return a token other than `rejected`, which a server rejected.

        Raises:
            ResolveError: no token is available.
        """
        token = self._cache.token
        if token is not None and token.headers != rejected.headers:
            return token
        return await self._cache.renew(lambda: self._fetch(client, force=True))

    async def _fetch(self, client: HTTPClient, *, force: bool) -> AccessToken:
        token = await self._source.fetch(client, force=force)
        if self._quota_project is None or not token.headers:
            return token
        return replace(token, headers={**token.headers, "x-goog-user-project": self._quota_project})


class _TokenSource(Protocol):
    """A source of tokens; `name` describes it in messages."""

    @property
    def name(self) -> str: ...

    async def fetch(self, client: HTTPClient, *, force: bool) -> AccessToken:
        """Return a token; a new one even if the present one is fresh, with `force`."""
        ...


class _GoogleAuthSource:
    """Credentials of google-auth, from the user or from a file."""

    def __init__(self, credentials: Any, name: str) -> None:
        self._credentials = credentials
        self.name = name

    async def fetch(self, client: HTTPClient, *, force: bool) -> AccessToken:
        from .google_auth import fetch_token

        return await fetch_token(self._credentials, client, self.name, force=force)


class _AsyncGoogleAuthSource:
    """Credentials of google.auth.aio, from the user."""

    name = "credentials="

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    async def fetch(self, client: HTTPClient, *, force: bool) -> AccessToken:
        from .google_auth import fetch_token_async

        return await fetch_token_async(self._credentials, client, self.name, force=force)


class _DefaultSource:
    """Application default credentials: a file, or else the metadata server."""

    def __init__(self, scopes: tuple[str, ...]) -> None:
        self.name = "the application default credentials"
        self._scopes = scopes
        self._file: _GoogleAuthSource | None = None

    async def fetch(self, client: HTTPClient, *, force: bool) -> AccessToken:
        from .application_default import load_file_credentials, metadata_token

        tried: list[str] = []
        if self._file is None:
            loaded = await load_file_credentials(self._scopes, tried)
            self._file = None if loaded is None else _GoogleAuthSource(loaded.credentials, loaded.source)
        if self._file is not None:
            self.name = self._file.name
            try:
                return await self._file.fetch(client, force=force)
            except CredentialsError:
                self._file = None  # read it again next time: the user may have logged in again
                raise
        from .metadata_server import MetadataServer

        try:
            token = await metadata_token(MetadataServer(), self._scopes, None)
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
        return _AsyncGoogleAuthSource(credentials)
    if blocking is not None and isinstance(credentials, blocking.Credentials):
        return _GoogleAuthSource(blocking.with_scopes_if_required(credentials, scopes), "credentials=")
    raise ConfigurationError(
        f"a {type(credentials).__module__}.{type(credentials).__qualname__} is not a credentials object of"
        " google-auth",
        argument="credentials",
        hint="Pass 'default', or an instance of google.auth.credentials.Credentials.",
    )
