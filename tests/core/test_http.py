"""HTTP's own room: aiohttp's errors as ours, none of its own chained to them, and quiet connections."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import aiohttp.http
import pytest
from aiohttp import client_exceptions
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from aioresolve._core.http.client import Answer, origin, told, without
from aioresolve._core.http.errors import FAILURES, Exchange, Mends, connection_error, harmless_cause
from aioresolve._core.http.tls import READ_BUFFER, restore_read_buffer, shrink_buffers
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.testing.certificates import CertificateAuthority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECRET = "a-secret-that-nobody-may-see"
MENDS = Mends(
    certificate="mend the certificate",
    tls="mend TLS",
    name="mend the name",
    proxy="mend the proxy",
    url="mend the URL",
    protocol="mend the port",
    reach="mend the way",
    length="mend the question",
    owner="asker",
)
HEADERS = CIMultiDictProxy(CIMultiDict({"Authorization": f"Bearer {SECRET}"}))
REQUEST = aiohttp.RequestInfo(URL("https://api.example/x"), "GET", HEADERS, URL("https://api.example/x"))
KEY: Any = SimpleNamespace(
    host="api.example", port=443, is_ssl=True, ssl=True, proxy=URL(f"http://user:{SECRET}@proxy.example")
)


AIOHTTPS = (aiohttp.ClientError, aiohttp.http.HttpProcessingError, aiohttp.EofStream)


def exchange(*, is_over: bool = False) -> Exchange:
    where = "https://api.example:443 (from a file)"
    return Exchange("GET /x", "https://api.example:443", where, MENDS, is_over=lambda: is_over)


CASES: dict[str, tuple[Exception, type[ResolveError], str, bool]] = {
    "a certificate": (
        aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "expired")),
        TLSError, "was not accepted: expired; mend the certificate", False,
    ),
    "TLS to connect": (
        aiohttp.ClientConnectorSSLError(KEY, OSError(1, "wrong version")),
        TLSError, "TLS with https://api.example:443 (from a file) failed: ", False,
    ),
    "TLS later": (ssl.SSLError(1, "bad record"), TLSError, "bad record", False),
    "a name": (
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "not known")),
        ConnectionFailedError, "was not found: not known; mend the name", False,
    ),
    "a name, for now": (
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_AGAIN, "not now")),
        ConnectionFailedError, "was not found: not now; mend the name", True,
    ),
    "a proxy": (
        aiohttp.ClientHttpProxyError(REQUEST, (), status=407, message=SECRET, headers=HEADERS),
        ConnectionFailedError, "was not reached: the proxy answered 407; mend the proxy", False,
    ),
    "a proxy, for now": (
        aiohttp.ClientHttpProxyError(REQUEST, (), status=502, message=SECRET, headers=HEADERS),
        ConnectionFailedError, "the proxy answered 502", True,
    ),
    "a refusal": (
        aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")),
        ConnectionFailedError, "was not reached: ", True,
    ),
    "a proxy's refusal": (
        aiohttp.ClientProxyConnectionError(KEY, ConnectionRefusedError(111, "refused")),
        ConnectionFailedError, "was not reached: ", True,
    ),
    "a slow connection": (
        aiohttp.ConnectionTimeoutError("timeout"), ConnectionFailedError, "timeout; mend the way", True
    ),
    "a reset": (
        aiohttp.ClientOSError(104, "reset"), ConnectionFailedError, "broke during GET /x: ", True
    ),
    "a reset of the loop's": (
        ConnectionResetError(104, "reset"), ConnectionFailedError, "broke during GET /x: ", True
    ),
    "an end before the headers": (
        aiohttp.ServerDisconnectedError(SECRET), ConnectionFailedError, "the server hung up; try again", True
    ),
    "an end that is nothing else": (
        aiohttp.EofStream(), ConnectionFailedError, "the server hung up; try again", True
    ),
    "an end in the body": (
        aiohttp.ClientPayloadError(SECRET), ConnectionFailedError, "the answer was not whole", True
    ),
    "no URL": (aiohttp.InvalidURL(f"http://{SECRET}"), ConfigurationError, "mend the URL", False),
    "no HTTP": (
        aiohttp.ClientResponseError(REQUEST, (), message=SECRET, headers=HEADERS),
        ProtocolError, "with what is no HTTP (ClientResponseError); mend the port", False,
    ),
    "no HTTP later": (
        aiohttp.http.HttpProcessingError(message=SECRET), ProtocolError, "with what is no HTTP", False
    ),
    "a header that is none": (ValueError("newline"), ProtocolError, "with what is no HTTP", False),
    "the operating system": (OSError(24, "too many files"), ConnectionFailedError, "too many files", True),
    "nothing said": (aiohttp.ClientError(), ConnectionFailedError, "not reached: ClientError; mend", True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_error_has_its_own_of_ours_with_its_mend(case: str) -> None:
    error, kind, words, retryable = CASES[case]
    ours = connection_error(error, exchange())
    assert type(ours) is kind
    assert words in str(ours)
    assert ours.retryable is retryable
    assert SECRET not in str(ours)
    if not isinstance(ours, ConfigurationError):
        assert (vars(ours)["host"], vars(ours)["scope"]) == ("https://api.example:443", "GET /x")


@pytest.mark.parametrize("case", CASES)
def test_no_error_of_aiohttp_is_a_cause(case: str) -> None:
    cause = harmless_cause(CASES[case][0])
    assert not isinstance(cause, AIOHTTPS)
    assert cause is None or SECRET not in f"{cause!r} {vars(cause)}"


@pytest.mark.parametrize("case", CASES)
async def test_what_is_raised_has_neither_cause_nor_context_of_aiohttp(case: str) -> None:
    error, kind, *_ = CASES[case]

    async def call() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await told(call(), exchange())
    for link in (caught.value.__cause__, caught.value.__context__):
        assert not isinstance(link, AIOHTTPS)


async def test_whatever_happens_after_the_end_is_told_as_the_end() -> None:
    async def call() -> None:
        raise aiohttp.ServerDisconnectedError

    with pytest.raises(ConnectionFailedError, match="the asker was closed meanwhile") as caught:
        await told(call(), exchange(is_over=True))
    assert not caught.value.retryable


WEBSOCKETS = {"WSServerHandshakeError", "WSMessageTypeError"}


@pytest.mark.parametrize("name", sorted({*client_exceptions.__all__, "EofStream"} - WEBSOCKETS))
def test_every_error_of_aiohttps_client_is_one_that_is_translated(name: str) -> None:
    assert issubclass(getattr(aiohttp, name), FAILURES)


def test_an_answer_shows_neither_its_body_nor_its_headers() -> None:
    assert SECRET not in repr(Answer(200, SECRET.encode(), HEADERS))


def test_secrets_are_taken_out_of_failures_the_longest_first() -> None:
    body = f"{SECRET}-and-more, {SECRET}".encode()
    assert without([SECRET, "", f"{SECRET}-and-more"], Answer(400, body)).body == b"(secret), (secret)"
    assert without([SECRET], Answer(200, body)).body == body


def test_an_origin_holds_no_secret() -> None:
    assert origin(f"https://user:{SECRET}@api.example:8443/a?b#c") == "https://api.example:8443"
    with pytest.raises(ConfigurationError):
        origin("no url")


class Peer:
    """A TLS server that answers a number of bytes, written on a line, with so many; 0 ends the connection."""

    def __init__(self) -> None:
        self._authority = CertificateAuthority()

    async def __aenter__(self) -> Self:
        context = self._authority.server_context()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a connection over which something has come already."""
        port = self._server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cadata=self._authority.pem)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            assert await asked(reader, writer, 1) == 1
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while length := int(await reader.readline() or 0):
            writer.write(b"x" * length)
        writer.close()
        await writer.wait_closed()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> int:
    """Return how many bytes come where so many were asked for."""
    writer.write(b"%d\n" % length)
    async with asyncio.timeout(10.0):
        return len(await reader.readexactly(length))


