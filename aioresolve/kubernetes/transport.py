"""One authorized GET to an API server: bytes out, bytes in, whole or as they come."""

from __future__ import annotations

import abc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from yarl import URL

from aioresolve.http.answer import Answer, OpenAnswer, origin
from aioresolve.http.failures import Exchange, Mends
from aioresolve.http.lookups import AbandonableResolver
from aioresolve.http.session import CONNECT_TIMEOUT, HTTPSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from .credentials import Connection

__all__ = ["MENDS", "AiohttpTransport", "Answer", "Stream", "Transport", "started"]

MENDS = Mends(
    certificate="correct certificate-authority or tls-server-name in the kubeconfig",
    tls="see that the port speaks https and that the client certificate is one it accepts",
    name="correct the server in the kubeconfig, or see to the DNS",
    proxy="correct proxy-url in the kubeconfig, or HTTPS_PROXY and NO_PROXY",
    url="correct the server in the kubeconfig",
    protocol="see that the port is the API server's and whether it wants https",
    reach="see that the address is right, that the server runs, and that nothing between blocks it",
    length="narrow the selector or the namespace, or see whether this is the API server",
    owner="resolver",
)


class Stream(abc.ABC):
    """An answer whose body is read as it comes.

    Attributes:
        answer: what the server answered; of a failure the whole body, of a 200 an empty one, for that is what
            `read` returns.
    """

    answer: Answer

    @abc.abstractmethod
    async def read(self) -> bytes:
        """Return the next bytes, decompressed, as soon as there are any; `b""` at the body's clean end.

        A read that is cancelled loses nothing: the next one returns what it would have.

        Raises:
            ConnectionFailedError: the connection broke, or the transport was closed meanwhile.
            ProtocolError: what comes is no HTTP.
        """

    @abc.abstractmethod
    def without_secrets(self, text: str) -> str:
        """Return `text` of the body without the secrets that were sent: a server may echo them."""


class Transport(abc.ABC):
    """A way to ask one API server.

    Attributes:
        can_stream: whether `stream` can be called; where not, what a stream would tell is asked for anew.
    """

    can_stream = True

    @property
    @abc.abstractmethod
    def host(self) -> str:
        """The server, `scheme://host:port`."""

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Where the credentials come from, in words."""

    async def prepare(self) -> None:  # noqa: B027 - a client handed in brings its credentials along
        """Wait until the credentials are at hand, which a plugin may have to say.

        Raises:
            ResolveError: they cannot be had.
        """

    @abc.abstractmethod
    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        """Return the answer to one GET.

        Raises:
            ResolveError: no whole answer came back.
        """

    @abc.abstractmethod
    def stream(self, path: str, query: Mapping[str, str], accept: str) -> AbstractAsyncContextManager[Stream]:
        """Return a block in which the answer to one GET is read as it comes.

        Its connection is closed where the block is left, whatever is still to come. There is no deadline but
        the caller's.

        Raises:
            ResolveError: no answer came, or that of a failure was not whole.
        """

    async def close_idle(self) -> None:  # noqa: B027 - a client handed in keeps its own connections
        """Close the connections that `get` keeps for its next call, where none is in use."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close what the transport opened itself, streams that are being read among it."""


class AnswerStream(Stream):
    """The body of an answer that is open."""

    def __init__(self, opened: OpenAnswer, answer: Answer) -> None:
        self.answer = answer
        self._opened = opened

    async def read(self) -> bytes:
        return await self._opened.read()

    def without_secrets(self, text: str) -> str:
        return self._opened.without_secrets(text)


async def started(opened: OpenAnswer) -> Stream:
    """Return the stream of an open answer, with the whole body where it is a failure.

    Raises:
        ResolveError: that body did not come whole.
    """
    return AnswerStream(opened, opened.answer if opened.answer.status == 200 else await opened.whole())


class AiohttpTransport(Transport):
    """Our own way: a session of ours, and the credentials of a `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Names in threads of their own: where DNS hangs, those of the loop would soon all wait for it.
        self._session = HTTPSession(socket_timeout=CONNECT_TIMEOUT, resolver=AbandonableResolver())
        # Over connections of their own: one that a long list came over keeps the memory which that took.
        self._streams = HTTPSession(socket_timeout=CONNECT_TIMEOUT, resolver=AbandonableResolver())

    @property
    def host(self) -> str:
        return origin(self._connection.server)

    @property
    def source(self) -> str:
        return self._connection.source

    async def prepare(self) -> None:
        await self._connection.headers()
        await self._connection.ssl()

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        opening = self._opened(self._session, path, query, {"Accept": accept})
        async with self._session.answers.reading(opening) as opened:
            return await opened.whole()

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], accept: str) -> AsyncIterator[Stream]:
        # Compression would save little of small events, and cost a decoder's memory for each stream.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        opening = self._opened(self._streams, path, query, headers)
        async with self._streams.answers.reading(opening) as opened:
            opened.rest()
            yield await started(opened)

    async def close_idle(self) -> None:
        await self._session.close_idle()

    async def aclose(self) -> None:
        try:
            await self._session.aclose()
        finally:
            await self._streams.aclose()

    async def _opened(
        self, session: HTTPSession, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> OpenAnswer:
        """Return the answer to one GET, with credentials that were renewed once where they are refused."""
        credentials = await self._connection.headers()
        opened = await self._sent(session, path, query, headers, credentials)
        if opened.answer.status != 401:
            return opened
        try:
            await opened.whole()  # so that its connection is used again
        finally:
            opened.close()
        # Once, whether or not the credentials changed: a starting API server turns good ones away too.
        await self._connection.renew(credentials)
        return await self._sent(session, path, query, headers, await self._connection.headers())

    async def _sent(
        self,
        session: HTTPSession,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        credentials: Mapping[str, str],
    ) -> OpenAnswer:
        connection = self._connection
        through = f" through the proxy {origin(connection.proxy)}" if connection.proxy else ""
        where = f"{self.host}{through} (from {connection.source})"
        return await session.open(
            Exchange(f"GET {path}", self.host, where, MENDS, is_over=lambda: session.is_closed),
            "GET",
            URL(connection.server + path).with_query(query),
            headers={**headers, **credentials},
            secrets=[credentials.get("Authorization", "").partition(" ")[2]],
            context=await connection.ssl(),
            server_hostname=connection.tls_server_name,
            proxy=connection.proxy,
        )
