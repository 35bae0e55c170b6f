"""The HTTP client: errors of aiohttp without their secrets, and the buffers of idle connections."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import socket
import ssl
import threading
import weakref
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import aiohttp.http
import anyio
import pytest
from aiohttp import client_exceptions
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from aioresolve._core.http.client import (
    FIRST_BUFFER,
    IDLE_BUFFER,
    LARGEST_BUFFER,
    HTTPClient,
    Response,
    origin,
    resize_read_buffer,
    shrink_buffers,
    translate_errors,
)
from aioresolve._core.http.errors import (
    FAILURES,
    ConnectionHints,
    RequestContext,
)
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.testing.certificates import CertificateAuthority
from tests.kubernetes.peers import connect_proxy, never_read, peer, read_head
from tests.virtual_time import Reply, fake_requests, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SECRET = "a-secret-that-must-not-be-shown"
HINTS = ConnectionHints(
    certificate="fix the certificate",
    tls="fix TLS",
    name="fix the name",
    proxy="fix the proxy",
    url="fix the URL",
    protocol="fix the port",
    reach="fix the route",
    length="fix the length",
    owner="owner",
)
HEADERS = CIMultiDictProxy(CIMultiDict({"Authorization": f"Bearer {SECRET}"}))
REQUEST = aiohttp.RequestInfo(URL("https://api.example/x"), "GET", HEADERS, URL("https://api.example/x"))
KEY: Any = SimpleNamespace(
    host="api.example", port=443, is_ssl=True, ssl=True, proxy=URL(f"http://user:{SECRET}@proxy.example")
)


AIOHTTP_ERRORS = (aiohttp.ClientError, aiohttp.http.HttpProcessingError, aiohttp.EofStream)


def context(*, is_closed: bool = False) -> RequestContext:
    where = "https://api.example:443 (from a file)"
    return RequestContext("GET /x", "https://api.example:443", where, HINTS, is_closed=lambda: is_closed)


CASES: dict[str, tuple[Exception, type[ResolveError], str, bool]] = {
    "a certificate": (
        aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "expired")),
        TLSError, "was not accepted: expired. fix the certificate", False,
    ),
    "TLS to connect": (
        aiohttp.ClientConnectorSSLError(KEY, OSError(1, "wrong version")),
        TLSError, "TLS with https://api.example:443 (from a file) failed: ", False,
    ),
    "TLS later": (ssl.SSLError(1, "bad record"), TLSError, "bad record", False),
    "a name": (
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "not known")),
        ConnectionFailedError, "was not found: not known. fix the name", False,
    ),
    "a name, temporarily": (
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_AGAIN, "not now")),
        ConnectionFailedError, "was not found: not now. fix the name", True,
    ),
    "a proxy": (
        aiohttp.ClientHttpProxyError(REQUEST, (), status=407, message=SECRET, headers=HEADERS),
        ConnectionFailedError, "the proxy returned status 407. fix the proxy", False,
    ),
    "a proxy, temporarily": (
        aiohttp.ClientHttpProxyError(REQUEST, (), status=500, message=SECRET, headers=HEADERS),
        ConnectionFailedError, "the proxy returned status 500", True,
    ),
    "a refused connection": (
        aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")),
        ConnectionFailedError, "(from a file): connection refused. fix the", True,
    ),
    "a connection refused by a proxy": (
        aiohttp.ClientProxyConnectionError(KEY, ConnectionRefusedError(111, "refused")),
        ConnectionFailedError, "(from a file): connection refused. fix the", True,
    ),
    "a slow connection": (
        aiohttp.ConnectionTimeoutError("timeout"), ConnectionFailedError, "timed out. fix the route", True
    ),
    "a reset": (
        aiohttp.ClientOSError(104, "reset"), ConnectionFailedError, "broke during GET /x: ", True
    ),
    "a reset from the event loop": (
        ConnectionResetError(104, "reset"), ConnectionFailedError, "broke during GET /x: ", True
    ),
    "an end before the headers": (
        aiohttp.ServerDisconnectedError(SECRET), ConnectionFailedError, "closed the connection. Try", True
    ),
    "an unexpected end": (
        aiohttp.EofStream(), ConnectionFailedError, "closed the connection. Try", True
    ),
    "an end in the body": (
        aiohttp.ClientPayloadError(SECRET), ConnectionFailedError, "the response was incomplete", True
    ),
    "an invalid URL": (aiohttp.InvalidURL(f"http://{SECRET}"), ConfigurationError, "fix the URL", False),
    "not HTTP": (
        aiohttp.ClientResponseError(REQUEST, (), message=SECRET, headers=HEADERS),
        ProtocolError, "returned a non-HTTP response to GET /x (ClientResponseError). fix the port", False,
    ),
    "not HTTP in the body": (
        aiohttp.http.HttpProcessingError(message=SECRET), ProtocolError, "returned a non-HTTP response", False
    ),
    "an invalid header": (ValueError("newline"), ProtocolError, "returned a non-HTTP response", False),
    "the operating system": (OSError(24, "too many files"), ConnectionFailedError, "too many files", True),
    "no message": (aiohttp.ClientError(), ConnectionFailedError, "(from a file): ClientError. fix", True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_each_error_is_translated_with_its_hint(case: str) -> None:
    error, kind, words, retryable = CASES[case]

    async def call() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await translate_errors(call(), context())
    translated = caught.value
    assert words in str(translated)
    assert translated.retryable is retryable
    assert SECRET not in str(translated)
    if not isinstance(translated, ConfigurationError):
        assert (vars(translated)["host"], vars(translated)["scope"]) == ("https://api.example:443", "GET /x")
    for link in (translated.__cause__, translated.__context__):  # those of aiohttp have headers
        assert not isinstance(link, AIOHTTP_ERRORS)
        assert link is None or SECRET not in f"{link!r} {vars(link)}"
    cause = CAUSES.get(case)
    assert cause is None or type(translated.__cause__) is cause


CAUSES: dict[str, type[Exception]] = {
    "a certificate": ssl.SSLCertVerificationError,
    "a name": socket.gaierror,
    "a refused connection": ConnectionRefusedError,
    "a reset": ConnectionResetError,
    "a reset from the event loop": ConnectionResetError,
    "an invalid header": ValueError,
}
"""The errors below those of aiohttp."""


async def test_error_after_closing_reports_that_the_owner_was_closed() -> None:
    async def call() -> None:
        raise aiohttp.ServerDisconnectedError

    with pytest.raises(ConnectionFailedError, match="the owner was closed") as caught:
        await translate_errors(call(), context(is_closed=True))
    assert not caught.value.retryable


WEBSOCKETS = {"WSServerHandshakeError", "WSMessageTypeError"}


def test_every_error_of_aiohttp_is_translated() -> None:
    for name in {*client_exceptions.__all__, "EofStream"} - WEBSOCKETS:
        assert issubclass(getattr(aiohttp, name), FAILURES), name


def new_client(**arguments: Any) -> HTTPClient:
    return HTTPClient(hints=HINTS, **arguments)


async def get(client: HTTPClient, url: str) -> Response:
    with anyio.fail_after(60):
        return await client.send("GET", URL(url), scope="GET /")


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until a condition is true."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - nothing can be awaited
            await anyio.sleep(0.001)


@asynccontextmanager
async def plain_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Call `handle` with each connection to a port, and yield the URL of the port."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_refused_connection_is_reported_in_the_words_of_the_system(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    async with aclosing(new_client(source="a file")) as client:
        with pytest.raises(ConnectionFailedError) as caught:
            await get(client, url)
    assert caught.value.summary == f"cannot connect to {url} (from a file): connection refused"
    assert caught.value.retryable


@pytest.mark.parametrize("is_busy", [False, True])
async def test_client_certificate_that_the_server_rejects_is_a_tls_error(is_busy: bool) -> None:
    """In TLS 1.3 the alert of the server arrives when the handshake of the client is already complete.

    If the event loop is busy, it arrives before the request is sent.
    """
    has_rejected = threading.Event()

    class BusyTLS(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, has_rejected.wait, 60)

    authority = CertificateAuthority()
    context = authority.server_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED

    def reject(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
            with suppress(ssl.SSLError):
                secured.do_handshake()
            has_rejected.set()
            # Until the client closes: a socket that is closed with unread data is reset, and the alert lost.
            while socket.socket.recv(secured, 65536):
                pass

    trusting = ssl.create_default_context(cadata=authority.pem)
    with peer(reject) as port:
        async with aclosing(new_client(ssl_context=trusting)) as client:
            if is_busy:
                trusting.sslobject_class = BusyTLS
            with pytest.raises(TLSError) as caught:
                await get(client, f"https://127.0.0.1:{port}")
    error = caught.value
    assert "failed: tlsv13 alert certificate required. fix TLS" in str(error)
    assert not error.retryable


async def test_response_that_was_not_requested_is_not_that_to_the_next_request() -> None:
    requests: list[bytes] = []
    sent = anyio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % len(requests))
                if len(requests) == 1:
                    await writer.drain()
                    await more.wait()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nX")
                    await writer.drain()
                    sent.set()
        writer.close()

    more = anyio.Event()
    async with plain_server(handle) as url, aclosing(new_client()) as client:
        assert (await get(client, url)).body == b"1"
        more.set()
        await sent.wait()
        connector: Any = client._session.connector
        await until(lambda: all(protocol.should_close for protocol in connector._used))
        assert (await get(client, url)).body == b"2"
        assert (await get(client, url)).body == b"3"
    assert len(requests) == 3


async def test_closed_response_is_not_kept_in_memory_and_its_connection_becomes_idle() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nX")
        closed.set()
        writer.close()

    closed = anyio.Event()
    async with plain_server(handle) as url, aclosing(new_client()) as client:
        async with client.stream("GET", URL(url), scope="GET /", headers={}) as opened:
            assert await opened.read() == b"X"
            assert await opened.read() == b""
            response = weakref.ref(opened)
        del opened
        gc.collect()
        assert response() is None
        await client.close_idle()  # closes nothing if a response still counts as open
        with anyio.fail_after(60):
            await closed.wait()


def test_origin_contains_no_secret() -> None:
    assert origin(f"https://user:{SECRET}@api.example:8443/a?b#c") == "https://api.example:8443"
    with pytest.raises(ConfigurationError):
        origin("no url")


class Peer:
    """A TLS server that returns as many bytes as a line requests; 0 ends the connection."""

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
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a connection over which some data has arrived."""
        port = self._server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cadata=self._authority.pem)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            assert await request(reader, writer, 1) == 1
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while length := int(await reader.readline() or 0):
            writer.write(b"x" * length)
        writer.close()
        await writer.wait_closed()


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> int:
    """Request this number of bytes, and return how many arrive."""
    writer.write(b"%d\n" % length)
    async with asyncio.timeout(10.0):
        return len(await reader.readexactly(length))


