"""A loopback Google Cloud, and requests to it through `TPUClusterResolver`."""

import asyncio
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import google.auth.credentials
import google.oauth2.credentials
import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import ResolveError
from aioresolve.testing import GoogleRequest, GoogleServer, tpu_node

ROBOT = "robot@demo-project.iam.gserviceaccount.com"
PROJECT, ZONE = "demo-project", "us-central2-b"
PATH = f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"
TOKEN = "ya29.a-token-that-must-not-be-shown"


@asynccontextmanager
async def tls_server(**arguments: Any) -> AsyncIterator[GoogleServer]:
    """A server with TLS and `my-tpu`, which accepts TOKEN and the tokens it issues, as the API to use."""
    arguments = {"tls": True, "tokens": {TOKEN: "user:alice@example.com"}, **arguments}
    async with GoogleServer([tpu_node("my-tpu", workers=2)], **arguments) as server:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            environ = server.environ(folder)
            for name in ("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "SSL_CERT_FILE"):
                if name in environ:
                    patch.setenv(name, environ[name])
            yield server


def new_resolver(credentials: Any = "default", **arguments: Any) -> TPUClusterResolver:
    """A resolver of the node `my-tpu`."""
    return TPUClusterResolver("my-tpu", ZONE, PROJECT, credentials=credentials, **arguments)


async def request_my_tpu(credentials: Any = "default", **arguments: Any) -> Any:
    """Request the node `my-tpu` through a new resolver."""
    (node,) = await new_resolver(credentials, **arguments).nodes()
    return node


async def error_from(call: Awaitable[Any]) -> ResolveError:
    """Return the ResolveError that `call` raises within 60 seconds."""
    try:
        with anyio.fail_after(60):
            result = await call
    except ResolveError as error:
        return error
    raise AssertionError(f"no error, but {result!r}")


def sent_to(service: str) -> Callable[[GoogleRequest], bool]:
    """A predicate: whether a request was sent to that service."""
    return lambda request: request.service == service


def all_text(error: BaseException) -> str:
    """The text of an error and of its causes, with their tracebacks."""
    return "".join(traceback.format_exception(error))


def members(server: GoogleServer) -> list[str | None]:
    """The identities that sent the requests to the Cloud TPU API."""
    return [request.user for request in server.requests if request.service == "tpu"]


def services(server: GoogleServer) -> list[str]:
    """The services that received requests so far, in order."""
    return [request.service for request in server.requests]


# Credentials of google-auth, as users pass them


def user_credentials(
    token: str | None = TOKEN, *, expires_in: float | None = None, **more: Any
) -> google.oauth2.credentials.Credentials:
    """Credentials of a user with a token that expires in this number of seconds; None: never."""
    now = datetime.now(UTC).replace(tzinfo=None)  # as google-auth compares it
    expiry = None if expires_in is None else now + timedelta(seconds=expires_in)
    return google.oauth2.credentials.Credentials(token, expiry=expiry, **more)


def refreshable_credentials(
    server: GoogleServer, token: str | None = None, *, expires_in: float | None = None
) -> Any:
    """Credentials of a user that can be refreshed at the server; by default without a token."""
    secrets = {
        "refresh_token": "refresh",
        "client_id": "1234567890.apps.googleusercontent.com",
        "client_secret": "secret",
    }
    return user_credentials(token, expires_in=expires_in, token_uri=f"{server.url}/token", **secrets)


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
