"""gRPC channels to workers: addresses, connecting, sharing and calling, and failed calls as `ProbeError`.

grpc.aio has one completion queue per process, and every event loop that uses it reads from that queue. Two
loops that run at the same time steal each other's events and log errors (grpc#25364). So the first loop that
opens a channel or a server remains the only one as long as it has any; other loops run their calls there.
"""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

import anyio

from aioresolve.errors import ConfigurationError, MissingDependencyError, ProbeError

try:
    import grpc
    import grpc.aio
except ImportError as error:
    raise MissingDependencyError(
        "probing workers needs gRPC, which is not installed", hint="Run `pip install grpcio`."
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aioresolve._core.deadline import Deadline

T = TypeVar("T")

ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")

MAX_MESSAGE_BYTES = 1 << 20
"""The maximum size of a response."""

MAX_CHANNELS = 1024
"""The maximum number of idle channels; the least recently used one is closed first."""

OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),  # workers are inside the cluster, whatever the proxy variables are set to
    ("grpc.enable_retries", 0),  # a probe reports what happens at the first attempt
    ("grpc.service_config_disable_resolution", 1),  # or gRPC requests a DNS TXT record for each worker
    ("grpc.use_local_subchannel_pool", 1),  # or a new channel inherits the backoff of an old one
    ("grpc.initial_reconnect_backoff_ms", 100),  # or a connection attempt takes at least a second
    ("grpc.http2.bdp_probe", 0),  # or megabytes of a response are read before its size is rejected
    ("grpc.primary_user_agent", "aioresolve"),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

CONNECT_GRACE = 0.1
"""Seconds after the deadline of a call at which gRPC stops connecting, so that the deadline passes first.

By default, gRPC stops 20 s after it started: for that long it would keep the socket to a worker that accepts
connections but never responds, even if the channel is closed. gRPC has no other way to stop it."""

CANCEL_TIMEOUT = 1.0
"""Seconds that gRPC has to end a cancelled call."""

START_TIMEOUT = 0.25
"""Seconds that the other loop has to start a call. If it does not, it is blocked, perhaps by the very thread
that waits for the call. A blocked loop does not poll gRPC, so using gRPC in this loop is then safe."""

FOREIGN_CANCEL_TIMEOUT = 5.0
"""Seconds that a cancelled call may take to clean up in the other loop before this loop stops waiting."""

CONNECTION_FAILURES = frozenset({"malformed", "refused", "tls", "unreachable"})
"""Codes of errors after which the other end is not a gRPC server, or no longer."""

# gRPC has one status, UNAVAILABLE, for all failures of a connection; only its text distinguishes them.
REFUSED = re.compile(r"connection refused|actively refused", re.IGNORECASE)
TLS = re.compile(r"\b(tls|ssl) handshake|SSL_ERROR|hostname verification|peer name", re.IGNORECASE)
NOT_GRPC = re.compile(r"expected SETTINGS frame|http1\.x server|parsing HTTP/2", re.IGNORECASE)


def validate_address(address: object) -> str:
    """Return the `host:port` of a worker address, which may have TensorFlow's `grpc://` before it."""
    bare = address.removeprefix("grpc://") if isinstance(address, str) else ""
    match = ADDRESS.fullmatch(bare)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ConfigurationError(
            f"{address!r} is not a worker address",
            hint="Pass host:port, such as '10.0.0.7:8470', with an IPv6 address in brackets.",
        )
    return bare


