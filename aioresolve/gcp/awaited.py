"""google-auth's asyncio credentials, awaited."""

from __future__ import annotations

import time
from datetime import UTC
from typing import TYPE_CHECKING, Any

from google.auth.aio import transport
from google.auth.aio.credentials import AnonymousCredentials

from aioresolve.errors import ResolveError

from .auth_errors import FAILURES, credentials_error
from .grant import ANONYMOUS, Grant
from .token_server import ask_token_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from google.auth.aio.credentials import Credentials

    from .transport import Answer, HTTPClient

__all__ = ["awaited"]


async def awaited(credentials: Credentials, client: HTTPClient, source: str, *, anew: bool) -> Grant:
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
    if isinstance(credentials, AnonymousCredentials):
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


class AsyncResponse(transport.Response):
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


class AsyncRequest(transport.Request):
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
