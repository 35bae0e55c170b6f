"""One HTTP request: proxies, name resolution, endless bodies, and headers that are never sent."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from yarl import URL

from aioresolve._core.http import (
    CONNECT_TIMEOUT,
    HTTPClient,
    Response,
    environment_proxy,
)
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError
from aioresolve.gcp.api_request import connection_hints
from aioresolve.testing import Answer, Endless, GoogleServer

from .loopback import error_from

pytestmark = pytest.mark.usefixtures("no_leak")


def new_client() -> HTTPClient:
    return HTTPClient(
        hints=connection_hints("Fix it."), connect_timeout=CONNECT_TIMEOUT, proxy=environment_proxy
    )


async def send(url: str, **arguments: Any) -> Response:
    """The response to a GET request through a new client."""
    client = new_client()
    try:
        return await client.send("GET", URL(url), scope="a request", **arguments)
    finally:
        await client.aclose()


async def test_a_body_of_the_maximum_length_is_read_and_an_endless_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aioresolve._core.http.response.MAX_BODY", 1 << 20)
    async with GoogleServer() as server:
        server.inject(Answer(200, b"~" * (1 << 20)))
        server.inject(Answer(200, b"~" * ((1 << 20) + 1)))
        server.inject(Endless())
        assert len((await send(server.url)).body) == 1 << 20
        for _ in range(2):
            error = await error_from(send(server.url))
            assert isinstance(error, ProtocolError)
            assert "exceeds the limit of 1 MiB" in str(error)


async def test_a_proxy_of_the_environment_is_used_except_for_exempt_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GoogleServer() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "exempt.example")
        assert (await send("http://tpu.example/v2/x")).status == 404
        assert len(proxy.requests) == 1
        await send(proxy.url)
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        error = await error_from(send("http://exempt.example/"))
    assert "the name of http://exempt.example was not found" in str(error)


async def test_an_unusable_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://user:MARKER@127.0.0.1:1")
    error = await error_from(send("https://tpu.example/"))
    assert isinstance(error, ConfigurationError)
    assert "HTTPS_PROXY is not the URL of an HTTP proxy" in str(error)
    assert "MARKER" not in str(error)
    monkeypatch.setenv("https_proxy", "http://user:MARKER@127.0.0.1:9")
    error = await error_from(send("https://tpu.example/"))
    assert isinstance(error, ConnectionFailedError)
    assert "cannot connect to https://tpu.example through the proxy http://127.0.0.1:9" in str(error)
    assert "MARKER" not in str(error)


def unknown(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def not_now(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


async def test_an_unknown_name_is_final_and_a_failed_lookup_is_retryable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for look_up, retryable in ((unknown, False), (not_now, True)):
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        error = await error_from(send("http://tpu.example/"))
        assert isinstance(error, ConnectionFailedError)
        assert error.retryable is retryable


async def test_a_non_http_response_is_a_protocol_error() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        error = await error_from(send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
    assert isinstance(error, ProtocolError)
    assert "returned a non-HTTP response" in str(error)


async def test_a_refusing_proxy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GoogleServer() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        error = await error_from(send("https://tpu.example/"))
    assert isinstance(error, ConnectionFailedError)
    assert "the proxy returned status 4" in str(error)
    assert not error.retryable
