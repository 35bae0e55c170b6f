"""The HTTP client: requests with credentials, retries, and responses read at once or as they arrive.

Kubernetes, Google's APIs, token servers and the metadata server are all called through `HTTPClient`. It
follows no redirect, keeps no cookie, reads no netrc, limits the size of responses, and removes secrets from
failure responses, because a server may echo what it received.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import base64
import functools
import inspect
import ipaddress
import os
import socket
import ssl
import urllib.request
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace
from yarl import URL

from aioresolve._core.concurrency import run_in_thread, wait_until_done
from aioresolve._core.redaction import Confidential, SecretBytes, SecretText, redact, redact_bytes
from aioresolve._core.retry import call_with_retries, parse_retry_after
from aioresolve._core.tcp import look_up
from aioresolve._core.telemetry import HTTPCall
from aioresolve._version import __version__
from aioresolve.errors import ConfigurationError, ResolveError, TLSError

from .errors import FAILURES, RequestContext, connection_error, safe_cause

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from aioresolve._core.deadline import Progress
    from aioresolve._core.retry import RetryPolicy

    from .errors import ConnectionHints

T = TypeVar("T")

MAX_BODY = 64 * 1024 * 1024
"""The maximum size of a response, decompressed, in bytes: three times the table rows of 150,000 pods."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a server; an address that drops packets must not use up the whole deadline."""

IDLE_AFTER = 1.0
"""Seconds without data after which the buffers of a connection are made small."""

IDLE_BUFFER, FIRST_BUFFER, LARGEST_BUFFER = 1 << 10, 16 << 10, 256 << 10
"""Bytes of the read buffer of a TLS connection: enough for bookmarks, for one record, and that of asyncio."""

CLOSING_ROUNDS = 3
"""Iterations of the event loop from closing a TLS transport to closing its socket."""

BEGINNING_ROUNDS = 3
"""Iterations of uvloop from the call that creates a connection to its wait for the TLS handshake."""

USER_AGENT = f"aioresolve/{__version__}"

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-goog-api-key"})


