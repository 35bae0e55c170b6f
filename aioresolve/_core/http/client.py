"""An answer: read whole within a limit, or as it comes.

The connections of one event loop, and requests over them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import anyio
import anyio.lowlevel
from yarl import URL

from aioresolve._core.retry import parse_retry_after
from aioresolve._version import __version__
from aioresolve.errors import ConfigurationError, ResolveError

from .errors import FAILURES, connection_error, harmless_cause
from .tls import READ_BUFFER, restore_read_buffer, shrink_buffers

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Collection, Mapping

    from aiohttp.abc import AbstractResolver

    from .errors import Exchange

__all__ = [
    "CONNECT_TIMEOUT",
    "MAX_BODY",
    "Answer",
    "HTTPSession",
    "OpenAnswer",
    "OpenAnswers",
    "check_length",
    "no_deadline",
    "origin",
    "told",
    "without",
]

T = TypeVar("T")

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one answer, decompressed, that are read at most: three times the rows of 150,000 pods."""


QUIET = 1.0
"""Seconds after which a connection over which nothing comes rests."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Attributes:
        status: the HTTP status code.
        body: the whole body, decompressed.
        headers: the headers, by names in any case.
        retry_after: seconds the server asks to wait, where it does.
        location: where it redirects to, `scheme://host:port` without path and query, where it does.
    """

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry_after: float | None = None
    location: str | None = None


class OpenAnswer:
    """An answer whose body is still to come. `close` has to be called, at the latest when nobody reads on.

    Args:
        response: what aiohttp returned.
        exchange: what it answers.
        secrets: texts that were sent and are to be shown to nobody.

    Attributes:
        answer: status and headers, and what they mean; the body is empty.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, exchange: Exchange, secrets: Collection[str]
    ) -> None:
        self.answer = Answer(
            response.status,
            b"",
            response.headers,
            parse_retry_after(response.headers.get("Retry-After")),
            _location(response),
        )
        self._response = response
        self._secrets = secrets
        self._is_closed = self._is_resting = False
        self._exchange = replace(exchange, is_over=lambda: self._is_closed or exchange.is_over())
        # Of an answer that has come to its end already the connection is known no more.
        self._protocol = None if response.connection is None else response.connection.protocol
        self._transport = None if response.connection is None else response.connection.transport
        # Older aiohttp has none: there a reader is left to its own deadline.
        self._lost: asyncio.Future[None] | None = getattr(self._protocol, "closed", None)
        if self._lost is not None:
            # One is enough, however many answers come over this connection.
            self._lost.remove_done_callback(_looked_at)
            self._lost.add_done_callback(_looked_at)
            self._lost.add_done_callback(self._tell_end)

    async def read(self) -> bytes:
        """Return the next bytes, decompressed, as soon as there are any; `b""` at the body's clean end.

        A read that is cancelled loses nothing: the next one returns what it would have. While nothing comes
        for long, the connection rests.

        Raises:
            ConnectionFailedError: the connection broke, or was closed meanwhile.
            ProtocolError: what comes is no HTTP.
        """
        return await told(self._next_in_time(), self._exchange)

    async def whole(self) -> Answer:
        """Return the answer with its whole body, without the secrets where it is a failure.

        Raises:
            ProtocolError: the body is longer than MAX_BODY.
            ResolveError: it did not come whole.
        """
        return without(self._secrets, replace(self.answer, body=await told(self._rest(), self._exchange)))

    def without_secrets(self, text: str) -> str:
        """Return `text` of the body without the secrets that were sent: a server may echo them."""
        return _without(self._secrets, text.encode()).decode()

    def close(self) -> None:
        """Close the connection at once, unless the body was read to its end: then it is used again."""
        self._is_closed = True
        if self._lost is not None:
            self._lost.remove_done_callback(self._tell_end)
        self._tell_end()
        self._response.close()

    async def _rest(self) -> bytes:
        chunks, length = list[bytes](), 0
        while chunk := await self._next():
            chunks.append(chunk)
            length += len(chunk)
            check_length(length, self._exchange)
        return b"".join(chunks)

    def rest(self) -> None:
        """Keep the connection in little memory until much comes over it."""
        self._is_resting = True
        shrink_buffers(self._transport)

    async def _next_in_time(self) -> bytes:
        """Return the next bytes; let the connection rest while nothing comes for long."""
        if not self._is_resting:
            with anyio.move_on_after(QUIET):
                return await self._next()
            self.rest()
        chunk = await self._next()
        if len(chunk) >= READ_BUFFER // 2:
            self._is_resting = False
            restore_read_buffer(self._transport)
        return chunk

    async def _next(self) -> bytes:
        if self._protocol is not None and not self._protocol.connected:
            self._tell_end()
        return await self._response.content.readany()

    def _tell_end(self, _: asyncio.Future[None] | None = None) -> None:
        """Let whoever reads know that the connection is gone.

        aiohttp does not where it hung up itself: for what came is no HTTP, or its session was closed.
        """
        content = self._response.content
        if self._protocol is not None and content.exception() is None and not content.is_eof():
            content.set_exception(self._protocol.exception() or aiohttp.ServerDisconnectedError())


class OpenAnswers:
    """The answers being read, which can be closed all at once."""

    def __init__(self) -> None:
        self._open: set[OpenAnswer] = set()
        self._readers = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads one, or is about to."""
        return not self._readers

    @asynccontextmanager
    async def reading(self, opening: Awaitable[OpenAnswer]) -> AsyncIterator[OpenAnswer]:
        """Yield the answer that `opening` returns, and close it at the end of the block."""
        self._readers += 1
        try:
            opened = await opening
            self._open.add(opened)
            try:
                yield opened
            finally:
                self._open.discard(opened)
                opened.close()
        finally:
            self._readers -= 1

    def close(self) -> None:
        """Close them: whoever reads is told that nothing more comes."""
        for opened in self._open:
            opened.close()


