"""Access tokens from credentials of google-auth, blocking or asyncio.

Its requests to token servers are sent by our own client in the event loop: for blocking credentials, a worker
thread only signs, parses and waits. So a refresh obeys the deadline of the call that needs it, its retries
are ours, and a cancelled refresh ends at once. Its exceptions are translated.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Any

import anyio
from yarl import URL

from aioresolve._core.concurrency import run_in_thread
from aioresolve._core.http import close_one_sidedly, is_loopback, origin
from aioresolve._core.retry import RETRYABLE_STATUSES
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
    from google.auth.aio import transport as aio_transport
    from google.auth.aio.credentials import AnonymousCredentials as AsyncAnonymousCredentials
    from google.auth.credentials import AnonymousCredentials
except ImportError as error:
    raise MissingDependencyError(
        "credentials of Google Cloud need google-auth, which is not installed",
        hint="Run `pip install google-auth`.",
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from datetime import datetime

    from google.auth.aio.credentials import Credentials as AsyncCredentials
    from google.auth.credentials import Credentials

    from aioresolve._core.http import HTTPClient, Response

FAILURES = (exceptions.GoogleAuthError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What google-auth raises; the last three if a file or a response lacks a field."""


def credentials_error(error: Exception, source: str) -> ResolveError:
    """Return our error for `error`, one of FAILURES, of the credentials from `source`.

    The response of the token server and the output of an executable are removed from `error`: they may
    contain a secret.
    """
    _remove_secrets(error)
    text = str(error).partition("\n")[0][:500].rstrip(". ") or type(error).__name__
    retryable = bool(getattr(error, "retryable", False))
    match error:
        case exceptions.TransportError() | exceptions.TimeoutError():
            return ConnectionFailedError(
                f"the token server of {source} was not reached: {text}",
                hint="Check that the network allows the connection.",
            )
        case exceptions.RefreshError():
            return CredentialsError(
                f"{source} got no access token: {text}",
                hint="Log in again with `gcloud auth application-default login`; for a service account, check"
                " that it and its key still exist, and that the clock is correct.",
                tried=[f"{source}: {text}"],
                retryable=retryable,
            )
        case exceptions.GoogleAuthError():
            pass
        case KeyError() | AttributeError() | TypeError():
            text = f"a field is missing or has the wrong type ({type(error).__name__}: {text})"
    return CredentialsError(
        f"{source} cannot be used: {text}",
        hint="Create the file again, or pass other {credentials}.",
        tried=[f"{source}: {text}"],
        retryable=retryable,
    )


OUTPUT = re.compile(
    r"^(Executable (?:exited with non-zero return code -?\d+|returned unsuccessful response)).*", re.DOTALL
)
"""The output of the executable of an external account, in the message of google-auth."""


