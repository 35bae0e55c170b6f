"""TCP connections to names, whose addresses are tried one after another, and the origins of URLs."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from aioresolve._core import network
from aioresolve.errors import ConfigurationError

PATIENCE = 10.0

NAME = "worker.example"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Return a port of 127.0.0.1 that accepts connections; 127.0.0.2 refuses them."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def name_has(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        assert host == NAME
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def peer_of(host: str, port: int) -> str:
    """Return the address that a connection to `host` leads to."""
    with anyio.fail_after(PATIENCE):
        async with await network.connect(host, port) as stream:
            return str(stream.extra(anyio.abc.SocketAttribute.remote_address)[0])


async def test_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    name_has(monkeypatch)
    assert await peer_of("127.0.0.1", port) == "127.0.0.1"


async def test_next_address_is_tried_after_one_refuses(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    name_has(monkeypatch, "127.0.0.2", "127.0.0.1")
    assert [each.host for each in await network.look_up(NAME, port)] == ["127.0.0.2", "127.0.0.1"]
    assert await peer_of(NAME, port) == "127.0.0.1"


async def test_next_address_is_tried_while_one_does_not_respond(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    name_has(monkeypatch, "127.0.0.2", "127.0.0.1")
    connect_tcp = anyio.connect_tcp

    async def connect(host: str, port: int) -> SocketStream:
        if host == "127.0.0.2":
            await anyio.sleep_forever()
        return await connect_tcp(host, port)

    monkeypatch.setattr(anyio, "connect_tcp", connect)
    monkeypatch.setattr(network, "NEXT_ATTEMPT", 0.01)
    assert await peer_of(NAME, port) == "127.0.0.1"


async def test_error_is_that_of_the_last_address(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    name_has(monkeypatch, "127.0.0.2", "127.0.0.3")
    with pytest.raises(OSError, match="connection attempts failed") as caught:
        await network.connect(NAME, port)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_name_that_is_invalid_is_an_os_error() -> None:
    with pytest.raises(OSError, match="label"):
        await network.connect(f"{'x' * 64}.example", 1)


def test_origin_contains_no_secret() -> None:
    assert network.origin("https://user:password@api.example:8443/a?b#c") == "https://api.example:8443"
    with pytest.raises(ConfigurationError):
        network.origin("no url")
