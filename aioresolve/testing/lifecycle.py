"""The common parts of the loopback HTTP servers: ports, TLS, faults, recorded requests, start and stop.

`LoopbackServer` runs in the current event loop; `ThreadedServer` runs one in a thread, for code without an
event loop. Both offer the same `Controls`, whose methods may be called from any thread.
"""

from __future__ import annotations

import abc
import socket
import ssl
from collections import deque
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.to_thread
from aiohttp import web
from anyio.from_thread import BlockingPortal, start_blocking_portal

from aioresolve.errors import ConfigurationError, DeadlineExceededError, MissingDependencyError

from .faults import Injection
from .replies import close_connection, early_reply, send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from .faults import Fault
    from .replies import Reply

_MAX_RECORDS = 100_000
_MAX_BODY = 3 * 1024 * 1024

RequestT = TypeVar("RequestT")


class CertificateAuthority:
    """A new certificate authority, with a server certificate for the loopback addresses."""

    def __init__(self) -> None:
        try:
            import trustme
        except ImportError as error:
            raise MissingDependencyError(
                "a loopback server with TLS needs trustme", hint="Run: pip install 'aioresolve[testing]'"
            ) from error
        self._ca = trustme.CA()
        self._server = self._ca.issue_cert("localhost", "127.0.0.1", "::1")

    @property
    def pem(self) -> str:
        """The certificate of the authority itself, which a client has to trust."""
        return str(self._ca.cert_pem.bytes().decode())

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS settings of a server that accepts, but does not require, client certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._server.configure_cert(context)
        context.load_verify_locations(cadata=self.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def server_certificate(self) -> tuple[bytes, bytes]:
        """Return the private key and the certificate chain of the server, both PEM, as gRPC expects them."""
        chain = b"".join(blob.bytes() for blob in self._server.cert_chain_pems)
        return self._server.private_key_pem.bytes(), chain

    def client_certificate(self, user: str) -> tuple[str, str]:
        """Return a certificate chain and its private key, both PEM, with the common name `user`."""
        issued = self._ca.issue_cert(common_name=user)
        chain = "".join(blob.bytes().decode() for blob in issued.cert_chain_pems)
        return chain, issued.private_key_pem.bytes().decode()


class Controls(Generic[RequestT]):
    """The address, faults and recorded requests of a server; every method may be called from any thread."""

    host: str
    """The address on which the server listens, such as `127.0.0.1`."""
    _tls: bool
    _ports: list[int]
    _authority: CertificateAuthority | None = None
    _runner: web.AppRunner | None = None
    _injections: list[Injection[RequestT]]
    _records: deque[RequestT]

    @property
    def port(self) -> int:
        """The port on which the server listens; until the first start, the one passed (0: any)."""
        return self._ports[0]

    @property
    def url(self) -> str:
        """`scheme://host:port`, with an IPv6 host in brackets."""
        return f"{'https' if self._tls else 'http'}://{self._host_and_port(self.port)}"

    @property
    def ca_pem(self) -> str:
        """The certificate of the server's certificate authority, as PEM.

        Raises:
            ConfigurationError: the server does not use TLS, or has not been started yet.
        """
        return self._get_authority().pem

    @property
    def connections(self) -> int:
        """The number of open connections."""
        runner = self._runner
        return 0 if runner is None or runner.server is None else len(runner.server.connections)

    def inject(
        self, *faults: Fault, match: Callable[[RequestT], bool] | None = None, times: int | None = 1
    ) -> None:
        """Apply `faults`, all together, to each of the next `times` requests that `match` accepts.

        Without `match` every request is accepted; `times=None` means no limit. Only the oldest injection that
        accepts a request applies to it.
        """
        self._injections.append(Injection(faults, match, times))

    @property
    def faults(self) -> tuple[tuple[Fault, ...], ...]:
        """The faults that have not been used up, one entry per injection."""
        return tuple(each.faults for each in tuple(self._injections) if each.left != 0)

    def clear_faults(self) -> None:
        """Remove every pending fault."""
        self._injections.clear()

    @property
    def requests(self) -> tuple[RequestT, ...]:
        """The requests received so far, oldest first (the last 100,000)."""
        return tuple(self._records)

    def forget_requests(self) -> None:
        """Empty `requests`."""
        self._records.clear()

    def _get_authority(self) -> CertificateAuthority:
        if self._authority is None:
            raise ConfigurationError(
                "this server has no certificate authority",
                hint="Create it with tls=True, and start it first.",
            )
        return self._authority

    def _host_and_port(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


class LoopbackServer(Controls[RequestT], abc.ABC):
    """An HTTP server on loopback ports, as an async context manager that can be entered again.

    Ports and certificates are kept when the server stops, so that it returns at the same URL. Port 0 takes a
    free one. With `tls` the server has a certificate from an authority of its own, and with `plain_port`
    a second port that speaks plain HTTP.
    """

    def __init__(self, host: str, port: int, *, tls: bool, plain_port: bool = False) -> None:
        self.host = host
        self._ports = [port, 0] if tls and plain_port else [port]
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._bound: list[socket.socket] = []
        self._injections = []
        self._records = deque(maxlen=_MAX_RECORDS)

    async def __aenter__(self) -> Self:
        """Start the server.

        Raises:
            ConfigurationError: the port is not available, or the server is already running.
            MissingDependencyError: TLS needs trustme, which is not installed.
        """
        if self._runner is not None:
            raise ConfigurationError(
                f"this {type(self).__name__} is already running", hint="Create another one."
            )
        application = web.Application(client_max_size=_MAX_BODY)
        application.router.add_route("*", "/{path:.*}", self._handle)
        application.on_response_prepare.append(_remove_default_server_header)
        try:
            if self._tls and self._context is None:
                self._context = await anyio.to_thread.run_sync(self._make_context)
            runner = web.AppRunner(
                application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
            )
            await runner.setup()
            self._runner = runner
            self._bind()
            await self._open_ports(runner)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            with anyio.CancelScope(shield=True):
                await _close_ports(runner)
                await runner.cleanup()
        while self._bound:
            self._bound.pop().close()

    async def restart(self) -> None:
        """Drop every connection and listen again, on the same port and with the same data."""
        async with self.down():
            pass

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Refuse connections inside the block: the port is closed, and every connection is dropped.

        Raises:
            ConfigurationError: the server is not running, or another process took the port.
        """
        if self._runner is None or not self._runner.sites:
            raise _not_running(type(self).__name__)
        await _close_ports(self._runner)
        self._bind()
        try:
            yield
        finally:
            if self._runner is not None:
                await self._open_ports(self._runner)

    async def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Return as soon as `condition()` is true, such as `lambda: len(server.requests) == 2`.

        Raises:
            DeadlineExceededError: it was not true within `timeout` seconds.
        """
        with anyio.move_on_after(timeout) as scope:
            while not condition():  # noqa: ASYNC110 - an arbitrary condition has no event to wait for
                await anyio.sleep(0.002)
        if scope.cancelled_caught:
            raise DeadlineExceededError(f"the condition was not true within {timeout} s", timeout=timeout)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._runner is None or not self._runner.sites:
            # A TLS connection is reported when its handshake ends, which may be after the port was closed.
            await close_connection(request, reset=True)
        record = self._record(request)
        self._records.append(record)
        applying = (each.faults for each in tuple(self._injections) if each.take(record))
        faults = next(applying, ())
        reply = await early_reply(request, faults)
        if reply is None:
            reply = await self._reply(request, record, faults)
        return await send(request, self._complete(reply), faults)

    def _bind(self) -> None:
        """Take the ports; connections to them are refused until the server listens."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        for number, port in enumerate(self._ports):
            bound = socket.socket(family)
            self._bound.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((self.host, port))
            except OSError as error:
                raise ConfigurationError(
                    f"cannot listen on {self.host} port {port}: {error.strerror}",
                    hint="port=0 takes a free port.",
                ) from error
            self._ports[number] = bound.getsockname()[1]

    async def _open_ports(self, runner: web.AppRunner) -> None:
        for number, bound in enumerate(self._bound):
            context = self._context if number == 0 else None
            await web.SockSite(runner, bound, ssl_context=context, backlog=1024).start()
        self._bound = []

    def _make_context(self) -> ssl.SSLContext:
        self._authority = self._authority or CertificateAuthority()
        return self._authority.server_context()

    @abc.abstractmethod
    def _record(self, request: web.Request) -> RequestT:
        """Return the entry of a request in `requests`, without any secret."""

    @abc.abstractmethod
    async def _reply(self, request: web.Request, record: RequestT, faults: Sequence[Fault]) -> Reply:
        """Return the server's own reply to a request."""

    @abc.abstractmethod
    def _complete(self, reply: Reply) -> Reply:
        """Return the reply with the headers of all replies, and with a body if it has none."""


class ThreadedServer:
    """A `LoopbackServer` in an event loop and a thread of its own: `with` instead of `async with`."""

    _portal: BlockingPortal | None = None

    def __init__(self, server: LoopbackServer[Any]) -> None:
        # Two interfaces to one server: what one of them sets, such as `tokens`, the other has too.
        self.__dict__ = server.__dict__  # pyright: ignore[reportAttributeAccessIssue]
        self._server = server
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        """Start the thread and the server; the errors are those of the server's `__aenter__`."""
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name=type(self._server).__name__))
            stack.enter_context(portal.wrap_async_context_manager(self._server))
            # Only after a successful start; otherwise the end of this block stops the thread.
            self._portal = portal
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._portal = None
        self._exits.close()

    def restart(self) -> None:
        """Restart the server: see `LoopbackServer.restart`."""
        self._running_portal.call(self._server.restart)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Refuse connections inside the block: see `LoopbackServer.down`."""
        with self._running_portal.wrap_async_context_manager(self._server.down()):
            yield

    def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait until `condition()` is true: see `LoopbackServer.until`."""
        self._running_portal.call(self._server.until, condition, timeout)

    @property
    def _running_portal(self) -> BlockingPortal:
        if self._portal is None:
            raise _not_running(type(self._server).__name__)
        return self._portal