class Response(Confidential, frozen=True):
    """A response.

    The body is decompressed, the names of the headers are case-insensitive, `retry_after` is in seconds, and
    `location` is the target of a redirect, `scheme://host:port` without path and query. `secrets` are texts
    that were sent, which the server may have echoed.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    retry_after: float | None = None
    location: str | None = None
    secrets: Collection[str] = ()

    def redact(self, text: str) -> str:
        """Return `text`, which quotes the response, without the secrets that were sent."""
        return redact(text, self.secrets)


class Credentials(Confidential, frozen=True):
    """What one request is sent with: headers, and a TLS context, which may have a client certificate.

    Without a TLS context, that of the client is used.
    """

    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    ssl_context: ssl.SSLContext | None = None


class Auth:
    """The credentials of a request. This class sends none."""

    async def credentials(self) -> Credentials:
        """Return what authenticates the request: once for each, so that its parts belong together."""
        return Credentials()

    async def renew(self, rejected: Credentials, response: Response) -> Credentials | None:
        """Renew the credentials after a 401 for `rejected`.

        Returns what to send the request with once more; None if there are no credentials to renew.
        """
        return None

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        """Read the certificate authorities again after the TLS context `rejected` did not accept a server.

        Returns the TLS context to send the request with once more; None if they are the same.
        """
        return None


NO_AUTH = Auth()


class HTTPClient:
    """Sends requests from one event loop. Connecting has a deadline; the rest is left to the caller.

    Args:
        hints: the hints of errors.
        source: where the address of the server comes from, for errors.
        headers: headers of every request; several may have the same name.
        ssl_context: TLS for https URLs if neither the request nor its `auth` has one; None for the
            certificate authorities of the operating system.
        connect_timeout: seconds to resolve a name and connect, including TLS and proxies.
        socket_timeout: seconds to connect after the name was resolved, including TLS.
        server_hostname: the name in the certificate of the server, if it is not the host name.
        proxy: returns the URL of the proxy for a URL, if any.
        logger: logs each request of `send`, which also gets a span. Without it, the caller does that.
    """

    def __init__(
        self,
        *,
        hints: ConnectionHints,
        source: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout: float | None = None,
        socket_timeout: float | None = None,
        server_hostname: str | None = None,
        proxy: Callable[[URL], str | None] = lambda _: None,
        logger: logging.Logger | None = None,
    ) -> None:
        self._hints = hints
        self._source = source
        given = tuple(headers)
        defaults = {"User-Agent": USER_AGENT, "Accept-Encoding": "gzip"}
        replaced = dict(given).keys()
        self._headers = [(name, defaults[name]) for name in defaults if name not in replaced] + list(given)
        self._ssl_context = None if ssl_context is None else close_one_sidedly(ssl_context)
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout, sock_connect=socket_timeout
        )
        self._server_hostname = server_hostname
        self._proxy = proxy
        self._logger = logger
        self._open = OpenResponses()
        self._session = self._new_session()

    async def send(
        self,
        method: str,
        url: URL,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        auth: Auth = NO_AUTH,
        ssl_context: ssl.SSLContext | None = None,
        secrets: Collection[str] = (),
        attempts: Iterator[int] | None = None,
        expected: Collection[int] = (),
        hints: ConnectionHints | None = None,
    ) -> Response:
        """Send a request and return the complete response, whatever its status.

        After a 401 the credentials are renewed and the request is sent once more.

        Args:
            method: such as `GET`.
            url: the URL.
            scope: the requested resource, as text.
            headers: headers in addition to those of `auth`.
            body: the body to send.
            auth: the credentials.
            ssl_context: TLS for this request; see `close_one_sidedly`.
            secrets: texts to remove from failure responses, in addition to the credentials.
            attempts: numbers the requests for telemetry.
            expected: statuses that telemetry does not count as failures.
            hints: the hints of errors, in place of those of the client.

        Raises:
            ConnectionFailedError: there is no complete response; TLSError if TLS is the cause.
            ProtocolError: the response is not HTTP, or too long.
            ConfigurationError: the URL is invalid.
        """
        headers = _hide_secrets(headers or {})
        body = None if body is None else SecretBytes(body)  # it may be a request for a token
        credentials = await auth.credentials()
        for is_last in (False, True):
            call: AbstractContextManager[HTTPCall | None] = nullcontext()
            if self._logger is not None:
                call = HTTPCall(
                    self._logger,
                    method,
                    origin(str(url)),
                    url.raw_path,
                    scope=scope,
                    attempt=1 if attempts is None else next(attempts),
                    expected=expected,
                )
            with call as observed:
                opening = self._request(
                    method,
                    url,
                    scope,
                    {**headers, **_hide_secrets(credentials.headers)},
                    body,
                    auth,
                    ssl_context or credentials.ssl_context,
                    {*secrets, *secrets_of(credentials.headers)},
                    hints,
                )
                async with self._open.reading(opening) as opened:
                    response = await opened.aread()
                if observed is not None:
                    observed.set_response(response.status, len(response.body))
            renewed = None
            if response.status == 401 and not is_last:
                renewed = await auth.renew(credentials, response)
            if renewed is None:
                break
            credentials = renewed
        return response

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: URL,
        *,
        scope: str,
        headers: Mapping[str, str],
        auth: Auth = NO_AUTH,
        is_mostly_idle: bool = True,
    ) -> AsyncIterator[StreamingResponse]:
        """Yield a response whose body is read as it arrives.

        After the block the connection is closed, unless the body was read completely. The body of a failure
        is complete. With `is_mostly_idle` the buffers of the connection are small until much data arrives.
        The other arguments and the errors are those of `send`.
        """
        credentials = await auth.credentials()
        for is_last in (False, True):
            opening = self._request(
                method,
                url,
                scope,
                {**headers, **_hide_secrets(credentials.headers)},
                None,
                auth,
                credentials.ssl_context,
                secrets_of(credentials.headers),
            )
            async with self._open.reading(opening) as opened:
                if is_mostly_idle:
                    opened.shrink()
                await opened.read_failure()
                renewed = None
                if opened.response.status == 401 and not is_last:
                    renewed = await auth.renew(credentials, opened.response)
                if renewed is None:
                    yield opened
                    return
                credentials = renewed

    async def close_idle(self) -> None:
        """Close the connections, unless one is in use; the next request opens another.

        aiohttp would keep them for a while, and after a long response each occupies a third of a megabyte.
        """
        if self._open.is_idle and not self._session.closed:
            idle, self._session = self._session, self._new_session()
            with anyio.CancelScope(shield=True):
                await idle.close()

    async def aclose(self) -> None:
        """Close every connection. Closing twice has no effect."""
        with anyio.CancelScope(shield=True):
            self._open.close()
            await self._session.close()
            # aiohttp waits for the connections it knows of. It no longer knows those of cancelled requests,
            # which asyncio needs some iterations of the loop to close.
            for _ in range(CLOSING_ROUNDS):
                await anyio.lowlevel.checkpoint()

    async def _request(
        self,
        method: str,
        url: URL,
        scope: str,
        headers: Mapping[str, str],
        body: bytes | None,
        auth: Auth,
        ssl_context: ssl.SSLContext | None,
        secrets: Collection[str],
        hints: ConnectionHints | None = None,
    ) -> StreamingResponse:
        """Send one request, and return as soon as the headers of the response have arrived.

        If `ssl_context` does not accept the server, the request is sent once more if `auth` has another one.
        """
        host, proxy = origin(str(url)), self._proxy(url)
        where = host if proxy is None else f"{host} through the proxy {origin(proxy)}"
        if self._source is not None:
            where = f"{where} (from {self._source})"
        context = RequestContext(scope, host, where, hints or self._hints, lambda: self._session.closed)
        if url.scheme == "https" and ssl_context is None:
            ssl_context = self._ssl_context = self._ssl_context or await _system_ssl_context()
        if self._session.closed:
            raise context.closed_error()

        async def send(ssl_context: ssl.SSLContext | None) -> aiohttp.ClientResponse:
            request = self._session.request(
                method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                ssl=ssl_context or True,
                server_hostname=self._server_hostname,
                proxy=proxy,
            )
            return await translate_errors(request, context)

        try:
            response = await send(ssl_context)
        except TLSError:
            renewed = None if ssl_context is None else await auth.renew_trust(ssl_context)
            if renewed is None:
                raise
            response = await send(renewed)
        return StreamingResponse(response, context, secrets)

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(limit=0, resolver=_Resolver()),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=self._timeout,
        )


class _Resolver(AbstractResolver):
    """Looks names up in threads of our own: if DNS hangs, those of the event loop would all be busy."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address.host,
                port=port,
                family=address.family,
                proto=address.protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await look_up(host, port, family)
        ]

    async def close(self) -> None: ...


