"""gRPC channels to workers: addresses, connecting, sharing and calling, and failed calls as `ProbeError`."""

from __future__ import annotations

import asyncio
import re
import textwrap
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import anyio

from aioresolve.errors import ConfigurationError, MissingDependencyError, ProbeError

from .grpc_loop import loop_guard

try:
    import grpc
    import grpc.aio
except ImportError as error:
    raise MissingDependencyError(
        "probing workers needs gRPC, which is not installed", hint="Run `pip install grpcio`."
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from aioresolve._core.deadline import Deadline

ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")

OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),  # workers are inside the cluster, whatever the proxy variables are set to
    ("grpc.enable_retries", 0),  # a probe reports what happens at the first attempt
    ("grpc.service_config_disable_resolution", 1),  # or gRPC requests a DNS TXT record for each worker
    ("grpc.use_local_subchannel_pool", 1),  # or a new channel inherits the backoff of an old one
    ("grpc.initial_reconnect_backoff_ms", 100),  # or a connection attempt takes at least a second
    ("grpc.http2.bdp_probe", 0),  # or megabytes of a response are read before its size is rejected
    ("grpc.primary_user_agent", "aioresolve"),
)

CONNECT_GRACE = 0.1
"""Seconds after the deadline of a call at which gRPC stops connecting, so that the deadline passes first.

By default, gRPC stops 20 s after it started: for that long it would keep the socket to a worker that accepts
connections but never responds, even if the channel is closed. gRPC has no other way to stop it."""

CANCEL_TIMEOUT = 1.0
"""Seconds that gRPC has to end a cancelled call."""

CONNECTION_FAILURES = frozenset({"malformed", "refused", "tls", "unreachable"})
"""Codes of errors after which the other end is not a gRPC server, or no longer."""

# gRPC has one status, UNAVAILABLE, for all failures of a connection; only its text distinguishes them.
REFUSED = re.compile(r"connection refused|actively refused", re.IGNORECASE)
TLS = re.compile(r"\b(tls|ssl) handshake|SSL_ERROR|hostname verification|peer name", re.IGNORECASE)
NOT_GRPC = re.compile(r"expected SETTINGS frame|http1\.x server|parsing HTTP/2", re.IGNORECASE)

METADATA_KEY = re.compile(r"(?!grpc-)[0-9a-z_.-]+")


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
        tls_server_name: the host name that the certificates of the workers must match, instead of their
            address.
        metadata: pairs that are sent with each call, such as `("authorization", "Bearer ...")`. Without
            `credentials` they are not encrypted.
        max_message_bytes: the maximum size of a response.
        max_channels: the maximum number of idle channels; the least recently used one is closed first.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tls_server_name: str | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        max_message_bytes: int = 1 << 20,
        max_channels: int = 1024,
    ) -> None:
        if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
            raise ConfigurationError(
                f"expected grpc.ChannelCredentials; got {type(credentials).__name__}",
                argument="credentials",
                hint="Create them with grpc.ssl_channel_credentials().",
            )
        if tls_server_name is not None and credentials is None:
            raise ConfigurationError("tls_server_name requires credentials", hint="Pass {credentials} too.")
        if max_message_bytes < 1 or max_channels < 1:
            raise ConfigurationError("max_message_bytes and max_channels must be at least 1")
        options = [*OPTIONS, ("grpc.max_receive_message_length", max_message_bytes)]
        if tls_server_name is not None:
            options.append(("grpc.ssl_target_name_override", tls_server_name))
        self._options = options
        self._credentials = credentials
        self._metadata = _validate_metadata(metadata)
        self._max_channels = max_channels
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
                if len(self._idle) > self._max_channels:
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
        options = [*self._options, ("grpc.min_reconnect_backoff_ms", connect_milliseconds)]
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
        call = send(request, timeout=deadline.left, metadata=self._channels._metadata)
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


def _validate_metadata(metadata: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, str | bytes], ...]:
    """Return the pairs. They are validated here because grpc's own errors would contain the secret values."""
    pairs = tuple(metadata)
    for key, value in pairs:
        is_valid = isinstance(key, str) and METADATA_KEY.fullmatch(key) is not None
        if is_valid and key.endswith("-bin"):
            is_valid = isinstance(value, bytes)
        elif is_valid:
            is_valid = isinstance(value, str) and value.isascii() and value.isprintable()
        if not is_valid:
            raise ConfigurationError(
                f"the key {key!r} or its value is invalid",
                argument="metadata",
                hint="Keys consist of a-z, 0-9, '_', '-' and '.', and do not start with 'grpc-'; values are"
                " printable ASCII, or bytes for keys that end in '-bin'.",
            )
    return pairs


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
        code, hint = "denied", "Check the credentials and the metadata of the ProbeChannels."
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
