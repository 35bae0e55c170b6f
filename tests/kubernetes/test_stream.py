"""Streamed responses: bytes, ends, failures, and the cleanup after a stream that is not read to its end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve.errors import ConnectionFailedError, ProtocolError, ResolveError
from aioresolve.kubernetes.api.client import AiohttpTransport
from aioresolve.kubernetes.api.override_client import client_transport
from aioresolve.kubernetes.auth import CredentialCache, find_connection
from aioresolve.testing import Answer, Cut, Hang, Redirect, Reset, Trickle, pod

from .loopback import TOKEN, Loopback, all_text, client_sockets, run_loopback, trusted_peer
from .peer_clients import async_client, sync_client
from .peers import never_read, never_respond, read_head

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from aioresolve._core.http.client import StreamingResponse
    from aioresolve.kubernetes.api.client import Transport
    from aioresolve.testing import Fault

pytestmark = pytest.mark.usefixtures("imported_clients")

PODS = "/api/v1/pods"
JSON = "application/json"
NEW_ONLY = {"watch": "true", "sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
PATIENCE = 60.0
"""Seconds after which a test is considered hung."""

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=["tls", "plain"])
def served(request: pytest.FixtureRequest, no_leak: None, tmp_path: Path) -> Iterator[Loopback]:
    """A server without pods, with TLS and without. After the test, all clients must be disconnected.

    Clients send a token only over TLS; without TLS, the server accepts every client.
    """
    is_secure = request.param == "tls"
    with run_loopback(tmp_path, tls=is_secure, tokens={TOKEN: "alice"} if is_secure else None) as loopback:
        yield loopback
        loopback.server.until(lambda: loopback.server.connections == 0)


@asynccontextmanager
async def transport_to(loopback: Loopback) -> AsyncIterator[AiohttpTransport]:
    """Yield an `AiohttpTransport` to the server, and close it."""
    connection = await find_connection(kubeconfig=loopback.kubeconfig, cache=CredentialCache())
    transport = AiohttpTransport(connection)
    try:
        with anyio.fail_after(PATIENCE):
            yield transport
    finally:
        await transport.aclose()


@asynccontextmanager
async def open_watch(
    loopback: Loopback, query: Mapping[str, str] = NEW_ONLY
) -> AsyncIterator[StreamingResponse]:
    """Yield a watch that the server has accepted, with its own transport."""
    async with transport_to(loopback) as transport, transport.stream(PODS, query, JSON) as stream:
        assert stream.response.status == 200
        assert stream.response.body == b""
        await until(loopback, lambda: loopback.server.watches == 1)
        yield stream


async def until(loopback: Loopback, condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(loopback.server.until, condition)


async def read_bytes(stream: StreamingResponse, size: int) -> bytes:
    """Read at least `size` bytes, or everything until the end of the stream."""
    body = b""
    while len(body) < size and (some := await stream.read()):
        body += some
    return body


def event_line(loopback: Loopback, kind: str, name: str) -> bytes:
    encoded = json.dumps(loopback.server.pod(name), separators=(",", ":"))
    return f'{{"type":"{kind}","object":{encoded}}}\n'.encode()


async def error_from(call: Awaitable[Any]) -> ResolveError:
    with pytest.raises(ResolveError) as caught:
        await call
    assert TOKEN not in all_text(caught.value)
    return caught.value


# Bytes


async def test_bytes_are_read_as_they_were_sent(served: Loopback) -> None:
    async with open_watch(served) as stream:
        for name in ("train-0", "train-1"):
            served.server.add(pod(name))
            expected = event_line(served, "ADDED", name)
            assert await read_bytes(stream, len(expected)) == expected


async def test_line_that_is_longer_than_any_buffer_is_read_completely(served: Loopback) -> None:
    async with open_watch(served) as stream:
        served.server.add(pod("big", annotations={"blob": "x" * 2_000_000}))
        expected = event_line(served, "ADDED", "big")
        assert await read_bytes(stream, len(expected)) == expected


async def test_request_has_path_query_and_token_and_refuses_compression(loopback: Loopback) -> None:
    seen: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        seen.append(read_head(connection))
        connection.sendall(CHUNKED + b"0\r\n\r\n")

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport, transport.stream(PODS, {"a": "b c"}, JSON) as stream:
            assert await stream.read() == b""
    assert seen[0].startswith(b"GET /api/v1/pods?a=b+c HTTP/1.1\r\n")
    assert b"\r\nAccept-Encoding: identity\r\n" in seen[0]
    assert b"\r\nAccept: application/json\r\n" in seen[0]
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() in seen[0]


async def test_cancelled_read_loses_no_bytes(served: Loopback) -> None:
    names = [f"train-{number}" for number in range(40)]
    async with open_watch(served) as stream:
        body = b""
        for number, name in enumerate(names):
            reading = asyncio.ensure_future(stream.read())
            await asyncio.sleep(0)
            served.server.add(pod(name))
            # Cancel sometimes before the bytes arrive, sometimes in the same iteration of the event loop.
            deadline = time.monotonic() + 0.0005 * (number % 10)
            while not reading.done() and time.monotonic() < deadline:  # noqa: ASYNC110 - counts loop iterations
                await asyncio.sleep(0)
            reading.cancel()
            result = (await asyncio.gather(reading, return_exceptions=True))[0]
            body += b"" if isinstance(result, BaseException) else result
        expected = b"".join(event_line(served, "ADDED", name) for name in names)
        assert body + await read_bytes(stream, len(expected) - len(body)) == expected


async def test_read_that_is_cancelled_after_its_bytes_arrived_loses_no_bytes(served: Loopback) -> None:
    async with open_watch(served) as stream:
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        waiter: asyncio.Future[None] = reading._fut_waiter  # type: ignore[attr-defined] # pyright: ignore
        served.server.add(pod("train-0"))
        while not waiter.done():  # noqa: ASYNC110 - checks each loop iteration
            await asyncio.sleep(0)
        # The bytes have arrived, but the task that waits for them has not run yet.
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        expected = event_line(served, "ADDED", "train-0")
        assert await read_bytes(stream, len(expected)) == expected


# Ends


async def test_read_at_the_end_of_a_watch_returns_no_bytes(served: Loopback) -> None:
    served.server.add(pod("train-0"))
    expected = event_line(served, "ADDED", "train-0")
    async with open_watch(served, {"watch": "true", "timeoutSeconds": "1"}) as stream:
        assert await read_bytes(stream, 1 << 20) == expected
        assert await stream.read() == b""


async def test_connection_is_reused_after_its_stream_has_ended(served: Loopback) -> None:
    async with transport_to(served) as transport:
        for _ in range(3):
            async with transport.stream(PODS, {}, JSON) as stream:
                assert json.loads(await read_bytes(stream, 1 << 20))["kind"] == "PodList"
            assert served.server.connections == 1


@pytest.mark.parametrize("fault", [Cut(after=40), Reset(after=40)], ids=str)
async def test_incomplete_body_is_a_broken_connection(served: Loopback, fault: Fault) -> None:
    served.server.add(pod("train-0"))
    served.server.inject(fault)
    async with transport_to(served) as transport, transport.stream(PODS, {"watch": "true"}, JSON) as stream:
        error = await error_from(read_bytes(stream, 1 << 20))
        second = await error_from(stream.read())
    assert type(error) is type(second) is ConnectionFailedError
    assert error.retryable
    assert f"the connection to {served.server.url} (from kubeconfig" in str(error)
    assert f"broke during GET {PODS}: the response was incomplete. Try again" in str(error)
    assert (vars(error)["host"], vars(error)["scope"]) == (served.server.url, f"GET {PODS}")


async def test_restart_of_the_server_breaks_the_connection(served: Loopback) -> None:
    async with open_watch(served) as stream:
        reading = asyncio.ensure_future(error_from(stream.read()))
        await asyncio.to_thread(served.server.restart)
        error = await reading
    assert type(error) is ConnectionFailedError
    assert error.retryable


async def test_restart_of_the_server_between_reads_breaks_the_connection(served: Loopback) -> None:
    async with open_watch(served) as stream:
        await asyncio.to_thread(served.server.restart)
        assert type(await error_from(stream.read())) is ConnectionFailedError


@pytest.mark.parametrize("is_waiting", [True, False], ids=["during a read", "before a read"])
async def test_invalid_chunk_is_a_protocol_error_without_the_token(
    loopback: Loopback, is_waiting: bool
) -> None:
    sending = threading.Event()

    def handle(connection: socket.socket) -> None:
        request = read_head(connection)
        connection.sendall(CHUNKED + b"3\r\nabc\r\n")
        sending.wait(PATIENCE)
        # The echoed request contains the token.
        connection.sendall(b"zz " + request)
        never_respond(connection)

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport, transport.stream(PODS, {}, JSON) as stream:
            assert await stream.read() == b"abc"
            if not is_waiting:
                sending.set()
                await asyncio.to_thread(_until, lambda: client_sockets(loopback) == 0)
            reading = asyncio.ensure_future(error_from(stream.read()))
            await asyncio.sleep(0)
            sending.set()
            error = await reading
    assert type(error) is ProtocolError
    assert "returned a non-HTTP response to GET /api/v1/pods" in str(error)


async def test_lost_connection_is_detected_before_a_read_without_the_closed_future_of_aiohttp(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiohttp.client_proto.ResponseHandler.closed", None)
    sending = threading.Event()

    def handle(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(CHUNKED)
        sending.wait(PATIENCE)
        connection.sendall(b"zz\r\n")
        never_respond(connection)

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport, transport.stream(PODS, {}, JSON) as stream:
            sending.set()
            await asyncio.to_thread(_until, lambda: client_sockets(loopback) == 0)
            assert type(await error_from(stream.read())) is ProtocolError


async def test_closing_the_transport_ends_a_read_without_the_closed_future_of_aiohttp(
    served: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiohttp.client_proto.ResponseHandler.closed", None)
    async with transport_to(served) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        reading = asyncio.ensure_future(error_from(stream.read()))
        await until(served, lambda: served.server.watches == 1)
        await transport.aclose()
        assert "was closed" in str(await reading)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# Responses that are not streams


async def test_token_is_renewed_once_after_a_401(loopback: Loopback) -> None:
    loopback.server.tokens = {"a-newer-token": "alice"}
    async with transport_to(loopback) as transport:
        loopback.server.write_kubeconfig(loopback.kubeconfig, token="a-newer-token")
        async with transport.stream(PODS, NEW_ONLY, JSON) as stream:
            assert stream.response.status == 200
            assert loopback.server.connections == 1
    assert [request.user for request in loopback.requests] == [None, "alice"]


async def test_connection_of_a_401_is_reused_for_the_second_request(loopback: Loopback) -> None:
    def handle(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n")
        time.sleep(0.05)  # the client must wait for the late body
        connection.sendall(b"no")
        read_head(connection)
        connection.sendall(CHUNKED + b"3\r\nyes\r\n0\r\n\r\n")

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
            assert await stream.read() == b"yes"


async def test_second_401_is_returned_with_its_complete_body(loopback: Loopback) -> None:
    loopback.server.tokens = {"another": "bob"}
    async with transport_to(loopback) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        assert stream.response.status == 401
        assert json.loads(stream.response.body)["reason"] == "Unauthorized"
        assert await stream.read() == b""
    assert len(loopback.requests) == 2


async def test_body_of_a_failure_is_complete_and_redacted(loopback: Loopback) -> None:
    body = b"%s: Bearer %s" % (b"x" * 1_000_000, TOKEN.encode())
    loopback.server.inject(Answer(403, body, {"Retry-After": "3"}))
    async with transport_to(loopback) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        assert stream.response.status == 403
        assert stream.response.body == body.replace(TOKEN.encode(), b"(secret)")
        assert stream.response.retry_after == 3.0
        assert await stream.read() == b""


async def test_body_of_a_failure_is_limited(served: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve._core.http.client.MAX_BODY", 1 << 20)
    served.server.inject(Answer(500, b"x" * (1 << 21)))
    async with transport_to(served) as transport:
        error = await error_from(transport.stream(PODS, NEW_ONLY, JSON).__aenter__())
    assert isinstance(error, ProtocolError)
    assert "exceeds the limit of 1 MiB" in str(error)


async def test_redirect_is_not_followed(served: Loopback) -> None:
    served.server.inject(Redirect("https://elsewhere.example/login?token=x"))
    async with transport_to(served) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        assert (stream.response.status, stream.response.location) == (307, "https://elsewhere.example")


async def test_server_that_is_down_is_a_connection_error(served: Loopback) -> None:
    async with transport_to(served) as transport:
        with served.server.down():
            error = await error_from(transport.stream(PODS, NEW_ONLY, JSON).__aenter__())
    assert type(error) is ConnectionFailedError
    assert error.retryable
    assert "cannot connect to" in str(error)


async def test_echoed_request_is_a_protocol_error_without_the_token(loopback: Loopback) -> None:
    with trusted_peer(loopback, lambda connection: connection.sendall(read_head(connection))):
        async with transport_to(loopback) as transport:
            error = await error_from(transport.stream(PODS, NEW_ONLY, JSON).__aenter__())
    assert type(error) is ProtocolError


# Cleanup


async def test_closing_a_stream_closes_only_its_own_connection(served: Loopback) -> None:
    async with transport_to(served) as transport:
        async with transport.stream(PODS, NEW_ONLY, JSON) as kept:
            async with transport.stream(PODS, NEW_ONLY, JSON):
                await until(served, lambda: served.server.watches == 2)
            await until(served, lambda: served.server.watches == 1)
            await until(served, lambda: served.server.connections == 1)
            assert (await transport.get(PODS, {}, JSON)).status == 200
            served.server.add(pod("train-0"))
            expected = event_line(served, "ADDED", "train-0")
            assert await read_bytes(kept, len(expected)) == expected
        await until(served, lambda: served.server.watches == 0)


async def test_closing_a_stream_that_still_receives_bytes_closes_the_connection(served: Loopback) -> None:
    async with open_watch(served) as stream:
        served.server.add(*(pod(f"big-{n}", annotations={"blob": "x" * 500_000}) for n in range(20)))
        assert await stream.read()
    await until(served, lambda: served.server.connections == 0)


async def test_error_inside_the_block_is_raised_unchanged(served: Loopback) -> None:
    async with transport_to(served) as transport:
        mine = ConnectionResetError("of the block")
        with pytest.raises(ConnectionResetError) as caught:
            async with transport.stream(PODS, NEW_ONLY, JSON):
                raise mine
        assert caught.value is mine
        await until(served, lambda: served.server.connections == 0)


@pytest.mark.parametrize("fault", [None, Hang()], ids=["for bytes", "for headers"])
async def test_cancelling_a_wait_closes_the_connection(served: Loopback, fault: Fault | None) -> None:
    if fault is not None:
        served.server.inject(fault)
    async with transport_to(served) as transport:
        tasks = asyncio.all_tasks()

        async def read() -> None:
            async with transport.stream(PODS, NEW_ONLY, JSON) as stream:
                await stream.read()

        reading = asyncio.ensure_future(read())
        await until(served, lambda: len(served.requests) == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert asyncio.all_tasks() == tasks
        await until(served, lambda: served.server.connections == 0)
        assert (await transport.get(PODS, {}, JSON)).status == 200


async def test_stream_is_usable_after_a_read_with_a_deadline(served: Loopback) -> None:
    async with open_watch(served) as stream:
        with anyio.move_on_after(0.01) as silence:
            await stream.read()
        assert silence.cancelled_caught
        served.server.add(pod("train-0"))
        expected = event_line(served, "ADDED", "train-0")
        assert await read_bytes(stream, len(expected)) == expected


async def test_closing_a_stream_does_not_wait_for_a_peer_that_never_reads(loopback: Loopback) -> None:
    def handle(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(CHUNKED + b"3\r\nabc\r\n")
        never_read(connection)

    with trusted_peer(loopback, handle):
        async with transport_to(loopback) as transport:
            async with transport.stream(PODS, NEW_ONLY, JSON) as stream:
                assert await stream.read() == b"abc"
            started = time.monotonic()
        assert client_sockets(loopback) == 0
        assert time.monotonic() - started < PATIENCE / 2


async def test_closing_the_transport_ends_this_and_every_later_read(served: Loopback) -> None:
    async with transport_to(served) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        reading = asyncio.ensure_future(error_from(stream.read()))
        await until(served, lambda: served.server.watches == 1)
        await transport.aclose()
        for error in (await reading, await error_from(stream.read())):
            assert type(error) is ConnectionFailedError
            assert not error.retryable
            assert "the resolver was closed. Keep its `async with` open" in str(error)


async def test_closing_the_transport_ends_the_wait_for_the_headers(served: Loopback) -> None:
    served.server.inject(Hang())
    async with transport_to(served) as transport:
        opening = asyncio.ensure_future(error_from(transport.stream(PODS, NEW_ONLY, JSON).__aenter__()))
        await until(served, lambda: len(served.requests) == 1)
        await transport.aclose()
        assert "was closed" in str(await opening)
        assert "was closed" in str(await error_from(transport.stream(PODS, {}, JSON).__aenter__()))


async def test_closing_the_transport_ends_the_wait_for_the_rest_of_a_body(served: Loopback) -> None:
    served.server.inject(Answer(200, b"x" * 5000), Trickle(1, PATIENCE))
    async with transport_to(served) as transport:
        getting = asyncio.ensure_future(error_from(transport.get(PODS, {}, JSON)))
        await until(served, lambda: len(served.requests) == 1)
        await asyncio.sleep(0.05)
        await transport.aclose()
        assert "was closed" in str(await getting)


@pytest.mark.slow
async def test_hundreds_of_streams_are_read_concurrently(served: Loopback) -> None:
    many = 200
    async with transport_to(served) as transport, AsyncExitStack() as stack:
        opening = [transport.stream(PODS, NEW_ONLY, JSON) for _ in range(many)]
        streams = [await stack.enter_async_context(each) for each in opening]
        await until(served, lambda: served.server.watches == many)
        served.server.add(pod("train-0"))
        expected = event_line(served, "ADDED", "train-0")
        assert (
            await asyncio.gather(*(read_bytes(each, len(expected)) for each in streams)) == [expected] * many
        )
    await until(served, lambda: served.server.connections == 0)


# Clients passed as `override_client=`


@asynccontextmanager
async def client_to(served: Loopback, **fields: Any) -> AsyncIterator[Transport]:
    """Yield a transport that uses a kubernetes_asyncio client."""
    async with async_client(served, **fields) as client:
        transport = client_transport(client)
        with anyio.fail_after(PATIENCE):
            yield transport
        await transport.aclose()


async def test_async_client_can_stream(loopback: Loopback) -> None:
    async with client_to(loopback) as transport:
        assert transport.can_stream
        async with transport.stream(PODS, NEW_ONLY, JSON) as stream:
            await until(loopback, lambda: loopback.server.watches == 1)
            loopback.server.add(pod("train-0"))
            expected = event_line(loopback, "ADDED", "train-0")
            assert await read_bytes(stream, len(expected)) == expected
        await until(loopback, lambda: loopback.server.connections == 0)
        assert (await transport.get(PODS, {}, JSON)).status == 200


async def test_stream_of_an_async_client_has_a_timeout_only_for_connecting(loopback: Loopback) -> None:
    timeouts: list[Any] = []
    async with async_client(loopback) as client:
        call = client.call_api

        def call_api(*arguments: Any, **options: Any) -> Any:
            timeouts.append(options["_request_timeout"])
            return call(*arguments, **options)

        client.call_api = call_api
        async with client_transport(client).stream(PODS, NEW_ONLY, JSON) as stream:
            assert stream.response.status == 200
    assert [(each.total, each.sock_read, each.sock_connect) for each in timeouts] == [(None, None, 10.0)]


async def test_incomplete_stream_of_an_async_client_is_a_broken_connection(loopback: Loopback) -> None:
    async with client_to(loopback) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        reading = asyncio.ensure_future(error_from(stream.read()))
        await until(loopback, lambda: loopback.server.watches == 1)
        await asyncio.to_thread(loopback.server.restart)
        error = await reading
    assert type(error) is ConnectionFailedError
    assert "(from override_client) broke during GET" in str(error)


async def test_body_of_a_failure_from_an_async_client_is_complete_and_redacted(loopback: Loopback) -> None:
    loopback.server.inject(Answer(403, f"Bearer {TOKEN}".encode()))
    async with client_to(loopback) as transport, transport.stream(PODS, NEW_ONLY, JSON) as stream:
        assert (stream.response.status, stream.response.body) == (403, b"Bearer (secret)")


async def test_closing_the_transport_ends_the_stream_but_does_not_close_the_async_client(
    loopback: Loopback,
) -> None:
    async with client_to(loopback) as transport:
        async with transport.stream(PODS, NEW_ONLY, JSON) as stream:
            reading = asyncio.ensure_future(error_from(stream.read()))
            await until(loopback, lambda: loopback.server.watches == 1)
            await transport.aclose()
            assert "was closed" in str(await reading)
        await until(loopback, lambda: loopback.server.connections == 0)
        assert (await transport.get(PODS, {}, JSON)).status == 200


async def test_closing_an_async_client_ends_its_streams(loopback: Loopback) -> None:
    async with (
        async_client(loopback) as client,
        client_transport(client).stream(PODS, NEW_ONLY, JSON) as stream,
    ):
        reading = asyncio.ensure_future(error_from(stream.read()))
        await until(loopback, lambda: loopback.server.watches == 1)
        await client.close()
        for error in (await reading, await error_from(stream.read())):
            assert type(error) is ConnectionFailedError


async def test_synchronous_client_cannot_stream(loopback: Loopback) -> None:
    with sync_client(loopback) as client:
        assert not client_transport(client).can_stream
