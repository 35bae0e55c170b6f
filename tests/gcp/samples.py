"""google-auth credentials, as users pass them."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import google.auth.aio.credentials
import google.auth.credentials
import google.auth.exceptions
import google.oauth2.credentials

from .loopback import TOKEN

if TYPE_CHECKING:
    from aioresolve.testing import GoogleServer


def user(token: str | None = TOKEN, *, seconds: float | None = None, **more: Any) -> Any:
    """Credentials of a user with a token that is valid for this number of seconds."""
    expiry = None if seconds is None else datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=seconds)
    return google.oauth2.credentials.Credentials(token, expiry=expiry, **more)


def refreshable(server: GoogleServer, token: str | None = None, *, seconds: float | None = None) -> Any:
    """Credentials of a user that can be refreshed at the server."""
    secrets = {
        "refresh_token": "refresh",
        "client_id": "1234567890.apps.googleusercontent.com",
        "client_secret": "secret",
    }
    return user(token, seconds=seconds, token_uri=f"{server.url}/token", **secrets)


class BlockingCredentials(google.auth.credentials.Credentials):
    """Credentials that block their thread until they are released."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._loop = asyncio.get_running_loop()
        self.released = threading.Event()
        self.started = asyncio.Event()
        self.finished = threading.Event()
        self.error: Exception | None = None

    def refresh(self, request: Any) -> None:
        self._loop.call_soon_threadsafe(self.started.set)
        try:
            self.released.wait(60)
            if self.error is not None:
                raise self.error
            self.token = TOKEN
        finally:
            self.finished.set()