class MallInfo(ctypes.Structure):
    """The result of mallinfo2(3)."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def allocated_bytes() -> int:
    """Return the bytes that the C library has allocated, including the buffers of OpenSSL."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = MallInfo
    info = library.mallinfo2()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library has no mallinfo2")
async def test_idle_connection_frees_its_buffers() -> None:
    connections = 20
    async with Peer() as peer, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(peer.connect()) for _ in range(connections)]
        gc.collect()
        before = allocated_bytes()
        for _, writer in streams:
            shrink_buffers(writer.transport)
        # The write buffer of OpenSSL, and the read buffer of asyncio (256 KiB).
        has_read_buffer = "uvloop" not in repr(streams[0][1].transport)
        saved_by_each = 16_000 + (255 * 1024 if has_read_buffer else 0)
        assert before - allocated_bytes() > connections * saved_by_each
        if has_read_buffer:
            for reader, writer in streams:
                assert await request(reader, writer, 1) == 1  # allocates the write buffer again
            assert before - allocated_bytes() > connections * 200 * 1024


async def read_stream(
    monkeypatch: pytest.MonkeyPatch, receive: Callable[[], Awaitable[bytes]], *, number: int
) -> list[bytes]:
    """Return the first chunks of a response whose body arrives as `receive` returns it."""
    fake_requests(monkeypatch, lambda _: Reply(read=receive))
    client = HTTPClient(hints=HINTS)
    async with client.stream(
        "GET", URL("http://127.0.0.1/x"), scope="GET /x", headers={}, is_mostly_idle=False
    ) as stream:
        chunks = [await stream.read() for _ in range(number)]
    await client.aclose()
    return chunks


