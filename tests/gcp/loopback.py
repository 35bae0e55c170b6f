"""Sessions with the loopback Google, and what they are asked."""

from __future__ import annotations

import ssl
import time
import traceback
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from aioresolve._core.retry import Progress, RetryPolicy
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
TOKEN = "ya29.a-token-that-nobody-may-see"
QUICK = RetryPolicy(attempts=4, first_wait=0.001, longest_wait=0.004)


@asynccontextmanager
async def secure(**arguments: Any) -> AsyncIterator[GoogleServer]:
    """A server with TLS that knows TOKEN and the tokens it issues, and holds `my-tpu`."""
    arguments = {"tls": True, "tokens": {TOKEN: "user:alice@example.com"}, **arguments}
    async with GoogleServer([tpu_node("my-tpu", workers=2)], **arguments) as server:
        yield server


def trusting(server: GoogleControls) -> ssl.SSLContext:
    """TLS that trusts the server's authority."""
    return ssl.create_default_context(cadata=server.ca_pem)


def session(server: GoogleControls, credentials: Any = "default", **arguments: Any) -> GoogleSession:
    """A session with the server, quick in trying again."""
    arguments = {"endpoints": server.endpoints, "policy": QUICK, **arguments}
    if server.url.startswith("https:"):
        arguments = {"ssl_context": trusting(server), **arguments}
    return GoogleSession(credentials, **arguments)


async def my_tpu(opened: GoogleSession, progress: Progress | None = None) -> Node:
    """Return the node `my-tpu`, asked through an open session."""
    return await TPUAPI(opened).node(MY_TPU, progress or Progress())


async def asked(server: GoogleControls, credentials: Any = "default", **arguments: Any) -> Node:
    """Return the node `my-tpu`, asked through a session of its own."""
    async with session(server, credentials, **arguments) as opened:
        return await my_tpu(opened)


async def refusal(call: Awaitable[Any]) -> ResolveError:
    """Return the error that `call` raises, which is one of ours."""
    try:
        answer = await call
    except ResolveError as error:
        return error
    raise AssertionError(f"no error, but {answer!r}")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail unless the block ends within so many seconds."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def to(service: str) -> Any:
    """Whether a request is one to that service."""
    return partial(_is_to, service)


def _is_to(service: str, request: GoogleRequest) -> bool:
    return request.service == service


def all_text(error: BaseException) -> str:
    """Everything that an error and what led to it can show: tracebacks, reprs and attributes."""
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
    """Who the requests to the Cloud TPU API were from."""
    return [request.user for request in server.requests if request.service == "tpu"]


def services(server: GoogleControls) -> list[str]:
    """The services asked so far, in order."""
    return [request.service for request in server.requests]