class ProbeChannels:
    """How to connect to workers. Inside `async with`, connections are kept from one probe to the next.

    >>> async with TPUWorker(devices=4) as worker, ProbeChannels() as channels:
    ...     for _ in range(2):
    ...         probes = await probe_workers([worker.address], channels=channels)
    >>> probes[0].accelerators
    {'TPU': 4}

    Outside `async with`, and in another event loop than that of the `async with`, each probe opens a channel
    of its own. HTTP proxies are not used.

    Args:
        credentials: TLS credentials, made by `grpc.ssl_channel_credentials()`; None for no TLS.

    Raises:
        ConfigurationError: the argument is invalid.
    """

    def __init__(self, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
            raise ConfigurationError(
                f"expected grpc.ChannelCredentials; got {type(credentials).__name__}",
                argument="credentials",
                hint="Create them with grpc.ssl_channel_credentials().",
            )
        self._credentials = credentials
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: dict[str, WorkerChannel] = {}  # least recently used first

    @classmethod
    def over_tls(cls, root_certificates: bytes | None = None) -> Self:
        """Return channels with TLS, without a client certificate.

        Args:
            root_certificates: the certificate authorities to trust, as PEM; by default those of the file
                `$GRPC_DEFAULT_SSL_ROOTS_FILE_PATH`, or else those of gRPC.
        """
        return cls(credentials=grpc.ssl_channel_credentials(root_certificates))

    def __repr__(self) -> str:
        return f"<ProbeChannels {'without' if self._credentials is None else 'over'} TLS>"

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise ConfigurationError(f"{self!r} are already entered", hint="Create others.")
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all channels; those in use are closed when their probes end. Closing twice does nothing."""
        while self._idle:
            await self._pop_idle(next(iter(self._idle))).aclose()
        self._loop = None

    @asynccontextmanager
    async def acquire(self, address: str, deadline: Deadline) -> AsyncIterator[WorkerChannel]:
        """Yield a channel to one worker, for exclusive use. Must be entered in the loop that gRPC polls."""
        if address in self._idle and self._is_entered_here:
            channel = self._pop_idle(address)
        else:
            channel = WorkerChannel(self, address, deadline)
        try:
            yield channel
        finally:
            if channel.is_usable and self._is_entered_here and self._keep(channel):
                if len(self._idle) > MAX_CHANNELS:
                    await self._pop_idle(next(iter(self._idle))).aclose()
            else:
                await channel.aclose()

    @property
    def _is_entered_here(self) -> bool:
        """Whether the running loop is that of the `async with`; it is not if gRPC polls another loop."""
        return self._loop is asyncio.get_running_loop()

    def _keep(self, channel: WorkerChannel) -> bool:
        """Keep a channel, unless there already is one for its address or gRPC polls another loop."""
        if channel.address in self._idle or loop_guard.acquire() is not self._loop:
            return False
        self._idle[channel.address] = channel
        return True

    def _pop_idle(self, address: str) -> WorkerChannel:
        assert self._loop is not None
        loop_guard.release(self._loop)
        return self._idle.pop(address)

    def _open(self, address: str, deadline: Deadline) -> grpc.aio.Channel:
        connect_milliseconds = round((deadline.timeout + CONNECT_GRACE) * 1e3)
        options = [*OPTIONS, ("grpc.min_reconnect_backoff_ms", connect_milliseconds)]
        # gRPC would read the address of a host named `unix`, `dns` or `xds` as another kind of target.
        target = f"dns:///{quote(address, safe=':')}"
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, self._credentials, options)


class WorkerChannel:
    """One gRPC channel to one worker, open until `aclose`.

    It `is_usable`, and worth keeping, if the worker responded to the last call, also with an error status.
    """

    def __init__(self, channels: ProbeChannels, address: str, deadline: Deadline) -> None:
        self.address = address
        self.is_usable = False
        self._channels = channels
        self._channel = channels._open(address, deadline)

    async def call(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        """Send a request and return the response.

        If a connection that had worked is broken, the call is made again once, over a new connection: the
        worker may have been restarted.
        """
        had_worked = self.is_usable
        try:
            return await self._call_once(method, request, deadline)
        except ProbeError as error:
            if not (had_worked and error.code == "unreachable"):
                raise
        await self.aclose()
        self._channel = self._channels._open(self.address, deadline)
        return await self._call_once(method, request, deadline)

    async def aclose(self) -> None:
        """Close the channel."""
        channel = self._channel
        del self._channel
        await channel.close()

    async def _call_once(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        self.is_usable = False
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        call = send(request, timeout=deadline.left)
        try:
            response = await _wait_for_response(call)
        except grpc.aio.AioRpcError as error:
            # Without its traceback, because the frames of grpc keep a reference to the channel.
            raise self._failure(error, method, deadline) from error.with_traceback(None)
        finally:
            # Otherwise the traceback of a cancellation keeps them, and the channel, until it is collected.
            del send, call
        self.is_usable = True
        return response

    def _failure(self, error: grpc.aio.AioRpcError, method: str, deadline: Deadline) -> ProbeError:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            is_connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
            return deadline_error(self.address, method, deadline.timeout, is_connected=is_connected)
        failure = status_error(self.address, method, error.code().name, error.details() or "")
        if failure.code == "unreachable" and not deadline.left:
            # On a busy machine gRPC may stop connecting before it ends the call.
            return deadline_error(self.address, method, deadline.timeout, is_connected=False)
        self.is_usable = failure.code not in CONNECTION_FAILURES
        return failure


async def _wait_for_response(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
    """Return the response. If this task is cancelled, cancel the call and wait until it has ended.

    The call is not awaited directly: when cancelled, grpc raises a CancelledError of its own, which no cancel
    scope recognizes.
    """
    ended = asyncio.Event()
    call.add_done_callback(lambda _: ended.set())
    try:
        await ended.wait()
        return await call
    except asyncio.CancelledError:
        call.cancel()
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
            await ended.wait()
            with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await call
        raise
    finally:
        del call


# The loop that gRPC polls


class LoopGuard:
    """The event loop that grpc.aio polls, and the number of its users. Can be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[asyncio.AbstractEventLoop, int] = {}
        self._was_used = False
        self._is_inherited = False

    def validate_process(self) -> None:
        """Raise a ConfigurationError if this process was forked after gRPC had been used."""
        if self._is_inherited:
            raise ConfigurationError(
                "workers cannot be probed in this process: it was forked after its parent had probed workers,"
                " and gRPC hangs or crashes in such a process",
                hint="Fork before the first probe, or start processes with the method 'spawn'"
                " (`multiprocessing.set_start_method`).",
            )

    def acquire(self) -> asyncio.AbstractEventLoop:
        """Return the loop that gRPC polls. If it is the running loop, or gRPC polls none, count a user."""
        here = asyncio.get_running_loop()
        self._was_used = True
        with self._lock:
            self._users = {loop: users for loop, users in self._users.items() if not loop.is_closed()}
            active = next((loop for loop in self._users if loop.is_running()), here)
            if active is here:
                self._users[here] = self._users.get(here, 0) + 1
            return active

    def release(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove a user that `acquire` counted in `loop`."""
        with self._lock:
            users = self._users.pop(loop, 0) - 1
            if users > 0:
                self._users[loop] = users

    def reset_after_fork(self) -> None:
        """In a forked child, refuse to use gRPC if the parent has used it: its threads do not exist here."""
        self._lock = threading.Lock()
        self._users = {}
        self._is_inherited = self._was_used


loop_guard = LoopGuard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=loop_guard.reset_after_fork)


async def run_in_grpc_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Await `function()` in the loop that gRPC polls, or in this loop if it polls none; return the result."""
    here = asyncio.get_running_loop()
    while True:
        loop = loop_guard.acquire()
        if loop is here:
            try:
                return await function()
            finally:
                loop_guard.release(here)
        try:
            return await _run_in(loop, function)
        except _LoopBlockedError:
            return await function()
        except _LoopEndedError:
            continue


class _LoopBlockedError(Exception):
    """The other loop did not start the call."""


class _LoopEndedError(Exception):
    """The other loop ended before the call did."""


async def _run_in(loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[T]]) -> T:
    result: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        if result.set_running_or_notify_cancel():  # else the caller no longer waits
            tasks.append(loop.create_task(run()))

    async def run() -> None:
        try:
            value = await run_in_grpc_loop(function)
        except Exception as error:  # raised in the caller's loop
            result.set_exception(error)
        except BaseException:
            result.set_exception(_LoopEndedError())
            raise
        else:
            result.set_result(value)

    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError as error:  # closed
        raise _LoopEndedError from error
    waiting = asyncio.wrap_future(result)
    try:
        while not (await asyncio.wait({waiting}, timeout=START_TIMEOUT))[0]:
            if result.cancel():
                raise _LoopBlockedError
            if not loop.is_running():
                raise _LoopEndedError
    except asyncio.CancelledError:
        if not result.cancel():
            await _cancel_and_wait(loop, tasks, waiting)
        raise
    return waiting.result()


async def _cancel_and_wait(
    loop: asyncio.AbstractEventLoop, tasks: list[asyncio.Task[None]], waiting: asyncio.Future[T]
) -> None:
    """Cancel a call that has started, and wait until it has cleaned up."""
    with suppress(RuntimeError):  # closed: there is nothing left to cancel
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        with anyio.move_on_after(FOREIGN_CANCEL_TIMEOUT, shield=True):
            await asyncio.wait({waiting})
    if waiting.done():
        waiting.exception()  # or asyncio would log that the exception was never retrieved


# Failed calls


def status_error(address: str, method: str, status: str, details: str) -> ProbeError:
    """Return the error for a call that ended with a gRPC status other than OK and DEADLINE_EXCEEDED."""
    text = textwrap.shorten(details.rpartition("last error: ")[2], 300, placeholder=" ...") or "no details"
    name, hint, retryable = method.rpartition("/")[2], None, False
    check_program = "Check which program listens there."
    if status == "UNIMPLEMENTED":
        code, summary = "unimplemented", f"{address} is a gRPC server without {name} ({text})"
    elif status == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        code, hint = "too_large", check_program
        summary = f"{address} returned a response to {name} that is too large ({text})"
    elif status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        code, hint = "denied", "Check the credentials of the ProbeChannels."
        summary = f"{address} denied {name}: {status} ({text})"
    elif status != "UNAVAILABLE":
        code, retryable = "failed", status in ("ABORTED", "RESOURCE_EXHAUSTED", "UNKNOWN")
        summary = f"{address} returned {status} to {name} ({text})"
    elif REFUSED.search(details):
        code, retryable = "refused", True
        summary = f"nothing listens at {address}: connection refused"
    elif TLS.search(details):
        code, summary = "tls", f"the TLS handshake with {address} failed ({text})"
        hint = "Check that the worker uses TLS, and the authority and host name of its certificate."
    elif NOT_GRPC.search(details):
        code, hint, summary = "malformed", check_program, f"{address} does not speak gRPC ({text})"
    else:
        code, retryable, hint = "unreachable", True, "If the worker uses TLS, enable it with {channels}."
        summary = f"the connection to {address} failed or broke ({text})"
    return ProbeError(summary, hint=hint, address=address, code=code, status=status, retryable=retryable)


def deadline_error(address: str, method: str, timeout: float, *, is_connected: bool) -> ProbeError:
    """Return the error for a worker that did not respond in time."""
    seconds = f"{round(timeout, 3):g}"
    if is_connected:
        name = method.rpartition("/")[2]
        summary = f"{address} accepted the connection but did not respond to {name} within {seconds} s"
    else:
        summary = (
            f"no gRPC connection to {address} within {seconds} s: the host is gone or drops packets, or the"
            " process is stopped"
        )
    return ProbeError(summary, address=address, code="deadline", status="DEADLINE_EXCEEDED", retryable=True)
