"""One HTTP request: proxies, names, bodies without an end, and what is not sent along."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError
from aioresolve.gcp.transport import Answer, HTTPClient, is_loopback, origin
from aioresolve.testing import Answer as Answered
from aioresolve.testing import Endless, GoogleServer

from .loopback import refusal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leak")

MEND = "see to it"


async def sent(url: str, **arguments: Any) -> Answer:
    """The answer to a GET through a client of its own."""
    client = HTTPClient()
    try:
        return await client.send("GET", url, scope="a question", mend=MEND, **arguments)
    finally:
        await client.aclose()


async def test_an_answer_is_whole_whatever_its_status() -> None:
    async with GoogleServer() as server:
        server.inject(Answered(404, b"no", headers={"X-Word": "w", "Retry-After": "3"}))
        answer = await sent(server.url)
    assert (answer.status, answer.body, answer.headers["x-word"], answer.retry_after) == (
        404,
        b"no",
        "w",
        3.0,
    )


async def test_a_body_without_an_end_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve._core.http.client.MAX_BODY", 1 << 20)
    async with GoogleServer() as server:
        server.inject(Endless())
        error = await refusal(sent(server.url))
    assert isinstance(error, ProtocolError)
    assert "is longer than 1 MiB and was not read on" in str(error)


async def test_netrc_is_not_read_and_no_cookie_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with GoogleServer() as server:
        client = HTTPClient()
        server.inject(Answered(200, b"", headers={"Set-Cookie": "a=b"}))
        for _ in range(2):
            await client.send("GET", server.url, scope="a question", mend=MEND)
        await client.aclose()
        assert [request.scheme for request in server.requests] == ["", ""]


async def test_a_proxy_of_the_environment_is_asked_but_for_exempt_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GoogleServer() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "exempt.example")
        assert (await sent("http://tpu.example/v2/x")).status == 404
        assert len(proxy.requests) == 1
        await sent(proxy.url)
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        error = await refusal(sent("http://exempt.example/"))
    assert "the name of http://exempt.example was not found" in str(error)


async def test_a_proxy_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://user:MARKER@127.0.0.1:1")
    error = await refusal(sent("https://tpu.example/"))
    assert isinstance(error, ConfigurationError)
    assert "HTTPS_PROXY names no http:// or https:// proxy" in str(error)
    assert "MARKER" not in str(error)


async def test_a_proxy_that_is_not_there_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://user:MARKER@127.0.0.1:9")
    error = await refusal(sent("https://tpu.example/"))
    assert isinstance(error, ConnectionFailedError)
    assert "through the proxy http://127.0.0.1:9" in str(error)
    assert "MARKER" not in str(error)


def unknown(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def not_now(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


async def test_a_name_that_does_not_exist_stays_so_and_one_that_fails_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for look_up, retryable in ((unknown, False), (not_now, True)):
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        error = await refusal(sent("http://tpu.example/"))
        assert isinstance(error, ConnectionFailedError)
        assert error.retryable is retryable


async def test_a_name_with_several_addresses_is_reached_at_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GoogleServer() as server:

        def found(host: str, port: int, **_: object) -> list[Any]:
            assert host == "tpu.example"
            addresses = ("127.0.0.2", "127.0.0.1")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", found)
        assert (await sent(f"http://tpu.example:{server.port}/")).status == 200


async def test_a_name_that_cannot_be_encoded_is_an_error_of_ours() -> None:
    error = await refusal(sent(f"http://{'a' * 70}.example/"))
    assert isinstance(error, ConnectionFailedError | ConfigurationError)


async def test_what_is_no_http_is_a_protocol_error() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        error = await refusal(sent(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
    assert isinstance(error, ProtocolError)
    assert "with what is no HTTP" in str(error)


async def test_a_closed_client_asks_nothing() -> None:
    client = HTTPClient()
    await client.aclose()
    error = await refusal(client.send("GET", "http://127.0.0.1:9/", scope="a question", mend=MEND))
    assert isinstance(error, ConnectionFailedError)
    assert "the session was closed meanwhile" in str(error)


async def test_a_client_closed_while_a_name_is_looked_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, answered = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> None:
        looking.set()
        answered.wait(5.0)
        unknown()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = HTTPClient()
    task = asyncio.create_task(client.send("GET", "http://tpu.example/", scope="a question", mend=MEND))
    assert await asyncio.to_thread(looking.wait, 5.0)
    await client.aclose()
    error = await refusal(task)
    answered.set()
    assert isinstance(error, ConnectionFailedError)
    assert "the session was closed meanwhile" in str(error)


async def test_a_proxy_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GoogleServer() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        error = await refusal(sent("https://tpu.example/"))
    assert isinstance(error, ConnectionFailedError)
    assert "the proxy answered 4" in str(error)
    assert not error.retryable


async def test_a_redirect_to_what_cannot_be_read_is_a_redirect() -> None:
    async with GoogleServer() as server:
        server.inject(Answered(302, headers={"Location": "http://[nothing"}))
        assert (await sent(server.url)).location == "an address that cannot be read"


def test_an_origin_holds_no_secret() -> None:
    assert origin("https://user:secret@tpu.example:8443/a?b#c") == "https://tpu.example:8443"
    with pytest.raises(ConfigurationError):
        origin("no url")


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("a", False),
    ],
)
def test_this_machine_is_known(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer
