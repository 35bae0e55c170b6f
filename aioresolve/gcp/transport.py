"""One HTTP request: its proxy, its TLS, its answer whole."""

from __future__ import annotations

import functools
import ipaddress
import os
import ssl
import urllib.request
from typing import TYPE_CHECKING

import anyio.to_thread
from yarl import URL

from aioresolve._core.http.client import CONNECT_TIMEOUT, Answer, HTTPSession, origin
from aioresolve._core.http.dns import AbandonableResolver
from aioresolve._core.http.errors import Exchange, Mends
from aioresolve._core.http.tls import closing_one_sidedly
from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Answer", "HTTPClient", "is_loopback", "origin"]


def _mends(mend: str) -> Mends:
    """Return what to do about a failure; `mend` where the server is not reached."""
    return Mends(
        certificate=(
            "name the authority it comes from with ssl_context= or SSL_CERT_FILE, or mend the endpoint"
        ),
        tls="see that the port speaks https",
        name=mend,
        proxy="correct HTTPS_PROXY and NO_PROXY",
        url="write its start as https://HOST",
        protocol=mend,
        reach=mend,
        length="see whether this is the server you mean",
        owner="session",
    )


class HTTPClient:
    """An HTTP client of one event loop.

    Args:
        ssl_context: TLS for every https URL; that of the operating system's authorities where None.
        connect_timeout: seconds to find a name and reach a socket.
        use_proxies: whether HTTPS_PROXY and its like are obeyed; loopback is never asked through a proxy.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        use_proxies: bool = True,
    ) -> None:
        self._ssl_context = None if ssl_context is None else closing_one_sidedly(ssl_context)
        self._use_proxies = use_proxies
        self._session = HTTPSession(connect_timeout=connect_timeout, resolver=AbandonableResolver())

    async def send(
        self,
        method: str,
        url: str,
        *,
        scope: str,
        mend: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        secrets: Collection[str] = (),
        ssl_context: ssl.SSLContext | None = None,
    ) -> Answer:
        """Return the whole answer, whatever its status.

        Args:
            method: such as `GET`.
            url: the whole URL.
            scope: what is asked, in words for messages.
            mend: what to do where the server is not reached, for messages.
            headers: what is sent besides the client's own.
            body: what is sent.
            secrets: texts that are replaced where a failure's body echoes them.
            ssl_context: TLS for this request alone, made by `closing_one_sidedly`.

        Raises:
            ConnectionFailedError: no whole answer came back; TLSError where that was TLS's doing.
            ProtocolError: what came back is no HTTP, or too long.
            ConfigurationError: the URL is none.
        """
        host = origin(url)
        proxy = _proxy(url) if self._use_proxies else None
        where = host if proxy is None else f"{host} through the proxy {origin(proxy)}"
        opening = self._session.open(
            Exchange(scope, host, where, _mends(mend), is_over=lambda: self._session.is_closed),
            method,
            URL(url),
            headers=headers,
            body=body,
            secrets=secrets,
            context=await self._context(url, ssl_context),
            proxy=proxy,
        )
        async with self._session.answers.reading(opening) as opened:
            return await opened.whole()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.aclose()

    async def _context(self, url: str, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
        if not url.startswith("https:"):
            return None
        context = given or self._ssl_context
        if context is None:
            # A hundred certificates are read: for that the loop does not wait.
            files = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
            context = self._ssl_context = await anyio.to_thread.run_sync(_default_context, *files)
        return context


@functools.lru_cache(maxsize=4)
def _default_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return TLS with the authorities of the operating system, or of SSL_CERT_FILE and SSL_CERT_DIR."""
    return closing_one_sidedly(ssl.create_default_context())


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: `localhost`, `127.0.0.1`, `::1`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for `url`, as urllib, and so requests, reads it."""
    parts = URL(url)
    host = parts.host or ""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{parts.port}"):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the environment variable {parts.scheme.upper()}_PROXY names no http:// or https:// proxy;"
            " others are not supported: name one, or exempt the host in NO_PROXY"
        )
    return proxy
