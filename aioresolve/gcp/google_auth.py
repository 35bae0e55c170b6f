"""google-auth's exceptions, in our words.

A request to a token server, made for google-auth: only where it may go, and with a failure of ours.

google-auth's asyncio credentials, awaited.

google-auth's credentials, which block while they refresh, in a worker thread.

Their HTTP is done by our own client in the event loop: the thread only signs, parses and waits. So a refresh
obeys the deadline of the call it is for, its retries are ours, and a cancelled one ends at once.
"""

from __future__ import annotations

import logging
import ssl
import time
import urllib.parse
from datetime import UTC
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
from google.auth import exceptions, transport
from google.auth.aio import transport as aio_transport
from google.auth.aio.credentials import AnonymousCredentials as AsyncAnonymousCredentials
from google.auth.credentials import AnonymousCredentials
from yarl import URL

from aioresolve._core.http.tls import closing_one_sidedly
from aioresolve._core.retry import RETRYABLE_STATUSES
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    CredentialsError,
    ResolveError,
)

from .access_token import ANONYMOUS, Grant
from .metadata_server import is_metadata_host
from .transport import is_loopback, origin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from datetime import datetime

    from google.auth.aio.credentials import Credentials as AsyncCredentials
    from google.auth.credentials import Credentials

    from .transport import Answer, HTTPClient

__all__ = ["FAILURES", "ask_token_server", "awaited", "credentials_error", "held_grant", "refreshed"]

