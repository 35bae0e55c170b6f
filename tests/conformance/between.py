"""A place between a resolver and an API server, where a test can act at a known point of a list."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import anyio
import trustme
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from .servers import ApiServer


@dataclass(slots=True)
class Between:
    """Forwards each GET, and notes what was asked.

    Attributes:
        url: where it listens, `https://127.0.0.1:port`.
        ca_pem: the certificate authority of its serving certificate, PEM.
        before_forwarding: awaited before each request is forwarded, with its query.
        queries: the query of each request so far.
        broken: set when the API server did not answer a request; its connection is broken off as well.
    """

    url: str
    ca_pem: str
    before_forwarding: Callable[[Mapping[str, str]], Awaitable[None]]
    queries: list[Mapping[str, str]] = field(default_factory=list)
    broken: anyio.Event = field(default_factory=anyio.Event)


@contextlib.asynccontextmanager
async def between(
    server: ApiServer, before_forwarding: Callable[[Mapping[str, str]], Awaitable[None]]
) -> AsyncIterator[Between]:
    """A forwarder to `server` that listens until the end of the block."""

    async def forward(request: web.Request) -> web.Response:
        query = dict(request.query)
        place.queries.append(query)
        await place.before_forwarding(query)
        headers = {name: request.headers[name] for name in ("Accept", "Authorization")}
        try:
            async with session.get(request.path_qs, headers=headers) as answer:
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type=answer.content_type)
        except aiohttp.ClientError:
            place.broken.set()
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)

    app = web.Application()
    app.router.add_get("/{path:.*}", forward)
    runner = web.AppRunner(app)
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    tls = ssl.create_default_context(cadata=server.ca_pem)
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=tls)) as session:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving)
            await site.start()
            host, port = runner.addresses[0]
            ca_pem = authority.cert_pem.bytes().decode()
            place = Between(f"https://{host}:{port}", ca_pem, before_forwarding)
            yield place
        finally:
            await runner.cleanup()
