"""google-auth's credentials, which block while they refresh, in a worker thread.

Their HTTP is done by our own client in the event loop: the thread only signs, parses and waits. So a refresh
obeys the deadline of the call it is for, its retries are ours, and a cancelled one ends at once.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
from google.auth import transport
from google.auth.credentials import AnonymousCredentials

from aioresolve.errors import ConnectionFailedError, CredentialsError, ResolveError

from .auth_errors import FAILURES, credentials_error
from .grant import ANONYMOUS, Grant
from .token_server import ask_token_server
from .transport import origin

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from google.auth.credentials import Credentials

    from .transport import Answer, HTTPClient

__all__ = ["held_grant", "refreshed"]


async def refreshed(credentials: Credentials, client: HTTPClient, source: str, *, anew: bool) -> Grant:
    """Return what `credentials` prove, refreshed in a worker thread where they are not fresh.

    Args:
        credentials: of google-auth; they keep the token.
        client: what a token server is asked with.
        source: where they come from, in words.
        anew: refresh them though they are fresh, for a server has turned them away.

    Raises:
        CredentialsError: they cannot be refreshed.
        ResolveError: the token server was not reached, or is not well.
    """
    if isinstance(credentials, AnonymousCredentials):
        return ANONYMOUS
    grant = held_grant(credentials)
    if anew or grant is None or not grant.is_fresh:
        request = ThreadRequest(client)
        try:
            # A thread cannot be cancelled: it is left alone, and ends at its next request.
            await anyio.to_thread.run_sync(
                credentials.refresh, request, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
        except ResolveError:
            raise
        except FAILURES as error:
            raise credentials_error(error, source) from error
        finally:
            request.stop()
        grant = held_grant(credentials)
    if grant is None:
        raise CredentialsError(f"{source} gave no access token; log in again, or give other credentials")
    return grant


def held_grant(credentials: Any) -> Grant | None:
    """Return what credentials of google-auth prove as they are; None where they hold no token."""
    if not credentials.token:
        return None
    headers: dict[str, str] = {}
    credentials.apply(headers)
    email = getattr(credentials, "service_account_email", None)
    member = f"serviceAccount:{email}" if isinstance(email, str) and "@" in email else None
    return Grant(headers, _unix_time(credentials.expiry), member)


def _unix_time(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class ThreadResponse(transport.Response):
    """What google-auth reads of an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    @property
    def data(self) -> bytes:
        return self._answer.body


class ThreadRequest(transport.Request):
    """How google-auth asks a token server: called in a worker thread, asked in the event loop.

    It raises our errors and none of google-auth's, and raises where a status passes: google-auth sleeps
    between attempts of its own, up to fifteen seconds, and nothing could wake it.
    """

    def __init__(self, client: HTTPClient) -> None:
        self._client = client
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
        """Return the answer. The caller's deadline holds, whatever `timeout` says."""
        if self._is_stopped:
            raise _stopped(url)
        data = body.encode() if isinstance(body, str) else body
        return anyio.from_thread.run(self._asked, method, url, headers or {}, data, options.get("cert"))

    def stop(self) -> None:
        """Let the thread end at the request it makes or will make next. Called in the event loop."""
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def _asked(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        certificate: tuple[str, str] | None,
    ) -> ThreadResponse:
        with anyio.CancelScope() as self._scope:
            if self._is_stopped:
                raise _stopped(url)
            return ThreadResponse(
                await ask_token_server(self._client, method, url, headers, body, certificate)
            )
        raise _stopped(url)


def _stopped(url: str) -> ConnectionFailedError:
    return ConnectionFailedError(
        f"{origin(url)} is not asked any more: the call was given up", retryable=False
    )
