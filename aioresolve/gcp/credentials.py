"""Who we are to Google: kept while it is good, renewed ahead of its end, once however many ask at a time."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from aioresolve._core.concurrency import CrossLoopLock
from aioresolve.errors import ConfigurationError, CredentialsError, ResolveError

from .access_token import Grant
from .google_errors import Principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.auth.aio.credentials import Credentials as AsyncCredentials
    from google.auth.credentials import Credentials

    from .application_default import FoundFile
    from .transport import HTTPClient

    AnyCredentials: TypeAlias = Credentials | AsyncCredentials | Literal["default"] | None

__all__ = ["CLOUD_PLATFORM", "GoogleCredentials"]

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope that leaves it to IAM what we may do."""


class GoogleCredentials:
    """Credentials for Google's APIs, shared by sessions, tasks and event loops. Making one does no I/O.

    A token is renewed almost four minutes ahead of its end; while that fails for a passing reason, the old
    one is used to its end.

    Args:
        credentials: `"default"` or None for application default credentials; or credentials of google-auth,
            whose scopes are set where they have none.
        scopes: the OAuth scopes to ask for.
        quota_project: the project that requests are charged to; that of the credentials where None.

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
        self._source = _source(credentials, self._scopes)
        self._grant: Grant | None = None
        self._error: ResolveError | None = None
        self._fetches = 0
        self._turn = CrossLoopLock()

    def __repr__(self) -> str:
        return f"<GoogleCredentials {self._source.name}>"

    @property
    def asker(self) -> Principal:
        """Who they make us, in words for messages."""
        return Principal(
            self._source.name, self._grant.member if self._grant is not None else None, self._scopes
        )

    async def grant(self, client: HTTPClient) -> Grant:
        """Return what proves who we are, renewed where its end is near.

        Args:
            client: what a token server is asked with.

        Raises:
            ResolveError: it could not be had; CredentialsError where no source of credentials works.
        """
        grant = self._grant
        if grant is not None and grant.is_fresh:
            return grant
        try:
            return await self._fetched(client, self._fetches, anew=False)
        except ResolveError as error:
            if grant is not None and grant.is_valid and error.retryable:
                return grant
            raise

    async def renewed(self, client: HTTPClient, refused: Grant) -> Grant:
        """Return what proves who we are, other than `refused`, which a server did not accept.

        Raises:
            ResolveError: it could not be had.
        """
        grant = self._grant
        if grant is not None and grant.headers != refused.headers:
            return grant
        return await self._fetched(client, self._fetches, anew=True)

    async def _fetched(self, client: HTTPClient, fetches: int, *, anew: bool) -> Grant:
        """Return the grant of a fetch that ended after this call began: its own, or one others wait for."""
        async with self._turn:
            if self._fetches == fetches:
                # A cancelled fetch ends without a result: the next in turn makes another.
                try:
                    grant = await self._source.fetched(client, anew=anew)
                    self._grant, self._error = self._charged(grant), None
                except ResolveError as error:
                    self._error = error
                self._fetches += 1
            grant_now, failure = self._grant, self._error
        if failure is not None:
            # A copy for each: one exception raised by several tasks grows a traceback of them all.
            raise copy.copy(failure) from failure.__cause__
        assert grant_now is not None
        return grant_now

    def _charged(self, grant: Grant) -> Grant:
        if self._quota_project is None or not grant.headers:
            return grant
        return Grant(
            {**grant.headers, "x-goog-user-project": self._quota_project}, grant.expires, grant.member
        )


class _Given:
    """Credentials of google-auth that were handed in, or that a file holds."""

    def __init__(self, credentials: Any, name: str) -> None:
        self._credentials = credentials
        self.name = name

    async def fetched(self, client: HTTPClient, *, anew: bool) -> Grant:
        from .google_auth import refreshed

        return await refreshed(self._credentials, client, self.name, anew=anew)


class _GivenAsync:
    """Credentials of google.auth.aio that were handed in."""

    name = "credentials="

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    async def fetched(self, client: HTTPClient, *, anew: bool) -> Grant:
        from .google_auth import awaited

        return await awaited(self._credentials, client, self.name, anew=anew)


class _Default:
    """Application default credentials: a file, else the metadata server."""

    def __init__(self, scopes: tuple[str, ...]) -> None:
        self.name = "the application default credentials"
        self._scopes = scopes
        self._file: _Given | None = None

    async def fetched(self, client: HTTPClient, *, anew: bool) -> Grant:
        from .application_default import file_credentials, metadata_grant

        tried: list[str] = []
        if self._file is None:
            found = await file_credentials(self._scopes, tried)
            self._file = None if found is None else _given_by(found)
        if self._file is not None:
            self.name = self._file.name
            try:
                return await self._file.fetched(client, anew=anew)
            except CredentialsError:
                self._file = None  # it is read again: its owner may have logged in anew meanwhile
                raise
        from .metadata_server import MetadataServer

        try:
            grant = await metadata_grant(MetadataServer(), self._scopes, None)
        except ResolveError as error:
            if error.retryable:
                raise
            tried.append(f"the metadata server: {error}")
            raise CredentialsError(
                f"no credentials for Google Cloud were found; looked at {'; '.join(tried)}."
                " Log in with `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS"
                " name a credentials file",
                tried=tried,
            ) from error
        self.name = "the metadata server's default service account"
        return grant


def _given_by(found: FoundFile) -> _Given:
    return _Given(found.credentials, found.source)


def _source(credentials: Any, scopes: tuple[str, ...]) -> _Given | _GivenAsync | _Default:
    if credentials is None or credentials == "default":
        return _Default(scopes)
    # Whoever hands credentials in has imported their library; nobody else pays for it.
    blocking = sys.modules.get("google.auth.credentials")
    awaited = sys.modules.get("google.auth.aio.credentials")
    if awaited is not None and isinstance(credentials, awaited.Credentials):
        return _GivenAsync(credentials)
    if blocking is not None and isinstance(credentials, blocking.Credentials):
        return _Given(blocking.with_scopes_if_required(credentials, scopes), "credentials=")
    raise ConfigurationError(
        f"credentials is a {type(credentials).__module__}.{type(credentials).__qualname__};"
        " give 'default', or credentials of google-auth (google.auth.credentials.Credentials)"
    )