def certificate_user(request: web.Request) -> str | None:
    """Return the common name of the verified client certificate of a connection, if there is one."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    names = [pair for each in (certificate or {}).get("subject", ()) for pair in each]
    return next((str(value) for key, value in names if key == "commonName"), None)


def merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with the JSON merge patch applied (RFC 7386: None removes); neither is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, and return its path."""
    path.touch(mode=0o600)
    # An existing file keeps its mode on touch().
    path.chmod(0o600)
    path.write_text(text)
    return path


async def _close_ports(runner: web.AppRunner) -> None:
    # asyncio loses a connection, with its socket open, if it was accepted in the same loop iteration in which
    # the server is closed (python/cpython#109564). Timers run last in an iteration, so a task that a timer
    # wakes runs after every accepted connection has been set up and before the next is accepted.
    with anyio.CancelScope(shield=True):
        for site in tuple(runner.sites):
            await anyio.sleep(0.001)
            await site.stop()
    for connection in () if runner.server is None else list(runner.server.connections):
        if connection.transport is not None:
            connection.transport.abort()


def _not_running(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"this {name} is not running", hint="Enter it with `async with` or `with` first."
    )


async def _remove_default_server_header(request: web.Request, response: web.StreamResponse) -> None:
    """Remove the Server header that aiohttp adds, but not one that is part of the reply."""
    if "aiohttp" in response.headers.get("Server", ""):
        del response.headers["Server"]
