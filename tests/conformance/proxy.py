"""An HTTP proxy for an API server, with which a test can act at a known point of a list."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import anyio
import trustme
from aiohttp import web

from aioresolve._core.http.client import close_one_sidedly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from .servers import ApiServer


@dataclass(slots=True)
class Proxy:
    """Forwards GET requests and records their queries.

    Attributes:
        url: its base URL, `https://127.0.0.1:port`.
        ca_pem: the certificate authority of its serving certificate, PEM.
        before_forwarding: awaited before each request is forwarded, with its query.
        queries: the query of each request so far.
        broken: set when the API server did not respond; the client's connection is then aborted as well.
    """

    url: str
    ca_pem: str
    before_forwarding: Callable[[Mapping[str, str]], Awaitable[None]]
    queries: list[Mapping[str, str]] = field(default_factory=list)
    broken: anyio.Event = field(default_factory=anyio.Event)


@contextlib.asynccontextmanager
async def open_proxy(
    server: ApiServer, before_forwarding: Callable[[Mapping[str, str]], Awaitable[None]]
) -> AsyncIterator[Proxy]:
    """Run a proxy for `server` until the end of the block."""

    async def forward(request: web.Request) -> web.Response:
        query = dict(request.query)
        proxy.queries.append(query)
        await proxy.before_forwarding(query)
        headers = {name: request.headers[name] for name in ("Accept", "Authorization")}
        try:
            async with session.get(request.path_qs, headers=headers) as response:
                body = await response.read()
                return web.Response(status=response.status, body=body, content_type=response.content_type)
        except aiohttp.ClientError:
            proxy.broken.set()
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)

    app = web.Application()
    app.router.add_get("/{path:.*}", forward)
    runner = web.AppRunner(app)
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    tls = close_one_sidedly(ssl.create_default_context(cadata=server.ca_pem))
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=tls)) as session:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving)
            await site.start()
            host, port = runner.addresses[0]
            ca_pem = authority.cert_pem.bytes().decode()
            proxy = Proxy(f"https://{host}:{port}", ca_pem, before_forwarding)
            yield proxy
        finally:
            await runner.cleanup()