class _Connector(aiohttp.TCPConnector):
    """Does not reuse a connection over which data arrived after its last response.

    aiohttp would take that data for the response to the next request. It also reports failures of TLS inside
    the TLS of a proxy, and after the handshake, and keeps uvloop from dropping an error.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._used = WeakSet[Any]()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or protocol not in self._used or not protocol.should_close:
                break
            connection.close()
        if protocol is not None:
            if protocol not in self._used:
                resize_read_buffer(connection.transport, FIRST_BUFFER)
            self._used.add(protocol)
            await self._check_open(connection, protocol)
        return connection

    async def _check_open(self, connection: Connection, protocol: ResponseHandler) -> None:
        """Raise the error of a connection that the server closed before the request was sent.

        A server may send a TLS alert as soon as the handshake ends. aiohttp would only report that it cannot
        write to a connection that is closing.
        """
        if connection.transport is None or not connection.transport.is_closing():
            return
        try:
            if protocol.closed is not None:
                protocol.closed.add_done_callback(_retrieve_exception)
                await asyncio.wait([protocol.closed])
            raise protocol.exception() or aiohttp.ServerDisconnectedError()
        finally:
            connection.close()

    async def _wrap_create_connection(
        self, *args: Any, **kwargs: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Connect; on uvloop, do not cancel that while TLS begins.

        uvloop waits for the connection, which begins the handshake, and then for the handshake. If it is
        cancelled before it waits for the handshake, it drops its future. If that has failed, the loop logs
        that its exception was never retrieved.
        """
        connect = super()._wrap_create_connection
        if not type(self._loop).__module__.startswith("uvloop"):
            return await connect(*args, **kwargs)
        factory, *others = args
        has_begun = False

        def new_protocol() -> ResponseHandler:
            nonlocal has_begun
            has_begun = True
            protocol: ResponseHandler = factory()
            return protocol

        async def abandon() -> None:
            for _ in range(BEGINNING_ROUNDS if has_begun else 0):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                transport, _ = await task
                transport.abort()

        task = asyncio.create_task(connect(new_protocol, *others, **kwargs))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # In a task of its own, because this one may be cancelled once more.
            await wait_until_done(asyncio.create_task(abandon()))
            raise
        return task.result()

    async def _start_tls_connection(
        self, underlying_transport: asyncio.Transport, *args: Any, **kwargs: Any
    ) -> tuple[asyncio.BaseTransport, Any]:
        """Start TLS through a proxy, which may itself use TLS.

        If the inner handshake fails, asyncio calls `_abort` of the outer TLS with an argument that it lacks
        before Python 3.11.8 and 3.12.2: the certificate error would be hidden behind a logged TypeError.
        """
        outer = _tls_protocol(underlying_transport)
        abort = getattr(outer, "_abort", None)
        if abort is not None and not inspect.signature(abort).parameters:
            outer._abort = lambda _=None: abort()
        return await super()._start_tls_connection(underlying_transport, *args, **kwargs)


