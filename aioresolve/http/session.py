"""The connections of one event loop, and requests over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel

from aioresolve._version import __version__

from .answer import OpenAnswer, OpenAnswers, told

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Mapping

    from aiohttp.abc import AbstractResolver
    from yarl import URL

    from .failures import Exchange

__all__ = ["CONNECT_TIMEOUT", "HTTPSession", "no_deadline"]

CONNECT_TIMEOUT = 10.0
"""Seconds to reach a server's socket; an address that swallows packets must not eat the whole deadline."""

CLOSING_ROUNDS = 3
"""Rounds of the event loop from closing a TLS transport to closing its socket."""

USER_AGENT = f"aioresolve/{__version__}"


class HTTPSession:
    """An aiohttp session that follows no redirect, keeps no cookie and has no deadline but for connecting.

    Args:
        connect_timeout: seconds to find a name and reach a socket, TLS and proxies included.
        socket_timeout: seconds to reach a socket whose name was found, TLS included.
        resolver: how names are found; in the loop's own threads where None.

    Attributes:
        answers: those being read.
    """

    def __init__(
        self,
        *,
        connect_timeout: float | None = None,
        socket_timeout: float | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self.answers = OpenAnswers()
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout, sock_connect=socket_timeout
        )
        self._resolver = resolver
        self._session = self._new_session()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._session.closed

    async def open(
        self,
        exchange: Exchange,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        secrets: Collection[str] = (),
        context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        proxy: str | None = None,
    ) -> OpenAnswer:
        """Return the answer as soon as its headers have come; to be closed.

        Args:
            exchange: what is asked of whom, in words.
            method: such as `GET`.
            url: the whole URL.
            headers: what is sent besides the session's own.
            body: what is sent.
            secrets: texts that are replaced where a failure's body echoes them.
            context: TLS, where the URL's scheme is https.
            server_hostname: the name that the server's certificate is for, where it is not the host's.
            proxy: the URL of the proxy to go through.

        Raises:
            ConnectionFailedError: no answer came; TLSError where that was TLS's doing.
            ProtocolError: what came is no HTTP.
            ConfigurationError: the URL is none.
        """
        if self._session.closed:
            raise exchange.closed_meanwhile()
        response = await told(
            self._session.request(
                method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                ssl=context or True,
                server_hostname=server_hostname,
                proxy=proxy,
            ),
            exchange,
        )
        return OpenAnswer(response, exchange, secrets)

    async def close_idle(self) -> None:
        """Close the connections, unless one is in use; the next request opens another.

        aiohttp would keep them for a while, and each has a third of a megabyte once a long answer has come.
        """
        if self.answers.is_idle and not self._session.closed:
            idle, self._session = self._session, self._new_session()
            with anyio.CancelScope(shield=True):
                await idle.close()

    async def aclose(self) -> None:
        """Close every connection."""
        with anyio.CancelScope(shield=True):
            self.answers.close()
            await self._session.close()
            # aiohttp waits for the connections it still knows. Those of calls that were given up it knows no
            # more, and asyncio takes some rounds of the loop to close them.
            for _ in range(CLOSING_ROUNDS):
                await anyio.lowlevel.checkpoint()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, resolver=self._resolver),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "gzip"},
            timeout=self._timeout,
        )


def no_deadline() -> aiohttp.ClientTimeout:
    """Return aiohttp's word for no deadline but for connecting."""
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