class MallInfo(ctypes.Structure):
    """What mallinfo2(3) returns."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def allocated() -> int:
    """Return the bytes that this process holds from the C library, OpenSSL's buffers among them."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = MallInfo
    info = library.mallinfo2()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library does not count")
async def test_a_quiet_connection_gives_its_buffers_back() -> None:
    connections = 20
    async with Peer() as peer, AsyncExitStack() as stack:
        transports = [
            (await stack.enter_async_context(peer.connected()))[1].transport for _ in range(connections)
        ]
        gc.collect()
        before = allocated()
        for transport in transports:
            shrink_buffers(transport)
        # OpenSSL's buffer to write from, and asyncio's own of 256 KiB to read into.
        of_each = 16_000 + (0 if "uvloop" in repr(transports[0]) else 255 * 1024)
        assert before - allocated() > connections * of_each


async def test_all_comes_over_a_connection_that_was_quiet() -> None:
    async with Peer() as peer, peer.connected() as (reader, writer):
        for length in (1, READ_BUFFER - 1, READ_BUFFER, READ_BUFFER + 1, 1_000_000):
            shrink_buffers(writer.transport)
            assert await asked(reader, writer, length) == length
            restore_read_buffer(writer.transport)
            assert await asked(reader, writer, length) == length


async def test_a_connection_that_is_gone_has_nothing_to_give_back() -> None:
    shrink_buffers(None)
    async with Peer() as peer, peer.connected() as (reader, writer):
        writer.write(b"0\n")
        assert await reader.read() == b""
        shrink_buffers(writer.transport)
        writer.close()
        shrink_buffers(writer.transport)
        await writer.wait_closed()
        shrink_buffers(writer.transport)