async def send_with_retries(
    send: Callable[[Iterator[int]], Awaitable[T]],
    *,
    scope: str,
    host: str,
    progress: Progress,
    policy: RetryPolicy,
    limiter: anyio.CapacityLimiter | None = None,
) -> T:
    """Return the result of `send`, repeating it as long as its error is retryable.

    `send` makes one attempt, and is called with the numbers of attempts, from 1. `progress` is updated with
    each attempt; the caller marks the request as done. `limiter` limits how many requests are made at a time,
    but not how many wait for their next attempt.
    """
    attempts = count(1)

    async def attempt() -> T:
        async with limiter or nullcontext():
            return await send(attempts)

    progress.waiting(scope, f"{host} has not responded")
    return await call_with_retries(
        attempt, policy=policy, on_failure=lambda error, _: progress.failed(scope, error)
    )


class StreamingResponse:
    """A response whose body is read as it arrives. It must be closed.

    `secrets` are texts that were sent and must not be shown. The body of the attribute `response` is empty
    until `read_failure`.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, context: RequestContext, secrets: Collection[str]
    ) -> None:
        self.response = Response(
            response.status,
            b"",
            response.headers,
            parse_retry_after(response.headers.get("Retry-After")),
            _location(response),
            secrets,
        )
        self._aiohttp_response = response
        self._is_closed = False
        self._arrived = 0  # bytes, since the read buffer was made small
        self._context = replace(context, is_closed=lambda: self._is_closed or context.is_closed())
        # aiohttp has already released the connection of a response that is complete.
        self._protocol = None if response.connection is None else response.connection.protocol
        self._transport = None if response.connection is None else response.connection.transport
        self._read_buffer = read_buffer_size(self._transport)
        # Missing in older versions of aiohttp: there the reader relies on its own deadline.
        self._lost: asyncio.Future[None] | None = getattr(self._protocol, "closed", None)
        if self._lost is not None:
            # Once is enough, however many responses arrive over this connection.
            self._lost.remove_done_callback(_retrieve_exception)
            self._lost.add_done_callback(_retrieve_exception)
            self._lost.add_done_callback(self._end_body)

    async def read(self) -> bytes:
        """Return the next bytes, decompressed, as soon as they arrive; `b""` at the clean end of the body.

        A cancelled read loses no data. While nothing arrives, the buffers of the connection are made small.
        """
        return await translate_errors(self._read_chunk(), self._context)

    async def aread(self) -> Response:
        """Return the response with its complete body; a failure without the secrets."""
        body = await translate_errors(self._read_all(), self._context)
        return without_secrets(replace(self.response, body=body))

    async def read_failure(self) -> None:
        """Read the body into `response`, unless the status is 200: see `aread`."""
        if self.response.status != 200:
            self.response = await self.aread()

    def close(self) -> None:
        """Close the connection at once; if the body was read completely, keep it for the next request."""
        self._is_closed = True
        if self._lost is not None:
            self._lost.remove_done_callback(self._end_body)
        self._end_body()
        is_incomplete = self._aiohttp_response.connection is not None
        self._aiohttp_response.close()
        if is_incomplete and self._transport is not None:
            # Over TLS, the session of a user would wait for the close message of the peer.
            self._transport.abort()

    def check_length(self, length: int, *, limit: int | None = None) -> None:
        """Raise a BodyTooLongError if `length` exceeds `limit`, by default MAX_BODY."""
        check_length(length, self._context, limit=limit)

    def shrink(self) -> None:
        """Make the buffers of the connection small; they grow when much data arrives."""
        self._read_buffer, self._arrived = IDLE_BUFFER, 0
        shrink_buffers(self._transport)

    async def _read_all(self) -> bytes:
        chunks, length = list[bytes](), 0
        while chunk := await self._read():
            chunks.append(chunk)
            length += len(chunk)
            check_length(length, self._context)
        return b"".join(chunks)

    async def _read_chunk(self) -> bytes:
        # Not a cancel scope, which costs twice as much, for each event of a watch.
        timer = None
        if self._read_buffer > IDLE_BUFFER:
            timer = asyncio.get_running_loop().call_later(IDLE_AFTER, self.shrink)
        try:
            chunk = await self._read()
        finally:
            if timer is not None:
                timer.cancel()
        self._arrived += len(chunk)
        grown = min(max(FIRST_BUFFER, self._arrived // 8), LARGEST_BUFFER)
        if len(chunk) >= self._read_buffer // 2 and grown > self._read_buffer:
            self._read_buffer = grown
            resize_read_buffer(self._transport, grown)
        return chunk

    async def _read(self) -> bytes:
        if self._protocol is not None and not self._protocol.connected:
            self._end_body()
        return await self._aiohttp_response.content.readany()

    def _end_body(self, _: asyncio.Future[None] | None = None) -> None:
        """Wake the reader of a lost connection.

        aiohttp does not if it closed the connection itself: after a non-HTTP response, or with its session.
        """
        content = self._aiohttp_response.content
        if self._protocol is not None and content.exception() is None and not content.is_eof():
            content.set_exception(self._protocol.exception() or aiohttp.ServerDisconnectedError())


class OpenResponses:
    """The responses that are being read, so that they can be closed together."""

    def __init__(self) -> None:
        self._open: set[StreamingResponse] = set()
        self._num_readers = 0

    @property
    def is_idle(self) -> bool:
        """Whether no response is being read or requested."""
        return not self._num_readers

    @asynccontextmanager
    async def reading(self, opening: Awaitable[StreamingResponse]) -> AsyncIterator[StreamingResponse]:
        """Yield the response that `opening` returns, and close it after the block."""
        self._num_readers += 1
        try:
            opened = await opening
            self._open.add(opened)
            try:
                yield opened
            finally:
                self._open.discard(opened)
                opened.close()
        finally:
            self._num_readers -= 1

    def close(self) -> None:
        """Close every response; their readers get an error."""
        for opened in self._open:
            opened.close()


async def translate_errors(call: Awaitable[T], context: RequestContext) -> T:
    """Return the result of a call to aiohttp, or raise its error as one of ours."""
    try:
        return await call
    except ResolveError:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Not this task was cancelled, but the look-up it waits for: aiohttp does so as its session closes.
        closed = ConnectionAbortedError("its session was closed")
        error, cause = _translated(closed, context), None
    except FAILURES as failure:
        error, cause = _translated(failure, context), safe_cause(failure)
    # Outside of `except`: the context would be the error of aiohttp, which contains the headers.
    raise error from cause


def _translated(error: Exception, context: RequestContext) -> ResolveError:
    return context.closed_error() if context.is_closed() else connection_error(error, context)


def _retrieve_exception(lost: asyncio.Future[None]) -> None:
    # asyncio logs the exceptions of futures that were never retrieved.
    if not lost.cancelled():
        lost.exception()


def check_length(length: int, context: RequestContext, *, limit: int | None = None) -> None:
    """Raise a BodyTooLongError if the bytes of a body so far exceed `limit`, by default MAX_BODY."""
    limit = MAX_BODY if limit is None else limit
    if length > limit:
        raise context.length_error(limit)


# Secrets and URLs


def without_secrets(response: Response) -> Response:
    """Return a failure response without the secrets that were sent, and any other response unchanged.

    A 200 is data. What quotes it in an error has to `redact` the text.
    """
    if response.status == 200:
        return response
    location = None if response.location is None else response.redact(response.location)
    return replace(response, body=redact_bytes(response.body, response.secrets), location=location)


def secrets_of(headers: Mapping[str, str]) -> set[str]:
    """Return the secret values of headers, without a scheme such as `Bearer`, and the password of `Basic`."""
    secrets = set[str]()
    for name, value in headers.items():
        if name.lower() in SECRET_HEADERS:
            scheme, _, secret = value.partition(" ")
            secrets.add(SecretText(secret or value))
            if scheme == "Basic":
                with suppress(ValueError):
                    secrets.add(SecretText(base64.b64decode(secret).decode().partition(":")[2]))
    return secrets


def _hide_secrets(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return `headers` with a repr that does not show credentials."""
    return {
        name: SecretText(value) if name.lower() in SECRET_HEADERS else value
        for name, value in headers.items()
    }


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without user, password and path."""
    try:
        return f"{URL(url).origin()}"
    except ValueError as error:
        raise ConfigurationError("invalid URL of a server", hint="Write it as https://HOST/PATH.") from error


def _location(response: aiohttp.ClientResponse) -> str | None:
    location = response.headers.get("Location")
    if location is None:
        return None
    try:
        return origin(str(response.url.join(URL(location))))
    except ValueError:
        return "an invalid URL"


def timeout_to_connect_only() -> aiohttp.ClientTimeout:
    """Return a timeout of aiohttp that applies to connecting only, for sessions that a user opened."""
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: `localhost`, `127.0.0.1`, `::1`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def environment_proxy(url: URL) -> str | None:
    """Return the URL of the proxy that the environment configures for `url`; None for this machine.

    The variables and their precedence are those of urllib, and so of requests.
    """
    host = url.host or ""
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{url.port}"):
        return None
    proxy = SecretText(proxy if "://" in proxy else f"http://{proxy}")
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the environment variable {url.scheme.upper()}_PROXY is not the URL of an HTTP proxy",
            hint="Set an http:// or https:// proxy, or exempt the host in NO_PROXY.",
        )
    return proxy


# TLS and buffers


class _OneSidedClose(ssl.SSLObject):
    """TLS that is closed without waiting for the close message of the peer: RFC 8446 section 6.1 permits it.

    asyncio would wait for half a minute, so that a cancelled request to a hanging server would leave a socket
    open.
    """

    def unwrap(self) -> None:
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


def close_one_sidedly(context: ssl.SSLContext) -> ssl.SSLContext:
    """Set `context` to close connections without waiting for the peer, and return it."""
    context.sslobject_class = _OneSidedClose
    return context


async def _system_ssl_context() -> ssl.SSLContext:
    files = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    # In a thread, because it parses a hundred certificates.
    return await run_in_thread("load the certificates of the system", _ssl_context_of, *files)


@functools.lru_cache(maxsize=4)
def _ssl_context_of(file: str | None, folder: str | None) -> ssl.SSLContext:
    # OpenSSL reads both variables itself; here they are the key of the cache.
    return close_one_sidedly(ssl.create_default_context())


def shrink_buffers(transport: asyncio.BaseTransport | None) -> None:
    """Free the write buffer of an idle TLS connection, and make its read buffer small.

    OpenSSL allocates a write buffer of 16 KiB when session tickets arrive after the handshake, and keeps it
    until something is written, which never happens on a watch. Writing zero bytes frees it and sends nothing
    (SSL_write_ex(3)).
    """
    tls = None if transport is None or transport.is_closing() else transport.get_extra_info("ssl_object")
    if tls is not None:
        with suppress(ssl.SSLError):  # the peer has closed the connection
            tls.write(b"")
    resize_read_buffer(transport, IDLE_BUFFER)


def resize_read_buffer(transport: asyncio.BaseTransport | None, size: int) -> None:
    """Read up to `size` bytes of a TLS connection at a time.

    asyncio reads up to 256 KiB, and OpenSSL keeps as much memory as the longest read has filled, for as long
    as the connection is open: 250 KB for each idle watch. Python documents no way to change the size. It
    remains unchanged on uvloop, and if the attributes differ from those of Python 3.11 to 3.14.
    """
    protocol = _tls_protocol(transport)
    if all(hasattr(protocol, name) for name in ("max_size", "_ssl_buffer", "_ssl_buffer_view")):
        protocol.max_size = size
        protocol._ssl_buffer = bytearray(size)
        protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)


def read_buffer_size(transport: asyncio.BaseTransport | None) -> int:
    """Return how many bytes are read at a time."""
    return getattr(_tls_protocol(transport), "max_size", LARGEST_BUFFER)


def _tls_protocol(transport: asyncio.BaseTransport | None) -> Any:
    protocol = getattr(transport, "_ssl_protocol", None)
    return protocol if isinstance(protocol, asyncio.sslproto.SSLProtocol) else SimpleNamespace()