def _remove_secrets(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None  # the local variables of its frames are keys and tokens
        if isinstance(error, exceptions.GoogleAuthError):
            error.args = tuple(OUTPUT.sub(r"\1", str(text)) for text in error.args[:1])
        elif isinstance(error, json.JSONDecodeError):
            error.doc = ""
        error = error.__cause__ or error.__context__


HINTS = connection_hints(
    "Check that the credentials name the correct token server, and that the network allows the connection."
)


async def _send_token_request(
    client: HTTPClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    certificate: tuple[str, str] | None = None,
) -> Response:
    """Return the response of a token server, unless its status is retryable: that is an APIError.

    `certificate` names the files of a client certificate and its key, for X.509 federation.
    """
    host, scope = validate_token_host(url), f"{method} {URL(url).path}"
    response = await client.send(
        method,
        URL(url),
        scope=scope,
        headers=headers,
        body=body,
        ssl_context=await _ssl_context_with(certificate),
        hints=HINTS,
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
    """Return a TLS context that presents a client certificate; None without one."""
    if certificate is None:
        return None

    def load() -> ssl.SSLContext:
        context = close_one_sidedly(ssl.create_default_context())
        context.load_cert_chain(*certificate)
        return context

    return await run_in_thread(f"load the client certificate {certificate[0]}", load)


async def fetch_token_async(
    credentials: AsyncCredentials, client: HTTPClient, source: str, *, force: bool
) -> AccessToken:
    """Return a token of asyncio credentials; they decide whether a refresh is necessary, unless `force`."""
    if isinstance(credentials, AsyncAnonymousCredentials):
        return ANONYMOUS
    request, headers = AsyncRequest(client), dict[str, str]()
    try:
        if force:
            await credentials.refresh(request)
        await credentials.before_request(request, "GET", "", headers)
    except ResolveError as error:
        raise error.with_traceback(None) from error.__cause__  # its frames hold keys
    except FAILURES as error:
        raise credentials_error(error, source) from error
    except NotImplementedError as error:
        raise credentials_error(TypeError("they do not implement refresh()"), source) from error
    return AccessToken(headers, _expiry(credentials), universe=_universe(credentials))


def _expiry(credentials: Any) -> float:
    """Return the expiry of the token; now if it is unknown, so that the credentials are used each time."""
    expiry = _unix_time(getattr(credentials, "expiry", None))
    return time.time() if expiry is None else expiry


class AsyncResponse(aio_transport.Response):
    """A response, for google-auth."""

    def __init__(self, response: Response) -> None:
        self._response = response

    @property
    def status_code(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    # google-auth declares a coroutine and uses an async generator.
    async def content(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, chunk_size: int = 1024
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body in chunks of `chunk_size` bytes."""
        for start in range(0, len(self._response.body), chunk_size):
            yield self._response.body[start : start + chunk_size]

    async def read(self) -> bytes:
        """Return the body."""
        return self._response.body

    async def close(self) -> None:
        """Do nothing: the body is complete."""


class AsyncRequest(aio_transport.Request):
    """Sends the requests of google-auth's asyncio credentials."""

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
        """Send a request. `timeout` is ignored, because the deadline of the caller applies."""
        return AsyncResponse(await _send_token_request(self._client, method, url, headers or {}, body))

    async def close(self) -> None:
        """Do nothing: the owner of the client closes it."""


async def fetch_token(
    credentials: Credentials, client: HTTPClient, source: str, *, force: bool
) -> AccessToken:
    """Return a token of blocking credentials, refreshed in a worker thread if it is not fresh, or `force`."""
    if isinstance(credentials, AnonymousCredentials):
        return ANONYMOUS
    token = current_token(credentials)
    if force or token is None or not token.is_fresh:
        request = ThreadRequest(client)
        try:
            # A thread cannot be cancelled: it is abandoned, and ends at its next request.
            await run_in_thread(f"refresh {source}", credentials.refresh, request)
        except ResolveError as error:
            raise error.with_traceback(None) from error.__cause__  # its frames hold keys
        except FAILURES as error:
            raise credentials_error(error, source) from error
        finally:
            request.stop()
        token = current_token(credentials)
    if token is None:
        raise CredentialsError(
            f"{source} returned no access token", hint="Log in again, or pass other {credentials}."
        )
    if _lacks_universe(credentials):
        universe = await MetadataServer().optional_value(UNIVERSE)
        token = replace(token, universe=universe or DEFAULT_UNIVERSE)
    return token


def current_token(credentials: Any) -> AccessToken | None:
    """Return the token that credentials of google-auth have; None without one."""
    if not credentials.token:
        return None
    headers: dict[str, str] = {}
    credentials.apply(headers)
    email = getattr(credentials, "service_account_email", None)
    member = f"serviceAccount:{email}" if isinstance(email, str) and "@" in email else None
    return AccessToken(headers, _unix_time(credentials.expiry), member, _universe(credentials))


def _lacks_universe(credentials: Any) -> bool:
    """Whether reading the universe of credentials sends a blocking request, as of those of a VM."""
    return getattr(credentials, "_universe_domain_cached", None) is False


def _universe(credentials: Any) -> str:
    universe = None if _lacks_universe(credentials) else getattr(credentials, "universe_domain", None)
    return universe if isinstance(universe, str) and universe else DEFAULT_UNIVERSE


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
    """Sends the requests of blocking credentials: called in a worker thread, sent in the event loop.

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
        with anyio.CancelScope() as self._scope:
            if self._is_stopped:
                raise _stopped(url)
            return ThreadResponse(
                await _send_token_request(self._client, method, url, headers, body, certificate)
            )
        raise _stopped(url)


def _stopped(url: str) -> ConnectionFailedError:
    return ConnectionFailedError(
        f"no request is sent to {origin(url)}: the call was cancelled", retryable=False
    )