async def told(call: Awaitable[T], exchange: Exchange) -> T:
    """Return what `call` of aiohttp returns.

    Raises:
        ResolveError: what it raised, as one of ours.
    """
    try:
        return await call
    except ResolveError:
        raise
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        # aiohttp cancels the look-up of a name when its session is closed.
        hung_up = ConnectionAbortedError("its session was closed")
        failure, cause = _failure(hung_up, exchange), None
    except FAILURES as error:
        failure, cause = _failure(error, exchange), harmless_cause(error)
    # Not inside `except`, where aiohttp's own error, which holds the headers, would become its context.
    raise failure from cause


def _failure(error: Exception, exchange: Exchange) -> ResolveError:
    return exchange.closed_meanwhile() if exchange.is_over() else connection_error(error, exchange)


def _is_cancelled() -> bool:
    """Whether it is the running task that somebody wants cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _looked_at(lost: asyncio.Future[None]) -> None:
    """Look at the error of a lost connection: asyncio complains of those that nobody looked at."""
    if not lost.cancelled():
        lost.exception()


def check_length(length: int, exchange: Exchange) -> None:
    """Stop reading a body of which so many bytes have come.

    Raises:
        ProtocolError: it is longer than MAX_BODY, too long to be an answer.
    """
    if length > MAX_BODY:
        raise exchange.too_long(MAX_BODY)


def without(secrets: Collection[str], answer: Answer) -> Answer:
    """Return `answer` without the secrets that were sent, where it is a failure: a server may echo them."""
    return answer if answer.status == 200 else replace(answer, body=_without(secrets, answer.body))


def _without(secrets: Collection[str], body: bytes) -> bytes:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        body = body.replace(secret.encode(), b"(secret)")
    return body


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without the user, password and path it may hold.

    Raises:
        ConfigurationError: it is no URL.
    """
    try:
        return f"{URL(url).origin()}"
    except ValueError as error:
        raise ConfigurationError("a URL to be asked is none; write it as https://HOST/PATH") from error


def _location(response: aiohttp.ClientResponse) -> str | None:
    location = response.headers.get("Location")
    if location is None:
        return None
    try:
        return origin(str(response.url.join(URL(location))))
    except ValueError:
        return "an address that cannot be read"


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