@in_virtual_time
async def test_buffers_are_made_small_only_while_nothing_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk_at: list[float] = []
    loop = asyncio.get_running_loop()  # in a timer, anyio.current_time fails in the oldest anyio
    monkeypatch.setattr(
        "aioresolve._core.http.client.shrink_buffers", lambda _: shrunk_at.append(loop.time())
    )
    waits = iter([0.6, 0.6, 0.6, 1.5])

    async def receive() -> bytes:
        await asyncio.sleep(next(waits))
        return b"x"

    assert await read_stream(monkeypatch, receive, number=4) == [b"x"] * 4
    assert shrunk_at == [pytest.approx(2.8)]


@in_virtual_time
async def test_read_buffer_grows_with_the_data_if_a_chunk_fills_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("aioresolve._core.http.client.read_buffer_size", lambda _: FIRST_BUFFER)
    monkeypatch.setattr("aioresolve._core.http.client.resize_read_buffer", lambda _, size: sizes.append(size))
    little, enough = [FIRST_BUFFER // 2 - 1] * 32, FIRST_BUFFER // 2
    grown = (sum(little) + enough) // 8
    lengths = [*little, enough, grown // 2 - 1, grown // 2, 8 * LARGEST_BUFFER, 8 * LARGEST_BUFFER]
    arriving = iter(lengths)

    async def receive() -> bytes:
        return b"x" * next(arriving)

    chunks = await read_stream(monkeypatch, receive, number=len(lengths))
    assert [len(chunk) for chunk in chunks] == lengths
    assert sizes == [grown, sum(lengths[:-2]) // 8, LARGEST_BUFFER]


async def test_connection_that_was_idle_loses_no_data() -> None:
    async with Peer() as peer, peer.connect() as (reader, writer):
        for length in (1, IDLE_BUFFER - 1, IDLE_BUFFER, IDLE_BUFFER + 1, 1_000_000):
            shrink_buffers(writer.transport)
            assert await request(reader, writer, length) == length
            resize_read_buffer(writer.transport, LARGEST_BUFFER)
            assert await request(reader, writer, length) == length


async def test_certificate_that_is_rejected_behind_a_proxy_with_tls_is_a_tls_error() -> None:
    authority = CertificateAuthority()
    with (
        peer(never_read, CertificateAuthority().server_context()) as port,
        peer(connect_proxy([]), authority.server_context()) as proxy,
    ):
        client = HTTPClient(
            hints=HINTS,
            ssl_context=ssl.create_default_context(cadata=authority.pem),
            proxy=lambda _: f"https://localhost:{proxy}",
        )
        try:
            with (
                anyio.fail_after(60),
                pytest.raises(TLSError, match="was not accepted: self-signed") as caught,
            ):
                await client.send("GET", URL(f"https://127.0.0.1:{port}"), scope="a request")
        finally:
            await client.aclose()
    assert not caught.value.retryable


async def test_endless_headers_are_not_read_to_the_end() -> None:
    sent = 0

    def send_headers(connection: socket.socket) -> None:
        nonlocal sent
        read_head(connection)
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while sent < 1 << 28:
                connection.sendall(b"A: b\r\n" * 10_000)
                sent += 60_000

    with peer(send_headers) as port:
        async with aclosing(new_client()) as client:
            with anyio.fail_after(60), pytest.raises(ProtocolError, match="non-HTTP"):
                await get(client, f"http://127.0.0.1:{port}")
    assert sent < 1 << 25
