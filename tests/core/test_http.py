"""The HTTP client: errors of aiohttp without their secrets, and connections that are used again."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import aiohttp
import aiohttp.http
import anyio
import pytest
from aiohttp import client_exceptions
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from aioresolve._core.http import (
    FAILURES,
    Auth,
    ConnectionHints,
    Credentials,
    HTTPClient,
    RequestContext,
    Response,
    translate_errors,
)
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.testing.lifecycle import CertificateAuthority
from tests.kubernetes.peers import peer

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


CONTEXT = RequestContext(
    "GET /x", "https://api.example:443", "https://api.example:443 (from a file)", HINTS, lambda: False
)


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
        aiohttp.ClientHttpProxyError(REQUEST, (), status=500, headers=HEADERS),
        ConnectionFailedError, "the proxy returned status 500. fix the proxy", True,
    ),
    "a slow connection": (
        aiohttp.ConnectionTimeoutError("timeout"), ConnectionFailedError, "timed out. fix the route", True
    ),
    "a reset": (
        aiohttp.ClientOSError(104, "reset"), ConnectionFailedError, "broke during GET /x: ", True
    ),
    "an end before the headers": (
        aiohttp.ServerDisconnectedError(SECRET), ConnectionFailedError, "closed the connection. Try", True
    ),
    "an end in the body": (
        aiohttp.ClientPayloadError(SECRET), ConnectionFailedError, "the response was incomplete", True
    ),
    "an invalid URL": (aiohttp.InvalidURL(f"http://{SECRET}"), ConfigurationError, "fix the URL", False),
    "not HTTP": (
        aiohttp.ClientResponseError(REQUEST, (), message=SECRET, headers=HEADERS),
        ProtocolError, "returned a non-HTTP response to GET /x (ClientResponseError). fix the port", False,
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
        await translate_errors(call(), CONTEXT)
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
    "a reset": ConnectionResetError,
    "an invalid header": ValueError,
}
"""The errors below those of aiohttp."""


WEBSOCKETS = {"WSServerHandshakeError", "WSMessageTypeError"}


def test_every_error_of_aiohttp_is_translated() -> None:
    for name in {*client_exceptions.__all__, "EofStream"} - WEBSOCKETS:
        assert issubclass(getattr(aiohttp, name), FAILURES), name


def new_client(**arguments: Any) -> HTTPClient:
    return HTTPClient(hints=HINTS, **arguments)


class Trusting(Auth):
    """Trust what this TLS context does, without credentials."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context

    async def credentials(self) -> Credentials:
        return Credentials(ssl_context=self._context)


async def get(client: HTTPClient, url: str, trusted: ssl.SSLContext | None = None) -> Response:
    with anyio.fail_after(60):
        return await client.send("GET", URL(url), scope="GET /", auth=Trusting(trusted))


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
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_client_certificate_that_the_server_rejects_is_a_tls_error() -> None:
    """In TLS 1.3 the alert of the server arrives when the handshake of the client is already complete."""
    authority = CertificateAuthority()
    context = authority.server_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED

    def reject(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
            with suppress(ssl.SSLError):
                secured.do_handshake()
            # Until the client closes: a socket that is closed with unread data is reset, and the alert lost.
            while socket.socket.recv(secured, 65536):
                pass

    trusting = ssl.create_default_context(cadata=authority.pem)
    with peer(reject) as port:
        async with aclosing(new_client()) as client:
            with pytest.raises(TLSError) as caught:
                await get(client, f"https://127.0.0.1:{port}", trusting)
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
        idle = [protocol for kept in connector._conns.values() for protocol, _ in kept]
        await until(lambda: all(protocol.should_close for protocol in idle))
        assert (await get(client, url)).body == b"2"
        assert (await get(client, url)).body == b"3"
    assert len(requests) == 3


async def test_idle_connections_are_closed_unless_a_response_is_awaited() -> None:
    async def respond_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await client.close_idle()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async with plain_server(respond_once) as url, aclosing(new_client()) as client:
        for _ in range(2):
            assert (await get(client, url)).status == 200
            await client.close_idle()


async def test_closing_the_client_ends_a_request_whose_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up, may_end = anyio.Event(), anyio.Event()

    async def look_up(*_: object) -> list[Any]:
        looked_up.set()
        await may_end.wait()
        return []

    monkeypatch.setattr("aioresolve._core.http.look_up", look_up)
    client = new_client()
    request = asyncio.ensure_future(get(client, "http://api.example/"))
    await looked_up.wait()
    await client.aclose()
    with pytest.raises(ConnectionFailedError, match=r"the owner was closed\. Keep its `async with` open"):
        await request
