"""Sessions with the loopback Google Cloud, and requests through them."""

from __future__ import annotations

import ssl
import time
import traceback
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from aioresolve._core.deadline import Progress
from aioresolve._core.retry import RetryPolicy
from aioresolve.errors import ResolveError
from aioresolve.gcp.client import GoogleSession
from aioresolve.gcp.resource_names import NodeName
from aioresolve.gcp.tpu_api import TPUAPI
from aioresolve.testing import GoogleServer, tpu_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from aioresolve.gcp.tpu_api import Node
    from aioresolve.testing import GoogleRequest
    from aioresolve.testing.google.server import GoogleControls

ROBOT = "robot@demo-project.iam.gserviceaccount.com"
PROJECT, ZONE = "demo-project", "us-central2-b"
MY_TPU = NodeName(PROJECT, ZONE, "my-tpu")
TOKEN = "ya29.a-token-that-must-not-be-shown"
QUICK = RetryPolicy(first_wait=0.001, longest_wait=0.004)
NO_RETRIES = RetryPolicy(first_wait=3600.0, longest_wait=3600.0)
"""Waits that exceed every deadline, so that a call ends after one attempt."""


@asynccontextmanager
async def secure(**arguments: Any) -> AsyncIterator[GoogleServer]:
    """A server with TLS and `my-tpu`, which accepts TOKEN and the tokens it issues."""
    arguments = {"tls": True, "tokens": {TOKEN: "user:alice@example.com"}, **arguments}
    async with GoogleServer([tpu_node("my-tpu", workers=2)], **arguments) as server:
        yield server


def trusting(server: GoogleControls) -> ssl.SSLContext:
    """A TLS context that trusts the server's certificate authority."""
    return ssl.create_default_context(cadata=server.ca_pem)


def session(server: GoogleControls, credentials: Any = "default", **arguments: Any) -> GoogleSession:
    """A session with the server, with short waits between attempts."""
    arguments = {"endpoints": server.endpoints, "policy": QUICK, **arguments}
    if server.url.startswith("https:"):
        arguments = {"ssl_context": trusting(server), **arguments}
    return GoogleSession(credentials, **arguments)


async def get_my_tpu(opened: GoogleSession, progress: Progress | None = None) -> Node:
    """Request the node `my-tpu` through an open session."""
    return await TPUAPI(opened).node(MY_TPU, progress or Progress())


async def request_my_tpu(server: GoogleControls, credentials: Any = "default", **arguments: Any) -> Node:
    """Request the node `my-tpu` through a new session."""
    async with session(server, credentials, **arguments) as opened:
        return await get_my_tpu(opened)


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
    """All text of an error and its causes: tracebacks, reprs and attributes."""
    texts = ["".join(traceback.format_exception(error))]
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            texts += [repr(link), str(link), repr(vars(link)), repr(link.args)]
            chain += [link.__cause__, link.__context__]
    return "\n".join(texts)


def members(server: GoogleControls) -> list[str | None]:
    """The identities that sent the requests to the Cloud TPU API."""
    return [request.user for request in server.requests if request.service == "tpu"]


def services(server: GoogleControls) -> list[str]:
    """The services that received requests so far, in order."""
    return [request.service for request in server.requests]
