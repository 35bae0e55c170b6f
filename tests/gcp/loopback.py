"""A loopback Google Cloud, and requests to it through `TPUClusterResolver`."""

from __future__ import annotations

import tempfile
import time
import traceback
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import ResolveError
from aioresolve.testing import GoogleServer, tpu_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from aioresolve.testing import GoogleRequest

ROBOT = "robot@demo-project.iam.gserviceaccount.com"
PROJECT, ZONE = "demo-project", "us-central2-b"
PATH = f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"
TOKEN = "ya29.a-token-that-must-not-be-shown"


@asynccontextmanager
async def secure(**arguments: Any) -> AsyncIterator[GoogleServer]:
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
    return await new_resolver(credentials, **arguments).node()


async def error_from(call: Awaitable[Any]) -> ResolveError:
    """Return the ResolveError that `call` raises within 30 seconds."""
    try:
        with anyio.fail_after(60):
            result = await call
    except ResolveError as error:
        return error
    raise AssertionError(f"no error, but {result!r}")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail unless the block ends within this number of seconds."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def to(service: str) -> Any:
    """A predicate: whether a request was sent to that service."""
    return partial(_is_to, service)


def _is_to(service: str, request: GoogleRequest) -> bool:
    return request.service == service


def all_text(error: BaseException) -> str:
    """The text of an error and of its causes, with their tracebacks."""
    return "".join(traceback.format_exception(error))


def members(server: GoogleServer) -> list[str | None]:
    """The identities that sent the requests to the Cloud TPU API."""
    return [request.user for request in server.requests if request.service == "tpu"]


def services(server: GoogleServer) -> list[str]:
    """The services that received requests so far, in order."""
    return [request.service for request in server.requests]