FAILURES = (exceptions.GoogleAuthError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What google-auth raises; the last three where a file or an answer lacks a field."""


def credentials_error(error: Exception, source: str) -> ResolveError:
    """Return our error for one of google-auth.

    Args:
        error: one of FAILURES. It loses the token server's answer, where it holds it, for that may be secret.
        source: where the credentials come from, in words.
    """
    _forget_answers(error)
    said = str(error).partition("\n")[0][:500].rstrip(". ") or type(error).__name__
    passing = bool(getattr(error, "retryable", False))
    match error:
        case exceptions.TransportError() | exceptions.TimeoutError():
            return ConnectionFailedError(
                f"the token server of {source} was not reached: {said}; see that the network lets it through"
            )
        case exceptions.RefreshError():
            return CredentialsError(
                f"{source} did not get an access token: {said}; {_mend(said)}",
                tried=[f"{source}: {said}"],
                retryable=passing,
            )
        case exceptions.GoogleAuthError():
            pass
        case KeyError() | AttributeError() | TypeError():
            said = f"a field is missing or of another kind ({type(error).__name__}: {said})"
    return CredentialsError(
        f"{source} cannot be used: {said}; make the file anew, or give other credentials",
        tried=[f"{source}: {said}"],
        retryable=passing,
    )


def _forget_answers(error: BaseException | None) -> None:
    while error is not None:
        if isinstance(error, exceptions.GoogleAuthError):
            error.args = error.args[:1]
        error = error.__cause__ or error.__context__


def _mend(said: str) -> str:
    if "invalid_grant" in said or "eauth" in said:
        return (
            "log in again with `gcloud auth application-default login`; for a service account, see that its"
            " key still exists and that the clock is right"
        )
    return "log in again with `gcloud auth application-default login`, or see to the account"


logger = logging.getLogger("aioresolve.gcp")

SECRET_FIELDS = frozenset(
    {"assertion", "refresh_token", "client_secret", "subject_token", "actor_token", "access_token"}
)
"""Fields of a token request that nobody may see."""


async def ask_token_server(
    client: HTTPClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    certificate: tuple[str, str] | None = None,
) -> Answer:
    """Return a token server's answer, unless its status is one that passes.

    Args:
        client: what it is asked with.
        method: such as `POST`.
        url: the whole URL.
        headers: what is sent.
        body: what is sent.
        certificate: the files of a client certificate and its key, as X.509 federation wants them shown.

    Raises:
        ConfigurationError: what is sent could be read on the way.
        APIError: the server is overloaded or not well.
        ResolveError: it was not reached.
    """
    host, path = checked_host(url), URL(url).path
    scope, context = f"{method} {path}", await _showing(certificate)
    with HTTPCall(logger, method, host, path, scope=scope) as request:
        answer = await client.send(
            method,
            url,
            scope=scope,
            mend="see that the credentials name the right token server and that the network lets it through",
            headers=headers,
            body=body,
            secrets=_secrets(headers, body),
            ssl_context=context,
        )
        request.set_response(answer.status, len(answer.body))
    if answer.status in RETRYABLE_STATUSES:
        raise APIError(
            f"the token server {host} answered {answer.status} for {scope}; try again later",
            host=host,
            scope=scope,
            status=answer.status,
            retry_after=answer.retry_after,
            retryable=True,
        )
    return answer


def checked_host(url: str) -> str:
    """Return the origin of a token server's URL.

    Raises:
        ConfigurationError: what is sent there could be read on the way: it speaks plain http, and is neither
            this machine nor a metadata server.
    """
    host, parts = origin(url), URL(url)
    if parts.scheme != "https" and not is_loopback(parts.host or "") and not is_metadata_host(parts):
        raise ConfigurationError(
            f"the credentials name the token server {host}, to which nothing secret may go: it has no TLS;"
            " correct its URL to https:// in the credentials file"
        )
    return host


def _secrets(headers: Mapping[str, str], body: bytes | None) -> set[str]:
    """Return the texts of a token request that nobody may see, though the server echoes them."""
    values = [value for name, value in headers.items() if name.lower() == "authorization"]
    secrets = {secret for value in values for secret in (value, value.partition(" ")[2])}
    fields = urllib.parse.parse_qsl((body or b"").decode("utf-8", "replace"))
    return (secrets | {value for name, value in fields if name in SECRET_FIELDS}) - {""}


async def _showing(certificate: tuple[str, str] | None) -> ssl.SSLContext | None:
    """Return TLS that shows a client certificate."""
    if certificate is None:
        return None

    def load() -> ssl.SSLContext:
        context = closing_one_sidedly(ssl.create_default_context())
        context.load_cert_chain(*certificate)
        return context

    return await anyio.to_thread.run_sync(load)


async def awaited(credentials: AsyncCredentials, client: HTTPClient, source: str, *, anew: bool) -> Grant:
    """Return what `credentials` prove; whether a refresh is due is theirs to know.

    Args:
        credentials: of google.auth.aio.
        client: what a token server is asked with.
        source: where they come from, in words.
        anew: refresh them in any case, for a server has turned them away.

    Raises:
        CredentialsError: they cannot be refreshed.
        ResolveError: the token server was not reached, or is not well.
    """
    if isinstance(credentials, AsyncAnonymousCredentials):
        return ANONYMOUS
    request, headers = AsyncRequest(client), dict[str, str]()
    try:
        if anew:
            await credentials.refresh(request)
        await credentials.before_request(request, "GET", "", headers)
    except ResolveError:
        raise
    except FAILURES as error:
        raise credentials_error(error, source) from error
    except NotImplementedError as error:
        raise credentials_error(TypeError("they do not implement refresh()"), source) from error
    return Grant(headers, _expiry(credentials))


def _expiry(credentials: Any) -> float:
    """Return the end of the token, where the credentials tell; else now, and they are asked each time."""
    expiry = getattr(credentials, "expiry", None)
    if expiry is None:
        return time.time()
    return float((expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp())


class AsyncResponse(aio_transport.Response):
    """What google-auth reads of an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def status_code(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    # google-auth declares a coroutine and uses an async generator.
    async def content(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, chunk_size: int = 1024
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces of `chunk_size` bytes."""
        for start in range(0, len(self._answer.body), chunk_size):
            yield self._answer.body[start : start + chunk_size]

    async def read(self) -> bytes:
        """Return the body."""
        return self._answer.body

    async def close(self) -> None:
        """Do nothing: the body has been read."""


class AsyncRequest(aio_transport.Request):
    """How google-auth asks a token server."""

    def __init__(self, client: HTTPClient) -> None:
        self._client = client

    async def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> AsyncResponse:
        """Return the answer. The caller's deadline holds, whatever `timeout` says."""
        return AsyncResponse(await ask_token_server(self._client, method, url, headers or {}, body))

    async def close(self) -> None:
        """Do nothing: the client is its owner's to close."""


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
