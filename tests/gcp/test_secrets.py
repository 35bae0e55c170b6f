"""Failed requests show neither the token that was sent nor the password of a proxy."""

from __future__ import annotations

import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from yarl import URL

from aioresolve._core.http.client import HTTPClient, environment_proxy
from aioresolve.errors import ConnectionFailedError, ProtocolError, ResolveError, TLSError
from aioresolve.gcp.api_request import connection_hints
from aioresolve.testing import Cut, GoogleServer, Reset
from aioresolve.testing.certificates import CertificateAuthority
from tests.kubernetes.peers import connect_proxy, never_read, peer, read_head, responder

from .loopback import TOKEN, all_text, error_from, trusting

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aioresolve.testing import Fault

pytestmark = pytest.mark.usefixtures("no_leak")

PASSWORD = "a-password-of-a-proxy"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


async def fail(url: str, caplog: pytest.LogCaptureFixture, context: ssl.SSLContext | None) -> ResolveError:
    """Return the error of a request with a token, after searching it for secrets."""
    client = HTTPClient(hints=connection_hints("Fix it."), ssl_context=context, proxy=environment_proxy)
    send = partial(client.send, scope="a request", headers=HEADERS, secrets=[TOKEN])
    try:
        with anyio.fail_after(60):
            error = await error_from(send("GET", URL(url)))
    finally:
        await client.aclose()
    for secret in (TOKEN, PASSWORD):
        assert secret not in all_text(error)
        assert secret not in caplog.text
    return error


@pytest.mark.parametrize("fault", [Reset(), Reset(after=3), Cut(after=3)], ids=str)
async def test_a_broken_connection_shows_no_token(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    async with GoogleServer(tls=True) as server:
        server.inject(fault, times=None)
        error = await fail(server.url, caplog, trusting(server))
    assert isinstance(error, ConnectionFailedError)
    assert "broke during a request" in str(error)


async def test_a_rejected_certificate_shows_no_token(caplog: pytest.LogCaptureFixture) -> None:
    with peer(never_read, CertificateAuthority().server_context()) as port:
        error = await fail(f"https://127.0.0.1:{port}", caplog, ssl.create_default_context())
    assert isinstance(error, TLSError)
    assert "was not accepted: self-signed certificate in certificate chain" in str(error)


async def test_a_port_without_tls_shows_no_token(caplog: pytest.LogCaptureFixture) -> None:
    async with GoogleServer() as server:
        error = await fail(server.url.replace("http:", "https:"), caplog, None)
    assert isinstance(error, TLSError)


async def test_an_unreachable_server_shows_no_token(caplog: pytest.LogCaptureFixture) -> None:
    error = await fail("https://127.0.0.1:9", caplog, None)
    assert "cannot connect to https://127.0.0.1:9: connection refused" in str(error)


def echo(connection: socket.socket) -> None:
    connection.sendall(read_head(connection))


def echo_in_a_chunk(connection: socket.socket) -> None:
    request = read_head(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" + request)


def echo_in_a_header(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Echo\r\n" + read_head(connection))


@pytest.mark.parametrize("handle", [echo, echo_in_a_chunk, echo_in_a_header])
async def test_an_echo_of_the_request_shows_no_token(
    handle: Callable[[socket.socket], None], caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority()
    with peer(handle, authority.server_context()) as port:
        context = ssl.create_default_context(cadata=authority.pem)
        error = await fail(f"https://127.0.0.1:{port}", caplog, context)
    assert isinstance(error, ProtocolError)


async def test_a_request_to_a_silent_peer_is_cancelled_with_its_socket(
    caplog: pytest.LogCaptureFixture,
) -> None:
    authority = CertificateAuthority()
    with peer(never_read, authority.server_context()) as port:
        client = HTTPClient(
            hints=connection_hints("Fix it."), ssl_context=ssl.create_default_context(cadata=authority.pem)
        )
        with anyio.move_on_after(0.1) as deadline:
            await client.send("GET", URL(f"https://127.0.0.1:{port}"), scope="a request")
        await client.aclose()
        assert deadline.cancelled_caught


# Through a proxy

PROXIES = {
    "requires a password": responder(
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    ),
    "fails": responder(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad"),
    "claims to connect but does not": responder(b"HTTP/1.1 200 OK\r\n\r\n"),
    "closes the connection": responder(b""),
    "does not use HTTP": responder(b"nonsense\r\n\r\n"),
    "echoes": echo,
}


@pytest.mark.parametrize("handle", PROXIES.values(), ids=PROXIES)
async def test_a_failing_proxy_shows_no_secret(
    handle: Callable[[socket.socket], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with peer(handle) as port:
        monkeypatch.setenv("https_proxy", f"http://user:{PASSWORD}@127.0.0.1:{port}")
        error = await fail("https://tpu.example/v2/x", caplog, None)
    assert f"https://tpu.example through the proxy http://127.0.0.1:{port}" in str(error)


async def test_an_unreachable_proxy_shows_no_secret(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"http://user:{PASSWORD}@127.0.0.1:9")
    error = await fail("https://tpu.example/v2/x", caplog, None)
    assert "through the proxy http://127.0.0.1:9: connection refused" in str(error)


async def test_a_broken_connection_behind_a_proxy_shows_no_secret(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    with (
        GoogleServer(tls=True).in_thread() as server,
        peer(connect_proxy(seen)) as port,
    ):
        server.inject(Reset(after=3), times=None)
        monkeypatch.setenv("https_proxy", f"http://user:{PASSWORD}@127.0.0.1:{port}")
        monkeypatch.setattr("aioresolve._core.http.client.is_loopback", lambda host: False)
        error = await fail(server.url, caplog, trusting(server))
    assert seen
    assert isinstance(error, ConnectionFailedError)
    assert f"through the proxy http://127.0.0.1:{port}" in str(error)
